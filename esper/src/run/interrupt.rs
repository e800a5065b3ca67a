//! Ctrl-C, SIGTERM and SIGHUP: the first asks for a checkpoint and an orderly end, the second ends the process at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
#[cfg(unix)]
use signal_hook::consts::SIGHUP;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level;

use crate::exit;
use crate::progress::leave_terminal;

/// Whether the user asked to stop.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt {
    asked: Arc<AtomicBool>,
}

impl Interrupt {
    /// Starts to listen, on a thread of its own: a second signal gives the terminal back, which no handler may do.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub(crate) fn install() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        interrupt.listen().context("installing the handler of signals")?;
        Ok(interrupt)
    }

    #[cfg(unix)]
    fn listen(&self) -> io::Result<()> {
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let heard = self.clone();
        let listen = move || signals.forever().for_each(|_| heard.signalled());
        std::thread::Builder::new().name("signals".to_owned()).spawn(listen).map(drop)
    }

    /// Where signals cannot be waited for, the handler ends the process.
    #[cfg(not(unix))]
    fn listen(&self) -> io::Result<()> {
        use signal_hook::flag;
        for signal in [SIGINT, SIGTERM] {
            // Order matters: the exit acts only when an earlier signal has set the flag.
            flag::register_conditional_shutdown(signal, i32::from(exit::INTERRUPTED), Arc::clone(&self.asked))?;
            flag::register(signal, Arc::clone(&self.asked))?;
        }
        Ok(())
    }

    /// Whether somebody has asked to stop.
    #[must_use]
    pub(crate) fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Asks to stop; asking twice is asking once.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// What a signal does: the first asks, the second ends the process.
    pub(crate) fn signalled(&self) {
        if self.asked.swap(true, Ordering::Relaxed) {
            leave_terminal();
            low_level::exit(i32::from(exit::INTERRUPTED));
        }
    }
}

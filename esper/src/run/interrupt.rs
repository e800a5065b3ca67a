//! Ctrl-C and SIGTERM: the first asks for a checkpoint and an orderly end, the second ends the process at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::Context as _;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
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
        let mut signals = Signals::new([SIGINT, SIGTERM]).context("installing the handler of signals")?;
        let heard = interrupt.clone();
        let listen = move || signals.forever().for_each(|_| heard.signalled());
        thread::Builder::new().name("signals".to_owned()).spawn(listen).context("starting the thread of signals")?;
        Ok(interrupt)
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

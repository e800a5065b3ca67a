//! Ctrl-C and SIGTERM: the first asks for a checkpoint and an orderly end, the second ends the process at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::exit;

/// Whether the user asked to stop.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt {
    asked: Arc<AtomicBool>,
}

impl Interrupt {
    /// Installs the handlers.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub(crate) fn install() -> anyhow::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // Order matters: the exit acts only when an earlier signal has set the flag.
            flag::register_conditional_shutdown(signal, i32::from(exit::INTERRUPTED), Arc::clone(&asked))
                .and_then(|_| flag::register(signal, Arc::clone(&asked)))
                .with_context(|| format!("installing the handler of signal {signal}"))?;
        }
        Ok(Self { asked })
    }

    /// Whether a signal has come.
    #[must_use]
    pub(crate) fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

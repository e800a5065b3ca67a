//! Orders of an operator: the file of the run folder is looked at on a thread of its own, so that no step reads it.

use std::io;
use std::mem;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tolaria::trainer::{Emergency, Origin, SignalFile};

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(100);

/// Listens for as long as it lives.
#[derive(Debug)]
pub(super) struct Orders {
    is_over: Arc<AtomicBool>,
}

impl Orders {
    /// Hands orders that come from now on to the run; those of before were for a process that is gone.
    ///
    /// # Errors
    /// When the file cannot be read, or there is no thread.
    pub(super) fn listen(path: &Path, emergency: Emergency) -> io::Result<Self> {
        let mut file = SignalFile::open(path)?;
        let mut seen = file.read(Origin::Operator)?.map_or(0, |order| order.sequence);
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let listen = move || {
            let mut is_told = false;
            while !ends.load(Ordering::Relaxed) {
                let read = file.read(Origin::Operator);
                let was_told = mem::replace(&mut is_told, read.is_err());
                match read {
                    Ok(Some(order)) if order.sequence > seen => {
                        seen = order.sequence;
                        emergency.set(Origin::Operator, order.level, &order.reason);
                    }
                    Err(error) if !was_told => tracing::warn!(%error, "orders of an operator cannot be read"),
                    Ok(_) | Err(_) => {}
                }
                thread::park_timeout(EVERY);
            }
        };
        thread::Builder::new().name("emergency".to_owned()).spawn(listen)?;
        Ok(Self { is_over })
    }
}

impl Drop for Orders {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

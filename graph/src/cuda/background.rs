//! Work in a thread of its own, whose result is asked for now and then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::reason::Refusal;

/// Threads whose work was dropped before it was over.
static ABANDONED: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());

/// Work under way. Dropping it does not wait: the thread stops at the next opportunity and lets go of what it has.
#[derive(Debug)]
pub(super) struct Background<T> {
    results: Receiver<Result<T, Refusal>>,
    unwanted: Unwanted,
    worker: Option<JoinHandle<()>>,
    is_over: bool,
}

/// Whether anybody still waits for some work.
#[derive(Debug, Clone, Default)]
pub(super) struct Unwanted(Arc<AtomicBool>);

impl Unwanted {
    pub(super) fn check(&self) -> Result<(), Refusal> {
        if self.0.load(Ordering::Relaxed) {
            return Err(not_compiled("unwanted", "nobody waits for it any more"));
        }
        Ok(())
    }
}

impl<T: Send + 'static> Background<T> {
    /// Starts a thread. What it is given it lets go of before the result is there, but for what the result holds.
    pub(super) fn start(work: impl FnOnce(&Unwanted) -> Result<T, Refusal> + Send + 'static) -> Self {
        let (sender, results) = mpsc::channel();
        let unwanted = Unwanted::default();
        let (result, flag) = (sender.clone(), unwanted.clone());
        let spawned = thread::Builder::new().name("graph-compiler".to_owned()).spawn(move || {
            // Nobody may listen any more; then the result is dropped here.
            drop(result.send(work(&flag)));
        });
        let worker = spawned.map_err(|error| {
            drop(sender.send(Err(not_compiled("no_thread", error.to_string()))));
        });
        Self { results, unwanted, worker: worker.ok(), is_over: false }
    }

    /// Work that was refused at once.
    pub(super) fn refused(refusal: Refusal) -> Self {
        let (sender, results) = mpsc::channel();
        drop(sender.send(Err(refusal)));
        Self { results, unwanted: Unwanted::default(), worker: None, is_over: false }
    }

    /// The result once it is there; afterwards nothing more.
    pub(super) fn poll(&mut self) -> Option<Result<T, Refusal>> {
        if self.is_over {
            return None;
        }
        let result = match self.results.try_recv() {
            Ok(result) => result,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(vanished()),
        };
        self.is_over = true;
        Some(result)
    }

    /// Waits for the result.
    pub(super) fn wait(self) -> Result<T, Refusal> {
        self.results.recv().unwrap_or_else(|_| Err(vanished()))
    }
}

impl<T> Drop for Background<T> {
    fn drop(&mut self) {
        self.unwanted.0.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take().filter(|worker| !worker.is_finished()) {
            ABANDONED.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
        }
    }
}

/// Waits for the threads whose work was dropped before it was over.
pub(super) fn join_abandoned() {
    let abandoned = std::mem::take(&mut *ABANDONED.lock().unwrap_or_else(PoisonError::into_inner));
    for worker in abandoned {
        if worker.join().is_err() {
            tracing::warn!("a thread that compiled a graph panicked");
        }
    }
}

fn vanished() -> Refusal {
    not_compiled("vanished", "the thread ended without a result")
}

pub(super) fn not_compiled(why: &'static str, message: impl Into<String>) -> Refusal {
    Refusal::NotCompiled { why, message: message.into() }
}

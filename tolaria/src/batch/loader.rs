//! Workers that gather the windows of an epoch ahead of the steps that take them.

use std::any::Any;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use leyline::clock::Clock;
use leyline::error::ErrorKind;
use leyline::source::SourceError;
use serde::{Deserialize, Serialize};

use super::gather::{EpochOrder, Gatherer, Progress};
use super::host::HostBatch;
use sync::{Builder, JoinHandle, Receiver, Sender, unbounded};

mod sync;

const MOST_WORKERS: usize = 256;
const MOST_AHEAD: usize = 64;
/// What a worker gathers in less time would take longer to be handed over: after so many of those in a row a step gathers its own.
const SHORT: Duration = Duration::from_micros(10);
const SHORT_IN_A_ROW: usize = 4;
/// How many times as many it takes the next time, once a step had to wait for its own after all, and at most; after twice that
/// without another wait it takes as few again.
const MORE_IN_A_ROW: usize = 8;
const MOST_IN_A_ROW: usize = 256;
/// Samples that an error about a panic lists.
const MOST_NAMED: usize = 8;

/// Who gathers the samples of a step. Whatever is chosen, the samples are the same, bit by bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoaderConfig {
    /// Threads that gather windows ahead; with 0 each step gathers its own, and there is no thread. A step gathers its own as well while that takes less than 10 µs, four times in a row or more.
    pub workers: usize,
    /// Windows that each worker may be ahead. As many, times the workers, are in memory.
    pub prefetch: NonZeroUsize,
}

impl Default for LoaderConfig {
    fn default() -> Self {
        Self { workers: 0, prefetch: const { NonZeroUsize::new(2).unwrap() } }
    }
}

impl LoaderConfig {
    /// Every setting that cannot work, as (key, what is accepted).
    #[must_use]
    pub fn validate(&self) -> Vec<(String, String)> {
        let mut issues = Vec::new();
        if self.workers > MOST_WORKERS {
            issues.push(("workers".to_owned(), format!("0 to {MOST_WORKERS}")));
        }
        if self.prefetch.get() > MOST_AHEAD {
            issues.push(("prefetch".to_owned(), format!("1 to {MOST_AHEAD}")));
        }
        issues
    }
}

struct Job {
    order: Arc<EpochOrder>,
    window: usize,
    buffers: Vec<HostBatch>,
}

struct Done {
    window: usize,
    gathered: Result<Vec<HostBatch>, SourceError>,
    took: Duration,
}

/// ```text
///   fetch(i) ─► jobs i … i + ahead ─► workers ─► done, in any order ─► by window ─► window i
/// ```
/// At most `ahead` windows are under way or wait. While windows are gathered in no time, none is asked for ahead. The workers end with the loader, which waits for what they are at.
/// Model-checked by `cargo test -p tolaria --features model-check --lib loader::model`.
pub(crate) struct Loader {
    /// Absent only while it is dropped: its end sends the workers home.
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    workers: Vec<JoinHandle<()>>,
    ahead: usize,
    order: Arc<EpochOrder>,
    /// The first window that nobody was asked for.
    next: usize,
    num_under_way: usize,
    waiting: BTreeMap<usize, Result<Vec<HostBatch>, SourceError>>,
    idle: Vec<Vec<HostBatch>>,
    gathered: Duration,
    /// Windows in a row that were gathered in no time, how many of them it takes, and what no time is.
    num_short: usize,
    short_in_a_row: usize,
    short: Duration,
    gatherer: Arc<Gatherer>,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader")
            .field("workers", &self.workers.len())
            .field("ahead", &self.ahead)
            .finish_non_exhaustive()
    }
}

impl Loader {
    /// Starts the workers, of which there is at least one.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub(crate) fn new(
        gatherer: &Arc<Gatherer>,
        config: LoaderConfig,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, SourceError> {
        let (jobs, taken) = unbounded();
        let (given, done) = unbounded();
        // From here on whatever started ends with the loader.
        let mut loader = Self {
            jobs: Some(jobs),
            done,
            workers: Vec::new(),
            ahead: config.workers.max(1) * config.prefetch.get(),
            order: Arc::new(EpochOrder { epoch: leyline::id::EpochIndex(0), samples: Vec::new(), windows: Vec::new() }),
            next: 0,
            num_under_way: 0,
            waiting: BTreeMap::new(),
            idle: Vec::new(),
            gathered: Duration::ZERO,
            num_short: 0,
            short_in_a_row: SHORT_IN_A_ROW,
            short: SHORT,
            gatherer: Arc::clone(gatherer),
            clock: Arc::clone(clock),
        };
        for index in 0..config.workers.max(1) {
            let (gatherer, clock, jobs, done) = (Arc::clone(gatherer), Arc::clone(clock), taken.clone(), given.clone());
            let worker = Builder::new().name(format!("loader-{index}"));
            let worker = worker.spawn(move || work(&gatherer, &*clock, &jobs, &done));
            loader.workers.push(worker.map_err(|cause| SourceError::io("", "a worker cannot be started", cause))?);
        }
        Ok(loader)
    }

    /// Begins an epoch. What is under way of another one is waited for.
    pub(crate) fn begin(&mut self, order: Arc<EpochOrder>, from: usize) {
        while self.num_under_way > 0 && self.receive().is_ok() {}
        self.waiting.clear();
        (self.order, self.next) = (order, from);
    }

    /// The microbatches of a window. Windows are fetched in their order.
    ///
    /// # Errors
    /// What went wrong while this window was gathered; a panic too.
    pub(crate) fn fetch(&mut self, window: usize) -> Result<Vec<HostBatch>, SourceError> {
        let is_handed_over = self.num_short < self.short_in_a_row;
        let end = self.order.windows.len().min(window.saturating_add(if is_handed_over { self.ahead } else { 1 }));
        while self.next < end {
            let job =
                Job { order: Arc::clone(&self.order), window: self.next, buffers: self.idle.pop().unwrap_or_default() };
            self.next += 1;
            if is_handed_over {
                let Some(jobs) = &self.jobs else { return Err(gone()) };
                jobs.send(job).map_err(|_| gone())?;
                self.num_under_way += 1;
                continue;
            }
            let done = gather(&self.gatherer, &*self.clock, job);
            if done.took >= self.short {
                self.short_in_a_row = MOST_IN_A_ROW.min(self.short_in_a_row * MORE_IN_A_ROW);
            } else if self.num_short > 2 * MOST_IN_A_ROW {
                self.short_in_a_row = SHORT_IN_A_ROW;
            }
            self.take(done);
        }
        loop {
            if let Some(gathered) = self.waiting.remove(&window) {
                return gathered;
            }
            self.receive()?;
        }
    }

    /// Takes buffers back that are no longer read.
    pub(crate) fn recycle(&mut self, buffers: Vec<HostBatch>) {
        if self.idle.len() < self.ahead {
            self.idle.push(buffers);
        }
    }

    /// Time that the workers took for what was fetched since this was asked before.
    pub(crate) fn take_gathered(&mut self) -> Duration {
        std::mem::take(&mut self.gathered)
    }

    fn receive(&mut self) -> Result<(), SourceError> {
        if self.num_under_way == 0 {
            return Err(gone());
        }
        let done = self.done.recv().map_err(|_| gone())?;
        self.num_under_way -= 1;
        self.take(done);
        Ok(())
    }

    fn take(&mut self, Done { window, gathered, took }: Done) {
        self.gathered += took;
        self.num_short = if took < self.short { self.num_short + 1 } else { 0 };
        self.waiting.insert(window, gathered);
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.jobs = None;
        for worker in self.workers.drain(..) {
            if worker.join().is_err() {
                tracing::error!("a worker of the loader panicked outside of its work");
            }
        }
    }
}

fn work(gatherer: &Gatherer, clock: &dyn Clock, jobs: &Receiver<Job>, done: &Sender<Done>) {
    while let Ok(job) = jobs.recv() {
        // Nobody listens any more: the loader is being dropped.
        if done.send(gather(gatherer, clock, job)).is_err() {
            return;
        }
    }
}

fn gather(gatherer: &Gatherer, clock: &dyn Clock, Job { order, window, mut buffers }: Job) -> Done {
    let started = clock.now();
    let mut progress = Progress::default();
    let gather = AssertUnwindSafe(|| gatherer.gather(&order, &order.windows[window], &mut buffers, &mut progress));
    let gathered = catch_unwind(gather).unwrap_or_else(|panic| Err(panicked(&*panic, &progress)));
    Done { window, gathered: gathered.map(|()| buffers), took: clock.now().saturating_sub(started) }
}

fn panicked(panic: &(dyn Any + Send), progress: &Progress) -> SourceError {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("no message");
    let error = |message| SourceError { kind: ErrorKind::Other, ..SourceError::rejected(message) };
    match &progress.samples[..] {
        [sample] => error(format!("the loader panicked: {text}")).of_sample(*sample),
        several => {
            let named = &several[..several.len().min(MOST_NAMED)];
            let more = if several.len() > named.len() { ", …" } else { "" };
            let list = named.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            error(format!("the loader panicked while it read the samples {list}{more}: {text}"))
        }
    }
}

fn gone() -> SourceError {
    SourceError { kind: ErrorKind::Other, ..SourceError::rejected("the workers of the loader are gone") }
}

#[cfg(test)]
#[cfg(feature = "model-check")]
mod model;
#[cfg(test)]
#[cfg(not(feature = "model-check"))]
mod tests;

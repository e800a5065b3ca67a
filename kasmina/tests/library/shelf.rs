//! A manager with a library that the test plays.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, bounded, unbounded};
use esper_weights::Weights;
use esper_weights::{Artifact, CancelToken, HostTensor, KernelStore, PrefetchConfig, StoreError};
use kasmina::Error;
use kasmina::host::HostConfig;
use kasmina::manager::{LibraryConfig, OnFailure};
use leyline::command::Operation;
use leyline::id::{BlueprintId, SeedId};
use leyline::seed::{SeedStage, Transition};
use leyline::telemetry::Event;

use crate::support::{Rig, config};

/// After so long something hangs; nothing here takes a hundredth of it.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);
/// The events of which each request has exactly one.
pub(crate) const ANSWERS: [&str; 5] =
    ["prefetch_ready", "prefetch_attach_failed", "prefetch_error", "prefetch_timeout", "prefetch_canceled"];
pub(crate) const SLOTS: [&str; 3] = ["hidden0", "hidden1", "hidden2"];

pub(crate) fn id(name: &str) -> BlueprintId {
    BlueprintId::new(name).unwrap()
}

/// Slots of one shape: four features.
pub(crate) fn host() -> HostConfig {
    HostConfig::Mlp { inputs: 12, hidden: vec![4, 4, 4], classes: 5 }
}

pub(crate) fn tensor(name: &str, shape: &[usize], start: f32) -> HostTensor {
    let mut value = start;
    let values = std::iter::repeat_with(|| {
        value += 0.031_25;
        value
    });
    HostTensor { name: name.to_owned(), shape: shape.to_vec(), values: values.take(shape.iter().product()).collect() }
}

/// Tensors that fit an `mlp` of four features and width 8.
pub(crate) fn fitting() -> Vec<HostTensor> {
    vec![
        tensor("down.weight", &[4, 8], -0.5),
        tensor("down.bias", &[8], 0.25),
        tensor("up.weight", &[8, 4], 0.0),
        tensor("up.bias", &[4], -1.0),
    ]
}

pub(crate) fn artifact(blueprint: &BlueprintId) -> Artifact {
    Artifact::from_tensors(blueprint.clone(), &fitting()).unwrap()
}

pub(crate) fn io_error() -> StoreError {
    std::io::Error::other("the disk is gone").into()
}

/// A fetch that has begun and ends as the test says; one that is dropped fails.
pub(crate) struct Call {
    pub(crate) blueprint: BlueprintId,
    pub(crate) cancel: CancelToken,
    pub(crate) reply: Sender<Result<Artifact, StoreError>>,
}

impl Call {
    /// Answers, and waits until the answer is where the next look finds it.
    #[track_caller]
    pub(crate) fn reply(self, answer: Result<Artifact, StoreError>) {
        self.reply.send(answer).unwrap();
        assert!(self.cancel.wait(WATCHDOG), "the fetch does not end");
    }

    #[track_caller]
    pub(crate) fn answer(self) {
        let artifact = artifact(&self.blueprint);
        self.reply(Ok(artifact));
    }
}

#[derive(Debug)]
pub(crate) struct PlayedStore {
    pub(crate) calls: Sender<Call>,
}

impl KernelStore for PlayedStore {
    fn fetch(&self, blueprint: &BlueprintId, cancel: &CancelToken) -> Result<Artifact, StoreError> {
        let (reply, answer) = bounded(1);
        let call = Call { blueprint: blueprint.clone(), cancel: cancel.clone(), reply };
        self.calls.send(call).map_err(|_| io_error())?;
        answer.recv().map_err(|_| io_error())?
    }
}

pub(crate) fn remove() -> LibraryConfig {
    LibraryConfig::default()
}

pub(crate) fn fresh() -> LibraryConfig {
    LibraryConfig { on_failure: OnFailure::Fresh, ..LibraryConfig::default() }
}

pub(crate) fn prefetch(prefetch: PrefetchConfig) -> LibraryConfig {
    LibraryConfig { prefetch, ..LibraryConfig::default() }
}

pub(crate) fn one_worker() -> LibraryConfig {
    prefetch(PrefetchConfig { concurrency: 1, ..PrefetchConfig::default() })
}

/// A manager with a library that the test plays.
pub(crate) struct Shelf {
    pub(crate) rig: Rig,
    pub(crate) calls: Receiver<Call>,
}

impl Shelf {
    pub(crate) fn new(library: LibraryConfig) -> Self {
        Self::around(Rig::new(config(host())), library)
    }

    pub(crate) fn around(rig: Rig, library: LibraryConfig) -> Self {
        let (sender, calls) = unbounded();
        let manager = rig.manager.with_library(Arc::new(PlayedStore { calls: sender }), library).unwrap();
        Self { rig: Rig { manager, ..rig }, calls }
    }

    /// The next fetch that begins.
    #[track_caller]
    pub(crate) fn call(&self, blueprint: &str) -> Call {
        let call = self.calls.recv_timeout(WATCHDOG).expect("a fetch begins");
        assert_eq!(call.blueprint, id(blueprint));
        call
    }

    /// A seed that waits, and the fetch that it waits for.
    #[track_caller]
    pub(crate) fn waiting(&mut self, at: &str, blueprint: &str) -> (SeedId, Call) {
        let seed = self.rig.germinate(at, blueprint);
        assert!(self.is_waiting(seed));
        (seed, self.call(blueprint))
    }

    pub(crate) fn is_waiting(&self, seed: SeedId) -> bool {
        self.rig.state(seed).is_some_and(|state| state.weights_pending)
    }

    pub(crate) fn weights(&self, seed: SeedId) -> Weights {
        self.rig.manager.export_seed(&self.rig.eager, seed).unwrap()
    }

    pub(crate) fn gauge(&self, name: &str) -> Option<f64> {
        self.rig.recorder.gauge_value(name, &[])
    }

    pub(crate) fn of_seed(&self, name: &str, seed: SeedId) -> Option<f64> {
        self.rig.recorder.gauge_value(name, &[&seed.to_string()])
    }

    pub(crate) fn events(&self, name: &str) -> Vec<Event> {
        self.rig.recorder.events_named(name)
    }

    pub(crate) fn requests(&self, status: &str) -> u64 {
        self.rig.recorder.counter_value("kasmina.prefetch.requests_total", &[status]).unwrap()
    }

    /// Every request is in one state, and the counters say how many are in which.
    #[track_caller]
    pub(crate) fn check_requests(&self, expected: [u64; 4], inflight: u64) {
        let found = ["ready", "error", "timeout", "canceled"].map(|status| self.requests(status));
        assert_eq!(found, expected, "ready, error, timeout, canceled");
        assert_eq!(self.gauge("kasmina.prefetch.inflight"), Some(inflight as f64));
        assert_eq!(self.requests("scheduled"), found.iter().sum::<u64>() + inflight);
    }

    #[track_caller]
    pub(crate) fn check_one_event(&self, name: &str, seed: SeedId, part_of_reason: &str) {
        let events = self.events(name);
        assert_eq!(events.len(), 1, "{name}: {events:?}");
        let about = events[0].attributes.iter().find(|(name, _)| *name == "seed_id").map(|(_, value)| value.clone());
        assert_eq!(about, Some(seed.to_string()));
        let text = format!("{:?}", events[0].attributes);
        assert!(text.contains(part_of_reason), "{text}");
        let answers: usize = ANSWERS.iter().map(|name| self.events(name).len()).sum();
        assert_eq!(answers, self.events("prefetch_requested").len(), "each request has one answer");
    }

    /// Ends epochs: the seed was removed by exactly one transition, and its slot is barred.
    #[track_caller]
    pub(crate) fn check_removed(&mut self, seed: SeedId) {
        let removed = |transitions: &[Transition]| {
            transitions.iter().filter(|moved| moved.seed == seed && moved.to == SeedStage::Pruned).count()
        };
        let first = self.rig.end_epoch();
        assert_eq!(removed(&first), 1, "{first:?}");
        assert!(first.iter().any(|moved| moved.reason.starts_with("weights not fetched: ")), "{first:?}");
        assert_eq!(self.rig.stage(seed), Some(SeedStage::Embargoed));
        assert_eq!(removed(&self.rig.end_epoch()), 0);
        assert_eq!(self.of_seed("kasmina.seed.kernel_attached", seed), Some(0.0));
    }

    /// The seed trains, or why it may not.
    pub(crate) fn train(&mut self, seed: SeedId) -> Result<(), Error> {
        self.rig.send(Operation::StartTraining { seed }).map(drop)
    }
}

/// Does it on another thread, and fails when it does not come back.
pub(crate) fn must_return<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, returned) = bounded(1);
    thread::spawn(move || done.send(work()).unwrap());
    returned.recv_timeout(WATCHDOG).unwrap_or_else(|_| panic!("{what} did not return"))
}

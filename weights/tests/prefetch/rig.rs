//! A store that the test plays, and a prefetcher before it.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, bounded, unbounded};
use esper_weights::{
    Artifact, CancelToken, HostTensor, KernelStore, Outcome, Poll, PrefetchConfig, PrefetchError, Prefetcher,
    StoreError,
};
use leyline::clock::Clock;
use leyline::id::BlueprintId;
use leyline_testkit::clock::ManualClock;

/// After so long something hangs; nothing here takes a hundredth of it.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

pub(crate) fn id(name: &str) -> BlueprintId {
    BlueprintId::new(name).unwrap()
}

pub(crate) fn artifact(name: &str) -> Artifact {
    let value = name.bytes().map(f32::from).sum();
    let tensor = HostTensor { name: "w".into(), shape: vec![4], values: vec![value; 4] };
    Artifact::from_tensors(id(name), &[tensor]).unwrap()
}

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn io_error() -> StoreError {
    std::io::Error::other("the disk is gone").into()
}

/// A fetch that has begun and ends as the test says; one that is dropped fails.
pub(crate) struct Call {
    pub(crate) blueprint: BlueprintId,
    pub(crate) cancel: CancelToken,
    pub(crate) reply: Sender<Answer>,
}

pub(crate) enum Answer {
    Give(Result<Artifact, StoreError>),
    Panic,
}

impl Call {
    pub(crate) fn answer(self) {
        let artifact = artifact(self.blueprint.as_str());
        self.reply.send(Answer::Give(Ok(artifact))).unwrap();
    }

    pub(crate) fn reply(self, answer: Answer) {
        self.reply.send(answer).unwrap();
    }

    pub(crate) fn fail(self) {
        self.reply(Answer::Give(Err(io_error())));
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
        match answer.recv() {
            Ok(Answer::Give(result)) => result,
            Ok(Answer::Panic) => panic!("the store has a bug"),
            Err(_) => Err(io_error()),
        }
    }
}

pub(crate) struct Rig {
    pub(crate) prefetcher: Prefetcher,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) calls: Receiver<Call>,
}

impl Rig {
    pub(crate) fn new(config: PrefetchConfig) -> Self {
        let (sender, calls) = unbounded();
        let clock = Arc::new(ManualClock::default());
        let store = Arc::new(PlayedStore { calls: sender });
        let prefetcher = Prefetcher::new(store, config, Arc::clone(&clock) as Arc<dyn Clock>).unwrap();
        Self { prefetcher, clock, calls }
    }

    pub(crate) fn workers(concurrency: usize) -> Self {
        Self::new(PrefetchConfig { concurrency, ..PrefetchConfig::default() })
    }

    /// The next fetch that begins.
    #[track_caller]
    pub(crate) fn call(&self, name: &str) -> Call {
        let call = self.calls.recv_timeout(WATCHDOG).expect("a fetch begins");
        assert_eq!(call.blueprint, id(name));
        call
    }

    /// One whole request that the store answers as it is told.
    #[track_caller]
    pub(crate) fn round(&self, name: &str, answer: Answer) -> Outcome {
        let ticket = self.prefetcher.request(&id(name)).unwrap();
        self.call(name).reply(answer);
        self.prefetcher.wait(&ticket, WATCHDOG)
    }

    #[track_caller]
    pub(crate) fn fail(&self, name: &str) {
        let outcome = self.round(name, Answer::Give(Err(io_error())));
        assert!(matches!(outcome, Outcome::Failed(PrefetchError::Store(StoreError::Io(_)))), "{outcome:?}");
    }

    #[track_caller]
    pub(crate) fn succeed(&self, name: &str) {
        let outcome = self.round(name, Answer::Give(Ok(artifact(name))));
        assert!(matches!(&outcome, Outcome::Ready(found) if *found == artifact(name)), "{outcome:?}");
    }

    pub(crate) fn cached(&self) -> Vec<Artifact> {
        self.prefetcher.cached()
    }
}

/// Does it on another thread, and fails when it does not come back.
pub(crate) fn must_return<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, returned) = bounded(1);
    thread::spawn(move || done.send(work()).unwrap());
    returned.recv_timeout(WATCHDOG).unwrap_or_else(|_| panic!("{what} did not return"))
}

#[track_caller]
pub(crate) fn assert_timed_out(poll: &Poll, ms: u64) {
    assert!(matches!(poll, Poll::Failed(PrefetchError::TimedOut { deadline_ms }) if *deadline_ms == ms), "{poll:?}");
}

#[track_caller]
pub(crate) fn assert_breaker_open(found: Result<(), PrefetchError>, ms: u64) {
    let is_right = matches!(&found, Err(PrefetchError::BreakerOpen { retry_in_ms }) if *retry_in_ms == ms);
    assert!(is_right, "{found:?}");
}

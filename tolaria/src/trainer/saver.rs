//! Who writes checkpoints: the loop itself, or a thread beside it.
//!
//! ```text
//!   loop     copy of the state ─► at most 2 of them ─►                … steps …            ─► told, freed
//!   writer                        host ◄─ own stream ─┘ finite? ─► encode ─► fsync, rename, read back ─┘
//! ```
//! Copies come back to the loop, which frees them: what a GPU is given by another thread could end up in a recording.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use candle_core::Device;
use crossbeam::channel::{Receiver, Sender, unbounded};
use esper_graph::{PendingRead, ReadLane, Session};
use leyline::clock::Clock;
use leyline::id::StepIndex;

use crate::checkpoint::{CheckpointError, CheckpointReader, CheckpointStore, Snapshot};
use crate::cpu;
use crate::error::{self, Error};
use crate::trainer::phase::phase;
use crate::trainer::run::Checkpoints;
use crate::trainer::state::{Copied, OPTIMIZER};
use crate::trainer::stop::Best;

/// Most checkpoints that are copied and not yet on the disk: one that is written, and one that waits, where the best network and
/// the end of an epoch come together.
pub const MAX_CHECKPOINTS_IN_FLIGHT: usize = 2;

/// A state that is to be written.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) copied: Copied,
    /// On its way to the host; absent where it is there, or whoever writes it fetches it.
    pub(super) read: Option<PendingRead>,
    /// Names of the parameters.
    pub(super) parameters: BTreeSet<String>,
    /// Whether it is kept beside the last ones.
    pub(super) is_best: bool,
}

/// What the loop remembers of a state until it is known what became of it.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) step: StepIndex,
    /// The evaluation that it is kept for, and the best one before.
    pub(super) best: Option<(Best, Option<Best>)>,
    pub(super) bytes: u64,
    /// When its copy was asked for.
    pub(super) began: Duration,
}

/// What became of a job.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) result: Result<(), Error>,
    pub(super) ended: Duration,
    /// Freed by the loop.
    _job: Option<Job>,
}

impl Done {
    /// Of a state that could not even be copied.
    pub(super) fn failed(error: Error, ended: Duration) -> Self {
        Self { result: Err(error), ended, _job: None }
    }
}

/// What observers are still to be told.
#[derive(Debug)]
pub(super) enum News {
    Written { step: StepIndex, is_best: bool, took_ms: f64 },
    Failed { error: String },
}

/// Where checkpoints go, and what is on its way there.
#[derive(Debug)]
pub(super) struct Saver {
    pub(super) every_epochs: NonZeroU64,
    pub(super) every_steps: Option<NonZeroU64>,
    pub(super) keep_best: bool,
    pub(super) in_background: bool,
    pub(super) config_digest: String,
    pub(super) reader: CheckpointReader,
    /// Here until a thread has it.
    store: Option<CheckpointStore>,
    thread: Option<WriterThread>,
    lane: Option<ReadLane>,
    /// The oldest first.
    pub(super) flights: VecDeque<Flight>,
    pub(super) news: Vec<News>,
    /// Checkpoints in a row that were not written.
    pub(super) failing: u64,
    /// Whether one was due while another was being written: it is made up for as soon as that one is on the disk.
    pub(super) is_overdue: bool,
    /// The newest state on the disk.
    pub(super) durable: StepIndex,
    /// Evaluations that were the best when their checkpoints were not written.
    pub(super) unwritten: Vec<Best>,
    /// All that were not, and why the last of them was not.
    pub(super) failed: Option<(u64, String)>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug)]
struct WriterThread {
    /// Absent only while it is dropped: its end sends the thread home.
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    handle: Option<JoinHandle<()>>,
}

impl Saver {
    pub(super) fn new(checkpoints: Checkpoints, clock: &Arc<dyn Clock>) -> Self {
        let Checkpoints { store, every_epochs, every_steps, keep_best, in_background, config_digest } = checkpoints;
        Self {
            every_epochs,
            every_steps,
            keep_best,
            in_background,
            config_digest,
            reader: store.reader().clone(),
            store: Some(store),
            thread: None,
            lane: None,
            flights: VecDeque::new(),
            news: Vec::new(),
            failing: 0,
            is_overdue: false,
            durable: StepIndex(0),
            unwritten: Vec::new(),
            failed: None,
            clock: Arc::clone(clock),
        }
    }

    /// Whether one that was left out can be made up for.
    pub(super) fn can_make_up(&self) -> bool {
        self.is_overdue && self.flights.is_empty()
    }

    /// Whether a copy on this device can be written by a thread: a GPU without a session is read by the loop.
    pub(super) fn can_write_aside(&self, device: &Device, session: Option<&Session>) -> bool {
        self.in_background && (device.is_cpu() || session.is_some())
    }

    /// Begins to bring a copy on a GPU to the host.
    pub(super) fn begin_read(
        &mut self,
        copied: &Copied,
        session: Option<&Session>,
    ) -> Result<Option<PendingRead>, Error> {
        let Some(session) = session else { return Ok(None) };
        if self.lane.is_none() {
            self.lane = Some(ReadLane::new(session).map_err(candle_core::Error::wrap)?);
        }
        let Some(lane) = &self.lane else { return Ok(None) };
        Ok(Some(lane.begin(session, copied.tensors())?))
    }

    /// Gives a job to the thread, which is started with the first one, or writes it here and now.
    pub(super) fn write(&mut self, job: Job, flight: Flight, aside: bool) -> Option<(Flight, Done)> {
        if aside && let Err(error) = self.start() {
            return Some((flight, self.done(Err(error), Some(job))));
        }
        if let Some(thread) = &self.thread {
            self.flights.push_back(flight);
            let jobs = thread.jobs.as_ref().expect("the thread is sent home when the saver is dropped");
            // Where the thread has ended, waiting for what became of it says so.
            drop(jobs.send(job));
            return None;
        }
        let result = self.store.as_mut().map_or_else(|| Ok(()), |store| write(store, &job));
        Some((flight, self.done(result, Some(job))))
    }

    /// What became of the oldest job, where that is known or may be waited for.
    pub(super) fn next_done(&mut self, waits: bool) -> Option<(Flight, Done)> {
        let flight = self.flights.pop_front()?;
        let Some(thread) = &self.thread else { return None };
        let done = if waits {
            thread.done.recv().map_err(|_| true)
        } else {
            thread.done.try_recv().map_err(|error| error.is_disconnected())
        };
        match done {
            Ok(done) => Some((flight, done)),
            Err(true) => {
                let source = io::Error::new(io::ErrorKind::BrokenPipe, "the thread that writes checkpoints has ended");
                Some((flight, self.done(Err(self.io(source)), None)))
            }
            Err(false) => {
                self.flights.push_front(flight);
                None
            }
        }
    }

    /// Bytes of copies that are not yet on the disk.
    pub(super) fn bytes_in_flight(&self) -> u64 {
        self.flights.iter().map(|flight| flight.bytes).sum()
    }

    fn start(&mut self) -> Result<(), Error> {
        if self.thread.is_some() {
            return Ok(());
        }
        let (jobs, taken) = unbounded::<Job>();
        let (given, done) = unbounded();
        let (stores, store) = unbounded();
        let clock = Arc::clone(&self.clock);
        let thread = std::thread::Builder::new().name("checkpoints".to_owned());
        let handle = thread.spawn(move || {
            let Ok(mut store) = store.recv() else { return };
            for job in taken {
                let writing = phase!("write");
                let result = write(&mut store, &job);
                drop(writing);
                // The loop may be over: then the copy goes here, and nobody records any more.
                drop(given.send(Done { result, ended: clock.now(), _job: Some(job) }));
            }
        });
        let handle = handle.map_err(|source| self.io(source))?;
        if let Some(store) = self.store.take() {
            drop(stores.send(store));
        }
        self.thread = Some(WriterThread { jobs: Some(jobs), done, handle: Some(handle) });
        Ok(())
    }

    fn done(&self, result: Result<(), Error>, job: Option<Job>) -> Done {
        Done { result, ended: self.clock.now(), _job: job }
    }

    fn io(&self, source: io::Error) -> Error {
        CheckpointError::Io { action: "write to", path: self.reader.dir().to_owned(), source }.into()
    }
}

impl Drop for WriterThread {
    /// Waits for what is being written.
    fn drop(&mut self) {
        self.jobs = None;
        if self.handle.take().is_some_and(|handle| handle.join().is_err()) {
            tracing::error!("the thread that writes checkpoints panicked");
        }
    }
}

/// Writes a state down: by the loop or beside it, with the same bytes.
fn write(store: &mut CheckpointStore, job: &Job) -> Result<(), Error> {
    let snapshot = job.copied.on_host(job.read.as_ref())?;
    require_finite(&snapshot, &job.parameters)?;
    match if job.is_best { store.save_pinned(&snapshot) } else { store.save(&snapshot) } {
        // Durable; only the removal of older generations failed, and the next save tries again.
        Err(error) if error.committed().is_some() => {
            tracing::warn!(error = error::chain(&error), "an old checkpoint was not removed");
            Ok(())
        }
        saved => Ok(saved.map(drop)?),
    }
}

/// A checkpoint of numbers that are not finite would take the place of a good one. What is neither a parameter nor a moment may
/// be infinite, as masks are.
fn require_finite(snapshot: &Snapshot, parameters: &BTreeSet<String>) -> Result<(), Error> {
    for (component, saved) in &snapshot.components {
        for (name, tensor) in &saved.tensors {
            let may_be_infinite = component != OPTIMIZER && !parameters.contains(name);
            let fits = |value: f64| value.is_finite() || (may_be_infinite && value.is_infinite());
            if !cpu::all_elements(tensor, fits)? {
                return Err(Error::NonFiniteState { tensor: format!("{component}/{name}") });
            }
        }
    }
    Ok(())
}

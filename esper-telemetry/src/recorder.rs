//! The recorder: what subsystems hold, and the guard of whoever started it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam::channel::{Receiver, RecvTimeoutError, bounded};
use leyline::clock::Clock;
use leyline::id::{EpochIndex, RunId, StepIndex};
use leyline::telemetry::{Boundary, Counter, Event, Gauge, HealthStatus, MetricDesc, Recorder};

use crate::assembler::{Assembler, Position, lock};
use crate::catalogue::Catalogue;
use crate::error::Error;
use crate::ledger::{Ledger, Stats};
use crate::queue::{Closer, Intake, Item, QueueConfig, QueuedEvent, Snapshot, queue};
use crate::registry::Registry;
use crate::sink::Sink;
use crate::worker::{Worker, unix_ms};

/// How long a guard that is merely dropped waits for the queue to empty.
pub const FLUSH_ON_DROP: Duration = Duration::from_secs(2);

/// Records into series and queues; a worker thread turns them into packets.
///
/// `publish` reads all values on the calling thread (one relaxed load each), so that a packet holds the values of its
/// boundary however late the worker is; names, labels and files are the worker's business. It takes a lock for reading
/// that is only contended while a handle is handed out for the first time. `event` and `publish` never wait for the
/// worker: without room in the queue they return at once and the loss is counted; critical events always have room. They do not wake it either, which would take most of their
/// time: what they hand over waits for up to [`POLL`](crate::queue::POLL), unless it is a critical event, the boundary after one, or half of the queue is full.
#[derive(Debug)]
pub struct TelemetryRecorder {
    registry: Arc<Registry>,
    ledger: Arc<Ledger>,
    intake: Intake<Item>,
    clock: Arc<dyn Clock>,
    at: Position,
    /// Of the last boundary, as its wire number; 0 before the first.
    health: AtomicU8,
}

/// Keeps the worker of a recorder running.
#[derive(Debug)]
#[must_use = "the recorder is closed as soon as its guard is dropped"]
pub struct Guard {
    running: Option<Running>,
    registry: Arc<Registry>,
    ledger: Arc<Ledger>,
}

/// How a recorder ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shutdown {
    /// Whether everything in the queue was handed to the sinks and the sinks were flushed in time. If not, the worker
    /// still tries as long as the process lives, and `stats` has items in flight.
    pub finished: bool,
    /// What became of events and packets.
    pub stats: Stats,
}

#[derive(Debug)]
struct Running {
    closer: Closer,
    thread: JoinHandle<()>,
    /// Disconnected when the thread ends, for whatever reason.
    done: Receiver<()>,
}

impl TelemetryRecorder {
    /// Starts a recorder and its worker thread. Packets go to each of `sinks`, in this order.
    ///
    /// # Errors
    /// [`Error::Thread`] when the thread cannot be started.
    pub fn start(
        run_id: RunId,
        catalogue: Catalogue,
        sinks: Vec<Box<dyn Sink>>,
        queue_config: QueueConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<(Arc<Self>, Guard), Error> {
        let registry = Arc::new(Registry::new(catalogue));
        let ledger = Arc::new(Ledger::new(&registry));
        let (intake, outlet, closer) = queue(&queue_config);
        let last_sequence = sinks.iter().filter_map(|sink| sink.last_sequence()).max().unwrap_or(0);
        let next_sequence = last_sequence.saturating_add(1);
        let at = Position::default();
        let assembler =
            Assembler::new(run_id, Arc::clone(&registry), Arc::clone(&ledger), next_sequence, Arc::clone(&at));
        let worker = Worker::new(outlet, assembler, Arc::clone(&clock), sinks, &registry)?;
        let (ended, done) = bounded(0);
        let body = move || {
            let _ended = ended;
            worker.run();
        };
        let thread = thread::Builder::new().name("esper-telemetry".to_owned()).spawn(body).map_err(Error::Thread)?;
        let running = Some(Running { closer, thread, done });
        let guard = Guard { running, registry: Arc::clone(&registry), ledger: Arc::clone(&ledger) };
        Ok((Arc::new(Self { registry, ledger, intake, clock, at, health: AtomicU8::new(0) }), guard))
    }

    /// The descriptors the recorder was started with, this crate's included.
    #[must_use]
    pub fn catalogue(&self) -> &Catalogue {
        self.registry.catalogue()
    }

    /// What became of events and packets so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.ledger.stats()
    }

    /// Critical events by name that no sink has taken, with their number: those that wait, and those that were dropped. Those outside of the
    /// catalogue are `unlisted`.
    #[must_use]
    pub fn undelivered(&self) -> Vec<(&'static str, u64)> {
        self.ledger.undelivered()
    }

    /// How the publisher of the last boundary was; absent before the first.
    #[must_use]
    pub fn health(&self) -> Option<HealthStatus> {
        use HealthStatus::{Critical, Degraded, Healthy, Unhealthy};
        let wire = self.health.load(Ordering::Relaxed);
        [Healthy, Degraded, Unhealthy, Critical].into_iter().find(|&status| status as u8 == wire)
    }

    /// Says where the run goes on. Packets that come before its first boundary are of there.
    pub fn resumed_at(&self, epoch: EpochIndex, step: StepIndex) {
        *lock(&self.at) = (epoch, step);
    }

    /// What is read when somebody scrapes.
    pub(crate) fn parts(&self) -> (Arc<Registry>, Arc<Ledger>) {
        (Arc::clone(&self.registry), Arc::clone(&self.ledger))
    }
}

impl Recorder for TelemetryRecorder {
    fn gauge(&self, desc: &'static MetricDesc, labels: &[&str]) -> Gauge {
        self.registry.gauge(desc, labels)
    }

    fn counter(&self, desc: &'static MetricDesc, labels: &[&str]) -> Counter {
        self.registry.counter(desc, labels)
    }

    fn event(&self, event: Event) {
        if self.ledger.is_over() {
            return;
        }
        let (order, ticket) = (self.ledger.next_order(), self.ledger.emit_event(event.desc));
        self.intake.offer(Item::Event(QueuedEvent { order, event, ticket }));
    }

    fn publish(&self, boundary: Boundary) {
        self.health.store(boundary.health.status as u8, Ordering::Relaxed);
        if self.ledger.is_over() {
            return;
        }
        let (order, ticket) = (self.ledger.next_order(), self.ledger.emit_packet());
        self.ledger.tell_waiting();
        let (values, created_unix_ms) = (self.registry.read(), unix_ms(self.clock.as_ref()));
        self.intake.offer(Item::Snapshot(Snapshot { order, boundary, created_unix_ms, values, ticket }));
    }
}

impl Guard {
    /// Closes the recorder, waits at most `timeout` for the worker to write out what is queued, and says how it ended.
    /// What is emitted from now on is dropped and counted. Sinks that fail are offered critical events for two seconds more; what none has
    /// taken then is dropped and counted, and told in the log by name.
    pub fn shutdown(mut self, timeout: Duration) -> Shutdown {
        self.close(timeout)
    }

    /// As [`shutdown`](Self::shutdown), at the end of a run: what is emitted from now on is none of it, and so not taken, and no loss.
    /// Packets still to be written and an [`Exposition`](crate::Exposition) have the values of now.
    pub fn end_run(self, timeout: Duration) -> Shutdown {
        self.registry.end_run();
        self.ledger.end_run();
        self.shutdown(timeout)
    }

    fn close(&mut self, timeout: Duration) -> Shutdown {
        let finished = self.running.take().is_none_or(|running| {
            let finished = running.end(timeout);
            for (event, count) in self.ledger.undelivered() {
                tracing::error!(event, count, "critical events reached no telemetry sink");
            }
            finished
        });
        Shutdown { finished, stats: self.ledger.stats() }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.close(FLUSH_ON_DROP);
    }
}

impl Running {
    fn end(self, timeout: Duration) -> bool {
        drop(self.closer);
        if self.done.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(timeout_s = timeout.as_secs_f64(), "telemetry was not written out in time");
            return false;
        }
        let finished = self.thread.join().is_ok();
        if !finished {
            tracing::error!("the telemetry worker panicked");
        }
        finished
    }
}

//! A remote sink, on a thread and behind a queue of its own: what it costs is its own packets, never those of other sinks.

use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam::channel::Sender;
use leyline::clock::Clock;
use leyline::telemetry::{Counter, Event, Priority};

use crate::error::Error;
use crate::ledger::Receipt;
use crate::packet::Packet;
use crate::queue::{Closer, Intake, Outlet, QueueConfig, Queued, queue};
use crate::sink::REMOTE_QUEUE;
use crate::worker::Slot;

/// How long what waits is written on after the end; what is left then is dropped.
const FAREWELL: Duration = Duration::from_secs(2);

/// The near side of a lane.
#[derive(Debug)]
pub(crate) struct Lane {
    intake: Intake<Parcel>,
    errors: Counter,
    closer: Closer,
    /// When it was closed, by the clock.
    closed: Arc<OnceLock<Duration>>,
    thread: JoinHandle<()>,
}

/// A packet on its way.
#[derive(Debug)]
struct Parcel {
    packet: Arc<Packet>,
    receipt: Arc<Receipt>,
    /// Counts it where nobody tried to write it.
    untried: Option<Counter>,
}

impl Lane {
    /// Starts the thread. What begins or ceases to fail is told to `reports`.
    ///
    /// # Errors
    /// [`Error::Thread`].
    pub(crate) fn start(slot: Slot, clock: Arc<dyn Clock>, reports: Sender<Event>) -> Result<Self, Error> {
        let room = const { NonZeroUsize::new(REMOTE_QUEUE).expect("above 0") };
        let (intake, outlet, closer) = queue(&QueueConfig { capacity: room, critical_capacity: room });
        let (errors, closed) = (slot.errors().clone(), Arc::<OnceLock<_>>::default());
        let far_side = FarSide { outlet, slot, clock, closed: Arc::clone(&closed), reports };
        let named = thread::Builder::new().name("esper-remote".to_owned());
        let thread = named.spawn(move || far_side.run()).map_err(Error::Thread)?;
        Ok(Self { intake, errors, closer, closed, thread })
    }

    /// Takes a packet where there is room. Never waits.
    pub(crate) fn offer(&self, packet: &Arc<Packet>, receipt: &Arc<Receipt>) {
        let (packet, receipt, untried) = (Arc::clone(packet), Arc::clone(receipt), Some(self.errors.clone()));
        self.intake.offer(Parcel { packet, receipt, untried });
    }

    /// Says that nothing more comes.
    pub(crate) fn close(self, now: Duration) -> JoinHandle<()> {
        self.closed.get_or_init(|| now);
        drop(self.closer);
        self.thread
    }
}

struct FarSide {
    outlet: Outlet<Parcel>,
    slot: Slot,
    clock: Arc<dyn Clock>,
    closed: Arc<OnceLock<Duration>>,
    reports: Sender<Event>,
}

impl FarSide {
    fn run(mut self) {
        while let Some(mut parcel) = self.outlet.next() {
            let is_late = |closed: &Duration| self.clock.now().saturating_sub(*closed) > FAREWELL;
            if self.closed.get().is_some_and(is_late) {
                continue;
            }
            parcel.untried = None;
            let (accepted, report) = self.slot.call(|sink| sink.write(&parcel.packet));
            if accepted {
                parcel.receipt.accept();
            }
            self.report(report);
            if accepted && parcel.packet.priority == Priority::Critical {
                self.flush();
            }
        }
        // That nothing has to be flushed does not mean that the sink works again.
        if !self.slot.is_failing() {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let (_, report) = self.slot.call(|sink| sink.flush());
        self.report(report);
    }

    fn report(&self, report: Option<Event>) {
        // The worker has gone only where it panicked.
        report.into_iter().for_each(|event| drop(self.reports.send(event)));
    }
}

impl Queued for Parcel {
    fn is_critical(&self) -> bool {
        self.packet.priority == Priority::Critical
    }

    fn is_boundary(&self) -> bool {
        false
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        self.untried.iter().for_each(|errors| errors.add(1));
    }
}

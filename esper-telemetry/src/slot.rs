//! A sink as its thread sees it: whether it fails, and what it is offered again.

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::fmt::Write as _;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam::channel::Sender;
use leyline::clock::Clock;
use leyline::telemetry::{Counter, Event, Priority};

use crate::error::Error;
use crate::ledger::Receipt;
use crate::packet::Packet;
use crate::sink::{REMOTE_QUEUE, Sink};
use crate::telemetry;

/// How long what waits is offered on after the end; what is left then is dropped.
const FAREWELL: Duration = Duration::from_secs(2);
/// Between two offers of the same packet when no other one comes.
const RETRY: Duration = Duration::from_secs(1);
/// The same after the end.
const LAST_RETRY: Duration = Duration::from_millis(100);

/// A packet on its way, and what says what became of it.
#[derive(Debug, Clone)]
pub(crate) struct Parcel {
    pub(crate) packet: Arc<Packet>,
    pub(crate) receipt: Arc<Receipt>,
}

/// A sink. What holds critical events is offered again until the sink takes it or refuses it for good; behind the first such packet others wait,
/// ordinary ones while fewer than [`REMOTE_QUEUE`] wait in all.
#[derive(Debug)]
pub(crate) struct Slot {
    sink: Box<dyn Sink>,
    /// Whether its last call failed.
    failing: bool,
    errors: Counter,
    /// Oldest first.
    kept: VecDeque<Parcel>,
    retry_at: Duration,
    /// Whether it has critical events that were not flushed.
    owes_flush: bool,
    clock: Arc<dyn Clock>,
    reports: Sender<Event>,
}

impl Parcel {
    pub(crate) fn is_critical(&self) -> bool {
        self.packet.priority == Priority::Critical
    }
}

impl Slot {
    /// Counts failures in `errors`; what begins or ceases to fail is told to `reports`.
    pub(crate) fn new(sink: Box<dyn Sink>, errors: Counter, clock: Arc<dyn Clock>, reports: Sender<Event>) -> Self {
        let (kept, retry_at) = (VecDeque::new(), Duration::ZERO);
        Self { sink, failing: false, errors, kept, retry_at, owes_flush: false, clock, reports }
    }

    /// Offers what is kept, and then `parcel`.
    pub(crate) fn offer(&mut self, parcel: Parcel) {
        if !self.kept.is_empty() && !self.retry() {
            if parcel.is_critical() || self.kept.len() < REMOTE_QUEUE {
                self.kept.push_back(parcel);
            } else {
                self.errors.add(1);
            }
        } else if !self.settle(&parcel) && parcel.is_critical() {
            self.keep_first(parcel);
        }
        self.flush_critical();
    }

    /// Offers what is kept, when it is time to. Called while nothing new comes.
    pub(crate) fn idle(&mut self) {
        if !self.kept.is_empty() && self.clock.now() >= self.retry_at {
            self.retry();
            self.flush_critical();
        }
    }

    /// Offers what is kept, oldest first, until the sink fails. Whether nothing is left.
    fn retry(&mut self) -> bool {
        while let Some(first) = self.kept.pop_front() {
            if !self.settle(&first) {
                self.keep_first(first);
                return false;
            }
        }
        true
    }

    fn keep_first(&mut self, parcel: Parcel) {
        self.kept.push_front(parcel);
        self.retry_at = self.clock.now() + RETRY;
    }

    /// Whether the sink took the packet or refused it for good.
    fn settle(&mut self, parcel: &Parcel) -> bool {
        let mut for_good = false;
        let write =
            |sink: &mut dyn Sink| sink.write(&parcel.packet).inspect_err(|error| for_good = error.is_for_good());
        let accepted = self.call(write);
        if accepted {
            parcel.receipt.accept();
            self.owes_flush |= parcel.is_critical();
        }
        accepted || for_good
    }

    fn flush_critical(&mut self) {
        if std::mem::take(&mut self.owes_flush) {
            self.call(|sink| sink.flush());
        }
    }

    /// Whether the call succeeded. A failure is counted, and its beginning and end are told.
    fn call(&mut self, call: impl FnOnce(&mut dyn Sink) -> Result<(), Error>) -> bool {
        let name = self.sink.name();
        let result = call(self.sink.as_mut());
        let failed = result.is_err();
        self.errors.add(u64::from(failed));
        let event = match result {
            Err(error) if !self.failing => {
                let error = with_sources(&error);
                tracing::error!(sink = name, error, "a telemetry sink fails");
                Some(Event::new(&telemetry::SINK_FAILED).with("sink", name).with("error", error))
            }
            Ok(()) if self.failing => {
                tracing::info!(sink = name, "a telemetry sink works again");
                Some(Event::new(&telemetry::SINK_RECOVERED).with("sink", name))
            }
            _ => None,
        };
        self.failing = failed;
        // The worker has gone only where it panicked.
        event.into_iter().for_each(|event| drop(self.reports.send(event)));
        !failed
    }
}

/// Offers what `slots` keep until it is taken, for [`FAREWELL`] after `closed` at most and one call of a sink more; flushes what settled.
pub(crate) fn finish(slots: &mut [Slot], clock: &dyn Clock, closed: Duration) {
    // Counted too, for a clock that stands still.
    for _ in 0..FAREWELL.as_millis() / LAST_RETRY.as_millis() {
        if is_late(clock, closed) || slots.iter_mut().map(Slot::retry).filter(|is_settled| !is_settled).count() == 0 {
            break;
        }
        thread::sleep(LAST_RETRY);
    }
    for slot in slots {
        slot.errors.add(slot.kept.len() as u64);
        // That nothing has to be flushed does not mean that the sink works again.
        if slot.kept.is_empty() || slot.owes_flush {
            slot.call(|sink| sink.flush());
        }
        slot.kept.clear();
    }
}

/// Whether [`FAREWELL`] is over for what was closed then.
pub(crate) fn is_late(clock: &dyn Clock, closed: Duration) -> bool {
    clock.now().saturating_sub(closed) > FAREWELL
}

fn with_sources(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        write!(text, ": {error}").expect("writing to a string does not fail");
        source = error.source();
    }
    text
}

//! A sink as its thread sees it: whether it fails, and what it is offered again.

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};
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
    /// When nothing new came any more.
    closed: Arc<OnceLock<Duration>>,
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
        Self { sink, failing: false, errors, kept, retry_at, owes_flush: false, clock, closed: Arc::default(), reports }
    }

    /// Who sets this says that nothing new comes.
    pub(crate) fn closed(&self) -> Arc<OnceLock<Duration>> {
        Arc::clone(&self.closed)
    }

    /// Whether [`FAREWELL`] is over.
    pub(crate) fn is_late(&self) -> bool {
        self.closed.get().is_some_and(|&closed| self.clock.now().saturating_sub(closed) > FAREWELL)
    }

    /// Offers what is kept, and then `parcel`.
    pub(crate) fn offer(&mut self, parcel: Parcel) {
        if !self.kept.is_empty() && !self.retry() {
            if parcel.is_critical() || self.kept.len() < REMOTE_QUEUE {
                self.kept.push_back(parcel);
            } else {
                self.errors.add(1);
            }
        } else if !self.settle(&parcel) && parcel.is_critical() && self.sink.takes_events() {
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

    /// Offers what is kept, oldest first, until the sink fails or it is late. Whether nothing is left.
    fn retry(&mut self) -> bool {
        while !self.is_late()
            && let Some(first) = self.kept.pop_front()
        {
            if !self.settle(&first) {
                self.keep_first(first);
                break;
            }
        }
        self.kept.is_empty()
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
            parcel.receipt.accept(self.sink.takes_events());
            self.owes_flush |= parcel.is_critical();
        }
        accepted || for_good
    }

    fn flush_critical(&mut self) {
        self.owes_flush = self.owes_flush && !self.flush();
    }

    /// Whether it succeeded. That does not mean that a sink works again which has yet to take a packet.
    fn flush(&mut self) -> bool {
        if self.kept.is_empty() {
            return self.call(|sink| sink.flush());
        }
        let flushed = self.sink.flush().is_ok();
        self.errors.add(u64::from(!flushed));
        flushed
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

/// Offers what `slots` keep until it is taken, for [`FAREWELL`] after `closed` at most and one call of each sink more; flushes them.
pub(crate) fn finish(slots: &mut [Slot], closed: Duration) {
    slots.iter().for_each(|slot| _ = slot.closed.get_or_init(|| closed));
    // Counted too, for a clock that stands still.
    for _ in 0..FAREWELL.as_millis() / LAST_RETRY.as_millis() {
        if slots.iter_mut().map(|slot| slot.retry() || slot.is_late()).filter(|is_done| !is_done).count() == 0 {
            break;
        }
        thread::sleep(LAST_RETRY);
    }
    for slot in slots {
        slot.errors.add(slot.kept.len() as u64);
        slot.flush();
        slot.kept.clear();
    }
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

//! The thread that owns the sinks: takes from the queue, assembles packets, hands them out.

use std::error::Error as StdError;
use std::fmt::Write as _;
use std::sync::Arc;

use leyline::clock::Clock;
use leyline::telemetry::{Counter, Event, Priority};

use crate::assembler::{Assembled, Assembler};
use crate::error::Error;
use crate::ledger::Ticket;
use crate::queue::{Item, Outlet, QueuedEvent};
use crate::registry::Registry;
use crate::sink::Sink;
use crate::telemetry;

/// Runs until the queue is closed and empty.
#[derive(Debug)]
pub(crate) struct Worker {
    outlet: Outlet,
    assembler: Assembler,
    clock: Arc<dyn Clock>,
    sinks: Vec<Slot>,
}

/// A sink and whether its last call failed.
#[derive(Debug)]
struct Slot {
    sink: Box<dyn Sink>,
    failing: bool,
    errors: Counter,
}

impl Worker {
    pub(crate) fn new(
        outlet: Outlet,
        assembler: Assembler,
        clock: Arc<dyn Clock>,
        sinks: Vec<Box<dyn Sink>>,
        registry: &Registry,
    ) -> Self {
        let slot = |sink: Box<dyn Sink>| {
            let errors = registry.counter(&telemetry::SINK_ERRORS_TOTAL, &[sink.name()]);
            Slot { sink, failing: false, errors }
        };
        Self { outlet, assembler, clock, sinks: sinks.into_iter().map(slot).collect() }
    }

    pub(crate) fn run(mut self) {
        while let Some(item) = self.outlet.next() {
            match item {
                Item::Event(event) => self.take(event),
                Item::Snapshot(snapshot) => {
                    // Critical events travel apart and may have been overtaken by the boundary.
                    while let Some(Item::Event(event)) = self.outlet.next_reserved() {
                        self.take(event);
                    }
                    let assembled = self.assembler.boundary(snapshot);
                    self.deliver(assembled);
                }
            }
        }
        // Not until nothing is left: a sink that fails every other time would make an event of every packet.
        while self.assembler.is_full() {
            self.deliver_own();
        }
        self.deliver_own();
        self.flush();
    }

    fn take(&mut self, event: QueuedEvent) {
        self.assembler.add(event);
        if self.assembler.is_full() {
            self.deliver_own();
        }
    }

    fn deliver_own(&mut self) {
        let now = unix_ms(self.clock.as_ref());
        if let Some(assembled) = self.assembler.own_packet(now) {
            self.deliver(assembled);
        }
    }

    fn deliver(&mut self, Assembled { packet, tickets }: Assembled) {
        let accepted = self.each_sink(|sink| sink.write(&packet));
        if accepted > 0 || self.sinks.is_empty() {
            tickets.into_iter().for_each(Ticket::redeem);
        }
        if packet.priority == Priority::Critical {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.each_sink(|sink| sink.flush());
    }

    /// Calls every sink, counts failures, reports when a sink begins or ceases to fail, returns how many succeeded.
    fn each_sink(&mut self, mut call: impl FnMut(&mut dyn Sink) -> Result<(), Error>) -> usize {
        let mut succeeded = 0;
        for slot in &mut self.sinks {
            let name = slot.sink.name();
            let result = call(slot.sink.as_mut());
            let failed = result.is_err();
            succeeded += usize::from(!failed);
            slot.errors.add(u64::from(failed));
            let event = match result {
                Err(error) if !slot.failing => {
                    let error = with_sources(&error);
                    tracing::error!(sink = name, error, "a telemetry sink fails");
                    Event::new(&telemetry::SINK_FAILED).with("sink", name).with("error", error)
                }
                Ok(()) if slot.failing => {
                    tracing::info!(sink = name, "a telemetry sink works again");
                    Event::new(&telemetry::SINK_RECOVERED).with("sink", name)
                }
                _ => continue,
            };
            slot.failing = failed;
            self.assembler.add_own(event);
        }
        succeeded
    }
}

/// Calendar time in milliseconds.
pub(crate) fn unix_ms(clock: &dyn Clock) -> u64 {
    u64::try_from(clock.unix().as_millis()).unwrap_or(u64::MAX)
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

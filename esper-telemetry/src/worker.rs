//! The thread that owns the sinks, but for remote ones: takes from the queue, assembles packets, hands them out.

use std::error::Error as StdError;
use std::fmt::Write as _;
use std::sync::Arc;

use crossbeam::channel::{Receiver, unbounded};
use leyline::clock::Clock;
use leyline::telemetry::{Counter, Event, Priority};

use crate::assembler::{Assembled, Assembler};
use crate::error::Error;
use crate::lane::Lane;
use crate::ledger::Receipt;
use crate::queue::{Item, Outlet, QueuedEvent};
use crate::registry::Registry;
use crate::sink::Sink;
use crate::telemetry;

/// Runs until the queue is closed and empty.
#[derive(Debug)]
pub(crate) struct Worker {
    outlet: Outlet<Item>,
    assembler: Assembler,
    clock: Arc<dyn Clock>,
    sinks: Vec<Slot>,
    lanes: Vec<Lane>,
    /// What lanes report, to be told with the next packet.
    reports: Receiver<Event>,
    has_sinks: bool,
}

/// A sink and whether its last call failed.
#[derive(Debug)]
pub(crate) struct Slot {
    sink: Box<dyn Sink>,
    failing: bool,
    errors: Counter,
}

impl Worker {
    /// # Errors
    /// [`Error::Thread`] when a remote sink gets no thread.
    pub(crate) fn new(
        outlet: Outlet<Item>,
        assembler: Assembler,
        clock: Arc<dyn Clock>,
        sinks: Vec<Box<dyn Sink>>,
        registry: &Registry,
    ) -> Result<Self, Error> {
        let has_sinks = !sinks.is_empty();
        let (remote, near): (Vec<_>, Vec<_>) = sinks.into_iter().partition(|sink| sink.is_remote());
        let slot = |sink: Box<dyn Sink>| {
            let errors = registry.counter(&telemetry::SINK_ERRORS_TOTAL, &[sink.name()]);
            Slot { sink, failing: false, errors }
        };
        let (sender, reports) = unbounded();
        let lane = |sink| Lane::start(slot(sink), Arc::clone(&clock), sender.clone());
        let lanes = remote.into_iter().map(lane).collect::<Result<_, _>>()?;
        let sinks = near.into_iter().map(slot).collect();
        Ok(Self { outlet, assembler, clock, sinks, lanes, reports, has_sinks })
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
        self.close_lanes();
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
        let (packet, receipt) = (Arc::new(packet), Arc::new(Receipt::new(tickets)));
        self.lanes.iter().for_each(|lane| lane.offer(&packet, &receipt));
        let accepted = self.each_sink(|sink| sink.write(&packet));
        if accepted > 0 || !self.has_sinks {
            receipt.accept();
        }
        if packet.priority == Priority::Critical {
            self.flush();
        }
        self.reports.try_iter().for_each(|event| self.assembler.add_own(event));
    }

    /// Waits until lanes have written or given up what they have, which takes them no longer than one call of a sink and a little more.
    fn close_lanes(&mut self) {
        let now = self.clock.now();
        let threads: Vec<_> = self.lanes.drain(..).map(|lane| lane.close(now)).collect();
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("the thread of a remote telemetry sink panicked");
            }
        }
        self.reports.try_iter().for_each(|event| self.assembler.add_own(event));
    }

    fn flush(&mut self) {
        self.each_sink(|sink| sink.flush());
    }

    /// Calls every sink but the remote ones, reports what begins or ceases to fail, returns how many succeeded.
    fn each_sink(&mut self, mut call: impl FnMut(&mut dyn Sink) -> Result<(), Error>) -> usize {
        let mut succeeded = 0;
        for slot in &mut self.sinks {
            let (accepted, report) = slot.call(&mut call);
            succeeded += usize::from(accepted);
            report.into_iter().for_each(|event| self.assembler.add_own(event));
        }
        succeeded
    }
}

impl Slot {
    /// Calls the sink, counts a failure. Whether it succeeded, and an event when the sink begins or ceases to fail.
    pub(crate) fn call(&mut self, call: impl FnOnce(&mut dyn Sink) -> Result<(), Error>) -> (bool, Option<Event>) {
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
        (!failed, event)
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.failing
    }

    pub(crate) fn errors(&self) -> &Counter {
        &self.errors
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

//! The thread that owns the sinks, but for remote ones: takes from the queue, assembles packets, hands them out.

use std::sync::Arc;

use crossbeam::channel::{Receiver, unbounded};
use leyline::clock::Clock;
use leyline::telemetry::Event;

use crate::assembler::{Assembled, Assembler};
use crate::error::Error;
use crate::lane::Lane;
use crate::ledger::Receipt;
use crate::queue::{Item, Outlet, QueuedEvent};
use crate::registry::Registry;
use crate::sink::Sink;
use crate::slot::{Parcel, Slot, finish};
use crate::telemetry;

/// Runs until the queue is closed and empty.
#[derive(Debug)]
pub(crate) struct Worker {
    outlet: Outlet<Item>,
    assembler: Assembler,
    clock: Arc<dyn Clock>,
    sinks: Vec<Slot>,
    lanes: Vec<Lane>,
    /// What sinks report, to be told with the next packet.
    reports: Receiver<Event>,
    has_sinks: bool,
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
        let (sender, reports) = unbounded();
        let slot = |sink: Box<dyn Sink>| {
            let errors = registry.counter(&telemetry::SINK_ERRORS_TOTAL, &[sink.name()]);
            Slot::new(sink, errors, Arc::clone(&clock), sender.clone())
        };
        let lane = |sink: Box<dyn Sink>| {
            let errors = registry.counter(&telemetry::SINK_ERRORS_TOTAL, &[sink.name()]);
            Lane::start(slot(sink), errors, Arc::clone(&clock))
        };
        let lanes = remote.into_iter().map(lane).collect::<Result<_, _>>()?;
        let sinks = near.into_iter().map(slot).collect();
        Ok(Self { outlet, assembler, clock, sinks, lanes, reports, has_sinks })
    }

    pub(crate) fn run(mut self) {
        while let Some(item) = self.outlet.next(|| self.sinks.iter_mut().for_each(Slot::idle)) {
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
            self.deliver_last();
        }
        self.deliver_last();
        self.close_sinks();
        self.deliver_last();
        self.close_sinks();
    }

    fn take(&mut self, event: QueuedEvent) {
        self.assembler.add(event);
        if self.assembler.is_full() {
            self.deliver_own();
        }
    }

    fn deliver_last(&mut self) {
        self.assembler.read();
        self.deliver_own();
    }

    fn deliver_own(&mut self) {
        let now = unix_ms(self.clock.as_ref());
        if let Some(assembled) = self.assembler.own_packet(now) {
            self.deliver(assembled);
        }
    }

    fn deliver(&mut self, Assembled { packet, tickets }: Assembled) {
        let parcel = Parcel { packet: Arc::new(packet), receipt: Arc::new(Receipt::new(tickets)) };
        self.lanes.iter().for_each(|lane| lane.offer(parcel.clone()));
        self.sinks.iter_mut().for_each(|slot| slot.offer(parcel.clone()));
        if !self.has_sinks {
            parcel.receipt.accept(true);
        }
        self.reports.try_iter().for_each(|event| self.assembler.add_own(event));
    }

    /// Waits until sinks have what waits for them or it is given up, which takes no longer than two seconds and one call of each sink.
    fn close_sinks(&mut self) {
        let now = self.clock.now();
        let threads: Vec<_> = self.lanes.drain(..).map(|lane| lane.close(now)).collect();
        finish(&mut self.sinks, now);
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("the thread of a remote telemetry sink panicked");
            }
        }
        self.reports.try_iter().for_each(|event| self.assembler.add_own(event));
    }
}

/// Calendar time in milliseconds.
pub(crate) fn unix_ms(clock: &dyn Clock) -> u64 {
    u64::try_from(clock.unix().as_millis()).unwrap_or(u64::MAX)
}

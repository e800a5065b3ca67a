//! From what callers emitted to packets. Touches no thread and no file.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leyline::id::{EpochIndex, RunId, StepIndex};
use leyline::telemetry::{Boundary, Counter, Event, Health};

use crate::ledger::{Ledger, Ticket};
use crate::name::{clip, is_dotted};
use crate::packet::{EventRecord, MAX_EVENTS, MAX_TEXT_BYTES, Metric, OWN_SOURCE, PACKET_VERSION, Packet};
use crate::queue::{QueuedEvent, Snapshot};
use crate::registry::{Registry, Series};
use crate::telemetry;

/// Most text in the events of a packet, in bytes.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// Collects events until a boundary, and makes the packet.
#[derive(Debug)]
pub(crate) struct Assembler {
    run_id: RunId,
    registry: Arc<Registry>,
    ledger: Arc<Ledger>,
    non_finite: Counter,
    /// The registry's series as far as they were needed; kept so that no lock is held while a packet is made.
    series: Vec<Series>,
    pending: Vec<Pending>,
    pending_bytes: usize,
    next_sequence: u64,
    at: Position,
    /// Of the last boundary.
    order: u64,
    values: Vec<Option<f64>>,
}

/// Where the run was at its last boundary, or where it began.
pub(crate) type Position = Arc<Mutex<(EpochIndex, StepIndex)>>;

/// A packet with the tickets of all that is in it.
#[derive(Debug)]
pub(crate) struct Assembled {
    pub(crate) packet: Packet,
    pub(crate) tickets: Vec<Ticket>,
}

#[derive(Debug)]
struct Pending {
    order: u64,
    record: EventRecord,
    ticket: Ticket,
}

impl Assembler {
    pub(crate) fn new(
        run_id: RunId,
        registry: Arc<Registry>,
        ledger: Arc<Ledger>,
        next_sequence: u64,
        at: Position,
    ) -> Self {
        Self {
            run_id,
            non_finite: registry.counter(&telemetry::NON_FINITE_TOTAL, &[]),
            registry,
            ledger,
            series: Vec::new(),
            pending: Vec::new(),
            pending_bytes: 0,
            next_sequence,
            at,
            order: 0,
            values: Vec::new(),
        }
    }

    /// Keeps an event for the next packet.
    pub(crate) fn add(&mut self, QueuedEvent { order, event, ticket }: QueuedEvent) {
        if self.registry.admits(event.desc) {
            let record = EventRecord::of(&event);
            self.pending_bytes += text_bytes(&record);
            self.pending.push(Pending { order, record, ticket });
        }
    }

    /// Keeps an event of the recorder's own for the next packet, whatever waits in the queue already.
    pub(crate) fn add_own(&mut self, event: Event) {
        let (order, ticket) = (self.order, self.ledger.emit_event(event.desc));
        self.add(QueuedEvent { order, event, ticket });
    }

    /// Whether the kept events fill a packet, so that one must be made without waiting for a boundary.
    pub(crate) fn is_full(&self) -> bool {
        self.pending.len() >= MAX_EVENTS || self.pending_bytes >= MAX_EVENT_BYTES
    }

    /// The packet of a boundary: its values, and the events that were emitted before it.
    pub(crate) fn boundary(&mut self, snapshot: Snapshot) -> Assembled {
        let Snapshot { order, mut boundary, created_unix_ms, values, ticket } = snapshot;
        // Of packets with the recorder's own name a sink may know that no boundary made them.
        if !is_dotted(boundary.source) || boundary.source == OWN_SOURCE {
            self.registry.report_misuse(boundary.source, "the source of a boundary has an unusable name");
            boundary.source = "unknown";
        }
        *lock(&self.at) = (boundary.epoch, boundary.step);
        (self.order, self.values) = (order, values);
        self.assemble(order, boundary, created_unix_ms, ticket)
    }

    /// Takes the values of now for those of the last boundary: no boundary that was read before them is still to come.
    pub(crate) fn read(&mut self) {
        self.ledger.tell_waiting();
        self.values = self.registry.read();
    }

    /// A packet of the recorder's own with the kept events and the values of the last boundary; [`None`] without events.
    pub(crate) fn own_packet(&mut self, created_unix_ms: u64) -> Option<Assembled> {
        if self.pending.is_empty() {
            return None;
        }
        let (epoch, step) = *lock(&self.at);
        let boundary = Boundary { epoch, step, source: OWN_SOURCE, health: Health::default() };
        let ticket = self.ledger.emit_packet();
        Some(self.assemble(u64::MAX, boundary, created_unix_ms, ticket))
    }

    fn assemble(&mut self, order: u64, boundary: Boundary, created_unix_ms: u64, ticket: Ticket) -> Assembled {
        let metrics = self.metrics();
        self.pending.sort_by_key(|pending| pending.order);
        let num_before = self.pending.partition_point(|pending| pending.order < order);
        let later = self.pending.split_off(num_before.min(MAX_EVENTS));
        let mut tickets = vec![ticket];
        let mut events = Vec::with_capacity(self.pending.len());
        for pending in std::mem::replace(&mut self.pending, later) {
            events.push(pending.record);
            tickets.push(pending.ticket);
        }
        self.pending_bytes = self.pending.iter().map(|pending| text_bytes(&pending.record)).sum();
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let Boundary { epoch, step, source, mut health } = boundary;
        health.summary.truncate(clip(&health.summary, MAX_TEXT_BYTES).len());
        let packet = Packet {
            version: PACKET_VERSION,
            run_id: self.run_id.clone(),
            sequence,
            source: source.to_owned(),
            created_unix_ms,
            epoch,
            step,
            level: Packet::level_of(&events),
            priority: Packet::priority_of(&events),
            metrics,
            events,
            health,
        };
        Assembled { packet, tickets }
    }

    fn metrics(&mut self) -> Vec<Metric> {
        if self.series.len() < self.values.len() {
            self.registry.extend(&mut self.series);
        }
        let mut metrics = Vec::with_capacity(self.values.len());
        for (series, value) in self.series.iter().zip(&self.values) {
            match value {
                Some(value) if value.is_finite() => metrics.push(series.metric(*value)),
                Some(_) => self.non_finite.add(1),
                None => {}
            }
        }
        metrics
    }
}

pub(crate) fn lock(at: &Position) -> MutexGuard<'_, (EpochIndex, StepIndex)> {
    at.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text_bytes(record: &EventRecord) -> usize {
    record.attributes.iter().fold(record.name.len(), |sum, (name, value)| sum + name.len() + value.len())
}

//! What the tests of the recorder share: descriptors, a start, and sinks that wait, fail or panic when told to.
#![allow(dead_code, reason = "every test target uses its own part")]

use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, unbounded};
use esper_telemetry::sink::{MemorySink, PacketLog, Sink};
use esper_telemetry::{Catalogue, Error, Guard, Packet, QueueConfig, TelemetryRecorder};
use leyline::clock::Clock;
use leyline::id::{EpochIndex, RunId, StepIndex};
use leyline::telemetry::{Boundary, EventDesc, Health, Level, MetricDesc, MetricKind, Unit};
use leyline_testkit::clock::ManualClock;

/// Only a broken recorder reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) static LOSS: MetricDesc =
    MetricDesc { name: "a.loss", kind: MetricKind::Gauge, unit: Unit::Nats, help: "", labels: &[] };
pub(crate) static STEPS: MetricDesc =
    MetricDesc { name: "a.steps_total", kind: MetricKind::Counter, unit: Unit::Count, help: "", labels: &[] };
pub(crate) static NOTE: EventDesc = EventDesc { name: "a.note", level: Level::Info, help: "", attributes: &["n"] };
pub(crate) static HALT: EventDesc = EventDesc { name: "a.halt", level: Level::Critical, help: "", attributes: &["n"] };

static METRICS: &[&MetricDesc] = &[&LOSS, &STEPS];
static EVENTS: &[&EventDesc] = &[&NOTE, &HALT];

pub(crate) fn start(sinks: Vec<Box<dyn Sink>>, capacity: usize) -> (Arc<TelemetryRecorder>, Guard) {
    start_by(Arc::new(ManualClock::default()), sinks, capacity)
}

pub(crate) fn start_by(
    clock: Arc<dyn Clock>,
    sinks: Vec<Box<dyn Sink>>,
    capacity: usize,
) -> (Arc<TelemetryRecorder>, Guard) {
    let config = QueueConfig { capacity: capacity.try_into().expect("above 0") };
    let catalogue = Catalogue::new(&[(METRICS, EVENTS)]).expect("a catalogue");
    let run_id = RunId::new("run-1").expect("a run id");
    TelemetryRecorder::start(run_id, catalogue, sinks, config, clock).expect("a thread")
}

pub(crate) fn start_with_memory() -> (Arc<TelemetryRecorder>, Guard, PacketLog) {
    let sink = MemorySink::new();
    let log = sink.packets();
    let (recorder, guard) = start(vec![Box::new(sink)], 8192);
    (recorder, guard, log)
}

pub(crate) fn boundary(step: u64) -> Boundary {
    Boundary { epoch: EpochIndex(step / 10), step: StepIndex(step), source: "a", health: Health::default() }
}

/// Attribute `n` of every event of the packet, in order.
pub(crate) fn notes(packet: &Packet) -> Vec<String> {
    packet.events.iter().map(|event| event.attributes["n"].clone()).collect()
}

/// A sink that says when it has got a packet and keeps the worker until the gate is dropped.
#[derive(Debug)]
pub(crate) struct GatedSink {
    inner: MemorySink,
    entered: Sender<()>,
    gate: Receiver<()>,
    is_remote: bool,
}

/// The other side of a [`GatedSink`]. Drop it to open the gate for good.
#[derive(Debug)]
pub(crate) struct Gate {
    entered: Receiver<()>,
    _gate: Sender<()>,
}

impl GatedSink {
    pub(crate) fn new() -> (Self, Gate, PacketLog) {
        let (entered_in, entered) = unbounded();
        let (gate_in, gate) = unbounded();
        let inner = MemorySink::new();
        let log = inner.packets();
        (Self { inner, entered: entered_in, gate, is_remote: false }, Gate { entered, _gate: gate_in }, log)
    }

    pub(crate) fn remote() -> (Self, Gate, PacketLog) {
        let (sink, gate, log) = Self::new();
        (Self { is_remote: true, ..sink }, gate, log)
    }
}

impl Gate {
    /// Returns when the worker is inside the sink.
    pub(crate) fn wait_until_stuck(&self) {
        self.entered.recv().expect("the worker lives");
    }
}

impl Sink for GatedSink {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn write(&mut self, packet: &Packet) -> Result<(), Error> {
        // Nobody listens any more once the gate is open.
        self.entered.send(()).ok();
        self.gate.recv().ok();
        self.inner.write(packet)
    }

    fn is_remote(&self) -> bool {
        self.is_remote
    }
}

/// A sink that fails for the packets whose sequence numbers it was given.
#[derive(Debug)]
pub(crate) struct FlakySink {
    pub(crate) fails_at: &'static [u64],
}

impl Sink for FlakySink {
    fn name(&self) -> &'static str {
        "flaky"
    }

    fn write(&mut self, packet: &Packet) -> Result<(), Error> {
        if self.fails_at.contains(&packet.sequence) { Err(Error::Sink("no luck".into())) } else { Ok(()) }
    }
}

/// A sink that panics.
#[derive(Debug)]
pub(crate) struct PanickingSink;

impl Sink for PanickingSink {
    fn name(&self) -> &'static str {
        "panicking"
    }

    fn write(&mut self, _packet: &Packet) -> Result<(), Error> {
        panic!("the panic of a test sink")
    }
}

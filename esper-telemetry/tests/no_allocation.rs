//! What is allocated, counted by the allocator of this test's own process: nothing by setting a gauge or adding to a counter, and little by a
//! critical event that waits.
#![allow(unsafe_code, reason = "an allocator cannot be written without it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, unbounded};
use esper_telemetry::sink::{MemorySink, Sink};
use esper_telemetry::{Catalogue, Error, Packet, QueueConfig, TelemetryRecorder};
use leyline::clock::SystemClock;
use leyline::id::{EpochIndex, RunId, StepIndex};
use leyline::telemetry::{Boundary, Event, EventDesc, Health, Level, MetricDesc, Recorder as _};

leyline::declare_metrics! {
    /// A value of the test.
    VALUE = Gauge "test.value" Count ["seed_id"];
    /// A count of the test.
    COUNT = Counter "test.count_total" Count [];
}

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, counting per thread; of bytes those that the thread freed do not count.
struct Counting;

// SAFETY: every call is handed on to the system's allocator unchanged; counting touches a thread-local cell that needs
// no allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        BYTES.set(BYTES.get().saturating_add_unsigned(layout.size()));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.set(BYTES.get().saturating_sub_unsigned(layout.size()));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn the_hot_path_allocates_nothing() {
    let metrics: &'static [&'static MetricDesc] = METRICS;
    let (recorder, guard) = TelemetryRecorder::start(
        RunId::new("no-allocation").unwrap(),
        Catalogue::new(&[(metrics, &[])]).unwrap(),
        vec![Box::new(MemorySink::new())],
        QueueConfig::default(),
        Arc::new(SystemClock::new()),
    )
    .unwrap();
    let (value, count) = (recorder.gauge(&VALUE, &["seed-1"]), recorder.counter(&COUNT, &[]));
    let on_the_hot_path = allocations(|| {
        for step in 0..10_000 {
            value.set(f64::from(step));
            value.set_or_clear(None);
            count.add(1);
        }
    });
    assert_eq!(on_the_hot_path, 0);
    assert!(allocations(|| drop(vec![1_u8; 100])) >= 1, "the allocator does not count");
    assert_eq!(count.get(), 10_000);
    guard.shutdown(Duration::from_secs(5));
}

/// Takes nothing until the other side is dropped.
#[derive(Debug)]
struct Stuck(Sender<()>, Receiver<()>, MemorySink);

impl Sink for Stuck {
    fn name(&self) -> &'static str {
        "stuck"
    }

    fn write(&mut self, packet: &Packet) -> Result<(), Error> {
        self.0.send(()).ok();
        self.1.recv().ok();
        self.2.write(packet)
    }
}

static HALT: EventDesc = EventDesc { name: "test.halt", level: Level::Critical, help: "", attributes: &["reason"] };
static HALTS: &[&EventDesc] = &[&HALT];

fn bytes<T>(work: impl FnOnce() -> T) -> usize {
    let before = BYTES.get();
    let _kept = work();
    usize::try_from(BYTES.get() - before).expect("nothing is freed")
}

#[test]
fn a_critical_event_that_waits_takes_the_memory_that_users_are_told() {
    const EVENTS: usize = 10_000;
    const TEXT: &str = "the loss is not finite";
    let (entered, is_stuck) = unbounded();
    let (gate, opened) = unbounded::<()>();
    let memory = MemorySink::new();
    let packets = memory.packets();
    let (recorder, guard) = TelemetryRecorder::start(
        RunId::new("memory").unwrap(),
        Catalogue::new(&[(METRICS, HALTS)]).unwrap(),
        vec![Box::new(Stuck(entered, opened, memory))],
        QueueConfig::default(),
        Arc::new(SystemClock::new()),
    )
    .unwrap();
    let boundary = || Boundary { epoch: EpochIndex(0), step: StepIndex(0), source: "test", health: Health::default() };
    recorder.publish(boundary());
    is_stuck.recv().unwrap();
    let halt = || recorder.event(Event::new(&HALT).with("reason", TEXT));
    let in_queue = bytes(|| (0..EVENTS).for_each(|_| halt())) / EVENTS;
    drop(gate);
    assert!(guard.shutdown(Duration::from_secs(60)).finished);
    let full = packets.last().unwrap();
    let in_packet = bytes(|| full.events.clone()) / full.events.len();
    let of_value = bytes(|| full.metrics.clone()) / full.metrics.len();
    assert!((300..=340).contains(&in_queue), "{in_queue} bytes in the queue");
    assert!((600..=680).contains(&in_packet), "{in_packet} bytes in a packet");
    assert!((250..=310).contains(&of_value), "{of_value} bytes of a value");
}

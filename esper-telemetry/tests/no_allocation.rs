//! Setting a gauge and adding to a counter allocate nothing: counted by the allocator of this test's own process.
#![allow(unsafe_code, reason = "an allocator cannot be written without it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use esper_telemetry::sink::MemorySink;
use esper_telemetry::{Catalogue, QueueConfig, TelemetryRecorder};
use leyline::clock::SystemClock;
use leyline::id::RunId;
use leyline::telemetry::{MetricDesc, Recorder as _};

leyline::declare_metrics! {
    /// A value of the test.
    VALUE = Gauge "test.value" Count ["seed_id"];
    /// A count of the test.
    COUNT = Counter "test.count_total" Count [];
}

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting per thread.
struct Counting;

// SAFETY: every call is handed on to the system's allocator unchanged; counting touches a thread-local cell that needs
// no allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
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

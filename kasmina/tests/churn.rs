//! Ten thousand seeds come and go: nothing is left of them, not a byte.
// The only way to see memory in use is to be the allocator, and that interface is unsafe.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::Duration;

use candle_core::Device;
use kasmina::host::HostConfig;
use kasmina::{Kasmina, KasminaConfig};
use leyline::command::{AlphaCurve, Operation};
use leyline::durable::Durable;
use leyline::id::{BlueprintId, EpochIndex, SeedId, StepIndex};
use leyline::model::TrainableModel;
use leyline::region::Eager;
use leyline::seed::SeedManager;
use leyline::telemetry::NullRecorder;
use leyline_testkit::clock::ManualClock;
use support::{config, slot};

const CYCLES: u32 = 10_000;
const WARM_UP: u32 = 1_000;

/// The system's allocator, counting the bytes in use.
struct Counting;

static IN_USE: AtomicIsize = AtomicIsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(bytes: usize, sign: isize) {
    IN_USE.fetch_add(sign * isize::try_from(bytes).unwrap_or(isize::MAX), Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller's promise about `layout` is the one that is asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(layout.size(), -1);
        count(new_size, 1);
        // SAFETY: the pointer came from the system's allocator, with this layout.
        unsafe { System.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: as in `realloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

struct Churn {
    manager: Kasmina,
    eager: Eager,
    clock: Arc<ManualClock>,
}

impl Churn {
    fn send(&mut self, operation: Operation) -> SeedId {
        self.manager.apply(&mut self.eager, &operation.into()).unwrap().seed
    }

    /// A seed germinates, trains, is paused now and then, and is removed; its slot becomes free.
    fn cycle(&mut self, cycle: u32) {
        let place = ["input", "hidden0"][cycle as usize % 2];
        let seed = self.send(Operation::germinate(slot(place), BlueprintId::new("mlp").unwrap()));
        assert_eq!(seed, SeedId(cycle + 1));
        self.send(Operation::StartTraining { seed });
        if cycle.is_multiple_of(3) {
            self.send(Operation::Pause { seed });
        }
        self.manager.finish_step(&mut self.eager, StepIndex(u64::from(cycle))).unwrap();
        self.send(if cycle.is_multiple_of(2) {
            Operation::Cull { seed }
        } else {
            Operation::CullGradually { seed, steps: 2, curve: AlphaCurve::Linear }
        });
        for _ in 0..2 {
            self.manager.finish_epoch(&mut self.eager, EpochIndex(u64::from(cycle))).unwrap();
        }
        self.clock.advance(Duration::from_secs(1));
    }
}

#[test]
fn ten_thousand_seeds_leave_nothing_behind() {
    let host = HostConfig::Mlp { inputs: 3, hidden: vec![2], classes: 2 };
    let config = KasminaConfig { seed_width: 1, embargo_epochs: 0, ..config(host) };
    let clock = Arc::new(ManualClock::default());
    let manager = Kasmina::new(config, &Device::Cpu, clock.clone(), Arc::new(NullRecorder)).unwrap();
    let mut churn = Churn { manager, eager: Eager::acquire().unwrap(), clock };
    let empty = churn.manager.save(&churn.eager).unwrap();
    let mut revision = churn.manager.model().layout().revision();
    let mut after_warm_up = 0;
    for cycle in 0..CYCLES {
        churn.cycle(cycle);
        let now = churn.manager.model().layout().revision();
        assert!(now > revision, "the parameters of a seed came and went");
        revision = now;
        assert!(churn.manager.export_seed_states(&churn.eager).unwrap().is_empty(), "a record is left");
        if cycle + 1 == WARM_UP {
            after_warm_up = IN_USE.load(Ordering::Relaxed);
        }
    }
    let grown = IN_USE.load(Ordering::Relaxed) - after_warm_up;
    assert!(grown.abs() <= 4_096, "{grown} bytes more in use after {CYCLES} cycles than after {WARM_UP}");

    let saved = churn.manager.save(&churn.eager).unwrap();
    assert_eq!(saved.tensors.keys().collect::<Vec<_>>(), empty.tensors.keys().collect::<Vec<_>>());
    let document: serde_json::Value = serde_json::from_str(&saved.json).unwrap();
    for list in ["seeds", "unreturned"] {
        assert_eq!(document[list], serde_json::json!([]), "{list}");
    }
    let parameters = churn.manager.model().parameters();
    assert!(parameters.iter().all(|parameter| parameter.name.starts_with("host.")));
}

//! A window after the first ones allocates nothing that grows with the number of parameters.
// The only way to see allocations is to be the allocator, and that interface is unsafe.
#![allow(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{DType, Device, Tensor, Var};
use leyline::id::{SeedId, StepIndex, TopologyRevision};
use leyline::layout::{Owner, ParameterLayout, SegmentSpec};
use leyline::model::Parameter;
use leyline::seed::{Attribution, AttributionMode};
use tolaria::aggregate::{AggregationConfig, ConflictResolution, GradientEngine, ProjectionOrder, WindowPlan};
use tolaria::grad::{Geometry, GradientBufferPool, GradientLease};
use tolaria::host_read::HostReads;
use tolaria::optim::{Optimizer, OptimizerConfig};

/// Bytes that one window may allocate, whatever the number of parameters: shares, coefficients, reports and handles of
/// a few microbatches.
const MAX_BYTES: usize = 16 << 10;
const NUM_MICROBATCHES: u16 = 4;

/// The system's allocator, counting what it is asked for.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise about `layout` is the one that is asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        BYTES.fetch_add(new_size, Ordering::Relaxed);
        // SAFETY: the pointer came from the system's allocator, with this layout.
        unsafe { System.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as in `realloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

struct Setup {
    layout: ParameterLayout,
    parameters: Vec<Parameter>,
    pool: GradientBufferPool,
    engine: GradientEngine,
    sums: Tensor,
    optimizer: Optimizer,
}

impl Setup {
    /// A host parameter, and one of a seed, of `len` elements each.
    fn new(len: usize) -> Self {
        let spec = |name: &str, owner| SegmentSpec { name: name.into(), shape: vec![len], owner, isolated: false };
        let specs = vec![spec("host", Owner::Host), spec("seed", Owner::Seed(SeedId(1)))];
        let layout = ParameterLayout::new(TopologyRevision(1), specs).unwrap();
        let parameter = |name: &str| {
            let var = Var::from_tensor(&Tensor::ones(len, DType::F32, &Device::Cpu).unwrap()).unwrap();
            Parameter { name: name.into(), var }
        };
        let parameters = vec![parameter("host"), parameter("seed")];
        let config = OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
        let aggregation =
            AggregationConfig { method: ConflictResolution::PcGrad, clip_norm: Some(0.1), ..Default::default() };
        let geometry = Arc::new(Geometry::of(&layout).unwrap());
        let num_rows = usize::from(NUM_MICROBATCHES);
        let engine = GradientEngine::new(geometry, aggregation, num_rows, &Device::Cpu).unwrap();
        let sums = Tensor::zeros(engine.num_sums(), DType::F64, &Device::Cpu).unwrap();
        let (pool, optimizer) = (GradientBufferPool::new(), Optimizer::new(config));
        Self { layout, parameters, pool, engine, sums, optimizer }
    }

    fn microbatch(&self, number: u16) -> (GradientLease, (usize, Attribution)) {
        let gradient = self.pool.lease_to_write(self.layout.num_elements(), DType::F32, &Device::Cpu).unwrap();
        // Neighbors conflict.
        gradient.as_tensor().const_set(if number.is_multiple_of(2) { 1.0_f32 } else { -0.5 }.into()).unwrap();
        let weights = vec![(SeedId(1), f64::from(number % 2))];
        (gradient, (2, Attribution::new(AttributionMode::Stage, weights).unwrap()))
    }

    /// Bytes allocated by one whole window.
    fn window(&mut self, step: u64) -> usize {
        let before = BYTES.load(Ordering::Relaxed);
        let (rows, microbatches): (Vec<_>, Vec<_>) =
            (0..NUM_MICROBATCHES).map(|number| self.microbatch(number)).unzip();
        let (order, mut reads) = (ProjectionOrder { seed: 1, step: StepIndex(step) }, HostReads::default());
        let (slots, config) = (self.engine.geometry().owners(), self.engine.config());
        let window = WindowPlan::new(&microbatches, slots, config, order).unwrap();
        assert!(window.tells_owners_apart());
        let combination = self.engine.combine(rows, &window, None, Some(&self.sums), &mut reads).unwrap();
        let plan = self.optimizer.prepare(&self.parameters, &self.layout, 0.01).unwrap();
        self.optimizer.apply_combination(&self.parameters, &self.layout, &combination, &plan, None).unwrap();
        self.optimizer.commit(&self.layout, &plan);
        drop(combination);
        BYTES.load(Ordering::Relaxed) - before
    }
}

// One test in this file: whatever else runs would be counted too.
#[test]
fn a_window_after_the_first_allocates_nothing_of_the_size_of_the_parameters() {
    for len in [1 << 8, 1 << 12, 1 << 17] {
        let mut setup = Setup::new(len);
        let first = setup.window(0);
        let buffers = (usize::from(NUM_MICROBATCHES) + 2) * 2 * len * size_of::<f32>();
        assert!(first >= buffers, "{len}: the first window makes gradients and moments, but allocated {first}");
        setup.window(1);
        for step in 2..5 {
            let bytes = setup.window(step);
            assert!(bytes <= MAX_BYTES, "{len}: a window allocated {bytes} bytes");
        }
        assert_eq!(setup.pool.stats().allocations_total, u64::from(NUM_MICROBATCHES));
        // The plan of an update is lists, not something of each parameter.
        let before = CALLS.load(Ordering::Relaxed);
        let plan = setup.optimizer.prepare(&setup.parameters, &setup.layout, 0.01).unwrap();
        let table = plan.table();
        assert_eq!(
            CALLS.load(Ordering::Relaxed) - before,
            4,
            "two lists of the plan, the table, and constants that it knows"
        );
        assert_eq!(table.len(), 10);
    }
}

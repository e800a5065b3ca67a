//! What does not fit is refused, and its buffers are given back.

use candle_core::{DType, Device, Tensor};

use super::window::{Window, host_layout};
use super::{MEAN, PATHS, PCGRAD};
use crate::aggregate::{AggregationConfig, GradientEngine, WindowPlan};
use crate::error::Error;
use crate::grad::{Geometry, GradientBufferPool, GradientLease};
use crate::host_read::HostReads;
use crate::testing::{HOST, layout, seed};

fn window() -> Window {
    Window::of_host(&[(&[1.0, 0.0], 1, &[(1, 1.0)]), (&[-1.0, 1.0], 1, &[])])
}

fn zeros(count: usize, dtype: DType) -> Tensor {
    Tensor::zeros(count, dtype, &Device::Cpu).unwrap()
}

/// What goes into one call.
struct Call<'a> {
    config: AggregationConfig,
    /// Sizes and types of the rows.
    rows: &'a [(usize, DType)],
    arguments: Option<Tensor>,
    sums: Option<Tensor>,
}

const ROW: (usize, DType) = (2, DType::F32);

impl Call<'_> {
    fn of(config: AggregationConfig, rows: &[(usize, DType)]) -> Call<'_> {
        Call { config, rows, arguments: None, sums: None }
    }

    /// Fails with this message, and gives everything back.
    #[track_caller]
    fn refused(&self, plan: &WindowPlan, mut engine: GradientEngine, message: &str) {
        let (pool, mut reads) = (GradientBufferPool::new(), HostReads::default());
        let lease = |&(len, dtype): &(usize, DType)| pool.lease(len, dtype, &Device::Cpu).unwrap();
        let rows: Vec<GradientLease> = self.rows.iter().map(lease).collect();
        let combined = engine.combine(rows, plan, self.arguments.as_ref(), self.sums.as_ref(), &mut reads);
        let error = combined.unwrap_err();
        assert!(matches!(error, Error::LayoutMismatch { .. }), "{error:?}");
        assert_eq!(error.to_string(), message);
        assert_eq!((pool.stats().outstanding, reads.total()), (0, 0));
        if let Some(sums) = &self.sums {
            assert!(sums.dtype() != DType::F64 || crate::testing::values_f64(sums).iter().all(|sum| *sum <= 0.0));
        }
    }

    #[track_caller]
    fn refused_by_window(&self, message: &str) {
        self.refused(&window().plan(&self.config), window().engine(&self.config), message);
    }
}

#[test]
fn rows_that_do_not_fit_are_refused() {
    let wide = (2, DType::F64);
    for config in [MEAN, PCGRAD] {
        let refused = |rows: &[(usize, DType)], message: &str| Call::of(config, rows).refused_by_window(message);
        refused(&[], "microbatches of a window: expected 2, found 0");
        refused(&[ROW], "microbatches of a window: expected 2, found 1");
        refused(&[ROW; 3], "microbatches of a window: expected 2, found 3");
        refused(&[ROW, (1, DType::F32)], "elements of a microbatch's gradient: expected 2, found 1");
        refused(&[(3, DType::F32), ROW], "elements of a microbatch's gradient: expected 2, found 3");
        refused(&[ROW, wide], "gradients of a window: expected F32 on Cpu, found F64 on Cpu");
        refused(&[wide, ROW], "gradients of a window: expected F64 on Cpu, found F32 on Cpu");
    }
}

#[test]
fn more_microbatches_than_the_engine_was_made_for_are_refused() {
    for config in [MEAN, PCGRAD] {
        let engine = GradientEngine::new(window().geometry(), config, 1, &Device::Cpu).unwrap();
        let call = Call::of(config, &[ROW, ROW]);
        call.refused(&window().plan(&config), engine, "microbatches of a window: expected at most 1, found 2");
    }
}

#[test]
fn sums_and_arguments_that_do_not_fit_are_refused() {
    // 5 of the window, 12 and a row of cosines and layers per owner; and those of the windows before.
    let num_sums = 2 * (5 + 6 * (12 + 6 + 1));
    for config in [MEAN, PCGRAD] {
        assert_eq!(window().engine(&config).num_sums(), num_sums);
        for (sums, found) in [
            (zeros(num_sums - 1, DType::F64), "237 elements of F64 on Cpu"),
            (zeros(num_sums + 1, DType::F64), "239 elements of F64 on Cpu"),
            (zeros(num_sums, DType::F32), "238 elements of F32 on Cpu"),
            (zeros(num_sums, DType::F64).reshape((2, ())).unwrap(), "238 elements of F64 on Cpu"),
        ] {
            let call = Call { sums: Some(sums), ..Call::of(config, &[ROW, ROW]) };
            let expected = format!("sums of an epoch: expected 238 elements of F64 on Cpu, found {found}");
            call.refused_by_window(&expected);
        }
    }
    let num_arguments = WindowPlan::num_arguments(2, 6);
    for (arguments, found) in [
        (zeros(num_arguments - 1, DType::F64), "49 elements of F64 on Cpu"),
        (zeros(num_arguments, DType::F32), "50 elements of F32 on Cpu"),
    ] {
        let call = Call { arguments: Some(arguments), ..Call::of(PCGRAD, &[ROW, ROW]) };
        let expected = format!("arguments of a window: expected 50 elements of F64 on Cpu, found {found}");
        call.refused_by_window(&expected);
    }
}

#[test]
fn a_plan_for_other_owners_is_refused() {
    let two = [HOST, seed(1)];
    let plan = WindowPlan::new(&window().microbatches, &two, &PCGRAD, window().order).unwrap();
    let engine = window().engine(&PCGRAD);
    Call::of(PCGRAD, &[ROW, ROW]).refused(&plan, engine, "owners of a window: expected 6, found 2");
}

#[test]
fn a_window_without_a_sample_or_without_the_host_has_no_plan() {
    let plan = |microbatches: &[_], slots: &[_]| {
        let order = window().order;
        WindowPlan::new(microbatches, slots, &PCGRAD, order).unwrap_err().to_string()
    };
    let mut without_samples = window().microbatches;
    without_samples.iter_mut().for_each(|microbatch| microbatch.0 = 0);
    let message = "accumulation window: expected at least one sample, found none";
    assert_eq!(plan(&[], &[HOST]), message);
    assert_eq!(plan(&without_samples, &[HOST]), message);
    let message = "owners of a window: expected the host first, found [Seed(SeedId(1))]";
    assert_eq!(plan(&window().microbatches, &[seed(1)]), message);
    assert!(plan(&window().microbatches, &[]).contains("found []"));
}

#[test]
fn a_combination_of_another_layout_is_not_formed() {
    let others = [
        (host_layout(3), "shape of the gradient: expected [3], found [2]"),
        (layout(&[("a", 1, HOST, false), ("b", 1, HOST, false)]), "factors of a combination: expected 2, found 1"),
    ];
    for (other, message) in others {
        for path in &PATHS {
            // The mean on the composed path is formed already, and fits whatever has as many elements.
            let configs = if matches!(path, crate::aggregate::passes::Passes::Kernel) {
                vec![MEAN, PCGRAD]
            } else {
                vec![PCGRAD]
            };
            for config in configs {
                let pool = GradientBufferPool::new();
                let (combination, _) = window().combine(path, &config, &pool, None);
                let error = combination.materialize_on(path, &Geometry::of(&other).unwrap()).unwrap_err();
                assert_eq!(error.to_string(), message);
                assert_eq!(pool.stats().outstanding, 0);
            }
        }
    }
}

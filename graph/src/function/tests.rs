//! Functions on the CPU, which replays nothing, and on a device of the tests that does.
#![expect(clippy::disallowed_methods, reason = "tests look at tensors")]
// Under the model checker, caches only work inside of a model: see `manager/tests.rs`.
#![cfg(not(feature = "model-check"))]

pub(crate) mod device;
mod cpu;
mod warm_up;
mod results;
mod refusals;
mod retests;
mod compiled;

use std::num::{NonZeroU32, NonZeroUsize};

use candle_core::{DType, Device, Result, Tensor};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use self::device::Fake;
use super::{GraphFunctionConfig, Graphs};
use crate::manager::{GraphManager, GraphMode};
use crate::testing::{bits, random, values};

/// One result of another shape than the input, one of another type and without dimensions, one with other strides.
fn affine(inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let x = &inputs[0];
    let scaled = x.affine(3.0, -1.0)?;
    Ok(vec![scaled.sum_keepdim(0)?, x.sum_all()?.to_dtype(DType::U32)?, scaled.t()?])
}

fn identity(inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    Ok(inputs.to_vec())
}

fn matrix(rows: usize, seed: u64) -> Tensor {
    Tensor::from_vec(random(rows * 3, seed), (rows, 3), &Device::Cpu).unwrap()
}

fn config(warmup_calls: u32, limit: usize) -> GraphFunctionConfig {
    GraphFunctionConfig {
        warmup_calls: NonZeroU32::new(warmup_calls).unwrap(),
        limit: NonZeroUsize::new(limit).unwrap(),
        compile: GraphMode::Off,
        ..GraphFunctionConfig::default()
    }
}

fn fake(warmup_calls: u32) -> Graphs<Fake> {
    Graphs::new(config(warmup_calls, 8), &GraphManager::new())
}

/// Shape, type and elements; floats by their bits.
fn contents(tensors: &[Tensor]) -> Vec<(Vec<usize>, DType, Vec<u32>)> {
    let elements = |tensor: &Tensor| match tensor.dtype() {
        DType::F32 => bits(&values(tensor)),
        _ => tensor.to_dtype(DType::U32).unwrap().flatten_all().unwrap().to_vec1().unwrap(),
    };
    tensors.iter().map(|tensor| (tensor.dims().to_vec(), tensor.dtype(), elements(tensor))).collect()
}

fn expected(inputs: &[&Tensor]) -> Vec<(Vec<usize>, DType, Vec<u32>)> {
    let inputs: Vec<Tensor> = inputs.iter().copied().cloned().collect();
    contents(&affine(&inputs).unwrap())
}

/// Rows of the input, a seed of its elements, and whether the results are taken in place.
fn calls() -> impl Strategy<Value = Vec<(usize, u64, bool)>> {
    prop::collection::vec((1_usize..6, any::<u64>(), any::<bool>()), 1..40)
}

fn cases() -> ProptestConfig {
    ProptestConfig { cases: 64, rng_seed: RngSeed::Fixed(7), ..ProptestConfig::default() }
}

//! What the tests of several modules share.
#![expect(clippy::disallowed_methods, reason = "tests look at tensors")]

use candle_core::{DType, Device, Tensor, Var};
use leyline::durable::{Durable as _, SavedState};
use leyline::id::{SeedId, TopologyRevision};
use leyline::layout::{Owner, ParameterLayout, SegmentSpec};
use leyline::model::Parameter;
use leyline::region::Eager;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::optim::Optimizer;

pub(crate) const HOST: Owner = Owner::Host;

pub(crate) fn seed(id: u32) -> Owner {
    Owner::Seed(SeedId(id))
}

/// A layout of vectors: (name, elements, owner, isolated).
pub(crate) fn layout(segments: &[(&str, usize, Owner, bool)]) -> ParameterLayout {
    let specs = segments
        .iter()
        .map(|&(name, len, owner, isolated)| SegmentSpec { name: name.into(), shape: vec![len], owner, isolated })
        .collect();
    ParameterLayout::new(TopologyRevision(1), specs).unwrap()
}

/// Parameters that fit `layout`, with these elements in the order of the flat vector.
pub(crate) fn parameters(layout: &ParameterLayout, elements: &[f32]) -> Vec<Parameter> {
    layout
        .segments()
        .iter()
        .map(|segment| {
            let values = &elements[segment.offset..segment.offset + segment.len];
            let var = Var::from_slice(values, segment.spec.shape.as_slice(), &Device::Cpu).unwrap();
            Parameter { name: segment.spec.name.clone(), var }
        })
        .collect()
}

/// The parameters as one flat vector.
pub(crate) fn flat(parameters: &[Parameter]) -> Vec<f32> {
    parameters.iter().flat_map(|parameter| values(&parameter.var)).collect()
}

pub(crate) fn vector(values: &[f32]) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap()
}

pub(crate) fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

pub(crate) fn values_f64(tensor: &Tensor) -> Vec<f64> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Roughly normal numbers: the sum of four uniform ones.
pub(crate) fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut uniform = move || rng.next_u32() as f32 / u32::MAX as f32 - 0.5;
    (0..count).map(|_| uniform() + uniform() + uniform() + uniform()).collect()
}

/// Fails unless every element is within `tolerance` of its reference.
#[track_caller]
pub(crate) fn assert_close(found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(error <= tolerance, "element {index}: {found} is {error:e} from {expected}");
    }
}

/// What a checkpoint keeps of an optimizer.
pub(crate) fn saved_state(optimizer: &Optimizer) -> SavedState {
    optimizer.save(&Eager::acquire().unwrap()).unwrap()
}

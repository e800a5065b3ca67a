//! What the tests of several modules share.
#![expect(clippy::disallowed_methods, reason = "tests look at tensors")]

use candle_core::{Device, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub(crate) fn vector(values: &[f32]) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap()
}

pub(crate) fn values(tensor: &Tensor) -> Vec<f32> {
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

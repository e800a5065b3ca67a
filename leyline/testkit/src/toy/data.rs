//! Blobs: one cluster per class, easy to separate with a linear layer.

use candle_core::{Device, Result, Tensor};
use leyline::batch::Batch;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Inputs per sample.
pub const NUM_INPUTS: usize = 16;
/// Classes.
pub const NUM_CLASSES: usize = 4;
/// Half the width of the noise; the centers are 1 apart from the origin, each along its own four inputs.
const NOISE: f32 = 0.5;

/// `num_samples` samples (B) with the classes in turn: inputs (B, 16) `f32`, targets (B,) `u32`. The same arguments
/// give the same batch.
///
/// # Errors
/// When the device cannot hold the batch.
pub fn blobs(num_samples: usize, seed: u64, device: &Device) -> Result<Batch> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut inputs = Vec::with_capacity(num_samples * NUM_INPUTS);
    let mut targets = Vec::with_capacity(num_samples);
    for sample in 0..num_samples {
        let class = sample % NUM_CLASSES;
        targets.push(u32::try_from(class).expect("there are 4 classes"));
        inputs.extend((0..NUM_INPUTS).map(|input| {
            let center = if input % NUM_CLASSES == class { 1.0 } else { 0.0 };
            center + rng.random_range(-NOISE..NOISE)
        }));
    }
    Ok(Batch {
        inputs: Tensor::from_vec(inputs, (num_samples, NUM_INPUTS), device)?,
        targets: Tensor::from_vec(targets, num_samples, device)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values;

    #[test]
    fn the_seed_alone_decides_the_batch() {
        let inputs = |seed| values(&blobs(8, seed, &Device::Cpu).unwrap().inputs).unwrap();
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(2));
    }

    #[test]
    fn every_class_occurs_and_lies_at_its_center() {
        let batch = blobs(400, 3, &Device::Cpu).unwrap();
        let inputs = values(&batch.inputs).unwrap();
        for class in 0..NUM_CLASSES {
            let rows = (class..400).step_by(NUM_CLASSES);
            let mean = rows.map(|row| inputs[row * NUM_INPUTS + class]).sum::<f32>() / 100.0;
            assert!((mean - 1.0).abs() < 0.1, "class {class} has its center at {mean}");
        }
        assert_eq!(batch.num_samples(), 400);
    }
}

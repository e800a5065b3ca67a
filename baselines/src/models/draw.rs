//! Numbers that follow from a seed, drawn on the CPU and copied to the device.

use candle_core::{DType, Device, Shape, Tensor, Var};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Named variables in the order of their creation.
pub(crate) type Variables = Vec<(String, Var)>;

/// Draws weights and data for one device. The generators of devices differ from each other, so they are not used.
#[derive(Debug)]
pub struct Draw {
    rng: ChaCha8Rng,
    device: Device,
    dtype: DType,
}

impl Draw {
    /// Draws `f32` numbers for `device`.
    #[must_use]
    pub fn new(seed: u64, device: &Device) -> Self {
        Self { rng: ChaCha8Rng::seed_from_u64(seed), device: device.clone(), dtype: DType::F32 }
    }

    /// The same numbers as another float type.
    pub(crate) fn with_dtype(self, dtype: DType) -> Self {
        Self { dtype, ..self }
    }

    /// What `draw` makes of numbers of another float type.
    pub(crate) fn typed<R>(&mut self, dtype: DType, draw: impl FnOnce(&mut Self) -> R) -> R {
        let before = std::mem::replace(&mut self.dtype, dtype);
        let drawn = draw(self);
        self.dtype = before;
        drawn
    }

    /// Where the tensors are.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// The float type of the tensors.
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Uniform in `-bound..bound`.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub fn uniform(&mut self, shape: impl Into<Shape>, bound: f32) -> candle_core::Result<Tensor> {
        let shape = shape.into();
        let values: Vec<f32> = (0..shape.elem_count()).map(|_| (2.0 * self.unit() - 1.0) * bound).collect();
        Tensor::from_vec(values, shape, &self.device)?.to_dtype(self.dtype)
    }

    /// An integer below `bound`; the bias of the remainder is below `bound / 2^32`.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        self.rng.next_u32() % bound
    }

    /// Uniform in `0..1`, exact in `f32`.
    fn unit(&mut self) -> f32 {
        const STEPS: f32 = (1_u32 << 24) as f32;
        (self.rng.next_u32() >> 8) as f32 / STEPS
    }
}

#[cfg(test)]
mod tests {
    use tolaria::host_read::{HostReads, read_vec};

    use super::*;

    fn drawn(seed: u64) -> Vec<f32> {
        let tensor = Draw::new(seed, &Device::Cpu).uniform(1000, 0.5).unwrap();
        read_vec(&tensor, "drawn", &mut HostReads::default()).unwrap()
    }

    #[test]
    fn numbers_follow_from_the_seed_and_stay_within_the_bound() {
        let values = drawn(3);
        assert_eq!(values, drawn(3));
        assert_ne!(values, drawn(4));
        assert!(values.iter().all(|value| (-0.5..0.5).contains(value)));
        let mean = values.iter().sum::<f32>() / 1000.0;
        // Four standard errors of a uniform mean: 4 * 0.289 / sqrt(1000).
        assert!(mean.abs() < 0.037, "{mean}");
    }
}

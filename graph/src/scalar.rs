//! A number that moves between the replays of a graph that reads it.

use candle_core::{Device, Error, Result, Tensor, Var};
use leyline::region::{Eager, RegionError};

/// A number on the device, for a temperature, a probability or a weight that changes while steps are replayed.
///
/// A number that a region takes from the host is part of its graph, and stays what it was when that was captured. This
/// one is a tensor: the graph reads what was last [`set`](Self::set), and an eager run reads the same.
///
/// # Examples
/// ```
/// use candle_core::{Device, Tensor};
/// use esper_graph::DeviceScalar;
///
/// let heat = DeviceScalar::new(1.0, &Device::Cpu)?;
/// let scaled = |x: &Tensor| x.broadcast_mul(heat.as_tensor());
/// let x = Tensor::new(&[2.0_f32, 4.0], &Device::Cpu)?;
/// heat.set(0.5)?;
/// assert_eq!(scaled(&x)?.to_vec1::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct DeviceScalar {
    var: Var,
    // Shares the memory of the variable and is none: no gradient is followed to it.
    tensor: Tensor,
}

impl DeviceScalar {
    /// A tensor of this one number, `f32`. A clone is the same number.
    ///
    /// # Errors
    /// When the device fails.
    pub fn new(value: f32, device: &Device) -> Result<Self> {
        let var = Var::from_tensor(&Tensor::full(value, (), device)?)?;
        Ok(Self { tensor: var.as_detached_tensor(), var })
    }

    /// Writes the number, for every step that is enqueued from now on.
    ///
    /// # Errors
    /// [`RegionError`] inside a region, where it would become part of what is recorded; when the device fails.
    /// # Sync
    /// none
    pub fn set(&self, value: f32) -> Result<()> {
        // A token that somebody holds says that this is the host's side.
        if let Err(error @ RegionError::Recording) = Eager::acquire().map(drop) {
            return Err(Error::wrap(error));
        }
        self.var.set(&Tensor::full(value, (), self.var.device())?)
    }

    /// The number as a tensor of shape (), which no gradient flows to. It is at one address for as long as it lives.
    #[must_use]
    pub fn as_tensor(&self) -> &Tensor {
        &self.tensor
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::values;

    #[test]
    fn a_tensor_taken_before_a_write_reads_it_and_a_region_writes_nothing() {
        let scalar = DeviceScalar::new(1.0, &Device::Cpu).unwrap();
        let read = scalar.as_tensor().clone();
        scalar.set(2.5).unwrap();
        assert_eq!(values(&read), [2.5]);
        let mut eager = Eager::acquire().unwrap();
        scalar.clone().set(3.5).unwrap();
        assert_eq!(values(&read), [3.5]);
        let refused = eager.record(|_| scalar.set(4.5)).unwrap_err();
        assert!(refused.to_string().starts_with(&RegionError::Recording.to_string()), "{refused}");
        assert_eq!(values(&read), [3.5]);
    }
}

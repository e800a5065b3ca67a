//! Weights of a module from outside and to outside: checked, and copied in place.

use candle_core::{Device, Tensor, Var};
use esper_weights::{Dtype, Weights};

use crate::blueprint::SeedModule;
use crate::error::Error;
use crate::host_read::read_f64;

impl SeedModule {
    /// Copies weights into the module's tensors in place: optimizers and captured steps see them. All are checked before
    /// the first is written, so a refusal changes nothing. A seed with weights is no newborn: in full it may change the
    /// answer at once.
    ///
    /// # Errors
    /// [`Error::Artifact`] with the name of the first tensor that does not fit; when the device fails.
    /// # Sync
    /// none
    pub fn load(&self, weights: &Weights) -> Result<(), Error> {
        let own: Vec<(&str, &Var)> = self.weights().entries().collect();
        let forms: Vec<_> = own.iter().map(|(name, var)| (*name, Dtype::from(var.dtype()), var.dims())).collect();
        let mut loaded = Vec::new();
        for ((_, var), values) in own.iter().zip(weights.fit(&forms)?) {
            let host = Tensor::from_vec(values, var.shape(), &Device::Cpu)?;
            loaded.push((var, host.to_dtype(var.dtype())?.to_device(var.device())?));
        }
        // Shapes and types agree: only a failing device stops here.
        for (var, tensor) in loaded {
            var.set(&tensor)?;
        }
        Ok(())
    }

    /// Copies of the tensors with their names, on the device.
    pub(crate) fn copies(&self) -> candle_core::Result<Vec<(String, Tensor)>> {
        let copy = |(name, var): (&str, &Var)| Ok((name.to_owned(), var.as_detached_tensor().copy()?));
        self.weights().entries().map(copy).collect()
    }

    /// Copies what [`Self::copies`] of a like module gave into the tensors of this one; false, and nothing done, where it
    /// is none.
    pub(crate) fn adopt(&self, weights: &[(String, Tensor)]) -> candle_core::Result<bool> {
        let own: Vec<(&str, &Var)> = self.weights().entries().collect();
        let alike = |((name, var), (other, tensor)): (&(&str, &Var), &(String, Tensor))| {
            name == other && var.shape() == tensor.shape() && var.dtype() == tensor.dtype()
        };
        if own.len() != weights.len() || !own.iter().zip(weights).all(alike) {
            return Ok(false);
        }
        for ((_, var), (_, tensor)) in own.iter().zip(weights) {
            var.set(tensor)?;
        }
        Ok(true)
    }

    /// The module's weights, in the type of the network.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// One device-to-host copy for each tensor.
    pub fn export(&self) -> Result<Weights, Error> {
        let mut stored = Vec::new();
        for (name, var) in self.weights().entries() {
            stored.push((name, Dtype::from(var.dtype()), var.dims(), read_f64(&var.as_detached_tensor())?));
        }
        Ok(Weights::from_network(stored)?)
    }
}

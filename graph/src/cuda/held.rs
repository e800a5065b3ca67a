//! Tensors that a graph points at.

use candle_core::Tensor;

use crate::launch::address;
use crate::reason::Refusal;

/// Tensors that are kept alive, with the addresses they had when they were taken hold of.
#[derive(Debug, Default, Clone)]
pub(super) struct HeldTensors(Vec<Held>);

#[derive(Debug, Clone)]
struct Held {
    name: String,
    tensor: Tensor,
    address: u64,
}

impl HeldTensors {
    /// Keeps `tensor` alive and remembers where it is, which it returns.
    ///
    /// # Errors
    /// When the tensor is not contiguous or not on the GPU.
    pub(super) fn hold(&mut self, name: impl Into<String>, tensor: &Tensor) -> candle_core::Result<u64> {
        let address = address(tensor)?;
        self.0.push(Held { name: name.into(), tensor: tensor.clone(), address });
        Ok(address)
    }

    /// Confirms that each is where it was.
    ///
    /// # Errors
    /// [`Refusal::Moved`].
    pub(super) fn check_addresses(&self) -> Result<(), Refusal> {
        let moved = |held: &&Held| address(&held.tensor).ok() != Some(held.address);
        match self.0.iter().find(moved) {
            Some(held) => Err(Refusal::Moved { what: held.name.clone() }),
            None => Ok(()),
        }
    }

    /// Confirms that `tensor` is where the one held under this name was; a name that is not known is confirmed.
    ///
    /// # Errors
    /// [`Refusal::Moved`].
    pub(super) fn confirm(&self, name: &str, tensor: &Tensor) -> Result<(), Refusal> {
        let Some(held) = self.0.iter().find(|held| held.name == name) else { return Ok(()) };
        if address(tensor).ok() == Some(held.address) {
            Ok(())
        } else {
            Err(Refusal::Moved { what: held.name.clone() })
        }
    }
}

//! Dropout whose mask follows from the draw counter.

use candle_core::{CpuStorage, CudaStorage, CustomOp1, Layout, Shape, Tensor};

use super::counter::DrawCounter;
use super::philox::{philox4x32, words};
use crate::cpu;
use crate::error::Error;
use crate::kernels::{self, MaskArgs};

/// In training, sets elements to 0 with a probability and scales the others, so that their expectation stays.
///
/// The mask is a pure function of the seed, the number of draws, the layer and the index of the element in row-major
/// order; from the 2^34th element on it repeats. It depends on neither the device nor the shape. Two passes without
/// [`DrawCounter::advance`] between them use the same mask.
///
/// # Source
/// Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR 2014, section 10
/// (scaling in training)
#[derive(Debug, Clone)]
pub struct Dropout {
    probability: f64,
    layer: u32,
    counter: DrawCounter,
}

impl Dropout {
    /// Drops with `probability`, in `[0, 1)`. Layers of one model that are to drop independently need different numbers
    /// `layer`.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for another probability.
    /// # Sync
    /// none
    pub fn new(probability: f64, layer: u32, counter: &DrawCounter) -> Result<Self, Error> {
        if !(0.0..1.0).contains(&probability) {
            return Err(Error::InvalidConfig {
                key: "dropout.probability".to_owned(),
                message: format!("expected at least 0 and less than 1, found {probability}"),
            });
        }
        Ok(Self { probability, layer, counter: counter.clone() })
    }

    /// The probability that an element is dropped.
    #[must_use]
    pub fn probability(&self) -> f64 {
        self.probability
    }

    /// The number that tells this layer's mask from others.
    #[must_use]
    pub fn layer(&self) -> u32 {
        self.layer
    }

    /// The inputs times the mask, with a gradient through the inputs; the inputs themselves where nothing is dropped.
    ///
    /// # Shapes
    /// any, of a float type; the output has the same
    /// # Errors
    /// [`Error::LayoutMismatch`] for integers; [`Error::Candle`] for inputs on another device than the counter's, and
    /// when the device fails.
    /// # Sync
    /// none
    pub fn forward(&self, inputs: &Tensor, train: bool) -> Result<Tensor, Error> {
        if !inputs.dtype().is_float() {
            return Err(Error::mismatch("dropout inputs", "a float type", inputs.dtype().as_str()));
        }
        if !train || self.probability <= 0.0 || inputs.elem_count() == 0 {
            return Ok(inputs.clone());
        }
        let mask = Mask { args: self.mask_args(), shape: inputs.shape().clone() };
        // The mask is a constant, which the backward pass finds as the forward pass used it. Of a variable's own tensor a candle that names
        // what has no backward pass would take it for a part of the network.
        let mask = self.counter.as_var().as_detached_tensor().apply_op1_no_bwd(&mask)?.to_dtype(inputs.dtype())?;
        Ok((inputs * mask)?)
    }

    fn mask_args(&self) -> MaskArgs {
        MaskArgs {
            key: words(self.counter.seed()),
            layer: self.layer,
            drop: drop_bound(self.probability),
            scale: cpu::to_f32(1.0 / (1.0 - self.probability)),
        }
    }
}

/// The part of the 2^32 words that drops an element; never all of them.
#[expect(clippy::cast_possible_truncation, reason = "saturation is the purpose")]
fn drop_bound(probability: f64) -> u32 {
    (probability * 2.0_f64.powi(32)).round() as u32
}

#[derive(Debug)]
struct Mask {
    args: MaskArgs,
    shape: Shape,
}

impl CustomOp1 for Mask {
    fn name(&self) -> &'static str {
        "dropout-mask"
    }

    fn cpu_fwd(&self, draws: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let &[low, high] = cpu::slice::<u32>(draws, layout)? else {
            candle_core::bail!("a draw counter has two words")
        };
        let MaskArgs { key, layer, drop, scale } = self.args;
        let mut mask = vec![0.0_f32; self.shape.elem_count()];
        for (elements, block) in mask.chunks_mut(4).zip((0..=u32::MAX).cycle()) {
            let drawn = philox4x32([block, layer, low, high], key);
            for (element, word) in elements.iter_mut().zip(drawn) {
                *element = if word >= drop { scale } else { 0.0 };
            }
        }
        Ok((CpuStorage::F32(mask), self.shape.clone()))
    }

    fn cuda_fwd(&self, draws: &CudaStorage, layout: &Layout) -> candle_core::Result<(CudaStorage, Shape)> {
        kernels::dropout_mask((draws, layout), self.args, &self.shape)
    }
}

#[cfg(test)]
mod tests;

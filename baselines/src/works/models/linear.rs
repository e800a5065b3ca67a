//! An affine map, which alone is the reference network.

use candle_core::{Tensor, Var};
use tolaria::plain::PlainModel;

use super::{Draw, Variables};

/// `y = x Wᵀ + b`, with W of shape (outputs, inputs).
#[derive(Debug, Clone)]
pub struct Linear {
    weight: Var,
    bias: Option<Var>,
}

impl Linear {
    /// Uniform weights and bias within `1/√inputs`; the variables `NAME.weight` and `NAME.bias` join `variables`.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub fn new(
        name: &str,
        [inputs, outputs]: [usize; 2],
        draw: &mut Draw,
        variables: &mut Variables,
    ) -> candle_core::Result<Self> {
        let mut linear = Self::without_bias(name, [inputs, outputs], draw, variables)?;
        let bias = Var::from_tensor(&draw.uniform(outputs, bound(inputs))?)?;
        variables.push((format!("{name}.bias"), bias.clone()));
        linear.bias = Some(bias);
        Ok(linear)
    }

    /// As [`Linear::new`] without a bias.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub fn without_bias(
        name: &str,
        [inputs, outputs]: [usize; 2],
        draw: &mut Draw,
        variables: &mut Variables,
    ) -> candle_core::Result<Self> {
        let weight = Var::from_tensor(&draw.uniform((outputs, inputs), bound(inputs))?)?;
        variables.push((format!("{name}.weight"), weight.clone()));
        Ok(Self { weight, bias: None })
    }

    /// Maps (rows, inputs) to (rows, outputs).
    ///
    /// # Errors
    /// For another shape; when the device fails.
    /// # Sync
    /// none
    pub fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let y = x.matmul(&self.weight.t()?)?;
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }

    /// The reference network: `inputs` features to `outputs` logits.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub fn model(inputs: usize, outputs: usize, draw: &mut Draw) -> Result<PlainModel, tolaria::Error> {
        let mut variables = Variables::new();
        let linear = Self::new("linear", [inputs, outputs], draw, &mut variables)?;
        PlainModel::new(variables, move |x: &Tensor| linear.forward(x))
    }
}

fn bound(inputs: usize) -> f32 {
    1.0 / (inputs as f32).sqrt()
}

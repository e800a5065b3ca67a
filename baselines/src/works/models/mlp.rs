//! A multilayer perceptron with ReLU.

use candle_core::Tensor;
use tolaria::plain::PlainModel;

use super::{Draw, Linear, Variables};

/// Widths of the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MlpConfig {
    /// Features, hidden units of each layer, classes.
    pub widths: Vec<usize>,
}

impl MlpConfig {
    /// 784-512-512-10.
    #[must_use]
    pub fn mnist() -> Self {
        Self { widths: vec![784, 512, 512, 10] }
    }
}

/// Affine maps with ReLU between them.
#[derive(Debug, Clone)]
pub struct Mlp {
    layers: Vec<Linear>,
    variables: Variables,
}

impl Mlp {
    /// Draws the weights.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub fn new(config: &MlpConfig, draw: &mut Draw) -> candle_core::Result<Self> {
        let mut variables = Variables::new();
        let layers = config
            .widths
            .windows(2)
            .enumerate()
            .map(|(index, pair)| Linear::new(&format!("layers.{index}"), [pair[0], pair[1]], draw, &mut variables))
            .collect::<candle_core::Result<_>>()?;
        Ok(Self { layers, variables })
    }

    /// Logits of (B, features), shape (B, classes).
    ///
    /// # Errors
    /// For another shape; when the device fails.
    /// # Sync
    /// none
    pub fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let mut x = x.clone();
        for (index, layer) in self.layers.iter().enumerate() {
            if index > 0 {
                x = x.relu()?;
            }
            x = layer.forward(&x)?;
        }
        Ok(x)
    }

    /// The network for a trainer.
    ///
    /// # Errors
    /// Never in practice: the names are unique.
    pub fn into_model(self) -> Result<PlainModel, tolaria::Error> {
        PlainModel::new(self.variables.clone(), move |x: &Tensor| self.forward(x))
    }
}

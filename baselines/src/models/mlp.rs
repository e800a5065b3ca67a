//! A multilayer perceptron with ReLU.

use candle_core::Tensor;
use esper_layers::Activation;
use leyline::model::HostNumbers;
use tolaria::plain::PlainModel;

use super::{Draw, Linear, Variables, Variant};

/// Widths of the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MlpConfig {
    /// Features, hidden units of each layer, classes.
    pub(crate) widths: Vec<usize>,
}

impl MlpConfig {
    /// 784-512-512-10.
    pub(crate) fn mnist() -> Self {
        Self { widths: vec![784, 512, 512, 10] }
    }

    /// 1024-4096-4096-1000: products large enough that their arithmetic is the cost.
    pub(crate) fn wide() -> Self {
        Self { widths: vec![1024, 4096, 4096, 1000] }
    }
}

/// Affine maps with ReLU between them.
#[derive(Debug, Clone)]
pub(crate) struct Mlp {
    layers: Vec<Linear>,
    variables: Variables,
}

impl Mlp {
    /// Draws the weights.
    ///
    /// # Errors
    /// When there are fewer than two widths; when the device fails.
    pub(crate) fn new(config: &MlpConfig, variant: Variant, draw: &mut Draw) -> candle_core::Result<Self> {
        if config.widths.len() < 2 {
            candle_core::bail!("expected two widths at least, found {:?}", config.widths)
        }
        let mut variables = Variables::new();
        let layers = config
            .widths
            .windows(2)
            .enumerate()
            .map(|(index, pair)| {
                let layer = Linear::new(&format!("layers.{index}"), [pair[0], pair[1]], draw, &mut variables)?;
                Ok(layer.in_variant(variant))
            })
            .collect::<candle_core::Result<_>>()?;
        Ok(Self { layers, variables })
    }

    /// Logits of (B, features), shape (B, classes).
    pub(crate) fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let (last, hidden) = self.layers.split_last().expect("two widths at least");
        let mut x = x.clone();
        for layer in hidden {
            x = layer.activated(&x, Activation::Relu)?;
        }
        last.forward(&x)
    }

    /// The network for a trainer.
    pub(crate) fn into_model(self) -> Result<PlainModel, tolaria::Error> {
        Ok(PlainModel::new(self.variables.clone(), move |x: &Tensor| self.forward(x))?
            .with_host_numbers(HostNumbers::Fixed))
    }
}

//! An affine map, which alone is the reference network.

use candle_core::{Tensor, Var};
use esper_layers::{Activation, LinearOptions, WeightOrder};
use leyline::model::HostNumbers;
use tolaria::plain::PlainModel;

use super::{Draw, Form, Precision, Variables, Variant};

/// `y = x Wᵀ + b`, with W of shape (outputs, inputs).
#[derive(Debug, Clone)]
pub(crate) struct Linear {
    variant: Variant,
    weight: Var,
    bias: Option<Var>,
}

impl Linear {
    /// Uniform weights and bias within `1/√inputs`; the variables `NAME.weight` and `NAME.bias` join `variables`. Of basic
    /// operations in `f32` until [`Linear::in_variant`] says otherwise.
    pub(crate) fn new(
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
    pub(crate) fn without_bias(
        name: &str,
        [inputs, outputs]: [usize; 2],
        draw: &mut Draw,
        variables: &mut Variables,
    ) -> candle_core::Result<Self> {
        let weight = Var::from_tensor(&draw.uniform((outputs, inputs), bound(inputs))?)?;
        variables.push((format!("{name}.weight"), weight.clone()));
        Ok(Self::of(weight))
    }

    /// By a weight that belongs to another part of the network, too, without a bias.
    pub(crate) fn of(weight: Var) -> Self {
        Self { variant: Variant::default(), weight, bias: None }
    }

    /// One map to all that `parts` map to, one after the other. Its variables start with the same values.
    ///
    /// # Errors
    /// When a part has no bias or maps from another width; when the device fails.
    pub(crate) fn joined(name: &str, parts: &[Self], variables: &mut Variables) -> candle_core::Result<Self> {
        let Some(biases) = parts.iter().map(|part| part.bias.as_deref()).collect::<Option<Vec<_>>>() else {
            candle_core::bail!("expected parts with a bias")
        };
        let weights: Vec<&Tensor> = parts.iter().map(|part| part.weight.as_tensor()).collect();
        let weight = Var::from_tensor(&Tensor::cat(&weights, 0)?)?;
        let bias = Var::from_tensor(&Tensor::cat(&biases, 0)?)?;
        variables.push((format!("{name}.weight"), weight.clone()));
        variables.push((format!("{name}.bias"), bias.clone()));
        Ok(Self { variant: Variant::default(), weight, bias: Some(bias) })
    }

    /// The same map, computed in another way.
    pub(crate) fn in_variant(self, variant: Variant) -> Self {
        Self { variant, ..self }
    }

    /// Maps (rows, inputs) to (rows, outputs).
    pub(crate) fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        self.activated(x, Activation::None)
    }

    /// Maps (rows, inputs) to (rows, outputs), then applies `activation`.
    pub(crate) fn activated(&self, x: &Tensor, activation: Activation) -> candle_core::Result<Tensor> {
        let x = &self.variant.signal(x)?;
        match self.variant.form {
            Form::Primitive => {
                let y = self.product(x)?;
                let y = match &self.bias {
                    Some(bias) => y.broadcast_add(bias)?,
                    None => y,
                };
                match activation {
                    Activation::None => Ok(y),
                    Activation::Relu => y.relu(),
                    Activation::Gelu => y.gelu(),
                    Activation::GeluErf => y.gelu_erf(),
                }
            }
            Form::Layers => {
                let precision = match self.variant.precision {
                    Precision::Bf16 => esper_layers::Precision::Bf16,
                    Precision::F32 | Precision::Tf32 | Precision::Bf16Pure | Precision::Bf16Stochastic => {
                        esper_layers::Precision::AsIs
                    }
                };
                let options = LinearOptions { order: WeightOrder::OutIn, activation, precision };
                esper_layers::linear(x, &self.weight, self.bias.as_deref(), &options)
            }
        }
    }

    fn product(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let weight = self.variant.factor(&self.weight)?;
        self.variant.factor(x)?.matmul(&weight.t()?)?.to_dtype(x.dtype())
    }

    /// The reference network: `inputs` features to `outputs` logits.
    pub(crate) fn model(
        inputs: usize,
        outputs: usize,
        variant: Variant,
        draw: &mut Draw,
    ) -> Result<PlainModel, tolaria::Error> {
        let mut variables = Variables::new();
        let linear = Self::new("linear", [inputs, outputs], draw, &mut variables)?.in_variant(variant);
        Ok(PlainModel::new(variables, move |x: &Tensor| linear.forward(x))?.with_host_numbers(HostNumbers::Fixed))
    }
}

fn bound(inputs: usize) -> f32 {
    1.0 / (inputs as f32).sqrt()
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use tolaria::host_read::{HostReads, read_vec_f64};

    use super::*;

    fn values(tensor: &Tensor) -> Vec<f64> {
        let tensor = tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap();
        read_vec_f64(&tensor, "test", &mut HostReads::default()).unwrap()
    }

    fn largest_difference(a: &Tensor, b: &Tensor) -> f64 {
        values(a).iter().zip(values(b)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    }

    #[test]
    fn both_forms_compute_the_same_with_every_activation() {
        let mut draw = Draw::new(3, &Device::Cpu);
        let primitive = Linear::new("l", [13, 5], &mut draw, &mut Variables::new()).unwrap();
        let layers = primitive.clone().in_variant(Variant::of(Form::Layers));
        let x = draw.uniform((7, 13), 2.0).unwrap();
        for activation in [Activation::None, Activation::Relu, Activation::Gelu, Activation::GeluErf] {
            let [a, b] = [&primitive, &layers].map(|linear| linear.activated(&x, activation).unwrap());
            let difference = largest_difference(&a, &b);
            assert!(difference < 1e-6, "{activation:?}: {difference}");
        }
    }

    #[test]
    fn joined_maps_give_their_results_side_by_side() {
        let (mut draw, mut variables) = (Draw::new(4, &Device::Cpu), Variables::new());
        let parts = ["a", "b", "c"].map(|name| Linear::new(name, [6, 4], &mut draw, &mut Variables::new()).unwrap());
        let joined = Linear::joined("abc", &parts, &mut variables).unwrap();
        let names: Vec<&str> = variables.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["abc.weight", "abc.bias"]);
        let x = draw.uniform((3, 6), 1.0).unwrap();
        let apart: Vec<Tensor> = parts.iter().map(|part| part.forward(&x).unwrap()).collect();
        let difference = largest_difference(&joined.forward(&x).unwrap(), &Tensor::cat(&apart, 1).unwrap());
        assert!(difference < 1e-6, "{difference}");
        let bare = Linear::without_bias("d", [6, 4], &mut draw, &mut variables).unwrap();
        let error = Linear::joined("d", &[bare], &mut variables).unwrap_err().to_string();
        assert!(error.contains("expected parts with a bias"), "{error}");
    }
}

//! Models of candle-transformers as they are, made small, with weights and inputs that follow from their names.
//!
//! ```text
//! text, vision, audio   a table each: name ─► makes the model
//! weights               values of the parameters            check   gradients against dependence and differences
//! ```

#![forbid(unsafe_code)]
#![recursion_limit = "256"]

pub mod audio;
pub mod check;
pub mod text;
pub mod vision;
pub mod weights;

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

/// Where the parameters of a model come from.
pub type Weights = VarBuilder<'static>;

/// A model that is made, with inputs of its own. Every call is as the first one: nothing is kept from call to call.
pub struct Built {
    /// (B, …).
    pub inputs: Tensor,
    forward: Forward,
    /// Makes the model and calls it, where it computes with its weights as it is made.
    made: Option<Forward>,
}

type Forward = Box<dyn FnMut(&Tensor) -> Result<Tensor> + Send>;

impl Built {
    #[expect(clippy::unnecessary_wraps, reason = "the end of what can fail")]
    fn new(inputs: Tensor, forward: impl FnMut(&Tensor) -> Result<Tensor> + Send + 'static) -> Result<Self> {
        Ok(Self { inputs, forward: Box::new(forward), made: None })
    }

    /// A model that computes with its weights as it is made, by weight norm, or with a batch norm that becomes part of a
    /// convolution: one that is trained has to be made in each call.
    fn made<F: FnMut(&Tensor) -> Result<Tensor> + Send + 'static>(
        inputs: Tensor,
        make: impl Fn() -> Result<F> + Send + 'static,
    ) -> Result<Self> {
        let forward = Box::new(make()?);
        Ok(Self { inputs, forward, made: Some(Box::new(move |x: &Tensor| make()?(x))) })
    }

    /// The outputs of `inputs`, which are like its own, with weights that do not change.
    ///
    /// # Errors
    /// Those of the model.
    pub fn forward(&mut self, inputs: &Tensor) -> Result<Tensor> {
        (self.forward)(inputs)
    }

    /// The outputs of `inputs`, which are like its own, with the weights as they are now, and a gradient.
    ///
    /// # Errors
    /// Those of the model.
    pub fn train(&mut self, inputs: &Tensor) -> Result<Tensor> {
        self.made.as_mut().unwrap_or(&mut self.forward)(inputs)
    }
}

/// A model: its name, and what makes it.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    /// As candle-transformers calls it.
    pub name: &'static str,
    /// From parameters to a model with inputs.
    pub build: fn(Weights) -> Result<Built>,
    /// Why parameters with this in their name have no gradient although the outputs depend on them.
    pub without: Option<(&'static str, &'static str)>,
}

impl Model {
    const fn new(name: &'static str, build: fn(Weights) -> Result<Built>) -> Self {
        Self { name, build, without: None }
    }

    const fn without(mut self, part: &'static str, why: &'static str) -> Self {
        self.without = Some((part, why));
        self
    }
}

/// All models.
pub fn models() -> impl Iterator<Item = Model> {
    [text::MODELS, vision::MODELS, audio::MODELS, vision::SLOW].into_iter().flatten().copied()
}

/// A configuration of `fields` over `defaults`.
fn config<T: serde::de::DeserializeOwned>(defaults: serde_json::Value, fields: serde_json::Value) -> Result<T> {
    let (mut all, fields) = (defaults, fields);
    if let (Some(all), serde_json::Value::Object(fields)) = (all.as_object_mut(), fields) {
        all.extend(fields);
    }
    serde_json::from_value(all).map_err(candle_core::Error::wrap)
}

/// Tokens below 24, (batch, length).
fn tokens(vb: &VarBuilder, batch: usize, length: usize) -> Result<Tensor> {
    let ids: Vec<u32> = (3..).map(|index: u32| (index * index + 5 * index) % 23 + 1).take(batch * length).collect();
    Tensor::from_vec(ids, (batch, length), vb.device())
}

/// Numbers in [-1, 1).
fn signal(vb: &VarBuilder, shape: &[usize]) -> Result<Tensor> {
    let mut draw = weights::numbers("signal");
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| draw()).collect();
    Tensor::from_vec(values, shape, vb.device())?.to_dtype(vb.dtype())
}

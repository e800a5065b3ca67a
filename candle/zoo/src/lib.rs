//! Models of candle-transformers as they are, made small, with weights and inputs that follow from their names.
//!
//! ```text
//! text, vision, audio   a table each: name ─► builds the model and runs it once
//! weights               values of the parameters            check   gradients against dependence and differences
//! ```

#![forbid(unsafe_code)]
#![recursion_limit = "256"]

pub mod audio;
pub mod check;
pub mod text;
pub mod vision;
pub mod weights;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;

/// A model: its name, and what builds it and runs it once. It is built for every run, so nothing is left of the one before.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    /// As candle-transformers calls it.
    pub name: &'static str,
    /// From parameters to outputs, with inputs of its own.
    pub run: fn(VarBuilder) -> Result<Tensor>,
    /// Why parameters with this in their name have no gradient although the outputs depend on them.
    pub without: Option<(&'static str, &'static str)>,
}

impl Model {
    const fn new(name: &'static str, run: fn(VarBuilder) -> Result<Tensor>) -> Self {
        Self { name, run, without: None }
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
fn tokens(batch: usize, length: usize) -> Result<Tensor> {
    let ids: Vec<u32> = (3..).map(|index: u32| (index * index + 5 * index) % 23 + 1).take(batch * length).collect();
    Tensor::from_vec(ids, (batch, length), &Device::Cpu)
}

/// Numbers in [-1, 1).
fn signal(shape: &[usize], dtype: DType) -> Result<Tensor> {
    let mut draw = weights::numbers("signal");
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| draw()).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)
}

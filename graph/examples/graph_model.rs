//! A model whose forward pass is captured on its own, while its parameters change between calls.
//!
//! `cargo run -p esper-graph --example graph_model`, or with `--features cuda -- cuda:0`.
#![expect(clippy::print_stdout, reason = "an example shows what happened")]

mod support;

use std::error::Error;

use candle_core::{DType, Module, Tensor, Var};
use esper_graph::{GraphFunctionConfig, GraphManager, GraphModel};
use leyline::region::Eager;

/// Two layers without biases.
struct Network {
    hidden: Var,
    output: Var,
}

impl Module for Network {
    fn forward(&self, inputs: &Tensor) -> candle_core::Result<Tensor> {
        inputs.matmul(&self.hidden)?.relu()?.matmul(&self.output)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = support::device()?;
    let hidden = Var::from_tensor(&(Tensor::arange(0.0_f32, 12.0, &device)?.reshape((3, 4))? - 5.0)?)?;
    let output = Var::ones((4, 2), DType::F32, &device)?;
    let mut model =
        GraphModel::new(Network { hidden, output }, GraphFunctionConfig::default(), &GraphManager::global());

    let mut eager = Eager::acquire()?;
    let inputs = Tensor::ones((1, 3), DType::F32, &device)?;
    for call in 0..6_u8 {
        // In place: a graph sees the new elements.
        model.model().output.set(&Tensor::full(f32::from(call), (4, 2), &device)?)?;
        let outputs = model.forward(&mut eager, &inputs)?;
        let total = model.stats().total;
        let (captures, replays, fallbacks) = (total.captures, total.replays, total.fallbacks);
        println!("call {call}: {captures} captures, {replays} replays, {fallbacks} fallbacks\n  outputs {outputs}");
    }
    // By another tensor: the graphs, which read the old one, are forgotten.
    model.model_mut().output = Var::zeros((4, 1), DType::F32, &device)?;
    println!("with another layer: {}", model.forward(&mut eager, &inputs)?);
    if let Some(refusal) = model.last_refusal(&inputs) {
        println!("not replayed: {refusal}");
    }
    Ok(())
}

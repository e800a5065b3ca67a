//! A function that is captured on its own, for inputs of two shapes.
//!
//! `cargo run -p esper-graph --example graph_function`, or with `--features cuda -- cuda:0`.
#![expect(clippy::print_stdout, reason = "an example shows what happened")]

mod support;

use std::error::Error;

use candle_core::{D, Tensor};
use esper_graph::{GraphFunction, GraphFunctionConfig, GraphManager};
use leyline::region::Eager;

fn main() -> Result<(), Box<dyn Error>> {
    let device = support::device()?;
    // Softmax and its entropy: six operations, which a replay launches at once.
    let softmax = |inputs: &[Tensor]| {
        let logits = &inputs[0];
        let shifted = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?)?.exp()?;
        let probabilities = shifted.broadcast_div(&shifted.sum_keepdim(D::Minus1)?)?;
        let entropy = (&probabilities * probabilities.log()?)?.sum(D::Minus1)?.neg()?;
        Ok(vec![probabilities, entropy])
    };
    let mut softmax = GraphFunction::new(softmax, GraphFunctionConfig::default(), &GraphManager::global());

    let mut eager = Eager::acquire()?;
    for call in 0..8_u32 {
        let rows = 2 + call % 2;
        let logits = Tensor::arange(0.0, rows as f32 * 4.0, &device)?.reshape((rows as usize, 4))?;
        let logits = (logits * (0.5 * f64::from(call)))?;
        let results = softmax.call(&mut eager, &[&logits])?;
        let total = softmax.stats().total;
        let (captures, replays, fallbacks) = (total.captures, total.replays, total.fallbacks);
        println!("call {call} with {rows} rows: {captures} captures, {replays} replays, {fallbacks} fallbacks");
        println!("  entropy {}", results[1]);
        if let Some(refusal) = softmax.last_refusal(&[&logits]) {
            println!("  not replayed: {refusal}");
        }
    }
    Ok(())
}

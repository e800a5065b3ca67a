//! A training step of one's own, forward pass, loss, backward pass and update: captured as one graph, compiled and replayed.
#![forbid(unsafe_code)]

use candle_core::{DType, Device, Result, Tensor, Var};
use esper_graph::{GraphFunction, GraphFunctionConfig, GraphManager};
use leyline::region::Eager;

/// The losses of so many steps, the number of steps that were replays, and why a step is not replayed.
pub fn train(device: &Device, num_steps: usize) -> Result<(Vec<f32>, u64, Option<String>)> {
    let weight = Var::zeros((1, 1), DType::F32, device)?;
    let step = move |batch: &[Tensor]| {
        let loss = batch[0].matmul(&weight)?.sub(&batch[1])?.sqr()?.mean_all()?;
        let gradients = loss.backward()?;
        let gradient = gradients.get(&weight).expect("the loss depends on the weight");
        weight.set(&(weight.as_tensor() - (gradient * 0.1)?)?)?;
        Ok(vec![loss.detach()])
    };
    let mut step = GraphFunction::new(step, GraphFunctionConfig::default(), &GraphManager::global());
    let (x, y) = (Tensor::new(&[[1f32], [2.0]], device)?, Tensor::new(&[[2f32], [4.0]], device)?);
    let mut eager = Eager::acquire().map_err(candle_core::Error::wrap)?;
    let losses = (0..num_steps).map(|_| step.call(&mut eager, &[&x, &y])?[0].to_scalar::<f32>());
    let losses = losses.collect::<Result<Vec<_>>>()?;
    Ok((losses, step.stats().total.replays, step.last_refusal(&[&x, &y]).map(ToString::to_string)))
}

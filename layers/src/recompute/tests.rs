//! The bits of a pass that keeps everything, nothing kept but inputs, and what has no gradient.

use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::Device;

use super::*;
use crate::operations::counted;
use crate::testing::{numbers, read, tensor};
use crate::{Activation, LinearOptions, layer_norm, linear};

const CPU: Device = Device::Cpu;

fn var(seed: u64, shape: &[usize]) -> Var {
    let values = tensor(&numbers(seed, shape.iter().product()), shape);
    Var::from_tensor(&values.to_dtype(DType::F32).unwrap()).unwrap()
}

/// h + gelu(norm(h)·W + b)·W₂, five variables: an odd number.
fn block(weights: &[Var], h: &Tensor) -> Result<Tensor> {
    let x = layer_norm(h, &weights[0], &weights[1], 1e-5)?;
    let gelu = LinearOptions { activation: Activation::Gelu, ..LinearOptions::default() };
    let hidden = linear(&x, &weights[2], Some(&weights[3]), &gelu)?;
    h + linear(&hidden, &weights[4], None, &LinearOptions::default())?
}

fn weights(seed: u64) -> Vec<Var> {
    let shapes: [&[usize]; 5] = [&[4], &[4], &[4, 8], &[8], &[8, 4]];
    shapes.iter().zip(seed..).map(|(shape, seed)| var(seed, shape)).collect()
}

fn bits(tensor: &Tensor) -> Vec<u64> {
    read(tensor).into_iter().map(f64::to_bits).collect()
}

/// Result and gradients of three blocks, the input's first.
fn three_blocks(recomputes: bool) -> Vec<Vec<u64>> {
    let (input, blocks) = (var(1, &[3, 4]), [weights(10), weights(20), weights(30)]);
    let mut h = input.as_tensor().clone();
    for weights in &blocks {
        let own = weights.clone();
        h = if recomputes {
            recompute(&h, weights, move |h| block(&own, h)).unwrap()
        } else {
            block(weights, &h).unwrap()
        };
    }
    let gradients = (&h * var(2, &[3, 4]).as_detached_tensor()).unwrap().sum_all().unwrap().backward().unwrap();
    let of = |variable: &Var| bits(gradients.get(variable).expect("a gradient"));
    [bits(&h), of(&input)].into_iter().chain(blocks.iter().flatten().map(of)).collect()
}

#[test]
fn results_and_gradients_have_the_bits_of_a_pass_that_keeps_everything() {
    let (found, expected) = (three_blocks(true), three_blocks(false));
    assert_eq!(found.len(), 2 + 15);
    assert!(found == expected);
}

#[test]
fn operations_are_counted_once() {
    assert_eq!(counted(|| three_blocks(true)).1, counted(|| three_blocks(false)).1);
}

#[test]
fn nothing_but_the_input_is_kept_and_the_part_runs_again() {
    let (input, weight) = (var(1, &[2, 2]), var(2, &[2, 2]));
    let (runs, alive) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (runs_within, alive_within, own) = (runs.clone(), alive.clone(), weight.clone());
    let y = recompute(&input, [&weight], move |h| {
        runs_within.fetch_add(1, Ordering::Relaxed);
        h.apply_op1(Counted::new(&alive_within))?.matmul(&own)
    });
    let y = y.unwrap();
    assert_eq!((runs.load(Ordering::Relaxed), alive.load(Ordering::Relaxed)), (1, 0), "forward");
    for num_runs in [2, 3] {
        y.backward().unwrap();
        assert_eq!((runs.load(Ordering::Relaxed), alive.load(Ordering::Relaxed)), (num_runs, 0), "backward");
    }
}

/// A copy; one more is alive until what was recorded of it is let go of.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::Relaxed);
        Self(alive.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl CustomOp1 for Counted {
    fn name(&self) -> &'static str {
        "counted"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(gradient.clone()))
    }
}

#[test]
fn an_input_without_gradient_and_a_variable_that_is_not_read_have_none() {
    let (read, unread) = (var(1, &[2, 2]), var(2, &[2]));
    let (h, own) = (var(3, &[2, 2]).as_detached_tensor(), read.clone());
    let y = recompute(&h, [&unread, &read], move |h| h.matmul(&own)).unwrap();
    let gradients = y.backward().unwrap();
    assert!(gradients.get(&h).is_none() && gradients.get(&unread).is_none());
    assert!(
        bits(gradients.get(&read).unwrap())
            == bits(&h.t().unwrap().matmul(&Tensor::ones((2, 2), DType::F32, &CPU).unwrap()).unwrap())
    );
}

#[test]
fn what_fails_within_is_told() {
    let h = var(1, &[2, 2]);
    let error = recompute(&h, [&h], |_| bail!("planted")).unwrap_err();
    assert!(error.to_string().contains("planted"), "{error}");
}

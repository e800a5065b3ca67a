//! The layers of hosts and seeds as plain functions of their weights.
//!
//! Signals are convolved as one matrix product over *rows*, one row per sample and position, and not with candle's
//! `conv1d`: in candle 0.11.1 its backward pass gives wrong gradients for the weights (`tests/candle_conv1d.rs`
//! measures it). Rows keep the channels together in memory; a signal made from rows is a transposed view, and
//! turning it back into rows copies nothing.

use candle_core::{Result, Tensor};
use esper_layers::{Activation, LinearOptions};

/// activation(x·W + b): `x` (B, in), `weight` (in, out), `bias` (out) → (B, out).
///
/// Weights are stored as the product needs them, so no forward pass has to transpose them.
pub(crate) fn linear(x: &Tensor, weight: &Tensor, bias: &Tensor, activation: Activation) -> Result<Tensor> {
    esper_layers::linear(x, weight, Some(bias), &LinearOptions { activation, ..LinearOptions::default() })
}

/// (B, C, L) → rows (B·L, C).
pub(crate) fn to_rows(h: &Tensor) -> Result<Tensor> {
    let (num_samples, channels, length) = h.dims3()?;
    h.transpose(1, 2)?.reshape((num_samples * length, channels))
}

/// Rows (B·L, C) → (B, C, L).
pub(crate) fn from_rows(rows: &Tensor, num_samples: usize) -> Result<Tensor> {
    let (num_rows, channels) = rows.dims2()?;
    rows.reshape((num_samples, num_rows / num_samples, channels))?.transpose(1, 2)
}

/// Convolution over positions: `h` (B, in, L), `weight` (kernel·in, out) with the taps outside, `bias` (out) → rows
/// (B·L', out), L' = (L + 2·padding − kernel) / stride + 1.
pub(crate) fn conv1d(
    h: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    (padding, stride): (usize, usize),
    activation: Activation,
) -> Result<Tensor> {
    let kernel = weight.dim(0)? / h.dim(1)?;
    let rows =
        if kernel == 1 && padding == 0 && stride == 1 { to_rows(h)? } else { windows(h, kernel, padding, stride)? };
    linear(&rows, weight, bias, activation)
}

/// What each output of a convolution sees, as rows (B·L', kernel·C).
fn windows(h: &Tensor, kernel: usize, padding: usize, stride: usize) -> Result<Tensor> {
    let (num_samples, channels, length) = h.dims3()?;
    let num_windows = (length + 2 * padding).saturating_sub(kernel) / stride + 1;
    // In blocks of `stride` positions, window i starts where block i does: every tap is a plain slice of blocks.
    let last_block = (kernel - 1) / stride;
    let positions = (num_windows + last_block) * stride;
    let right = positions.saturating_sub(padding + length);
    let padded = h.transpose(1, 2)?.pad_with_zeros(1, padding, right)?.narrow(1, 0, positions)?;
    let blocks = padded.reshape((num_samples, num_windows + last_block, stride * channels))?;
    let taps: Vec<Tensor> = (0..=last_block)
        .map(|block| {
            let num_taps = stride.min(kernel - block * stride);
            blocks.narrow(1, block, num_windows)?.narrow(2, 0, num_taps * channels)
        })
        .collect::<Result<_>>()?;
    Tensor::cat(&taps, 2)?.reshape((num_samples * num_windows, kernel * channels))
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::host_read::read_f32;

    fn random(shape: &[usize], rng: &mut ChaCha8Rng) -> Var {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
        Var::from_vec(values, shape, &Device::Cpu).unwrap()
    }

    /// Against the definition, and its gradients against differences: the sum of weighted outputs is linear in the
    /// inputs and in the weights, so differences are exact up to rounding.
    #[track_caller]
    fn check(length: usize, channels: usize, outputs: usize, kernel: usize, padding: usize, stride: usize) {
        let mut rng = ChaCha8Rng::seed_from_u64(9);
        let (h, weight) = (random(&[2, channels, length], &mut rng), random(&[kernel * channels, outputs], &mut rng));
        let bias = random(&[outputs], &mut rng);
        let result = from_rows(&conv1d(&h, &weight, &bias, (padding, stride), Activation::None).unwrap(), 2).unwrap();
        let num = (length + 2 * padding - kernel) / stride + 1;
        assert_eq!(result.dims(), [2, outputs, num]);

        let (x, w, b) = (read_f32(&h).unwrap(), read_f32(&weight).unwrap(), read_f32(&bias).unwrap());
        let mut expected = Vec::new();
        for (sample, output, position) in indices(2, outputs, num) {
            let mut sum = b[output];
            for (tap, channel, _) in indices(kernel, channels, 1) {
                if let Some(at) = (position * stride + tap).checked_sub(padding).filter(|&at| at < length) {
                    sum += x[(sample * channels + channel) * length + at]
                        * w[(tap * channels + channel) * outputs + output];
                }
            }
            expected.push(sum);
        }
        for (found, expected) in read_f32(&result).unwrap().iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-5, "{found} against {expected}");
        }

        let mix = random(result.dims(), &mut rng);
        let objective = || {
            let signal =
                from_rows(&conv1d(&h, &weight, &bias, (padding, stride), Activation::None).unwrap(), 2).unwrap();
            (signal * mix.as_detached_tensor()).unwrap().sum_all().unwrap()
        };
        let gradients = objective().backward().unwrap();
        for var in [&h, &weight, &bias] {
            let values = read_f32(var).unwrap();
            let found = read_f32(gradients.get(var).unwrap()).unwrap();
            for index in 0..values.len() {
                let at = |offset: f32| {
                    let mut moved = values.clone();
                    moved[index] += offset;
                    var.set(&Tensor::from_vec(moved, var.shape(), &Device::Cpu).unwrap()).unwrap();
                    read_f32(&objective()).unwrap()[0]
                };
                let expected = at(0.5) - at(-0.5);
                at(0.0);
                assert!((found[index] - expected).abs() < 1e-4, "{} against {expected}", found[index]);
            }
        }
    }

    fn indices(a: usize, b: usize, c: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |k| (i, j, k))))
    }

    #[test]
    fn a_convolution_and_its_gradients_follow_the_definition() {
        for (kernel, padding, stride) in [
            (1, 0, 1),
            (1, 0, 2),
            (2, 1, 1),
            (3, 1, 1),
            (3, 1, 2),
            (3, 0, 3),
            (3, 1, 5),
            (4, 2, 3),
            (5, 2, 2),
            (7, 3, 1),
        ] {
            check(7, 2, 3, kernel, padding, stride);
            check(8, 1, 2, kernel, padding, stride);
        }
        check(1, 2, 2, 3, 1, 1);
    }
}

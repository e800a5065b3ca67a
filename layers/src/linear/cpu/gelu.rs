//! The Gaussian error linear unit in its form with tanh, as one pass each way.
//!
//! Composed of candle's operations it is two calls of the C library for each number forward, and thirteen passes back, with the constants of
//! the derivative to six digits: two fifths of a step of a small transformer. x·(1 + tanh u)/2 is x·σ(2u), which needs one exponential.

use std::sync::{Mutex, PoisonError};

use candle_core::utils::barrier_pool;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use super::{elements, with_elements};

/// 2·√(2/π), and 0.044715 times that: 2u = x·(`LINEAR` + `CUBIC`·x²).
const LINEAR: f32 = 1.595_769_2;
const CUBIC: f32 = 0.071_354_82;
/// Beyond it σ(2u) is 0 or 1, and x² still a number.
const LARGE: f32 = 20.0;
/// Numbers that a thread takes at once.
const CHUNK: usize = 1 << 14;

/// Of a contiguous tensor of `f32`.
pub(super) fn gelu(x: &Tensor) -> Result<Tensor> {
    x.apply_op1(Gelu)
}

struct Gelu;

impl CustomOp1 for Gelu {
    fn name(&self) -> &'static str {
        "gelu"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = elements((storage, layout))?;
        let mut result = vec![0.0_f32; x.len()];
        for_each_chunk(&mut result, x, |y, &x| *y = x * gate(x)[0]);
        Ok((CpuStorage::F32(result), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, upstream: &Tensor) -> Result<Option<Tensor>> {
        let mut gradient = with_elements(&upstream.contiguous()?, |upstream| Ok(upstream.to_vec()))?;
        with_elements(x, |x| {
            for_each_chunk(&mut gradient, x, |gradient, &x| *gradient *= slope(x));
            Ok(())
        })?;
        Tensor::from_vec(gradient, x.shape(), x.device()).map(Some)
    }
}

/// σ(2u), and 1 less that.
fn gate(x: f32) -> [f32; 2] {
    let near = x.clamp(-LARGE, LARGE);
    let power = exp(-near * (LINEAR + CUBIC * near * near));
    // The least power would not make 0 of a large number.
    let gate = if x < -LARGE { 0.0 } else { 1.0 / (1.0 + power) };
    [gate, power * gate]
}

fn slope(x: f32) -> f32 {
    let ([gate, rest], x) = (gate(x), x.clamp(-LARGE, LARGE));
    gate + x * gate * rest * (LINEAR + 3.0 * CUBIC * x * x)
}

/// eˣ to 2⁻²² of it, between 2⁻¹²⁵ and 2¹²⁵ of any other, in operations that a compiler forms for several numbers at once, with the same
/// bits on every processor: 2ⁿ·eʳ with |r| ≤ ln 2 / 2, and the series of eʳ.
fn exp(x: f32) -> f32 {
    /// 1.5·2²³: what is added to it is rounded to a whole number, which its last bits are.
    const WHOLE: f32 = 12_582_912.0;
    const LIMIT: f32 = 86.0;
    /// ln 2 in two parts, of which multiples of the first are exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let x = x.clamp(-LIMIT, LIMIT);
    let shifted = x * std::f32::consts::LOG2_E + WHOLE;
    let n = shifted - WHOLE;
    let r = x - n * LN_2[0] - n * LN_2[1];
    let series = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0]
        .into_iter()
        .fold(0.0, |sum, next| sum * r + next);
    series * f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0_f32.to_bits()))
}

/// Each number with its neighbor in `x`, on all threads of the tensor library where there are many.
fn for_each_chunk(numbers: &mut [f32], x: &[f32], each: impl Fn(&mut f32, &f32) + Sync) {
    let run = |(numbers, x): (&mut [f32], &[f32])| numbers.iter_mut().zip(x).for_each(|(number, x)| each(number, x));
    if x.len() < 2 * CHUNK {
        return run((numbers, x));
    }
    let chunks = Mutex::new(numbers.chunks_mut(CHUNK).zip(x.chunks(CHUNK)));
    let next = || chunks.lock().unwrap_or_else(PoisonError::into_inner).next();
    barrier_pool().execute_chunked(barrier_pool().n_workers() + 1, |range| {
        range.for_each(|_| {
            while let Some(chunk) = next() {
                run(chunk);
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::testing::read;

    /// Value and derivative in `f64`.
    fn exact(x: f64) -> [f64; 2] {
        let (scale, cube) = ((2.0 / std::f64::consts::PI).sqrt(), 0.044_715);
        let tanh = (scale * (x + cube * x.powi(3))).tanh();
        let slope = scale * (1.0 + 3.0 * cube * x * x);
        [0.5 * x * (1.0 + tanh), 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope]
    }

    #[test]
    fn values_and_derivatives_are_those_of_f64() {
        // More than a chunk, and every number that a network may have.
        let line = (-60_000..=60_000).map(|i: i32| i as f32 / 4_000.0);
        let x: Vec<f32> = line.chain([1e-30, -1e-30, 3e38, -3e38, 0.0]).collect();
        let count = x.len();
        let x = Var::from_vec(x, count, &Device::Cpu).unwrap();
        let y = gelu(&x).unwrap();
        let gradients = y.sum_all().unwrap().backward().unwrap();
        let slopes = read(gradients.get(&x).unwrap());
        for ((x, y), slope) in read(&x).into_iter().zip(read(&y)).zip(slopes) {
            let [value, derivative] = exact(x);
            assert!((y - value).abs() <= 6e-7 * value.abs().max(0.1), "{x}: {y}, expected {value}");
            assert!((slope - derivative).abs() <= 5e-7, "{x}: {slope}, expected {derivative}");
        }
    }

    #[test]
    fn what_is_no_number_or_infinite_shows() {
        let x = Var::new(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY], &Device::Cpu).unwrap();
        let y = gelu(&x).unwrap();
        assert!(read(&y).iter().all(|y| !y.is_finite()), "{y}");
        let slopes = read(y.sum_all().unwrap().backward().unwrap().get(&x).unwrap());
        assert!(slopes[0].is_nan());
        assert!((slopes[1] - 1.0).abs() < 1e-30 && slopes[2].abs() < 1e-30, "{slopes:?}");
    }
}

//! The Gaussian error linear unit in its form with tanh, as one pass each way.
//!
//! Composed of candle's operations it is a hyperbolic tangent of the C library for each number forward, and fifteen passes back, with
//! the constants of the derivative to six digits. x·(1 + tanh u)/2 is x·σ(2u), which needs one exponential.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use crate::cpu::{elements, exp, for_each_chunk, with_elements};

/// 2·√(2/π), and 0.044715 times that: 2u = x·(`LINEAR` + `CUBIC`·x²).
const LINEAR: f32 = 1.595_769_2;
const CUBIC: f32 = 0.071_354_82;
/// Beyond it σ(2u) is 0 or 1, and x² still a number.
const LARGE: f32 = 20.0;
/// From so many numbers on all threads are asked, as candle's own passes do.
const WORTH_THREADS: usize = 1 << 16;
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
        spread(&mut result, &|at, chunk| {
            chunk.iter_mut().zip(&x[at..]).for_each(|(y, &x)| *y = x * gate(x)[0]);
        });
        Ok((CpuStorage::F32(result), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, upstream: &Tensor) -> Result<Option<Tensor>> {
        let mut gradient = vec![0.0_f32; x.elem_count()];
        with_elements(&upstream.contiguous()?, |upstream| {
            with_elements(x, |x| {
                spread(&mut gradient, &|at, chunk| {
                    let of_chunk = chunk.iter_mut().zip(&x[at..]).zip(&upstream[at..]);
                    of_chunk.for_each(|((gradient, &x), &upstream)| *gradient = upstream * slope(x));
                });
                Ok(())
            })
        })?;
        Tensor::from_vec(gradient, x.shape(), x.device()).map(Some)
    }
}

/// Runs `run` on chunks of `numbers` and the place of their first.
fn spread(numbers: &mut [f32], run: &(impl Fn(usize, &mut [f32]) + Sync)) {
    let is_worth_threads = numbers.len() >= WORTH_THREADS;
    for_each_chunk(numbers, CHUNK, is_worth_threads, &|index, chunk| run(index * CHUNK, chunk));
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

    /// Every number that a network may have, and some that it should not.
    fn numbers() -> Vec<f32> {
        let line = (-60_000..=60_000).map(|i: i32| i as f32 / 4_000.0);
        line.chain([1e-30, -1e-30, 3e38, -3e38, 0.0, -0.0, -9.9, 19.9, -19.9, 20.1, -20.1]).collect()
    }

    #[test]
    fn values_and_derivatives_are_those_of_f64() {
        let (x, count) = (numbers(), numbers().len());
        assert!(count > WORTH_THREADS);
        let x = Var::from_vec(x, count, &Device::Cpu).unwrap();
        let mix: Vec<f32> = (0..count).map(|i| 1.0 + (i % 7) as f32).collect();
        let y = gelu(&x).unwrap();
        let sum = (&y * Tensor::new(mix.as_slice(), &Device::Cpu).unwrap()).unwrap().sum_all().unwrap();
        let slopes = read(sum.backward().unwrap().get(&x).unwrap());
        for (((x, y), slope), mix) in read(&x).into_iter().zip(read(&y)).zip(slopes).zip(mix) {
            let ([value, derivative], mix) = (exact(x), f64::from(mix));
            assert!((y - value).abs() <= 6e-7 * value.abs().max(0.1), "{x}: {y}, expected {value}");
            assert!((slope - mix * derivative).abs() <= 5e-7 * mix, "{x}: {slope}, expected {mix} times {derivative}");
            // Near 0 nothing is lost, the sign included.
            let is_small = x.abs() < 1e-3;
            assert!(!is_small || (y - value).abs() <= 2e-7 * value.abs(), "{x}: {y}, expected {value}");
            assert!(!is_small || y.is_sign_negative() == x.is_sign_negative(), "{x}: {y}");
        }
    }

    #[test]
    fn what_is_no_number_or_infinite_shows() {
        let x = Var::new(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY], &Device::Cpu).unwrap();
        let y = gelu(&x).unwrap();
        let values = read(&y);
        assert!(values[0].is_nan() && values[2].is_nan(), "{values:?}");
        assert_eq!(values[1..2], [f64::INFINITY]);
        let slopes = read(y.sum_all().unwrap().backward().unwrap().get(&x).unwrap());
        assert!(slopes[0].is_nan(), "{slopes:?}");
        assert_eq!(slopes[1..], [1.0, 0.0]);
    }
}

//! Convolutions by their definition, as plain loops, and gradients by differences.
#![expect(clippy::disallowed_methods, reason = "tests look at values")]

use candle_core::{DType, Device, Result, Tensor, Var};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Window;

const NUM_SAMPLES: usize = 2;

/// A convolution of images (B, C, H, W); a signal is an image of one line.
#[derive(Debug)]
pub(super) struct Case {
    /// Length and window along H and W.
    sides: [(usize, Window); 2],
    channels: usize,
    outputs: usize,
    /// Output i sees channel i alone.
    is_depthwise: bool,
}

impl Case {
    /// None when the kernel does not fit.
    pub(super) fn dense(sides: [(usize, Window); 2], channels: usize, outputs: usize) -> Option<Self> {
        let fits = sides.iter().all(|(length, window)| length + 2 * window.padding >= window.kernel);
        fits.then_some(Self { sides, channels, outputs, is_depthwise: false })
    }

    pub(super) fn depthwise(sides: [(usize, Window); 2], channels: usize) -> Option<Self> {
        Self::dense(sides, channels, channels).map(|case| Self { is_depthwise: true, ..case })
    }

    fn input_shape(&self) -> [usize; 4] {
        [NUM_SAMPLES, self.channels, self.sides[0].0, self.sides[1].0]
    }

    fn output_shape(&self) -> [usize; 4] {
        let [height, width] = self.sides.map(|(length, window)| window.num_outputs(length));
        [NUM_SAMPLES, self.outputs, height, width]
    }

    fn weight_shape(&self) -> [usize; 2] {
        let taps = self.sides[0].1.kernel * self.sides[1].1.kernel;
        if self.is_depthwise { [taps, self.channels] } else { [taps * self.channels, self.outputs] }
    }

    fn operands(&self, dtype: DType) -> [Var; 3] {
        let mut rng = ChaCha8Rng::seed_from_u64(9);
        [self.input_shape().to_vec(), self.weight_shape().to_vec(), vec![self.outputs]]
            .map(|shape| random(&shape, dtype, &mut rng))
    }

    /// The outputs in the order of memory.
    fn define(&self, x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
        let [(height, down), (width, across)] = self.sides;
        let [num_samples, outputs, out_height, out_width] = self.output_shape();
        let mut expected = Vec::new();
        for (sample, output) in pairs(num_samples, outputs) {
            for (row, column) in pairs(out_height, out_width) {
                let mut sum = bias[output];
                for (i, j) in pairs(down.kernel, across.kernel) {
                    let y = (row * down.stride + i).checked_sub(down.padding).filter(|&y| y < height);
                    let z = (column * across.stride + j).checked_sub(across.padding).filter(|&z| z < width);
                    let (Some(y), Some(z)) = (y, z) else { continue };
                    let tap = i * across.kernel + j;
                    for channel in 0..self.channels {
                        let factor = match self.is_depthwise {
                            true if channel == output => weight[tap * self.channels + channel],
                            true => 0.0,
                            false => weight[(tap * self.channels + channel) * outputs + output],
                        };
                        sum += factor * x[((sample * self.channels + channel) * height + y) * width + z];
                    }
                }
                expected.push(sum);
            }
        }
        expected
    }
}

fn pairs(a: usize, b: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..a).flat_map(move |i| (0..b).map(move |j| (i, j)))
}

/// Windows along both sides: many alike, some of different kernels, paddings and strides.
pub(super) fn windows() -> Vec<[Window; 2]> {
    let window = |kernel, padding, stride| Window { kernel, padding, stride };
    let alike =
        [(1, 0, 1), (1, 0, 2), (1, 1, 1), (2, 0, 1), (2, 1, 3), (3, 1, 1), (3, 1, 2), (3, 0, 3), (4, 2, 3), (5, 2, 2)];
    let mut all: Vec<[Window; 2]> = alike.iter().map(|&(k, p, s)| [window(k, p, s); 2]).collect();
    all.push([window(3, 1, 1), window(1, 0, 1)]);
    all.push([window(1, 0, 1), window(3, 1, 2)]);
    all.push([window(2, 1, 2), window(3, 0, 1)]);
    all.push([window(3, 2, 4), window(2, 0, 1)]);
    all
}

/// Values that `bf16` holds exactly: multiples of 1/16.
fn random(shape: &[usize], dtype: DType, rng: &mut ChaCha8Rng) -> Var {
    let values: Vec<f64> =
        (0..shape.iter().product()).map(|_| f64::from(rng.random_range(-16..=16_i8)) / 16.0).collect();
    let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
    Var::from_tensor(&tensor.to_dtype(dtype).unwrap()).unwrap()
}

fn read(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Largest accepted difference of sums of some dozens of products of values in [−1, 1].
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 1e-4,
        _ => 0.1,
    }
}

#[track_caller]
fn assert_close(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= tolerance, "{what}: {found} against {expected}");
    }
}

/// The outputs of `op` (input, weight, bias) against the definition.
#[track_caller]
pub(super) fn check_outputs(case: &Case, dtype: DType, op: impl Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>) {
    let [x, weight, bias] = case.operands(dtype);
    let output = op(&x, &weight, &bias).unwrap();
    assert_eq!((output.dims(), output.dtype()), (case.output_shape().as_slice(), dtype), "{case:?}");
    let expected = case.define(&read(&x), &read(&weight), &read(&bias));
    assert_close(&read(&output), &expected, tolerance(dtype), &format!("{case:?} in {dtype:?}"));
}

/// Outputs against the definition, and gradients against differences of the definition: the sum of weighted outputs is
/// linear in each operand, so differences are exact up to rounding.
#[track_caller]
pub(super) fn check(case: &Case, dtype: DType, op: impl Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>) {
    check_outputs(case, dtype, &op);
    let vars = case.operands(dtype);
    let mix = random(&case.output_shape(), dtype, &mut ChaCha8Rng::seed_from_u64(10)).as_detached_tensor();
    let output = op(&vars[0], &vars[1], &vars[2]).unwrap();
    let gradients = (output * &mix).unwrap().sum_all().unwrap().backward().unwrap();
    let (mix, values) = (read(&mix), vars.each_ref().map(|var| read(var)));
    let objective = |values: &[Vec<f64>; 3]| -> f64 {
        case.define(&values[0], &values[1], &values[2]).iter().zip(&mix).map(|(output, mix)| output * mix).sum()
    };
    for (operand, name) in ["input", "weight", "bias"].into_iter().enumerate() {
        let found = read(gradients.get(&vars[operand]).unwrap_or_else(|| panic!("{case:?}: no gradient of {name}")));
        let expected: Vec<f64> = (0..values[operand].len())
            .map(|index| {
                let at = |offset: f64| {
                    let mut moved = values.clone();
                    moved[operand][index] += offset;
                    objective(&moved)
                };
                at(0.5) - at(-0.5)
            })
            .collect();
        assert_close(&found, &expected, tolerance(dtype), &format!("gradient of {name}, {case:?} in {dtype:?}"));
    }
}

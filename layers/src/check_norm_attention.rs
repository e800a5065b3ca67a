//! Checks layer normalization, attention and embedding on a device against the same in `f64` on the CPU.

use candle_core::{DType, Device, Result, Tensor, Var};

use crate::{AttentionOptions, attention, embedding, layer_norm};

/// Largest error of results and of gradients, as a share of the largest value.
const ALLOWED: f64 = 1e-5;
/// Values below this are not what errors are measured by: a gradient may be zero throughout.
const SMALLEST: f64 = 1e-2;

/// Name, largest error relative to the largest value of the result in `f64`, and the error allowed, for each result and
/// each gradient of each case. What is named `again` is how far a second run is from the first: nothing is allowed.
///
/// # Errors
/// When the device fails.
/// # Sync
/// Many copies to the host.
pub fn cases(device: &Device) -> Result<Vec<(String, f64, f64)>> {
    let mut found = Vec::new();
    for (rows, width) in NORMS {
        norm_case(*rows, *width, device, &mut found)?;
    }
    for &(shape, causal) in ATTENTIONS {
        attention_case(shape, causal, device, &mut found)?;
    }
    for sizes in EMBEDDINGS {
        embedding_case(*sizes, device, &mut found)?;
    }
    Ok(found)
}

/// Rows and their width.
const NORMS: &[(usize, usize)] =
    &[(1, 1), (5, 3), (512, 256), (1024, 512), (37, 1000), (130, 132), (9, 2048), (300, 4092), (3, 8200), (700, 64)];

/// (B, T, H, d), and whether positions see only what was before them.
const ATTENTIONS: &[([usize; 4], bool)] = &[
    ([8, 64, 4, 64], true),
    ([8, 64, 4, 64], false),
    ([8, 128, 8, 64], true),
    ([8, 128, 8, 64], false),
    ([2, 1, 3, 16], true),
    ([2, 65, 2, 32], true),
    ([1, 150, 2, 64], false),
    ([1, 97, 1, 128], true),
    ([2, 33, 2, 100], false),
    ([3, 50, 2, 5], true),
    ([1, 300, 1, 33], true),
];

/// Rows of the table, their width, and positions.
const EMBEDDINGS: &[(usize, usize, usize)] = &[(65, 256, 512), (3000, 130, 700), (5, 3, 1000), (65_536, 8, 300)];

fn norm_case(rows: usize, width: usize, device: &Device, found: &mut Vec<(String, f64, f64)>) -> Result<()> {
    let mut numbers = Numbers(1);
    let inputs = [
        Input { name: "x", values: numbers.take(rows * width), shape: vec![rows, width] },
        Input { name: "scale", values: numbers.take(width), shape: vec![width] },
        Input { name: "shift", values: numbers.take(width), shape: vec![width] },
    ];
    let weights = Input { name: "", values: numbers.take(rows * width), shape: vec![rows, width] };
    let run = |at: &[Tensor]| layer_norm(&at[0], &at[1], &at[2], 1e-5);
    check(&format!("layer norm ({rows}, {width})"), &inputs, &weights, run, device, found)
}

fn attention_case(shape: [usize; 4], causal: bool, device: &Device, found: &mut Vec<(String, f64, f64)>) -> Result<()> {
    let [batches, length, num_heads, width] = shape;
    let mut numbers = Numbers(2);
    let count = batches * length * num_heads * width;
    let packed = vec![batches, length, 3 * num_heads * width];
    let inputs = [Input { name: "qkv", values: numbers.take(3 * count), shape: packed }];
    let weights = Input { name: "", values: numbers.take(count), shape: vec![batches, length, num_heads * width] };
    let run = |at: &[Tensor]| attention(&at[0], &AttentionOptions { num_heads, causal });
    let kind = if causal { "causal" } else { "full" };
    check(&format!("{kind} attention {shape:?}"), &inputs, &weights, run, device, found)
}

fn embedding_case(
    (rows, width, positions): (usize, usize, usize),
    device: &Device,
    found: &mut Vec<(String, f64, f64)>,
) -> Result<()> {
    let mut numbers = Numbers(3);
    let inputs = [Input { name: "table", values: numbers.take(rows * width), shape: vec![rows, width] }];
    let weights = Input { name: "", values: numbers.take(positions * width), shape: vec![positions, width] };
    let ids: Vec<u32> =
        (0..positions as u64).map(|_| u32::try_from(numbers.word() % rows as u64).unwrap_or(0)).collect();
    let run = |at: &[Tensor]| embedding(&at[0], &Tensor::new(ids.as_slice(), at[0].device())?);
    check(&format!("embedding ({rows}, {width}) of {positions}"), &inputs, &weights, run, device, found)
}

struct Input {
    name: &'static str,
    values: Vec<f64>,
    shape: Vec<usize>,
}

impl Input {
    /// In the type asked for, of values that `f32` has.
    fn tensor(&self, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::new(self.values.as_slice(), &Device::Cpu)?
            .reshape(self.shape.as_slice())?
            .to_dtype(DType::F32)?
            .to_dtype(dtype)?
            .to_device(device)
    }
}

fn check(
    name: &str,
    inputs: &[Input],
    weights: &Input,
    run: impl Fn(&[Tensor]) -> Result<Tensor>,
    device: &Device,
    found: &mut Vec<(String, f64, f64)>,
) -> Result<()> {
    let evaluate = |dtype, device: &Device| evaluate(inputs, weights, &run, dtype, device);
    let expected = evaluate(DType::F64, &Device::Cpu)?;
    let first = evaluate(DType::F32, device)?;
    let second = evaluate(DType::F32, device)?;
    let names = std::iter::once("result").chain(inputs.iter().map(|input| input.name));
    let mut again: f64 = 0.0;
    for (((part, expected), first), second) in names.zip(&expected).zip(&first).zip(&second) {
        let what = if part == "result" { part.to_owned() } else { format!("gradient of {part}") };
        let largest = expected.iter().fold(SMALLEST, |max, value| max.max(value.abs()));
        found.push((format!("{name}: {what}"), largest_difference(expected, first) / largest, ALLOWED));
        again = again.max(largest_difference(first, second));
    }
    found.push((format!("{name}: again"), again, 0.0));
    Ok(())
}

/// The result, and the gradients of its product with the weights.
fn evaluate(
    inputs: &[Input],
    weights: &Input,
    run: &impl Fn(&[Tensor]) -> Result<Tensor>,
    dtype: DType,
    device: &Device,
) -> Result<Vec<Vec<f64>>> {
    let mut variables = Vec::new();
    for input in inputs {
        variables.push(Var::from_tensor(&input.tensor(dtype, device)?)?);
    }
    let tensors: Vec<Tensor> = variables.iter().map(|variable| variable.as_tensor().clone()).collect();
    let result = run(&tensors)?;
    let gradients = (&result * weights.tensor(dtype, device)?)?.sum_all()?.backward()?;
    let mut found = vec![read(&result)?];
    for variable in &variables {
        match gradients.get(variable) {
            Some(gradient) => found.push(read(gradient)?),
            None => candle_core::bail!("an input of shape {:?} has no gradient", variable.dims()),
        }
    }
    Ok(found)
}

#[expect(clippy::disallowed_methods, reason = "a check reads results; it is no part of a step")]
fn read(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// Infinite where a number is none.
fn largest_difference(expected: &[f64], found: &[f64]) -> f64 {
    if expected.len() != found.len() {
        return f64::INFINITY;
    }
    let differences = expected.iter().zip(found).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |max: f64, value| if value.is_nan() { f64::INFINITY } else { max.max(value) })
}

/// `SplitMix64`.
///
/// # Source
/// Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", figure 19
struct Numbers(u64);

impl Numbers {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// In [-2, 2).
    fn take(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| (self.word() >> 11) as f64 / 2.0_f64.powi(51) - 2.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::{cases, largest_difference};

    #[test]
    fn all_cases_hold_on_the_cpu() {
        let found = cases(&Device::Cpu).unwrap();
        let wrong: Vec<_> = found.iter().filter(|(_, error, allowed)| error > allowed || error.is_nan()).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(found.len() > 80, "{}", found.len());
    }

    #[test]
    fn what_is_no_number_or_has_another_length_is_an_error() {
        assert!(largest_difference(&[1.0, 2.0], &[1.0, f64::NAN]).is_infinite());
        assert!(largest_difference(&[1.0, 2.0], &[1.0]).is_infinite());
        assert!(largest_difference(&[], &[]).abs() < f64::MIN_POSITIVE);
        assert!((largest_difference(&[1.0, 2.0], &[1.5, 2.0]) - 0.5).abs() < f64::EPSILON);
    }
}

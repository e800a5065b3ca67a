//! Checks layer normalization, attention and embedding on a device against the same in `f64` on the CPU.

use candle_core::cuda::{gemm_reduced_precision_f32, set_gemm_reduced_precision_f32};
use candle_core::{DType, Device, Result, Tensor, Var};

use super::compare::{SplitMix, largest, largest_difference, read};
use crate::{AttentionOptions, add_layer_norm, attention, embedding, layer_norm, layer_norm_to};

/// Largest error of results and of gradients, as a share of the largest value.
const ALLOWED: f64 = 1e-5;
/// The same of products of TF32, whose operands have 11 significant bits.
const ALLOWED_TF32: f64 = 2e-3;
/// The same in `bf16`, which rounds inputs of products to 8 bits and the result too.
const ALLOWED_HALF: f64 = 1.5e-2;
/// Values below this are not what errors are measured by: a gradient may be zero throughout.
const SMALLEST: f64 = 1e-2;

/// Name, largest error relative to the largest value of the result in `f64`, and the error allowed, for each result and
/// each gradient of each case. What is named `again` is how far a second run is from the first: nothing is allowed.
/// Candle's switch for TF32 products is turned on and off in between, and is afterwards as before: nothing else may multiply at the same time.
///
/// # Errors
/// When the device fails.
/// # Sync
/// Many copies to the host.
pub fn norm_attention_cases(device: &Device) -> Result<Vec<(String, f64, f64)>> {
    let mut found = Vec::new();
    for (rows, width) in NORMS {
        norm_case(*rows, *width, DType::F32, device, &mut found)?;
    }
    for (rows, width) in HALF_NORMS {
        norm_case(*rows, *width, DType::BF16, device, &mut found)?;
        pure_norm_case(*rows, *width, device, &mut found)?;
        for types in [[DType::F32, DType::F32], [DType::F32, DType::BF16], [DType::BF16, DType::BF16]] {
            sum_norm_case(*rows, *width, types, device, &mut found)?;
        }
    }
    for &(shape, causal) in ATTENTIONS {
        attention_case(shape, causal, Numbers::F32, device, &mut found)?;
    }
    for &(shape, causal) in TILED_ATTENTIONS {
        for numbers in [Numbers::Tf32, Numbers::Bf16] {
            attention_case(shape, causal, numbers, device, &mut found)?;
        }
    }
    far_apart(device, &mut found)?;
    for sizes in EMBEDDINGS {
        embedding_case(*sizes, device, &mut found)?;
    }
    Ok(found)
}

/// Rows and their width.
const NORMS: &[(usize, usize)] =
    &[(1, 1), (5, 3), (512, 256), (1024, 512), (37, 1000), (130, 132), (9, 2048), (300, 4092), (3, 8200), (700, 64)];

/// With results of `bf16`: of every kernel, and of a width that has none.
const HALF_NORMS: &[(usize, usize)] =
    &[(5, 128), (600, 256), (37, 512), (300, 768), (20, 2048), (3, 4092), (9, 8192), (4, 33)];

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

/// On tensor cores: widths and lengths that fill the tiles of the kernels, and such that do not.
const TILED_ATTENTIONS: &[([usize; 4], bool)] = &[
    ([2, 128, 3, 64], true),
    ([2, 128, 3, 64], false),
    ([2, 1, 3, 16], true),
    ([1, 200, 2, 64], true),
    ([2, 65, 2, 32], true),
    ([1, 150, 2, 48], false),
    ([1, 97, 2, 128], true),
    ([1, 70, 1, 104], false),
    ([2, 33, 2, 100], true),
    ([1, 70, 3, 36], false),
    ([2, 65, 2, 4], true),
    ([3, 50, 2, 5], true),
];

/// Rows of the table, their width, and positions, of which a kernel looks at 1024 at once.
const EMBEDDINGS: &[(usize, usize, usize)] = &[
    (65, 256, 512),
    (3000, 130, 700),
    (5, 3, 1000),
    (65_536, 8, 300),
    (65, 256, 2500),
    (5, 3, 3000),
    (65_536, 8, 3000),
];

fn norm_case(
    rows: usize,
    width: usize,
    result: DType,
    device: &Device,
    found: &mut Vec<(String, f64, f64)>,
) -> Result<()> {
    let (inputs, weights) = norm_inputs(rows, width);
    let name = format!("layer norm ({rows}, {width})");
    if result == DType::F32 {
        return check(&name, &inputs, &weights, |at| layer_norm(&at[0], &at[1], &at[2], 1e-5), device, found);
    }
    // What it is compared with is not rounded.
    let rounds = |at: &[Tensor]| {
        let dtype = if at[0].dtype() == DType::F64 { DType::F64 } else { result };
        layer_norm_to(&at[0], &at[1], &at[2], 1e-5, dtype)?.to_dtype(at[0].dtype())
    };
    check_in((DType::F32, ALLOWED_HALF), &format!("{name} to {result:?}"), &inputs, &weights, rounds, device, found)
}

/// Operands of a normalization, and the weights of its result.
fn norm_inputs(rows: usize, width: usize) -> ([Input; 3], Input) {
    let mut numbers = SplitMix(1);
    let inputs = [
        Input { name: "x", values: in_range(&mut numbers, rows * width), shape: vec![rows, width] },
        Input { name: "scale", values: in_range(&mut numbers, width), shape: vec![width] },
        Input { name: "shift", values: in_range(&mut numbers, width), shape: vec![width] },
    ];
    (inputs, Input { name: "", values: in_range(&mut numbers, rows * width), shape: vec![rows, width] })
}

/// All in `bf16`, which has the bits of what is computed of operands that were converted first.
fn pure_norm_case(rows: usize, width: usize, device: &Device, found: &mut Vec<(String, f64, f64)>) -> Result<()> {
    let (inputs, weights) = norm_inputs(rows, width);
    let name = format!("layer norm ({rows}, {width}) in BF16");
    let run = |at: &[Tensor]| layer_norm(&at[0], &at[1], &at[2], 1e-5);
    check_in((DType::BF16, ALLOWED_HALF), &name, &inputs, &weights, run, device, found)?;
    let converted = |at: &[Tensor]| {
        let at = at.iter().map(|tensor| tensor.to_dtype(DType::F32)).collect::<Result<Vec<_>>>()?;
        layer_norm_to(&at[0], &at[1], &at[2], 1e-5, DType::BF16)
    };
    let pure = evaluate(&inputs, &weights, &run, DType::BF16, device)?;
    let converted = evaluate(&inputs, &weights, &converted, DType::BF16, device)?;
    for ((pure, converted), part) in pure.iter().zip(&converted).zip(["result", "x", "scale", "shift"]) {
        found.push((format!("{name}: {part} as of converted operands"), largest_difference(pure, converted), 0.0));
    }
    Ok(())
}

/// The normalization of a sum, which has the bits of what is computed one after the other.
fn sum_norm_case(
    rows: usize,
    width: usize,
    [dtype, result]: [DType; 2],
    device: &Device,
    found: &mut Vec<(String, f64, f64)>,
) -> Result<()> {
    let ([x, scale, shift], weights) = norm_inputs(rows, width);
    let addend = Input { name: "addend", values: in_range(&mut SplitMix(2), rows * width), shape: vec![rows, width] };
    let inputs = [x, scale, shift, addend];
    let name = format!("layer norm of a sum ({rows}, {width}) of {dtype:?} to {result:?}");
    // What both are compared with is not rounded.
    let types = |at: &Tensor| if at.dtype() == DType::F64 { DType::F64 } else { result };
    let both = |at: &[Tensor]| {
        let result = types(&at[0]);
        let (sum, y) = add_layer_norm(&at[0], &at[3].to_dtype(result)?, &at[1], &at[2], 1e-5, result)?;
        y.to_dtype(at[0].dtype())? + sum
    };
    let apart = |at: &[Tensor]| {
        let result = types(&at[0]);
        let sum = (&at[0] + at[3].to_dtype(result)?.to_dtype(at[0].dtype())?)?;
        layer_norm_to(&sum, &at[1], &at[2], 1e-5, result)?.to_dtype(at[0].dtype())? + sum
    };
    let allowed = if result == DType::F32 { ALLOWED } else { ALLOWED_HALF };
    check_in((dtype, allowed), &name, &inputs, &weights, both, device, found)?;
    let both = evaluate(&inputs, &weights, &both, dtype, device)?;
    let apart = evaluate(&inputs, &weights, &apart, dtype, device)?;
    for ((both, apart), part) in both.iter().zip(&apart).zip(["result", "x", "scale", "shift", "addend"]) {
        found.push((format!("{name}: {part} as one after the other"), largest_difference(both, apart), 0.0));
    }
    Ok(())
}

/// What attention multiplies.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Numbers {
    F32,
    Tf32,
    Bf16,
}

impl Numbers {
    fn dtype(self) -> DType {
        if self == Self::Bf16 { DType::BF16 } else { DType::F32 }
    }

    fn allowed(self) -> f64 {
        match self {
            Self::F32 => ALLOWED,
            Self::Tf32 => ALLOWED_TF32,
            Self::Bf16 => ALLOWED_HALF,
        }
    }

    /// Does something with candle's switch as these need it.
    fn during<R>(self, run: impl FnOnce() -> R) -> R {
        let before = gemm_reduced_precision_f32();
        set_gemm_reduced_precision_f32(self == Self::Tf32);
        let result = run();
        set_gemm_reduced_precision_f32(before);
        result
    }
}

fn attention_case(
    shape: [usize; 4],
    causal: bool,
    of: Numbers,
    device: &Device,
    found: &mut Vec<(String, f64, f64)>,
) -> Result<()> {
    let [batches, length, num_heads, width] = shape;
    let mut numbers = SplitMix(2);
    let count = batches * length * num_heads * width;
    let packed = vec![batches, length, 3 * num_heads * width];
    let inputs = [Input { name: "qkv", values: in_range(&mut numbers, 3 * count), shape: packed }];
    let weights =
        Input { name: "", values: in_range(&mut numbers, count), shape: vec![batches, length, num_heads * width] };
    let run = |at: &[Tensor]| attention(&at[0], &AttentionOptions { num_heads, causal });
    let kind = if causal { "causal" } else { "full" };
    let dtype = of.dtype();
    let rounded = |input: Input| -> Result<Input> {
        let values = read(&input.tensor(dtype, &Device::Cpu)?)?;
        Ok(Input { values, ..input })
    };
    let ([qkv], weights) = (inputs, rounded(weights)?);
    let name = format!("{kind} attention {shape:?} of {of:?}");
    let allowed = (dtype, of.allowed());
    of.during(|| check_in(allowed, &name, &[rounded(qkv)?], &weights, run, device, found))
}

/// Numbers that are none among the gradients of attention whose every logit is near -250: what stands for keys beyond the last one
/// has logit 0.
fn far_apart(device: &Device, found: &mut Vec<(String, f64, f64)>) -> Result<()> {
    let (length, width) = (150, 48);
    let mut numbers = SplitMix(4);
    let mut values = in_range(&mut numbers, length * 3 * width);
    for row in values.chunks_mut(3 * width) {
        for (place, value) in row.iter_mut().enumerate().take(2 * width) {
            *value = if place < width { 6.0 } else { -6.0 } + *value / 16.0;
        }
    }
    let inputs = [Input { name: "qkv", values, shape: vec![1, length, 3 * width] }];
    let weights = in_range(&mut numbers, length * width);
    let weights = Input { name: "", values: weights, shape: vec![1, length, width] };
    let run = |at: &[Tensor]| attention(&at[0], &AttentionOptions { num_heads: 1, causal: false });
    for of in [Numbers::F32, Numbers::Tf32, Numbers::Bf16] {
        let values = of.during(|| evaluate(&inputs, &weights, &run, of.dtype(), device))?.concat();
        let wrong = values.iter().filter(|value| !value.is_finite()).count();
        found.push((format!("attention of logits near -250, {of:?}: finite"), wrong as f64, 0.0));
    }
    Ok(())
}

fn embedding_case(
    (rows, width, positions): (usize, usize, usize),
    device: &Device,
    found: &mut Vec<(String, f64, f64)>,
) -> Result<()> {
    let mut numbers = SplitMix(3);
    let inputs = [Input { name: "table", values: in_range(&mut numbers, rows * width), shape: vec![rows, width] }];
    let weights = Input { name: "", values: in_range(&mut numbers, positions * width), shape: vec![positions, width] };
    let mut ids: Vec<u32> =
        (0..positions as u64).map(|_| u32::try_from(numbers.word() % rows as u64).unwrap_or(0)).collect();
    // No row.
    ids[positions / 2] = u32::MAX;
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
    check_in((DType::F32, ALLOWED), name, inputs, weights, run, device, found)
}

/// In a type that has the inputs, with the error that is allowed for it.
fn check_in(
    (dtype, allowed): (DType, f64),
    name: &str,
    inputs: &[Input],
    weights: &Input,
    run: impl Fn(&[Tensor]) -> Result<Tensor>,
    device: &Device,
    found: &mut Vec<(String, f64, f64)>,
) -> Result<()> {
    let evaluate = |dtype, device: &Device| evaluate(inputs, weights, &run, dtype, device);
    let expected = evaluate(DType::F64, &Device::Cpu)?;
    let first = evaluate(dtype, device)?;
    let second = evaluate(dtype, device)?;
    let names = std::iter::once("result").chain(inputs.iter().map(|input| input.name));
    let mut again: f64 = 0.0;
    for (((part, expected), first), second) in names.zip(&expected).zip(&first).zip(&second) {
        let what = if part == "result" { part.to_owned() } else { format!("gradient of {part}") };
        let error = largest_difference(expected, first) / largest(expected, SMALLEST);
        found.push((format!("{name}: {what}"), error, allowed));
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

/// Numbers in [-2, 2).
fn in_range(numbers: &mut SplitMix, count: usize) -> Vec<f64> {
    (0..count).map(|_| (numbers.word() >> 11) as f64 / 2.0_f64.powi(51) - 2.0).collect()
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::norm_attention_cases;

    #[test]
    fn all_cases_hold_on_the_cpu() {
        let found = norm_attention_cases(&Device::Cpu).unwrap();
        let wrong: Vec<_> = found.iter().filter(|(_, error, allowed)| error > allowed || error.is_nan()).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(found.len() > 80, "{}", found.len());
    }
}

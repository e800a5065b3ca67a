//! Compares layers on a device with their evaluation in `f64` on the CPU.

use candle_core::cuda::{gemm_reduced_precision_f32, set_gemm_reduced_precision_f32};
use candle_core::{DType, Device, Result, Tensor, Var};

use super::compare::{SplitMix, largest, largest_difference, read};
use crate::linear::{Activation, LinearOptions, Precision, WeightOrder, linear};

/// Sums of some thousand products of `f32`.
pub(super) const F32_ERROR: f64 = 1e-5;
/// Operands of TF32 and of `f16` have 11 significant bits, 2⁻¹¹ = 5e-4; errors of a sum partly cancel.
const TF32_ERROR: f64 = 2e-3;
/// Outputs and gradients have 8 significant bits, 2⁻⁸ = 4e-3 between neighbors.
const BF16_ERROR: f64 = 1e-2;

/// Outputs from which on a GPU has other kernels; a CPU has not.
const LARGE: usize = 1 << 23;

/// Those that a device tells apart.
fn cases(device: &Device) -> impl Iterator<Item = &'static Case> {
    let is_cpu = device.is_cpu();
    CASES.iter().filter(move |([rows, _, outputs], ..)| !is_cpu || rows * outputs < LARGE)
}

/// As near to 0 as this part of the largest, the sign of what `Relu` sees is left to rounding.
const UNSURE: f64 = 0.05;

/// What is multiplied, and what the tensors hold.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Numbers {
    F32,
    Tf32,
    Bf16,
    /// Inputs of `bf16`, weight and bias of `f32`.
    Mixed,
    /// Tensors of `f32`, products of `bf16`.
    Rounded,
    /// Tensors of `f32`, products of `f16`.
    Half,
}

impl Numbers {
    fn of_inputs(self) -> DType {
        match self {
            Self::F32 | Self::Tf32 | Self::Rounded | Self::Half => DType::F32,
            Self::Bf16 | Self::Mixed => DType::BF16,
        }
    }

    fn of_weights(self) -> DType {
        if self == Self::Bf16 { DType::BF16 } else { DType::F32 }
    }

    fn precision(self) -> Precision {
        match self {
            Self::Rounded => Precision::Bf16,
            Self::Half => Precision::F16,
            _ => Precision::AsIs,
        }
    }

    fn allowed(self) -> f64 {
        match self {
            Self::F32 => F32_ERROR,
            Self::Tf32 | Self::Half => TF32_ERROR,
            Self::Bf16 | Self::Mixed | Self::Rounded => BF16_ERROR,
        }
    }
}

/// One layer: rows, inputs and outputs; order; activation; whether it has a bias; numbers.
type Case = ([usize; 3], WeightOrder, Activation, bool, Numbers);

const NUMBERS: [Numbers; 6] =
    [Numbers::F32, Numbers::Tf32, Numbers::Bf16, Numbers::Mixed, Numbers::Rounded, Numbers::Half];

const CASES: &[Case] = {
    use Activation::{Gelu, GeluErf, None, Relu};
    use Numbers::{Bf16, F32, Half, Mixed, Rounded, Tf32};
    use WeightOrder::{InOut, OutIn};
    &[
        ([512, 4096, 512], InOut, None, true, F32),
        ([512, 4096, 512], OutIn, Relu, true, Tf32),
        ([512, 4096, 512], OutIn, Gelu, true, Bf16),
        ([1024, 96, 2048], OutIn, GeluErf, true, F32),
        ([512, 256, 512], OutIn, Gelu, true, F32),
        ([64, 2048, 2048], OutIn, None, true, Tf32),
        ([33, 1999, 2050], InOut, None, false, Tf32),
        ([130, 67, 259], OutIn, Gelu, true, F32),
        ([130, 1001, 259], InOut, Relu, false, F32),
        ([1030, 97, 1501], InOut, None, false, F32),
        ([1025, 643, 517], OutIn, Gelu, true, F32),
        ([517, 130, 1030], OutIn, None, true, F32),
        ([70, 48, 300], OutIn, Relu, true, F32),
        ([50, 1050, 519], OutIn, None, true, F32),
        ([128, 784, 512], InOut, Relu, true, F32),
        ([128, 784, 512], OutIn, Gelu, true, F32),
        ([128, 784, 512], InOut, GeluErf, true, Tf32),
        ([128, 784, 512], InOut, Relu, true, Bf16),
        ([128, 784, 512], OutIn, None, true, Rounded),
        ([128, 784, 512], InOut, Gelu, true, Mixed),
        ([4, 4, 4], InOut, None, true, F32),
        ([4, 4, 4], OutIn, Gelu, false, F32),
        ([4, 4, 4], OutIn, Relu, true, Tf32),
        ([4, 4, 4], OutIn, None, true, F32),
        ([128, 512, 10], OutIn, None, true, F32),
        ([128, 512, 10], OutIn, None, true, Tf32),
        ([128, 512, 10], OutIn, None, false, Bf16),
        ([128, 512, 10], OutIn, None, true, Mixed),
        ([129, 36, 16], OutIn, None, true, Rounded),
        ([129, 36, 16], OutIn, Relu, true, Bf16),
        ([1, 132, 1], OutIn, None, true, Half),
        ([7, 13, 5], InOut, Relu, true, F32),
        ([7, 13, 5], OutIn, Gelu, true, F32),
        ([7, 13, 5], InOut, Gelu, false, Tf32),
        ([7, 13, 5], OutIn, GeluErf, true, F32),
        ([7, 13, 5], OutIn, None, true, Bf16),
        ([7, 13, 5], InOut, Gelu, true, Rounded),
        ([1, 3, 1], OutIn, None, true, F32),
        ([1, 768, 2000], OutIn, None, false, F32),
        ([1, 2056, 301], OutIn, None, false, Bf16),
        ([1, 8, 3], OutIn, GeluErf, false, Bf16),
        ([1, 1000, 7], OutIn, None, false, Mixed),
        ([1500, 16, 10], InOut, None, true, F32),
        ([1500, 16, 10], OutIn, Relu, false, F32),
        ([1500, 16, 24], OutIn, GeluErf, true, Mixed),
        ([33, 64, 72], InOut, Gelu, true, F32),
        ([33, 64, 72], OutIn, Gelu, false, Rounded),
        ([128, 784, 512], InOut, Relu, true, Half),
        ([7, 13, 5], OutIn, Gelu, true, Half),
        ([33, 64, 72], InOut, GeluErf, false, Half),
        ([1500, 16, 24], OutIn, None, true, Half),
        ([4096, 24, 2056], OutIn, GeluErf, true, Bf16),
        ([4096, 24, 2053], InOut, Gelu, true, F32),
        ([4096, 24, 2056], OutIn, Gelu, true, Rounded),
        ([4096, 24, 2052], InOut, Relu, true, Half),
        ([4100, 24, 2048], OutIn, None, true, Rounded),
        ([31, 132, 16], OutIn, Relu, true, F32),
        ([32, 132, 16], OutIn, None, true, Bf16),
        ([33, 132, 16], OutIn, None, true, F32),
        ([4, 132, 1], OutIn, None, true, Mixed),
        ([32, 4, 16], OutIn, None, false, Mixed),
        ([31, 128, 4], OutIn, None, true, Rounded),
        ([1, 4, 16], OutIn, None, false, Half),
    ]
};

/// The largest error of every output and gradient of some linear layers, relative to the largest value that it should
/// have, with the error that is allowed. Candle's switch for TF32 products is turned on and off in between, and is
/// afterwards as before: nothing else may multiply at the same time.
///
/// # Errors
/// When a layer cannot be evaluated.
/// # Sync
/// one device-to-host copy per output and gradient
pub fn linear_cases(device: &Device) -> Result<Vec<(String, f64, f64)>> {
    let before = gemm_reduced_precision_f32();
    let mut found = Vec::new();
    let mut result = Ok(());
    for (index, case) in cases(device).enumerate() {
        set_gemm_reduced_precision_f32(case.4 == Numbers::Tf32);
        result = check(case, index as u64, device, &mut found);
        if result.is_err() {
            break;
        }
    }
    set_gemm_reduced_precision_f32(false);
    result = result.and_then(|()| check_beside_candle(device, &mut found));
    result = result.and_then(|()| check_infinite(device, &mut found));
    for (index, numbers) in NUMBERS.into_iter().enumerate() {
        set_gemm_reduced_precision_f32(numbers == Numbers::Tf32);
        let order = [WeightOrder::InOut, WeightOrder::OutIn][index % 2];
        result = result.and_then(|()| check_at_zero(order, numbers, device, &mut found));
    }
    set_gemm_reduced_precision_f32(before);
    result.map(|()| found)
}

fn check(case: &Case, seed: u64, device: &Device, found: &mut Vec<(String, f64, f64)>) -> Result<()> {
    let ([rows, inputs, outputs], order, activation, has_bias, numbers) = *case;
    let options = LinearOptions { order, activation, precision: numbers.precision() };
    let exact = LinearOptions { precision: Precision::AsIs, ..options };
    let held = if numbers == Numbers::F32 { DType::F32 } else { DType::BF16 };
    let mut values = Values(SplitMix(seed), held);
    let scale = 1.0 / f64::from(u32::try_from(inputs).expect("a case is small")).sqrt();
    let weight_shape = match order {
        WeightOrder::InOut => [inputs, outputs],
        WeightOrder::OutIn => [outputs, inputs],
    };
    let mut arguments = vec![values.tensor(&[rows, inputs], 1.0)?, values.tensor(&weight_shape, scale)?];
    if has_bias {
        arguments.push(values.tensor(&[outputs], 1.0)?);
    }
    let mix = values.tensor(&[rows, outputs], 1.0)?;
    let before = linear(
        &arguments[0],
        &arguments[1],
        arguments.get(2),
        &LinearOptions { activation: Activation::None, ..exact },
    )?
    .abs()?;
    let is_sure = before.broadcast_gt(&(before.max_all()? * UNSURE)?)?.to_dtype(DType::F64)?;
    // Only where the derivative jumps: the others bend around zero, and that is to be compared.
    let mix = if activation == Activation::Relu { (mix * is_sure)? } else { mix };

    let expected = evaluate(&arguments, &mix, &exact)?;
    let types = [numbers.of_inputs(), numbers.of_weights(), numbers.of_weights()];
    let on_device: Vec<Tensor> = arguments
        .iter()
        .zip(types)
        .map(|(argument, dtype)| argument.to_dtype(dtype)?.to_device(device))
        .collect::<Result<_>>()?;
    let mix = mix.to_dtype(numbers.of_inputs())?.to_device(device)?;
    let results = evaluate(&on_device, &mix, &options)?;
    for ((name, result), (_, expected)) in results.iter().zip(&expected) {
        let bias = if has_bias { "bias" } else { "no bias" };
        let name = format!("{rows}x{inputs}->{outputs} {order:?} {activation:?} {bias} {numbers:?}: {name}");
        found.push((name, relative_error(result, expected)?, numbers.allowed()));
    }
    Ok(())
}

/// The error of a product of `f32` beside that of candle's, both as parts of the length of what `f64` gives.
fn check_beside_candle(device: &Device, found: &mut Vec<(String, f64, f64)>) -> Result<()> {
    let mut values = Values(SplitMix(4096), DType::F32);
    let [x, weight] = [values.tensor(&[1 + 160 * 4096], 1.0)?, values.tensor(&[4096, 256], 1.0)?];
    // Where no vector of several numbers begins.
    let rows = |of: &Tensor| of.narrow(0, 1, 160 * 4096)?.reshape((160, 4096));
    let exact = read(&rows(&x)?.matmul(&weight)?)?;
    let single = |tensor: &Tensor| tensor.to_dtype(DType::F32)?.to_device(device);
    let (x, weight) = (rows(&single(&x)?)?, single(&weight)?);
    let error = |found: &Tensor| -> Result<f64> {
        let squares = read(found)?.into_iter().zip(&exact).map(|(found, exact)| (found - exact).powi(2)).sum::<f64>();
        let share = squares / exact.iter().map(|exact| exact.powi(2)).sum::<f64>();
        Ok(if share.is_nan() { f64::INFINITY } else { share.sqrt() })
    };
    let options = LinearOptions { order: WeightOrder::InOut, activation: Activation::None, precision: Precision::AsIs };
    let ours = error(&linear(&x, &weight, None, &options)?)?;
    // Not more than half as much again, where both ask the same library.
    found.push(("160x4096->256 beside candle's F32".to_owned(), ours, 1.5 * error(&x.matmul(&weight)?)?));
    Ok(())
}

/// What is infinite has to show behind a rectifier, or a step that went wrong looks as if it had not.
fn check_infinite(device: &Device, found: &mut Vec<(String, f64, f64)>) -> Result<()> {
    let mut values = Values(SplitMix(1), DType::F32);
    let weight = values.tensor(&[64, 64], 1.0)?.to_dtype(DType::F32)?.to_device(device)?;
    let x: Vec<f32> = (0..64 * 64).map(|at| if at % 64 == 9 { f32::INFINITY } else { 1.0 }).collect();
    let x = Tensor::from_vec(x, (64, 64), device)?;
    let options = LinearOptions { order: WeightOrder::OutIn, activation: Activation::Relu, precision: Precision::AsIs };
    let is_hidden = read(&linear(&x, &weight, None, &options)?)?.into_iter().all(f64::is_finite);
    found.push(("Relu of what is infinite F32: hidden".to_owned(), f64::from(u8::from(is_hidden)), 0.0));
    Ok(())
}

/// A layer that is 0 before its `Relu` in half of its elements, where nothing passes on the way back. All numbers are
/// small and whole, so that every evaluation has the same bits.
fn check_at_zero(
    order: WeightOrder,
    numbers: Numbers,
    device: &Device,
    found: &mut Vec<(String, f64, f64)>,
) -> Result<()> {
    let x = [[1.0, -1.0], [0.0, 0.0], [2.0, 1.0], [-1.0, -3.0]];
    let weight = [[1.0, 0.0, 2.0, -1.0], [1.0, 0.0, 1.0, 1.0]];
    let x = Tensor::new(&x, &Device::Cpu)?;
    let weight = Tensor::new(&weight, &Device::Cpu)?;
    let bias = Tensor::zeros(4, DType::F64, &Device::Cpu)?;
    let mix = Tensor::arange(1.0, 17.0, &Device::Cpu)?.reshape((4, 4))?;
    let before = x.matmul(&weight)?.broadcast_add(&bias)?;
    let upstream = before.gt(&before.zeros_like()?)?.where_cond(&mix, &mix.zeros_like()?)?;
    let of_weight = x.t()?.matmul(&upstream)?;
    let turned = |tensor: Tensor| if order == WeightOrder::OutIn { tensor.t()?.contiguous() } else { Ok(tensor) };
    let expected = [before.maximum(0.0)?, upstream.matmul(&weight.t()?)?, turned(of_weight)?, upstream.sum(0)?];

    let types = [numbers.of_inputs(), numbers.of_weights(), numbers.of_weights()];
    let place = |(tensor, dtype): (Tensor, DType)| tensor.to_dtype(dtype)?.to_device(device);
    let arguments = [x, turned(weight)?, bias].into_iter().zip(types).map(place).collect::<Result<Vec<_>>>()?;
    let options = LinearOptions { order, activation: Activation::Relu, precision: numbers.precision() };
    let results = evaluate(&arguments, &place((mix, numbers.of_inputs()))?, &options)?;
    for ((name, result), expected) in results.iter().zip(&expected) {
        found.push((format!("Relu at 0, {order:?} {numbers:?}: {name}"), relative_error(result, expected)?, 0.0));
    }
    Ok(())
}

/// The output and the gradients of the sum of `mix` times it, each with its name.
fn evaluate(arguments: &[Tensor], mix: &Tensor, options: &LinearOptions) -> Result<Vec<(&'static str, Tensor)>> {
    let variables: Vec<Var> = arguments.iter().map(Var::from_tensor).collect::<Result<_>>()?;
    let bias = variables.get(2).map(Var::as_tensor);
    let output = linear(&variables[0], &variables[1], bias, options)?;
    let gradients = (&output * mix)?.sum_all()?.backward()?;
    let mut results = vec![("output", output)];
    for (name, variable) in ["gradient of x", "gradient of the weight", "gradient of the bias"].iter().zip(&variables) {
        let Some(gradient) = gradients.get(variable) else { candle_core::bail!("there is no {name}") };
        if gradient.shape() != variable.shape() || gradient.dtype() != variable.dtype() || !gradient.is_contiguous() {
            candle_core::bail!("the {name} is {gradient:?} for {variable:?}")
        }
        results.push((name, gradient.clone()));
    }
    Ok(results)
}

pub(super) fn relative_error(found: &Tensor, expected: &Tensor) -> Result<f64> {
    let (found, expected) = (read(found)?, read(expected)?);
    let (error, largest) = (largest_difference(&expected, &found), largest(&expected, 0.0));
    Ok(if largest > 0.0 { error / largest } else { error })
}

/// Numbers that a type holds exactly, so that every evaluation of a case starts from the same ones.
pub(super) struct Values(pub(super) SplitMix, pub(super) DType);

impl Values {
    pub(super) fn tensor(&mut self, shape: &[usize], scale: f64) -> Result<Tensor> {
        let count = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|_| self.draw() * scale).collect();
        Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(self.1)?.to_dtype(DType::F64)
    }

    /// Uniform in [-1, 1).
    fn draw(&mut self) -> f64 {
        let high = u32::try_from(self.0.word() >> 32).expect("half of the bits");
        f64::from(high) / f64::from(1_u32 << 31) - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_within_its_error_on_the_cpu() {
        let found = linear_cases(&Device::Cpu).unwrap();
        let quantities =
            cases(&Device::Cpu).map(|case| if case.3 { 4 } else { 3 }).sum::<usize>() + 4 * NUMBERS.len() + 2;
        assert_eq!(found.len(), quantities);
        let wrong: Vec<_> = found.iter().filter(|(_, error, allowed)| error > allowed).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        // Rounding must show, or the comparison is with itself.
        assert!(found.iter().any(|(_, error, _)| *error > 1e-9));
    }

    #[test]
    fn an_error_is_relative_to_the_largest_value_and_sees_what_is_not_a_number() {
        let of = |values: &[f64]| Tensor::new(values, &Device::Cpu).unwrap();
        let error = |found: &[f64], expected: &[f64]| relative_error(&of(found), &of(expected)).unwrap();
        assert!((error(&[1.0, -4.5], &[1.0, -4.0]) - 0.125).abs() < 1e-15);
        assert!(error(&[1.0, f64::NAN, 2.0], &[1.0, 2.0, 2.0]).is_infinite());
        assert!((error(&[0.5], &[0.0]) - 0.5).abs() < 1e-15);
    }
}

//! Compares products of tensors on a device with `f64` on the CPU.

use candle_core::cuda::{gemm_reduced_precision_f32, set_gemm_reduced_precision_f32};
use candle_core::{DType, Device, Result, Tensor};

use super::compare::SplitMix;
use super::linear::{F32_ERROR, Values, relative_error};
use crate::product;

/// Rows, terms and columns. The last is wide enough for factors that are transposed first.
const SIZES: [[usize; 3]; 4] = [[130, 67, 259], [512, 256, 512], [33, 1030, 8], [1640, 32, 1640]];
/// What is multiplied, whether as TF32, and the error that is allowed: factors have few bits but for `f32`, and sums are not rounded.
const NUMBERS: [(DType, bool, f64); 4] = [
    (DType::F32, false, F32_ERROR),
    (DType::F32, true, F32_ERROR),
    (DType::BF16, false, F32_ERROR),
    (DType::F16, false, F32_ERROR),
];

/// The largest error of each product that [`product()`] forms, of matrices that lie as they are or transposed, relative to the
/// largest value in `f64`, with the error allowed. Products of halves are there on every GPU, those of `f32` on some; of the CPU there
/// are none. Candle's switch for TF32 is afterwards as before: nothing else may multiply at the same time.
///
/// # Errors
/// When the device fails, or there is a product that there should not be, or none where there should be.
/// # Sync
/// one device-to-host copy per product
pub fn product_cases(device: &Device) -> Result<Vec<(String, f64, f64)>> {
    let before = gemm_reduced_precision_f32();
    let mut found = Vec::new();
    let result = SIZES.iter().zip(0..).try_for_each(|(size, seed)| {
        NUMBERS.iter().try_for_each(|numbers| {
            set_gemm_reduced_precision_f32(numbers.1);
            check(*size, *numbers, seed, device, &mut found)
        })
    });
    set_gemm_reduced_precision_f32(before);
    result.map(|()| found)
}

fn check(
    [m, k, n]: [usize; 3],
    (dtype, is_tf32, allowed): (DType, bool, f64),
    seed: u64,
    device: &Device,
    found: &mut Vec<(String, f64, f64)>,
) -> Result<()> {
    let held = if is_tf32 { DType::BF16 } else { dtype };
    let mut values = Values(SplitMix(seed), held);
    let is_hopper = multiplies_by_warpgroups(device)?;
    let (left, right) = (values.tensor(&[m, k], 1.0)?, values.tensor(&[k, n], 1.0)?);
    let expected = left.matmul(&right)?;
    let of_pair = [Tensor::zeros((2, m, k), dtype, device)?, Tensor::zeros((2, k, n), dtype, device)?];
    if product(&of_pair[0], &of_pair[1], DType::F32)?.is_some() {
        candle_core::bail!("two matrices were multiplied as one")
    }
    for (is_left_turned, is_right_turned) in [(false, false), (false, true), (true, false), (true, true)] {
        let place = |tensor: &Tensor, is_turned: bool| {
            let tensor = tensor.to_dtype(dtype)?.to_device(device)?;
            if is_turned { tensor.t()?.contiguous()?.t() } else { Ok(tensor) }
        };
        // As one of a batch of one.
        let (left, right) =
            (place(&left, is_left_turned)?.unsqueeze(0)?, place(&right, is_right_turned)?.unsqueeze(0)?);
        let name = format!(
            "{m}x{k}x{n} {dtype:?}{} {is_left_turned} {is_right_turned}",
            if is_tf32 { " as TF32" } else { "" }
        );
        let is_expected = match dtype {
            DType::F32 if is_tf32 => is_hopper && m.min(n) > 1600 && is_left_turned && !is_right_turned,
            DType::F32 => is_hopper && m.min(n) >= 32 && !(is_left_turned && is_right_turned),
            _ => device.is_cuda(),
        };
        let result = product(&left, &right, DType::F32)?;
        let kind = result.as_ref().map(|result| (result.dims(), result.dtype(), result.is_contiguous()));
        if kind != is_expected.then_some((&[1, m, n], DType::F32, true)) {
            candle_core::bail!("{name}: found {result:?}")
        }
        if let Some(result) = result {
            found.push((name, relative_error(&result, &expected)?, allowed));
        }
    }
    Ok(())
}

/// Whether the kernels of `f32` can run.
fn multiplies_by_warpgroups(device: &Device) -> Result<bool> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => crate::device::is_ready(device),
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_has_none() {
        assert!(product_cases(&Device::Cpu).unwrap().is_empty());
    }
}

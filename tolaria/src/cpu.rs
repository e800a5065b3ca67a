//! CPU kernels: tensors of the CPU as slices, and the arithmetic that several kernels share.

use std::ops::Range;

use candle_core::{CpuStorage, DType, Error, Layout, Result, Tensor, WithDType};

/// The elements of a contiguous tensor.
pub(crate) fn slice<'a, T: WithDType>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    let range = elements(layout)?;
    Ok(&storage.as_slice::<T>()?[range])
}

/// The elements of a contiguous `f32` tensor, to be written.
pub(crate) fn slice_mut<'a>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [f32]> {
    let range = elements(layout)?;
    match storage {
        CpuStorage::F32(values) => Ok(&mut values[range]),
        _ => Err(Error::UnsupportedDTypeForOp(storage_dtype(storage), "f32 kernel").bt()),
    }
}

/// Runs `f` on the elements of contiguous `f32` tensors of the CPU.
pub(crate) fn with_slices<R>(tensors: &[&Tensor], f: impl FnOnce(&[&[f32]]) -> R) -> Result<R> {
    let guards: Vec<_> = tensors.iter().map(|tensor| tensor.storage_and_layout()).collect();
    let slices = guards
        .iter()
        .map(|(storage, layout)| match &**storage {
            candle_core::Storage::Cpu(storage) => slice::<f32>(storage, layout),
            _ => Err(Error::Msg("a CPU kernel was given a tensor of another device".to_owned()).bt()),
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(f(&slices))
}

/// Inner product with `f64` accumulators. Several of them, so that the additions need not wait for each other.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
    const LANES: usize = 8;
    let mut lanes = [0.0_f64; LANES];
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..LANES {
            lanes[lane] += f64::from(a[lane]) * f64::from(b[lane]);
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    lanes.iter().sum::<f64>() + rest
}

/// Rounds to the nearest `f32`, as candle does with the scalars of its operations.
#[expect(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
pub(crate) fn to_f32(value: f64) -> f32 {
    value as f32
}

fn elements(layout: &Layout) -> Result<Range<usize>> {
    let (start, end) =
        layout.contiguous_offsets().ok_or_else(|| Error::RequiresContiguous { op: "f32 kernel" }.bt())?;
    Ok(start..end)
}

fn storage_dtype(storage: &CpuStorage) -> DType {
    use candle_core::backend::BackendStorage;
    storage.dtype()
}

//! What operations of the CPU are made of.

mod exponential;
#[allow(unsafe_code)]
mod product;
mod threads;

use candle_core::{CpuStorage, Layout, Result, Storage, Tensor, bail};

pub(crate) use exponential::{EXP_LIMIT, exp};
pub(crate) use product::{Matrix, multiply, multiply_here};
pub(crate) use threads::for_each_chunk;

/// The elements of a contiguous operand.
pub(crate) fn elements<'a>((storage, layout): (&'a CpuStorage, &Layout)) -> Result<&'a [f32]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&storage.as_slice::<f32>()?[start..end]),
        None => bail!("an operation of the CPU was given an operand that is not contiguous"),
    }
}

/// Runs `work` on the elements of a contiguous tensor of the CPU.
pub(crate) fn with_elements<R>(tensor: &Tensor, work: impl FnOnce(&[f32]) -> Result<R>) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => work(elements((storage, layout))?),
        _ => bail!("an operation of the CPU was given a tensor of another device"),
    }
}

//! The passes over a window's gradients on the CPU.
//!
//! ```text
//!   rows g_1 … g_K ──part_grams──► inner products per part ──► (solve) ──► coefficients ──combine──► Σ c_k g_k in row 1
//!                                                                                combine_and_square ──► and its squares
//! ```
//!
//! Every pass reads each element once. Sums are formed per chunk of the [`Geometry`](crate::grad::Geometry) and added
//! in the order of the chunks. Nothing is allocated once a thread has met its largest window.

mod part_grams;
mod combine;

use candle_core::Tensor;
pub(crate) use combine::{combine, combine_and_square};
pub(crate) use part_grams::part_grams;

use crate::error::Error;
use crate::kernels::DeviceKernels;
use crate::path::Path;

/// Who makes the passes.
#[derive(Debug, Clone)]
pub(crate) enum Passes {
    /// The kernels of the CPU.
    Kernel,
    /// The kernels of a GPU.
    Device(DeviceKernels),
    /// Candle operations: for windows of more microbatches than the kernels of a GPU have room for, and for types that
    /// only callers without a trainer have.
    Composed,
}

impl Passes {
    /// Those over `tensor`, in a window of few microbatches.
    pub(crate) fn of(tensor: &Tensor) -> Self {
        Self::by(Path::of(tensor))
    }

    /// Those over a row of gradients that is not combined with others.
    pub(crate) fn of_row(row: &Tensor) -> Self {
        Self::by(Path::of_row(row))
    }

    fn by(path: Result<Path, Error>) -> Self {
        match path {
            Ok(Path::Kernel) => Self::Kernel,
            Ok(Path::Device(kernels)) => Self::Device(kernels),
            Err(_) => Self::Composed,
        }
    }
}

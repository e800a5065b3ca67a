//! Which implementation of an operation runs.

use candle_core::{DType, Tensor};

use crate::error::Error;
use crate::kernels::DeviceKernels;

/// How an operation runs. Both give the same result to rounding, and to the bit where nothing is summed.
#[derive(Debug, Clone)]
pub(crate) enum Path {
    /// A kernel of this crate over slices of `f32` on the CPU.
    Kernel,
    /// A kernel of this crate over `f32` on a GPU.
    Device(DeviceKernels),
}

impl Path {
    /// The path for operations on `tensor`.
    ///
    /// # Errors
    /// [`Error::LayoutMismatch`] for another type than `f32`, or on another device than the CPU or a GPU with kernels.
    pub(crate) fn of(tensor: &Tensor) -> Result<Self, Error> {
        if tensor.device().is_cpu() && tensor.dtype() == DType::F32 {
            return Ok(Self::Kernel);
        }
        let found = || format!("{:?} on {:?}", tensor.dtype(), tensor.device().location());
        let refused = || Error::mismatch("operand of a kernel", "F32 on the CPU or on a GPU", found());
        DeviceKernels::of(tensor).map(Self::Device).ok_or_else(refused)
    }

    /// [`Self::of`] for a row of gradients that is not combined with others: on a GPU also of `bf16`.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub(crate) fn of_row(row: &Tensor) -> Result<Self, Error> {
        match DeviceKernels::for_device(row.device()) {
            Some(kernels) if row.dtype() == DType::BF16 => Ok(Self::Device(kernels)),
            _ => Self::of(row),
        }
    }
}

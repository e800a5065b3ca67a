//! Which implementation of an operation runs.

use candle_core::{DType, Tensor};

use crate::kernels::DeviceKernels;

/// How an operation runs. All give the same result to rounding; the first two to the bit where nothing is summed.
#[derive(Debug, Clone)]
pub(crate) enum Path {
    /// A kernel of this crate over slices of `f32` on the CPU.
    Kernel,
    /// A kernel of this crate over `f32` on a GPU.
    Device(DeviceKernels),
    /// A composition of candle operations, on any device and for any float type.
    Composed,
}

impl Path {
    /// The path for operations on `tensor`.
    pub(crate) fn of(tensor: &Tensor) -> Self {
        if tensor.device().is_cpu() && tensor.dtype() == DType::F32 {
            return Self::Kernel;
        }
        DeviceKernels::of(tensor).map_or(Self::Composed, Self::Device)
    }
}

//! Loading the kernels.

use std::sync::Arc;

use candle_core::{CudaDevice, DType, Result, Tensor};
use cudarc::driver::{CudaFunction, CudaSlice, CudaStream, DeviceRepr};
use esper_graph::launch::Image;

static IMAGE: Image = Image::new(include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin")));

/// The kernels on one device.
#[derive(Debug, Clone)]
pub(crate) struct DeviceKernels {
    pub(super) device: CudaDevice,
}

impl DeviceKernels {
    /// The kernels for operations on `tensor`: of `f32`, on a GPU.
    pub(crate) fn of(tensor: &Tensor) -> Option<Self> {
        if tensor.dtype() != DType::F32 {
            return None;
        }
        Self::for_device(tensor.device())
    }

    /// The kernels on this device; none when it is no GPU.
    pub(crate) fn for_device(device: &candle_core::Device) -> Option<Self> {
        let candle_core::Device::Cuda(device) = device else { return None };
        Some(Self::on(device))
    }

    pub(crate) fn on(device: &CudaDevice) -> Self {
        Self { device: device.clone() }
    }

    /// Copies tensors of the type of `flat`, `f32` or `bf16`, to their offsets in it.
    pub(crate) fn gather(&self, flat: &Tensor, sources: &[(usize, &Tensor)]) -> Result<()> {
        esper_graph::kernels::gather(&self.device, flat, sources)
    }

    pub(super) fn stream(&self) -> Arc<CudaStream> {
        self.device.cuda_stream()
    }

    pub(super) fn function(&self, name: &'static str) -> Result<CudaFunction> {
        IMAGE.function(&self.device, name)
    }

    /// Memory for `len` elements with whatever is in it. The kernel that follows writes every element.
    pub(super) fn unwritten<T: DeviceRepr>(&self, len: usize) -> Result<CudaSlice<T>> {
        // SAFETY: only kernels of this module see the memory before it is written, and they write it first.
        unsafe { self.device.alloc(len) }
    }
}

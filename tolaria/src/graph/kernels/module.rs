//! Loading the kernels, and the shape of their launches.

use std::sync::Arc;

use candle_core::{CudaDevice, DType, Result, Storage, Tensor};
use cudarc::driver::{CudaFunction, CudaSlice, CudaStream, DeviceRepr, LaunchConfig};
use esper_layers::device::Image;

static IMAGE: Image = Image::new(include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin")));
/// Threads of a block; the reductions rely on it.
pub(super) const THREADS: u32 = 256;
/// Blocks in a row beyond which more of them gain nothing: threads take further elements in turn.
const MAX_BLOCKS: usize = 1024;

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

/// Enough blocks for `elements`, times `rows`.
pub(super) fn grid(elements: usize, rows: usize) -> LaunchConfig {
    let blocks = elements.div_ceil(THREADS as usize).clamp(1, MAX_BLOCKS);
    blocks_of(blocks, rows)
}

/// A grid of exactly so many blocks.
pub(super) fn blocks_of(blocks: usize, rows: usize) -> LaunchConfig {
    LaunchConfig { grid_dim: (count(blocks), count(rows), 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
}

/// One thread.
pub(super) fn single() -> LaunchConfig {
    LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 }
}

pub(super) fn count(value: usize) -> u32 {
    u32::try_from(value).expect("tensors of a step have fewer than 2^32 rows")
}

/// Confirms elements and type.
pub(super) fn expect(tensor: &Tensor, dtype: DType, elements: usize, what: &str) -> Result<()> {
    let on_device = matches!(&*tensor.storage_and_layout().0, Storage::Cuda(_));
    if tensor.dtype() == dtype && tensor.elem_count() == elements && on_device {
        return Ok(());
    }
    candle_core::bail!("{what}: expected {elements} elements of {dtype:?} on the GPU, found {tensor:?}")
}

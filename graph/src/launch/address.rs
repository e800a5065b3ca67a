//! Addresses of tensors on a GPU.

use candle_core::backend::BackendStorage as _;
use candle_core::cuda_backend::WrapErr as _;
use candle_core::{CudaStorage, DType, Error, Result, Storage, Tensor};
use cudarc::driver::{CudaSlice, DevicePtr as _, DriverError};

/// Address of the first element of a contiguous tensor on a CUDA device. It is valid as long as the tensor's storage.
///
/// # Errors
/// When the tensor is not contiguous or not on a GPU.
/// # Sync
/// none
pub fn address(tensor: &Tensor) -> Result<u64> {
    if !tensor.is_contiguous() {
        return Err(Error::RequiresContiguous { op: "kernel" }.bt());
    }
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        candle_core::bail!("a kernel of the GPU was given a tensor of another device")
    };
    address_of(storage, layout.start_offset())
}

/// Address of element `offset` of a storage.
///
/// # Errors
/// For types that no kernel takes.
/// # Sync
/// none
pub fn address_of(storage: &CudaStorage, offset: usize) -> Result<u64> {
    let dtype = storage.dtype();
    let base = match dtype {
        DType::F32 => pointer(storage.as_cuda_slice::<f32>()?),
        DType::F64 => pointer(storage.as_cuda_slice::<f64>()?),
        DType::U32 => pointer(storage.as_cuda_slice::<u32>()?),
        DType::U8 => pointer(storage.as_cuda_slice::<u8>()?),
        DType::I64 => pointer(storage.as_cuda_slice::<i64>()?),
        DType::I16 => pointer(storage.as_cuda_slice::<i16>()?),
        DType::F16 => pointer(storage.as_cuda_slice::<half::f16>()?),
        DType::BF16 => pointer(storage.as_cuda_slice::<half::bf16>()?),
        _ => return Err(Error::UnsupportedDTypeForOp(dtype, "kernel").bt()),
    };
    Ok(base + (offset * dtype.size_in_bytes()) as u64)
}

fn pointer<T>(slice: &CudaSlice<T>) -> u64 {
    // Where event tracking is on the guard records an event for the storage; the order of work on the one stream of a
    // candle device is what protects the memory either way.
    slice.device_ptr(slice.stream()).0
}

/// A driver's error as an error of the tensor library.
///
/// # Errors
/// The one given.
pub fn tensor_error<T>(result: std::result::Result<T, DriverError>) -> Result<T> {
    result.w()
}

/// Confirms type and number of elements of a tensor on a GPU; `what` names it in the message.
///
/// # Errors
/// When it is another one.
/// # Sync
/// none
pub fn expect(tensor: &Tensor, dtype: DType, elements: usize, what: &str) -> Result<()> {
    let on_device = matches!(&*tensor.storage_and_layout().0, Storage::Cuda(_));
    if tensor.dtype() == dtype && tensor.elem_count() == elements && on_device {
        return Ok(());
    }
    candle_core::bail!("{what}: expected {elements} elements of {dtype:?} on the GPU, found {tensor:?}")
}

//! The few driver calls that cudarc has no safe form of, and how their errors become refusals.

use candle_core::cuda_backend::WrapErr as _;
use candle_core::{CudaStorage, DType, Error, Result, Storage, Tensor};
use cudarc::driver::{DevicePtr, DriverError, sys};

use crate::graph::reason::{Refusal, Stage};

/// Turns a driver's error into a refusal.
pub(crate) fn refused(call: &'static str, stage: Stage) -> impl Fn(DriverError) -> Refusal {
    move |error| Refusal::Driver { call, stage, message: error.to_string() }
}

/// A raw result of the driver.
pub(crate) fn check(result: sys::CUresult, call: &'static str, stage: Stage) -> std::result::Result<(), Refusal> {
    result.result().map_err(refused(call, stage))
}

/// Address of the first element of a contiguous tensor on a CUDA device. It is valid as long as the tensor's storage.
pub(crate) fn address(tensor: &Tensor) -> Result<u64> {
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
pub(crate) fn address_of(storage: &CudaStorage, offset: usize) -> Result<u64> {
    use candle_core::backend::BackendStorage as _;
    let dtype = storage.dtype();
    let base = match dtype {
        DType::F32 => pointer(storage.as_cuda_slice::<f32>()?),
        DType::F64 => pointer(storage.as_cuda_slice::<f64>()?),
        DType::U32 => pointer(storage.as_cuda_slice::<u32>()?),
        DType::U8 => pointer(storage.as_cuda_slice::<u8>()?),
        DType::I64 => pointer(storage.as_cuda_slice::<i64>()?),
        DType::F16 => pointer(storage.as_cuda_slice::<half::f16>()?),
        DType::BF16 => pointer(storage.as_cuda_slice::<half::bf16>()?),
        _ => return Err(Error::UnsupportedDTypeForOp(dtype, "kernel").bt()),
    };
    Ok(base + (offset * dtype.size_in_bytes()) as u64)
}

fn pointer<T>(slice: &cudarc::driver::CudaSlice<T>) -> u64 {
    // With event tracking off the guard records nothing; the order of work on the stream is what protects the memory.
    slice.device_ptr(slice.stream()).0
}

/// A driver's error as an error of the tensor library.
pub(crate) fn tensor_error<T>(result: std::result::Result<T, DriverError>) -> Result<T> {
    result.w()
}

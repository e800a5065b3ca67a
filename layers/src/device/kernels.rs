//! The kernels of this crate.

use candle_core::backend::BackendStorage as _;
use candle_core::{CudaDevice, CudaStorage, DType, Device, Error, Layout, Result, Storage, Tensor};
use cudarc::driver::CudaFunction;
use cudarc::driver::sys::CUfunction_attribute;
use esper_graph::launch::{Image, address_of, tensor_error};

/// All of them, as one image.
pub(crate) static IMAGE: Image = Image::new(include_bytes!(concat!(env!("OUT_DIR"), "/layers.fatbin")));

/// The GPU that holds a tensor.
pub(crate) fn gpu_of(tensor: &Tensor) -> Result<&CudaDevice> {
    match tensor.device() {
        Device::Cuda(device) => Ok(device),
        _ => candle_core::bail!("a kernel of the GPU was given a tensor of another device"),
    }
}

/// Address of a whole operand of an operation, of `f32`.
pub(crate) fn operand(storage: &CudaStorage, layout: &Layout, op: &'static str) -> Result<u64> {
    if !layout.is_contiguous() {
        return Err(Error::RequiresContiguous { op }.bt());
    }
    storage.as_cuda_slice::<f32>()?;
    address_of(storage, layout.start_offset())
}

/// Address of the `extra` numbers that an operation of this crate keeps in the memory of its result, behind the result;
/// counted in its type.
///
/// An operation of candle has one result. The backward pass gets that very tensor, so that what belongs to it needs no
/// memory of its own, and lives as long.
pub(crate) fn behind(result: &Tensor, extra: usize) -> Result<u64> {
    let (storage, layout) = result.storage_and_layout();
    let end = layout.start_offset() + result.elem_count();
    let Storage::Cuda(storage) = &*storage else {
        candle_core::bail!("a kernel of the GPU was given a tensor of another device")
    };
    let held = match storage.dtype() {
        DType::BF16 => storage.as_cuda_slice::<half::bf16>()?.len(),
        _ => storage.as_cuda_slice::<f32>()?.len(),
    };
    match held {
        held if held == end + extra => address_of(storage, end),
        _ => candle_core::bail!("expected {extra} numbers behind the result, found {result:?} alone"),
    }
}

/// Above this much shared memory for a block, a kernel has to be allowed it.
const SHARED_BYTES: usize = 48 * 1024;
const MAX_SHARED_BYTES: CUfunction_attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;

/// Lets a block of a kernel have so much shared memory.
pub(crate) fn allow_shared_memory(function: &CudaFunction, bytes: usize) -> Result<()> {
    if bytes <= SHARED_BYTES {
        return Ok(());
    }
    tensor_error(function.set_attribute(MAX_SHARED_BYTES, count(bytes)?.cast_signed()))
}

/// Compute capability of cards whose own machine code multiplies by warpgroups.
const HOPPER: i32 = 90;

/// Whether a kernel is in machine code for Hopper itself.
pub(crate) fn is_of_hopper(function: &CudaFunction) -> Result<bool> {
    let versions = function.binary_version().and_then(|binary| Ok((binary, function.ptx_version()?)));
    Ok(tensor_error(versions)? == (HOPPER, HOPPER))
}

/// A count as kernels take it.
pub(crate) fn count(value: usize) -> Result<u32> {
    u32::try_from(value).map_err(|_| Error::Msg(format!("kernels count up to 2^32 - 1, found {value}")).bt())
}

/// Whether vectors of 16 bytes can be read at all of these addresses.
pub(crate) fn is_aligned(addresses: &[u64]) -> bool {
    addresses.iter().all(|address| address.is_multiple_of(16))
}

//! Arrays of numbers on a GPU, as kernels and products take them.

use std::marker::PhantomData;

use candle_core::backend::BackendStorage as _;
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, DType, Error, Layout, Result, Shape, Storage, Tensor};
use esper_graph::launch::address_of;

/// Types that kernels of layers take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scalar {
    /// `f32`.
    F32,
    /// `bf16`.
    Bf16,
    /// `f16`, of what is multiplied alone.
    F16,
}

impl Scalar {
    /// The kind of a tensor's elements.
    pub(crate) fn of(dtype: DType) -> Result<Self> {
        match dtype {
            DType::F32 => Ok(Self::F32),
            DType::BF16 => Ok(Self::Bf16),
            DType::F16 => Ok(Self::F16),
            _ => Err(Error::UnsupportedDTypeForOp(dtype, "layer").bt()),
        }
    }

    /// The type of a tensor of them.
    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }

    /// Bytes of one element.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }
}

/// A contiguous array, for as long as the storage behind it is borrowed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Array<'a> {
    address: u64,
    len: usize,
    scalar: Scalar,
    storage: PhantomData<&'a CudaStorage>,
}

impl<'a> Array<'a> {
    /// The elements of a storage that a layout names.
    ///
    /// # Errors
    /// When they are not contiguous, or of another type.
    pub(crate) fn of(storage: &'a CudaStorage, layout: &Layout) -> Result<Self> {
        if !layout.is_contiguous() {
            return Err(Error::RequiresContiguous { op: "layer" }.bt());
        }
        let scalar = Scalar::of(storage.dtype())?;
        let address = address_of(storage, layout.start_offset())?;
        Ok(Self { address, len: layout.shape().elem_count(), scalar, storage: PhantomData })
    }

    /// The elements of a tensor.
    ///
    /// # Errors
    /// When they are not contiguous, of another type, or not on a GPU.
    pub(crate) fn of_tensor(tensor: &'a Tensor) -> Result<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cuda(storage) = &*storage else {
            candle_core::bail!("a layer on the GPU was given a tensor of another device")
        };
        let Array { address, len, scalar, storage: _ } = Array::of(storage, layout)?;
        // The lock on the storage ends here; the tensor keeps the memory.
        Ok(Self { address, len, scalar, storage: PhantomData })
    }

    /// Its first byte.
    pub(crate) fn address(self) -> u64 {
        self.address
    }

    /// Number of elements.
    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// Type of the elements.
    pub(crate) fn scalar(self) -> Scalar {
        self.scalar
    }

    /// Length in bytes.
    pub(crate) fn bytes(self) -> usize {
        self.len * self.scalar.bytes()
    }
}

/// Memory for `len` elements, which whoever asks for it writes before anything reads it.
pub(crate) fn unwritten(device: &CudaDevice, len: usize, scalar: Scalar) -> Result<CudaStorage> {
    // SAFETY: numbers of any bits are valid, and the caller writes them first.
    unsafe {
        match scalar {
            Scalar::F32 => Ok(CudaStorage::wrap_cuda_slice(device.alloc::<f32>(len)?, device.clone())),
            Scalar::Bf16 => Ok(CudaStorage::wrap_cuda_slice(device.alloc::<half::bf16>(len)?, device.clone())),
            Scalar::F16 => Ok(CudaStorage::wrap_cuda_slice(device.alloc::<half::f16>(len)?, device.clone())),
        }
    }
}

/// A contiguous tensor that nothing can be traced back through.
pub(crate) fn tensor(storage: CudaStorage, shape: impl Into<Shape>) -> Tensor {
    Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false)
}

/// A tensor as [`unwritten`].
pub(crate) fn unwritten_tensor(device: &CudaDevice, shape: impl Into<Shape>, scalar: Scalar) -> Result<Tensor> {
    let shape = shape.into();
    Ok(tensor(unwritten(device, shape.elem_count(), scalar)?, shape))
}

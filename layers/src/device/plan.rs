//! A product as cuBLASLt describes it, and the algorithms that it knows for it.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

use candle_core::Result;
use cudarc::cublaslt::{result, sys};

use super::array::Scalar;
use super::library::{Choice, Handle, Key, library_error};
use super::product::Epilogue;
use crate::matrix::ByColumns;

/// As much memory as an algorithm may ask for.
const MAX_WORKSPACE: usize = 32 << 20;

/// A product as the library describes it.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) description: Description,
    pub(super) a: Matrix,
    pub(super) b: Matrix,
    pub(super) d: Matrix,
}

impl Plan {
    pub(super) fn new(key: &Key, epilogue: &Epilogue<'_>) -> Result<Self> {
        use sys::cublasComputeType_t::{CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32};
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let swapped = key.product.swapped();
        let compute = if key.is_tf32 { CUBLAS_COMPUTE_32F_FAST_TF32 } else { CUBLAS_COMPUTE_32F };
        let description = Description::new(compute)?;
        description.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, i32::from(swapped.a.is_transposed))?;
        description.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, i32::from(swapped.b.is_transposed))?;
        description.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, key.epilogue)?;
        if let Some(array) = epilogue.bias() {
            description.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, array.address())?;
        }
        if let Some(array) = epilogue.pre_activation() {
            description.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, array.address())?;
            description.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, swapped.d.rows as u64)?;
        }
        let [left, right, result] = key.scalars;
        Ok(Self {
            description,
            a: Matrix::new(swapped.a, right)?,
            b: Matrix::new(swapped.b, left)?,
            d: Matrix::new(swapped.d, result)?,
        })
    }

    /// The algorithm that the library expects to be the fastest: the same for the same key, in every process. None where it
    /// has none.
    pub(super) fn algorithm(&self, handle: Handle, key: &Key) -> Result<Option<Choice>> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        use sys::cublasStatus_t::{CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_NOT_SUPPORTED, CUBLAS_STATUS_SUCCESS};
        let preference = Preference::new()?;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, MAX_WORKSPACE as u64)?;
        let [left, right, result] = key.alignments;
        for (attribute, alignment) in [
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, right),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, left),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, result),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, result),
        ] {
            preference.set(attribute, alignment)?;
        }
        let mut found = MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed();
        let mut num_found: c_int = 0;
        // SAFETY: all descriptions live, and there is a place for the one result.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                handle.0,
                self.description.0,
                self.a.0,
                self.b.0,
                self.d.0,
                self.d.0,
                preference.0,
                1,
                found.as_mut_ptr(),
                &raw mut num_found,
            )
        };
        match status.result() {
            Ok(()) => {}
            Err(error) if matches!(error.0, CUBLAS_STATUS_NOT_SUPPORTED | CUBLAS_STATUS_INVALID_VALUE) => {
                return Ok(None);
            }
            Err(error) => return library_error(Err(error)),
        }
        if num_found == 0 {
            return Ok(None);
        }
        // SAFETY: the library has written one result.
        let found = unsafe { found.assume_init() };
        let is_usable = found.state == CUBLAS_STATUS_SUCCESS;
        Ok(is_usable.then_some(Choice { algorithm: found.algo, workspace: found.workspaceSize }))
    }
}

/// How a product is done. It is destroyed with this.
#[derive(Debug)]
pub(super) struct Description(pub(super) sys::cublasLtMatmulDesc_t);

impl Description {
    fn new(compute: sys::cublasComputeType_t) -> Result<Self> {
        library_error(result::create_matmul_desc(compute, sys::cudaDataType_t::CUDA_R_32F)).map(Self)
    }

    fn set<T: Copy>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: T) -> Result<()> {
        let from: *const T = ptr::from_ref(&value);
        // SAFETY: the library copies as many bytes as the value has, and compares their number with its own.
        library_error(unsafe { result::set_matmul_desc_attribute(self.0, attribute, from.cast(), size_of::<T>()) })
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: created by `new`, and dropped once.
        let destroyed = unsafe { result::destroy_matmul_desc(self.0) };
        debug_assert!(destroyed.is_ok());
    }
}

/// How a matrix is stored. It is destroyed with this.
#[derive(Debug)]
pub(super) struct Matrix(pub(super) sys::cublasLtMatrixLayout_t);

impl Matrix {
    fn new(stored: ByColumns, scalar: Scalar) -> Result<Self> {
        let kind = match scalar {
            Scalar::F32 => sys::cudaDataType_t::CUDA_R_32F,
            Scalar::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
            Scalar::F16 => sys::cudaDataType_t::CUDA_R_16F,
        };
        let leading = stored.rows.cast_signed() as i64;
        library_error(result::create_matrix_layout(kind, stored.rows as u64, stored.columns as u64, leading)).map(Self)
    }
}

impl Drop for Matrix {
    fn drop(&mut self) {
        // SAFETY: created by `new`, and dropped once.
        let destroyed = unsafe { result::destroy_matrix_layout(self.0) };
        debug_assert!(destroyed.is_ok());
    }
}

/// What is asked of an algorithm. It is destroyed with this.
#[derive(Debug)]
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new() -> Result<Self> {
        library_error(result::create_matmul_pref()).map(Self)
    }

    fn set<T: Copy>(&self, attribute: sys::cublasLtMatmulPreferenceAttributes_t, value: T) -> Result<()> {
        let from: *const T = ptr::from_ref(&value);
        // SAFETY: the library copies as many bytes as the value has, and compares their number with its own.
        library_error(unsafe { result::set_matmul_pref_attribute(self.0, attribute, from.cast(), size_of::<T>()) })
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: created by `new`, and dropped once.
        let destroyed = unsafe { result::destroy_matmul_pref(self.0) };
        debug_assert!(destroyed.is_ok());
    }
}

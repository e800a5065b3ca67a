//! Products of matrices with what follows them, as one call of cuBLASLt.

use std::ffi::c_void;

use candle_core::cuda_backend::gemm_reduced_precision_f32;
use candle_core::{CudaDevice, Result};
use cudarc::cublaslt::{result, sys};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr as _};
use esper_graph::launch::{Effect, declare, tensor_error};

use super::array::{Array, Scalar};
use super::library::{Choice, Handle, Key, choose, library_error};
use super::plan::Plan;
use super::split::split_product;
use super::transpose::{is_better_transposed, transposed};
use crate::matrix::Product;

/// Who rewrites a recorded launch may move its addresses by a multiple of this (see [`Effect`]): no algorithm is asked for
/// that relies on more.
const MAX_ALIGNMENT: u32 = 16;

/// Rows of the values before an activation have to be multiples of this many elements.
const PRE_ACTIVATION_MULTIPLE: usize = 8;

/// What is done with a product (m, n) besides writing it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Epilogue<'a> {
    /// Nothing.
    None,
    /// A bias (n) is added to each row.
    Bias(Array<'a>),
    /// Then max(0, ·) is taken.
    Relu(Option<Array<'a>>),
    /// Then the form of `gelu` with tanh is taken; the values before it (m, n) are kept if there is a place for them.
    Gelu { bias: Option<Array<'a>>, pre_activation: Option<Array<'a>> },
}

impl<'a> Epilogue<'a> {
    fn code(&self) -> sys::cublasLtEpilogue_t {
        use sys::cublasLtEpilogue_t as E;
        match self {
            Self::None => E::CUBLASLT_EPILOGUE_DEFAULT,
            Self::Bias(_) => E::CUBLASLT_EPILOGUE_BIAS,
            Self::Relu(None) => E::CUBLASLT_EPILOGUE_RELU,
            Self::Relu(Some(_)) => E::CUBLASLT_EPILOGUE_RELU_BIAS,
            Self::Gelu { bias: None, pre_activation: None } => E::CUBLASLT_EPILOGUE_GELU,
            Self::Gelu { bias: Some(_), pre_activation: None } => E::CUBLASLT_EPILOGUE_GELU_BIAS,
            Self::Gelu { bias: None, pre_activation: Some(_) } => E::CUBLASLT_EPILOGUE_GELU_AUX,
            Self::Gelu { bias: Some(_), pre_activation: Some(_) } => E::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        }
    }

    pub(super) fn bias(&self) -> Option<Array<'a>> {
        match *self {
            Self::None => None,
            Self::Bias(bias) => Some(bias),
            Self::Relu(bias) | Self::Gelu { bias, .. } => bias,
        }
    }

    pub(super) fn pre_activation(&self) -> Option<Array<'a>> {
        match *self {
            Self::Gelu { pre_activation, .. } => pre_activation,
            _ => None,
        }
    }

    /// As the kernels know it (`kernels/linear.cu`).
    pub(super) fn activation(&self) -> u32 {
        match self {
            Self::None | Self::Bias(_) => 0,
            Self::Relu(_) => 1,
            Self::Gelu { .. } => 2,
        }
    }

    /// Whether the arrays have the sizes, and the type of the result, that they must have.
    fn fits(&self, product: &Product, scalar: Scalar) -> bool {
        let of_size = |array: Option<Array<'_>>, len| array.is_none_or(|a| a.len() == len && a.scalar() == scalar);
        of_size(self.bias(), product.n) && of_size(self.pre_activation(), product.m * product.n)
    }
}

/// Writes L·R to `result`, added up as `f32`. False where the library cannot do it with this epilogue: then nothing was
/// done. Operands of `f32` are rounded to TF32 if candle's switch for its own products says so; otherwise [`split_product`] is asked first.
///
/// # Errors
/// When sizes do not fit together, or the library fails.
/// # Sync
/// none
pub(crate) fn multiply(
    device: &CudaDevice,
    product: &Product,
    (left, right): (Array<'_>, Array<'_>),
    result: Array<'_>,
    epilogue: &Epilogue<'_>,
) -> Result<bool> {
    let (m, n, k) = (product.m, product.n, product.k);
    let fits = (left.len(), right.len(), result.len()) == (m * k, k * n, m * n);
    if !fits || m * n * k == 0 || !epilogue.fits(product, result.scalar()) || left.scalar() != right.scalar() {
        candle_core::bail!("a product of sizes that do not fit: {product:?} of {left:?}, {right:?}, {epilogue:?}")
    }
    if split_product(device, product, (left, right), result, epilogue)? {
        return Ok(true);
    }
    if epilogue.pre_activation().is_some() && !n.is_multiple_of(PRE_ACTIVATION_MULTIPLE) {
        return Ok(false);
    }
    let is_tf32 = left.scalar() == Scalar::F32 && gemm_reduced_precision_f32();
    if is_tf32 && is_better_transposed(device, product)? {
        let (left, right) = (transposed(device, left, (k, m))?, transposed(device, right, (k, n))?);
        let factors = (Array::of_tensor(&left)?, Array::of_tensor(&right)?);
        let product = Product { is_left_transposed: false, is_right_transposed: true, ..*product };
        return multiply(device, &product, factors, result, epilogue);
    }
    let beside = [epilogue.bias(), epilogue.pre_activation()];
    // The library asks for no alignment of what belongs to an epilogue: as for the result, which it goes along with.
    let of_result = beside.into_iter().flatten().map(alignment).fold(alignment(result), u32::min);
    let key = Key {
        product: *product,
        scalars: [left.scalar(), right.scalar(), result.scalar()],
        is_tf32,
        epilogue: epilogue.code() as u32,
        alignments: [alignment(left), alignment(right), of_result],
    };
    let stream = device.cuda_stream();
    tensor_error(stream.context().bind_to_thread())?;
    let plan = Plan::new(&key, epilogue)?;
    let call = Call { plan: &plan, left, right, result };
    let (handle, choice) = choose(device, key, |handle| plan.algorithm(handle, &key))?;
    let Some(choice) = choice else { return Ok(false) };
    let workspace = workspace(device, choice.workspace)?;
    let place = workspace.as_ref().map_or(0, |slice| slice.device_ptr(&stream).0);
    let effect = || match choice.workspace {
        0 => effect_of((left, right), result, epilogue),
        bytes => effect_of((left, right), result, epilogue).updating(place, bytes),
    };
    declare(&stream, effect, || call.run(handle, &choice, place, &stream))?;
    Ok(true)
}

/// What a product reads and writes.
pub(super) fn effect_of((left, right): (Array<'_>, Array<'_>), result: Array<'_>, epilogue: &Epilogue<'_>) -> Effect {
    let read = [Some(left), Some(right), epilogue.bias()].into_iter().flatten();
    let written = [Some(result), epilogue.pre_activation()].into_iter().flatten();
    let effect = read.fold(Effect::new(), |effect, array| effect.reading(array.address(), array.bytes()));
    written.fold(effect, |effect, array| effect.writing(array.address(), array.bytes()))
}

/// Memory of an algorithm's own.
fn workspace(device: &CudaDevice, bytes: usize) -> Result<Option<CudaSlice<u8>>> {
    if bytes == 0 {
        return Ok(None);
    }
    // SAFETY: bytes of any value; the library writes what it reads.
    Ok(Some(unsafe { device.alloc::<u8>(bytes)? }))
}

/// A product with its arrays, which have the sizes that its plan says.
#[derive(Debug)]
struct Call<'a> {
    plan: &'a Plan,
    left: Array<'a>,
    right: Array<'a>,
    result: Array<'a>,
}

impl Call<'_> {
    /// Enqueues the product; `workspace` is the address of as many bytes as the choice wants.
    fn run(&self, handle: Handle, choice: &Choice, workspace: u64, stream: &CudaStream) -> Result<()> {
        let (alpha, beta) = (1.0_f32, 0.0_f32);
        // SAFETY: the plan lives, and the arrays, whose sizes were compared with it, as long as their borrows; the
        // workspace is freed on the stream, after the product. The result is not read as C, because beta is 0.
        let status = unsafe {
            result::matmul(
                handle.0,
                self.plan.description.0,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                self.right.address() as *const c_void,
                self.plan.a.0,
                self.left.address() as *const c_void,
                self.plan.b.0,
                self.result.address() as *const c_void,
                self.plan.d.0,
                self.result.address() as *mut c_void,
                self.plan.d.0,
                &raw const choice.algorithm,
                workspace as *mut c_void,
                choice.workspace,
                stream.cu_stream().cast(),
            )
        };
        library_error(status)
    }
}

/// The largest power of two that divides an address, as far as the library asks.
fn alignment(array: Array<'_>) -> u32 {
    1 << array.address().trailing_zeros().min(MAX_ALIGNMENT.trailing_zeros())
}

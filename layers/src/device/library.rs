//! The library of products on each device, and the algorithms it chose.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use candle_core::cuda_backend::DeviceId;
use candle_core::{CudaDevice, Error, Result};
use cudarc::cublaslt::result::{CublasError, create_handle};
use cudarc::cublaslt::sys;

use super::array::Scalar;
use crate::matrix::Product;

/// All that a choice of an algorithm depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) product: Product,
    /// Types of L, R and the result.
    pub(super) scalars: [Scalar; 3],
    /// Operands of `f32` are rounded to TF32.
    pub(super) is_tf32: bool,
    /// The library's number of what follows the product.
    pub(super) epilogue: u32,
    /// Multiples of which the addresses of L, R and the result are.
    pub(super) alignments: [u32; 3],
}

/// An algorithm.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    pub(super) algorithm: sys::cublasLtMatmulAlgo_t,
    /// Bytes of memory of its own that it needs.
    pub(super) workspace: usize,
}

/// A handle of the library, which threads may share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handle(pub(super) sys::cublasLtHandle_t);

// SAFETY: the library is documented to be called from several threads with one handle; it holds no stream.
unsafe impl Send for Handle {}

#[derive(Debug)]
struct Library {
    device: DeviceId,
    handle: Handle,
    /// None where the library has no algorithm.
    choices: BTreeMap<Key, Option<Choice>>,
}

/// Nothing tells when a device goes, so that handles stay until the process ends; see `Image`.
static LIBRARIES: Mutex<Vec<Library>> = Mutex::new(Vec::new());

/// The handle of a device and the algorithm for `key`, which `ask` finds where it is needed for the first time. The
/// context of the device must be current on this thread.
pub(super) fn choose(
    device: &CudaDevice,
    key: Key,
    ask: impl FnOnce(Handle) -> Result<Option<Choice>>,
) -> Result<(Handle, Option<Choice>)> {
    let mut libraries = LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner);
    let id = device.id();
    let index = match libraries.iter().position(|library| library.device == id) {
        Some(index) => index,
        None => {
            let handle = Handle(library_error(create_handle())?);
            libraries.push(Library { device: id, handle, choices: BTreeMap::new() });
            libraries.len() - 1
        }
    };
    let library = &mut libraries[index];
    if let Some(choice) = library.choices.get(&key) {
        return Ok((library.handle, *choice));
    }
    let choice = ask(library.handle)?;
    library.choices.insert(key, choice);
    Ok((library.handle, choice))
}

/// An error of the library as one of the tensor library.
pub(super) fn library_error<T>(result: std::result::Result<T, CublasError>) -> Result<T> {
    result.map_err(|error| Error::Cuda(Box::new(error)).bt())
}

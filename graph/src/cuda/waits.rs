//! Which recorded kernels wait for their inputs.

use std::collections::BTreeMap;
use std::ptr;

use cudarc::driver::sys;

use super::inspect::kernel_params;

/// What an image has beside its kernels where all of them wait: see the crate `kernel-build`, which compiles no other.
const MARK: &str = concat!(env!("KERNELS_WAIT"), "\0");

/// What is known of modules, by their handles.
#[derive(Debug, Default)]
pub(super) struct Waiting(BTreeMap<usize, bool>);

impl Waiting {
    /// Whether a node is a kernel of an image whose kernels wait. The context is current.
    pub(super) fn has(&mut self, node: sys::CUgraphNode) -> bool {
        let Ok(params) = kernel_params(node) else { return false };
        // Some kernels of libraries have no function.
        if params.func.is_null() {
            return false;
        }
        let mut module = ptr::null_mut();
        // SAFETY: the function is that of a node of a live graph; the call writes a handle.
        let found = unsafe { sys::cuFuncGetModule(&raw mut module, params.func) };
        if found != sys::CUresult::CUDA_SUCCESS {
            return false;
        }
        *self.0.entry(module as usize).or_insert_with(|| {
            let mut mark = ptr::null_mut();
            // SAFETY: the module is loaded, and the name ends with a zero byte; the call writes a handle.
            unsafe {
                sys::cuModuleGetFunction(&raw mut mark, module, MARK.as_ptr().cast()) == sys::CUresult::CUDA_SUCCESS
            }
        })
    }
}

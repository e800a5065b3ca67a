//! Candle's kernels as machine code for the card that the build names, so that the driver compiles nothing when the first of them runs.

use std::sync::Arc;

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaModule, DriverError};
use cudarc::nvrtc::Ptx;

use crate::cuda_backend::kernels::{Module, ALL_IDS};

/// By the name of the module; none where the build names no card.
const IMAGES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/images.rs"));

/// A module of candle: its machine code where the card takes it, else its portable code, which the driver compiles and keeps.
pub(crate) fn load(context: &Arc<CudaContext>, module: &Module) -> Result<Arc<CudaModule>, DriverError> {
    let name = format!("{:?}", ALL_IDS[module.index()]).to_lowercase();
    if let Some((_, code)) = IMAGES.iter().find(|(of, _)| *of == name) {
        match context.load_module(Ptx::from_binary(code.to_vec())) {
            // Code of another card.
            Err(DriverError(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU)) => {}
            loaded => return loaded,
        }
    }
    context.load_module(module.ptx().into())
}

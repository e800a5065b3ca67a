//! Machine code of kernels, loaded once per device.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::cuda_backend::DeviceId;
use candle_core::{CudaDevice, Result};
use cudarc::driver::{CudaFunction, CudaModule};
use cudarc::nvrtc::Ptx;

use super::address::tensor_error;

/// Kernels inside the program: a fat binary, which loads without compiling anything, or portable code.
#[derive(Debug)]
pub struct Image {
    bytes: &'static [u8],
    /// A candle device has a context object of its own, and nothing tells when it goes; its module stays until the
    /// process ends, as the device's own modules do while something refers to them.
    modules: Mutex<Vec<Loaded>>,
}

#[derive(Debug)]
struct Loaded {
    device: DeviceId,
    module: Arc<CudaModule>,
    /// Asking the driver for a function at every launch would cost more than the launch.
    functions: BTreeMap<&'static str, CudaFunction>,
}

impl Image {
    /// The kernels in `bytes`.
    #[must_use]
    pub const fn new(bytes: &'static [u8]) -> Self {
        Self { bytes, modules: Mutex::new(Vec::new()) }
    }

    /// The function with this name, on a device.
    ///
    /// # Errors
    /// When the driver cannot load the image, or there is no such function.
    /// # Sync
    /// none
    pub fn function(&self, device: &CudaDevice, name: &'static str) -> Result<CudaFunction> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let id = device.id();
        let index = match modules.iter().position(|loaded| loaded.device == id) {
            Some(index) => index,
            None => {
                let stream = device.cuda_stream();
                let module = tensor_error(stream.context().load_module(Ptx::from_binary(self.bytes.to_vec())))?;
                modules.push(Loaded { device: id, module, functions: BTreeMap::new() });
                modules.len() - 1
            }
        };
        let loaded = &mut modules[index];
        if let Some(function) = loaded.functions.get(name) {
            return Ok(function.clone());
        }
        let function = tensor_error(loaded.module.load_function(name))?;
        loaded.functions.insert(name, function.clone());
        Ok(function)
    }
}

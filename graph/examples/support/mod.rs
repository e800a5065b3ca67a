//! What the examples share: the device that they are told to use.

use std::error::Error;

use candle_core::Device;

/// The CPU, or the GPU that the first argument names, on a stream of its own.
///
/// # Errors
/// When the argument is no `cuda:N`, and when there is no such GPU.
pub(crate) fn device() -> Result<Device, Box<dyn Error>> {
    match std::env::args().nth(1) {
        None => Ok(Device::Cpu),
        Some(name) => {
            let ordinal = name.strip_prefix("cuda:").ok_or("expected cuda:<ordinal>")?.parse()?;
            Ok(Device::new_cuda_with_stream(ordinal)?)
        }
    }
}

//! When a part of a network is computed again on a GPU.

use candle_core::{Result, Tensor};
use cudarc::driver::{LaunchConfig, PushKernelArg as _};
use esper_graph::launch::{Effect, address, declare, tensor_error};

use super::{IMAGE, gpu_of};

/// What is computed from `input` from now on comes after `gradient` also where a compiled graph has forgotten the recorded order: earlier,
/// its results would lie in memory all the time that they were to be away.
///
/// Nothing happens to a variable, which is no part's result, nor to tensors that are not contiguous.
pub(crate) fn hold_back(input: &Tensor, gradient: &Tensor) -> Result<()> {
    if input.is_variable() || !input.is_contiguous() || !gradient.is_contiguous() {
        return Ok(());
    }
    let (source, target) = (address(gradient)?, address(input)?);
    let bytes = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
    let device = gpu_of(input)?;
    let function = IMAGE.function(device, "recompute_hold_back")?;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&source).arg(&target);
    let effect = || Effect::new().reading(source, bytes(gradient)).updating(target, bytes(input));
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the kernel touches no memory.
    declare(&stream, effect, || tensor_error(unsafe { launch.launch(config) }))?;
    Ok(())
}

//! An order that a compiled graph keeps, though no numbers ask for it.

use candle_core::{Result, Tensor};
use cudarc::driver::{LaunchConfig, PushKernelArg as _};
use esper_graph::launch::{Effect, address, declare, tensor_error};

use super::{IMAGE, gpu_of};

/// Tensors that one launch waits for: as many addresses as the kernel takes.
const AT_ONCE: usize = 4;

/// What reads `after` from now on comes after what wrote the tensors `before`, in a compiled graph too, which has forgotten the recorded order.
///
/// Only of contiguous tensors: others are not waited for, and do not wait.
pub(crate) fn keep_order(after: &Tensor, before: &[&Tensor]) -> Result<()> {
    if !after.is_contiguous() {
        return Ok(());
    }
    let bytes = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
    let device = gpu_of(after)?;
    let function = IMAGE.function(device, "recompute_order")?;
    let stream = device.cuda_stream();
    let (target, before): (u64, Vec<_>) =
        (address(after)?, before.iter().filter(|tensor| tensor.is_contiguous()).collect());
    for some in before.chunks(AT_ONCE) {
        let mut sources = [0; AT_ONCE];
        for (source, tensor) in sources.iter_mut().zip(some) {
            *source = address(tensor)?;
        }
        let mut launch = stream.launch_builder(&function);
        launch.arg(&target);
        sources.iter().for_each(|source| {
            launch.arg(source);
        });
        let effect = || {
            let reads = sources.iter().zip(some);
            reads.fold(Effect::new().updating(target, bytes(after)), |effect, (source, tensor)| {
                effect.reading(*source, bytes(tensor))
            })
        };
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the kernel touches no memory.
        declare(&stream, effect, || tensor_error(unsafe { launch.launch(config) }))?;
    }
    Ok(())
}

//! Random numbers from a counter on the device.

use candle_core::{CudaStorage, Layout, Result, Shape};
use cudarc::driver::{DevicePtr as _, PushKernelArg as _};
use esper_graph::launch::{Effect, address, address_of, declare, expect, grid, single, tensor_error};

use super::args::MaskArgs;
use super::module::DeviceKernels;

/// A mask for `shape`, drawn at the counter `state` (2,) of `u32`.
pub(crate) fn dropout_mask(
    state: (&CudaStorage, &Layout),
    args: MaskArgs,
    shape: &Shape,
) -> Result<(CudaStorage, Shape)> {
    let kernels = DeviceKernels::on(&state.0.device);
    state.0.as_cuda_slice::<u32>()?;
    if state.1.shape().elem_count() != 2 || !state.1.is_contiguous() {
        candle_core::bail!("dropout: expected a counter of 2 words, found {:?}", state.1.shape())
    }
    let counter = address_of(state.0, state.1.start_offset())?;
    let elements = shape.elem_count();
    let mask = kernels.unwritten::<f32>(elements)?;
    let stream = kernels.stream();
    let (target, count) = (mask.device_ptr(&stream).0, elements as u64);
    let function = kernels.function("dropout_mask")?;
    let mut launch = stream.launch_builder(&function);
    launch.arg(&counter).arg(&args.key[0]).arg(&args.key[1]).arg(&args.layer).arg(&args.drop).arg(&args.scale);
    launch.arg(&target).arg(&count);
    // SAFETY: the counter has two words and the mask `elements` places.
    let launch = || tensor_error(unsafe { launch.launch(grid(elements.div_ceil(4), 1)) });
    declare(&stream, || Effect::new().reading(counter, 8).writing(target, 4 * elements), launch)?;
    Ok((CudaStorage::wrap_cuda_slice(mask, kernels.device), shape.clone()))
}

impl DeviceKernels {
    /// Adds 1 to the counter, of 2 words of `u32`.
    pub(crate) fn advance_counter(&self, state: &candle_core::Tensor) -> Result<()> {
        expect(state, candle_core::DType::U32, 2, "a counter")?;
        let counter = address(state)?;
        let function = self.function("advance_counter")?;
        let stream = self.stream();
        let mut launch = stream.launch_builder(&function);
        launch.arg(&counter);
        // SAFETY: the counter has two words.
        let launch = || tensor_error(unsafe { launch.launch(single()) });
        declare(&stream, || Effect::new().updating(counter, 8), launch).map(drop)
    }
}

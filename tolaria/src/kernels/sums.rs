//! Sums of an epoch.

use candle_core::{DType, Result, Tensor};
use cudarc::driver::PushKernelArg as _;
use esper_graph::launch::{Effect, address, count, declare, expect, grid, tensor_error};

use super::args::FoldKind;
use super::module::DeviceKernels;

impl DeviceKernels {
    /// Folds `addend`, of `f32` or `f64`, into `sums`, of `f64` and as many elements, in place.
    pub(crate) fn fold(&self, sums: &Tensor, addend: &Tensor, kind: FoldKind) -> Result<()> {
        let len = sums.elem_count();
        expect(sums, DType::F64, len, "sums")?;
        expect(addend, addend.dtype(), len, "what is added to sums")?;
        let (kernel, scale) = match (kind, addend.dtype()) {
            (FoldKind::AddScaled(scale), DType::F32) => ("add_scaled_f32", scale),
            (FoldKind::AddScaled(scale), DType::F64) => ("add_scaled_f64", scale),
            (FoldKind::CountHealthy, DType::F64) => ("count_healthy_f64", 0.0),
            (_, dtype) => candle_core::bail!("sums: {dtype:?} cannot be added"),
        };
        let (target, source, elements) = (address(sums)?, address(addend)?, count(len));
        let function = self.function(kernel)?;
        let stream = self.stream();
        let mut launch = stream.launch_builder(&function);
        launch.arg(&target).arg(&source).arg(&scale).arg(&elements);
        // SAFETY: both tensors have `len` elements of the kernel's types.
        let launch = || tensor_error(unsafe { launch.launch(grid(len, 1)) });
        let added = len * addend.dtype().size_in_bytes();
        declare(&stream, || Effect::new().updating(target, 8 * len).reading(source, added), launch).map(drop)
    }
}

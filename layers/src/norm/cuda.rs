//! Layer normalization on a GPU.

use candle_core::backend::BackendStorage as _;
use candle_core::{CpuStorage, CudaStorage, CustomOp3, Error, Layout, Result, Shape, Tensor};
use cudarc::driver::{LaunchConfig, PushKernelArg as _};
use esper_graph::launch::{Effect, address, declare, tensor_error};

use super::plan::Plan;
use crate::device::{Array, IMAGE, Scalar, behind, count, gpu_of, is_aligned, operand, unwritten, unwritten_tensor};

/// Bytes of a number.
const NUMBER: usize = size_of::<f32>();
/// Mean and reciprocal standard deviation.
const STATISTICS: usize = 2;
/// Columns of a block that sums over groups of rows, and the shares into which it divides them.
const COLUMNS: (u32, u32) = (32, 16);

/// The result in `f32`, or in `bf16` where a kernel writes it.
pub(super) fn layer_norm(x: &Tensor, scale: &Tensor, shift: &Tensor, epsilon: f64, wants_half: bool) -> Result<Tensor> {
    #[expect(clippy::cast_possible_truncation, reason = "the kernel computes in single precision")]
    let epsilon = epsilon as f32;
    let (x, scale, shift) = (x.contiguous()?, scale.contiguous()?, shift.contiguous()?);
    let all = is_aligned(&[address(&x)?, address(&scale)?, address(&shift)?]);
    let is_half = wants_half && Plan::of(rows_of(x.dims()).1, all).in_half().is_some();
    let scalar = if is_half { Scalar::Bf16 } else { Scalar::F32 };
    x.apply_op3(&scale, &shift, LayerNorm { epsilon, scalar })
}

#[derive(Debug)]
struct LayerNorm {
    epsilon: f32,
    /// Of the result.
    scalar: Scalar,
}

impl LayerNorm {
    fn plan(&self, width: usize, is_aligned: bool) -> Result<Plan> {
        let plan = Plan::of(width, is_aligned);
        let found = if self.scalar == Scalar::F32 { Some(plan) } else { plan.in_half() };
        found.ok_or_else(|| Error::Msg(format!("layer norm: no kernel for rows of {width} in halves")).bt())
    }

    /// Elements of the result that the statistics of `rows` rows take behind it.
    fn extra(&self, rows: usize) -> usize {
        rows * STATISTICS * NUMBER / self.scalar.bytes()
    }
}

impl CustomOp3 for LayerNorm {
    fn name(&self) -> &'static str {
        "layer-norm"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!("layer norm: the CPU composes it of other operations")
    }

    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        scale: &CudaStorage,
        scale_layout: &Layout,
        shift: &CudaStorage,
        shift_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let device = x.device().clone();
        let (rows, width) = rows_of(x_layout.dims());
        let (x, scale) = (operand(x, x_layout, "layer-norm")?, operand(scale, scale_layout, "layer-norm")?);
        let shift = operand(shift, shift_layout, "layer-norm")?;
        let elements = rows * width + self.extra(rows);
        let result = unwritten(&device, elements, self.scalar)?;
        let stream = device.cuda_stream();
        let y = Array::of(&result, &Layout::contiguous(elements))?.address();
        let statistics = y + (rows * width * self.scalar.bytes()) as u64;
        let plan = self.plan(width, is_aligned(&[x, scale, shift, y]))?;
        let function = IMAGE.function(&device, plan.forward)?;
        let (num_rows, num_columns) = (count(rows)?, count(width)?);
        let mut launch = stream.launch_builder(&function);
        launch.arg(&x).arg(&scale).arg(&shift).arg(&y).arg(&statistics);
        launch.arg(&num_rows).arg(&num_columns).arg(&self.epsilon);
        let effect = || {
            Effect::new()
                .reading(x, rows * width * NUMBER)
                .reading(scale, width * NUMBER)
                .reading(shift, width * NUMBER)
                .writing(y, elements * self.scalar.bytes())
        };
        let config = blocks((count(plan.blocks(rows))?, 1), (plan.threads, 1));
        // SAFETY: rows and width are those of the operands, which are whole, and of the memory taken above.
        declare(&stream, effect, || tensor_error(unsafe { launch.launch(config) }))?;
        Ok((result, x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        scale: &Tensor,
        shift: &Tensor,
        result: &Tensor,
        upstream: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let mut upstream = upstream.contiguous()?;
        if self.scalar != Scalar::F32 && !is_aligned(&[address(&upstream)?]) {
            upstream = upstream.force_contiguous()?;
        }
        let device = gpu_of(x)?;
        let (rows, width) = rows_of(x.dims());
        let (values, scales) = (address(x)?, address(scale)?);
        let (statistics, gradients) = (behind(result, self.extra(rows))?, address(&upstream)?);
        // The gradient of x, which has its shape, is fresh memory: aligned.
        let plan = self.plan(width, is_aligned(&[values, scales, gradients]))?;
        let groups = plan.groups(rows);
        let x_gradient = x.track_op().then(|| unwritten_tensor(device, x.shape(), Scalar::F32)).transpose()?;
        let has_sums = scale.track_op() || shift.track_op();
        let partials = has_sums.then(|| unwritten_tensor(device, (2, groups, width), Scalar::F32)).transpose()?;

        let x_target = x_gradient.as_ref().map(address).transpose()?;
        let partials_target = partials.as_ref().map(address).transpose()?;
        let (num_rows, num_columns) = (count(rows)?, count(width)?);
        let function = IMAGE.function(device, plan.backward)?;
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&function);
        let (x_argument, partials_argument) = (x_target.unwrap_or(0), partials_target.unwrap_or(0));
        launch.arg(&values).arg(&scales).arg(&statistics).arg(&gradients).arg(&x_argument).arg(&partials_argument);
        launch.arg(&num_rows).arg(&num_columns);
        let effect = || {
            let reads = Effect::new()
                .reading(values, rows * width * NUMBER)
                .reading(scales, width * NUMBER)
                .reading(statistics, rows * STATISTICS * NUMBER)
                .reading(gradients, rows * width * self.scalar.bytes());
            let targets = [(x_target, rows * width), (partials_target, 2 * groups * width)];
            targets.into_iter().fold(reads, |effect, (target, numbers)| match target {
                Some(target) => effect.writing(target, numbers * NUMBER),
                None => effect,
            })
        };
        let config = blocks((count(groups)?, 1), (plan.threads, 1));
        // SAFETY: all operands have the rows and the width given; there is a partial sum per block.
        declare(&stream, effect, || tensor_error(unsafe { launch.launch(config) }))?;

        let (scale_gradient, shift_gradient) = match partials {
            Some(partials) => {
                let (scales, shifts) = columns(&partials)?;
                (scale.track_op().then_some(scales), shift.track_op().then_some(shifts))
            }
            None => (None, None),
        };
        Ok((x_gradient, scale_gradient, shift_gradient))
    }
}

/// Sums of the partial sums (2, groups, width) over the groups: those of scale and of shift.
fn columns(partials: &Tensor) -> Result<(Tensor, Tensor)> {
    let device = gpu_of(partials)?;
    let (_, groups, width) = partials.dims3()?;
    let (scale, shift) = (unwritten_tensor(device, width, Scalar::F32)?, unwritten_tensor(device, width, Scalar::F32)?);
    let (source, scales, shifts) = (address(partials)?, address(&scale)?, address(&shift)?);
    let (num_groups, num_columns) = (count(groups)?, count(width)?);
    let function = IMAGE.function(device, "layer_norm_columns")?;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&source).arg(&scales).arg(&shifts).arg(&num_groups).arg(&num_columns);
    let effect = || {
        Effect::new()
            .reading(source, 2 * groups * width * NUMBER)
            .writing(scales, width * NUMBER)
            .writing(shifts, width * NUMBER)
    };
    let config = blocks((num_columns.div_ceil(COLUMNS.0), 2), COLUMNS);
    // SAFETY: the shapes are those of the memory.
    declare(&stream, effect, || tensor_error(unsafe { launch.launch(config) }))?;
    Ok((scale, shift))
}

fn rows_of(dims: &[usize]) -> (usize, usize) {
    let width = dims.last().copied().unwrap_or(1);
    (dims.iter().rev().skip(1).product(), width)
}

fn blocks(grid: (u32, u32), threads: (u32, u32)) -> LaunchConfig {
    LaunchConfig { grid_dim: (grid.0, grid.1, 1), block_dim: (threads.0, threads.1, 1), shared_mem_bytes: 0 }
}

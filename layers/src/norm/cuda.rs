//! Layer normalization on a GPU.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::backend::BackendStorage as _;
use candle_core::{
    CpuStorage, CudaDevice, CudaStorage, CustomOp2, CustomOp3, DType, Error, Layout, Result, Shape, Tensor,
};
use cudarc::driver::{LaunchConfig, PushKernelArg as _};
use esper_graph::launch::{Effect, address, declare, tensor_error};

use super::plan::{Kind, Plan};
use crate::device::{Array, IMAGE, Scalar, behind, count, gpu_of, is_aligned, unwritten, unwritten_tensor};

/// Bytes of a number.
const NUMBER: usize = size_of::<f32>();
/// Mean and reciprocal standard deviation.
const STATISTICS: usize = 2;
/// Columns of a block that sums over groups of rows, and the shares into which it divides them.
const COLUMNS: (u32, u32) = (32, 16);

/// The result of operands as they are, where a kernel reads and writes these types: with the bits of what is computed in `f32`
/// of operands that were converted first.
pub(super) fn layer_norm(
    x: &Tensor,
    scale: &Tensor,
    shift: &Tensor,
    epsilon: f64,
    result: DType,
) -> Result<Option<Tensor>> {
    let Some(kind) = kind_of(x, result) else { return Ok(None) };
    let (x, scale, shift) = (x.contiguous()?, scale.contiguous()?, shift.contiguous()?);
    let is_aligned = is_aligned(&[address(&x)?, address(&scale)?, address(&shift)?]);
    if Plan::of(rows_of(x.dims()).1, is_aligned, kind).is_none() {
        return Ok(None);
    }
    let operation = LayerNorm { epsilon: single(epsilon), kind, made: Mutex::default() };
    x.apply_op3(&scale, &shift, operation).map(Some)
}

/// `x + addend`, and [`layer_norm`] of it, where one kernel computes both.
pub(super) fn add_layer_norm(
    [x, addend]: [&Tensor; 2],
    scale: &Tensor,
    shift: &Tensor,
    epsilon: f64,
    result: DType,
) -> Result<Option<(Tensor, Tensor)>> {
    let Some(kind) = kind_of(x, result).filter(|kind| addend.dtype() == kind.result().dtype()) else { return Ok(None) };
    let (x, addend, scale, shift) = (x.contiguous()?, addend.contiguous()?, scale.contiguous()?, shift.contiguous()?);
    let is_aligned = is_aligned(&[address(&x)?, address(&addend)?, address(&scale)?, address(&shift)?]);
    if Plan::of(rows_of(x.dims()).1, is_aligned, kind).and_then(|plan| plan.forward_sum).is_none() {
        return Ok(None);
    }
    let epsilon = single(epsilon);
    let made = Arc::default();
    let sum = Sum { epsilon, kind, scale: scale.detach(), shift: shift.detach(), made: Arc::clone(&made) };
    let sum = x.apply_op2(&addend, sum)?;
    let made = Mutex::new(made.lock().unwrap_or_else(PoisonError::into_inner).take());
    let normal = sum.apply_op3(&scale, &shift, LayerNorm { epsilon, kind, made })?;
    Ok(Some((sum, normal)))
}

fn kind_of(x: &Tensor, result: DType) -> Option<Kind> {
    match (x.dtype(), result) {
        _ if !x.device().is_cuda() => None,
        (DType::F32, DType::F32) => Some(Kind::Single),
        (DType::F32, DType::BF16) => Some(Kind::Half),
        (DType::BF16, DType::BF16) => Some(Kind::Pure),
        _ => None,
    }
}

impl Kind {
    /// Of rows, scales and shifts.
    fn input(self) -> Scalar {
        if self == Self::Pure { Scalar::Bf16 } else { Scalar::F32 }
    }

    fn result(self) -> Scalar {
        if self == Self::Single { Scalar::F32 } else { Scalar::Bf16 }
    }

    /// Elements of a result that the statistics of `rows` rows take behind it.
    fn extra(self, rows: usize) -> usize {
        rows * STATISTICS * NUMBER / self.result().bytes()
    }

    fn plan(self, width: usize, is_aligned: bool) -> Result<Plan> {
        let plan = Plan::of(width, is_aligned, self);
        plan.ok_or_else(|| Error::Msg(format!("layer norm: no kernel for rows of {width} of {self:?}")).bt())
    }

    fn address(self, storage: &CudaStorage, layout: &Layout) -> Result<u64> {
        match Array::of(storage, layout)? {
            array if array.scalar() == self.input() => Ok(array.address()),
            array => candle_core::bail!("layer norm: expected {:?}, found {array:?}", self.input()),
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the kernel computes in single precision")]
fn single(epsilon: f64) -> f32 {
    epsilon as f32
}

/// What the forward pass reads, and the sum that it writes, as addresses.
struct Forward {
    kind: Kind,
    epsilon: f32,
    x: u64,
    /// An addend, and where the sum of both goes.
    sum: Option<(u64, u64)>,
    scale: u64,
    shift: u64,
}

impl Forward {
    /// The normalized rows, with the statistics behind them.
    fn run(&self, device: &CudaDevice, rows: usize, width: usize) -> Result<CudaStorage> {
        let Self { kind, epsilon, x, sum, scale, shift } = *self;
        let elements = rows * width + kind.extra(rows);
        let result = unwritten(device, elements, kind.result())?;
        let stream = device.cuda_stream();
        let y = Array::of(&result, &Layout::contiguous(elements))?.address();
        let statistics = y + (rows * width * kind.result().bytes()) as u64;
        let (addend, both) = sum.unwrap_or((x, x));
        let plan = kind.plan(width, is_aligned(&[x, scale, shift, y, addend, both]))?;
        let name = match (sum, plan.forward_sum) {
            (None, _) => plan.forward,
            (Some(_), Some(name)) => name,
            (Some(_), None) => candle_core::bail!("layer norm: no kernel for sums of rows of {width}"),
        };
        let function = IMAGE.function(device, name)?;
        let (num_rows, num_columns) = (count(rows)?, count(width)?);
        let mut launch = stream.launch_builder(&function);
        launch.arg(&x);
        if sum.is_some() {
            launch.arg(&addend).arg(&both);
        }
        launch.arg(&scale).arg(&shift).arg(&y).arg(&statistics).arg(&num_rows).arg(&num_columns).arg(&epsilon);
        let (own, of_result) = (kind.input().bytes(), kind.result().bytes());
        let effect = || {
            let effect = Effect::new()
                .reading(x, rows * width * own)
                .reading(scale, width * own)
                .reading(shift, width * own)
                .writing(y, elements * of_result);
            match sum {
                Some((addend, both)) => {
                    effect.reading(addend, rows * width * of_result).writing(both, rows * width * own)
                }
                None => effect,
            }
        };
        let config = blocks((count(plan.blocks(rows))?, 1), (plan.threads, 1));
        // SAFETY: rows and width are those of the operands, which are whole, and of the memory taken above.
        declare(&stream, effect, || tensor_error(unsafe { launch.launch(config) }))?;
        Ok(result)
    }
}

/// The sum of two, which makes its normalization along the way.
#[derive(Debug)]
struct Sum {
    epsilon: f32,
    kind: Kind,
    scale: Tensor,
    shift: Tensor,
    /// The normalized sum, as [`LayerNorm`] gives it.
    made: Arc<Mutex<Option<CudaStorage>>>,
}

impl CustomOp2 for Sum {
    fn name(&self) -> &'static str {
        "layer-norm-sum"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!("layer norm: the CPU composes it of other operations")
    }

    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        xl: &Layout,
        addend: &CudaStorage,
        al: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let device = x.device().clone();
        let (rows, width) = rows_of(xl.dims());
        let addend = Array::of(addend, al)?;
        if addend.scalar() != self.kind.result() || xl.shape() != al.shape() {
            candle_core::bail!("layer norm: expected an addend of {:?}, found {addend:?}", xl.shape())
        }
        let sum = unwritten(&device, rows * width, self.kind.input())?;
        let target = Array::of(&sum, &Layout::contiguous(rows * width))?.address();
        let forward = Forward {
            kind: self.kind,
            epsilon: self.epsilon,
            x: self.kind.address(x, xl)?,
            sum: Some((addend.address(), target)),
            scale: address(&self.scale)?,
            shift: address(&self.shift)?,
        };
        let normal = forward.run(&device, rows, width)?;
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = Some(normal);
        Ok((sum, xl.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        addend: &Tensor,
        _: &Tensor,
        upstream: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let of_addend = addend.track_op().then(|| upstream.to_dtype(addend.dtype())).transpose()?;
        Ok((x.track_op().then(|| upstream.clone()), of_addend))
    }
}

#[derive(Debug)]
struct LayerNorm {
    epsilon: f32,
    kind: Kind,
    /// The result, where [`Sum`] has made it.
    made: Mutex<Option<CudaStorage>>,
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
        if let Some(made) = self.made.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Ok((made, x_layout.shape().clone()));
        }
        let (rows, width) = rows_of(x_layout.dims());
        let forward = Forward {
            kind: self.kind,
            epsilon: self.epsilon,
            x: self.kind.address(x, x_layout)?,
            sum: None,
            scale: self.kind.address(scale, scale_layout)?,
            shift: self.kind.address(shift, shift_layout)?,
        };
        Ok((forward.run(&x.device().clone(), rows, width)?, x_layout.shape().clone()))
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
        if self.kind != Kind::Single && !is_aligned(&[address(&upstream)?]) {
            upstream = upstream.force_contiguous()?;
        }
        let device = gpu_of(x)?;
        let (rows, width) = rows_of(x.dims());
        let (values, scales) = (address(x)?, address(scale)?);
        let (statistics, gradients) = (behind(result, self.kind.extra(rows))?, address(&upstream)?);
        // The gradient of x, which has its shape, is fresh memory: aligned.
        let plan = self.kind.plan(width, is_aligned(&[values, scales, gradients]))?;
        let groups = plan.groups(rows);
        let x_gradient = x.track_op().then(|| unwritten_tensor(device, x.shape(), self.kind.input())).transpose()?;
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
                .reading(values, rows * width * self.kind.input().bytes())
                .reading(scales, width * self.kind.input().bytes())
                .reading(statistics, rows * STATISTICS * NUMBER)
                .reading(gradients, rows * width * self.kind.result().bytes());
            let of_x = (x_target, rows * width * self.kind.input().bytes());
            [of_x, (partials_target, 2 * groups * width * NUMBER)].into_iter().fold(reads, |effect, (target, bytes)| {
                match target {
                    Some(target) => effect.writing(target, bytes),
                    None => effect,
                }
            })
        };
        let config = blocks((count(groups)?, 1), (plan.threads, 1));
        // SAFETY: all operands have the rows and the width given; there is a partial sum per block.
        declare(&stream, effect, || tensor_error(unsafe { launch.launch(config) }))?;

        let (scale_gradient, shift_gradient) = match partials {
            Some(partials) => {
                let (scales, shifts) = columns(&partials, self.kind.input())?;
                (scale.track_op().then_some(scales), shift.track_op().then_some(shifts))
            }
            None => (None, None),
        };
        Ok((x_gradient, scale_gradient, shift_gradient))
    }
}

/// Sums of the partial sums (2, groups, width) over the groups: those of scale and of shift.
fn columns(partials: &Tensor, scalar: Scalar) -> Result<(Tensor, Tensor)> {
    let device = gpu_of(partials)?;
    let (_, groups, width) = partials.dims3()?;
    let (scale, shift) = (unwritten_tensor(device, width, scalar)?, unwritten_tensor(device, width, scalar)?);
    let (source, scales, shifts) = (address(partials)?, address(&scale)?, address(&shift)?);
    let (num_groups, num_columns) = (count(groups)?, count(width)?);
    let name = if scalar == Scalar::F32 { "layer_norm_columns" } else { "layer_norm_columns_pure" };
    let function = IMAGE.function(device, name)?;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&source).arg(&scales).arg(&shifts).arg(&num_groups).arg(&num_columns);
    let effect = || {
        Effect::new()
            .reading(source, 2 * groups * width * NUMBER)
            .writing(scales, width * scalar.bytes())
            .writing(shifts, width * scalar.bytes())
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

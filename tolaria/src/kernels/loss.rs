//! Cross-entropy of rows of logits.

use candle_core::backend::{BackendDevice as _, BackendStorage as _};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, DType, Error, Layout, Result, Shape, Storage, Tensor};
use cudarc::driver::{CudaSlice, DevicePtr as _, LaunchConfig, PushKernelArg as _};
use esper_graph::launch::{Effect, address, address_of, blocks_of, count, declare, expect, grid, tensor_error};

use super::module::DeviceKernels;

/// Up to these sizes one block computes the mean loss, in one launch.
const SMALL_ROWS: usize = 1024;
const SMALL_CLASSES: u32 = 64;

/// Bytes of a number of `f32`.
const F32: usize = 4;
/// Numbers of each wide row of `bf16` behind the loss: its largest logit, and the logarithm of the sum of exp(logit - largest).
const KEPT: usize = 2;

/// Threads for a row of `bf16`, and for one of few classes, of which each has 8 then.
const HALF_THREADS: u32 = 1024;
const NARROW_THREADS: u32 = 128;
const NARROW_CLASSES: u32 = 8 * NARROW_THREADS;

/// Rows of up to so many classes have a warp each for their gradient, so many of them in a block.
const WARP_CLASSES: u32 = 128;
const WARPS: usize = 4;

/// Logits (rows, classes) with their targets (rows,), as addresses.
struct Rows {
    logits: u64,
    /// Logits of `bf16`, not of `f32`.
    is_half: bool,
    targets: u64,
    rows: usize,
    classes: u32,
}

impl Rows {
    fn of(logits: (&CudaStorage, &Layout), targets: (&CudaStorage, &Layout)) -> Result<Self> {
        let (rows, classes) = logits.1.shape().dims2()?;
        let whole = logits.1.is_contiguous() && targets.1.is_contiguous();
        if !whole || targets.1.shape().elem_count() != rows || rows == 0 || classes == 0 {
            return Err(Error::RequiresContiguous { op: "cross-entropy" }.bt());
        }
        // Confirms the types.
        let is_half = logits.0.dtype() == DType::BF16;
        if !is_half {
            logits.0.as_cuda_slice::<f32>()?;
        }
        targets.0.as_cuda_slice::<u32>()?;
        Ok(Self {
            logits: address_of(logits.0, logits.1.start_offset())?,
            is_half,
            targets: address_of(targets.0, targets.1.start_offset())?,
            rows,
            classes: count(classes),
        })
    }

    /// What every kernel here reads.
    fn effect(&self) -> Effect {
        Effect::new().reading(self.logits, self.bytes()).reading(self.targets, 4 * self.rows)
    }

    /// Of the logits.
    fn bytes(&self) -> usize {
        let size = if self.is_half { DType::BF16.size_in_bytes() } else { DType::F32.size_in_bytes() };
        self.rows * self.classes as usize * size
    }

    /// Address of the numbers behind a loss of these rows.
    fn behind(&self, loss: &Tensor) -> Result<u64> {
        let (storage, layout) = loss.storage_and_layout();
        let Storage::Cuda(storage) = &*storage else { candle_core::bail!("cross-entropy: expected a loss on the GPU") };
        let end = layout.start_offset() + 1;
        if storage.as_cuda_slice::<f32>()?.len() != end + self.kept() {
            candle_core::bail!("cross-entropy: expected {KEPT} numbers for each of {} rows behind the loss", self.rows)
        }
        address_of(storage, end)
    }

    /// A block for each row.
    fn blocks(&self) -> LaunchConfig {
        let blocks = blocks_of(self.rows, 1);
        match self.is_half {
            true if self.is_narrow() => LaunchConfig { block_dim: (NARROW_THREADS, 1, 1), ..blocks },
            true => LaunchConfig { block_dim: (HALF_THREADS, 1, 1), ..blocks },
            false => blocks,
        }
    }

    /// Whether rows are `bf16` of so few classes that their sum is as soon added up once more as kept: then the gradient does
    /// not wait for the loss.
    fn is_narrow(&self) -> bool {
        self.is_half && self.classes <= NARROW_CLASSES
    }

    /// Numbers of each row behind the loss.
    fn kept(&self) -> usize {
        if self.is_half && !self.is_narrow() { KEPT * self.rows } else { 0 }
    }

    fn of_tensors(logits: &Tensor, targets: &Tensor) -> Result<Self> {
        let ((a, al), (b, bl)) = (logits.storage_and_layout(), targets.storage_and_layout());
        match (&*a, &*b) {
            (Storage::Cuda(a), Storage::Cuda(b)) => Self::of((a, al), (b, bl)),
            _ => candle_core::bail!("cross-entropy: expected logits and targets on the GPU"),
        }
    }
}

/// Mean loss: a scalar. Of wide rows of `bf16` there are numbers of each row behind it, for the gradient.
pub(crate) fn cross_entropy(
    logits: (&CudaStorage, &Layout),
    targets: (&CudaStorage, &Layout),
) -> Result<(CudaStorage, Shape)> {
    let kernels = DeviceKernels::on(&logits.0.device);
    let rows = Rows::of(logits, targets)?;
    let mean = kernels.unwritten::<f32>(1 + rows.kept())?;
    let stream = kernels.stream();
    let (target, num_rows) = (mean.device_ptr(&stream).0, count(rows.rows));
    if !rows.is_half && rows.rows <= SMALL_ROWS && rows.classes <= SMALL_CLASSES {
        let function = kernels.function("cross_entropy_small")?;
        let mut launch = stream.launch_builder(&function);
        launch.arg(&rows.logits).arg(&rows.targets).arg(&rows.classes).arg(&num_rows).arg(&target);
        // SAFETY: logits and targets of so many rows, and one place for the mean.
        let launch = || tensor_error(unsafe { launch.launch(blocks_of(1, 1)) });
        declare(&stream, || rows.effect().writing(target, 4), launch)?;
    } else {
        let nats = kernels.nats(&rows, if rows.kept() > 0 { target + F32 as u64 } else { 0 })?;
        let source = nats.device_ptr(&stream).0;
        let function = kernels.function("mean_of_rows")?;
        let mut launch = stream.launch_builder(&function);
        launch.arg(&source).arg(&num_rows).arg(&target);
        // SAFETY: a loss per row, and one place for the mean.
        let launch = || tensor_error(unsafe { launch.launch(blocks_of(1, 1)) });
        declare(&stream, || Effect::new().reading(source, 8 * rows.rows).writing(target, 4), launch)?;
    }
    Ok((CudaStorage::wrap_cuda_slice(mean, kernels.device), Shape::from(())))
}

/// Gradient of the mean loss with respect to the logits, times the scalar `upstream`. `loss` is what [`cross_entropy`] made of them.
pub(crate) fn cross_entropy_backward(
    logits: (&CudaStorage, &Layout),
    targets: (&CudaStorage, &Layout),
    upstream: (&CudaStorage, &Layout),
    loss: &Tensor,
) -> Result<(CudaStorage, Shape)> {
    let kernels = DeviceKernels::on(&logits.0.device);
    let rows = Rows::of(logits, targets)?;
    let is_by_warps = rows.classes <= WARP_CLASSES;
    let log_sums = match rows.is_half {
        true if rows.kept() > 0 => Some(rows.behind(loss)?),
        true if !is_by_warps => Some(0),
        _ => None,
    };
    upstream.0.as_cuda_slice::<f32>()?;
    let upstream = address_of(upstream.0, upstream.1.start_offset())?;
    let shape = logits.1.shape().clone();
    // SAFETY: the kernel that follows writes every element.
    let gradient = unsafe { kernels.device.alloc_uninit(&shape, logits.0.dtype()) }?;
    let stream = kernels.stream();
    let (target, num_rows) = (address_of(&gradient, 0)?, count(rows.rows));
    let name = match rows.is_half {
        true if is_by_warps => "cross_entropy_backward_bf16_warp",
        true if rows.is_narrow() => "cross_entropy_backward_bf16_narrow",
        true => "cross_entropy_backward_bf16",
        false if is_by_warps => "cross_entropy_backward_warp",
        false => "cross_entropy_backward",
    };
    let blocks = match is_by_warps {
        true => LaunchConfig {
            grid_dim: (count(rows.rows.div_ceil(WARPS)), 1, 1),
            block_dim: (32 * count(WARPS), 1, 1),
            shared_mem_bytes: 0,
        },
        false => rows.blocks(),
    };
    let function = kernels.function(name)?;
    let mut launch = stream.launch_builder(&function);
    launch.arg(&rows.logits).arg(&rows.targets).arg(&upstream);
    if let Some(log_sums) = &log_sums {
        launch.arg(log_sums);
    }
    launch.arg(&rows.classes).arg(&num_rows).arg(&target);
    // SAFETY: a block or a warp per row, a place per logit, and the numbers of each row behind a loss of `bf16`.
    let launch = || tensor_error(unsafe { launch.launch(blocks) });
    let effect = || {
        let effect = rows.effect().reading(upstream, F32).writing(target, rows.bytes());
        match log_sums {
            Some(log_sums) if log_sums != 0 => effect.reading(log_sums, F32 * rows.kept()),
            _ => effect,
        }
    };
    declare(&stream, effect, launch)?;
    Ok((gradient, shape))
}

impl DeviceKernels {
    /// Loss of each row, (rows,).
    pub(crate) fn per_sample(&self, logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let (logits, targets) = (logits.contiguous()?, targets.contiguous()?);
        let rows = Rows::of_tensors(&logits, &targets)?;
        let nats = self.nats(&rows, 0)?;
        let losses = self.unwritten::<f32>(rows.rows)?;
        let stream = self.stream();
        let (source, target, num_rows) = (nats.device_ptr(&stream).0, losses.device_ptr(&stream).0, count(rows.rows));
        let function = self.function("nats_to_f32")?;
        let mut launch = stream.launch_builder(&function);
        launch.arg(&source).arg(&num_rows).arg(&target);
        // SAFETY: both hold a number per row.
        let launch = || tensor_error(unsafe { launch.launch(grid(rows.rows, 1)) });
        declare(&stream, || Effect::new().reading(source, 8 * rows.rows).writing(target, 4 * rows.rows), launch)?;
        Ok(tensor(&self.device, losses, rows.rows))
    }

    /// 1 for each row whose target has the largest logit, else 0; (rows,).
    pub(crate) fn hits(&self, logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let (logits, targets) = (logits.contiguous()?, targets.contiguous()?);
        let rows = Rows::of_tensors(&logits, &targets)?;
        let hits = self.unwritten::<f32>(rows.rows)?;
        let stream = self.stream();
        let target = hits.device_ptr(&stream).0;
        let function = self.function("row_hits")?;
        let mut launch = stream.launch_builder(&function);
        launch.arg(&rows.logits).arg(&rows.targets).arg(&rows.classes).arg(&target);
        // SAFETY: a block and a place per row.
        let launch = || tensor_error(unsafe { launch.launch(blocks_of(rows.rows, 1)) });
        declare(&stream, || rows.effect().writing(target, 4 * rows.rows), launch)?;
        Ok(tensor(&self.device, hits, rows.rows))
    }

    /// The sum of a vector of `f32`, a scalar, always added in the same order.
    pub(crate) fn sum(&self, values: &Tensor) -> Result<Tensor> {
        expect(values, DType::F32, values.elem_count(), "a sum")?;
        let sum = self.unwritten::<f32>(1)?;
        let stream = self.stream();
        let (source, elements, target) = (address(values)?, count(values.elem_count()), sum.device_ptr(&stream).0);
        let function = self.function("sum_f32")?;
        let mut launch = stream.launch_builder(&function);
        launch.arg(&source).arg(&elements).arg(&target);
        // SAFETY: the source has so many elements, and the sum one place.
        let launch = || tensor_error(unsafe { launch.launch(blocks_of(1, 1)) });
        declare(&stream, || Effect::new().reading(source, 4 * values.elem_count()).writing(target, 4), launch)?;
        Ok(tensor(&self.device, sum, ()))
    }

    /// Losses of rows. Of `bf16`, what the gradient wants is written to `log_sums`, unless that is 0.
    fn nats(&self, rows: &Rows, log_sums: u64) -> Result<CudaSlice<f64>> {
        let nats = self.unwritten::<f64>(rows.rows)?;
        let stream = self.stream();
        let target = nats.device_ptr(&stream).0;
        let function = self.function(match rows.is_half {
            true if rows.is_narrow() => "cross_entropy_rows_bf16_narrow",
            true => "cross_entropy_rows_bf16",
            false => "cross_entropy_rows",
        })?;
        let mut launch = stream.launch_builder(&function);
        launch.arg(&rows.logits).arg(&rows.targets).arg(&rows.classes).arg(&target);
        if rows.is_half {
            launch.arg(&log_sums);
        }
        // SAFETY: a block and a place per row, and another for `bf16` if there is any.
        let launch = || tensor_error(unsafe { launch.launch(rows.blocks()) });
        let effect = || match log_sums {
            0 => rows.effect().writing(target, 8 * rows.rows),
            _ => rows.effect().writing(target, 8 * rows.rows).writing(log_sums, F32 * rows.kept()),
        };
        declare(&stream, effect, launch)?;
        Ok(nats)
    }
}

fn tensor(device: &CudaDevice, values: CudaSlice<f32>, shape: impl Into<Shape>) -> Tensor {
    let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(values, device.clone()));
    Tensor::from_storage(storage, shape, BackpropOp::none(), false)
}

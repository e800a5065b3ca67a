//! Embedding on a GPU.

use candle_core::backend::BackendStorage as _;
use candle_core::{CpuStorage, CudaStorage, CustomOp2, DType, Error, Layout, Result, Shape, Tensor};
use cudarc::driver::{DevicePtr as _, LaunchConfig, PushKernelArg as _};
use esper_graph::launch::{Effect, address, address_of, declare, tensor_error};

use crate::device::{IMAGE, Scalar, count, gpu_of, operand, unwritten_tensor};

/// Bytes of a number, and of an id.
const NUMBER: usize = size_of::<f32>();
/// Threads of a block.
const THREADS: u32 = 128;

pub(super) fn embedding(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    table.contiguous()?.apply_op2(&ids.contiguous()?, Embedding)
}

#[derive(Debug)]
struct Embedding;

impl CustomOp2 for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!("embedding: the CPU composes it of other operations")
    }

    fn cuda_fwd(
        &self,
        table: &CudaStorage,
        table_layout: &Layout,
        ids: &CudaStorage,
        ids_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let device = table.device().clone();
        let (rows, width) = table_layout.shape().dims2()?;
        let positions = ids_layout.shape().elem_count();
        let source = operand(table, table_layout, "embedding")?;
        ids.as_cuda_slice::<u32>()?;
        if !ids_layout.is_contiguous() {
            return Err(Error::RequiresContiguous { op: "embedding" }.bt());
        }
        let ids = address_of(ids, ids_layout.start_offset())?;
        // SAFETY: the kernel writes all of it.
        let result = unsafe { device.alloc::<f32>(positions * width) }?;
        let stream = device.cuda_stream();
        let target = result.device_ptr(&stream).0;
        let (num_rows, num_columns) = (count(rows)?, count(width)?);
        let function = IMAGE.function(&device, "embedding_rows")?;
        let mut launch = stream.launch_builder(&function);
        launch.arg(&source).arg(&ids).arg(&target).arg(&num_rows).arg(&num_columns);
        let effect = || {
            // A table without rows has no memory.
            let effect = Effect::new().reading(ids, positions * NUMBER).writing(target, positions * width * NUMBER);
            if rows > 0 { effect.reading(source, rows * width * NUMBER) } else { effect }
        };
        let config = blocks(positions)?;
        // SAFETY: a block per position; the sizes are those of the operands, which are whole.
        declare(&stream, effect, || tensor_error(unsafe { launch.launch(config) }))?;
        Ok((CudaStorage::wrap_cuda_slice(result, device), Shape::from((positions, width))))
    }

    fn bwd(
        &self,
        table: &Tensor,
        ids: &Tensor,
        _result: &Tensor,
        upstream: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        if !table.track_op() || table.elem_count() == 0 {
            return Ok((None, None));
        }
        Ok((Some(table_gradient(table, ids, &upstream.contiguous()?)?), None))
    }
}

fn table_gradient(table: &Tensor, ids: &Tensor, upstream: &Tensor) -> Result<Tensor> {
    let device = gpu_of(table)?;
    let (rows, width) = table.dims2()?;
    let positions = ids.elem_count();
    let (numbers, gradients) = (address(ids)?, address(upstream)?);
    let (num_rows, num_columns, num_positions) = (count(rows)?, count(width)?, count(positions)?);
    // A block looks at each id: a block per row, or one per position where most rows occur nowhere.
    let is_by_row = rows <= 2 * positions;
    let gradient = if is_by_row {
        unwritten_tensor(device, table.shape(), Scalar::F32)?
    } else {
        Tensor::zeros(table.shape(), DType::F32, table.device())?
    };
    let target = address(&gradient)?;
    let name = if is_by_row { "embedding_gradient_by_row" } else { "embedding_gradient_by_position" };
    let function = IMAGE.function(device, name)?;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&numbers).arg(&gradients).arg(&target).arg(&num_positions);
    if !is_by_row {
        launch.arg(&num_rows);
    }
    launch.arg(&num_columns);
    let effect = || {
        let reads = Effect::new().reading(numbers, positions * NUMBER).reading(gradients, positions * width * NUMBER);
        let bytes = rows * width * NUMBER;
        // By position, rows that do not occur keep what is there.
        if is_by_row { reads.writing(target, bytes) } else { reads.updating(target, bytes) }
    };
    let config = blocks(if is_by_row { rows } else { positions })?;
    // SAFETY: the sizes are those of the tensors, which are whole.
    declare(&stream, effect, || tensor_error(unsafe { launch.launch(config) }))?;
    Ok(gradient)
}

fn blocks(count_of_blocks: usize) -> Result<LaunchConfig> {
    Ok(LaunchConfig { grid_dim: (count(count_of_blocks)?, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 })
}

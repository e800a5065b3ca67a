//! Attention on a GPU.

use candle_core::backend::BackendStorage as _;
use candle_core::{CpuStorage, CudaStorage, CustomOp1, Layout, Result, Shape, Tensor};
use cudarc::driver::{DevicePtr as _, LaunchConfig, PushKernelArg as _};
use esper_graph::launch::{Effect, address, declare, tensor_error};

use super::options::PackedShape;
use crate::device::{IMAGE, Scalar, behind, count, gpu_of, is_aligned, operand, unwritten_tensor};

/// Bytes of a number.
const NUMBER: usize = size_of::<f32>();
/// Queries, or keys, of a block.
const ROWS: usize = 16;
/// Threads of a block.
const THREADS: u32 = 128;
/// Blocks along the second and third coordinate of a grid.
const MAX_BLOCKS: usize = 65_535;

/// Whether the kernels take these sizes.
pub(super) fn takes(shape: &PackedShape) -> bool {
    shape.width <= 128 && shape.heads <= MAX_BLOCKS && shape.batches <= MAX_BLOCKS
}

pub(super) fn attention(qkv: &Tensor, shape: PackedShape, is_causal: bool) -> Result<Tensor> {
    qkv.contiguous()?.apply_op1(Attention { shape, is_causal })
}

#[derive(Debug)]
struct Attention {
    shape: PackedShape,
    is_causal: bool,
}

/// What both kernels are told last.
struct Arguments {
    length: u32,
    heads: u32,
    width: u32,
    is_causal: u32,
    is_aligned: u32,
    scale: f32,
}

impl Attention {
    fn arguments(&self, addresses: &[u64]) -> Result<Arguments> {
        let PackedShape { length, heads, width, .. } = self.shape;
        #[expect(clippy::cast_possible_truncation, reason = "the kernels compute in single precision")]
        let scale = self.shape.scale() as f32;
        Ok(Arguments {
            length: count(length)?,
            heads: count(heads)?,
            width: count(width)?,
            is_causal: u32::from(self.is_causal),
            is_aligned: u32::from(width.is_multiple_of(4) && is_aligned(addresses)),
            scale,
        })
    }

    /// Blocks for all rows, `per_rows` of them for each 16.
    fn config(&self, per_rows: usize) -> Result<LaunchConfig> {
        let tiles = self.shape.length.div_ceil(ROWS);
        let grid_dim = (count(per_rows * tiles)?, count(self.shape.heads)?, count(self.shape.batches)?);
        Ok(LaunchConfig { grid_dim, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 })
    }

    /// Numbers of the result.
    fn numbers(&self) -> usize {
        self.shape.batches * self.shape.length * self.shape.heads * self.shape.width
    }

    /// Rows of all heads: each has a sum, which is kept for the backward pass.
    fn rows(&self) -> usize {
        self.shape.batches * self.shape.length * self.shape.heads
    }

    fn names(&self) -> (&'static str, &'static str) {
        match self.shape.width {
            0..=32 => ("attention_32", "attention_backward_32"),
            33..=64 => ("attention_64", "attention_backward_64"),
            _ => ("attention_128", "attention_backward_128"),
        }
    }
}

impl CustomOp1 for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!("attention: the CPU composes it of other operations")
    }

    fn cuda_fwd(&self, qkv: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let device = qkv.device().clone();
        let source = operand(qkv, layout, "attention")?;
        let (numbers, rows) = (self.numbers(), self.rows());
        // SAFETY: the kernel writes the result and the sums behind it.
        let result = unsafe { device.alloc::<f32>(numbers + rows) }?;
        let stream = device.cuda_stream();
        let target = result.device_ptr(&stream).0;
        let sums = target + (numbers * NUMBER) as u64;
        let last = self.arguments(&[source, target])?;
        let function = IMAGE.function(&device, self.names().0)?;
        let mut launch = stream.launch_builder(&function);
        launch.arg(&source).arg(&target).arg(&sums);
        launch.arg(&last.length).arg(&last.heads).arg(&last.width);
        launch.arg(&last.is_causal).arg(&last.is_aligned).arg(&last.scale);
        let effect = || Effect::new().reading(source, 3 * numbers * NUMBER).writing(target, (numbers + rows) * NUMBER);
        let config = self.config(1)?;
        // SAFETY: the sizes are those of the input, which is whole, and of the memory taken above.
        declare(&stream, effect, || tensor_error(unsafe { launch.launch(config) }))?;
        Ok((CudaStorage::wrap_cuda_slice(result, device), Shape::from(self.shape.output())))
    }

    fn bwd(&self, qkv: &Tensor, result: &Tensor, upstream: &Tensor) -> Result<Option<Tensor>> {
        if !qkv.track_op() {
            return Ok(None);
        }
        let upstream = upstream.contiguous()?;
        let device = gpu_of(qkv)?;
        let (numbers, rows) = (self.numbers(), self.rows());
        let gradient = unwritten_tensor(device, qkv.shape(), Scalar::F32)?;
        let (source, output, gradients) = (address(qkv)?, address(result)?, address(&upstream)?);
        let (sums, target) = (behind(result, rows)?, address(&gradient)?);
        let last = self.arguments(&[source, output, gradients, target])?;
        let function = IMAGE.function(device, self.names().1)?;
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&function);
        launch.arg(&source).arg(&output).arg(&sums).arg(&gradients).arg(&target);
        launch.arg(&last.length).arg(&last.heads).arg(&last.width);
        launch.arg(&last.is_causal).arg(&last.is_aligned).arg(&last.scale);
        let effect = || {
            Effect::new()
                .reading(source, 3 * numbers * NUMBER)
                .reading(output, (numbers + rows) * NUMBER)
                .reading(gradients, numbers * NUMBER)
                .writing(target, 3 * numbers * NUMBER)
        };
        let config = self.config(2)?;
        // SAFETY: the sizes are those of the input, which all operands follow from.
        declare(&stream, effect, || tensor_error(unsafe { launch.launch(config) }))?;
        Ok(Some(gradient))
    }
}

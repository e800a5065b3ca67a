//! Attention on a GPU.

use candle_core::backend::BackendStorage as _;
use candle_core::{CpuStorage, CudaDevice, CudaStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};
use cudarc::driver::sys::CUfunction_attribute;
use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg as _};
use esper_graph::launch::{Effect, address, declare, tensor_error};

use super::options::PackedShape;
use crate::device::{Array, IMAGE, Scalar, behind, count, gpu_of, is_aligned, unwritten, unwritten_tensor};

/// Bytes of a number that belongs to a row of a head.
const NUMBER: usize = size_of::<f32>();
/// Queries, or keys, of a block: of `f32`, and of `bf16`.
const ROWS: usize = 16;
const ROWS_OF_HALVES: usize = 64;
/// Above 48 KiB of shared memory for a block, a kernel has to be allowed them.
const MAX_SHARED_BYTES: CUfunction_attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
/// The version of machine code, and of the text that it was made of, for compute capability 9.0 itself.
const HOPPER: i32 = 90;
/// Columns that are moved at once.
const HALVES_AT_ONCE: usize = 8;
/// Threads that look at a row of `bf16` together.
const THREADS_OF_ROW: u32 = 16;
/// Threads of a block.
const THREADS: u32 = 128;
/// Blocks along the second and third coordinate of a grid.
const MAX_BLOCKS: usize = 65_535;

/// Whether the kernels for `f32` take these sizes.
pub(super) fn takes(shape: &PackedShape) -> bool {
    shape.width <= 128 && shape.heads <= MAX_BLOCKS && shape.batches <= MAX_BLOCKS
}

/// Whether the kernels for `bf16` do, which multiply on tensor cores.
pub(super) fn takes_halves(shape: &PackedShape) -> bool {
    takes(shape) && shape.width.is_multiple_of(HALVES_AT_ONCE)
}

/// Of `qkv` in `f32` or `bf16`, which [`takes`] or [`takes_halves`] said to take.
pub(super) fn attention(qkv: &Tensor, shape: PackedShape, is_causal: bool) -> Result<Tensor> {
    let scalar = Scalar::of(qkv.dtype())?;
    in_vectors(qkv, scalar)?.apply_op1(Attention { shape, is_causal, scalar })
}

/// The same numbers one after the other; halves where 16 bytes can be read at once.
fn in_vectors(tensor: &Tensor, scalar: Scalar) -> Result<Tensor> {
    let tensor = tensor.contiguous()?;
    if scalar == Scalar::Bf16 && !is_aligned(&[address(&tensor)?]) { tensor.force_contiguous() } else { Ok(tensor) }
}

#[derive(Debug)]
struct Attention {
    shape: PackedShape,
    is_causal: bool,
    scalar: Scalar,
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

    /// Bytes of shared memory that a block of the backward pass of `bf16` works with: its own rows and two stages of tiles, of two kinds,
    /// and two numbers for each row of a stage. Tiles are larger in machine code that multiplies by warpgroups.
    fn workspace(&self, function: &CudaFunction) -> Result<usize> {
        let versions = function.binary_version().and_then(|binary| Ok((binary, function.ptx_version()?)));
        let has_warpgroups = tensor_error(versions)? == (HOPPER, HOPPER);
        let (width, tile) = match self.shape.width {
            0..=32 => (32, 64),
            33..=64 => (64, 64),
            _ => (128, 32),
        };
        let tile = if has_warpgroups { tile } else { tile / 2 };
        Ok((2 * ROWS_OF_HALVES + 4 * tile) * width * Scalar::Bf16.bytes() + 4 * tile * NUMBER)
    }

    /// Blocks for all rows, `per_rows` of them for as many as a block has.
    fn config(&self, per_rows: usize) -> Result<LaunchConfig> {
        let rows = if self.scalar == Scalar::F32 { ROWS } else { ROWS_OF_HALVES };
        let tiles = self.shape.length.div_ceil(rows);
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

    /// Elements that the sums take behind the result.
    fn extra(&self) -> usize {
        self.rows() * NUMBER / self.scalar.bytes()
    }

    fn names(&self) -> Result<(&'static str, &'static str)> {
        Ok(match (self.scalar, self.shape.width) {
            (Scalar::F32, 0..=32) => ("attention_32", "attention_backward_32"),
            (Scalar::F32, 33..=64) => ("attention_64", "attention_backward_64"),
            (Scalar::F32, _) => ("attention_128", "attention_backward_128"),
            (Scalar::Bf16, 0..=32) => ("attention_half_32", "attention_backward_half_32"),
            (Scalar::Bf16, 33..=64) => ("attention_half_64", "attention_backward_half_64"),
            (Scalar::Bf16, _) => ("attention_half_128", "attention_backward_half_128"),
            (Scalar::F16, _) => bail!("attention of `f16` is computed in `f32`"),
        })
    }

    /// The sum over each row of the result times its gradient, (B, H, T).
    fn deltas(&self, device: &CudaDevice, output: u64, upstream: u64) -> Result<Tensor> {
        let PackedShape { length, heads, width, .. } = self.shape;
        let rows = self.rows();
        let deltas = unwritten_tensor(device, rows, Scalar::F32)?;
        let (target, bytes) = (address(&deltas)?, self.numbers() * self.scalar.bytes());
        let [num_rows, length, heads, width] = [count(rows)?, count(length)?, count(heads)?, count(width)?];
        let function = IMAGE.function(device, "attention_deltas_half")?;
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&function);
        launch.arg(&output).arg(&upstream).arg(&target).arg(&length).arg(&heads).arg(&width).arg(&num_rows);
        let effect = || Effect::new().reading(output, bytes).reading(upstream, bytes).writing(target, rows * NUMBER);
        let grid_dim = (num_rows.div_ceil(THREADS / THREADS_OF_ROW), 1, 1);
        let config = LaunchConfig { grid_dim, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: result and gradient have the kernel's type, so many rows, and a width that is a multiple of what is read at once.
        declare(&stream, effect, || tensor_error(unsafe { launch.launch(config) }))?;
        Ok(deltas)
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
        let device = qkv.device();
        let qkv = Array::of(qkv, layout)?;
        let source = qkv.address();
        let result = unwritten(device, self.numbers() + self.extra(), self.scalar)?;
        let whole = Layout::contiguous(self.numbers() + self.extra());
        let (target, bytes) = (Array::of(&result, &whole)?.address(), self.numbers() * self.scalar.bytes());
        let sums = target + bytes as u64;
        let last = self.arguments(&[source, target])?;
        let function = IMAGE.function(device, self.names()?.0)?;
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&function);
        launch.arg(&source).arg(&target).arg(&sums);
        launch.arg(&last.length).arg(&last.heads).arg(&last.width);
        launch.arg(&last.is_causal).arg(&last.is_aligned).arg(&last.scale);
        let effect = || Effect::new().reading(source, qkv.bytes()).writing(target, bytes + self.rows() * NUMBER);
        let config = self.config(1)?;
        // SAFETY: the sizes are those of the input, which is whole and of the kernel's type, and of the memory taken above.
        declare(&stream, effect, || tensor_error(unsafe { launch.launch(config) }))?;
        Ok((result, Shape::from(self.shape.output())))
    }

    fn bwd(&self, qkv: &Tensor, result: &Tensor, upstream: &Tensor) -> Result<Option<Tensor>> {
        if !qkv.track_op() {
            return Ok(None);
        }
        let upstream = in_vectors(upstream, self.scalar)?;
        let device = gpu_of(qkv)?;
        let bytes = self.numbers() * self.scalar.bytes();
        let gradient = unwritten_tensor(device, qkv.shape(), self.scalar)?;
        let (source, output, gradients) = (address(qkv)?, address(result)?, address(&upstream)?);
        let (sums, target) = (behind(result, self.extra())?, address(&gradient)?);
        let deltas = match self.scalar {
            Scalar::F32 => None,
            Scalar::Bf16 | Scalar::F16 => Some(self.deltas(device, output, gradients)?),
        };
        // The result itself, or what was made of it.
        let (made, made_bytes) = match &deltas {
            Some(deltas) => (address(deltas)?, self.rows() * NUMBER),
            None => (output, bytes),
        };
        let last = self.arguments(&[source, output, gradients, target])?;
        let function = IMAGE.function(device, self.names()?.1)?;
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&function);
        launch.arg(&source);
        if deltas.is_some() {
            launch.arg(&sums).arg(&made);
        } else {
            launch.arg(&made).arg(&sums);
        }
        launch.arg(&gradients).arg(&target);
        launch.arg(&last.length).arg(&last.heads).arg(&last.width);
        launch.arg(&last.is_causal).arg(&last.is_aligned).arg(&last.scale);
        let effect = || {
            Effect::new()
                .reading(source, 3 * bytes)
                .reading(made, made_bytes)
                .reading(sums, self.rows() * NUMBER)
                .reading(gradients, bytes)
                .writing(target, 3 * bytes)
        };
        let mut config = self.config(2)?;
        if self.scalar == Scalar::Bf16 {
            config.shared_mem_bytes = count(self.workspace(&function)?)?;
            tensor_error(function.set_attribute(MAX_SHARED_BYTES, config.shared_mem_bytes.cast_signed()))?;
        }
        // SAFETY: the sizes are those of the input, which all operands follow from.
        declare(&stream, effect, || tensor_error(unsafe { launch.launch(config) }))?;
        Ok(Some(gradient))
    }
}

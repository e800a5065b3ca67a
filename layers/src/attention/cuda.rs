//! Attention on a GPU.

use candle_core::backend::BackendStorage as _;
use candle_core::cuda_backend::gemm_reduced_precision_f32;
use candle_core::{CpuStorage, CudaDevice, CudaStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};
use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg as _};
use esper_graph::launch::{Effect, address, declare, tensor_error};

use super::options::PackedShape;
use crate::device::{
    Array, IMAGE, Scalar, allow_shared_memory, behind, count, gpu_of, is_aligned, is_of_hopper, unwritten,
    unwritten_tensor,
};

/// Bytes of a number that belongs to a row of a head.
const NUMBER: usize = size_of::<f32>();
/// Queries, or keys, of a block: of kernels without tensor cores, and with them.
const ROWS: usize = 16;
const ROWS_OF_TILES: usize = 64;
/// The first compute capability whose tensor cores multiply in TF32, and have `bf16`.
const AMPERE: i32 = 80;
/// Bytes of a row that are moved at once.
const BYTES_AT_ONCE: usize = 16;
/// Threads that look at a row together.
const THREADS_OF_ROW: u32 = 16;
/// Threads of a block.
const THREADS: u32 = 128;
/// Blocks along the second and third coordinate of a grid.
const MAX_BLOCKS: usize = 65_535;

/// Whether the kernels for `f32` take these sizes.
pub(super) fn takes(shape: &PackedShape) -> bool {
    shape.width <= 128 && shape.heads <= MAX_BLOCKS && shape.batches <= MAX_BLOCKS
}

/// Whether those for `bf16` do.
pub(super) fn takes_halves(shape: &PackedShape) -> bool {
    takes(shape) && has_whole_chunks(shape, Scalar::Bf16)
}

/// Of `qkv` in `f32` or `bf16`, which [`takes`] or [`takes_halves`] said to take.
pub(super) fn attention(qkv: &Tensor, shape: PackedShape, is_causal: bool) -> Result<Tensor> {
    let kernels = Kernels::of(qkv, &shape)?;
    kernels.in_vectors(qkv)?.apply_op1(Attention { shape, is_causal, kernels })
}

/// Whether rows are moved as a whole number of chunks.
fn has_whole_chunks(shape: &PackedShape, scalar: Scalar) -> bool {
    (shape.width * scalar.bytes()).is_multiple_of(BYTES_AT_ONCE)
}

/// What multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kernels {
    /// `f32` as it is.
    Plain,
    /// Tensor cores, `f32` that is rounded to TF32.
    Tf32,
    /// Tensor cores, `bf16`.
    Halves,
}

impl Kernels {
    fn of(qkv: &Tensor, shape: &PackedShape) -> Result<Self> {
        match Scalar::of(qkv.dtype())? {
            Scalar::F16 => bail!("attention of `f16` is computed in `f32`"),
            Scalar::Bf16 => Ok(Self::Halves),
            Scalar::F32 if !gemm_reduced_precision_f32() || !has_whole_chunks(shape, Scalar::F32) => Ok(Self::Plain),
            Scalar::F32 => {
                // What code was made for: a card may be newer.
                let function = IMAGE.function(gpu_of(qkv)?, Self::Tf32.names(shape.width).0)?;
                Ok(if tensor_error(function.ptx_version())? < AMPERE { Self::Plain } else { Self::Tf32 })
            }
        }
    }

    fn scalar(self) -> Scalar {
        if self == Self::Halves { Scalar::Bf16 } else { Scalar::F32 }
    }

    /// Rows of a block.
    fn rows(self) -> usize {
        if self == Self::Plain { ROWS } else { ROWS_OF_TILES }
    }

    /// The same numbers one after the other; for tensor cores where 16 bytes can be read at once.
    fn in_vectors(self, tensor: &Tensor) -> Result<Tensor> {
        let tensor = tensor.contiguous()?;
        let is_read = self == Self::Plain || is_aligned(&[address(&tensor)?]);
        if is_read { Ok(tensor) } else { tensor.force_contiguous() }
    }

    /// Of both passes, for rows of at most so many numbers.
    fn names(self, width: usize) -> (&'static str, &'static str) {
        match (self, width) {
            (Self::Plain, ..=32) => ("attention_32", "attention_backward_32"),
            (Self::Plain, 33..=64) => ("attention_64", "attention_backward_64"),
            (Self::Plain, _) => ("attention_128", "attention_backward_128"),
            (Self::Tf32, ..=32) => ("attention_tf32_32", "attention_backward_tf32_32"),
            (Self::Tf32, 33..=64) => ("attention_tf32_64", "attention_backward_tf32_64"),
            (Self::Tf32, _) => ("attention_tf32_128", "attention_backward_tf32_128"),
            (Self::Halves, ..=32) => ("attention_half_32", "attention_backward_half_32"),
            (Self::Halves, 33..=64) => ("attention_half_64", "attention_backward_half_64"),
            (Self::Halves, _) => ("attention_half_128", "attention_backward_half_128"),
        }
    }

    /// Bytes of shared memory that a block of such a pass works with: its own rows and two stages of tiles, of two kinds, and going back two
    /// numbers for each row of a stage. Plain kernels say it themselves. Tiles of `bf16` are larger in machine code that multiplies by warpgroups.
    fn shared_bytes(self, width: usize, pass: Pass, function: &CudaFunction) -> Result<usize> {
        let (width, half_rows, tf32_rows) = match width {
            ..=32 => (32, 64, 32),
            33..=64 => (64, 64, 32),
            _ => (128, 32, 16),
        };
        let rows = match (self, pass) {
            (Self::Plain, _) => return Ok(0),
            (Self::Tf32, _) => tf32_rows,
            (Self::Halves, Pass::Forward) => half_rows,
            (Self::Halves, Pass::Backward) => {
                if is_of_hopper(function)? {
                    half_rows
                } else {
                    half_rows / 2
                }
            }
        };
        let bytes = width * self.scalar().bytes();
        Ok(match pass {
            Pass::Forward => (ROWS_OF_TILES + 4 * rows) * bytes,
            Pass::Backward => (2 * ROWS_OF_TILES + 4 * rows) * bytes + 4 * rows * NUMBER,
        })
    }
}

#[derive(Debug, Clone, Copy)]
enum Pass {
    Forward,
    Backward,
}

#[derive(Debug)]
struct Attention {
    shape: PackedShape,
    is_causal: bool,
    kernels: Kernels,
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
        let scale = self.shape.scale_f32();
        Ok(Arguments {
            length: count(length)?,
            heads: count(heads)?,
            width: count(width)?,
            is_causal: u32::from(self.is_causal),
            is_aligned: u32::from(width.is_multiple_of(4) && is_aligned(addresses)),
            scale,
        })
    }

    /// Blocks for all rows; going back, two for as many as a block has.
    fn config(&self, pass: Pass, function: &CudaFunction) -> Result<LaunchConfig> {
        let tiles = self.shape.length.div_ceil(self.kernels.rows());
        let blocks = match pass {
            Pass::Forward => tiles,
            Pass::Backward => 2 * tiles,
        };
        let shared_mem_bytes = self.kernels.shared_bytes(self.shape.width, pass, function)?;
        allow_shared_memory(function, shared_mem_bytes)?;
        let grid_dim = (count(blocks)?, count(self.shape.heads)?, count(self.shape.batches)?);
        Ok(LaunchConfig { grid_dim, block_dim: (THREADS, 1, 1), shared_mem_bytes: count(shared_mem_bytes)? })
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
        self.rows() * NUMBER / self.kernels.scalar().bytes()
    }

    /// The sum over each row of the result times its gradient, (B, H, T).
    fn deltas(&self, device: &CudaDevice, output: u64, upstream: u64) -> Result<Tensor> {
        let PackedShape { length, heads, width, .. } = self.shape;
        let rows = self.rows();
        let deltas = unwritten_tensor(device, rows, Scalar::F32)?;
        let (target, bytes) = (address(&deltas)?, self.numbers() * self.kernels.scalar().bytes());
        let [num_rows, length, heads, width] = [count(rows)?, count(length)?, count(heads)?, count(width)?];
        let is_halves = self.kernels == Kernels::Halves;
        let name = if is_halves { "attention_deltas_half" } else { "attention_deltas_f32" };
        let function = IMAGE.function(device, name)?;
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
        let result = unwritten(device, self.numbers() + self.extra(), self.kernels.scalar())?;
        let whole = Layout::contiguous(self.numbers() + self.extra());
        let (target, bytes) = (Array::of(&result, &whole)?.address(), self.numbers() * self.kernels.scalar().bytes());
        let sums = target + bytes as u64;
        let last = self.arguments(&[source, target])?;
        let function = IMAGE.function(device, self.kernels.names(self.shape.width).0)?;
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&function);
        launch.arg(&source).arg(&target).arg(&sums);
        launch.arg(&last.length).arg(&last.heads).arg(&last.width);
        launch.arg(&last.is_causal).arg(&last.is_aligned).arg(&last.scale);
        let effect = || Effect::new().reading(source, qkv.bytes()).writing(target, bytes + self.rows() * NUMBER);
        let config = self.config(Pass::Forward, &function)?;
        // SAFETY: the sizes are those of the input, which is whole and of the kernel's type, and of the memory taken above.
        declare(&stream, effect, || tensor_error(unsafe { launch.launch(config) }))?;
        Ok((result, Shape::from(self.shape.output())))
    }

    fn bwd(&self, qkv: &Tensor, result: &Tensor, upstream: &Tensor) -> Result<Option<Tensor>> {
        if !qkv.track_op() {
            return Ok(None);
        }
        let upstream = self.kernels.in_vectors(upstream)?;
        let device = gpu_of(qkv)?;
        let bytes = self.numbers() * self.kernels.scalar().bytes();
        let gradient = unwritten_tensor(device, qkv.shape(), self.kernels.scalar())?;
        let (source, output, gradients) = (address(qkv)?, address(result)?, address(&upstream)?);
        let (sums, target) = (behind(result, self.extra())?, address(&gradient)?);
        let deltas = match self.kernels {
            Kernels::Plain => None,
            Kernels::Tf32 | Kernels::Halves => Some(self.deltas(device, output, gradients)?),
        };
        // The result itself, or what was made of it.
        let (made, made_bytes) = match &deltas {
            Some(deltas) => (address(deltas)?, self.rows() * NUMBER),
            None => (output, bytes),
        };
        let last = self.arguments(&[source, output, gradients, target])?;
        let function = IMAGE.function(device, self.kernels.names(self.shape.width).1)?;
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
        let config = self.config(Pass::Backward, &function)?;
        // SAFETY: the sizes are those of the input, which all operands follow from.
        declare(&stream, effect, || tensor_error(unsafe { launch.launch(config) }))?;
        Ok(Some(gradient))
    }
}

//! Attention of one query on a GPU.

use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::op::BackpropOp;
use candle_core::{CudaStorage, DType, Result, Shape, Storage, Tensor};
use cudarc::driver::{LaunchConfig, PushKernelArg as _};
use esper_graph::launch::{Effect, address, address_of, declare, tensor_error};

use super::position::Position;
use crate::device::{IMAGE, count, gpu_of, is_aligned};

const THREADS: u32 = 128;
/// Places of a block, of caches of up to 4 096 tokens, and most blocks of a head of larger ones.
const CHUNK: usize = 64;
/// Blocks along the second and third coordinate of a grid.
const MAX_BLOCKS: usize = 65_535;
/// Most heads of queries that share a head of keys.
pub(super) const MAX_GROUPS: usize = 64;

/// What is kept of one layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept<'a> {
    /// (B, H, T, d) each.
    pub(super) keys: &'a Tensor,
    pub(super) values: &'a Tensor,
    /// [`MAX_GROUPS`] numbers per head of keys, all 0.
    pub(super) counters: &'a Tensor,
}

/// The kernel for a type and a number of coordinates.
fn name(dtype: DType, width: usize) -> Option<&'static str> {
    Some(match (dtype, width) {
        (DType::F32, 32) => "decode_f32_32",
        (DType::F32, 64) => "decode_f32_64",
        (DType::F32, 128) => "decode_f32_128",
        (DType::F32, 256) => "decode_f32_256",
        (DType::BF16, 32) => "decode_bf16_32",
        (DType::BF16, 64) => "decode_bf16_64",
        (DType::BF16, 128) => "decode_bf16_128",
        (DType::BF16, 256) => "decode_bf16_256",
        (DType::F16, 32) => "decode_f16_32",
        (DType::F16, 64) => "decode_f16_64",
        (DType::F16, 128) => "decode_f16_128",
        (DType::F16, 256) => "decode_f16_256",
        _ => return None,
    })
}

/// Whether the kernel takes these: one query per head, of which no gradient is asked for.
pub(super) fn takes(kept: Kept<'_>, queries: &Tensor) -> bool {
    let (batch, all, count, width) = queries.dims4().unwrap_or_default();
    let heads = kept.keys.dims()[1];
    queries.device().is_cuda()
        && name(queries.dtype(), width).is_some()
        && !queries.track_op()
        && count == 1
        && all <= MAX_BLOCKS.min(heads * MAX_GROUPS)
        && batch <= MAX_BLOCKS
}

/// Keeps the key and the value of the next token, and answers its queries (B, G·H, 1, d), of shapes that were checked.
///
/// None where an address is no multiple of 16 bytes.
pub(super) fn attend(
    kept: Kept<'_>,
    [queries, keys, values]: [&Tensor; 3],
    position: &Position,
    scale: f64,
) -> Result<Option<Tensor>> {
    let (batch, heads, capacity, width) = kept.keys.dims4()?;
    let (_, all, _, _) = queries.dims4()?;
    let (queries, keys, values) = (queries.contiguous()?, keys.contiguous()?, values.contiguous()?);
    let inputs = [address(&queries)?, address(&keys)?, address(&values)?];
    let places = [address(kept.keys)?, address(kept.values)?];
    if !is_aligned(&inputs) || !is_aligned(&places) {
        return Ok(None);
    }
    let device = gpu_of(&queries)?;
    let chunk = CHUNK.max(capacity.div_ceil(CHUNK).next_multiple_of(CHUNK));
    let chunks = capacity.div_ceil(chunk);
    let numbers = batch * all * width;
    let bytes = queries.dtype().size_in_bytes();
    // What the blocks of a head tell one another lies behind the result, at the next multiple of 16 bytes.
    let start = numbers.next_multiple_of(16 / bytes);
    let parts_bytes = batch * all * chunks * (width + 2) * size_of::<f32>();
    let room = start + parts_bytes / bytes;
    // SAFETY: the kernel writes the result and what is behind it.
    let slice = unsafe {
        match queries.dtype() {
            DType::F32 => CudaStorageSlice::F32(device.alloc(room)?),
            DType::BF16 => CudaStorageSlice::BF16(device.alloc(room)?),
            _ => CudaStorageSlice::F16(device.alloc(room)?),
        }
    };
    let result = CudaStorage { slice, device: device.clone() };
    let (out, parts) = (address_of(&result, 0)?, address_of(&result, start)?);
    let (counters, at) = (address(kept.counters)?, address(position.at())?);
    let Some(name) = name(queries.dtype(), width) else { return Ok(None) };
    let function = IMAGE.function(device, name)?;
    let (num_heads, groups) = (count(heads)?, count(all / heads)?);
    let (num_places, places_of_block) = (count(capacity)?, count(chunk)?);
    #[expect(clippy::cast_possible_truncation, reason = "the kernel computes in single precision")]
    let factor = (scale * std::f64::consts::LOG2_E) as f32;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&inputs[0]).arg(&inputs[1]).arg(&inputs[2]).arg(&places[0]).arg(&places[1]).arg(&at);
    launch.arg(&out).arg(&parts).arg(&counters);
    launch.arg(&num_heads).arg(&groups).arg(&num_places).arg(&places_of_block).arg(&factor);
    let cache_bytes = batch * heads * capacity * width * bytes;
    let effect = || {
        let new_bytes = batch * heads * width * bytes;
        Effect::new()
            .reading(inputs[0], numbers * bytes)
            .reading(inputs[1], new_bytes)
            .reading(inputs[2], new_bytes)
            .updating(places[0], cache_bytes)
            .updating(places[1], cache_bytes)
            .reading(at, size_of::<u32>())
            .writing(out, numbers * bytes)
            .writing(parts, parts_bytes)
            .updating(counters, batch * all * size_of::<u32>())
    };
    let config = LaunchConfig {
        grid_dim: (count(chunks)?, count(all)?, count(batch)?),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    };
    // SAFETY: shapes are those of the tensors, which are contiguous, and of the memory taken above; the place is compared with the
    // capacity by the kernel.
    tensor_error(declare(&stream, effect, || unsafe { launch.launch(config) }))?;
    let shape = Shape::from((batch, all, 1, width));
    Ok(Some(Tensor::from_storage(Storage::Cuda(result), shape, BackpropOp::none(), false)))
}

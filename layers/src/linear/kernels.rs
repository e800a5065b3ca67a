//! Launches of the kernels around the products of a linear layer.

use candle_core::{CudaDevice, Result, bail};
use cudarc::driver::{LaunchConfig, PushKernelArg as _};
use esper_graph::launch::{Effect, declare, tensor_error};

use super::options::Activation;
use crate::device::{Array, IMAGE, Scalar, count, is_aligned, unwritten_tensor};

const THREADS: u32 = 256;
const MAX_BLOCKS: usize = 65_535;
/// Numbers that a thread of a product of one row reads at once, and rows of the weight per block.
const PER_LANE: usize = 8;
const ROWS_OF_BLOCK: u32 = 4;

/// Bytes of an array that a thread reads at once, as in the kernels.
const WIDE: usize = 16;
/// The block of a sum of columns, as in the kernel.
const WIDTH: u32 = 8;
const LANES: u32 = 32;

/// Up to this many rows are summed at once: nothing waits for the sums but the update, and on an H100 a second launch cost more than
/// they took longer.
const MAX_ROWS_AT_ONCE: u32 = 1024;
/// Few rows, so that there are blocks for the whole device: a thread adds two of them.
const MIN_ROWS_PER_CHUNK: u32 = 64;
const MAX_CHUNKS: u32 = 128;
/// Elements of an array whose second reading is saved. Where both were one kernel, a step with arrays of 25 million took less
/// time, and steps with arrays of a few million took more, since products wait for the sums then.
const LEAST_TOGETHER: usize = 1 << 23;
/// Up to this many rows there are too few blocks for both.
const MAX_ROWS_TOGETHER: u32 = 256;

/// `output` = `input` rounded to the nearest number of its type, ties to even.
pub(super) fn round(device: &CudaDevice, input: Array<'_>, output: Array<'_>) -> Result<()> {
    expect(&[(input, Scalar::F32), (output, output.scalar())], input.len())?;
    let name = match output.scalar() {
        Scalar::F32 => bail!("numbers are rounded to half precision"),
        Scalar::Bf16 => "linear_round_bf16",
        Scalar::F16 => "linear_round_f16",
    };
    let function = IMAGE.function(device, name)?;
    let (from, to, count) = (input.address(), output.address(), input.len() as u64);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&from).arg(&to).arg(&count);
    let effect = || Effect::new().reading(from, input.bytes()).writing(to, output.bytes());
    // SAFETY: both have `count` elements of the kernel's types.
    tensor_error(declare(&stream, effect, || unsafe { launch.launch(elementwise(input)) }))?;
    Ok(())
}

/// `result` = `x`·Wᵀ for one row `x` and a weight (out, in), if there is a kernel for their types and sizes.
pub(super) fn row_product(device: &CudaDevice, x: Array<'_>, weight: Array<'_>, result: Array<'_>) -> Result<bool> {
    let (scalar, addresses) = (x.scalar(), [x.address(), weight.address()]);
    let is_plain = [weight.scalar(), result.scalar()] == [scalar; 2];
    if !is_plain || !x.len().is_multiple_of(PER_LANE) || !is_aligned(&addresses) {
        return Ok(false);
    }
    let name = match scalar {
        Scalar::F32 => "row_product_f32",
        Scalar::Bf16 => "row_product_bf16",
        Scalar::F16 => return Ok(false),
    };
    let function = IMAGE.function(device, name)?;
    let (to, inputs, outputs) = (result.address(), count(x.len())?, count(result.len())?);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&addresses[0]).arg(&addresses[1]).arg(&to).arg(&inputs).arg(&outputs);
    let effect = || {
        Effect::new().reading(addresses[0], x.bytes()).reading(addresses[1], weight.bytes()).writing(to, result.bytes())
    };
    let config = LaunchConfig {
        grid_dim: (outputs.div_ceil(ROWS_OF_BLOCK), 1, 1),
        block_dim: (32 * ROWS_OF_BLOCK, 1, 1),
        shared_mem_bytes: 0,
    };
    // SAFETY: the weight has as many columns as `x` elements and as many rows as the result, all of the kernel's type.
    tensor_error(declare(&stream, effect, || unsafe { launch.launch(config) }))?;
    Ok(true)
}

/// `after` = activation(`before`).
pub(super) fn activate(device: &CudaDevice, before: Array<'_>, after: Array<'_>, activation: Activation) -> Result<()> {
    expect(&[(before, before.scalar()), (after, before.scalar())], before.len())?;
    let name = match before.scalar() {
        Scalar::F32 => "linear_activate_f32",
        Scalar::Bf16 => "linear_activate_bf16",
        Scalar::F16 => bail!("outputs are not of `f16`"),
    };
    let function = IMAGE.function(device, name)?;
    let (from, to, count, kind) = (before.address(), after.address(), before.len() as u64, code(activation));
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&from).arg(&to).arg(&count).arg(&kind);
    let effect = || Effect::new().reading(from, before.bytes()).writing(to, after.bytes());
    // SAFETY: both have `count` elements of the kernel's type.
    tensor_error(declare(&stream, effect, || unsafe { launch.launch(elementwise(before)) }))?;
    Ok(())
}

/// `result` = `gradient`·activation'(·), where `kept` is the output of `Relu` and what was before the others.
pub(super) fn activation_gradient(
    device: &CudaDevice,
    kept: Array<'_>,
    gradient: Array<'_>,
    result: Array<'_>,
    activation: Activation,
) -> Result<()> {
    expect(&[(kept, gradient.scalar()), (gradient, gradient.scalar()), (result, result.scalar())], kept.len())?;
    let name = match (gradient.scalar(), result.scalar()) {
        (Scalar::F32, Scalar::F32) => "linear_gradient_f32",
        (Scalar::F32, Scalar::Bf16) => "linear_gradient_f32_bf16",
        (Scalar::F32, Scalar::F16) => "linear_gradient_f32_f16",
        (Scalar::Bf16, Scalar::Bf16) => "linear_gradient_bf16",
        (Scalar::F16, _) | (Scalar::Bf16, Scalar::F16 | Scalar::F32) => {
            bail!("the gradient of rounded outputs has their type")
        }
    };
    let function = IMAGE.function(device, name)?;
    let (kept_at, from, to) = (kept.address(), gradient.address(), result.address());
    let (count, kind) = (kept.len() as u64, code(activation));
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&kept_at).arg(&from).arg(&to).arg(&count).arg(&kind);
    let effect =
        || Effect::new().reading(kept_at, kept.bytes()).reading(from, gradient.bytes()).writing(to, result.bytes());
    // SAFETY: all have `count` elements of the kernel's types.
    tensor_error(declare(&stream, effect, || unsafe { launch.launch(elementwise(kept)) }))?;
    Ok(())
}

/// Adds `bias` to each row of `rows`.
pub(super) fn add_bias(device: &CudaDevice, rows: Array<'_>, bias: Array<'_>) -> Result<()> {
    expect(&[(rows, rows.scalar())], rows.len())?;
    expect(&[(bias, rows.scalar())], bias.len())?;
    if bias.len() == 0 || !rows.len().is_multiple_of(bias.len()) {
        bail!("a bias of {} elements is not one of {} elements in rows", bias.len(), rows.len())
    }
    let name = match rows.scalar() {
        Scalar::F32 => "linear_add_bias_f32",
        Scalar::Bf16 => "linear_add_bias_bf16",
        Scalar::F16 => bail!("outputs are not of `f16`"),
    };
    let function = IMAGE.function(device, name)?;
    let (to, from, count, columns) = (rows.address(), bias.address(), rows.len() as u64, number(bias.len())?);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&to).arg(&from).arg(&count).arg(&columns);
    let effect = || Effect::new().updating(to, rows.bytes()).reading(from, bias.bytes());
    // SAFETY: `count` is a number of whole rows of as many columns as the bias has elements.
    tensor_error(declare(&stream, effect, || unsafe { launch.launch(elementwise(rows)) }))?;
    Ok(())
}

/// `sums` = the sums of the columns of `rows` (N, columns), added as `f32` and in an order that depends on N alone.
pub(super) fn column_sums(device: &CudaDevice, rows: Array<'_>, sums: Array<'_>) -> Result<()> {
    let chunks = Chunks::of(rows, sums, MAX_ROWS_AT_ONCE)?;
    if chunks.num_chunks == 1 {
        return sum_chunks(device, rows, sums, &chunks);
    }
    let partial = unwritten_tensor(device, (chunks.num_chunks as usize, sums.len()), Scalar::F32)?;
    let partial = Array::of_tensor(&partial)?;
    sum_chunks(device, rows, partial, &chunks)?;
    sum_chunks(device, partial, sums, &chunks.of_chunks())
}

/// [`activation_gradient`], or `gradient` rounded where there is nothing `kept`, and [`column_sums`] of the result in one pass
/// over memory. False where that does not pay or no kernel has these types: then nothing was done.
pub(super) fn gradient_and_sums(
    device: &CudaDevice,
    (kept, activation): (Option<Array<'_>>, Activation),
    gradient: Array<'_>,
    result: Array<'_>,
    sums: Array<'_>,
) -> Result<bool> {
    let chunks = Chunks::of(result, sums, MAX_ROWS_TOGETHER)?;
    let name = match (gradient.scalar(), result.scalar()) {
        (Scalar::F32, Scalar::F32) => "linear_gradient_sums_f32",
        (Scalar::F32, Scalar::Bf16) => "linear_gradient_sums_f32_bf16",
        (Scalar::F32, Scalar::F16) => "linear_gradient_sums_f32_f16",
        (Scalar::Bf16, Scalar::Bf16) => "linear_gradient_sums_bf16",
        (Scalar::F16, _) | (Scalar::Bf16, Scalar::F16 | Scalar::F32) => return Ok(false),
    };
    if result.len() < LEAST_TOGETHER || chunks.num_chunks == 1 || kept.is_none() != (activation == Activation::None) {
        return Ok(false);
    }
    let kept = kept.unwrap_or(gradient);
    expect(&[(kept, gradient.scalar()), (gradient, gradient.scalar()), (result, result.scalar())], result.len())?;
    let (kept_at, from, to) = (kept.address(), gradient.address(), result.address());
    let (config, is_wide) = chunks.launch(gradient.scalar(), &[kept_at, from, to])?;
    // One by one elements would take longer than they do without their sums.
    if is_wide == 0 {
        return Ok(false);
    }
    let partial = unwritten_tensor(device, (chunks.num_chunks as usize, sums.len()), Scalar::F32)?;
    let partial = Array::of_tensor(&partial)?;
    let (function, sums_at) = (IMAGE.function(device, name)?, partial.address());
    let kind = code(activation);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&kept_at).arg(&from).arg(&to).arg(&sums_at);
    launch.arg(&chunks.num_rows).arg(&chunks.columns).arg(&chunks.rows_per_chunk).arg(&is_wide).arg(&kind);
    let effect = || {
        let read = Effect::new().reading(kept_at, kept.bytes()).reading(from, gradient.bytes());
        read.writing(to, result.bytes()).writing(sums_at, partial.bytes())
    };
    // SAFETY: all have rows of so many columns of the kernel's types, and there is a row of sums for each chunk.
    tensor_error(declare(&stream, effect, || unsafe { launch.launch(config) }))?;
    sum_chunks(device, partial, sums, &chunks.of_chunks())?;
    Ok(true)
}

fn sum_chunks(device: &CudaDevice, rows: Array<'_>, sums: Array<'_>, chunks: &Chunks) -> Result<()> {
    expect(&[(rows, rows.scalar())], chunks.num_rows as usize * chunks.columns as usize)?;
    expect(&[(sums, sums.scalar())], chunks.num_chunks as usize * chunks.columns as usize)?;
    let name = match (rows.scalar(), sums.scalar()) {
        (Scalar::F32, Scalar::F32) => "linear_sums_f32",
        (Scalar::F32, Scalar::Bf16) => "linear_sums_f32_bf16",
        (Scalar::Bf16, Scalar::F32) => "linear_sums_bf16_f32",
        (Scalar::Bf16, Scalar::Bf16) => "linear_sums_bf16",
        (Scalar::F16, Scalar::F32) => "linear_sums_f16_f32",
        (_, Scalar::F16) | (Scalar::F16, Scalar::Bf16) => bail!("sums are not of `f16`, and those of `f16` are `f32`"),
    };
    let function = IMAGE.function(device, name)?;
    let (from, to) = (rows.address(), sums.address());
    let (config, is_wide) = chunks.launch(rows.scalar(), &[from])?;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&from).arg(&to);
    launch.arg(&chunks.num_rows).arg(&chunks.columns).arg(&chunks.rows_per_chunk).arg(&is_wide);
    let effect = || Effect::new().reading(from, rows.bytes()).writing(to, sums.bytes());
    // SAFETY: the rows have the columns given, and there is a row of sums for each chunk; every chunk has a row.
    tensor_error(declare(&stream, effect, || unsafe { launch.launch(config) }))?;
    Ok(())
}

/// How columns are summed: by chunks of rows, none of them empty.
#[derive(Debug, Clone, Copy)]
struct Chunks {
    num_rows: u32,
    columns: u32,
    rows_per_chunk: u32,
    num_chunks: u32,
}

impl Chunks {
    /// In one chunk where there are no more rows than `at_once`.
    fn of(rows: Array<'_>, sums: Array<'_>, at_once: u32) -> Result<Self> {
        let columns = sums.len();
        if columns == 0 || rows.len() == 0 || !rows.len().is_multiple_of(columns) {
            bail!("{columns} sums do not fit {} elements in rows", rows.len())
        }
        let num_rows = number(rows.len() / columns)?;
        let (rows_per_chunk, num_chunks) = chunks(num_rows, at_once);
        Ok(Self { num_rows, columns: number(columns)?, rows_per_chunk, num_chunks })
    }

    /// How the sums of the chunks are summed.
    fn of_chunks(&self) -> Self {
        Self { num_rows: self.num_chunks, rows_per_chunk: self.num_chunks, num_chunks: 1, ..*self }
    }

    /// A launch over rows of a type, and whether a thread takes neighbors at once: where rows of all addresses allow it.
    fn launch(&self, scalar: Scalar, addresses: &[u64]) -> Result<(LaunchConfig, u32)> {
        let is_wide = (self.columns as usize * scalar.bytes()).is_multiple_of(WIDE) && is_aligned(addresses);
        let own = if is_wide { number(WIDE / scalar.bytes())? } else { 1 };
        let grid_dim = (self.columns.div_ceil(WIDTH * own), self.num_chunks, 1);
        Ok((LaunchConfig { grid_dim, block_dim: (WIDTH, LANES, 1), shared_mem_bytes: 0 }, u32::from(is_wide)))
    }
}

/// Rows per chunk, and number of chunks, none of them empty.
fn chunks(num_rows: u32, at_once: u32) -> (u32, u32) {
    if num_rows <= at_once {
        return (num_rows, 1);
    }
    let rows_per_chunk = num_rows.div_ceil(MAX_CHUNKS).max(MIN_ROWS_PER_CHUNK);
    (rows_per_chunk, num_rows.div_ceil(rows_per_chunk))
}

fn code(activation: Activation) -> u32 {
    match activation {
        Activation::None => 0,
        Activation::Relu => 1,
        Activation::Gelu => 2,
        Activation::GeluErf => 3,
    }
}

/// A launch with a thread for each piece of an array; kernels that take single elements go through them in strides.
fn elementwise(read: Array<'_>) -> LaunchConfig {
    let blocks = read.bytes().div_ceil(THREADS as usize * WIDE).clamp(1, MAX_BLOCKS);
    let blocks = u32::try_from(blocks).expect("a clamped number");
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
}

fn number(count: usize) -> Result<u32> {
    u32::try_from(count).map_err(|_| candle_core::Error::Msg(format!("{count} is more than a kernel counts")).bt())
}

fn expect(arrays: &[(Array<'_>, Scalar)], len: usize) -> Result<()> {
    match arrays.iter().find(|(array, scalar)| array.len() != len || array.scalar() != *scalar || len == 0) {
        Some((array, scalar)) => bail!("a kernel for {len} elements of {scalar:?} was given {array:?}"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_hold_every_row_once_and_are_few() {
        let all = (1..5_000).chain([65_535, 65_536, 65_537, 1 << 20, u32::MAX]);
        for (num_rows, at_once) in all.flat_map(|rows| [(rows, MAX_ROWS_AT_ONCE), (rows, MAX_ROWS_TOGETHER)]) {
            let (rows_per_chunk, num_chunks) = chunks(num_rows, at_once);
            assert!((1..=MAX_CHUNKS).contains(&num_chunks), "{num_rows}");
            let before_last = u64::from(rows_per_chunk) * u64::from(num_chunks - 1);
            let end = before_last + u64::from(rows_per_chunk);
            assert!(before_last < u64::from(num_rows) && u64::from(num_rows) <= end, "{num_rows}");
        }
    }
}

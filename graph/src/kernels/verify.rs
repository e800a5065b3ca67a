//! Comparing what two graphs leave behind.

use candle_core::{CudaDevice, Result};
use cudarc::driver::{DeviceRepr, PushKernelArg as _};

use super::IMAGE;
use crate::launch::{grid, tensor_error};

const MAX_SPANS: usize = 64;

/// Bytes on the device and their copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CopiedSpan {
    /// First byte.
    pub(crate) address: u64,
    /// How many.
    pub(crate) bytes: usize,
    /// Where the copy starts in the buffer of copies: a multiple of 4.
    pub(crate) offset: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Spans {
    address: [u64; MAX_SPANS],
    offset: [u64; MAX_SPANS],
    bytes: [u64; MAX_SPANS],
}

// SAFETY: a plain structure of numbers, laid out as the kernel's.
unsafe impl DeviceRepr for Spans {}

/// 64-bit numbers that are counted per span: words that differ, and the first of them.
pub(crate) const COUNTS_PER_SPAN: usize = 2;

// Neither launch is declared: they compare graphs, and are never recorded.

/// Every span changes places with its copy in the buffer at `copies`. `num_exchanged` grows by those that do, from the
/// first on, also where a launch fails.
///
/// # Safety
/// The spans and their copies are memory of this device, no two of them share a byte, and all live until the stream
/// has caught up.
pub(crate) unsafe fn exchange_spans(
    device: &CudaDevice,
    spans: &[CopiedSpan],
    copies: u64,
    num_exchanged: &mut usize,
) -> Result<()> {
    let (stream, function) = (device.cuda_stream(), IMAGE.function(device, "exchange_spans")?);
    for chunk in spans.chunks(MAX_SPANS) {
        let table = Spans::of(chunk);
        let mut launch = stream.launch_builder(&function);
        launch.arg(&table).arg(&copies);
        // SAFETY: the kernel stays inside of the spans and of their copies.
        tensor_error(unsafe { launch.launch(grid(longest(chunk), chunk.len())) })?;
        *num_exchanged += chunk.len();
    }
    Ok(())
}

/// Adds the differences between the spans and their copies to [`COUNTS_PER_SPAN`] numbers per span at `found`. With
/// `allows_signs` two words that are zero but for their highest bit are the same.
///
/// # Safety
/// As for [`exchange_spans`], and `found` has room for these numbers.
pub(crate) unsafe fn count_differences(
    device: &CudaDevice,
    spans: &[CopiedSpan],
    copies: u64,
    allows_signs: bool,
    found: u64,
) -> Result<()> {
    let (stream, function) = (device.cuda_stream(), IMAGE.function(device, "count_differences")?);
    let mask = if allows_signs { 0x7fff_ffff_u32 } else { u32::MAX };
    for (index, chunk) in spans.chunks(MAX_SPANS).enumerate() {
        let table = Spans::of(chunk);
        let found = found + (index * MAX_SPANS * COUNTS_PER_SPAN * size_of::<u64>()) as u64;
        let mut launch = stream.launch_builder(&function);
        launch.arg(&table).arg(&copies).arg(&mask).arg(&found);
        // SAFETY: the kernel reads the spans and their copies, and writes the numbers of the spans of its chunk.
        tensor_error(unsafe { launch.launch(grid(longest(chunk), chunk.len())) })?;
    }
    Ok(())
}

impl Spans {
    fn of(chunk: &[CopiedSpan]) -> Self {
        let mut table = Self { address: [0; MAX_SPANS], offset: [0; MAX_SPANS], bytes: [0; MAX_SPANS] };
        for (index, span) in chunk.iter().enumerate() {
            table.address[index] = span.address;
            table.offset[index] = span.offset as u64;
            table.bytes[index] = span.bytes as u64;
        }
        table
    }
}

/// Words of the longest span.
fn longest(chunk: &[CopiedSpan]) -> usize {
    chunk.iter().map(|span| span.bytes.div_ceil(4)).max().unwrap_or(0)
}

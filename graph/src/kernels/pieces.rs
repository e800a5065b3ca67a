//! Copies between many tensors and one buffer.

use candle_core::{CudaDevice, DType, Result, Tensor};
use cudarc::driver::{CudaFunction, CudaSlice, DevicePtr as _, DeviceRepr, LaunchConfig, PushKernelArg as _};

use super::IMAGE;
use crate::launch::{Effect, address, declare, grid, tensor_error};

const MAX_PIECES: usize = 64;
/// Copies that one launch makes.
pub(crate) const MAX_COPIES: usize = 32;

#[repr(C)]
#[derive(Clone, Copy)]
struct Pieces {
    address: [u64; MAX_PIECES],
    offset: [u64; MAX_PIECES],
    length: [u64; MAX_PIECES],
}

/// What [`copy_words`] tells its kernel.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Copies {
    source: [u64; MAX_COPIES],
    target: [u64; MAX_COPIES],
    length: [u64; MAX_COPIES],
}

// SAFETY: a plain structure of numbers, laid out as the kernel's.
unsafe impl DeviceRepr for Pieces {}
// SAFETY: as above.
unsafe impl DeviceRepr for Copies {}

/// Copies tensors to their offsets in `flat`, in a launch for up to 64 of them. Sources that are not contiguous are made so
/// first.
///
/// # Shapes
/// `flat` (N,), all of `f32`, or all of `bf16`; each source ends within it.
/// # Errors
/// For other tensors, before anything is copied, and when a launch fails.
/// # Sync
/// none
pub fn gather(device: &CudaDevice, flat: &Tensor, sources: &[(usize, &Tensor)]) -> Result<()> {
    let whole = sources.iter().map(|(at, tensor)| Ok((*at, tensor.contiguous()?))).collect::<Result<Vec<_>>>()?;
    let end = whole.iter().map(|(at, tensor)| at + tensor.elem_count()).max().unwrap_or(0);
    let (dtype, direction) = match flat.dtype() {
        DType::BF16 => (DType::BF16, Direction::ToHalves),
        _ => (DType::F32, Direction::ToFlat),
    };
    if end > flat.elem_count() || flat.dtype() != dtype || whole.iter().any(|(_, t)| t.dtype() != dtype) {
        candle_core::bail!("gather: {end} elements of {dtype:?} do not fit into {flat:?}")
    }
    let pieces: Vec<(usize, &Tensor)> = whole.iter().map(|(at, tensor)| (*at, tensor)).collect();
    move_pieces(device, direction, address(flat)?, &pieces)
}

/// Copies the words of `flat` at each offset to its tensor, of any type of 4 or 8 bytes.
pub(crate) fn scatter(device: &CudaDevice, flat: &CudaSlice<u32>, targets: &[(usize, &Tensor)]) -> Result<()> {
    let end = targets.iter().map(|(at, tensor)| at + words(tensor)).max().unwrap_or(0);
    if end > flat.len() {
        candle_core::bail!("scatter: {end} words are not in a buffer of {}", flat.len())
    }
    move_pieces(device, Direction::FromFlat, flat.device_ptr(&device.cuda_stream()).0, targets)
}

/// Copies contiguous tensors to others of the same type and size, in words of 4 bytes.
pub(crate) fn copy_all(device: &CudaDevice, copies: &[(&Tensor, &Tensor)]) -> Result<()> {
    // SAFETY: the tensors have so many words, aligned to their types, and are freed in the order of the device's stream.
    unsafe { copy_words(device, &word_copies(copies)?) }
}

/// Where the words of these copies are.
pub(crate) fn word_copies(copies: &[(&Tensor, &Tensor)]) -> Result<Vec<WordCopy>> {
    let copy = |(from, to): &(&Tensor, &Tensor)| match word_copy(from, to) {
        Some(copy) => Ok(copy),
        None => candle_core::bail!(
            "a copy from {from:?} to {to:?}: expected contiguous tensors on the GPU of one size and type, which kernels take, in whole words of 4 bytes"
        ),
    };
    copies.iter().map(copy).collect()
}

/// Where the words of a copy are; absent where the tensors are not contiguous and alike on the GPU, or not whole words.
pub(crate) fn word_copy(from: &Tensor, to: &Tensor) -> Option<WordCopy> {
    let is_alike = from.dtype() == to.dtype() && from.elem_count() == to.elem_count();
    if !is_alike || !bytes(from).is_multiple_of(4) || !from.is_contiguous() || !to.is_contiguous() {
        return None;
    }
    let copy = WordCopy { from: address(from).ok()?, to: address(to).ok()?, words: words(from) };
    (copy.from | copy.to).is_multiple_of(4).then_some(copy)
}

/// Words on their way from one address that the device reads to one that it writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WordCopy {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) words: usize,
}

impl WordCopy {
    pub(crate) fn reads_what_is_written_by(&self, other: &Self) -> bool {
        let end = |start: u64, copy: &Self| start + 4 * copy.words as u64;
        self.from < end(other.to, other) && other.to < end(self.from, self)
    }
}

/// Copies words, in a launch for up to 32 copies, in no order: a target that overlaps another or a source gets words of either.
///
/// # Safety
/// At each address are so many words, aligned to 4 bytes, that the device can read or write until its stream has got so far.
pub(crate) unsafe fn copy_words(device: &CudaDevice, copies: &[WordCopy]) -> Result<()> {
    let stream = device.cuda_stream();
    let function = copying_kernel(device)?;
    for few in copies.chunks(MAX_COPIES) {
        let (table, config) = Copies::of(few);
        let effect = || {
            let copies = few.iter().filter(|copy| copy.words > 0);
            copies.fold(Effect::new(), |effect, copy| effect.copying(copy.from, copy.to, 4 * copy.words))
        };
        let mut launch = stream.launch_builder(&function);
        launch.arg(&table);
        // SAFETY: each source and each target has as many words as the table says.
        let launch = || tensor_error(unsafe { launch.launch(config) });
        declare(&stream, effect, launch)?;
    }
    Ok(())
}

/// The kernel of [`copy_words`]: it takes [`Copies`].
pub(crate) fn copying_kernel(device: &CudaDevice) -> Result<CudaFunction> {
    IMAGE.function(device, "copy_words")
}

impl Copies {
    /// Up to [`MAX_COPIES`] copies, and the grid that makes them; of none a grid that does nothing.
    pub(crate) fn of(few: &[WordCopy]) -> (Self, LaunchConfig) {
        let mut table = Self { source: [0; MAX_COPIES], target: [0; MAX_COPIES], length: [0; MAX_COPIES] };
        for (index, WordCopy { from, to, words }) in few.iter().enumerate() {
            (table.source[index], table.target[index], table.length[index]) = (*from, *to, *words as u64);
        }
        let longest = few.iter().map(|copy| copy.words).max().unwrap_or(0);
        (table, grid(longest.div_ceil(4), few.len().max(1)))
    }
}

/// Sizes must have been checked.
fn move_pieces(device: &CudaDevice, direction: Direction, flat: u64, pieces: &[(usize, &Tensor)]) -> Result<()> {
    let stream = device.cuda_stream();
    let function = IMAGE.function(
        device,
        match direction {
            Direction::ToFlat => "gather_words",
            Direction::ToHalves => "gather_halves",
            Direction::FromFlat => "scatter_words",
        },
    )?;
    for chunk in pieces.chunks(MAX_PIECES) {
        let mut table = Pieces { address: [0; MAX_PIECES], offset: [0; MAX_PIECES], length: [0; MAX_PIECES] };
        // The kernel is told where the first of these pieces starts, so that all it touches follows its pointers.
        let start = chunk.iter().map(|(offset, _)| *offset).min().unwrap_or(0);
        let flat = flat + (direction.unit() * start) as u64;
        for (index, (offset, tensor)) in chunk.iter().enumerate() {
            table.address[index] = address(tensor)?;
            table.offset[index] = (offset - start) as u64;
            table.length[index] = (bytes(tensor) / direction.unit()) as u64;
        }
        let longest = chunk.iter().map(|(_, tensor)| words(tensor)).max().unwrap_or(0);
        let mut launch = stream.launch_builder(&function);
        launch.arg(&table).arg(&flat);
        // SAFETY: every piece lies inside its tensor and inside the flat buffer, as checked by the callers.
        let launch = || tensor_error(unsafe { launch.launch(grid(longest, chunk.len())) });
        declare(&stream, || effect(direction, flat, &table, chunk.len()), launch)?;
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToFlat,
    /// To a flat buffer of 16 bits.
    ToHalves,
    FromFlat,
}

impl Direction {
    /// Bytes that offsets and lengths are counted in.
    fn unit(self) -> usize {
        if self == Self::ToHalves { 2 } else { 4 }
    }
}

fn effect(direction: Direction, flat: u64, table: &Pieces, count: usize) -> Effect {
    let pieces = (0..count).filter(|&index| table.length[index] > 0);
    pieces.fold(Effect::new(), |effect, index| {
        let (piece, place) = (table.address[index], flat + direction.unit() as u64 * table.offset[index]);
        let bytes = direction.unit() * usize::try_from(table.length[index]).expect("a tensor that is in memory");
        match direction {
            Direction::ToFlat | Direction::ToHalves => effect.copying(piece, place, bytes),
            Direction::FromFlat => effect.copying(place, piece, bytes),
        }
    })
}

fn words(tensor: &Tensor) -> usize {
    bytes(tensor) / 4
}

fn bytes(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}

//! Nodes with blocks in place of addresses, each kernel with the source of what is known of it.

use super::declared::Groups;
use super::error::LiftError;
use super::library::names_a_product;
use super::space::Space;
use super::words::Words;
use crate::compile::block::{BlockId, Region};
use crate::compile::kernel::{Effect, LaunchShape, Pointer};
use crate::compile::node::{NodeKind, Pattern};
use crate::compile::recorded::{Recorded, RecordedKind};
use crate::compile::table::{Decoded, decode};

/// Most rows of a memset that are filled one by one.
const MAX_ROWS: usize = 64;

/// A recorded node.
pub(super) enum Resolved<'a> {
    /// What takes no look at other nodes: none, one, or a memset per row.
    Done(Vec<NodeKind>),
    Kernel(Box<ResolvedKernel<'a>>),
}

/// A kernel of which the addresses are known.
pub(super) struct ResolvedKernel<'a> {
    pub(super) name: &'a str,
    pub(super) launch: LaunchShape,
    pub(super) words: Words,
    /// The pointers; those of known kernels say what they reach.
    pub(super) pointers: Vec<Pointer>,
    pub(super) source: Source,
}

/// Where the effect of a kernel comes from.
pub(super) enum Source {
    /// The declared effect of this index.
    Declared(usize),
    Table(Effect),
    Library,
    Unknown,
}

pub(super) fn resolve<'a>(
    recorded: &'a Recorded,
    space: &mut Space<'_>,
    groups: &mut Groups,
) -> Result<Vec<Resolved<'a>>, LiftError> {
    let mut resolved = Vec::with_capacity(recorded.nodes.len());
    for (node, of) in recorded.nodes.iter().enumerate() {
        resolved.push(match &of.kind {
            RecordedKind::Kernel { name, launch, arguments, is_of_library } => {
                let kernel = kernel(space, groups, node, (name, *launch, arguments), *is_of_library)?;
                groups.see_kernel(node, &kernel, space)?;
                Resolved::Kernel(Box::new(kernel))
            }
            RecordedKind::Memset { address, value, value_bytes, width, height, pitch_bytes } => {
                let rows = rows(node, [*width, *height, *value_bytes, *pitch_bytes])?;
                let filled: Result<Vec<NodeKind>, LiftError> = rows
                    .into_iter()
                    .map(|(start, bytes)| memset(space, node, address + start as u64, bytes, (*value, *value_bytes)))
                    .collect();
                done(groups, space, node, filled?)?
            }
            RecordedKind::Copy { source, destination, bytes } if *bytes > 0 => {
                let source = range(space, node, *source, *bytes)?;
                let destination = range(space, node, *destination, *bytes)?;
                if source.overlaps(&destination) {
                    return Err(LiftError::Unsupported { node, form: "a copy between ranges that overlap" });
                }
                done(groups, space, node, vec![NodeKind::Copy { source, destination }])?
            }
            RecordedKind::Alloc { address, bytes } => {
                let block = space.allocate(node, *address, *bytes)?;
                done(groups, space, node, vec![NodeKind::Alloc(block)])?
            }
            RecordedKind::Free { address } => Resolved::Done(vec![NodeKind::Free(space.free(node, *address)?)]),
            RecordedKind::Empty | RecordedKind::Copy { .. } => Resolved::Done(vec![NodeKind::Empty]),
            RecordedKind::Other(kind) => return Err(LiftError::Node { node, kind: kind.clone() }),
        });
    }
    match space.unfreed() {
        Some(address) => Err(LiftError::NeverFreed { address }),
        None => Ok(resolved),
    }
}

fn done<'a>(
    groups: &mut Groups,
    space: &mut Space<'_>,
    node: usize,
    kinds: Vec<NodeKind>,
) -> Result<Resolved<'a>, LiftError> {
    for kind in &kinds {
        groups.see_operation(node, kind, space)?;
    }
    Ok(Resolved::Done(if kinds.is_empty() { vec![NodeKind::Empty] } else { kinds }))
}

fn kernel<'a>(
    space: &mut Space<'_>,
    groups: &Groups,
    node: usize,
    (name, launch, arguments): (&'a str, LaunchShape, &[Vec<u8>]),
    is_of_library: bool,
) -> Result<ResolvedKernel<'a>, LiftError> {
    let mut words = Words::of(arguments);
    let declared = groups.of(node);
    let known = if declared.is_some() { None } else { decode(name, &launch, arguments, space) };
    let known = known.map(|decoded| pointers_of(space, node, &words, decoded)).transpose()?.flatten();
    let (pointers, source) = match (known, declared) {
        (Some((pointers, effect)), _) => (pointers, Source::Table(effect)),
        (None, Some(group)) => (scan(space, node, &words)?, Source::Declared(group)),
        (None, None) => {
            let source = if is_of_library && names_a_product(name) { Source::Library } else { Source::Unknown };
            (scan(space, node, &words)?, source)
        }
    };
    for pointer in &pointers {
        words.values[pointer.word_index] = 0;
    }
    Ok(ResolvedKernel { name, launch, words, pointers, source })
}

/// Every word that is an address.
fn scan(space: &mut Space<'_>, node: usize, words: &Words) -> Result<Vec<Pointer>, LiftError> {
    let mut pointers = Vec::new();
    for (word_index, value) in words.full() {
        if let Some((block, offset_bytes)) = space.find(node, value)? {
            pointers.push(Pointer::new(word_index, block, offset_bytes));
        }
    }
    Ok(pointers)
}

type Known = (Vec<Pointer>, Effect);

/// The pointers of a known kernel; none where it reaches past the end of a block, so that the table has to be wrong.
fn pointers_of(
    space: &mut Space<'_>,
    node: usize,
    words: &Words,
    decoded: Decoded,
) -> Result<Option<Known>, LiftError> {
    let mut pointers = Vec::with_capacity(decoded.uses.len());
    for of in &decoded.uses {
        let is_idle = of.read_bytes == 0 && of.write.is_none();
        let (block, offset) = match space.find(node, of.address)? {
            Some(found) => found,
            // An address through which nothing is used may point anywhere.
            None if is_idle && decoded.pointwise.is_none() && decoded.reduced.is_none() => continue,
            None => return Err(LiftError::Address { node, address: of.address }),
        };
        let room = space.blocks[block.0].size_bytes - offset;
        if of.read_bytes.max(of.write.map_or(0, |write| write.bytes)) > room {
            return Ok(None);
        }
        let mut pointer = Pointer::new(words.index_of(of.argument), block, offset);
        if of.read_bytes > 0 {
            pointer = pointer.reading(offset, offset + of.read_bytes);
        }
        pointers.push(match of.write {
            Some(write) if write.is_full => pointer.writing(offset, offset + write.bytes),
            Some(write) => pointer.writing_some(offset, offset + write.bytes),
            None => pointer,
        });
    }
    let effect = match (decoded.pointwise, decoded.reduced) {
        (Some(pointwise), _) => Effect::Pointwise(Box::new(pointwise)),
        (None, Some(reduced)) => Effect::Fused(Box::new(reduced)),
        (None, None) => Effect::Known,
    };
    Ok(Some((pointers, effect)))
}

/// Start and length of what a memset fills, in bytes from its address on.
fn rows(node: usize, [width, height, value_bytes, pitch_bytes]: [usize; 4]) -> Result<Vec<(usize, usize)>, LiftError> {
    if !matches!(value_bytes, 1 | 2 | 4) {
        return Err(LiftError::Unsupported { node, form: "a memset of values that are not 1, 2 or 4 bytes long" });
    }
    let too_large = LiftError::Unsupported { node, form: "a memset of more bytes than there are" };
    let row_bytes = width.checked_mul(value_bytes).ok_or(too_large.clone())?;
    let total = row_bytes.checked_mul(height).ok_or(too_large.clone())?;
    if total == 0 {
        return Ok(Vec::new());
    }
    if height == 1 || pitch_bytes == row_bytes {
        return Ok(vec![(0, total)]);
    }
    if pitch_bytes < row_bytes || height > MAX_ROWS {
        return Err(LiftError::Unsupported { node, form: "a memset of many rows with gaps" });
    }
    (0..height).map(|row| Ok((row.checked_mul(pitch_bytes).ok_or(too_large.clone())?, row_bytes))).collect()
}

fn memset(
    space: &mut Space<'_>,
    node: usize,
    address: u64,
    bytes: usize,
    (value, width_bytes): (u32, usize),
) -> Result<NodeKind, LiftError> {
    let region = range(space, node, address, bytes)?;
    let value = if width_bytes == 4 { value } else { value & ((1 << (8 * width_bytes)) - 1) };
    Ok(NodeKind::Memset { region, pattern: Pattern { value, width_bytes } })
}

fn range(space: &mut Space<'_>, node: usize, address: u64, bytes: usize) -> Result<Region, LiftError> {
    let is_known = space.find(node, address)?.is_some();
    let region = space.region(node, address, bytes)?;
    region.ok_or(if is_known {
        LiftError::Range { node, address, bytes }
    } else {
        LiftError::Address { node, address }
    })
}

impl ResolvedKernel<'_> {
    /// The blocks that it holds an address in, each once.
    pub(super) fn blocks(&self) -> Vec<BlockId> {
        let mut blocks: Vec<BlockId> = self.pointers.iter().map(|pointer| pointer.block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks
    }
}

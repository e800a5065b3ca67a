//! Kernels of a program: parameters, the addresses among them, and what is known of their effect.

use std::sync::Arc;

use super::block::{BlockId, Region};
use super::fused::Fused;
use super::memory::ARENA_ALIGNMENT;
use super::node::Write;
use super::pointwise::Pointwise;

/// A launch of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// The name that the driver gives.
    pub name: String,
    /// Where its code is.
    pub code: Code,
    /// Blocks, threads and shared memory.
    pub launch: LaunchShape,
    /// All arguments, one after the other, each from a word of its own on. What stands in the word of a pointer is
    /// ignored.
    pub parameters: Vec<u64>,
    /// Length of each argument; an argument takes as many 8-byte words of `parameters` as it needs.
    pub argument_bytes: Vec<usize>,
    /// The addresses among the words.
    pub pointers: Vec<Pointer>,
    /// What is known of it.
    pub effect: Effect,
}

/// Where the code of a kernel is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Code {
    /// That of a kernel node of the capture: its position among the recorded nodes.
    Recorded(usize),
    /// CUDA C++ source of one `extern "C"` kernel with the name of the kernel. Empty between the pass that makes a
    /// fused kernel and the end of [`compile`](super::compile()), which writes source, name and launch.
    Generated(Arc<str>),
}

/// Blocks, threads and shared memory of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaunchShape {
    /// Thread blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

/// The widest load or store of a kernel whose effect was declared or is in the table, and the widest that there is before compute
/// capability 10, in bytes.
pub(super) const WORD_ALIGNMENT: usize = 16;

/// A parameter word that is an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointer {
    /// Index of the word in [`Kernel::parameters`].
    pub word_index: usize,
    /// The block that the address lies in.
    pub block: BlockId,
    /// Distance of the address from the start of the block; one past the end is allowed.
    pub offset_bytes: usize,
    /// The bytes of the block that may be read through it.
    pub read: Option<Region>,
    /// The bytes of the block that may be written through it.
    pub write: Option<Write>,
    /// What an address that takes its place may differ from it by a multiple of, in bytes: kernels choose wide loads and
    /// stores by the alignment of the addresses that they were launched with.
    pub alignment: usize,
}

/// What is known of a kernel beyond the bytes it reads and writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: each pointer reads and may write all that can be reached through it, and the launch is never dropped.
    Unknown,
    /// What it writes is a function of its name, its launch, its parameters and the bytes it reads.
    Known,
    /// As `Known`, and what each element is is written down.
    Pointwise(Box<Pointwise>),
    /// As `Pointwise`, with any number of outputs: what passes make.
    Fused(Box<Fused>),
}

impl Pointer {
    /// An address through which nothing is read or written.
    #[must_use]
    pub fn new(word_index: usize, block: BlockId, offset_bytes: usize) -> Self {
        Self { word_index, block, offset_bytes, read: None, write: None, alignment: WORD_ALIGNMENT }
    }

    /// The same address, through which the bytes `start..end` of the block are read.
    #[must_use]
    pub fn reading(mut self, start: usize, end: usize) -> Self {
        self.read = Some(Region::new(self.block, start, end));
        self
    }

    /// The same address, through which every byte of `start..end` of the block is written.
    #[must_use]
    pub fn writing(mut self, start: usize, end: usize) -> Self {
        self.write = Some(Write { region: Region::new(self.block, start, end), is_full: true });
        self
    }

    /// The same address, through which some bytes of `start..end` of the block may be written.
    #[must_use]
    pub fn writing_some(mut self, start: usize, end: usize) -> Self {
        self.write = Some(Write { region: Region::new(self.block, start, end), is_full: false });
        self
    }

    /// An address that an unknown kernel holds in a block of `size_bytes`: any byte may be read and written.
    #[must_use]
    pub fn unknown(word_index: usize, block: BlockId, offset_bytes: usize, size_bytes: usize) -> Self {
        let pointer = Self::new(word_index, block, offset_bytes).reading(0, size_bytes).writing_some(0, size_bytes);
        Self { alignment: ARENA_ALIGNMENT, ..pointer }
    }
}

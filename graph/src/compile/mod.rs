//! Captured graphs as programs, and passes that rewrite them.
//!
//! ```text
//!   captured graph ─► Program ─► zeros, constants, dead nodes ─► fuse ─► hoist ─► dependencies, memory ─► Program ─► graph
//!                                └──────────── one report each, checked at the start and at the end ───────────┘
//! ```
//!
//! A recording comes in as plain data ([`Recorded`]), is lifted to a program with what is known of its kernels ([`lift()`]),
//! and compared with a second recording of the same step ([`compare_twins`]). Nothing here needs a device, and all of it
//! is compiled in every build; [`Compilation`](super::Compilation) reads recordings from the driver and builds new graphs.
//!
//! Programs print as text, and [`str::parse`] takes it back. Passes do at most as many rewrites as [`PassSet::with_fuel`]
//! allows, and the result is right for any number; so [`bisect()`] and [`Bisection`] find a rewrite that is wrong.
//!
//! # Terms
//! *Program*: nodes in a valid order with explicit dependencies, and the blocks of memory they use; addresses are a
//! block and an offset. *External* block: seen by the owner before and after a replay; what a pass must keep.
//! *Unknown* kernel: nothing is known but its pointers, so it reads and may write all that they reach.
//!
//! # What the passes rely on
//! 1. [`Program::validate`] accepts the program: of two nodes that touch a byte with a write, one is ordered first.
//! 2. The pointers of a kernel are all it reads and writes, and nothing else that it keeps between launches matters.
//!    That cannot be seen here: arrays of addresses in device memory and state of a library need another check.
//! 3. Blocks share no bytes: two tensors that do are one block.
//! 4. Blocks start at a multiple of 256 bytes.
//! 5. A product that was not declared writes to the graph's own memory: candle's do.
//!
//! Not here: fusion with products.

mod block;
mod kernel;
mod reduction;
mod pointwise;
mod fused;
mod gates;
mod evaluate;
mod recorded;
mod lift;
mod table;
mod twins;
mod agree;
mod node;
mod program;
mod order;
mod error;
mod validate;
mod ranges;
mod interpret;
mod pass;
mod fuel;
mod work;
mod liveness;
mod zeros;
mod dead;
mod dependencies;
mod memory;
mod lifetimes;
mod copies;
mod place;
mod constants;
mod kernelize;
mod reductions;
mod fuse;
mod hoist;
#[cfg(any(feature = "cuda", test))]
mod indexed;
mod codegen;
#[cfg(any(feature = "cuda", test))]
mod overlap;
#[cfg(any(feature = "cuda", test))]
mod roots;
mod pipeline;
mod text;
mod bisect;
mod perceptron;
#[cfg(test)]
mod tests;

pub use agree::{compare_recordings, forget_stack};
#[cfg(test)]
pub(crate) use bisect::is_different;
pub use bisect::{Bisection, Culprit, Reproducer, Unseen, bisect};
pub use block::{Block, BlockId, Lifetime, Region};
pub use error::ProgramError;
pub use fused::{Fused, Output, View};
#[cfg(feature = "cuda")]
pub(crate) use indexed::summed_by_row;
pub use interpret::InterpretError;
#[cfg(test)]
pub(crate) use interpret::{interpret, interpret_compiled};
pub use kernel::{Code, Effect, Kernel, LaunchShape, Pointer};
pub use lift::{LiftError, Lifted, Memory, Outside, lift, outside};
pub use memory::ARENA_ALIGNMENT;
pub use node::{Node, NodeIndex, NodeKind, Pattern, Write};
#[cfg(feature = "cuda")]
pub(crate) use overlap::{Edges, early_root, edges};
pub use pass::{Change, Pass, PassReport, PassSet};
pub use perceptron::perceptron;
pub use pipeline::{CompileError, Compiled, MAX_NODES, compile};
pub use pointwise::{BinaryOp, Comparison, ElementType, Operand, Pointwise, Step, UnaryOp};
pub use program::Program;
pub use recorded::{DeclaredEffect, Recorded, RecordedKind, RecordedNode};
pub use reduction::Reduction;
pub use table::{CANDLE_VERSION, Decoded, Use, Written, decode};
pub use text::ParseError;
pub use twins::{TwinError, compare_twins};

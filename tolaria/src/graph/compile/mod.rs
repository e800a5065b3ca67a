//! Captured graphs as programs, and passes that rewrite them.
//!
//! ```text
//!   captured graph ─► Program ─► zero_sums ─► overwritten_zeros ─► dead ─► dependencies ─► memory ─► Program ─► graph
//!       (absent)                     └──────── validated after each pass, one report each ───────┘      (absent)
//! ```
//!
//! Not yet reached from a run: nothing here reads a captured graph of the driver or builds one, so that a replay is
//! what was captured. What is here needs no device, and is compiled in every build.
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
//!
//! Not here: reading and building graphs of the driver, tables of known kernels, fusion.

mod block;
mod kernel;
mod node;
mod program;
mod order;
mod error;
mod validate;
mod ranges;
mod interpret;
mod pass;
mod liveness;
mod zeros;
mod dead;
mod dependencies;
mod memory;
mod pipeline;
#[cfg(test)]
mod tests;

pub use block::{Block, BlockId, Lifetime, Region};
pub use dead::drop_dead;
pub use dependencies::recover_dependencies;
pub use error::ProgramError;
pub use interpret::{InterpretError, interpret};
pub use kernel::{Effect, Kernel, LaunchShape, Pointer};
pub use memory::{ARENA_ALIGNMENT, plan_memory};
pub use node::{Node, NodeIndex, NodeKind, Pattern, Write};
pub use pass::{Change, Pass, PassReport, PassSet};
pub use pipeline::{CompileError, Compiled, compile};
pub use program::Program;
pub use zeros::{copy_zero_sums, drop_overwritten_zeros};

//! Combining the gradients of a window: the plain way, PyTorch, and what the memory of a machine allows.
//!
//! ```text
//!   rows g_1 … g_K ──┬─► sequential: a copy, products and updates per pair of rows
//!                    ├─► PyTorch, by a script that is part of this binary
//!                    └─► floor: bytes that any way must move / bytes per second that the machine moved
//! ```
//!
//! *Entry points*: [`sequential::combine`], [`floor::Traffic`], [`torch::run`]. *Not here*: the engine itself; that is
//! `tolaria`'s.

pub mod sequential;
pub mod floor;
pub mod torch;
pub mod windows;
pub(super) mod engine;
mod cpu;

pub use cpu::run as on_cpu;

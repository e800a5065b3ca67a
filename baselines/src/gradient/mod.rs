//! Combining the gradients of a window: the plain way, the engine's, and what the memory of a machine allows.
//!
//! ```text
//!   rows g_1 … g_K ──┬─► sequential: a copy, products and updates per pair of rows
//!                    ├─► engine: that of `tolaria`
//!                    └─► floor: bytes that any way must move / bytes per second that the machine moved
//! ```

pub(crate) mod sequential;
pub(crate) mod floor;
pub(crate) mod windows;
pub(crate) mod engine;
pub(crate) mod difference;

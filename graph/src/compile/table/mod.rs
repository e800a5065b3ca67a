//! What the kernels of candle do, by name: the bytes that each address reaches, and what each element is.
//!
//! ```text
//!   name ─► entry: family, types, parameters ─► arguments (counts, addresses) ─► uses and, for element-wise kernels,
//!           (entries.rs)                        (call.rs; shapes: layout.rs)     the computation
//! ```
//!
//! Said here of candle-kernels and the launches of candle-core and candle-nn, all of [`CANDLE_VERSION`]. A test reads
//! the sources of that version and compares every name, every parameter and the expression of element-wise kernels.
//! Kernels of half precision (`f16`), 8-bit floats and quantized types have no entry; nor have sums by `atomicAdd`,
//! whose result depends on chance.

mod decoded;
mod parameter;
mod entries;
mod call;
mod layout;
mod elementwise;
mod reduction;
mod indexing;
mod convolution;
mod grouped;
mod norms;
mod decode;

pub use decode::{CANDLE_VERSION, decode};
pub use decoded::{Decoded, Use, Written};
#[cfg(test)]
pub(super) use entries::{Entry, entries};
#[cfg(test)]
pub(super) use parameter::Parameter;

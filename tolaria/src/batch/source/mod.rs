//! Samples in files that need not fit into memory.
//!
//! ```text
//!   ArraySource   two files of rows of numbers: inputs and targets        TokenSource   windows of a file of tokens
//!        └──────────────► FileReader: reads at a place, notices that the file is not the one it was
//! ```
//! Files are read where a sample is, not mapped into memory. A map of a file that is cut short ends the process
//! with a signal that nobody can turn into an error, a map of one that is written to changes under the reader, and what was once
//! read of it counts as memory of the process. A read gives an error, costs one call of the system per row, and the
//! pages that the system keeps of the file are its own. What cannot be told is a change that leaves
//! length and time of change of a file as they were.
//!
//! Both obey the rules of [`leyline::source`]; of one's own, implement [`Source`](leyline::source::Source).

mod file;
mod array;
pub(crate) mod subset;
mod tokens;

pub use array::{ArrayFile, ArrayLayout, ArraySource, Element, ReadAs};
pub use file::FileReader;
pub use tokens::{TokenLayout, TokenSource};

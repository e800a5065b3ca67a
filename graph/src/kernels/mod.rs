//! The kernels of this crate: copies of many tensors at once, and the comparison of what two graphs leave behind.
//!
//! They come as machine code inside the program, so that loading them compiles nothing. Each takes addresses and lengths by
//! value, which stay right in a replay because a graph holds its tensors. What a kernel computes for somebody else (a loss,
//! an update, a layer) lives with that crate.

mod pieces;
mod verify;

use crate::launch::Image;

pub use pieces::gather;
pub(crate) use pieces::{
    Copies, MAX_COPIES, WordCopy, copy_all, copy_words, copying_kernel, scatter, word_copies, word_copy,
};
pub(crate) use verify::{COUNTS_PER_SPAN, CopiedSpan, count_differences, exchange_spans};

static IMAGE: Image = Image::new(include_bytes!(concat!(env!("OUT_DIR"), "/graph.fatbin")));

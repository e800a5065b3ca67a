//! The layers of hosts and seeds as plain functions of their weights.
//!
//! Signals and images are convolved as one product over *rows*, one row per sample and position, and not with candle's
//! own convolutions. In candle 0.11.1 the backward pass of `conv1d` gives wrong gradients for the weights
//! (`tests/candle_conv1d.rs` measures it), and that of `conv2d` fails where a stride leaves different rests along the two
//! sides of an image (`tests/candle_conv2d.rs`). Rows also share the product of linear layers with its types, and keep the
//! channels together in memory; a signal or an image made from rows is a permuted view, and turning it back into rows
//! copies nothing.
//!
//! ```text
//!  h ─► windows: rows (positions, taps·C) ─┬─► · weight (taps·C, out) ─► convolution
//!                                          └─► ∘ weight (taps, C), summed over taps ─► depthwise convolution
//! ```

mod wide;
mod dense;
mod window;
mod conv1d;
mod conv2d;
mod depthwise;
#[cfg(test)]
mod testing;

pub(crate) use conv1d::{conv1d, from_rows, to_rows};
pub(crate) use conv2d::{conv2d, image_from_rows, image_to_rows};
pub(crate) use dense::linear;
pub(crate) use depthwise::{depthwise1d, depthwise2d};
pub(crate) use wide::{in_wide, wide};
pub(crate) use window::Window;

//! Backward passes of operations that candle 0.11.1 leaves without one, of plain tensor operations alone: they run on every device,
//! read nothing back and upload nothing, so that a step with them can be captured.

mod window;
pub(crate) mod pool;
pub(crate) mod upsample;
pub(crate) mod conv;
pub(crate) mod cut;

//! Loops compiled for several instruction sets, of which the widest that the processor has is taken.
//!
//! Loops are written over plain slices and arrays and vectorized by the compiler. It may not reorder operations on
//! floats or fuse a product with a sum, so that every instruction set gives the same bits.

use pulp::Arch;

/// Runs `work` with the widest instruction set at hand.
///
/// What `work` calls has to be inlined (`#[inline(always)]`, also on the closure): a function of its own is compiled
/// for the least processor that the build allows.
#[inline(always)]
pub(crate) fn vectorized<R>(work: impl FnOnce() -> R) -> R {
    Arch::new().dispatch(work)
}

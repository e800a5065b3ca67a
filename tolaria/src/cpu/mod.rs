//! CPU kernels: tensors of the CPU as slices, the arithmetic that several kernels share, and how it is run.
//!
//! *Invariant*: neither the instruction set nor the number of threads changes a bit of any result.

mod memory;
mod slices;
mod round;
mod simd;
mod threads;
mod dot;
mod weigh;

#[cfg(test)]
pub(crate) use dot::dot;
pub(crate) use dot::{LANES, add_products, sum_of_lanes};
pub(crate) use memory::keep_freed;
pub(crate) use round::{SINGLE, ZERO_OR_SINGLE, is_single, is_zero_or_single, to_f32};
pub(crate) use simd::vectorized;
pub(crate) use slices::{Written, all_elements, slice, slice_mut, with_slice_mut, with_slices, with_sums};
#[cfg(test)]
pub(crate) use threads::with_threads;
pub(crate) use threads::{Divide, for_each, worth_threads};
pub(crate) use weigh::{is_one, scale, weigh, weigh_into};

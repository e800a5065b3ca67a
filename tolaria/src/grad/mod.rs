//! Flat gradients: pooled buffers of P elements, and the copy from a backward pass into one of them.
//!
//! ```text
//!   loss.backward() ──► GradStore ──gather_gradients (scope)──► GradientLease (P,) ──► aggregate ──► optim
//!                                                                    │ dropped
//!                                                                    ▼
//!                                                            GradientBufferPool
//! ```
//!
//! *Entry points*: [`GradientBufferPool::lease`], [`gather_gradients`]. *Invariant*: the order of elements is that of
//! the [`ParameterLayout`](leyline::layout::ParameterLayout), by name (I-8).

mod pool;
mod geometry;
mod gather;

#[cfg(test)]
pub(crate) use gather::place;
pub use gather::{GradientScope, gather_gradients, row_type};
pub(crate) use gather::{Weight, check_parameters, gather_weighed};
pub use geometry::Geometry;
pub(crate) use geometry::{Chunk, Part};
pub use pool::{GradientBufferPool, GradientLease, PoolStats};

//! The crate's own kernels on the GPU: one file per kind, safe functions that check sizes before they launch.
//!
//! They come as machine code inside the program, so that loading them compiles nothing. Each takes addresses and
//! lengths by value, which stay right in a replay because a graph holds its tensors, and reads what changes from step
//! to step from device memory.

#[cfg(feature = "cuda")]
mod module;
#[cfg(feature = "cuda")]
mod optimizer;
#[cfg(feature = "cuda")]
mod workspace;
#[cfg(feature = "cuda")]
mod gradient;
#[cfg(feature = "cuda")]
mod sums;
#[cfg(feature = "cuda")]
mod scale;
#[cfg(feature = "cuda")]
mod weigh;
#[cfg(feature = "cuda")]
mod loss;
#[cfg(feature = "cuda")]
mod random;
#[cfg(not(feature = "cuda"))]
mod absent;
mod args;

#[cfg(not(feature = "cuda"))]
pub(crate) use absent::{DeviceKernels, Workspace, cross_entropy, cross_entropy_backward, dropout_mask};
pub(crate) use args::{
    Beside, FoldKind, MAX_ROWS, MaskArgs, NO_PART, ParameterUpdate, ScaleRule, SolveArgs, UpdateArgs,
};
#[cfg(feature = "cuda")]
pub(crate) use loss::{cross_entropy, cross_entropy_backward};
#[cfg(feature = "cuda")]
pub(crate) use module::DeviceKernels;
#[cfg(feature = "cuda")]
pub(crate) use random::dropout_mask;
#[cfg(feature = "cuda")]
pub(crate) use workspace::Workspace;

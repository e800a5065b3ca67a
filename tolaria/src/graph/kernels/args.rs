//! What the kernels are told, on any build.
#![cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "without kernels nobody reads it"))]

use std::ops::Range;

use candle_core::{Tensor, Var};

/// Most rows of one window.
pub(crate) const MAX_ROWS: usize = 32;
/// Most owners whose gradients can conflict in one window.
pub(crate) const MAX_OWNERS: usize = 16;

/// One parameter in an optimizer step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ParameterUpdate<'a> {
    pub(crate) parameter: &'a Var,
    /// Shape (moments, elements); absent for plain SGD.
    pub(crate) moments: Option<&'a Tensor>,
    /// Where the parameter's part of the flat gradient starts.
    pub(crate) offset: usize,
}

/// Elements with one norm.
#[derive(Debug, Clone)]
pub(crate) struct NormRun {
    pub(crate) range: Range<usize>,
    /// Index of the owner.
    pub(crate) owner: u32,
    /// 0 for the main loss, else a number per isolated owner.
    pub(crate) domain: u32,
}

/// What is added to sums in double precision.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FoldKind {
    AddScaled(f64),
    CountHealthy,
}

/// A dropout mask.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MaskArgs {
    pub(crate) key: [u32; 2],
    pub(crate) layer: u32,
    /// A word below this drops its element.
    pub(crate) drop: u32,
    pub(crate) scale: f32,
}

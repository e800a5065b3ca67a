//! What the kernels are told, on any build.
#![cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "without kernels nobody reads it"))]

use candle_core::{Tensor, Var};

use crate::aggregate::Clipping;
use crate::optim::Element;

/// Most rows of one window.
pub(crate) const MAX_ROWS: usize = 64;

/// How a window is resolved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SolveArgs<'a> {
    /// Name of the kernel that finds the weights.
    pub(crate) kernel: &'static str,
    /// `WindowPlan::arguments`, of `f64`.
    pub(crate) arguments: &'a Tensor,
    /// What it is told beside the owners; 0 where it needs nothing.
    pub(crate) parameter: f64,
    pub(crate) clipping: Clipping,
    /// Whether only the owners are measured: norms and factors come from elsewhere.
    pub(crate) only_measures: bool,
    /// Sums of the epoch that the owners are added to.
    pub(crate) sums: Option<&'a Tensor>,
}

/// What is written with a parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Beside<'a> {
    /// The lower halves of its numbers, (elements) of `i16`, where it is of `bf16`.
    Rest(&'a Tensor),
    /// Its copy of `bf16`, of the same shape, where it is of `f32`.
    Copy(&'a Tensor),
}

/// One parameter in an optimizer step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ParameterUpdate<'a> {
    pub(crate) parameter: &'a Var,
    pub(crate) beside: Option<Beside<'a>>,
    /// Shape (moments, elements), of `bf16` where the parameter is and has nothing beside it; absent where the rule keeps none.
    pub(crate) moments: Option<&'a Tensor>,
}

/// What an update is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UpdateArgs<'a> {
    /// The rule with its settings; its constants are in the table.
    pub(crate) element: Element,
    /// `TABLE_WIDTH` numbers per parameter: the constants of the rule, and what is drawn for it.
    pub(crate) constants: &'a Tensor,
    pub(crate) rows: &'a [&'a Tensor],
    /// (2, rows).
    pub(crate) coefficients: &'a Tensor,
    /// One per part.
    pub(crate) factors: Option<&'a Tensor>,
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

/// In the table of probes, a domain without parts.
pub(crate) const NO_PART: u32 = u32::MAX;

/// How scales of the loss move.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScaleRule {
    pub(crate) growth_steps: f32,
    pub(crate) largest: f32,
    pub(crate) smallest: f32,
}

impl ScaleRule {
    /// Scale and good steps in a row after a step; `kernels/scale.cu` has the same.
    pub(crate) fn after(self, scale: f32, good: f32, is_finite: bool) -> (f32, f32) {
        if !is_finite {
            return ((scale * 0.5).max(self.smallest), 0.0);
        }
        if good + 1.0 < self.growth_steps { (scale, good + 1.0) } else { ((scale * 2.0).min(self.largest), 0.0) }
    }
}

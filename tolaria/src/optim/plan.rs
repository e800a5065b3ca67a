//! What the update of a step depends on beside the gradient, as the host decides it.

use super::config::OptimizerConfig;
use super::muon::Matrix;
use super::rounding::Draw;
use super::rules::{Element, MAX_CONSTANTS, TABLE_WIDTH};

/// What an update depends on beside gradient and state; made by [`Optimizer::prepare`](super::Optimizer::prepare).
#[derive(Debug, Clone, PartialEq)]
pub struct UpdatePlan {
    pub(super) config: OptimizerConfig,
    /// Of each parameter that has elements.
    pub(super) planned: Vec<Planned>,
    /// Of each of them that is rounded at random.
    pub(super) draws: Vec<Option<Draw>>,
}

/// What the update of one parameter depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Planned {
    /// Updates, this one included.
    pub(super) steps: u64,
    pub(super) learning_rate: f64,
    pub(super) decays: bool,
    /// What the average moves by; absent where none is kept.
    pub(super) weight: Option<f32>,
    /// What a rule over whole matrices does as one.
    pub(super) matrix: Option<Matrix>,
}

impl UpdatePlan {
    /// The plan as the kernels of a GPU read it, (parameters with elements, 5), row by row.
    #[must_use]
    pub fn table(&self) -> Vec<f32> {
        // Most parameters are alike, and powers take longer than to see that.
        let mut known: Vec<(&Planned, [f32; MAX_CONSTANTS])> = Vec::new();
        let mut constants = |planned| match known.iter().find(|(other, _)| *other == planned) {
            Some((_, constants)) => *constants,
            None => {
                let mut constants = self.element(planned).constants();
                constants[MAX_CONSTANTS - 1] = planned.weight.unwrap_or(constants[MAX_CONSTANTS - 1]);
                known.push((planned, constants));
                constants
            }
        };
        let mut table = Vec::with_capacity(self.planned.len() * TABLE_WIDTH);
        for (planned, draw) in self.planned.iter().zip(&self.draws) {
            table.extend_from_slice(&constants(planned));
            table.push(draw.map_or(0.0, Draw::number));
        }
        table
    }

    /// The update of a parameter.
    pub(super) fn element(&self, planned: &Planned) -> Element {
        let config = if planned.decays { self.config } else { self.config.without_decay() };
        config.element(planned.matrix, planned.learning_rate, planned.steps)
    }
}

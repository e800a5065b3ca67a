//! What a policy would do, and the order in which it must be done.

use leyline::command::{AlphaCurve, AlphaRamp, Operation};
use leyline::seed::{AlphaMode, SeedState};
use leyline::state::SystemState;
use leyline::unit::Alpha;

/// An operation that a policy wants, or the reason why it wants none.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    /// What is to happen; absent when the policy says why it waits.
    pub operation: Option<Operation>,
    /// Short name of the rule that fired, snake case.
    pub rule: &'static str,
    /// The values it fired on.
    pub detail: String,
}

impl Proposal {
    /// A proposal to act.
    #[must_use]
    pub fn act(operation: Operation, rule: &'static str, detail: impl Into<String>) -> Self {
        Self { operation: Some(operation), rule, detail: detail.into() }
    }

    /// A proposal to wait.
    #[must_use]
    pub fn wait(rule: &'static str, detail: impl Into<String>) -> Self {
        Self { operation: None, rule, detail: detail.into() }
    }

    /// Place in a decision: cull, fossilize, the other moves, germinate, wait. What frees comes before what takes.
    #[must_use]
    pub fn precedence(&self) -> u8 {
        match &self.operation {
            Some(Operation::Cull { .. } | Operation::CullGradually { .. } | Operation::Pause { .. }) => 0,
            Some(Operation::Fossilize { .. }) => 1,
            Some(
                Operation::Hold { .. }
                | Operation::StartBlending { .. }
                | Operation::StartTraining { .. }
                | Operation::Resume { .. },
            ) => 2,
            Some(Operation::Germinate { .. }) => 3,
            None => 4,
        }
    }
}

/// A ramp to full effect over whole epochs.
pub(super) fn full_ramp(epochs: u64, curve: AlphaCurve, state: &SystemState) -> AlphaRamp {
    AlphaRamp { target: Alpha::ONE, steps: epochs.saturating_mul(state.steps_per_epoch), curve }
}

/// Whether the ramp of a seed is over and the seed acts in full.
pub(super) fn acts_in_full(seed: &SeedState) -> bool {
    seed.alpha.is_one() && seed.alpha_mode == AlphaMode::Hold
}

/// Seeds that are live and not culled by one of `proposals`.
pub(super) fn live_seeds<'a>(state: &'a SystemState, proposals: &'a [Proposal]) -> impl Iterator<Item = &'a SeedState> {
    state.seeds.iter().filter(|seed| {
        let cull = Operation::Cull { seed: seed.seed_id };
        seed.stage.is_live() && !proposals.iter().any(|proposal| proposal.operation.as_ref() == Some(&cull))
    })
}

//! What happens to one seed: the rules of each stage.

use leyline::command::Operation;
use leyline::seed::{AlphaMode, GradientHealth, SeedStage, SeedState};
use leyline::state::SystemState;

use crate::evidence::{Estimate, EvidenceLog, is_within};
use crate::policy::Proposal;
use crate::policy::heuristic::HeuristicConfig;
use crate::policy::proposal::{acts_in_full, full_ramp};

/// Epochs left at the last boundary that surely comes: a command after the last epoch may find nobody to obey.
pub(super) const LAST_BOUNDARY: u64 = 1;

/// Epochs that the run still has.
pub(in crate::policy) fn epochs_left(state: &SystemState) -> u64 {
    state.num_epochs.saturating_sub(state.epoch.0)
}

/// The operation that the rules want for this seed, if any.
pub(super) fn judge(
    config: &HeuristicConfig,
    evidence: &EvidenceLog,
    state: &SystemState,
    seed: &SeedState,
) -> Option<Proposal> {
    let case = Case::of(config, evidence, state, seed);
    case.closing().or_else(|| match seed.stage {
        SeedStage::Germinated => Some(case.start_training()),
        SeedStage::Training => case.training(),
        SeedStage::Blending if fades(seed) => None,
        SeedStage::Blending => case.harmful("blending_harmful").or_else(|| case.blending()),
        SeedStage::Holding => case.harmful("holding_harmful").or_else(|| case.holding()),
        SeedStage::Dormant
        | SeedStage::Fossilized
        | SeedStage::Pruned
        | SeedStage::Embargoed
        | SeedStage::Resetting => None,
    })
}

/// Whether the gate to `next` was the last to speak, and lets the seed pass.
pub(in crate::policy) fn gate_is_open(seed: &SeedState, next: SeedStage) -> bool {
    seed.last_gate.as_ref().is_some_and(|gate| gate.target == next && gate.passed)
}

/// What the end of the run asks for, whatever policy decides.
pub(in crate::policy) fn closing(
    config: &HeuristicConfig,
    evidence: &EvidenceLog,
    state: &SystemState,
    seed: &SeedState,
) -> Option<Proposal> {
    Case::of(config, evidence, state, seed).closing()
}

/// Whether it is on its way out: no other ramp leads to 0.
pub(in crate::policy) fn fades(seed: &SeedState) -> bool {
    seed.alpha_mode == AlphaMode::Down && seed.alpha_target.is_zero()
}

/// One seed with all that its rules look at.
struct Case<'a> {
    config: &'a HeuristicConfig,
    state: &'a SystemState,
    seed: &'a SeedState,
    /// Absent when it was not measured lately.
    gradient: Option<GradientHealth>,
    /// Of the present stage; absent when nothing was measured in it lately.
    estimate: Option<Estimate>,
    harmful_streak: usize,
}

impl<'a> Case<'a> {
    fn of(config: &'a HeuristicConfig, evidence: &EvidenceLog, state: &'a SystemState, seed: &'a SeedState) -> Self {
        let is_fresh = seed.gradient_epoch.is_some_and(|epoch| is_within(config.evidence.window, epoch, state.epoch));
        Case {
            config,
            state,
            seed,
            gradient: seed.gradient.filter(|_| is_fresh),
            estimate: evidence.estimate(&config.evidence, seed.seed_id),
            harmful_streak: evidence.harmful_streak(&config.evidence, seed.seed_id),
        }
    }

    fn closing(&self) -> Option<Proposal> {
        let left = epochs_left(self.state);
        let seed = self.seed.seed_id;
        let operation = match self.seed.stage {
            SeedStage::Germinated | SeedStage::Training if left < self.epochs_to_permanence() + LAST_BOUNDARY => {
                Operation::Cull { seed }
            }
            SeedStage::Blending if left <= self.config.closing_epochs => {
                if acts_in_full(self.seed) && self.may_stay() && self.may_open_in_time(0) {
                    Operation::Hold { seed }
                } else {
                    Operation::Cull { seed }
                }
            }
            SeedStage::Holding if left <= self.config.closing_epochs => {
                if !self.may_stay() {
                    Operation::Cull { seed }
                } else if self.gate_is_open(SeedStage::Fossilized) {
                    Operation::Fossilize { seed }
                } else if self.may_open_in_time(self.seed.epochs_in_stage) {
                    return None;
                } else {
                    Operation::Cull { seed }
                }
            }
            SeedStage::Germinated
            | SeedStage::Training
            | SeedStage::Blending
            | SeedStage::Holding
            | SeedStage::Dormant
            | SeedStage::Fossilized
            | SeedStage::Pruned
            | SeedStage::Embargoed
            | SeedStage::Resetting => return None,
        };
        Some(Proposal::act(operation, "closing", format!("{left} epochs left, {}", self.measured())))
    }

    fn start_training(&self) -> Proposal {
        Proposal::act(Operation::StartTraining { seed: self.seed.seed_id }, "germinated", "next stage at once")
    }

    fn training(&self) -> Option<Proposal> {
        let config = &self.config.training;
        // Violations are counted over a life and never forgotten: its gate cannot open any more.
        if self.seed.isolation_violations > 0 {
            let detail = format!("{} isolation violations, {}", self.seed.isolation_violations, self.measured());
            return Some(Proposal::act(Operation::Cull { seed: self.seed.seed_id }, "training_leaks", detail));
        }
        if self.seed.epochs_in_stage < config.min_epochs {
            return None;
        }
        if self.estimate.is_some_and(|estimate| estimate.upper(self.z()) < 0.0) {
            return Some(self.cull("training_harmful"));
        }
        if self.gate_is_open(SeedStage::Blending) {
            let ramp = full_ramp(self.config.blending.ramp_epochs, self.config.blending.curve, self.state);
            let operation = Operation::StartBlending { seed: self.seed.seed_id, ramp };
            return Some(Proposal::act(operation, "training_proven", self.measured()));
        }
        // The samples that confirm are read once.
        if self.seed.confirmation.is_some_and(|confirmed| !confirmed.passed) {
            return Some(self.cull("training_unconfirmed"));
        }
        (self.seed.epochs_in_stage >= config.max_epochs).then(|| self.cull("training_unproven"))
    }

    fn is_harmful(&self) -> bool {
        self.harmful_streak >= self.config.blending.harmful_measurements
    }

    fn harmful(&self, rule: &'static str) -> Option<Proposal> {
        self.is_harmful().then(|| self.cull(rule))
    }

    fn blending(&self) -> Option<Proposal> {
        let operation = Operation::Hold { seed: self.seed.seed_id };
        acts_in_full(self.seed).then(|| Proposal::act(operation, "blending_complete", self.measured()))
    }

    fn holding(&self) -> Option<Proposal> {
        let config = &self.config.holding;
        if self.seed.epochs_in_stage >= config.min_epochs && self.gate_is_open(SeedStage::Fossilized) {
            let operation = Operation::Fossilize { seed: self.seed.seed_id };
            return Some(Proposal::act(operation, "holding_proven", self.measured()));
        }
        (self.seed.epochs_in_stage >= config.max_epochs).then(|| self.cull("holding_unproven"))
    }

    fn cull(&self, rule: &'static str) -> Proposal {
        let detail = format!("{} epochs in {}, {}", self.seed.epochs_in_stage, self.seed.stage, self.measured());
        let (seed, blending) = (self.seed.seed_id, &self.config.blending);
        let steps = blending.fade_epochs.saturating_mul(self.state.steps_per_epoch);
        let is_closing = epochs_left(self.state) <= self.config.closing_epochs;
        let operation = if steps > 0 && self.seed.stage.acts_on_output() && !is_closing {
            Operation::CullGradually { seed, steps, curve: blending.curve }
        } else {
            Operation::Cull { seed }
        };
        Proposal::act(operation, rule, detail)
    }

    /// Whether the gate to `next` was the last to speak, and lets the seed pass: what has to be measured, and how large it has to be, is
    /// the gates' to say.
    fn gate_is_open(&self, next: SeedStage) -> bool {
        gate_is_open(self.seed, next)
    }

    /// Whether its gain was confirmed; where nobody confirms, whether its lower bound is above 0.
    fn is_proven(&self) -> bool {
        match self.state.confirming {
            Some(_) => self.seed.confirmation.is_some_and(|confirmed| confirmed.passed),
            None => self.estimate.is_some_and(|estimate| estimate.lower(self.z()) > 0.0),
        }
    }

    /// Whether the run may end with this seed, as far as its worth goes: what was confirmed can do harm later.
    fn may_stay(&self) -> bool {
        self.is_proven() && !self.is_harmful()
    }

    /// Whether the gate to permanence, shut now, can be open at a boundary that surely comes, to a seed that was held for so many epochs.
    fn may_open_in_time(&self, held_epochs: u64) -> bool {
        let before = epochs_left(self.state).saturating_sub(LAST_BOUNDARY);
        before > 0 && held_epochs + before >= self.config.gates.holding
    }

    fn z(&self) -> f64 {
        self.config.evidence.confidence_z
    }

    /// Epochs until this seed is permanent when every stage from here on takes its shortest time.
    fn epochs_to_permanence(&self) -> u64 {
        let [training, blending, holding] = self.config.least_epochs();
        let trained = if self.seed.stage == SeedStage::Training { self.seed.epochs_in_stage } else { 0 };
        training.saturating_sub(trained) + blending + holding
    }

    fn measured(&self) -> String {
        let gradient = match self.gradient {
            Some(gradient) => format!("gradient health {:.3}", gradient.health),
            None => "gradient not measured".to_owned(),
        };
        match self.estimate {
            Some(estimate) => {
                let (lower, upper) = (estimate.lower(self.z()), estimate.upper(self.z()));
                format!("{estimate}, bounds {lower:+.6} to {upper:+.6}, {gradient}")
            }
            None => format!("gain not measured, {gradient}"),
        }
    }
}

//! What speaks against growing, whatever policy asks for it.
//!
//! Each rule looks at what was measured and compares one number with its limit ([`RiskConfig`]). What exceeds it holds proposals back:
//!
//! | rule | number | holds back |
//! |---|---|---|
//! | `loss_spike` | rise of the validation loss since the decision before, in parts of that of the first decision | all but culls and pauses of seeds, also in the epochs that follow |
//! | `conservative_mode` | epochs for which such a spike still holds, this one included | as `loss_spike` |
//! | `isolation_violation` | violations of isolation by a seed in the shadow | as `loss_spike` |
//! | `loss_unmeasured` | 1 where the validation loss is absent or not finite | what grows |
//! | `loss_warning` | as `loss_spike` | what grows |
//! | `loss_volatility` | root of the mean square of the latest 8 rises, falls taken for 0 | what grows |
//! | `gradient_variance` | variance of the gradient norm over the latest 8 epochs, in parts of its squared mean | what grows |
//! | `gradient_conflict` | conflicting ordered pairs of owners, in `[0, 1]` | what grows |
//!
//! *What grows*: germination, blending and becoming permanent. A policy is shown no offers meanwhile, so that none remembers a germination
//! that does not come; its other proposals are held back one by one. [`Decision::waiting`](leyline::policy::Decision::waiting) says so, under
//! the rule of the most severe verdict. The rules of the older system that are not here, and what does their work: decision 35.

mod rules;
mod memory;

use std::borrow::Cow;
use std::{fmt, iter};

use leyline::command::Operation;
use leyline::state::SystemState;
use serde::{Deserialize, Serialize};

use crate::issues::Issues;
use crate::policy::Proposal;

pub(crate) use memory::RiskMemory;
pub use rules::{
    ConservativeMode, GradientConflict, GradientVariance, IsolationViolation, LossSpike, LossVolatility, LossWarning,
};
use rules::{LossUnmeasured, Rule};

/// The rules, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RiskRule {
    /// The loss rose much at once.
    LossSpike,
    /// It did so a short while ago.
    ConservativeMode,
    /// A seed has touched what it must not.
    IsolationViolation,
    /// The loss is not known.
    LossUnmeasured,
    /// The loss rose.
    LossWarning,
    /// The loss moves up and down.
    LossVolatility,
    /// The gradient norm moves up and down.
    GradientVariance,
    /// Owners pull against each other.
    GradientConflict,
}

/// What a verdict holds back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// Germination, blending and becoming permanent.
    Caution,
    /// All but culls and pauses of seeds.
    Pause,
}

/// A limit that was exceeded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) rule: RiskRule,
    pub(crate) severity: Severity,
    pub(crate) value: f64,
    pub(crate) limit: f64,
}

/// Limits, one section for each rule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RiskConfig {
    /// A rise that holds back all but culls and pauses.
    pub loss_spike: LossSpike,
    /// For how long it does.
    pub conservative_mode: ConservativeMode,
    /// Seeds that touch what they must not.
    pub isolation_violation: IsolationViolation,
    /// A rise that holds growth back.
    pub loss_warning: LossWarning,
    /// A loss that moves up and down.
    pub loss_volatility: LossVolatility,
    /// A gradient norm that moves up and down.
    pub gradient_variance: GradientVariance,
    /// Owners that pull against each other.
    pub gradient_conflict: GradientConflict,
    /// Rules that hold nothing back (default: none).
    pub off: Vec<RiskRule>,
}

impl RiskRule {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::LossSpike,
        Self::ConservativeMode,
        Self::IsolationViolation,
        Self::LossUnmeasured,
        Self::LossWarning,
        Self::LossVolatility,
        Self::GradientVariance,
        Self::GradientConflict,
    ];

    /// The name as in configuration, telemetry and reasons.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LossSpike => "loss_spike",
            Self::ConservativeMode => "conservative_mode",
            Self::IsolationViolation => "isolation_violation",
            Self::LossUnmeasured => "loss_unmeasured",
            Self::LossWarning => "loss_warning",
            Self::LossVolatility => "loss_volatility",
            Self::GradientVariance => "gradient_variance",
            Self::GradientConflict => "gradient_conflict",
        }
    }
}

impl Severity {
    /// The name as in telemetry.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Caution => "caution",
            Self::Pause => "pause",
        }
    }

    fn holds_back(self, operation: &Operation) -> bool {
        use Operation::{Cull, CullGradually, Fossilize, Germinate, Hold, Pause, Resume, StartBlending, StartTraining};
        match operation {
            Cull { .. } | CullGradually { .. } | Pause { .. } => false,
            Germinate { .. } | StartBlending { .. } | Fossilize { .. } => true,
            StartTraining { .. } | Hold { .. } | Resume { .. } => self == Self::Pause,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}, at most {}", self.value, self.limit)
    }
}

impl RiskConfig {
    pub(crate) fn is_usual(&self) -> bool {
        *self == Self::default()
    }

    fn rules(&self) -> [&dyn Rule; 8] {
        [
            &self.loss_spike,
            &self.conservative_mode,
            &self.isolation_violation,
            &LossUnmeasured,
            &self.loss_warning,
            &self.loss_volatility,
            &self.gradient_variance,
            &self.gradient_conflict,
        ]
    }

    /// Takes in what was measured: which limits it exceeds, the most severe verdict first.
    pub(crate) fn judge(&self, memory: &mut RiskMemory, state: &SystemState) -> Vec<Verdict> {
        if memory.is_of_an_earlier_version() {
            return Vec::new();
        }
        memory.observe(state);
        let rules = self.rules().into_iter().filter(|rule| !self.off.contains(&rule.name()));
        let exceeded = |rule: &dyn Rule| {
            let (value, limit) = (rule.measured(memory, state)?, rule.limit());
            // What is not finite is no evidence.
            let is_exceeded = value.is_finite() && value > limit;
            is_exceeded.then_some(Verdict { rule: rule.name(), severity: rule.severity(), value, limit })
        };
        let mut verdicts: Vec<Verdict> = rules.filter_map(exceeded).collect();
        verdicts.sort_by_key(|verdict| (std::cmp::Reverse(verdict.severity), verdict.rule));
        if verdicts.iter().any(|verdict| verdict.rule == RiskRule::LossSpike) {
            memory.spiked(state.epoch, self.conservative_mode.epochs);
        }
        verdicts
    }

    pub(crate) fn check(&self, issues: &mut Issues) {
        for (key, limit) in [
            ("loss_spike.max_rise", self.loss_spike.max_rise),
            ("loss_warning.max_rise", self.loss_warning.max_rise),
            ("loss_volatility.max", self.loss_volatility.max),
            ("gradient_variance.max", self.gradient_variance.max),
        ] {
            issues.within(key, limit, 0.0..=1e6);
        }
        issues.within("isolation_violation.max", self.isolation_violation.max, 0.0..=1e6);
        issues.within("gradient_conflict.max_ratio", self.gradient_conflict.max_ratio, 0.0..=1.0);
    }
}

/// The state as a policy is shown it: beside a verdict nothing is on offer.
pub(crate) fn shown<'a>(verdicts: &[Verdict], state: &'a SystemState) -> Cow<'a, SystemState> {
    let mut state = Cow::Borrowed(state);
    if !verdicts.is_empty() {
        state.to_mut().slots.iter_mut().for_each(|slot| slot.offers.clear());
    }
    state
}

/// The proposals, with those that the verdicts, the most severe one first, hold back as reasons for waiting; that nothing was on offer is
/// told first.
pub(crate) fn hold_back(verdicts: &[Verdict], proposals: Vec<Proposal>) -> Vec<Proposal> {
    let Some(verdict) = verdicts.first() else { return proposals };
    let nothing_offered = Proposal::wait(verdict.rule.name(), format!("held back what grows: {verdict}"));
    let held = |proposal: Proposal| match &proposal.operation {
        Some(operation) if verdict.severity.holds_back(operation) => {
            Proposal::wait(verdict.rule.name(), format!("held back {operation} ({}): {verdict}", proposal.rule))
        }
        _ => proposal,
    };
    iter::once(nothing_offered).chain(proposals.into_iter().map(held)).collect()
}

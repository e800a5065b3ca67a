//! One small struct for each rule: its limit, and the number that is compared with it.

use leyline::seed::SeedStage;
use leyline::state::SystemState;
use serde::{Deserialize, Serialize};

use super::memory::RiskMemory;
use super::{RiskRule, Severity};

/// A limit on one number.
pub(super) trait Rule {
    fn name(&self) -> RiskRule;
    fn severity(&self) -> Severity;
    /// Above it the rule fires.
    fn limit(&self) -> f64;
    /// The number; absent where it was not measured.
    fn measured(&self, memory: &RiskMemory, state: &SystemState) -> Option<f64>;
}

/// A rule whose section of the configuration is its limit.
macro_rules! limit {
    (
        $(#[doc = $doc:literal])+ $rule:ident ($severity:ident) {
            $(#[doc = $of_limit:literal])+ $limit:ident: $kind:ty = $default:literal
        }
        $measured:expr
    ) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $rule {
            $(#[doc = $of_limit])+
            pub $limit: $kind,
        }

        impl Default for $rule {
            fn default() -> Self {
                Self { $limit: $default }
            }
        }

        impl Rule for $rule {
            fn name(&self) -> RiskRule {
                RiskRule::$rule
            }

            fn severity(&self) -> Severity {
                Severity::$severity
            }

            fn limit(&self) -> f64 {
                self.$limit
            }

            fn measured(&self, memory: &RiskMemory, state: &SystemState) -> Option<f64> {
                let measured: fn(&RiskMemory, &SystemState) -> Option<f64> = $measured;
                measured(memory, state)
            }
        }
    };
}

limit! {
    /// The loss rose much at once.
    LossSpike (Pause) {
        /// Largest rise of the validation loss from one decision to the next (in parts of that of the first decision, default 0.3).
        max_rise: f64 = 0.3
    }
    |memory, _| memory.rise()
}

limit! {
    /// The loss rose.
    LossWarning (Caution) {
        /// Largest rise of the validation loss from one decision to the next (in parts of that of the first decision, default 0.15).
        max_rise: f64 = 0.15
    }
    |memory, _| memory.rise()
}

limit! {
    /// The loss moves up and down.
    LossVolatility (Caution) {
        /// Largest root of the mean square of the latest 4 to 8 rises, falls taken for 0 (in parts of the validation loss of the first
        /// decision, default 0.075).
        max: f64 = 0.075
    }
    |memory, _| memory.volatility()
}

limit! {
    /// The gradient norm moves up and down.
    GradientVariance (Caution) {
        /// Largest variance of the gradient norm over the latest 4 to 8 epochs (in parts of its squared mean, default 2).
        max: f64 = 2.0
    }
    |memory, _| memory.gradient_variance()
}

limit! {
    /// Owners pull against each other.
    GradientConflict (Caution) {
        /// Largest part of ordered pairs of owners whose gradients conflict (in `[0, 1]`, default 0.5).
        max_ratio: f64 = 0.5
    }
    |_, state| state.conflict_ratio
}

limit! {
    /// A seed has touched what it must not.
    IsolationViolation (Pause) {
        /// Most violations of isolation by one seed in the shadow (count, default 0).
        max: f64 = 0.0
    }
    |_, state| {
        let shadows = state.seeds.iter().filter(|seed| seed.stage == SeedStage::Training);
        shadows.map(|seed| seed.isolation_violations as f64).reduce(f64::max)
    }
}

/// The loss is not known; such a network does not grow.
#[derive(Debug)]
pub(super) struct LossUnmeasured;

impl Rule for LossUnmeasured {
    fn name(&self) -> RiskRule {
        RiskRule::LossUnmeasured
    }

    fn severity(&self) -> Severity {
        Severity::Caution
    }

    fn limit(&self) -> f64 {
        0.0
    }

    fn measured(&self, memory: &RiskMemory, _state: &SystemState) -> Option<f64> {
        memory.is_loss_unmeasured().then_some(1.0)
    }
}

/// The loss rose much at once a short while ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConservativeMode {
    /// For how long a spike goes on to hold back all but culls and pauses (epochs, default 3).
    pub epochs: u64,
}

impl Default for ConservativeMode {
    fn default() -> Self {
        Self { epochs: 3 }
    }
}

impl Rule for ConservativeMode {
    fn name(&self) -> RiskRule {
        RiskRule::ConservativeMode
    }

    fn severity(&self) -> Severity {
        Severity::Pause
    }

    fn limit(&self) -> f64 {
        0.0
    }

    fn measured(&self, memory: &RiskMemory, state: &SystemState) -> Option<f64> {
        memory.conservative_epochs(state.epoch).map(|epochs| epochs as f64)
    }
}

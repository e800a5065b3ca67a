//! Settings of the control policies.

use leyline::command::AlphaCurve;
use leyline::id::{BlueprintId, SlotId};
use leyline::seed::SlotState;
use serde::{Deserialize, Serialize};

use crate::config::issue::Issues;

/// Settings of the fixed schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FixedConfig {
    /// What germinates when, in order of epoch (default: one seed after the first epoch, first slot, first offer).
    pub germinations: Vec<FixedGermination>,
    /// Length of shadow training (epochs, default 5).
    pub training_epochs: u64,
    /// Length of the ramp from 0 to 1 (epochs, default 3).
    pub ramp_epochs: u64,
    /// Length of holding (epochs, default 3).
    pub holding_epochs: u64,
    /// Shape of the ramp: `linear`, `cosine` or `sigmoid` (default `linear`).
    pub curve: AlphaCurve,
}

/// One entry of the fixed schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedGermination {
    /// Due once this many epochs are completed.
    pub epoch: u64,
    /// Where; absent means the first free slot that offers the blueprint.
    #[serde(default)]
    pub slot: Option<SlotId>,
    /// What; absent means the first offer.
    #[serde(default)]
    pub blueprint: Option<BlueprintId>,
}

/// Settings of the random control.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomConfig {
    /// Seed of the generator (any number, default 0).
    pub seed: u64,
    /// Probability per decision that a live seed is acted on, and that something germinates (in `[0, 1]`,
    /// default 0.2).
    pub rate: f64,
    /// Seeds that may live at once (count, default 2).
    pub max_live_seeds: u64,
    /// Length of the ramp from 0 to 1 (epochs, default 3).
    pub ramp_epochs: u64,
    /// Shape of the ramp: `linear`, `cosine` or `sigmoid` (default `linear`).
    pub curve: AlphaCurve,
}

impl FixedConfig {
    pub(super) fn check(&self, issues: &mut Issues) {
        let mut earliest = 0;
        for (index, entry) in self.germinations.iter().enumerate() {
            issues.at_least(&format!("fixed.germinations[{index}].epoch"), entry.epoch, earliest);
            earliest = entry.epoch.max(earliest);
        }
        issues.at_least("fixed.training_epochs", self.training_epochs, 1);
        issues.at_least("fixed.ramp_epochs", self.ramp_epochs, 1);
        issues.at_least("fixed.holding_epochs", self.holding_epochs, 1);
    }

    pub(super) fn check_names(&self, slots: &[SlotState], issues: &mut Issues) {
        let known = slots.iter().map(|slot| slot.slot.as_str()).collect::<Vec<_>>().join(", ");
        for (index, entry) in self.germinations.iter().enumerate() {
            let key = |name: &str| format!("fixed.germinations[{index}].{name}");
            let found = entry.slot.as_ref().and_then(|wanted| slots.iter().find(|slot| slot.slot == *wanted));
            if let (Some(wanted), None) = (&entry.slot, found) {
                issues.require(false, &key("slot"), format_args!("`{wanted}`"), format_args!("one of {known}"));
            }
            if let Some(blueprint) = &entry.blueprint {
                let eligible = found.map_or_else(|| slots.iter().collect(), |slot| vec![slot]);
                issues.offered(&key("blueprint"), blueprint, &eligible);
            }
        }
    }
}

impl Default for FixedConfig {
    fn default() -> Self {
        Self {
            germinations: vec![FixedGermination { epoch: 1, slot: None, blueprint: None }],
            training_epochs: 5,
            ramp_epochs: 3,
            holding_epochs: 3,
            curve: AlphaCurve::Linear,
        }
    }
}

impl RandomConfig {
    pub(super) fn check(&self, issues: &mut Issues) {
        issues.within("random.rate", self.rate, 0.0..=1.0);
        issues.at_least("random.max_live_seeds", self.max_live_seeds, 1);
        issues.at_least("random.ramp_epochs", self.ramp_epochs, 1);
    }
}

impl Default for RandomConfig {
    fn default() -> Self {
        Self { seed: 0, rate: 0.2, max_live_seeds: 2, ramp_epochs: 3, curve: AlphaCurve::Linear }
    }
}

//! The confirmation of a seed: whether it waits for one, and what it said.

use leyline::seed::{Confirmation, Confirmed, Confirming, Counterfactual, SeedStage};

use crate::lifecycle::GateConfig;
use crate::lifecycle::confirm::least_z;
use crate::lifecycle::gate::Surroundings;
use crate::lifecycle::record::SeedRecord;
use crate::lifecycle::table::{Condition, Move, Trigger};

impl SeedRecord {
    /// Whether the gate before blending waits for nothing but a confirmation, and there are samples enough for one. A gate that is
    /// switched off is asked all the same: what stands behind it may need the confirmation.
    pub(crate) fn wants_confirmation(&self, gates: &GateConfig, around: Surroundings) -> bool {
        let Some(next) = around.confirming.filter(Confirming::has_power) else { return false };
        if self.stage != SeedStage::Training || self.condition() != Condition::Active || self.confirmation.is_some() {
            return false;
        }
        // It is read once, so rather when it is likely to be enough than as soon as it may be.
        let z = gates.confidence_z.max(least_z(next.level));
        let is_above = |measured: Counterfactual| measured.loss_gain - z * measured.std_error > next.min_gain;
        if gates.require_gain && !self.counterfactual.is_some_and(is_above) {
            return false;
        }
        let (gates, around) =
            (GateConfig { off: Vec::new(), ..gates.clone() }, Surroundings { confirming: None, ..around });
        let row = Move::find(self.stage, Condition::Active, Trigger::StartBlending);
        row.and_then(|row| self.judge(&gates, around, row)).is_some_and(|report| report.passed)
    }

    /// Keeps what the confirming samples said, once. Returns whether it was the first time.
    pub(crate) fn confirm(&mut self, judged: Confirmed) -> bool {
        let is_first = self.confirmation.is_none();
        self.confirmation.get_or_insert(judged);
        is_first
    }
}

/// What the confirming samples say, judged by what they have to come to.
pub(crate) fn judged(measured: &Confirmation, next: Confirming) -> Confirmed {
    let Confirmation { loss_gain, p_value, worst, num_samples } = *measured;
    // As JSON it could not be read again. What is no number proves nothing.
    let number = |value: f64| if value.is_finite() { value } else { f64::MIN };
    let is_p_value = (0.0..=1.0).contains(&p_value);
    let measured = Confirmation {
        loss_gain: number(loss_gain),
        p_value: if is_p_value { p_value } else { 1.0 },
        worst: number(worst),
        num_samples,
    };
    let enough = num_samples >= next.needed_samples && worst.is_finite() && worst > 0.0;
    let passed = enough && measured.loss_gain > next.min_gain && measured.p_value <= next.level;
    Confirmed { measured, level: next.level, passed }
}

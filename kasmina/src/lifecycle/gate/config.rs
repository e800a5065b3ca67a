//! What the gates ask for.

use leyline::seed::Gate;
use serde::{Deserialize, Serialize};

use crate::config::ConfigIssue;

/// Conditions for stage changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GateConfig {
    /// Epochs of shadow training before a seed may blend (count).
    pub training_min_epochs: u64,
    /// Least fraction of optimizer steps with a finite, non-zero gradient, in `[0, 1]`.
    pub min_gradient_health: f64,
    /// Whether a seed must have shown a gain on held-out data, steadily and confirmed, before it may blend. To become permanent it
    /// needs the confirmation in any case.
    pub require_gain: bool,
    /// How many standard errors are taken off a measured gain, at least; 1.2816 is one-sided 90 %. Where gains are confirmed, as
    /// many as the next confirmation is going to need: what would not pass is not read.
    pub confidence_z: f64,
    /// The probability that a run in which no gain is above `min_loss_gain` confirms any, at most, in (0, 1); after each gain that is, the next
    /// one is false with it again. Conjectured for the test that the trainer makes, and measured; losses that no sample shows are the exception.
    #[serde(skip_serializing_if = "is_usual_level")]
    pub confirmation_level: f64,
    /// The smallest effect that matters, as the mean gain in standard deviations of the gains of single samples, in (0, 10]:
    /// where there are too few samples to confirm it with a power of 80 %, nothing is confirmed.
    #[serde(skip_serializing_if = "is_usual_effect")]
    pub smallest_effect: f64,
    /// Epochs that may have ended since a gain or a gradient was measured (count); what is older counts as not measured. 0
    /// asks for measurements of the epoch that just ended.
    pub max_evidence_age_epochs: u64,
    /// Least share of a seed's latest 8 measurements in its stage that showed a gain, in `[0, 1]`; 0, the default, asks
    /// for none. A policy sees the share as the seed's `stability` and not what is asked for: where this is above 0, a
    /// seed that it wants to move on may be refused. Before blending it counts only together with `require_gain`.
    pub min_stability: f64,
    /// Epochs in blending before a seed may be held (count), those of the ramp included.
    pub blending_min_epochs: u64,
    /// Epochs in holding before a seed may become permanent (count).
    pub holding_min_epochs: u64,
    /// The least gain that matters, in the unit of the loss per sample: what a confirmation has to exceed, and what is worth keeping a
    /// seed for.
    pub min_loss_gain: f64,
    /// Most time that a forward pass of the seed alone, on two samples, may take, ms: the least of five passes counts,
    /// taken at germination, or when a state is restored in which there is none. Without it nothing is timed: times
    /// differ from run to run.
    pub latency_budget_ms: Option<f64>,
    /// Most trainable elements of one seed (count).
    pub max_seed_parameters: Option<u64>,
    /// Most trainable elements of the network with all its seeds, the host included (count).
    pub max_total_parameters: Option<u64>,
    /// Gates that let pass whatever a life can go on with, for experiments on the others: `sanity` (G0) to `reset` (G5). Weights have
    /// to be there and a ramp to have ended at 1 all the same.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub off: Vec<Gate>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_usual_level(level: &f64) -> bool {
    level.to_bits() == GateConfig::default().confirmation_level.to_bits()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_usual_effect(effect: &f64) -> bool {
    effect.to_bits() == GateConfig::default().smallest_effect.to_bits()
}

impl Default for GateConfig {
    fn default() -> Self {
        Self {
            training_min_epochs: 4,
            min_gradient_health: 0.7,
            require_gain: true,
            confidence_z: 1.2816,
            confirmation_level: 0.05,
            smallest_effect: 0.5,
            max_evidence_age_epochs: 1,
            min_stability: 0.0,
            blending_min_epochs: 0,
            holding_min_epochs: 2,
            min_loss_gain: 0.005,
            latency_budget_ms: None,
            max_seed_parameters: None,
            max_total_parameters: None,
            off: Vec::new(),
        }
    }
}

impl GateConfig {
    pub(crate) fn validate(&self) -> Vec<ConfigIssue> {
        let latency = self.latency_budget_ms.unwrap_or(1.0);
        let rows = [
            ("min_gradient_health", self.min_gradient_health, 0.0..=1.0, "0 to 1"),
            ("confidence_z", self.confidence_z, 0.0..=10.0, "0 to 10"),
            (
                "confirmation_level",
                self.confirmation_level,
                f64::MIN_POSITIVE..=1.0 - f64::EPSILON,
                "more than 0, less than 1",
            ),
            ("smallest_effect", self.smallest_effect, 1e-3..=10.0, "0.001 to 10"),
            ("min_stability", self.min_stability, 0.0..=1.0, "0 to 1"),
            ("min_loss_gain", self.min_loss_gain, f64::MIN..=f64::MAX, "a finite number"),
            ("latency_budget_ms", latency, f64::MIN_POSITIVE..=f64::MAX, "a finite number above 0"),
        ];
        let bad = rows.into_iter().filter(|(_, value, range, _)| !range.contains(value));
        let mut issues: Vec<_> = bad
            .map(|(key, value, _, accepted)| {
                ConfigIssue::new(format!("gates.{key}"), format!("is {value}: expected {accepted}"))
            })
            .collect();
        let budgets =
            [("max_seed_parameters", self.max_seed_parameters), ("max_total_parameters", self.max_total_parameters)];
        for (key, _) in budgets.into_iter().filter(|(_, budget)| *budget == Some(0)) {
            issues.push(ConfigIssue::new(format!("gates.{key}"), "is 0: expected at least 1"));
        }
        issues
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_usual_of_a_confirmation_is_not_written_and_anything_else_is() {
        let usual = GateConfig::default();
        for (level, effect, written) in [
            (usual.confirmation_level, usual.smallest_effect, [false, false]),
            (0.01, usual.smallest_effect, [true, false]),
            (usual.confirmation_level, 0.25, [false, true]),
        ] {
            let gates = GateConfig { confirmation_level: level, smallest_effect: effect, ..usual.clone() };
            let json = serde_json::to_value(&gates).unwrap();
            assert_eq!(["confirmation_level", "smallest_effect"].map(|key| json.get(key).is_some()), written);
            assert_eq!(serde_json::from_value::<GateConfig>(json).unwrap(), gates);
        }
    }

    #[test]
    fn a_confirmation_level_is_a_probability_that_is_neither_certain_nor_impossible() {
        for (confirmation_level, is_usable) in [(0.0, false), (0.05, true), (1.0 - f64::EPSILON, true), (1.0, false)] {
            let issues = GateConfig { confirmation_level, ..GateConfig::default() }.validate();
            assert_eq!(issues.is_empty(), is_usable, "{confirmation_level}: {issues:?}");
        }
    }

    #[test]
    fn an_unusable_value_is_named() {
        let bad = GateConfig {
            min_gradient_health: f64::NAN,
            min_stability: 1.5,
            latency_budget_ms: Some(0.0),
            max_seed_parameters: Some(0),
            max_total_parameters: Some(0),
            ..GateConfig::default()
        };
        let keys: Vec<String> = bad.validate().into_iter().map(|issue| issue.key).collect();
        let expected = [
            "min_gradient_health",
            "min_stability",
            "latency_budget_ms",
            "max_seed_parameters",
            "max_total_parameters",
        ];
        assert_eq!(keys, expected.map(|key| format!("gates.{key}")));
        assert_eq!(GateConfig::default().validate(), []);
    }
}

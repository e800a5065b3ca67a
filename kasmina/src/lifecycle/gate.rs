//! Gates: conditions on measured evidence that a seed must meet to change its stage.
#![deny(clippy::wildcard_enum_match_arm)]

use leyline::seed::{AlphaMode, Counterfactual, GateReport, GradientHealth, SeedStage};
use serde::{Deserialize, Serialize};

use crate::config::ConfigIssue;
use crate::lifecycle::AlphaController;

/// Conditions for stage changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GateConfig {
    /// Epochs of shadow training before a seed may blend (count).
    pub training_min_epochs: u64,
    /// Least fraction of optimizer steps with a finite, non-zero gradient, in `[0, 1]`.
    pub min_gradient_health: f64,
    /// Whether a seed must have shown a gain on held-out data before it may blend.
    pub require_gain: bool,
    /// How many standard errors are taken off a measured gain; 1.2816 is one-sided 90 %.
    pub confidence_z: f64,
    /// Epochs in holding before a seed may become permanent (count).
    pub holding_min_epochs: u64,
    /// Gain that must be exceeded to become permanent, nats per sample.
    pub min_loss_gain: f64,
}

impl Default for GateConfig {
    fn default() -> Self {
        Self {
            training_min_epochs: 4,
            min_gradient_health: 0.7,
            require_gain: true,
            confidence_z: 1.2816,
            holding_min_epochs: 2,
            min_loss_gain: 0.0,
        }
    }
}

impl GateConfig {
    pub(crate) fn validate(&self) -> Vec<ConfigIssue> {
        let rows = [
            ("min_gradient_health", self.min_gradient_health, 0.0..=1.0, "0 to 1"),
            ("confidence_z", self.confidence_z, 0.0..=10.0, "0 to 10"),
            ("min_loss_gain", self.min_loss_gain, f64::MIN..=f64::MAX, "a finite number"),
        ];
        let bad = rows.into_iter().filter(|(_, value, range, _)| !range.contains(value));
        bad.map(|(key, value, _, accepted)| {
            ConfigIssue::new(format!("gates.{key}"), format!("is {value}: expected {accepted}"))
        })
        .collect()
    }
}

/// What a gate looks at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) stage: SeedStage,
    pub(super) epochs_in_stage: u64,
    pub(super) alpha: &'a AlphaController,
    pub(super) counterfactual: Option<Counterfactual>,
    pub(super) gradient: Option<GradientHealth>,
}

/// The verdict of the gate before `target`; none when that move has no gate.
pub(super) fn evaluate(config: &GateConfig, subject: &Subject<'_>, target: SeedStage) -> Option<GateReport> {
    let mut checks = Checks::default();
    match (subject.stage, target) {
        // The move back, which takes influence away, needs no evidence.
        (SeedStage::Holding, SeedStage::Blending) => return None,
        (_, SeedStage::Training) => {
            checks.add(subject.stage == SeedStage::Germinated, format!("stage {}, needs germinated", subject.stage));
        }
        (_, SeedStage::Blending) => {
            checks.epochs(subject, config.training_min_epochs);
            checks.gradient(subject.gradient, config.min_gradient_health);
            if config.require_gain {
                checks.gain(subject.counterfactual, config.confidence_z, 0.0);
            }
        }
        (_, SeedStage::Holding) => checks.ramp(subject.alpha),
        (_, SeedStage::Fossilized) => {
            checks.epochs(subject, config.holding_min_epochs);
            checks.gain(subject.counterfactual, config.confidence_z, config.min_loss_gain);
        }
        (
            _,
            SeedStage::Dormant
            | SeedStage::Germinated
            | SeedStage::Pruned
            | SeedStage::Embargoed
            | SeedStage::Resetting,
        ) => return None,
    }
    let Checks { met, failed } = checks;
    Some(GateReport { target, passed: failed.is_empty(), met, failed })
}

#[derive(Default)]
struct Checks {
    met: Vec<String>,
    failed: Vec<String>,
}

impl Checks {
    /// `met` must be false for NaN.
    fn add(&mut self, met: bool, text: String) {
        if met { self.met.push(text) } else { self.failed.push(text) }
    }

    fn epochs(&mut self, subject: &Subject<'_>, min: u64) {
        let epochs = subject.epochs_in_stage;
        self.add(epochs >= min, format!("{epochs} epochs in {}, needs {min}", subject.stage));
    }

    fn gradient(&mut self, gradient: Option<GradientHealth>, min: f64) {
        let Some(GradientHealth { norm, host_ratio: _, health }) = gradient else {
            return self.add(false, "gradient health not measured".into());
        };
        self.add(health >= min, format!("gradient health {health:.3}, needs {min}"));
        self.add(norm.is_finite(), format!("gradient norm {norm:.3e}, needs a finite one"));
    }

    fn gain(&mut self, counterfactual: Option<Counterfactual>, z: f64, min: f64) {
        let measured = counterfactual.filter(|measured| measured.num_samples > 0);
        let Some(Counterfactual { loss_gain, std_error, .. }) = measured else {
            return self.add(false, "loss gain not measured".into());
        };
        let bound = loss_gain - z * std_error;
        let text =
            format!("loss gain {loss_gain:.5} with standard error {std_error:.5}: bound {bound:.5}, needs > {min}");
        self.add(std_error >= 0.0 && loss_gain.is_finite() && bound > min, text);
    }

    fn ramp(&mut self, alpha: &AlphaController) {
        self.add(alpha.mode() == AlphaMode::Hold, format!("alpha ramp {:?}, needs Hold", alpha.mode()));
        self.add(alpha.target().is_one(), format!("alpha target {}, needs 1", alpha.target()));
    }
}

#[cfg(test)]
mod tests {
    use leyline::command::{AlphaCurve, AlphaRamp};
    use leyline::unit::Alpha;

    use super::*;

    const HEALTHY: GradientHealth = GradientHealth { norm: 0.3, host_ratio: Some(1.0), health: 1.0 };
    const USEFUL: Counterfactual =
        Counterfactual { loss_gain: 0.1, std_error: 0.01, accuracy_gain_pp: 1.0, num_samples: 100 };

    fn resting(alpha: f64) -> AlphaController {
        AlphaController::new(Alpha::new(alpha).unwrap())
    }

    fn running() -> AlphaController {
        let mut alpha = resting(0.0);
        alpha.retarget(AlphaRamp { target: Alpha::ONE, steps: 3, curve: AlphaCurve::Linear }).unwrap();
        alpha
    }

    /// `failed`: a part of each failed condition, in order.
    #[track_caller]
    fn check_with(config: &GateConfig, subject: Subject<'_>, target: SeedStage, failed: &[&str]) {
        let report = evaluate(config, &subject, target).unwrap();
        assert_eq!(report.failed.len(), failed.len(), "{report:?}");
        for (text, part) in report.failed.iter().zip(failed) {
            assert!(text.contains(part), "{text:?} does not mention {part:?}");
        }
        assert_eq!(report.passed, failed.is_empty());
        assert!(!report.met.is_empty() || !report.passed, "a passed gate says what was met");
    }

    #[track_caller]
    fn check(subject: Subject<'_>, target: SeedStage, failed: &[&str]) {
        check_with(&GateConfig::default(), subject, target, failed);
    }

    fn subject(stage: SeedStage, epochs_in_stage: u64, alpha: &AlphaController) -> Subject<'_> {
        Subject { stage, epochs_in_stage, alpha, counterfactual: Some(USEFUL), gradient: Some(HEALTHY) }
    }

    #[test]
    fn training_starts_from_germination() {
        let alpha = resting(0.0);
        check(subject(SeedStage::Germinated, 0, &alpha), SeedStage::Training, &[]);
        check(subject(SeedStage::Holding, 0, &alpha), SeedStage::Training, &["stage holding"]);
    }

    #[test]
    fn blending_needs_time_a_healthy_gradient_and_a_certain_gain() {
        let alpha = resting(0.0);
        let good = subject(SeedStage::Training, 4, &alpha);
        let blend = SeedStage::Blending;
        check(good, blend, &[]);
        check(Subject { epochs_in_stage: 3, ..good }, blend, &["3 epochs in training, needs 4"]);
        check(Subject { gradient: None, ..good }, blend, &["gradient health not measured"]);
        for (health, passes) in [(0.7, true), (0.699, false), (f64::NAN, false)] {
            let failed: &[&str] = if passes { &[] } else { &["gradient health"] };
            check(Subject { gradient: Some(GradientHealth { health, ..HEALTHY }), ..good }, blend, failed);
        }
        let exploding = GradientHealth { norm: f64::INFINITY, ..HEALTHY };
        check(Subject { gradient: Some(exploding), ..good }, blend, &["gradient norm inf"]);
        check(Subject { counterfactual: None, ..good }, blend, &["loss gain not measured"]);
        for (loss_gain, std_error, passes) in [
            (0.1, 0.078, true),
            (0.1, 0.079, false),
            (0.0, 0.0, false),
            (-0.1, 0.01, false),
            (f64::NAN, 0.01, false),
            (0.1, f64::NAN, false),
            (0.1, -1.0, false),
            (f64::INFINITY, 0.01, false),
        ] {
            let measured = Counterfactual { loss_gain, std_error, ..USEFUL };
            let failed: &[&str] = if passes { &[] } else { &["loss gain"] };
            check(Subject { counterfactual: Some(measured), ..good }, blend, failed);
        }
        let nobody = Counterfactual { num_samples: 0, ..USEFUL };
        check(Subject { counterfactual: Some(nobody), ..good }, blend, &["loss gain not measured"]);
        let lenient = GateConfig { require_gain: false, ..GateConfig::default() };
        check_with(&lenient, Subject { counterfactual: None, ..good }, blend, &[]);
    }

    #[test]
    fn holding_needs_the_end_of_a_ramp_to_one() {
        let (ended, partial, running) = (resting(1.0), resting(0.5), running());
        check(subject(SeedStage::Blending, 0, &ended), SeedStage::Holding, &[]);
        check(subject(SeedStage::Blending, 9, &partial), SeedStage::Holding, &["alpha target 0.5"]);
        check(subject(SeedStage::Blending, 9, &running), SeedStage::Holding, &["alpha ramp Up"]);
    }

    #[test]
    fn becoming_permanent_needs_time_and_a_gain_above_the_threshold() {
        let alpha = resting(1.0);
        let good = subject(SeedStage::Holding, 2, &alpha);
        check(good, SeedStage::Fossilized, &[]);
        check(Subject { epochs_in_stage: 1, ..good }, SeedStage::Fossilized, &["1 epochs in holding, needs 2"]);
        check(Subject { counterfactual: None, ..good }, SeedStage::Fossilized, &["loss gain not measured"]);
        let demanding = GateConfig { min_loss_gain: 0.2, ..GateConfig::default() };
        check_with(&demanding, good, SeedStage::Fossilized, &["needs > 0.2"]);
    }

    #[test]
    fn removal_and_the_way_back_have_no_gate() {
        let alpha = resting(1.0);
        let holding = subject(SeedStage::Holding, 0, &alpha);
        for target in [SeedStage::Pruned, SeedStage::Blending, SeedStage::Embargoed] {
            assert_eq!(evaluate(&GateConfig::default(), &holding, target), None, "{target}");
        }
    }
}

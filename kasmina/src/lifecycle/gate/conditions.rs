//! Conditions of a gate as they are checked, with the degree to which each is met.

use leyline::seed::{
    AlphaMode, Confirmation, Confirmed, Confirming, Counterfactual, Gate, GateReport, GradientHealth, SeedStage,
};

use crate::lifecycle::gate::{Aged, MIN_SAMPLES};
use crate::lifecycle::{AlphaController, GateConfig};

/// What an unmet condition counts at most.
const UNMET: f64 = 0.99;

/// The conditions of one gate.
#[derive(Debug)]
pub(super) struct Conditions {
    gate: Gate,
    is_off: bool,
    met: Vec<String>,
    failed: Vec<String>,
    degrees: f64,
}

impl Conditions {
    pub(super) fn of(config: &GateConfig, gate: Gate) -> Self {
        let is_off = config.off.contains(&gate);
        let mut conditions = Self { gate, is_off, met: Vec::new(), failed: Vec::new(), degrees: 0.0 };
        if is_off {
            conditions.must(true, 0.0, "switched off".to_owned());
        }
        conditions
    }

    /// A condition of a gate that is not switched off.
    fn add(&mut self, met: bool, degree: f64, text: String) {
        if !self.is_off {
            self.must(met, degree, text);
        }
    }

    /// A condition without which a life goes wrong, also where the gate is switched off: what follows relies on it. `met` must be
    /// false for NaN. `degree`: the share of what is needed that is there, if it is not met.
    fn must(&mut self, met: bool, degree: f64, text: String) {
        let list = if met { &mut self.met } else { &mut self.failed };
        list.push(text);
        let degree = if degree.is_nan() { 0.0 } else { degree.clamp(0.0, UNMET) };
        self.degrees += if met { 1.0 } else { degree };
    }

    /// A condition without a degree.
    pub(super) fn holds(&mut self, met: bool, text: impl Into<String>) {
        self.add(met, 0.0, text.into());
    }

    pub(super) fn epochs(&mut self, stage: SeedStage, epochs: u64, min: u64) {
        self.add(epochs >= min, share(epochs, min), format!("{epochs} epochs in {stage}, needs {min}"));
    }

    /// The measurement, if it is there and not too old; else a failed condition.
    fn fresh<T>(&mut self, config: &GateConfig, what: &str, measured: Option<Aged<T>>) -> Option<T> {
        let max = config.max_evidence_age_epochs;
        let failed = match measured {
            None => format!("{what} not measured"),
            Some(Aged { age: None, .. }) => format!("{what} not measured in an epoch that is known"),
            Some(Aged { age: Some(age), .. }) if age > max => {
                format!("{what} measured {age} epochs ago, needs at most {max}")
            }
            Some(Aged { value, .. }) => return Some(value),
        };
        self.holds(false, failed);
        None
    }

    pub(super) fn gradient(&mut self, config: &GateConfig, measured: Option<Aged<GradientHealth>>) {
        let Some(measured) = self.fresh(config, "gradient health", measured) else { return };
        let (GradientHealth { norm, host_ratio: _, health }, min) = (measured, config.min_gradient_health);
        // A fraction: more than 1 is no better health but a wrong measurement.
        let met = (min..=1.0).contains(&health);
        self.add(met, health / min, format!("gradient health {health:.3}, needs {min} to 1"));
        self.holds((0.0..f64::INFINITY).contains(&norm), format!("gradient norm {norm:.3e}, needs a finite one"));
    }

    /// `z`: standard errors that are taken off it.
    pub(super) fn gain(&mut self, config: &GateConfig, measured: Option<Aged<Counterfactual>>, z: f64, min: f64) {
        let Some(measured) = self.fresh(config, "loss gain", measured) else { return };
        let Counterfactual { loss_gain, std_error, accuracy_gain_pp: _, num_samples } = measured;
        if num_samples < MIN_SAMPLES {
            return self.holds(false, format!("loss gain not measured: {num_samples} samples, needs {MIN_SAMPLES}"));
        }
        let bound = loss_gain - z * std_error;
        let text =
            format!("loss gain {loss_gain:.5} with standard error {std_error:.5}: bound {bound:.5}, needs > {min}");
        let met = std_error >= 0.0 && loss_gain.is_finite() && bound > min;
        self.add(met, if min > 0.0 { bound / min } else { 0.0 }, text);
    }

    /// That it does not do harm; how much depends on it says nothing about a host that has grown around it.
    pub(super) fn harmless(&mut self, config: &GateConfig, measured: Option<Aged<Counterfactual>>) {
        let Some(measured) = self.fresh(config, "effect", measured) else { return };
        let Counterfactual { loss_gain, std_error, accuracy_gain_pp: _, num_samples } = measured;
        let bound = loss_gain + config.confidence_z * std_error;
        let is_measured = (0.0..f64::INFINITY).contains(&std_error) && loss_gain.is_finite();
        let met = num_samples >= MIN_SAMPLES && is_measured && bound >= 0.0;
        self.holds(met, format!("effect {loss_gain:.5}, upper bound {bound:.5}, needs at least 0"));
    }

    pub(super) fn confirmed(&mut self, confirmed: Option<Confirmed>, next: Confirming) {
        let Some(Confirmed { measured, level, passed }) = confirmed else {
            let Confirming { num_samples, needed_samples, .. } = next;
            let text = if next.has_power() {
                "gain not confirmed".to_owned()
            } else {
                format!("gain not confirmed: no power with {num_samples} samples to confirm on, needs {needed_samples}")
            };
            return self.holds(false, text);
        };
        let Confirmation { loss_gain, p_value, worst: _, num_samples } = measured;
        let text = format!(
            "gain {loss_gain:.5} on {num_samples} samples that confirm: p {p_value:.2e}, needs at most {level:.2e}"
        );
        // A policy learns by a yes or a no: a degree would tell it how near the samples that confirm came.
        self.holds(passed, text);
    }

    /// Nothing is asked for at 0.
    pub(super) fn stability(&mut self, stability: Option<f64>, min: f64) {
        if min <= 0.0 {
            return;
        }
        let Some(stability) = stability else { return self.holds(false, "stability not measured") };
        self.add(stability >= min, stability / min, format!("stability {stability:.3}, needs {min}"));
    }

    /// `audited`: epochs that ended since the latest audit, if there was one.
    pub(super) fn isolation(&mut self, every: u64, audited: Option<u64>, violations: u64) {
        match audited {
            _ if every == 0 => {
                self.holds(false, "isolation not measured: `isolation.check_every_epochs` is 0, needs 1")
            }
            None => self.holds(false, "isolation not measured: no audit in this stage"),
            Some(age) if age > every => {
                self.holds(false, format!("isolation measured {age} epochs ago, needs at most {every}"));
            }
            Some(_) => self.holds(violations == 0, format!("{violations} isolation violations, needs 0")),
        }
    }

    pub(super) fn weights(&mut self, pending: bool) {
        self.must(!pending, 0.0, if pending { "weights pending" } else { "weights present" }.to_owned());
    }

    pub(super) fn latency(&mut self, prewarm_ms: Option<f64>, budget_ms: Option<f64>) {
        let Some(budget) = budget_ms else { return };
        let Some(latency) = prewarm_ms else { return self.holds(false, "latency not measured") };
        self.add(latency <= budget, budget / latency, format!("latency {latency:.3} ms, needs at most {budget} ms"));
    }

    pub(super) fn parameters(&mut self, config: &GateConfig, of_seed: u64, of_network: u64) {
        let budgets = [("of the seed", of_seed, config.max_seed_parameters)].into_iter().chain([(
            "of the network",
            of_network,
            config.max_total_parameters,
        )]);
        for (whose, used, budget) in budgets {
            if let Some(budget) = budget {
                let text = format!("{used} parameters {whose}, needs at most {budget}");
                self.add(used <= budget, share(budget, used), text);
            }
        }
    }

    pub(super) fn ramp(&mut self, alpha: &AlphaController) {
        let (mode, target) = (alpha.mode(), alpha.target());
        self.must(mode == AlphaMode::Hold, alpha.alpha().get(), format!("alpha ramp {mode:?}, needs Hold"));
        self.must(target.is_one(), target.get(), format!("alpha target {target}, needs 1"));
    }

    #[expect(clippy::cast_precision_loss, reason = "a gate has a handful of conditions")]
    pub(super) fn report(self, target: SeedStage) -> GateReport {
        let Self { gate, is_off: _, met, failed, degrees } = self;
        let score = degrees / (met.len() + failed.len()) as f64;
        GateReport { gate, target, passed: failed.is_empty(), score, met, failed }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share for people")]
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

//! How the learning rate moves over a run.

use std::f64::consts::PI;
use std::num::NonZeroU64;

use leyline::id::StepIndex;
use serde::{Deserialize, Serialize};

/// A linear warmup to the learning rate, then a decay from it.
///
/// # Examples
/// ```
/// use leyline::id::StepIndex;
/// use tolaria::optim::{Decay, ScheduleConfig};
///
/// let decay = Decay::Cosine { final_ratio: 0.5 };
/// let schedule = ScheduleConfig { warmup_steps: 2, decay, ..ScheduleConfig::constant(2.0) };
/// for (step, rate) in [(0, 1.0), (1, 2.0), (2, 2.0), (6, 1.5), (10, 1.0)] {
///     assert!((schedule.at(StepIndex(step), 10) - rate).abs() < 1e-12);
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleConfig {
    /// The largest learning rate, above 0.
    pub learning_rate: f64,
    /// Optimizer steps until it is reached (count).
    #[serde(default)]
    pub warmup_steps: u64,
    /// What follows the warmup.
    #[serde(default)]
    pub decay: Decay,
}

/// How the learning rate falls after the warmup. As TOML: `decay = { kind = "cosine", final_ratio = 0.1 }`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Decay {
    /// Not at all.
    #[default]
    Constant,
    /// Along half a cosine until the end of the run (Loshchilov and Hutter 2017, arXiv 1608.03983).
    Cosine {
        /// Where it ends, as a part of the learning rate, in `[0, 1]`.
        #[serde(default)]
        final_ratio: f64,
    },
    /// By a factor, again and again.
    Step {
        /// Optimizer steps between two falls (count).
        every_steps: NonZeroU64,
        /// The factor, above 0 and at most 1.
        factor: f64,
    },
}

impl ScheduleConfig {
    /// What each setting means, by its key inside of the section.
    pub const MEANINGS: &[(&str, &str)] = &[
        ("learning_rate", "The largest learning rate, above 0."),
        ("warmup_steps", "Optimizer steps until it is reached (count)."),
        ("decay.final_ratio", "cosine: Where it ends, as a part of the learning rate, in `[0, 1]`."),
        ("decay.every_steps", "step: Optimizer steps between two falls (count)."),
        ("decay.factor", "step: The factor, above 0 and at most 1."),
        (
            "decay.kind",
            "What follows the warmup: nothing, half a cosine until the end of the run, or a fall by a factor again and again.",
        ),
    ];

    /// Sections of a file (TOML), one for each alternative; sizes are the largest, which limit others.
    pub const EXAMPLES: &[&str] = &[
        r#"{ learning_rate = 1.0, decay = { kind = "cosine" } }"#,
        r#"{ learning_rate = 1.0, decay = { kind = "step", every_steps = 1, factor = 0.5 } }"#,
    ];

    /// The same learning rate throughout.
    #[must_use]
    pub const fn constant(learning_rate: f64) -> Self {
        Self { learning_rate, warmup_steps: 0, decay: Decay::Constant }
    }

    /// The learning rate of the optimizer step after `step` steps, in a run of `num_steps`. Above 0 from the first
    /// step on; a run that is longer than announced stays at its end.
    #[must_use]
    pub fn at(&self, step: StepIndex, num_steps: u64) -> f64 {
        if step.0 < self.warmup_steps {
            return self.learning_rate * (step.0 + 1) as f64 / self.warmup_steps as f64;
        }
        let since = step.0 - self.warmup_steps;
        self.learning_rate
            * match self.decay {
                Decay::Constant => 1.0,
                Decay::Cosine { final_ratio } => {
                    let length = num_steps.saturating_sub(self.warmup_steps).max(1);
                    let progress = (since as f64 / length as f64).min(1.0);
                    final_ratio + (1.0 - final_ratio) * 0.5 * (1.0 + (PI * progress).cos())
                }
                Decay::Step { every_steps, factor } => factor.powf((since / every_steps.get()) as f64),
            }
    }

    /// Every setting that cannot work, as (key, what is accepted).
    #[must_use]
    pub fn validate(&self) -> Vec<(String, String)> {
        let mut checks = vec![(
            "learning_rate",
            self.learning_rate > 0.0 && self.learning_rate.is_finite(),
            "a finite number above 0",
        )];
        match self.decay {
            Decay::Constant => {}
            Decay::Cosine { final_ratio } => {
                checks.push(("decay.final_ratio", (0.0..=1.0).contains(&final_ratio), "a number from 0 to 1"));
            }
            Decay::Step { factor, .. } => {
                checks.push(("decay.factor", factor > 0.0 && factor <= 1.0, "a number above 0 and at most 1"));
            }
        }
        let broken = checks.into_iter().filter(|(_, sound, _)| !sound);
        broken.map(|(key, _, accepted)| (key.to_owned(), accepted.to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `expected`: (step, learning rate) in a run of 10 steps.
    #[track_caller]
    fn check(json: &str, expected: &[(u64, f64)]) {
        let schedule: ScheduleConfig = serde_json::from_str(json).unwrap();
        assert_eq!(schedule.validate(), []);
        for &(step, rate) in expected {
            let found = schedule.at(StepIndex(step), 10);
            assert!((found - rate).abs() < 1e-12, "step {step}: {found}, expected {rate}");
        }
    }

    #[test]
    fn the_learning_rate_follows_its_schedule() {
        check(r#"{"learning_rate":0.5}"#, &[(0, 0.5), (9, 0.5), (1000, 0.5)]);
        check(r#"{"learning_rate":1.0,"warmup_steps":4}"#, &[(0, 0.25), (1, 0.5), (3, 1.0), (4, 1.0), (9, 1.0)]);
        let cosine = r#"{"learning_rate":2.0,"warmup_steps":2,"decay":{"kind":"cosine","final_ratio":0.5}}"#;
        check(cosine, &[(0, 1.0), (1, 2.0), (2, 2.0), (6, 1.5), (10, 1.0), (99, 1.0)]);
        check(r#"{"learning_rate":1.0,"decay":{"kind":"cosine"}}"#, &[(0, 1.0), (5, 0.5), (10, 0.0)]);
        let step = r#"{"learning_rate":1.0,"warmup_steps":1,"decay":{"kind":"step","every_steps":3,"factor":0.5}}"#;
        check(step, &[(0, 1.0), (1, 1.0), (3, 1.0), (4, 0.5), (7, 0.25)]);
        assert_eq!(
            serde_json::from_str::<ScheduleConfig>(r#"{"learning_rate":0.5}"#).unwrap(),
            ScheduleConfig::constant(0.5)
        );
    }

    #[test]
    fn a_warmup_longer_than_the_run_is_only_cut_off() {
        let schedule = ScheduleConfig {
            warmup_steps: 20,
            decay: Decay::Cosine { final_ratio: 0.0 },
            ..ScheduleConfig::constant(1.0)
        };
        assert!((schedule.at(StepIndex(9), 10) - 0.5).abs() < 1e-12);
        assert!((schedule.at(StepIndex(20), 10) - 1.0).abs() < 1e-12);
    }

    #[track_caller]
    fn broken(schedule: ScheduleConfig, key: &str) {
        assert_eq!(schedule.validate().iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), [key]);
    }

    #[test]
    fn settings_that_cannot_work_are_named() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            broken(ScheduleConfig::constant(rate), "learning_rate");
        }
        let with = |decay| ScheduleConfig { decay, ..ScheduleConfig::constant(1.0) };
        broken(with(Decay::Cosine { final_ratio: 1.5 }), "decay.final_ratio");
        for factor in [0.0, 1.5, f64::NAN] {
            broken(with(Decay::Step { every_steps: NonZeroU64::MIN, factor }), "decay.factor");
        }
        assert!(serde_json::from_str::<ScheduleConfig>(r#"{"learning_rate":1.0,"warmup":3}"#).is_err());
    }
}

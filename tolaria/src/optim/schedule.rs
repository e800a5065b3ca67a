//! How the learning rate moves over a run.

use std::f64::consts::PI;
use std::num::NonZeroU64;

use leyline::id::StepIndex;
use serde::{Deserialize, Serialize};

use crate::cpu::{SINGLE, is_single};

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
    /// In a straight line until the end of the run.
    Linear {
        /// Where it ends, as a part of the learning rate, in `[0, 1]`.
        #[serde(default)]
        final_ratio: f64,
    },
    /// Not at all until the last part of the run, then in a straight line until its end: warm-up, stable, decay (Hu et al. 2024,
    /// arXiv 2404.06395).
    Wsd {
        /// The part of the run, its warm-up aside, that falls, above 0 and at most 1.
        #[serde(default = "default_last_part")]
        last_part: f64,
        /// Where it ends, as a part of the learning rate, in `[0, 1]`.
        #[serde(default)]
        final_ratio: f64,
    },
    /// Up along half a cosine from a part of the learning rate, then down along another until the end of the run, as PyTorch's
    /// `OneCycleLR` (Smith and Topin 2019, arXiv 1708.07120). It warms up by itself: `warmup_steps` is 0.
    OneCycle {
        /// The part of the run that rises, above 0 and below 1.
        #[serde(default = "default_rise")]
        rise: f64,
        /// Where it starts, as a part of the learning rate, above 0 and at most 1.
        #[serde(default = "default_start_ratio")]
        start_ratio: f64,
        /// Where it ends, as a part of the learning rate, in `[0, 1]`.
        #[serde(default = "default_end_ratio")]
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

fn default_last_part() -> f64 {
    0.2
}

fn default_rise() -> f64 {
    0.3
}

fn default_start_ratio() -> f64 {
    1.0 / 25.0
}

fn default_end_ratio() -> f64 {
    1.0 / 250_000.0
}

/// From 1 to 0 along half a cosine, for progress from 0 to 1.
fn half_cosine(progress: f64) -> f64 {
    0.5 * (1.0 + (PI * progress).cos())
}

impl ScheduleConfig {
    /// What each setting means, by its key inside of the section.
    pub const MEANINGS: &[(&str, &str)] = &[
        ("learning_rate", "The largest learning rate, above 0."),
        ("warmup_steps", "Optimizer steps until it is reached (count)."),
        (
            "decay.final_ratio",
            "cosine, linear, wsd, one_cycle: Where it ends, as a part of the learning rate, in `[0, 1]`.",
        ),
        ("decay.last_part", "wsd: The part of the run, its warm-up aside, that falls; a fifth when nothing is said."),
        ("decay.rise", "one_cycle: The part of the run that rises; 0.3 when nothing is said."),
        (
            "decay.start_ratio",
            "one_cycle: Where it starts, as a part of the learning rate; a twenty-fifth when nothing is said.",
        ),
        ("decay.every_steps", "step: Optimizer steps between two falls (count)."),
        ("decay.factor", "step: The factor, above 0 and at most 1."),
        (
            "decay.kind",
            "What follows the warmup: nothing, half a cosine or a straight line until the end of the run, a straight line at its end alone, one cycle up and down, or a fall by a factor again and again.",
        ),
    ];

    /// Sections of a file (TOML), one for each alternative; sizes are the largest, which limit others.
    pub const EXAMPLES: &[&str] = &[
        r#"{ learning_rate = 1.0, decay = { kind = "cosine" } }"#,
        r#"{ learning_rate = 1.0, decay = { kind = "linear" } }"#,
        r#"{ learning_rate = 1.0, decay = { kind = "wsd" } }"#,
        r#"{ learning_rate = 1.0, decay = { kind = "one_cycle" } }"#,
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
        let length = num_steps.saturating_sub(self.warmup_steps).max(1);
        let progress = (since as f64 / length as f64).min(1.0);
        self.learning_rate
            * match self.decay {
                Decay::Constant => 1.0,
                Decay::Cosine { final_ratio } => final_ratio + (1.0 - final_ratio) * half_cosine(progress),
                Decay::Linear { final_ratio } => 1.0 - (1.0 - final_ratio) * progress,
                Decay::Wsd { last_part, final_ratio } => {
                    let fallen = ((progress - (1.0 - last_part)) / last_part).max(0.0);
                    1.0 - (1.0 - final_ratio) * fallen
                }
                Decay::OneCycle { rise, start_ratio, final_ratio } => {
                    // The places of the largest rate and of the last step, both counted from 0.
                    let (top, last) = (rise * length as f64 - 1.0, length as f64 - 1.0);
                    let place = (since as f64).min(last);
                    if top > 0.0 && place <= top {
                        1.0 - (1.0 - start_ratio) * half_cosine(place / top)
                    } else {
                        final_ratio + (1.0 - final_ratio) * half_cosine(((place - top) / (last - top)).clamp(0.0, 1.0))
                    }
                }
                Decay::Step { every_steps, factor } => factor.powf((since / every_steps.get()) as f64),
            }
    }

    /// Every setting that cannot work, as (key, what is accepted).
    #[must_use]
    pub fn validate(&self) -> Vec<(String, String)> {
        let mut checks = vec![("learning_rate", is_single(self.learning_rate), SINGLE)];
        let end = |ratio: f64| ("decay.final_ratio", (0.0..=1.0).contains(&ratio), "a number from 0 to 1");
        match self.decay {
            Decay::Constant => {}
            Decay::Cosine { final_ratio } | Decay::Linear { final_ratio } => checks.push(end(final_ratio)),
            Decay::Wsd { last_part, final_ratio } => {
                let sound = last_part > 0.0 && last_part <= 1.0;
                checks.extend([("decay.last_part", sound, "a number above 0 and at most 1"), end(final_ratio)]);
            }
            Decay::OneCycle { rise, start_ratio, final_ratio } => {
                let (rises, starts) = (rise > 0.0 && rise < 1.0, start_ratio > 0.0 && start_ratio <= 1.0);
                checks.extend([
                    ("warmup_steps", self.warmup_steps == 0, "0 beside one_cycle, which rises by itself"),
                    ("decay.rise", rises, "a number above 0 and below 1"),
                    ("decay.start_ratio", starts, "a number above 0 and at most 1"),
                    end(final_ratio),
                ]);
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
        let linear = r#"{"learning_rate":2.0,"warmup_steps":2,"decay":{"kind":"linear","final_ratio":0.5}}"#;
        check(linear, &[(0, 1.0), (2, 2.0), (6, 1.5), (10, 1.0), (99, 1.0)]);
        let wsd = r#"{"learning_rate":1.0,"warmup_steps":2,"decay":{"kind":"wsd","last_part":0.5}}"#;
        check(wsd, &[(1, 1.0), (2, 1.0), (6, 1.0), (7, 0.75), (8, 0.5), (10, 0.0), (99, 0.0)]);
        let cycle =
            r#"{"learning_rate":1.0,"decay":{"kind":"one_cycle","rise":0.5,"start_ratio":0.2,"final_ratio":0.1}}"#;
        check(cycle, &[(0, 0.2), (2, 0.6), (4, 1.0), (9, 0.1), (99, 0.1)]);
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
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-39, 1e39] {
            broken(ScheduleConfig::constant(rate), "learning_rate");
        }
        let with = |decay| ScheduleConfig { decay, ..ScheduleConfig::constant(1.0) };
        broken(with(Decay::Cosine { final_ratio: 1.5 }), "decay.final_ratio");
        broken(with(Decay::Linear { final_ratio: -0.1 }), "decay.final_ratio");
        broken(with(Decay::Wsd { last_part: 0.0, final_ratio: 0.0 }), "decay.last_part");
        broken(with(Decay::OneCycle { rise: 1.0, start_ratio: 0.1, final_ratio: 0.0 }), "decay.rise");
        broken(with(Decay::OneCycle { rise: 0.5, start_ratio: 0.0, final_ratio: 0.0 }), "decay.start_ratio");
        let cycle = Decay::OneCycle { rise: 0.5, start_ratio: 0.1, final_ratio: 0.0 };
        broken(ScheduleConfig { warmup_steps: 1, ..with(cycle) }, "warmup_steps");
        for factor in [0.0, 1.5, f64::NAN] {
            broken(with(Decay::Step { every_steps: NonZeroU64::MIN, factor }), "decay.factor");
        }
        assert!(serde_json::from_str::<ScheduleConfig>(r#"{"learning_rate":1.0,"warmup":3}"#).is_err());
    }
}

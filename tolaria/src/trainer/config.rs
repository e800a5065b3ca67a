//! How a network is trained.

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use candle_core::Device;
use serde::{Deserialize, Serialize};

use crate::aggregate::{AggregationConfig, ConflictResolution, Parameters};
use crate::batch::transform::AugmentConfig;
use crate::batch::{BatchConfig, LoaderConfig, SamplerConfig};
use leyline::state::Score;
use leyline::task::{Measure, Task};

use crate::error::Error;
use crate::measure::ACCURACY;
use crate::optim::{GroupsConfig, Optimizer, OptimizerConfig, ScheduleConfig};
use crate::trainer::loss_scale::LossScaleConfig;
use crate::trainer::precision::TrainPrecision;
use crate::trainer::recovery::RecoveryConfig;
use crate::trainer::safety::SafetyConfig;
use crate::trainer::stop::EarlyStopConfig;

/// What a [`Score`] holds beside measures of the task: none of them may have such a name.
const RESERVED: [&str; 3] = ["loss", "num_samples", ACCURACY.name];

/// Settings of the trainer; immutable once it is built.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// Samples per microbatch and microbatches per optimizer step.
    pub batch: BatchConfig,
    /// How gradients become updates.
    pub optimizer: OptimizerConfig,
    /// Which parameters decay, and how fast those of each owner move; all alike when nothing is said.
    #[serde(default, skip_serializing_if = "GroupsConfig::is_plain")]
    pub groups: GroupsConfig,
    /// Memory that the gradients of a window's microbatches may take at once where owners are not told apart, MiB. Where they would
    /// take more there is one: each is added to the sum so far as it comes, with the same bits.
    #[serde(default = "default_gradient_mib", skip_serializing_if = "is_default_gradient_mib")]
    pub gradient_mib: u32,
    /// Precision of the products of training steps.
    #[serde(default, skip_serializing_if = "TrainPrecision::is_default")]
    pub precision: TrainPrecision,
    /// How the loss is scaled where `precision` is `f16`.
    #[serde(default, skip_serializing_if = "LossScaleConfig::is_default")]
    pub loss_scale: LossScaleConfig,
    /// Keeps an average of every parameter over the steps, `a += (1 - ema_decay) (p - a)`, which is evaluated and exported in its place;
    /// above 0, below 1. Absent keeps none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ema_decay: Option<f64>,
    /// How the learning rate moves over the run.
    pub schedule: ScheduleConfig,
    /// Largest global gradient norm; absent leaves gradients as they are.
    #[serde(default)]
    pub clip_norm: Option<f64>,
    /// How the gradients of one window become one gradient.
    #[serde(default)]
    pub conflict: ConflictResolution,
    /// Whether host and seeds are told apart with `conflict = "mean"` too, in order to report on their gradients. The
    /// other methods always tell them apart.
    #[serde(default)]
    pub measure_conflicts: bool,
    /// How far CAGrad may go from the plain gradient, in norms of it, in `[0, 1)`.
    #[serde(default = "default_cagrad_radius")]
    pub cagrad_radius: f64,
    /// Names of the task's measures that held-out data are measured by, beside loss and accuracy; where none is named, those that
    /// the task measures by default. The provided ones are [`measure::ALL`](crate::measure::ALL).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measures: Vec<String>,
    /// Samples per forward pass of an evaluation.
    pub eval_batch_size: NonZeroUsize,
    /// Share of the validation samples that confirm the gains of seeds, in [0, 1): nothing else is decided or reported by them. Without
    /// any no gain is confirmed; networks that do not grow keep none back.
    #[serde(default = "default_confirmation_fraction", skip_serializing_if = "is_usual_fraction")]
    pub confirmation_fraction: f64,
    /// Optimizer steps between two evaluations on the validation data, beside the one at the end of every epoch; absent
    /// evaluates then alone. Nothing is decided by them, but the best checkpoint may be one of theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_every_steps: Option<NonZeroU64>,
    /// Ends the run when it does not get better any more; absent trains every epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stop: Option<EarlyStopConfig>,
    /// Conflict ratio of an epoch from which on a warning is emitted, in `[0, 1]`.
    pub conflict_warn: f64,
    /// How steps reach the device.
    #[serde(default)]
    pub execution: ExecutionConfig,
    /// Who gathers the samples of a step.
    #[serde(default)]
    pub loader: LoaderConfig,
    /// Which samples an epoch has, and in which order.
    #[serde(default, skip_serializing_if = "SamplerConfig::is_default")]
    pub sampler: SamplerConfig,
    /// What is done to training samples in every epoch.
    #[serde(default, skip_serializing_if = "AugmentConfig::is_default")]
    pub augment: AugmentConfig,
    /// When a run goes back to a known-good state.
    #[serde(default, skip_serializing_if = "RecoveryConfig::is_default")]
    pub recovery: RecoveryConfig,
    /// How long policy and seed manager may take.
    #[serde(default, skip_serializing_if = "SafetyConfig::is_default")]
    pub safety: SafetyConfig,
}

/// How a step reaches a GPU. All ways give the same numbers: eager and replayed steps the same bits, compiled ones too but
/// for the sign of a zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepMode {
    /// Operation by operation.
    Eager,
    /// Recorded once per shape of step, and replayed.
    Graph,
    /// As [`Graph`](Self::Graph), and what was recorded is rewritten in the background, verified, and replayed in its
    /// place.
    #[default]
    Compiled,
}

/// How steps run on a GPU. On the CPU steps always run eagerly, and none of this matters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExecutionConfig {
    /// How a step reaches the device: `eager`, `graph` or `compiled`.
    pub mode: StepMode,
    /// Eager steps of one shape before it is recorded.
    pub warmup_steps: NonZeroU32,
    /// Replays of a recorded shape before it is compiled.
    pub compile_warmup_steps: u32,
    /// Steps that both graphs take, with results compared, before the compiled one is replayed.
    pub compile_verify_steps: NonZeroU32,
    /// Folder that keeps generated kernels from run to run; absent keeps none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compile_cache: Option<PathBuf>,
    /// Graphs kept; the least recently used one goes first.
    pub max_graphs: NonZeroUsize,
    /// Shapes in a row that could not be recorded before no further one is tried.
    pub max_failures: NonZeroU32,
    /// Copies the data of a step while the one before it computes. Costs a few calls per step: worth it for large inputs.
    pub prefetch: bool,
    /// Whether data sets are kept on the device; otherwise every batch is copied there.
    pub data_on_device: bool,
    /// Pinned buffers for data on their way to the device; the host runs ahead by as many steps.
    pub staging_buffers: NonZeroUsize,
    /// Waits for the device after each step, and names the step in an error that shows then. Otherwise one may show some steps later.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub check_each_step: bool,
    /// Optimizer steps that share a launch, at most [`Self::MAX_STEPS_PER_LAUNCH`]: of the same bits as single ones, and planned before
    /// the first of them. Steps are single where something is due between them or a seed is blended, and where microbatches are
    /// attributed to seeds. Whoever watches a run is told after the last of a launch.
    #[serde(skip_serializing_if = "is_one")]
    pub steps_per_launch: NonZeroUsize,
}

impl ExecutionConfig {
    /// A launch makes up to 32 copies to its inputs itself: two for each of so many steps, whose data are on the device.
    pub const MAX_STEPS_PER_LAUNCH: usize = 16;
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_one(count: &NonZeroUsize) -> bool {
    count.get() == 1
}

impl Default for ExecutionConfig {
    fn default() -> Self {
        Self {
            mode: StepMode::Compiled,
            warmup_steps: const { NonZeroU32::new(2).unwrap() },
            compile_warmup_steps: 8,
            compile_verify_steps: const { NonZeroU32::new(2).unwrap() },
            compile_cache: None,
            max_graphs: const { NonZeroUsize::new(8).unwrap() },
            max_failures: const { NonZeroU32::new(3).unwrap() },
            prefetch: false,
            data_on_device: true,
            staging_buffers: const { NonZeroUsize::new(4).unwrap() },
            check_each_step: false,
            steps_per_launch: NonZeroUsize::MIN,
        }
    }
}

fn default_gradient_mib() -> u32 {
    256
}

fn is_default_gradient_mib(mib: &u32) -> bool {
    *mib == default_gradient_mib()
}

const fn default_confirmation_fraction() -> f64 {
    0.5
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_usual_fraction(fraction: &f64) -> bool {
    fraction.to_bits() == default_confirmation_fraction().to_bits()
}

fn default_cagrad_radius() -> f64 {
    Parameters::default().cagrad_radius
}

impl Default for TrainConfig {
    /// AdamW at a constant rate of 0.003 without weight decay, clipped to a norm of 1, in batches of 32: what the command
    /// `esper` starts from.
    fn default() -> Self {
        let [batch_size, eval_batch_size] = const { [NonZeroUsize::new(32).unwrap(), NonZeroUsize::new(512).unwrap()] };
        Self {
            batch: BatchConfig { batch_size, microbatches_per_step: NonZeroUsize::MIN },
            optimizer: OptimizerConfig::default(),
            groups: GroupsConfig::default(),
            gradient_mib: default_gradient_mib(),
            precision: TrainPrecision::default(),
            loss_scale: LossScaleConfig::default(),
            ema_decay: None,
            schedule: ScheduleConfig::constant(0.003),
            clip_norm: Some(1.0),
            conflict: ConflictResolution::Mean,
            measure_conflicts: false,
            cagrad_radius: default_cagrad_radius(),
            measures: Vec::new(),
            eval_batch_size,
            confirmation_fraction: default_confirmation_fraction(),
            eval_every_steps: None,
            early_stop: None,
            conflict_warn: 0.5,
            execution: ExecutionConfig::default(),
            loader: LoaderConfig::default(),
            sampler: SamplerConfig::default(),
            augment: AugmentConfig::default(),
            recovery: RecoveryConfig::default(),
            safety: SafetyConfig::default(),
        }
    }
}

impl TrainConfig {
    /// Whether the gradients of a window, of so many elements each, may be kept at once where they are not told apart.
    pub(super) fn has_room_for_rows(&self, num_elements: usize) -> bool {
        let num_rows = self.batch.microbatches_per_step.get();
        4 * num_rows as u128 * num_elements as u128 <= u128::from(self.gradient_mib) << 20
    }

    /// An optimizer that has seen nothing yet, for parameters on `device`.
    ///
    /// Where steps are to be replayed, weights have copies that are rounded; steps that are eager by the settings round them, so that the
    /// two can be compared.
    pub(super) fn new_optimizer(&self, device: &Device) -> Optimizer {
        let is_replayed = device.is_cuda() && self.execution.mode != StepMode::Eager;
        let is_copying = is_replayed && self.precision == TrainPrecision::Bf16;
        let optimizer = Optimizer::with_groups(self.optimizer, self.groups).rounding(self.precision.rounding());
        optimizer.averaging(self.ema_decay).copying(is_copying)
    }

    /// How the loss is scaled, where it is.
    pub(super) fn scaling(&self) -> Option<&LossScaleConfig> {
        (self.precision == TrainPrecision::F16).then_some(&self.loss_scale)
    }

    /// How windows are combined and clipped.
    #[must_use]
    pub fn aggregation(&self) -> AggregationConfig {
        AggregationConfig {
            method: self.conflict,
            measure_conflicts: self.measure_conflicts,
            parameters: Parameters { cagrad_radius: self.cagrad_radius },
            clip_norm: self.clip_norm,
        }
    }

    /// What held-out data are measured by, beside loss and accuracy; in the order of reports.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a measure that the task does not have.
    pub fn measured(&self, task: &dyn Task) -> Result<Vec<Measure>, Error> {
        let offered = task.measures();
        let names: Vec<&str> = offered.iter().map(|measure| measure.about().name).collect();
        for (place, name) in names.iter().enumerate() {
            if RESERVED.contains(name) || names[..place].contains(name) {
                let message = format!("a {} has two of the name `{name}`, or one that is reserved", task.describe());
                return Err(Error::InvalidConfig { key: "measures".to_owned(), message });
            }
        }
        let is_offered = |name: &String| name == ACCURACY.name || offered.iter().any(|of| of.about().name == name);
        if let Some(name) = self.measures.iter().find(|name| !is_offered(name)) {
            let message = format!("names `{name}`: a {} has {}", task.describe(), names.join(", "));
            return Err(Error::InvalidConfig { key: "measures".to_owned(), message });
        }
        let is_asked = |measure: &&Measure| match self.measures.as_slice() {
            [] => measure.is_default(),
            names => names.iter().any(|name| name == measure.about().name),
        };
        let measured: Vec<Measure> = offered.iter().filter(is_asked).cloned().collect();
        if let Some(stop) = &self.early_stop {
            let names: Vec<&str> = measured.iter().map(|measure| measure.about().name).collect();
            if let Some((key, accepted)) = stop.validate(&[&[ACCURACY.name], &*names].concat()).into_iter().next() {
                return Err(Error::InvalidConfig { key, message: format!("expected {accepted}") });
            }
        }
        Ok(measured)
    }

    /// Confirms that there is an accuracy where one is asked for, which only an evaluation can tell.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`].
    pub(super) fn check_accuracy(&self, task: &dyn Task, score: &Score) -> Result<(), Error> {
        let is_watched = self.early_stop.as_ref().is_some_and(|stop| stop.measure == ACCURACY.name);
        let is_asked = self.measures.iter().any(|name| name == ACCURACY.name);
        let key = if is_watched { "early_stop.measure" } else { "measures" };
        if score.accuracy().is_some() || !(is_watched || is_asked) {
            return Ok(());
        }
        let message = format!("names `{}`, which a {} does not have", ACCURACY.name, task.describe());
        Err(Error::InvalidConfig { key: key.to_owned(), message })
    }

    /// Every setting that cannot work, as (key, what is accepted).
    #[must_use]
    pub fn validate(&self) -> Vec<(String, String)> {
        let mut issues = self.aggregation().validate();
        if !(0.0..1.0).contains(&self.confirmation_fraction) {
            issues.push(("confirmation_fraction".to_owned(), "a number from 0 to below 1".to_owned()));
        }
        if !(0.0..=1.0).contains(&self.conflict_warn) {
            issues.push(("conflict_warn".to_owned(), "a number from 0 to 1".to_owned()));
        }
        if self.execution.steps_per_launch.get() > ExecutionConfig::MAX_STEPS_PER_LAUNCH {
            let accepted = format!("a number from 1 to {}", ExecutionConfig::MAX_STEPS_PER_LAUNCH);
            issues.push(("execution.steps_per_launch".to_owned(), accepted));
        }
        let sections = [
            ("loader", self.loader.validate()),
            ("sampler", self.sampler.validate()),
            ("augment", self.augment.validate()),
            ("recovery", self.recovery.validate()),
            ("safety", self.safety.validate()),
            ("groups", self.groups.validate()),
            ("loss_scale", self.loss_scale.validate()),
        ];
        for (section, of_section) in sections {
            issues.extend(of_section.into_iter().map(|(key, text)| (format!("{section}.{key}"), text)));
        }
        if self.precision != TrainPrecision::F16 && !self.loss_scale.is_default() {
            issues.push(("loss_scale".to_owned(), "`precision` to be `f16`: no other scales the loss".to_owned()));
        }
        if self.ema_decay.is_some_and(|decay| !(decay > 0.0 && decay < 1.0)) {
            issues.push(("ema_decay".to_owned(), "a number above 0 and below 1".to_owned()));
        }
        issues.extend(self.optimizer.validate().into_iter().map(|(key, text)| (format!("optimizer.{key}"), text)));
        issues.extend(self.schedule.validate().into_iter().map(|(key, text)| (format!("schedule.{key}"), text)));
        issues
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{Classification, Regression, RegressionLoss};

    fn config(changes: &str) -> TrainConfig {
        let mut config = serde_json::json!({
            "batch": {"batch_size": 4, "microbatches_per_step": 2},
            "optimizer": {"kind": "sgd"},
            "schedule": {"learning_rate": 0.1},
            "eval_batch_size": 8,
            "conflict_warn": 0.5,
        });
        let changes: serde_json::Map<String, serde_json::Value> = serde_json::from_str(changes).unwrap();
        config.as_object_mut().unwrap().extend(changes);
        serde_json::from_value(config).unwrap()
    }

    #[test]
    fn every_method_but_the_mean_tells_owners_apart() {
        for (changes, expected) in [
            (r"{}", false),
            (r#"{"conflict": "mean"}"#, false),
            (r#"{"measure_conflicts": true}"#, true),
            (r#"{"conflict": "pcgrad"}"#, true),
            (r#"{"conflict": "mgda"}"#, true),
            (r#"{"conflict": "upgrad"}"#, true),
            (r#"{"conflict": "cagrad"}"#, true),
            (r#"{"conflict": "aligned_mtl"}"#, true),
        ] {
            assert_eq!(config(changes).aggregation().tells_owners_apart(), expected, "{changes}");
        }
    }

    #[test]
    fn a_way_to_run_steps_is_named_and_what_is_not_said_has_its_default() {
        let defaults = ExecutionConfig::default();
        assert_eq!((defaults.mode, defaults.compile_warmup_steps), (StepMode::Compiled, 8));
        let changed = ExecutionConfig {
            mode: StepMode::Graph,
            compile_warmup_steps: 0,
            compile_cache: Some("kernels".into()),
            check_each_step: true,
            ..ExecutionConfig::default()
        };
        for (text, expected) in [
            ("{}", Some(defaults.clone())),
            (r#"{"mode": "compiled"}"#, Some(defaults.clone())),
            (r#"{"mode": "eager"}"#, Some(ExecutionConfig { mode: StepMode::Eager, ..ExecutionConfig::default() })),
            (
                r#"{"mode": "graph", "compile_warmup_steps": 0, "compile_cache": "kernels", "check_each_step": true}"#,
                Some(changed.clone()),
            ),
            (r#"{"mode": "auto"}"#, None),
            (r#"{"check_each_step": 1}"#, None),
            (r#"{"graphs": "off"}"#, None),
            (r#"{"compile_verify_steps": 0}"#, None),
        ] {
            assert_eq!(serde_json::from_str::<ExecutionConfig>(text).ok(), expected, "{text}");
        }
        for config in [defaults, changed] {
            let text = serde_json::to_string(&config).unwrap();
            assert_eq!(text.contains("compile_cache"), config.compile_cache.is_some(), "{text}");
            // What is not said leaves the digests of configurations as they were.
            assert_eq!(text.contains("check_each_step"), config.check_each_step, "{text}");
            assert_eq!(serde_json::from_str::<ExecutionConfig>(&text).unwrap(), config);
        }
    }

    #[test]
    fn measures_are_those_of_the_task_and_the_accuracy_is_measured_anyway() {
        let classes = Classification::new(3);
        let values = Regression::new(RegressionLoss::Mse, vec![1.0]).unwrap();
        let tasks: [&dyn Task; 2] = [&classes, &values];
        for (task, named, expected) in [
            (0, "[]", Some(vec![])),
            (0, r#"["accuracy", "top5_accuracy"]"#, Some(vec!["top5_accuracy"])),
            (0, r#"["r2"]"#, None),
            (1, "[]", Some(vec!["r2", "mean_abs_error", "root_mean_square_error"])),
            (1, r#"["r2"]"#, Some(vec!["r2"])),
        ] {
            let found = config(&format!(r#"{{"measures": {named}}}"#)).measured(tasks[task]);
            let names = found.map(|of| of.iter().map(|measure| measure.about().name).collect::<Vec<_>>()).ok();
            assert_eq!(names, expected, "{named}");
        }
        let error = config(r#"{"measures": ["top5"]}"#).measured(&classes).unwrap_err().to_string();
        let expected = "`measures` is invalid: names `top5`: a classification of 3 has top5_accuracy, macro_f1";
        assert_eq!(error, expected);
    }

    /// A task whose measures have these names.
    #[derive(Debug)]
    struct Measured(Vec<Measure>);

    impl Measured {
        fn by(names: &[&'static str]) -> Self {
            let about = |name| leyline::task::About { name, ..ACCURACY };
            let counts = |outputs: &candle_core::Tensor, _: &candle_core::Tensor| Ok(outputs.clone());
            Self(names.iter().map(|name| Measure::new(about(name), counts, |sums, _| sums[0])).collect())
        }
    }

    impl Task for Measured {
        fn describe(&self) -> String {
            "task".to_owned()
        }

        fn losses(
            &self,
            outputs: &candle_core::Tensor,
            _: &candle_core::Tensor,
        ) -> candle_core::Result<candle_core::Tensor> {
            Ok(outputs.clone())
        }

        fn measures(&self) -> &[Measure] {
            &self.0
        }

        fn check_targets(&self, _: &candle_core::Tensor) -> candle_core::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_measure_has_a_name_of_its_own() {
        for (names, is_accepted) in [
            (&["reach", "depth"][..], true),
            (&["reach", "reach"], false),
            (&["loss"], false),
            (&["num_samples"], false),
            (&["accuracy"], false),
        ] {
            assert_eq!(config("{}").measured(&Measured::by(names)).is_ok(), is_accepted, "{names:?}");
        }
    }

    #[test]
    fn an_accuracy_is_asked_for_where_there_is_one() {
        let (without, with) = (Score::new(0.5, 4), Score::new(0.5, 4).with(ACCURACY.name, 1.0));
        for (changes, key) in [
            (r#"{"measures": ["accuracy"]}"#, "`measures`"),
            (r#"{"early_stop": {"patience": 1, "measure": "accuracy"}}"#, "`early_stop.measure`"),
        ] {
            let error = config(changes).check_accuracy(&Measured::by(&[]), &without).unwrap_err().to_string();
            assert_eq!(error, format!("{key} is invalid: names `accuracy`, which a task does not have"));
            config(changes).check_accuracy(&Measured::by(&[]), &with).unwrap();
        }
        config("{}").check_accuracy(&Measured::by(&[]), &without).unwrap();
    }

    #[test]
    fn the_radius_of_cagrad_stays_below_one() {
        for (radius, is_accepted) in [("0.0", true), ("0.4", true), ("0.999", true), ("1.0", false), ("-0.1", false)] {
            let issues = config(&format!(r#"{{"cagrad_radius": {radius}}}"#)).validate();
            assert_eq!(issues.iter().all(|(key, _)| key != "cagrad_radius"), is_accepted, "{radius}: {issues:?}");
        }
        assert!(config("{}").validate().is_empty(), "the default is accepted");
    }
}

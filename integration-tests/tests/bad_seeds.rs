//! A seed whose numbers cannot be used is removed, in the shadow and while it blends; the run goes on.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::path::Path;

use candle_core::Tensor;
use esper::wire::EsperTrainer;
use integration_tests::short_run::{Recorded, config, trainer};
use leyline::id::{SeedId, StepIndex};
use leyline::layout::Owner;
use leyline::model::{Parameter, TrainableModel as _};
use leyline::region::Eager;
use leyline::seed::{SeedManager as _, SeedStage, SeedState};
use tolaria::checkpoint::Snapshot;
use tolaria::host_read::{HostReads, read_scalar};
use tolaria::trainer::{Outcome, RunEvent};

/// Notes where the run went back.
#[derive(Default)]
struct Noted {
    recorded: Recorded,
    culprits: Vec<String>,
    rates: Vec<f64>,
    /// Steps that the state held to which it went.
    to: Vec<u64>,
    /// After this step something is planted.
    planted: Option<(StepIndex, Bad, Vec<Parameter>)>,
}

impl tolaria::trainer::Observer for Noted {
    fn step_finished(&mut self, step: StepIndex) -> tolaria::trainer::Flow {
        if let Some((_, bad, parameters)) = self.planted.take_if(|(at, ..)| *at == step) {
            spoil(&parameters, bad);
        }
        self.recorded.step_finished(step)
    }

    fn event(&mut self, event: &RunEvent<'_>) {
        if let RunEvent::RolledBack { to, culprit, rate_factor, .. } = event {
            self.culprits.push((*culprit).to_owned());
            self.rates.push(*rate_factor);
            self.to.push(to.0);
        }
    }

    fn epoch_finished(
        &mut self,
        report: &tolaria::trainer::report::EpochReport,
    ) -> Result<(), leyline::error::BoxError> {
        self.recorded.epochs.retain(|earlier| earlier.epoch < report.epoch);
        self.recorded.epoch_finished(report)
    }
}

fn is_finite(snapshot: &Snapshot) -> bool {
    let tensors = snapshot.components.values().flat_map(|state| state.tensors.values());
    let finite = |tensor: &Tensor| {
        let sum = (tensor.to_dtype(candle_core::DType::F64).unwrap() * 0.0).unwrap().sum_all().unwrap();
        read_scalar(&sum, "test", &mut HostReads::default()).unwrap() == 0.0
    };
    tensors.into_iter().all(finite)
}

/// What is planted.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Bad {
    /// No number, in all parameters: what comes after a seed cuts it off, so that no loss shows it.
    Everywhere,
    /// Infinity, in one bias: it makes the loss no number.
    Bias,
    /// The largest number, in one bias: the loss is a number, far beyond its bound.
    Large,
}

/// A run in which something is planted.
struct Planted {
    run: EsperTrainer,
    eager: Eager,
    noted: Noted,
}

impl Planted {
    fn new(every_steps: u32) -> Self {
        let every_steps = format!("train.recovery.every_steps={every_steps}");
        Self::with(&["train.recovery.memory_mib=64", &every_steps], None)
    }

    fn with(more: &[&str], dir: Option<&Path>) -> Self {
        let watching = ["train.recovery.max_skipped=2", "train.recovery.loss_bound=1e4"];
        let config = config(&[&watching[..], more].concat());
        Self { run: trainer(&config, dir), eager: Eager::acquire().unwrap(), noted: Noted::default() }
    }

    fn run_to(&mut self, step: Option<StepIndex>) -> Outcome {
        self.noted.recorded.stop_after = step;
        self.run.run(&mut self.eager, &mut self.noted).unwrap()
    }

    /// Trains until seeds are as they should be, in the middle of an epoch.
    fn until<T>(&mut self, is_so: impl Fn(&[SeedState]) -> Option<T>) -> T {
        let mut step = 3;
        loop {
            assert_eq!(self.run_to(Some(StepIndex(step))), Outcome::Interrupted, "no seed was so");
            if let Some(found) = is_so(&self.run.seeds().export_seed_states(&self.eager).unwrap()) {
                return found;
            }
            step += 5;
        }
    }

    /// Steps at the end of an epoch after the last, which are as long as the first ones.
    fn end_of_epoch(&self, epochs: u64) -> u64 {
        let last = self.noted.recorded.epochs.last().unwrap();
        last.step.0 / last.epoch.0 * (last.epoch.0 + epochs)
    }

    /// The lowest learning rate, as a share of the highest.
    fn share_of_rate(&self) -> f64 {
        let rates = self.noted.recorded.epochs.iter().map(|report| report.learning_rate);
        rates.clone().reduce(f64::min).unwrap() / rates.reduce(f64::max).unwrap()
    }

    fn spoil(&self, seed: SeedId, bad: Bad) {
        spoil(&self.run.seeds().inner().seed_parameters(seed).unwrap(), bad);
    }

    /// Trains to the end, where all is finite and every epoch was reported.
    fn finish(&mut self) {
        assert_eq!(self.run_to(None), Outcome::Completed, "{:?}", self.noted.culprits);
        assert!(is_finite(&self.run.snapshot(&self.eager).unwrap()));
        let epochs: Vec<u64> = self.noted.recorded.epochs.iter().map(|report| report.epoch.0).collect();
        assert_eq!(epochs, (1..=14).collect::<Vec<_>>());
    }

    /// Whether the seed was removed once because of its numbers, and for good.
    fn is_removed(&self, seed: SeedId) -> bool {
        let transitions = self.noted.recorded.epochs.iter().flat_map(|report| &report.transitions);
        let removed: Vec<_> = transitions.filter(|t| t.seed == seed && t.to == SeedStage::Pruned).collect();
        let layout = self.run.seeds().model().layout();
        matches!(&*removed, [one] if one.reason == "its loss or its gradient could not be used")
            && layout.segments().iter().all(|segment| segment.spec.owner != Owner::Seed(seed))
    }
}

fn spoil(parameters: &[Parameter], bad: Bad) {
    for parameter in parameters {
        let (var, is_bias) = (&parameter.var, parameter.name.ends_with("up.bias"));
        match bad {
            Bad::Everywhere => var.set(&(var.as_tensor() * f64::NAN).unwrap()).unwrap(),
            Bad::Bias | Bad::Large if is_bias => {
                let mut values = vec![0.0_f32; var.elem_count()];
                values[0] = if bad == Bad::Large { f32::MAX } else { f32::INFINITY };
                var.set(&Tensor::new(values, var.device()).unwrap()).unwrap();
            }
            Bad::Bias | Bad::Large => {}
        }
    }
}

fn in_stage(stage: SeedStage) -> impl Fn(&[SeedState]) -> Option<SeedId> {
    move |seeds| {
        let is_so = |state: &&SeedState| state.stage == stage && state.alpha.is_zero() != stage.acts_on_output();
        seeds.iter().find(is_so).map(|state| state.seed_id)
    }
}

#[test]
fn a_seed_that_is_no_number_is_removed_and_the_run_goes_on() {
    use SeedStage::{Blending, Holding, Training};
    for (stage, bad, every_steps, goes_back) in [
        (Training, Bad::Everywhere, 5, true),
        (Blending, Bad::Everywhere, 5, true),
        (Holding, Bad::Everywhere, 5, true),
        // In the shadow it harms itself alone.
        (Training, Bad::Bias, 1_000, false),
        (Blending, Bad::Bias, 5, true),
        (Holding, Bad::Large, 5, true),
    ] {
        let mut run = Planted::new(every_steps);
        let seed = run.until(in_stage(stage));
        run.spoil(seed, bad);
        run.finish();
        assert!(run.is_removed(seed), "{stage} {bad:?}: {:?}", run.noted.culprits);
        assert_eq!(run.noted.culprits, vec![seed.to_string(); usize::from(goes_back)], "{stage} {bad:?}");
        assert!(run.noted.rates.iter().all(|rate| (rate - 1.0).abs() < 1e-12), "a seed was to blame");
    }
}

#[test]
fn an_epoch_in_which_a_seed_is_removed_has_as_many_steps_as_any_other_for_the_policy() {
    let mut run = Planted::new(1_000);
    let seed = run.until(in_stage(SeedStage::Training));
    run.spoil(seed, Bad::Bias);
    run.finish();
    let of_epochs = run.noted.recorded.epochs.iter().filter_map(|report| report.asked.as_ref());
    let steps: Vec<u64> = of_epochs.map(|asked| asked.steps_per_epoch).collect();
    // The sums of that epoch start over, and a ramp over so many epochs is no shorter for that.
    assert!(steps.iter().all(|of_epoch| *of_epoch == steps[0]), "{steps:?}");
}

#[test]
fn a_seed_that_was_removed_does_not_come_back_with_an_older_state() {
    for (stage, bad) in [(SeedStage::Blending, Bad::Bias), (SeedStage::Training, Bad::Bias)] {
        // No state is kept after the first one that has it.
        let mut run = Planted::new(12);
        let seed = run.until(in_stage(stage));
        let step = run.run.progress().1.0;
        run.spoil(seed, bad);
        assert_eq!(run.run_to(Some(StepIndex(step + 5))), Outcome::Interrupted);
        let host = run.run.seeds().model().parameters()[0].clone();
        host.var.set(&(host.var.as_tensor() * f64::NAN).unwrap()).unwrap();
        run.finish();
        let culprit = format!("parameter `{}`", host.name);
        assert_eq!(run.noted.culprits.last(), Some(&culprit), "{stage}");
        assert!(run.is_removed(seed), "{stage}: {:?}", run.noted.culprits);
    }
}

#[test]
fn a_seed_that_cannot_go_any_more_is_named_and_the_rate_falls() {
    let mut run = Planted::new(5);
    let seed = run.until(in_stage(SeedStage::Fossilized));
    // Long enough for a state in which it is.
    let step = run.run.progress().1.0;
    assert_eq!(run.run_to(Some(StepIndex(step + 12))), Outcome::Interrupted);
    run.spoil(seed, Bad::Bias);
    run.finish();
    assert_eq!(run.noted.culprits, [seed.to_string()]);
    assert_eq!(run.noted.rates, [0.5]);
}

/// A run that goes back to the end of its best epoch: no state fits into memory, and only such epochs have a checkpoint.
fn on_disk(dir: &Path) -> Planted {
    let settings = [
        "train.recovery.memory_mib=1",
        "train.recovery.every_steps=1000",
        "host.mlp.hidden=[2048,6]",
        "checkpoint.keep_best=true",
        "checkpoint.every_epochs=1000",
    ];
    Planted::with(&settings, Some(dir))
}

#[test]
fn a_seed_to_blame_goes_once_where_the_run_goes_back_to_the_end_of_an_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = on_disk(dir.path());
    let seed = run.until(in_stage(SeedStage::Blending));
    let [end, next] = [1, 2].map(|epochs| run.end_of_epoch(epochs));
    run.noted.planted = Some((StepIndex(end + 3), Bad::Bias, run.run.seeds().inner().seed_parameters(seed).unwrap()));
    assert_eq!(run.run_to(Some(StepIndex(next + 3))), Outcome::Interrupted);
    assert_eq!((&*run.noted.to, &*run.noted.culprits), (&[end][..], &[seed.to_string()][..]));
    assert_eq!(run.noted.rates, [1.0], "a seed was to blame");
    // Without the checkpoint of that step the run goes back there once more, and the seed, which is in that state, goes again.
    let checkpoints = dir.path().read_dir().unwrap().map(|entry| entry.unwrap().path());
    std::fs::remove_dir_all(checkpoints.filter(|path| path.is_dir()).max().unwrap()).unwrap();
    let host = run.run.seeds().model().parameters()[0].clone();
    spoil(std::slice::from_ref(&host), Bad::Everywhere);
    run.finish();
    assert_eq!((run.noted.to[1], &run.noted.culprits[1]), (end, &format!("parameter `{}`", host.name)));
    assert_eq!((run.noted.rates[1], run.share_of_rate()), (0.5, 0.5));
    assert!(run.is_removed(seed));
}

#[test]
fn a_seed_to_blame_that_becomes_permanent_before_it_can_go_lowers_the_rate() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = on_disk(dir.path());
    let seed = run.until(in_stage(SeedStage::Holding));
    let end = run.end_of_epoch(1);
    run.noted.planted = Some((StepIndex(end + 3), Bad::Bias, run.run.seeds().inner().seed_parameters(seed).unwrap()));
    run.finish();
    assert_eq!((&*run.noted.to, &*run.noted.culprits), (&[end][..], &[seed.to_string()][..]));
    assert_eq!((&*run.noted.rates, run.share_of_rate()), (&[1.0][..], 0.5), "first it was to go");
    assert!(!run.is_removed(seed));
}

#[test]
fn of_two_seeds_that_make_the_loss_unusable_one_is_named_first() {
    let mut run = Planted::new(5);
    let seeds = run.until(|seeds| {
        let acting: Vec<SeedId> =
            seeds.iter().filter(|seed| seed.stage.acts_on_output()).map(|seed| seed.seed_id).collect();
        (acting.len() > 1).then_some(acting)
    });
    seeds.iter().for_each(|seed| run.spoil(*seed, Bad::Large));
    run.finish();
    assert_eq!(run.noted.culprits, [seeds[0].to_string()]);
}

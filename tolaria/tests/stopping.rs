//! When a run ends, which of its checkpoints is kept, and that neither changes what it learns.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use leyline::error::BoxError;
use leyline::id::{EpochIndex, StepIndex};
use leyline::region::Eager;
use tolaria::Error;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::checkpoint::{CheckpointStore, Snapshot, StdFs};
use tolaria::plain::{NoPolicy, NoSeeds, PlainModel};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{
    Checkpoints, EarlyStopConfig, Flow, Observer, Outcome, Parts, RunEvent, Splits, StepReport, TrainConfig, Trainer,
};

type PlainTrainer = Trainer<NoSeeds<PlainModel>, NoPolicy>;

const STEPS_PER_EPOCH: u64 = 5;

fn nonzero(n: u64) -> Option<NonZeroU64> {
    NonZeroU64::new(n)
}

/// What a run is told beside its data and its network.
#[derive(Debug, Clone, Default)]
struct Job {
    num_epochs: u64,
    max_steps: Option<NonZeroU64>,
    eval_every_steps: Option<NonZeroU64>,
    early_stop: Option<EarlyStopConfig>,
    every_steps: Option<NonZeroU64>,
    /// Whether checkpoints are waited for.
    waits: bool,
    /// Whether every label of the training data is wrong, so that the network gets worse.
    is_misled: bool,
}

/// Every knob on.
fn all_knobs() -> Job {
    let early_stop = EarlyStopConfig { min_delta: 1e-3, ..EarlyStopConfig::new(NonZeroU64::new(90).unwrap()) };
    Job {
        num_epochs: 4,
        max_steps: nonzero(18),
        eval_every_steps: nonzero(2),
        early_stop: Some(early_stop),
        every_steps: nonzero(3),
        waits: false,
        is_misled: false,
    }
}

/// Points whose class the first feature tells, but for every fifth in training.
fn points(count: u32, turned: u32) -> Dataset {
    let value = |i: u32| if i.is_multiple_of(2) { (i % 9) as f32 / 9.0 - 0.5 } else { (i / 2 % 2) as f32 - 0.5 };
    let inputs = Tensor::from_iter((0..count * 2).map(|i| value(i + 3)), &Device::Cpu).unwrap();
    let labels = (0..count).map(|i| if turned > 0 && i % turned == 0 { 1 - i % 2 } else { i % 2 });
    let targets = Tensor::from_iter(labels, &Device::Cpu).unwrap();
    Dataset::new(inputs.reshape((count as usize, 2)).unwrap(), targets).unwrap()
}

fn trainer(job: &Job, dir: Option<&Path>) -> PlainTrainer {
    let weight = Var::zeros((2, 2), DType::F32, &Device::Cpu).unwrap();
    let named = vec![("weight".to_owned(), weight.clone())];
    let model = PlainModel::new(named, move |x: &Tensor| x.matmul(&weight)).unwrap();
    let config = TrainConfig {
        batch: BatchConfig { batch_size: NonZeroUsize::new(4).unwrap(), microbatches_per_step: NonZeroUsize::MIN },
        eval_every_steps: job.eval_every_steps,
        early_stop: job.early_stop.clone(),
        ..TrainConfig::default()
    };
    let held_out = points(8, 0);
    let open = |dir: &Path| CheckpointStore::open(dir, NonZeroUsize::MIN, Arc::new(StdFs)).unwrap();
    let with_steps =
        |store| Checkpoints { every_steps: job.every_steps, in_background: !job.waits, ..Checkpoints::new(store) };
    let parts = Parts {
        num_epochs: job.num_epochs,
        max_steps: job.max_steps,
        checkpoints: dir.map(|dir| with_steps(open(dir))),
        ..Parts::plain(
            Classification::new(2),
            model,
            Splits {
                train: points(20, if job.is_misled { 1 } else { 5 }),
                validation: held_out.clone(),
                test: held_out,
            },
        )
    };
    Trainer::new(config, parts).unwrap()
}

/// Keeps what comes, without what a clock says, and stops after a step.
#[derive(Debug, Default)]
struct Seen {
    stop_after: Option<u64>,
    epochs: Vec<EpochReport>,
    /// What the speed of each epoch says of its samples.
    samples: Vec<f64>,
    steps: Vec<(u64, u64, f64, Option<f64>)>,
    events: Vec<String>,
}

impl Observer for Seen {
    fn step(&mut self, report: &StepReport<'_>) -> Flow {
        let loss = report.so_far().map(|so_far| so_far.loss);
        self.steps.push((report.step.0, report.step_of_epoch, report.learning_rate, loss));
        if Some(report.step.0) == self.stop_after { Flow::Stop } else { Flow::Continue }
    }

    fn event(&mut self, event: &RunEvent<'_>) {
        self.events.push(match event {
            RunEvent::Evaluated(evaluation) => format!("evaluated {}", evaluation.step),
            RunEvent::Best(best) => format!("best {} {}", best.epoch, best.step),
            RunEvent::CheckpointWritten { step, is_best, .. } => {
                format!("written {step}{}", ["", " best"][usize::from(*is_best)])
            }
            RunEvent::CheckpointFailed { .. } => "failed".to_owned(),
            RunEvent::RolledBack { from, to, .. } => format!("back from {from} to {to}"),
            RunEvent::Emergency { level, .. } => format!("level {level}"),
            RunEvent::Ended { outcome, .. } => format!("ended {outcome:?}"),
        });
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        self.samples.push((report.samples_per_s * report.wall_s).round());
        self.epochs.push(EpochReport { wall_s: 0.0, samples_per_s: 0.0, ..report.clone() });
        Ok(())
    }
}

/// Everything of a snapshot but when it was taken; bits of tensors.
#[track_caller]
fn assert_same(found: &Snapshot, expected: &Snapshot, context: &str) {
    assert_eq!(found.components.keys().collect::<Vec<_>>(), expected.components.keys().collect::<Vec<_>>());
    for (name, state) in &expected.components {
        assert_eq!(found.components[name].json, state.json, "{context}: {name}");
        assert_eq!(bits(found, name), bits(expected, name), "{context}: {name}");
    }
}

#[expect(clippy::disallowed_methods, reason = "a test compares elements on the host")]
fn bits(snapshot: &Snapshot, component: &str) -> Vec<(String, Vec<u32>)> {
    let of = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let tensors = &snapshot.components[component].tensors;
    tensors.iter().map(|(name, tensor)| (name.clone(), of(tensor).into_iter().map(f32::to_bits).collect())).collect()
}

#[test]
fn knobs_of_looking_and_keeping_change_no_bit_of_what_is_learned() {
    let mut eager = Eager::acquire().unwrap();
    let plain = Job { num_epochs: 4, max_steps: nonzero(18), ..Job::default() };
    let mut expected = trainer(&plain, None);
    assert_eq!(expected.run(&mut eager, &mut Seen::default()).unwrap(), Outcome::MaxSteps);
    let expected = expected.snapshot(&eager).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut knobs = trainer(&all_knobs(), Some(dir.path()));
    assert_eq!(knobs.run(&mut eager, &mut Seen::default()).unwrap(), Outcome::MaxSteps);
    let found = knobs.snapshot(&eager).unwrap();
    for component in ["seeds", "optimizer", "policy"] {
        assert_eq!(bits(&found, component), bits(&expected, component), "{component}");
    }
}

#[test]
fn a_run_with_every_knob_on_is_interrupted_anywhere_and_goes_on_bit_for_bit() {
    let mut eager = Eager::acquire().unwrap();
    interrupt_anywhere(&mut eager, &all_knobs(), &[1, 2, 3, 4, 5, 6, 9, 10, 13, 17], Outcome::MaxSteps);
    // The last step ends an epoch as well: the epoch is still to be ended.
    interrupt_anywhere(&mut eager, &Job { max_steps: nonzero(10), ..all_knobs() }, &[5, 9, 10], Outcome::MaxSteps);
    interrupt_anywhere(&mut eager, &Job { max_steps: nonzero(20), ..all_knobs() }, &[5, 19, 20], Outcome::Completed);
}

/// Interrupts runs of a job after these steps: they go on as if they had not been.
#[track_caller]
fn interrupt_anywhere(eager: &mut Eager, job: &Job, stops: &[u64], outcome: Outcome) {
    let whole_dir = tempfile::tempdir().unwrap();
    let (mut whole, mut seen) = (trainer(job, Some(whole_dir.path())), Seen::default());
    assert_eq!(whole.run(eager, &mut seen).unwrap(), outcome);
    let expected = whole.snapshot(eager).unwrap();
    for &stop in stops {
        let dir = tempfile::tempdir().unwrap();
        let mut first = Seen { stop_after: Some(stop), ..Seen::default() };
        let mut interrupted = trainer(job, Some(dir.path()));
        assert_eq!(interrupted.run(eager, &mut first).unwrap(), Outcome::Interrupted, "{stop}");
        drop(interrupted);
        let (mut resumed, mut second) = (trainer(job, Some(dir.path())), Seen::default());
        assert_eq!(resumed.resume(eager).unwrap().unwrap().step, StepIndex(stop));
        assert_eq!(resumed.run(eager, &mut second).unwrap(), outcome, "{stop}");
        assert_same(&resumed.snapshot(eager).unwrap(), &expected, &format!("stopped after step {stop}"));
        assert_eq!([first.epochs, second.epochs].concat(), seen.epochs, "stopped after step {stop}");
        assert_eq!([first.steps, second.steps].concat(), seen.steps, "stopped after step {stop}");
        assert_eq!(resumed.best(), whole.best());
        let best =
            |dir: &Path| CheckpointStore::open(dir, NonZeroUsize::MIN, Arc::new(StdFs)).unwrap().load_pinned().unwrap();
        drop(resumed);
        let (found, kept) = (best(dir.path()).unwrap(), whole.best().unwrap());
        assert_eq!(found.snapshot.meta.step, kept.step, "stopped after step {stop}");
    }
}

#[test]
fn the_speed_of_an_epoch_that_is_taken_up_in_the_middle_is_of_the_samples_since() {
    let (mut eager, dir) = (Eager::acquire().unwrap(), tempfile::tempdir().unwrap());
    let job = Job { num_epochs: 2, ..Job::default() };
    let mut first = Seen { stop_after: Some(3), ..Seen::default() };
    assert_eq!(trainer(&job, Some(dir.path())).run(&mut eager, &mut first).unwrap(), Outcome::Interrupted);
    let (mut resumed, mut second) = (trainer(&job, Some(dir.path())), Seen::default());
    resumed.resume(&mut eager).unwrap().unwrap();
    assert_eq!(resumed.run(&mut eager, &mut second).unwrap(), Outcome::Completed);
    assert_eq!(second.samples, [8.0, 20.0], "two steps of four samples, then a whole epoch");
    assert_eq!(second.epochs[0].train.as_ref().unwrap().num_samples, 20, "its loss is that of all of them");
}

#[test]
fn what_is_due_happens_at_its_step_and_the_last_step_has_everything() {
    let mut eager = Eager::acquire().unwrap();
    let (dir, mut seen) = (tempfile::tempdir().unwrap(), Seen::default());
    let job = Job {
        num_epochs: 9,
        max_steps: nonzero(7),
        eval_every_steps: nonzero(3),
        every_steps: nonzero(4),
        waits: true,
        ..Job::default()
    };
    let mut run = trainer(&job, Some(dir.path()));
    assert_eq!(run.num_epochs(), 2, "the policy and the display are told of so many");
    assert_eq!(run.run(&mut eager, &mut seen).unwrap(), Outcome::MaxSteps);
    assert_eq!(run.end_reason().unwrap(), "stopped at `max_steps`: 7 optimizer steps were taken");
    let is_kept = |event: &&String| !event.starts_with("best") && !event.ends_with("best");
    let events: Vec<&str> = seen.events.iter().filter(is_kept).map(String::as_str).collect();
    // The end of the epoch evaluates by itself, and step 7 is no multiple of anything.
    let expected =
        ["evaluated 3", "written 4", "written 5", "evaluated 6", "evaluated 7", "written 7", "ended MaxSteps"];
    assert_eq!(events, expected);
    assert_eq!(run.progress(), (EpochIndex(1), StepIndex(7)));
    let of_epoch: Vec<u64> = seen.epochs[0].evaluations.iter().map(|evaluation| evaluation.step.0).collect();
    assert_eq!((seen.epochs.len(), of_epoch), (1, vec![3]));
    let (step, step_of_epoch, learning_rate, loss) = seen.steps[2];
    assert_eq!((step, step_of_epoch, learning_rate), (3, 3, 0.003));
    assert_eq!(loss, seen.epochs[0].evaluations[0].train_loss, "one sum, read twice");
    drop(run);

    // More steps go on in the middle of the epoch, and end where a run of so many ends.
    let more = Job { max_steps: nonzero(13), ..job.clone() };
    let mut resumed = trainer(&more, Some(dir.path()));
    assert_eq!(resumed.resume(&mut eager).unwrap().unwrap().step, StepIndex(7));
    assert_eq!(resumed.run(&mut eager, &mut Seen::default()).unwrap(), Outcome::MaxSteps);
    let mut whole = trainer(&more, None);
    assert_eq!(whole.run(&mut eager, &mut Seen::default()).unwrap(), Outcome::MaxSteps);
    let (found, expected) = (resumed.snapshot(&eager).unwrap(), whole.snapshot(&eager).unwrap());
    for component in ["seeds", "optimizer", "policy"] {
        assert_eq!(bits(&found, component), bits(&expected, component), "{component}");
    }
    drop(resumed);
    let mut fewer = trainer(&Job { max_steps: nonzero(12), ..job }, Some(dir.path()));
    let refused = fewer.resume(&mut eager).unwrap_err();
    assert!(matches!(&refused, Error::State { field: "trainer.step", .. }), "{refused}");
}

#[test]
fn a_run_that_gets_no_better_stops_and_its_best_network_can_be_had() {
    let mut eager = Eager::acquire().unwrap();
    let (dir, mut seen) = (tempfile::tempdir().unwrap(), Seen::default());
    let stop = EarlyStopConfig { min_delta: 0.01, ..EarlyStopConfig::new(NonZeroU64::new(2).unwrap()) };
    let job = Job { num_epochs: 500, early_stop: Some(stop), ..Job::default() };
    let mut run = trainer(&job, Some(dir.path()));
    assert_eq!(run.run(&mut eager, &mut seen).unwrap(), Outcome::EarlyStopped);
    let losses: Vec<f64> = seen.epochs.iter().map(|epoch| epoch.validation.loss).collect();
    let num = losses.len();
    assert!((3..500).contains(&num), "{losses:?}");
    assert!(losses[num - 3] - losses[num - 1] <= 0.02, "two epochs without an improvement: {losses:?}");
    let reason = run.end_reason().unwrap();
    let expected = "stopped early: validation loss did not improve by more than 0.01 in 2 epochs over the ";
    assert!(reason.starts_with(expected), "{reason}");
    assert_eq!(seen.events.last().unwrap(), "ended EarlyStopped");

    let best = run.best().unwrap();
    let lowest = losses.iter().copied().fold(f64::INFINITY, f64::min);
    let first = losses.iter().position(|loss| loss.to_bits() == lowest.to_bits()).unwrap();
    assert_eq!((best.loss, best.epoch), (lowest, EpochIndex(first as u64 + 1)));
    assert_eq!(best.step.0, best.epoch.0 * STEPS_PER_EPOCH);
    drop(run);

    // Taken up again it is over already; more patience goes on.
    let (mut again, mut nothing) = (trainer(&job, Some(dir.path())), Seen::default());
    again.resume(&mut eager).unwrap().unwrap();
    assert_eq!(again.run(&mut eager, &mut nothing).unwrap(), Outcome::EarlyStopped);
    assert!(nothing.steps.is_empty() && nothing.epochs.is_empty());
    // The test data are the validation data here.
    assert_eq!(again.restore_best(&mut eager).unwrap().unwrap().step, best.step);
    assert_eq!(again.test(&eager).unwrap().score.loss.to_bits(), best.loss.to_bits());
    drop(again);
    let patient = EarlyStopConfig::new(NonZeroU64::new(400).unwrap());
    let mut further = trainer(&Job { num_epochs: num as u64 + 1, early_stop: Some(patient), ..job }, Some(dir.path()));
    further.resume(&mut eager).unwrap().unwrap();
    assert_eq!(further.run(&mut eager, &mut Seen::default()).unwrap(), Outcome::Completed);
    assert_eq!(further.end_reason(), None);
}

#[test]
fn the_best_checkpoint_stays_when_later_ones_are_worse() {
    let mut eager = Eager::acquire().unwrap();
    let (dir, mut seen) = (tempfile::tempdir().unwrap(), Seen::default());
    let job = Job { num_epochs: 6, eval_every_steps: nonzero(1), is_misled: true, ..Job::default() };
    let mut run = trainer(&job, Some(dir.path()));
    assert_eq!(run.run(&mut eager, &mut seen).unwrap(), Outcome::Completed);
    let best = run.best().unwrap();
    let in_epochs =
        seen.epochs.iter().flat_map(|epoch| epoch.evaluations.iter().map(|at| (at.step, at.validation.loss)));
    let at_ends = seen.epochs.iter().map(|epoch| (epoch.step, epoch.validation.loss));
    let all: Vec<(StepIndex, f64)> = in_epochs.chain(at_ends).collect();
    assert_eq!(all.len() as u64, 6 * STEPS_PER_EPOCH);
    assert!(
        all.iter()
            .all(|(step, loss)| *loss > best.loss || (loss.to_bits() == best.loss.to_bits() && *step >= best.step))
    );
    assert_eq!((best.epoch, best.step), (EpochIndex(1), StepIndex(1)), "the middle of an epoch, five epochs ago");
    assert_eq!(run.restore_best(&mut eager).unwrap().unwrap().step, best.step);
    assert_eq!(run.test(&eager).unwrap().score.loss.to_bits(), best.loss.to_bits());
}

//! Checkpoints of a trainer: what happens when they cannot be written, and which of them a trainer takes up.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use esper_disk::testkit::{Failure, FaultFs, Which};
use leyline::error::BoxError;
use leyline::id::{EpochIndex, RunId, StepIndex};
use leyline::region::Eager;
use leyline::telemetry::NullRecorder;
use leyline_testkit::clock::ManualClock;
use tolaria::Error;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::checkpoint::{CheckpointStore, Fs, StdFs};
use tolaria::optim::{OptimizerConfig, ScheduleConfig};
use tolaria::plain::{NoPolicy, NoSeeds, PlainModel};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Checkpoints, Flow, NullObserver, Observer, Outcome, Parts, Splits, TrainConfig, Trainer};

type PlainTrainer = Trainer<NoSeeds<PlainModel>, NoPolicy>;

/// Everything that a trainer of these tests may differ in.
#[derive(Debug, Clone)]
struct Job {
    seed: u64,
    batch_size: usize,
    microbatches_per_step: usize,
    num_epochs: u64,
    num_train: u32,
    num_validation: u32,
    num_test: u32,
    num_features: usize,
    num_classes: usize,
    /// Added to every label.
    turned: u32,
}

const JOB: Job = Job {
    seed: 0,
    batch_size: 4,
    microbatches_per_step: 2,
    num_epochs: 3,
    num_train: 26,
    num_validation: 8,
    num_test: 8,
    num_features: 2,
    num_classes: 3,
    turned: 0,
};
const STEPS_PER_EPOCH: u64 = 4;

impl Job {
    fn samples(&self, count: u32) -> Dataset {
        let width = u32::try_from(self.num_features).unwrap();
        let inputs = Tensor::from_iter((0..count * width).map(|i| (i % 7) as f32 - 3.0), &Device::Cpu).unwrap();
        let inputs = inputs.reshape((count as usize, self.num_features)).unwrap();
        let targets = Tensor::from_iter((0..count).map(|i| (i + self.turned) % 3), &Device::Cpu).unwrap();
        Dataset::new(inputs, targets).unwrap()
    }

    fn trainer(&self, dir: &Path, fs: impl Fs + 'static) -> PlainTrainer {
        let count = |n| NonZeroUsize::new(n).unwrap();
        let weight = Var::zeros((self.num_features, self.num_classes), DType::F32, &Device::Cpu).unwrap();
        let named = vec![("weight".to_owned(), weight.clone())];
        let config = TrainConfig {
            batch: BatchConfig {
                batch_size: count(self.batch_size),
                microbatches_per_step: count(self.microbatches_per_step),
            },
            optimizer: OptimizerConfig::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 },
            schedule: ScheduleConfig::constant(0.1),
            clip_norm: None,
            eval_batch_size: count(8),
            conflict_warn: 1.0,
            ..TrainConfig::default()
        };
        let parts = Parts {
            run_id: RunId::new("run-1").unwrap(),
            seed: self.seed,
            num_epochs: self.num_epochs,
            max_steps: None,
            device: Device::Cpu,
            data: Splits {
                train: self.samples(self.num_train),
                validation: self.samples(self.num_validation),
                test: self.samples(self.num_test),
            },
            task: Arc::new(Classification::new(self.num_classes)),
            seeds: NoSeeds::new(PlainModel::new(named, move |x: &Tensor| x.matmul(&weight)).unwrap()),
            policy: NoPolicy,
            checkpoints: Some(Checkpoints {
                store: CheckpointStore::open(dir, NonZeroUsize::MIN, Arc::new(fs)).unwrap(),
                every_epochs: NonZeroU64::MIN,
                every_steps: None,
                keep_best: false,
                config_digest: String::new(),
            }),
            recorder: Arc::new(NullRecorder),
            clock: Arc::new(ManualClock::default()),
        };
        Trainer::new(config, parts).unwrap()
    }
}

/// Stops after a step.
#[derive(Debug)]
struct StopAfter(u64);

impl Observer for StopAfter {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        if step.0 == self.0 { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

/// A disk on which one save of a checkpoint fails, counted from 0.
fn failing_disk(save: u64) -> FaultFs {
    let which = Which::Named("create_dir tmp-#".to_owned(), usize::try_from(save).unwrap());
    FaultFs::failing_at(Arc::new(StdFs), Failure::Once, which)
}

/// An error with everything below it.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[test]
fn the_last_checkpoint_must_be_written_and_any_other_may_fail() {
    let mut eager = Eager::acquire().unwrap();
    for failing in 0..JOB.num_epochs {
        let dir = tempfile::tempdir().unwrap();
        let mut trainer = JOB.trainer(dir.path(), failing_disk(failing));
        let outcome = trainer.run(&mut eager, &mut NullObserver);
        if failing + 1 < JOB.num_epochs {
            assert_eq!(outcome.unwrap(), Outcome::Completed, "checkpoint {failing}");
            continue;
        }
        let text = chain(&outcome.unwrap_err());
        let path = dir.path().join("tmp-00000003").display().to_string();
        assert!(text.contains(&path) && text.contains("injected"), "{text}");
        // What was durable before still is, and goes on.
        drop(trainer);
        let mut again = JOB.trainer(dir.path(), StdFs);
        assert_eq!(again.resume(&mut eager).unwrap().unwrap().epoch, EpochIndex(JOB.num_epochs - 1));
        assert_eq!(again.run(&mut eager, &mut NullObserver).unwrap(), Outcome::Completed);
    }
}

/// A folder with a checkpoint of [`JOB`], taken after a step.
fn stopped_after(step: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let outcome = JOB.trainer(dir.path(), StdFs).run(&mut Eager::acquire().unwrap(), &mut StopAfter(step));
    assert_eq!(outcome.unwrap(), Outcome::Interrupted);
    dir
}

#[track_caller]
fn check_refused(job: &Job, field: &str, saved: &str, given: &str) {
    let dir = stopped_after(STEPS_PER_EPOCH + 1);
    let mut trainer = job.trainer(dir.path(), StdFs);
    let before = trainer.seeds().model_values();
    let error = trainer.resume(&mut Eager::acquire().unwrap()).unwrap_err();
    assert!(matches!(&error, Error::State { field: found, .. } if *found == field), "{field}: {error}");
    let text = error.to_string();
    assert!(text.contains(saved) && text.contains(given), "{field}: {text}");
    assert_eq!(trainer.seeds().model_values(), before, "{field}: something was restored");
    assert_eq!(trainer.progress(), (EpochIndex(0), StepIndex(0)), "{field}");
}

trait ModelValues {
    fn model_values(&self) -> Vec<f32>;
}

impl ModelValues for NoSeeds<PlainModel> {
    fn model_values(&self) -> Vec<f32> {
        use leyline::model::TrainableModel as _;
        use leyline::seed::SeedManager as _;
        leyline_testkit::values(self.model().parameters()[0].var.as_tensor()).unwrap()
    }
}

#[test]
fn a_checkpoint_is_taken_up_by_the_run_that_wrote_it_and_by_no_other() {
    let dir = stopped_after(STEPS_PER_EPOCH + 1);
    let resumed = JOB.trainer(dir.path(), StdFs).resume(&mut Eager::acquire().unwrap()).unwrap().unwrap();
    assert_eq!((resumed.step, resumed.is_compared), (StepIndex(STEPS_PER_EPOCH + 1), true));

    check_refused(&Job { seed: 9, ..JOB }, "trainer.seed", "0", "9");
    check_refused(&Job { batch_size: 5, ..JOB }, "trainer.batch_size", "4", "5");
    check_refused(&Job { microbatches_per_step: 3, ..JOB }, "trainer.microbatches_per_step", "2", "3");
    check_refused(&Job { num_train: 25, ..JOB }, "trainer.num_train", "26", "25");
    check_refused(&Job { num_validation: 9, ..JOB }, "trainer.num_validation", "8", "9");
    check_refused(&Job { num_test: 7, ..JOB }, "trainer.num_test", "8", "7");
    check_refused(&Job { num_features: 3, ..JOB }, "trainer.sample_shape", "[2]", "[3]");
    check_refused(&Job { num_classes: 4, ..JOB }, "trainer.task", "classification of 3", "classification of 4");
    check_refused(&Job { turned: 1, ..JOB }, "trainer.train_labels", "", "");
    // The second epoch has begun.
    check_refused(&Job { num_epochs: 1, ..JOB }, "trainer.epoch", "2", "1");
}

#[test]
fn a_run_can_be_made_longer_but_not_shorter_than_it_is() {
    for (step, num_epochs, is_accepted) in [(8, 2, true), (8, 1, false), (9, 2, false), (9, 3, true), (9, 30, true)] {
        // A stop after the last step of an epoch comes before its end.
        let dir = stopped_after(step);
        let resumed = Job { num_epochs, ..JOB }.trainer(dir.path(), StdFs).resume(&mut Eager::acquire().unwrap());
        assert_eq!(resumed.is_ok(), is_accepted, "step {step}, {num_epochs} epochs: {resumed:?}");
    }
}

#[test]
fn a_checkpoint_that_does_not_say_what_it_was_trained_with_is_taken_up_and_told_apart() {
    let dir = stopped_after(STEPS_PER_EPOCH + 1);
    let mut store = CheckpointStore::open(dir.path(), NonZeroUsize::MIN, Arc::new(StdFs)).unwrap();
    let mut snapshot = store.load_latest().unwrap().unwrap().snapshot;
    let trainer = snapshot.components.get_mut("trainer").unwrap();
    let mut document: serde_json::Value = serde_json::from_str(&trainer.json).unwrap();
    document.as_object_mut().unwrap().remove("setup").expect("a new checkpoint says it");
    trainer.json = document.to_string();
    store.save(&snapshot).unwrap();
    drop(store);
    let mut eager = Eager::acquire().unwrap();
    let mut trainer = JOB.trainer(dir.path(), StdFs);
    assert!(!trainer.resume(&mut eager).unwrap().unwrap().is_compared);
    assert_eq!(trainer.run(&mut eager, &mut NullObserver).unwrap(), Outcome::Completed);
}

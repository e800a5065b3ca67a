//! Checkpoints of a trainer: what happens when they cannot be written, and which of them a trainer takes up.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod job;

use std::collections::BTreeMap;
use std::io;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leyline::error::BoxError;
use leyline::id::{EpochIndex, StepIndex};
use leyline::region::Eager;
use leyline_testkit::recording_recorder::RecordingRecorder;
use tolaria::Error;
use tolaria::checkpoint::{CheckpointReader, CheckpointStore, StdFs};
use tolaria::plain::{NoSeeds, PlainModel};
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Flow, NullObserver, Observer, Outcome, RunEvent, Tier};

use job::{Disk, Gate, JOB, Job, STEPS_PER_EPOCH, StopAfter};

/// An error with everything below it.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[test]
fn the_last_checkpoint_must_be_written_and_any_other_may_fail() {
    let mut eager = Eager::acquire().unwrap();
    for failing in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let mut trainer = JOB.trainer(dir.path(), Disk::full_at(failing..failing + 1));
        let outcome = trainer.run(&mut eager, &mut NullObserver);
        let (num_failed, error) = trainer.failed_checkpoints().unwrap();
        assert!(num_failed == 1 && error.contains("cannot create `"), "{error}");
        if failing + 1 < 3 {
            assert_eq!(outcome.unwrap(), Outcome::Completed, "checkpoint {failing}");
            continue;
        }
        let text = chain(&outcome.unwrap_err());
        let path = dir.path().join("tmp-00000003").display().to_string();
        let why = io::Error::from(io::ErrorKind::StorageFull).to_string();
        assert!(text.contains(&path) && text.contains(&why), "{text}");
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

/// State and tensors of every generation, as bytes, by the step that it holds.
fn files(dir: &Path) -> BTreeMap<u64, [Vec<u8>; 2]> {
    let reader = CheckpointReader::new(dir, Arc::new(StdFs));
    let of = |generation: tolaria::checkpoint::Generation| {
        let step = reader.verify(generation).unwrap().step.0;
        let read = |name| std::fs::read(dir.join(generation.directory_name()).join(name)).unwrap();
        (step, ["state.json", "tensors.safetensors"].map(read))
    };
    reader.list().unwrap().into_iter().map(of).collect()
}

#[test]
fn what_is_written_beside_training_has_the_bytes_of_what_is_waited_for() {
    let mut eager = Eager::acquire().unwrap();
    let job = Job { num_epochs: 12, every_steps: NonZeroU64::new(1), keep_best: true, ..JOB };
    let run = |job: &Job, eager: &mut Eager| {
        let dir = tempfile::tempdir().unwrap();
        let mut trainer = job.trainer(dir.path(), StdFs);
        assert_eq!(trainer.run(eager, &mut NullObserver).unwrap(), Outcome::Completed);
        drop(trainer);
        (files(dir.path()), dir)
    };
    let (expected, _) = run(&Job { waits: true, ..job.clone() }, &mut eager);
    assert_eq!(expected.len(), 48, "one after every step");
    let (found, dir) = run(&job, &mut eager);
    assert!((12..=48).contains(&found.len()), "the end of every epoch, at least");
    for (step, files) in &found {
        assert!(files == &expected[step], "step {step}");
    }
    assert!(found.contains_key(&48));
    // And goes on from there.
    let mut longer = Job { num_epochs: 13, ..job }.trainer(dir.path(), StdFs);
    assert_eq!(longer.resume(&mut eager).unwrap().unwrap().step, StepIndex(48));
}

/// Opens the gate of a disk after a step, and keeps what it is told.
#[derive(Debug)]
struct Opens {
    gate: Arc<Gate>,
    after: u64,
    events: Vec<String>,
}

impl Observer for Opens {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        if step.0 == self.after {
            self.gate.set(false);
        }
        Flow::Continue
    }

    fn event(&mut self, event: &RunEvent<'_>) {
        match event {
            RunEvent::CheckpointWritten { step, is_best, .. } => {
                self.events.push(format!("{step}{}", ["", " best"][usize::from(*is_best)]));
            }
            RunEvent::CheckpointFailed { error } => self.events.push((*error).to_owned()),
            RunEvent::Ended { .. } => self.events.push("ended".to_owned()),
            _ => {}
        }
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

#[test]
fn a_disk_that_stands_still_does_not_stop_training_and_what_is_left_out_is_counted() {
    let mut eager = Eager::acquire().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    gate.set(true);
    let recorder = Arc::new(RecordingRecorder::new());
    let job = Job { num_train: 80, num_epochs: 1, every_steps: NonZeroU64::new(1), ..JOB };
    let disk = Disk { gate: Arc::clone(&gate), ..Disk::default() };
    let mut trainer = job.recorded(dir.path(), disk, recorder.clone());
    let value = |name: &str| recorder.gauge_value(name, &[]);
    assert_eq!(value("tolaria.checkpoint.in_flight_bytes"), Some(0.0));
    // Ten steps; the first checkpoint is under way from the first to the seventh.
    let mut opens = Opens { gate, after: 7, events: Vec::new() };
    assert_eq!(trainer.run(&mut eager, &mut opens).unwrap(), Outcome::Completed);
    assert_eq!((opens.events.first().unwrap().as_str(), opens.events.last().unwrap().as_str()), ("1", "ended"));
    assert_eq!(opens.events[opens.events.len() - 2], "10");
    let counted = |name: &str| recorder.counter_value(name, &[]).unwrap();
    let (written, skipped) = (counted("tolaria.checkpoint.saves_total"), counted("tolaria.checkpoint.skipped_total"));
    assert!(skipped >= 6, "steps 2 to 7");
    assert_eq!(written + skipped, 10);
    assert_eq!(counted("tolaria.checkpoint.save_failures_total"), 0);
    assert_eq!(value("tolaria.checkpoint.in_flight_bytes"), Some(0.0));
    assert!(counted("tolaria.checkpoint.bytes_total") > 0);
    assert_eq!(trainer.failed_checkpoints(), None);
    assert_eq!(files(dir.path()).len() as u64, written);
}

/// Opens the gate of a disk after step 13, and gives it time until the first checkpoint is told of.
#[derive(Debug)]
struct Slow {
    gate: Arc<Gate>,
    recorder: Arc<RecordingRecorder>,
    last: u64,
    /// Checkpoints, the steps after which they were told, and how many steps were at risk then.
    told: Vec<(u64, u64, Option<f64>)>,
}

impl Slow {
    fn at_risk(&self) -> Option<f64> {
        self.recorder.gauge_value("tolaria.checkpoint.steps_at_risk", &[])
    }
}

impl Observer for Slow {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        self.last = step.0;
        if self.told.is_empty() {
            assert_eq!(self.at_risk(), Some(step.0 as f64), "nothing is on the disk yet");
        }
        if step.0 >= 13 && self.told.is_empty() {
            self.gate.set(false);
            std::thread::sleep(Duration::from_millis(100));
        }
        Flow::Continue
    }

    fn event(&mut self, event: &RunEvent<'_>) {
        if let RunEvent::CheckpointWritten { step, .. } = event {
            self.told.push((step.0, self.last + 1, self.at_risk()));
        }
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

#[test]
fn a_checkpoint_that_was_due_while_the_disk_stood_still_follows_at_the_first_step_after() {
    let mut eager = Eager::acquire().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (gate, recorder) = (Arc::new(Gate::default()), Arc::new(RecordingRecorder::new()));
    gate.set(true);
    // Thirty steps, checkpoints due at 4, 8, …; that of step 4 is under way until after step 13.
    let job = Job { num_train: 240, num_epochs: 1, every_steps: NonZeroU64::new(4), ..JOB };
    let disk = Disk { gate: Arc::clone(&gate), ..Disk::default() };
    let mut trainer = job.recorded(dir.path(), disk, recorder.clone());
    let mut slow = Slow { gate, recorder, last: 0, told: Vec::new() };
    assert_eq!(trainer.run(&mut eager, &mut slow).unwrap(), Outcome::Completed);
    let (written, told_at, at_risk) = slow.told[0];
    assert_eq!((written, at_risk), (4, Some((told_at - 4) as f64)));
    assert_eq!(slow.told[1].0, told_at, "those of steps 8 and 12 are made up for");
    assert!(slow.recorder.counter_value("tolaria.checkpoint.skipped_total", &[]).unwrap() >= 2);
    assert_eq!(slow.at_risk(), Some(0.0), "the end of a run is on the disk");
}

/// Stops after a step, with how many were at risk at each.
struct Risk(Arc<RecordingRecorder>, u64, Vec<Option<f64>>);

impl Observer for Risk {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        self.2.push(self.0.gauge_value("tolaria.checkpoint.steps_at_risk", &[]));
        if step.0 == self.1 { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

#[test]
fn what_was_written_before_a_run_went_back_saves_no_step_that_it_takes_anew() {
    let mut eager = Eager::acquire().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let recorder = Arc::new(RecordingRecorder::new());
    let mut trainer = Job { num_train: 80, memory_mib: 1, ..JOB }.recorded(dir.path(), StdFs, recorder.clone());
    trainer.run(&mut eager, &mut StopAfter(6)).unwrap();
    assert_eq!(trainer.roll_back(&mut eager).unwrap().tier, Tier::Memory, "to step 0");
    let mut risk = Risk(recorder, 3, Vec::new());
    trainer.run(&mut eager, &mut risk).unwrap();
    assert_eq!(risk.2, [Some(1.0), Some(2.0), Some(3.0)], "the checkpoint is of step 6 of another way");
}

#[test]
fn a_disk_that_stays_full_is_told_of_once_and_so_is_its_end() {
    let mut eager = Eager::acquire().unwrap();
    for waits in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let recorder = Arc::new(RecordingRecorder::new());
        let job = Job { num_epochs: 6, waits, ..JOB };
        let mut trainer = job.recorded(dir.path(), Disk::full_at(1..4), recorder.clone());
        let mut seen = Opens { gate: Arc::default(), after: 0, events: Vec::new() };
        assert_eq!(trainer.run(&mut eager, &mut seen).unwrap(), Outcome::Completed);
        let told: Vec<&str> = seen.events.iter().map(|event| event.split('`').next().unwrap()).collect();
        assert_eq!(told, ["4", "the checkpoint store failed: cannot create ", "20", "24", "ended"], "{waits}");
        assert_eq!(recorder.counter_value("tolaria.checkpoint.save_failures_total", &[]), Some(3));
        let named = |name: &str| recorder.events_named(name).len();
        assert_eq!((named("tolaria.checkpoint_failed"), named("tolaria.checkpoints_resumed")), (1, 1));
        let (num, error) = trainer.failed_checkpoints().unwrap();
        assert!(num == 3 && error.contains(&io::Error::from(io::ErrorKind::StorageFull).to_string()), "{error}");
    }
}

#[test]
fn a_best_network_that_is_not_written_is_not_the_best_one() {
    let mut eager = Eager::acquire().unwrap();
    for waits in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let job = Job { num_epochs: 1, keep_best: true, waits, ..JOB };
        // The first save is that of the best evaluation, the second that of the end of the run.
        let mut trainer = job.trainer(dir.path(), Disk::full_at(0..1));
        assert_eq!(trainer.run(&mut eager, &mut NullObserver).unwrap(), Outcome::Completed);
        assert_eq!(trainer.best(), None);
        assert!(trainer.restore_best(&mut eager).unwrap().is_none());
    }
}

/// Opens the gate of a disk a little after a step, while the loop waits, and counts the evaluations that were the best.
#[derive(Debug)]
struct OpensLater {
    gate: Arc<Gate>,
    after: u64,
    num_best: usize,
}

impl Observer for OpensLater {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        if step.0 == self.after {
            let gate = Arc::clone(&self.gate);
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                gate.set(false);
            });
        }
        Flow::Continue
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }

    fn event(&mut self, event: &RunEvent<'_>) {
        self.num_best += usize::from(matches!(event, RunEvent::Best(_)));
    }
}

#[test]
fn a_best_network_that_is_not_written_while_the_next_one_waits_is_not_the_best_one() {
    let mut eager = Eager::acquire().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    gate.set(true);
    // Saves: best and end of the first epoch, best of the second, which waits for them, and the end of the run.
    let disk = Disk { gate: Arc::clone(&gate), ..Disk::full_at(0..3) };
    let mut trainer = Job { num_epochs: 2, keep_best: true, ..JOB }.trainer(dir.path(), disk);
    let mut opens = OpensLater { gate, after: 2 * STEPS_PER_EPOCH, num_best: 0 };
    assert_eq!(trainer.run(&mut eager, &mut opens).unwrap(), Outcome::Completed);
    assert_eq!((opens.num_best, trainer.failed_checkpoints().map(|(num, _)| num)), (2, Some(3)));
    assert_eq!(trainer.best(), None);
}

#[test]
fn what_is_being_written_is_waited_for_by_who_reads_and_by_the_end_of_the_trainer() {
    let mut eager = Eager::acquire().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    let job = Job { num_epochs: 2, every_steps: NonZeroU64::new(3), ..JOB };
    let disk = Disk { gate: Arc::clone(&gate), ..Disk::default() };
    let mut trainer = job.trainer(dir.path(), disk);
    // The error of the observer ends the run while the checkpoint of its third step waits for the disk.
    let mut fails = Fails { gate: Arc::clone(&gate), after: 3 };
    assert!(trainer.run(&mut eager, &mut fails).is_err());
    assert_eq!(trainer.resume(&mut eager).unwrap().unwrap().step, StepIndex(3));
    drop(trainer);
    assert_eq!(files(dir.path()).into_keys().collect::<Vec<_>>(), [3]);
}

/// Closes the gate of a disk before the checkpoint of a step; another thread opens it a little later, when the run has failed.
#[derive(Debug)]
struct Fails {
    gate: Arc<Gate>,
    after: u64,
}

impl Observer for Fails {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        if step.0 + 1 == self.after {
            self.gate.set(true);
            let gate = Arc::clone(&self.gate);
            std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(50));
                gate.set(false);
            });
        }
        Flow::Continue
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Err(BoxError::new(Error::NothingToRestore))
    }
}

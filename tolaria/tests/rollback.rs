//! Going back: the bits of a run that never left, or a trainer that is as it was.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use candle_core::{DType, Device, Tensor, Var};
use leyline::durable::{Durable, SavedState};
use leyline::error::{BoxError, ErrorType};
use leyline::id::StepIndex;
use leyline::policy::{Decision, Policy};
use leyline::region::{Eager, RegionError};
use leyline::state::SystemState;
use leyline_testkit::clock::ManualClock;
use leyline_testkit::recording_recorder::RecordingRecorder;
use tolaria::Error;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::checkpoint::{CheckpointStore, Snapshot, StdFs};
use tolaria::host_read::{HostReads, read_vec};
use tolaria::plain::{NoSeeds, PlainModel};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{
    Checkpoints, Flow, NullObserver, Observer, Outcome, Parts, RecoveryConfig, Splits, Tier, TrainConfig, Trainer,
};

/// Counts its decisions; to restore it takes as long as it is told.
#[derive(Debug)]
struct Counting {
    decisions: u64,
    clock: Arc<ManualClock>,
    takes_ms: Arc<AtomicU64>,
}

#[derive(Debug, thiserror::Error)]
enum CountingError {
    #[error("no count")]
    NoCount,
    #[error(transparent)]
    Region(#[from] RegionError),
}

impl leyline::error::Error for CountingError {
    fn kind(&self) -> leyline::error::ErrorKind {
        leyline::error::ErrorKind::Corrupt
    }
}

impl ErrorType for Counting {
    type Error = CountingError;
}

impl Durable for Counting {
    fn save(&self, eager: &Eager) -> Result<SavedState, CountingError> {
        eager.check()?;
        Ok(SavedState { json: self.decisions.to_string(), ..SavedState::default() })
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), CountingError> {
        eager.check()?;
        self.clock.advance(Duration::from_millis(self.takes_ms.load(Ordering::Relaxed)));
        self.decisions = saved.json.parse().map_err(|_| CountingError::NoCount)?;
        Ok(())
    }
}

impl Policy for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn decide(&mut self, _state: &SystemState) -> Result<Decision, CountingError> {
        self.decisions += 1;
        Ok(Decision::default())
    }
}

type Run = Trainer<NoSeeds<PlainModel>, Counting>;

struct World {
    trainer: Run,
    recorder: Arc<RecordingRecorder>,
    takes_ms: Arc<AtomicU64>,
}

/// Windows of two microbatches of three, the last one short.
const SAMPLES: u32 = 26;
const EPOCHS: u64 = 4;

fn data() -> Dataset {
    let inputs = (0..SAMPLES).flat_map(|i| [(i * 7 % 11) as f32 / 11.0 - 0.4, (i % 5) as f32 / 5.0]);
    let inputs = Tensor::from_iter(inputs, &Device::Cpu).unwrap().reshape((SAMPLES as usize, 2)).unwrap();
    Dataset::new(inputs, Tensor::from_iter((0..SAMPLES).map(|i| i % 2), &Device::Cpu).unwrap()).unwrap()
}

fn world(recovery: RecoveryConfig, dir: Option<&Path>) -> World {
    world_with(recovery, dir, 1)
}

/// With a parameter of so many elements that takes no part.
fn world_with(recovery: RecoveryConfig, dir: Option<&Path>, ballast: usize) -> World {
    let count = |n| NonZeroUsize::new(n).unwrap();
    let weight = Var::ones((2, 2), DType::F32, &Device::Cpu).unwrap();
    let ballast = Var::zeros(ballast, DType::F32, &Device::Cpu).unwrap();
    let named = vec![("weight".to_owned(), weight.clone()), ("ballast".to_owned(), ballast.clone())];
    let model =
        PlainModel::new(named, move |x: &Tensor| x.matmul(&weight)?.broadcast_add(&ballast.narrow(0, 0, 1)?.relu()?));
    let model = model.unwrap();
    let config = TrainConfig {
        batch: BatchConfig { batch_size: count(3), microbatches_per_step: count(2) },
        measure_conflicts: true,
        recovery,
        ..TrainConfig::default()
    };
    let (clock, takes_ms, recorder) =
        (Arc::new(ManualClock::default()), Arc::new(AtomicU64::new(0)), Arc::new(RecordingRecorder::new()));
    let policy = Counting { decisions: 0, clock: clock.clone(), takes_ms: Arc::clone(&takes_ms) };
    let splits = Splits { train: data(), validation: data(), test: data() };
    let store = |dir: &Path| CheckpointStore::open(dir, count(2), Arc::new(StdFs)).unwrap();
    let parts = Parts {
        num_epochs: EPOCHS,
        checkpoints: dir.map(|dir| Checkpoints::new(store(dir))),
        recorder: recorder.clone(),
        clock,
        ..Parts::new(Arc::new(Classification::new(2)), NoSeeds::new(model), policy, splits)
    };
    World { trainer: Trainer::new(config, parts).unwrap(), recorder, takes_ms }
}

fn in_memory() -> RecoveryConfig {
    RecoveryConfig { memory_mib: 1, ..RecoveryConfig::default() }
}

fn eager() -> Eager {
    Eager::acquire().unwrap()
}

struct StopAt(u64);

impl Observer for StopAt {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        if step.0 == self.0 { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

fn run_to(trainer: &mut Run, step: u64) {
    assert_eq!(trainer.run(&mut eager(), &mut StopAt(step)).unwrap(), Outcome::Interrupted);
}

/// All components: documents, and bits of tensors.
fn state(trainer: &mut Run) -> Vec<(String, String, Vec<u32>)> {
    let snapshot = trainer.snapshot(&eager()).unwrap();
    let bits = |tensor: &Tensor| read_vec(tensor, "test", &mut HostReads::default()).unwrap().into_iter();
    let of = |(name, state): (String, SavedState)| {
        (name, state.json, state.tensors.values().flat_map(bits).map(f32::to_bits).collect())
    };
    snapshot.components.into_iter().map(of).collect()
}

/// What the run comes to from here.
fn ended(trainer: &mut Run) -> Vec<(String, String, Vec<u32>)> {
    assert_eq!(trainer.run(&mut eager(), &mut NullObserver).unwrap(), Outcome::Completed);
    state(trainer)
}

#[test]
fn a_run_that_went_back_ends_with_the_bits_of_one_that_never_left() {
    let expected = ended(&mut world(in_memory(), None).trainer);
    // Within an epoch, across its end, over several, and to a start.
    for (kept, left) in [(1, 3), (3, 6), (5, 7), (4, 13), (10, 11)] {
        let World { mut trainer, recorder, .. } = world(in_memory(), None);
        run_to(&mut trainer, kept);
        assert!(trainer.keep_state(&eager()).unwrap());
        trainer.confirm_state();
        for _ in 0..2 {
            run_to(&mut trainer, left);
            let back = trainer.roll_back(&mut eager()).unwrap();
            assert_eq!((back.tier, back.from.0, back.to.0), (Tier::Memory, left, kept));
        }
        assert_eq!(ended(&mut trainer), expected, "from step {left} to {kept}");
        let counter = |name: &str| recorder.counter_value(&format!("tolaria.rollback.{name}"), &[]);
        // The other one is that of the start.
        assert_eq!(["snapshots_total", "fast_hits_total"].map(counter), [Some(2); 2]);
        assert_eq!(["fast_misses_total", "full_restores_total", "failures_total"].map(counter), [Some(0); 3]);
    }
}

#[test]
fn a_restore_that_fails_at_any_stage_leaves_the_trainer_as_it_was() {
    let expected = ended(&mut world(in_memory(), None).trainer);
    let shorter = |json: &str| json.replacen("\"device\":[", "\"device\":[1,", 1);
    type Damage<'a> = (&'a str, Box<dyn Fn(&mut Snapshot)>);
    let document = |name: &'static str, change: fn(&str) -> String| -> Box<dyn Fn(&mut Snapshot)> {
        Box::new(move |snapshot| {
            let state = snapshot.components.get_mut(name).unwrap();
            let changed = change(&state.json);
            assert_ne!(changed, state.json, "{name}");
            state.json = changed;
        })
    };
    let missing = |name: &'static str| -> Box<dyn Fn(&mut Snapshot)> {
        Box::new(move |snapshot| drop(snapshot.components.remove(name).unwrap()))
    };
    let damages: Vec<Damage<'_>> = vec![
        ("the trainer's document", document("trainer", |_| "{}".to_owned())),
        ("the optimizer's document", document("optimizer", |json| json.replace("adam_w", "sgd"))),
        (
            "the seed manager's tensors",
            Box::new(|snapshot| snapshot.components.get_mut("seeds").unwrap().tensors.clear()),
        ),
        ("the policy's document", document("policy", |_| "?".to_owned())),
        ("the sums", document("trainer", shorter)),
        ("no trainer", missing("trainer")),
        ("no optimizer", missing("optimizer")),
        ("no seed manager", missing("seeds")),
        ("no policy", missing("policy")),
    ];
    for (what, damage) in damages {
        let World { mut trainer, .. } = world(in_memory(), None);
        run_to(&mut trainer, 3);
        let mut snapshot = trainer.snapshot(&eager()).unwrap();
        run_to(&mut trainer, 7);
        let before = state(&mut trainer);
        damage(&mut snapshot);
        trainer.restore(&mut eager(), &snapshot).unwrap_err();
        assert_eq!(state(&mut trainer), before, "{what}");
        assert_eq!(ended(&mut trainer), expected, "{what}");
    }
}

#[test]
fn a_restore_that_finishes_late_is_discarded() {
    for (takes_ms, is_late) in [(10, false), (11, true)] {
        let recovery = RecoveryConfig { deadline_ms: NonZeroU64::new(10), ..in_memory() };
        let World { mut trainer, recorder, takes_ms: delay } = world(recovery, None);
        run_to(&mut trainer, 2);
        assert!(trainer.keep_state(&eager()).unwrap());
        trainer.confirm_state();
        run_to(&mut trainer, 4);
        let before = state(&mut trainer);
        delay.store(takes_ms, Ordering::Relaxed);
        let back = trainer.roll_back(&mut eager());
        let late = recorder.counter_value("tolaria.rollback.deadline_exceeded_total", &[]);
        if is_late {
            assert!(matches!(back, Err(Error::LateRestore)), "{back:?}");
            assert_eq!((state(&mut trainer), late), (before, Some(1)));
        } else {
            assert_eq!((back.unwrap().to.0, late), (2, Some(0)));
        }
    }
}

#[test]
fn without_a_state_in_memory_the_newest_checkpoint_comes_back() {
    let expected = ended(&mut world(RecoveryConfig::default(), None).trainer);
    let dir = tempfile::tempdir().unwrap();
    // Nothing is kept in memory where there is no budget.
    let World { mut trainer, recorder, .. } = world(RecoveryConfig::default(), Some(dir.path()));
    assert!(matches!(trainer.roll_back(&mut eager()), Err(Error::NothingToRestore)));
    run_to(&mut trainer, 3);
    assert!(!trainer.keep_state(&eager()).unwrap());
    trainer.confirm_state();
    let back = trainer.roll_back(&mut eager()).unwrap();
    assert_eq!((back.tier, back.to.0), (Tier::Disk, 3));
    assert_eq!(ended(&mut trainer), expected);
    let counter = |name: &str| recorder.counter_value(&format!("tolaria.rollback.{name}"), &[]);
    assert_eq!(
        ["fast_hits_total", "fast_misses_total", "full_restores_total"].map(counter),
        [Some(0), Some(2), Some(1)]
    );
}

#[test]
fn a_state_is_gone_back_to_only_once_it_is_known_to_be_good() {
    let World { mut trainer, .. } = world(in_memory(), None);
    run_to(&mut trainer, 2);
    assert!(trainer.keep_state(&eager()).unwrap());
    trainer.confirm_state();
    run_to(&mut trainer, 3);
    assert!(trainer.keep_state(&eager()).unwrap());
    run_to(&mut trainer, 4);
    assert_eq!(trainer.roll_back(&mut eager()).unwrap().to.0, 2);
}

#[test]
fn the_best_evaluation_stays_that_of_its_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let World { mut trainer, .. } = world(in_memory(), Some(dir.path()));
    run_to(&mut trainer, 3);
    assert!(trainer.keep_state(&eager()).unwrap());
    trainer.confirm_state();
    // Over the end of an epoch, whose evaluation is the first and so the best.
    run_to(&mut trainer, 7);
    let best = trainer.best().unwrap();
    assert_eq!(trainer.roll_back(&mut eager()).unwrap().to.0, 3);
    assert_eq!(trainer.best(), Some(best));
    assert_eq!(trainer.restore_best(&mut eager()).unwrap().unwrap().step, best.step);
}

#[test]
fn a_run_that_takes_up_another_state_does_not_go_back_to_what_it_left() {
    let World { mut trainer, .. } = world(in_memory(), None);
    run_to(&mut trainer, 3);
    let earlier = trainer.snapshot(&eager()).unwrap();
    run_to(&mut trainer, 7);
    assert!(trainer.keep_state(&eager()).unwrap());
    trainer.confirm_state();
    trainer.restore(&mut eager(), &earlier).unwrap();
    assert!(matches!(trainer.roll_back(&mut eager()), Err(Error::NothingToRestore)));
    run_to(&mut trainer, 4);
    assert_eq!(trainer.roll_back(&mut eager()).unwrap().to.0, 3, "the state that the run began with");
}

#[test]
fn a_budget_that_holds_no_two_states_is_tried_no_more_often_than_one_that_does() {
    let most = EPOCHS * 5 / 4 + 1 + EPOCHS;
    // Three numbers for each element: one state fits, none does, two do.
    for ballast in [60_000, 100_000, 1] {
        let recovery =
            RecoveryConfig { every_steps: NonZeroU64::new(4).unwrap(), max_skipped: NonZeroU64::MIN, ..in_memory() };
        let World { mut trainer, .. } = world_with(recovery, None, ballast);
        ended(&mut trainer);
        let looked = trainer.host_reads()["known good"];
        assert!(looked <= most, "{looked} times with {ballast} elements");
    }
}

#[test]
fn a_snapshot_whose_moments_do_not_fit_is_refused_and_changes_nothing() {
    let mut trainer = world(in_memory(), None).trainer;
    run_to(&mut trainer, 3);
    let mut snapshot = trainer.snapshot(&eager()).unwrap();
    run_to(&mut trainer, 5);
    let before = state(&mut trainer);
    let moments = snapshot.components.get_mut("optimizer").unwrap().tensors.get_mut("weight").unwrap();
    *moments = moments.to_dtype(DType::F64).unwrap();
    let error = trainer.restore(&mut eager(), &snapshot).unwrap_err().to_string();
    assert!(error.starts_with("optimizer state of `weight`"), "{error}");
    assert_eq!(state(&mut trainer), before);
}

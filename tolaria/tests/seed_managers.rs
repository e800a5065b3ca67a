//! What the trainer asks of a seed manager beside its steps: batches to look at, and parameters that it can train.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use leyline::batch::Batch;
use leyline::command::{Operation, Order};
use leyline::durable::{Durable, SavedState};
use leyline::error::{BoxError, Error as _, ErrorKind, ErrorType};
use leyline::id::{EpochIndex, RunId, SeedId, StepIndex};
use leyline::network::NetworkError;
use leyline::region::{Eager, RegionError, declare_recording};
use leyline::seed::{
    Applied, Attribution, Confirmation, Confirming, Costs, Evidence, SeedManager, SeedState, SlotState, Transition,
};
use leyline::telemetry::NullRecorder;
use leyline_testkit::clock::ManualClock;
use leyline_testkit::fake_seed_manager::FakeSeedManager;
use leyline_testkit::toy;
use leyline_testkit::values;
use tolaria::Error;
use tolaria::aggregate::ConflictResolution;
use tolaria::batch::{BatchConfig, Dataset, Sampler};
use tolaria::checkpoint::{CheckpointStore, Snapshot, StdFs};
use tolaria::optim::{OptimizerConfig, ScheduleConfig};
use tolaria::plain::{NoPolicy, NoSeeds, PlainModel};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Checkpoints, Flow, NullObserver, Observer, Outcome, Parts, Splits, TrainConfig, Trainer};

const SEED: u64 = 4;
const NUM_EPOCHS: u64 = 3;
const NUM_SAMPLES: usize = 13;
const BATCH_SIZE: usize = 3;
/// Windows of two microbatches of three: five microbatches, the last one short.
const STEPS_PER_EPOCH: u64 = 3;

/// Another manager with a note of the batches that it was shown; it may become yet another one when an epoch ends.
#[derive(Debug)]
struct Watched<S: ErrorType> {
    inner: S,
    /// What the end of the first epoch fails with.
    fails: Option<S::Error>,
    /// Takes the place of `inner` at the end of the first epoch.
    successor: Option<S>,
    wants_batch: bool,
    /// Whether it was shown one in this epoch.
    is_shown: bool,
    /// Inputs of each batch.
    shown: Vec<Vec<f32>>,
    /// On how many samples gains are confirmed, where it was told.
    confirms_on: Option<u64>,
    /// What it asks of the next confirmation.
    next: Option<Confirming>,
    /// For how many seeds the confirming samples may be read, and for which they were.
    num_readings: usize,
    readings: Vec<SeedId>,
}

impl<S: ErrorType> Watched<S> {
    fn new(inner: S, wants_batch: bool) -> Self {
        Self {
            inner,
            fails: None,
            successor: None,
            wants_batch,
            is_shown: false,
            shown: Vec::new(),
            confirms_on: None,
            next: None,
            num_readings: 0,
            readings: Vec::new(),
        }
    }
}

impl<S: ErrorType> ErrorType for Watched<S> {
    type Error = S::Error;
}

impl<S: SeedManager> SeedManager for Watched<S> {
    type Model = S::Model;

    fn model(&self) -> &S::Model {
        self.inner.model()
    }

    fn attribute_batch(&mut self, eager: &Eager, batch: &Batch) -> Result<Attribution, S::Error> {
        self.inner.attribute_batch(eager, batch)
    }

    fn wants_batch(&self, _eager: &Eager) -> bool {
        self.wants_batch && !self.is_shown
    }

    fn inspect_batch(&mut self, eager: &Eager, batch: &Batch) -> Result<(), S::Error> {
        self.shown.push(values(&batch.inputs).unwrap());
        self.is_shown = true;
        self.inner.inspect_batch(eager, batch)
    }

    fn export_seed_states(&self, eager: &Eager) -> Result<Vec<SeedState>, S::Error> {
        self.inner.export_seed_states(eager)
    }

    fn export_slot_states(&self, eager: &Eager) -> Result<Vec<SlotState>, S::Error> {
        self.inner.export_slot_states(eager)
    }

    fn apply(&mut self, eager: &mut Eager, order: &Order) -> Result<Applied, S::Error> {
        self.inner.apply(eager, order)
    }

    fn record_evidence(&mut self, eager: &Eager, evidence: &[Evidence]) -> Result<(), S::Error> {
        self.inner.record_evidence(eager, evidence)
    }

    fn confirm_on(&mut self, eager: &Eager, num_samples: u64) -> Result<(), S::Error> {
        self.confirms_on = Some(num_samples);
        self.inner.confirm_on(eager, num_samples)
    }

    fn confirming(&self, _eager: &Eager) -> Result<Option<Confirming>, S::Error> {
        Ok(self.next)
    }

    fn wants_confirmation(&self, eager: &Eager) -> Result<Vec<SeedId>, S::Error> {
        let seeds = self.inner.export_seed_states(eager)?;
        let is_over = self.readings.len() >= self.num_readings;
        Ok(if is_over { Vec::new() } else { seeds.iter().map(|seed| seed.seed_id).collect() })
    }

    fn record_confirmation(&mut self, _: &Eager, seed: SeedId, _: &Confirmation) -> Result<(), S::Error> {
        self.readings.push(seed);
        Ok(())
    }

    fn costs(&self, _eager: &Eager, _batch_size: usize) -> Result<Option<Costs>, S::Error> {
        Ok(Some(Costs { attribution: 1.0, ..Costs::default() }))
    }

    fn finish_step(&mut self, eager: &mut Eager, step: StepIndex) -> Result<(), S::Error> {
        self.inner.finish_step(eager, step)
    }

    fn finish_epoch(&mut self, eager: &mut Eager, epoch: EpochIndex) -> Result<Vec<Transition>, S::Error> {
        self.is_shown = false;
        self.fails.take().map_or(Ok(()), Err)?;
        if let Some(successor) = self.successor.take() {
            self.inner = successor;
        }
        self.inner.finish_epoch(eager, epoch)
    }
}

impl<S: SeedManager> Durable for Watched<S> {
    fn save(&self, eager: &Eager) -> Result<SavedState, S::Error> {
        self.inner.save(eager)
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), S::Error> {
        self.inner.restore(eager, saved)
    }
}

/// Stops after a step.
#[derive(Debug)]
struct StopAfter(StepIndex);

impl Observer for StopAfter {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        if step == self.0 { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

fn samples() -> Dataset {
    let batch = toy::blobs(NUM_SAMPLES, 7, &Device::Cpu).unwrap();
    Dataset::new(batch.inputs, batch.targets).unwrap()
}

fn fake() -> FakeSeedManager {
    FakeSeedManager::new(&Device::Cpu).unwrap()
}

fn trainer<S: SeedManager>(seeds: S, dir: Option<&Path>) -> Result<Trainer<S, NoPolicy>, Error> {
    let count = |n| NonZeroUsize::new(n).unwrap();
    let config = TrainConfig {
        batch: BatchConfig { batch_size: count(BATCH_SIZE), microbatches_per_step: count(2) },
        optimizer: OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 },
        schedule: ScheduleConfig::constant(0.1),
        clip_norm: None,
        conflict: ConflictResolution::PcGrad,
        eval_batch_size: count(5),
        conflict_warn: 1.0,
        ..TrainConfig::default()
    };
    let checkpoints = dir.map(|dir| Checkpoints {
        store: CheckpointStore::open(dir, NonZeroUsize::MIN, Arc::new(StdFs)).unwrap(),
        every_epochs: NonZeroU64::MIN,
        every_steps: None,
        keep_best: false,
        in_background: true,
        config_digest: String::new(),
    });
    let parts = Parts {
        run_id: RunId::new("run-1").unwrap(),
        seed: SEED,
        num_epochs: NUM_EPOCHS,
        max_steps: None,
        device: Device::Cpu,
        data: Splits { train: samples(), validation: samples(), test: samples() },
        task: Arc::new(Classification::new(toy::NUM_CLASSES)),
        seeds,
        policy: NoPolicy,
        checkpoints,
        recorder: Arc::new(NullRecorder),
        clock: Arc::new(ManualClock::default()),
    };
    Trainer::new(config, parts)
}

/// Inputs of the first microbatch of every epoch.
fn first_microbatches() -> Vec<Vec<f32>> {
    let (data, sampler) = (samples(), Sampler::new(SEED));
    (0..NUM_EPOCHS)
        .map(|epoch| {
            let order = sampler.permutation(EpochIndex(epoch), NUM_SAMPLES);
            values(&data.gather(&order[..BATCH_SIZE]).unwrap().inputs).unwrap()
        })
        .collect()
}

#[test]
fn a_manager_that_wants_batches_is_shown_the_first_microbatch_of_every_epoch() {
    let mut eager = Eager::acquire().unwrap();
    for wants_batch in [true, false] {
        let mut trainer = trainer(Watched::new(fake(), wants_batch), None).unwrap();
        trainer.run(&mut eager, &mut NullObserver).unwrap();
        assert_eq!(trainer.progress().1, StepIndex(NUM_EPOCHS * STEPS_PER_EPOCH));
        let expected = if wants_batch { first_microbatches() } else { Vec::new() };
        assert_eq!(trainer.seeds().shown, expected, "wants_batch: {wants_batch}");
    }
}

#[test]
fn an_epoch_that_is_taken_up_in_the_middle_shows_nothing_again() {
    let mut eager = Eager::acquire().unwrap();
    for stop in 1..=NUM_EPOCHS * STEPS_PER_EPOCH {
        let dir = tempfile::tempdir().unwrap();
        let mut interrupted = trainer(Watched::new(fake(), true), Some(dir.path())).unwrap();
        let outcome = interrupted.run(&mut eager, &mut StopAfter(StepIndex(stop))).unwrap();
        assert_eq!(outcome, Outcome::Interrupted);
        let mut shown = interrupted.seeds().shown.clone();
        drop(interrupted);

        let mut resumed = trainer(Watched::new(fake(), true), Some(dir.path())).unwrap();
        assert_eq!(resumed.resume(&mut eager).unwrap().unwrap().step, StepIndex(stop));
        assert_eq!(resumed.run(&mut eager, &mut NullObserver).unwrap(), Outcome::Completed);
        shown.extend(resumed.seeds().shown.iter().cloned());
        assert_eq!(shown, first_microbatches(), "interrupted after step {stop}");
    }
}

/// What the policy is told of costs, epoch by epoch.
#[derive(Debug, Default)]
struct Told(Vec<(Option<u64>, f64)>);

impl Observer for Told {
    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        let asked = report.asked.as_ref().unwrap();
        self.0.push((asked.samples_per_epoch, asked.costs.as_ref().unwrap().attribution));
        Ok(())
    }
}

#[test]
fn attribution_is_a_cost_only_where_steps_attribute() {
    let mut eager = Eager::acquire().unwrap();
    for (has_seed, attribution) in [(false, 0.0), (true, 1.0)] {
        let mut seeds = fake();
        if has_seed {
            let slot = seeds.export_slot_states(&eager).unwrap().remove(0);
            let germinate = Operation::germinate(slot.slot, slot.offers[0].blueprint.clone());
            for operation in [germinate, Operation::StartTraining { seed: SeedId(1) }] {
                seeds.apply(&mut eager, &Order::new(operation, "test")).unwrap();
            }
        }
        let mut told = Told::default();
        trainer(Watched::new(seeds, false), None).unwrap().run(&mut eager, &mut told).unwrap();
        assert_eq!(told.0, (0..NUM_EPOCHS).map(|_| (Some(NUM_SAMPLES as u64), attribution)).collect::<Vec<_>>());
    }
}

/// Losses on validation data, epoch by epoch.
#[derive(Debug, Default)]
struct Losses(Vec<f64>);

impl Observer for Losses {
    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        self.0.push(report.validation.loss);
        Ok(())
    }
}

/// Samples and losses in training, epoch by epoch.
#[derive(Debug, Default)]
struct Trained(Vec<(u64, u64)>);

impl Observer for Trained {
    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        let train = report.train.as_ref().unwrap();
        self.0.push((train.num_samples, train.loss.to_bits()));
        Ok(())
    }
}

#[test]
fn an_epoch_whose_end_failed_is_no_part_of_the_next() {
    let mut eager = Eager::acquire().unwrap();
    let mut expected = Trained::default();
    trainer(Watched::new(fake(), false), None).unwrap().run(&mut eager, &mut expected).unwrap();
    let fails = Some(RegionError::ForeignToken.into());
    let mut failing = trainer(Watched { fails, ..Watched::new(fake(), false) }, None).unwrap();
    let mut found = Trained::default();
    failing.run(&mut eager, &mut found).unwrap_err();
    failing.run(&mut eager, &mut found).unwrap();
    assert_eq!(found.0, expected.0[1..]);
}

/// What a manager may ask of the next confirmation.
#[expect(clippy::unnecessary_wraps, reason = "as the manager answers")]
fn asks(needed_samples: u64, num_read: u64) -> Option<Confirming> {
    let num_samples = NUM_SAMPLES as u64 / 2;
    Some(Confirming { num_samples, needed_samples, level: 0.05, min_gain: 0.0, num_read, num_confirmed: 0 })
}

#[test]
fn the_manager_is_asked_anew_after_each_reading_of_the_samples_that_confirm() {
    let mut eager = Eager::acquire().unwrap();
    for (num_readings, expected) in [(0, vec![]), (1, vec![SeedId(1)]), (2, vec![SeedId(1), SeedId(2)])] {
        let mut seeds = fake();
        let slots = seeds.export_slot_states(&eager).unwrap();
        for (slot, id) in slots.iter().zip([1, 2]) {
            let germinate = Operation::germinate(slot.slot.clone(), slot.offers[0].blueprint.clone());
            seeds.apply(&mut eager, &Order::new(germinate, "test")).unwrap();
            let train = Operation::StartTraining { seed: SeedId(id) };
            seeds.apply(&mut eager, &Order::new(train, "test")).unwrap();
        }
        let watched = Watched { next: asks(1, 0), num_readings, ..Watched::new(seeds, false) };
        let mut trainer = trainer(watched, None).unwrap();
        trainer.run(&mut eager, &mut StopAfter(StepIndex(STEPS_PER_EPOCH + 1))).unwrap();
        assert_eq!(trainer.seeds().readings, expected);
    }
}

#[test]
fn samples_are_kept_back_only_where_they_can_confirm_a_gain() {
    let mut eager = Eager::acquire().unwrap();
    let mut losses = |next| {
        let watched = Watched { next, ..Watched::new(fake(), false) };
        let mut losses = Losses::default();
        trainer(watched, None).unwrap().run(&mut eager, &mut losses).unwrap();
        losses.0
    };
    let (of_all, of_half) = (losses(None), losses(asks(1, 0)));
    assert!(of_all.iter().zip(&of_half).all(|(all, half)| all.to_bits() != half.to_bits()), "{of_all:?}, {of_half:?}");
    assert_eq!(losses(asks(100, 0)), of_all, "too few");
    // What one seed has read decides nothing for the others.
    assert_eq!(losses(asks(100, 1)), of_half, "read before");
}

#[test]
fn a_run_that_began_before_gains_were_confirmed_goes_on_without_and_says_so_when_it_is_taken_up_again() {
    let mut eager = Eager::acquire().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut begun = trainer(Watched::new(fake(), false), Some(dir.path())).unwrap();
    begun.run(&mut eager, &mut StopAfter(StepIndex(1))).unwrap();
    let num_confirming = NUM_SAMPLES as u64 / 2;
    assert_eq!(begun.seeds().confirms_on, Some(num_confirming));
    drop(begun);
    let take_up = |eager: &mut Eager, stop| {
        let mut resumed = trainer(Watched::new(fake(), false), Some(dir.path())).unwrap();
        resumed.resume(eager).unwrap().unwrap();
        resumed.run(eager, &mut StopAfter(StepIndex(stop))).unwrap();
        resumed.seeds().confirms_on
    };
    assert_eq!(take_up(&mut eager, 2), Some(num_confirming));

    let mut store = CheckpointStore::open(dir.path(), NonZeroUsize::MIN, Arc::new(StdFs)).unwrap();
    let mut snapshot = store.load_latest().unwrap().unwrap().snapshot;
    let saved = snapshot.components.get_mut("trainer").unwrap();
    let mut document: serde_json::Value = serde_json::from_str(&saved.json).unwrap();
    let setup = document["setup"].as_object_mut().unwrap();
    assert_eq!(setup.remove("confirmation_fraction").unwrap(), "0.5");
    saved.json = document.to_string();
    store.save(&snapshot).unwrap();
    drop(store);
    for stop in [3, 4, NUM_EPOCHS * STEPS_PER_EPOCH] {
        assert_eq!(take_up(&mut eager, stop), None, "up to step {stop}");
    }
    // One that has confirmed cannot go on without.
    let mut other = trainer(Watched::new(fake(), false), None).unwrap();
    other.run(&mut eager, &mut StopAfter(StepIndex(1))).unwrap();
    let error = other.restore(&mut eager, &snapshot).unwrap_err().to_string();
    assert!(error.contains("confirmation_fraction") && error.contains("expected a new trainer"), "{error}");
}

/// One linear layer; `offset` is of this type and takes no part.
fn linear(offset: DType) -> NoSeeds<PlainModel> {
    let weight = Var::zeros((toy::NUM_INPUTS, toy::NUM_CLASSES), DType::F32, &Device::Cpu).unwrap();
    let offset = Var::zeros(toy::NUM_CLASSES, offset, &Device::Cpu).unwrap();
    let named = vec![("weight".to_owned(), weight.clone()), ("offset".to_owned(), offset.clone())];
    let forward = move |x: &Tensor| x.matmul(&weight)?.broadcast_add(&offset.to_dtype(DType::F32)?);
    NoSeeds::new(PlainModel::new(named, forward).unwrap())
}

#[track_caller]
fn assert_refused(error: &Error, found_type: &str) {
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    let expected = format!(
        "parameter `offset` is {found_type}: expected f32 with this `precision`; `bf16_pure` and `bf16_stochastic` train parameters of bf16, all others \
         those of f32"
    );
    assert_eq!(text, expected);
    assert!(matches!(error, Error::UnsupportedParameter { name, .. } if name == "offset"));
}

#[test]
fn a_network_with_a_parameter_of_another_type_is_refused() {
    for (dtype, name) in [(DType::F64, "f64"), (DType::BF16, "bf16"), (DType::F16, "f16")] {
        assert_refused(&trainer(linear(dtype), None).unwrap_err(), name);
    }
    assert!(trainer(linear(DType::F32), None).is_ok());
}

#[test]
fn a_parameter_of_another_type_that_comes_with_growth_is_refused() {
    let mut eager = Eager::acquire().unwrap();
    let mut seeds = Watched::new(linear(DType::F32), false);
    seeds.successor = Some(linear(DType::BF16));
    let mut trainer = trainer(seeds, None).unwrap();
    let error = trainer.run(&mut eager, &mut NullObserver).unwrap_err();
    assert_refused(&error, "bf16");
    assert_eq!(trainer.progress(), (EpochIndex(1), StepIndex(STEPS_PER_EPOCH)), "a step was taken with it");
}

#[test]
fn host_side_calls_on_a_trainer_are_refused_under_a_capture() {
    type Call = fn(&mut Trainer<NoSeeds<PlainModel>, NoPolicy>, &mut Eager, &Snapshot) -> Result<(), Error>;
    let mut eager = Eager::acquire().unwrap();
    let mut trainer = trainer(linear(DType::F32), None).unwrap();
    let snapshot = trainer.snapshot(&eager).unwrap();
    let calls: [(&str, Call); 5] = [
        ("run", |trainer, eager, _| trainer.run(eager, &mut NullObserver).map(drop)),
        ("test", |trainer, eager, _| trainer.test(eager).map(drop)),
        ("snapshot", |trainer, eager, _| trainer.snapshot(eager).map(drop)),
        ("restore", |trainer, eager, snapshot| trainer.restore(eager, snapshot)),
        ("resume", |trainer, eager, _| trainer.resume(eager).map(drop)),
    ];
    for (name, call) in calls {
        let capture = declare_recording();
        let refused = call(&mut trainer, &mut eager, &snapshot);
        assert!(matches!(refused, Err(Error::Region(RegionError::Recording))), "{name}: {refused:?}");
        drop(capture);
        call(&mut trainer, &mut eager, &snapshot).unwrap();
    }
}

#[test]
fn a_plain_network_is_left_alone_by_a_thread_that_is_started_inside_a_region() {
    let (mut seeds, mut eager) = (linear(DType::F32), Eager::acquire().unwrap());
    let saved = seeds.save(&eager).unwrap();
    let mut elsewhere = || {
        let restore = || seeds.restore(&mut Eager::acquire().unwrap(), &saved);
        std::thread::scope(|scope| scope.spawn(restore).join()).unwrap()
    };
    let refused = eager.record(|_| elsewhere());
    assert!(matches!(refused, Err(NetworkError::Region(RegionError::ForeignToken))), "{refused:?}");
    elsewhere().unwrap();
}

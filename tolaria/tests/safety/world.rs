//! A small run whose policy and seed manager do as they are told, and what it came to.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use candle_core::{Device, Tensor};
use leyline::batch::Batch;
use leyline::command::{Operation, Order};
use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::id::{BlueprintId, EpochIndex, SeedId, SlotId, StepIndex};
use leyline::policy::{Decision, Policy};
use leyline::region::{Eager, RegionError};
use leyline::seed::{Applied, Attribution, Evidence, SeedManager, SeedState, SlotState, Transition};
use leyline::state::SystemState;
use leyline_testkit::clock::ManualClock;
use leyline_testkit::fake_seed_manager::FakeSeedManager;
use leyline_testkit::recording_recorder::RecordingRecorder;
use leyline_testkit::{toy, values};
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::checkpoint::{CheckpointStore, StdFs};
use tolaria::optim::ScheduleConfig;
use tolaria::task::Classification;
use tolaria::trainer::{Checkpoints, NullObserver, Outcome, Parts, SafetyConfig, Splits, TrainConfig, Trainer};

pub(crate) const NUM_EPOCHS: u64 = 5;
pub(crate) const STEPS_PER_EPOCH: u64 = 3;

/// What a policy does at the ends of epochs, the last entry again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Nothing,
    Germinate,
    /// The same where something is on offer.
    GerminateOffered,
    /// A germination, once the gate is opened.
    Sleep,
    Fail,
    Panic,
    Flood,
    /// A seed that nobody has, and inputs of which not a number was measured.
    Garbage,
}

#[derive(Debug)]
pub(crate) struct Odd {
    acts: Vec<Act>,
    gate: Receiver<()>,
    num_calls: usize,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum OddError {
    #[error("it was told to")]
    Told,
    #[error(transparent)]
    Region(#[from] RegionError),
}

impl leyline::error::Error for OddError {
    fn kind(&self) -> leyline::error::ErrorKind {
        leyline::error::ErrorKind::Other
    }
}

impl ErrorType for Odd {
    type Error = OddError;
}

/// It remembers nothing: the network alone is compared.
impl Durable for Odd {
    fn save(&self, eager: &Eager) -> Result<SavedState, OddError> {
        Ok(eager.check().map(|()| SavedState::default())?)
    }

    fn restore(&mut self, eager: &mut Eager, _saved: &SavedState) -> Result<(), OddError> {
        Ok(eager.check()?)
    }
}

impl Policy for Odd {
    fn name(&self) -> &'static str {
        "odd"
    }

    fn decide(&mut self, state: &SystemState) -> Result<Decision, OddError> {
        let act = self.acts[self.num_calls.min(self.acts.len() - 1)];
        self.num_calls += 1;
        let free = state.slots.iter().find(|slot| slot.occupant.is_none());
        let slot = free.map_or(SlotId::new("none").unwrap(), |slot| slot.slot.clone());
        let germinate = Order::new(Operation::germinate(slot, BlueprintId::new("linear").unwrap()), "test");
        let orders = match act {
            Act::Nothing => Vec::new(),
            Act::Germinate => vec![germinate],
            Act::GerminateOffered => {
                let is_offered = free.is_some_and(|slot| !slot.offers.is_empty());
                is_offered.then_some(germinate).into_iter().collect()
            }
            Act::Sleep => {
                self.gate.recv().unwrap_or(());
                vec![germinate]
            }
            Act::Fail => return Err(OddError::Told),
            Act::Panic => panic!("as the test says"),
            Act::Flood => vec![germinate; 100_000],
            Act::Garbage => {
                let order = Order::new(Operation::Cull { seed: SeedId(77) }, "\u{0}".repeat(1000));
                vec![Order { input_coverage: Some(f64::NAN), ..order }]
            }
        };
        Ok(Decision { orders, waiting: Vec::new() })
    }
}

/// A manager whose calls at the end of an epoch take as long as they are told.
#[derive(Debug)]
pub(crate) struct Slow {
    inner: FakeSeedManager,
    clock: Arc<ManualClock>,
    takes_ms: Arc<Mutex<Vec<u64>>>,
}

impl ErrorType for Slow {
    type Error = <FakeSeedManager as ErrorType>::Error;
}

impl Durable for Slow {
    fn save(&self, eager: &Eager) -> Result<SavedState, Self::Error> {
        self.inner.save(eager)
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), Self::Error> {
        self.inner.restore(eager, saved)
    }
}

impl SeedManager for Slow {
    type Model = <FakeSeedManager as SeedManager>::Model;

    fn model(&self) -> &Self::Model {
        self.inner.model()
    }

    fn apply(&mut self, eager: &mut Eager, order: &Order) -> Result<Applied, Self::Error> {
        self.inner.apply(eager, order)
    }

    fn export_seed_states(&self, eager: &Eager) -> Result<Vec<SeedState>, Self::Error> {
        self.inner.export_seed_states(eager)
    }

    fn export_slot_states(&self, eager: &Eager) -> Result<Vec<SlotState>, Self::Error> {
        self.inner.export_slot_states(eager)
    }

    fn finish_step(&mut self, eager: &mut Eager, step: StepIndex) -> Result<(), Self::Error> {
        self.inner.finish_step(eager, step)
    }

    fn finish_epoch(&mut self, eager: &mut Eager, epoch: EpochIndex) -> Result<Vec<Transition>, Self::Error> {
        let takes_ms = self.takes_ms.lock().unwrap().pop().unwrap_or(0);
        self.clock.advance(Duration::from_millis(takes_ms));
        self.inner.finish_epoch(eager, epoch)
    }

    fn record_evidence(&mut self, eager: &Eager, evidence: &[Evidence]) -> Result<(), Self::Error> {
        self.inner.record_evidence(eager, evidence)
    }

    fn attribute_batch(&mut self, eager: &Eager, batch: &Batch) -> Result<Attribution, Self::Error> {
        self.inner.attribute_batch(eager, batch)
    }
}

pub(crate) struct World {
    pub(crate) trainer: Trainer<Slow, Odd>,
    pub(crate) recorder: Arc<RecordingRecorder>,
    pub(crate) gate: Sender<()>,
}

pub(crate) fn world(acts: &[Act], safety: SafetyConfig, takes_ms: &[u64]) -> World {
    world_of(acts, safety, takes_ms, NUM_EPOCHS, None)
}

pub(crate) fn world_of(
    acts: &[Act],
    safety: SafetyConfig,
    takes_ms: &[u64],
    num_epochs: u64,
    checkpoints: Option<&Path>,
) -> World {
    let count = |n| NonZeroUsize::new(n).unwrap();
    let batch = toy::blobs(13, 7, &Device::Cpu).unwrap();
    let data = Dataset::new(batch.inputs, batch.targets).unwrap();
    let config = TrainConfig {
        batch: BatchConfig { batch_size: count(5), microbatches_per_step: count(1) },
        schedule: ScheduleConfig::constant(0.1),
        conflict_warn: 1.0,
        safety,
        ..TrainConfig::default()
    };
    let store = |dir: &Path| CheckpointStore::open(dir, count(2), Arc::new(StdFs)).unwrap();
    let clock = Arc::new(ManualClock::default());
    let takes_ms = Arc::new(Mutex::new(takes_ms.iter().rev().copied().collect()));
    let seeds = Slow { inner: FakeSeedManager::new(&Device::Cpu).unwrap(), clock: clock.clone(), takes_ms };
    let (gate, opened) = channel();
    let (recorder, policy) =
        (Arc::new(RecordingRecorder::new()), Odd { acts: acts.to_vec(), gate: opened, num_calls: 0 });
    let splits = Splits { train: data.clone(), validation: data.clone(), test: data };
    let task = Arc::new(Classification::new(toy::NUM_CLASSES));
    let parts = Parts {
        num_epochs,
        checkpoints: checkpoints.map(|dir| Checkpoints::new(store(dir))),
        recorder: recorder.clone(),
        clock,
        ..Parts::new(task, seeds, policy, splits)
    };
    World { trainer: Trainer::new(config, parts).unwrap(), recorder, gate }
}

impl World {
    pub(crate) fn counter(&self, name: &str, labels: &[&str]) -> u64 {
        self.recorder.counter_value(&format!("tolaria.{name}"), labels).unwrap_or_else(|| panic!("{name} is not there"))
    }

    /// All that are looked at here are whole numbers.
    pub(crate) fn gauge(&self, name: &str, labels: &[&str]) -> u64 {
        let value = self.recorder.gauge_value(&format!("tolaria.{name}"), labels);
        value.unwrap_or_else(|| panic!("{name} is not there")).to_string().parse().unwrap()
    }

    pub(crate) fn num_events(&self, name: &str) -> usize {
        self.recorder.events_named(&format!("tolaria.{name}")).len()
    }

    /// Network and moments: documents, and bits of tensors.
    pub(crate) fn bits(&mut self) -> Vec<(String, Vec<u32>)> {
        let snapshot = self.trainer.snapshot(&Eager::acquire().unwrap()).unwrap();
        let bits = |tensor: &Tensor| values(tensor).unwrap().into_iter().map(f32::to_bits);
        let kept = snapshot.components.into_iter().filter(|(name, _)| name == "seeds" || name == "optimizer");
        kept.map(|(_, saved)| (saved.json, saved.tensors.values().flat_map(bits).collect())).collect()
    }

    pub(crate) fn run(&mut self) -> Vec<(String, Vec<u32>)> {
        let outcome = self.trainer.run(&mut Eager::acquire().unwrap(), &mut NullObserver).unwrap();
        assert_eq!(outcome, Outcome::Completed);
        self.bits()
    }
}

//! Policies and seed managers that are late or do what they should not: nothing of it reaches the network, and training goes on.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use candle_core::{Device, Tensor};
use leyline::batch::Batch;
use leyline::command::{Operation, Order};
use leyline::durable::{Durable, SavedState};
use leyline::error::{BoxError, ErrorType};
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
use tolaria::optim::ScheduleConfig;
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{
    BreakerConfig, Flow, NullObserver, Observer, Outcome, Parts, SafetyConfig, Splits, StepReport, TrainConfig, Trainer,
};

const NUM_EPOCHS: u64 = 5;
const STEPS_PER_EPOCH: u64 = 3;

/// What a policy does at the ends of epochs, the last entry again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Nothing,
    Germinate,
    /// A germination, once the gate is opened.
    Sleep,
    Fail,
    Panic,
    Flood,
    /// A seed that nobody has, and inputs of which not a number was measured.
    Garbage,
}

#[derive(Debug)]
struct Odd {
    acts: Vec<Act>,
    gate: Receiver<()>,
    num_calls: usize,
}

#[derive(Debug, thiserror::Error)]
enum OddError {
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
struct Slow {
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

struct World {
    trainer: Trainer<Slow, Odd>,
    recorder: Arc<RecordingRecorder>,
    gate: Sender<()>,
}

fn world(acts: &[Act], safety: SafetyConfig, takes_ms: &[u64]) -> World {
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
    let clock = Arc::new(ManualClock::default());
    let takes_ms = Arc::new(Mutex::new(takes_ms.iter().rev().copied().collect()));
    let seeds = Slow { inner: FakeSeedManager::new(&Device::Cpu).unwrap(), clock: clock.clone(), takes_ms };
    let (gate, opened) = channel();
    let (recorder, policy) =
        (Arc::new(RecordingRecorder::new()), Odd { acts: acts.to_vec(), gate: opened, num_calls: 0 });
    let splits = Splits { train: data.clone(), validation: data.clone(), test: data };
    let task = Arc::new(Classification::new(toy::NUM_CLASSES));
    let parts =
        Parts { num_epochs: NUM_EPOCHS, recorder: recorder.clone(), clock, ..Parts::new(task, seeds, policy, splits) };
    World { trainer: Trainer::new(config, parts).unwrap(), recorder, gate }
}

impl World {
    fn counter(&self, name: &str, labels: &[&str]) -> u64 {
        self.recorder.counter_value(&format!("tolaria.{name}"), labels).unwrap_or_else(|| panic!("{name} is not there"))
    }

    fn gauge(&self, name: &str, labels: &[&str]) -> f64 {
        self.recorder.gauge_value(&format!("tolaria.{name}"), labels).unwrap_or_else(|| panic!("{name} is not there"))
    }

    fn num_events(&self, name: &str) -> usize {
        self.recorder.events_named(&format!("tolaria.{name}")).len()
    }

    /// Network and moments: documents, and bits of tensors.
    fn bits(&mut self) -> Vec<(String, Vec<u32>)> {
        let snapshot = self.trainer.snapshot(&Eager::acquire().unwrap()).unwrap();
        let bits = |tensor: &Tensor| values(tensor).unwrap().into_iter().map(f32::to_bits);
        let kept = snapshot.components.into_iter().filter(|(name, _)| name == "seeds" || name == "optimizer");
        kept.map(|(_, saved)| (saved.json, saved.tensors.values().flat_map(bits).collect())).collect()
    }

    fn run(&mut self) -> Vec<(String, Vec<u32>)> {
        let outcome = self.trainer.run(&mut Eager::acquire().unwrap(), &mut NullObserver).unwrap();
        assert_eq!(outcome, Outcome::Completed);
        self.bits()
    }
}

fn policy_ms(ms: u64) -> SafetyConfig {
    SafetyConfig { policy_ms: NonZeroU64::new(ms), ..SafetyConfig::default() }
}

#[test]
fn with_a_deadline_that_is_kept_a_run_has_the_bits_of_one_without() {
    let acts = [Act::Nothing, Act::Germinate, Act::Nothing, Act::Germinate, Act::Nothing];
    let expected = world(&acts, SafetyConfig::default(), &[]).run();
    let mut timed = world(&acts, policy_ms(60_000), &[]);
    assert_eq!(timed.run(), expected);
    assert_ne!(expected, world(&[Act::Nothing], SafetyConfig::default(), &[]).run(), "seeds grew");
    for name in ["timeout.tamiyo_total", "timeout.kasmina_total", "timeout.late_answers_total"] {
        assert_eq!(timed.counter(name, &[]), 0, "{name}");
    }
    for name in ["mode.conservative_total", "mode.refused_total"] {
        assert_eq!(timed.counter(name, &[]), 0, "{name}");
    }
    assert_eq!(timed.counter("breaker.opened_total", &["policy"]), 0);
}

#[test]
fn whatever_a_policy_does_a_run_without_its_orders_has_the_bits_of_one_without_it() {
    let expected = world(&[Act::Nothing], SafetyConfig::default(), &[]).run();
    for (act, deadline_ms, timeouts, errors, refused) in [
        (Act::Sleep, 20, 1, 0, 0),
        (Act::Fail, 60_000, 0, 3, 0),
        (Act::Panic, 60_000, 0, 3, 0),
        (Act::Flood, 60_000, 0, 3, 0),
        (Act::Garbage, 60_000, 0, 0, 5),
    ] {
        let mut world = world(&[act], policy_ms(deadline_ms), &[]);
        assert_eq!(world.run(), expected, "{act:?}");
        assert_eq!(world.counter("timeout.tamiyo_total", &[]), timeouts, "{act:?}");
        assert_eq!(world.num_events("tamiyo_timeout"), usize::try_from(timeouts).unwrap(), "{act:?}: told once");
        assert_eq!(world.num_events("tamiyo_error"), errors, "{act:?}: it is not asked any more after three");
        assert_eq!(world.num_events("command_refused"), refused, "{act:?}");
        let is_conservative = act != Act::Garbage;
        assert_eq!(world.gauge("mode.conservative", &[]), f64::from(u8::from(is_conservative)), "{act:?}");
        assert_eq!(world.num_events("conservative_mode_entered"), usize::from(is_conservative), "{act:?}: at the edge");
        let opened = u64::from(errors > 0);
        assert_eq!(world.counter("breaker.opened_total", &["policy"]), opened, "{act:?}");
        assert_eq!(world.num_events("breaker_opened") as u64, opened, "{act:?}");
        assert_eq!(world.gauge("breaker.state", &["policy"]), f64::from(1 + u8::from(errors > 0)), "{act:?}");
    }
}

/// Opens the gate in the middle of an epoch, and gives the answer time to come.
struct OpensAt<'a>(u64, &'a Sender<()>);

impl Observer for OpensAt<'_> {
    fn step(&mut self, report: &StepReport<'_>) -> Flow {
        if report.step.0 == self.0 {
            self.1.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(200));
        }
        Flow::Continue
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

#[test]
fn an_answer_that_comes_an_epoch_late_is_dropped_and_the_next_one_counts() {
    let expected = world(&[Act::Nothing, Act::Nothing, Act::Germinate, Act::Nothing], SafetyConfig::default(), &[]);
    let expected = { expected }.run();
    let acts = [Act::Sleep, Act::Germinate, Act::Nothing];
    let mut late = world(&acts, policy_ms(300), &[]);
    // Asked at the end of the first epoch, it is still thinking at the end of the second; its answer comes in the third.
    let gate = late.gate.clone();
    let mut observer = OpensAt(2 * STEPS_PER_EPOCH + 1, &gate);
    late.trainer.run(&mut Eager::acquire().unwrap(), &mut observer).unwrap();
    assert_eq!(late.bits(), expected);
    let counts = ["timeout.tamiyo_total", "timeout.late_answers_total", "mode.conservative_total"];
    assert_eq!(counts.map(|name| late.counter(name, &[])), [1, 1, 1]);
    assert_eq!((late.num_events("conservative_mode_entered"), late.num_events("conservative_mode_cleared")), (1, 1));
    assert_eq!((late.gauge("mode.conservative", &[]), late.gauge("breaker.state", &["policy"])), (0.0, 1.0));
}

#[test]
fn a_seed_manager_that_is_slow_is_left_alone_and_trusted_again() {
    let breaker = BreakerConfig { failures: 2, open_ms: 1, successes: 1, ..Default::default() };
    let safety = SafetyConfig { seeds_ms: NonZeroU64::new(10), breaker, ..SafetyConfig::default() };
    let acts = [Act::Nothing, Act::Germinate];
    // Two slow ends of epochs; then it is left alone; then its trial; at the fifth it may grow again.
    let mut world = world(&acts, safety, &[11, 11, 2, 0, 0]);
    world.run();
    assert_eq!(world.counter("timeout.kasmina_total", &[]), 2);
    assert_eq!(world.num_events("kasmina_timeout"), 1, "told at the edge");
    let labels: &[&str] = &["seed_manager"];
    assert_eq!((world.counter("breaker.opened_total", labels), world.num_events("breaker_closed")), (1, 1));
    assert_eq!((world.counter("mode.conservative_total", &[]), world.gauge("mode.conservative", &[])), (1, 0.0));
    let refused: Vec<String> =
        world.recorder.events_named("tolaria.command_refused").iter().map(|event| format!("{event:?}")).collect();
    assert_eq!(refused.len() as u64, world.counter("mode.refused_total", &[]));
    let told = |text: &str| refused.iter().filter(|event| event.contains(text)).count();
    assert_eq!((told("nothing grows"), told("left alone")), (2, 1), "{refused:#?}");
    assert_eq!(world.trainer.seeds().export_seed_states(&Eager::acquire().unwrap()).unwrap().len(), 1);
}

#[test]
fn counters_and_gauges_are_there_from_the_start() {
    let world = world(&[Act::Nothing], SafetyConfig::default(), &[]);
    for name in
        ["timeout.tamiyo_total", "timeout.kasmina_total", "timeout.late_answers_total", "mode.conservative_total"]
    {
        assert_eq!(world.counter(name, &[]), 0, "{name}");
    }
    for name in ["timeout.tamiyo_last_ms", "timeout.kasmina_last_ms", "mode.conservative"] {
        assert_eq!(world.gauge(name, &[]), 0.0, "{name}");
    }
    for call in ["policy", "seed_manager"] {
        assert_eq!(world.gauge("breaker.state", &[call]), 1.0);
        assert_eq!(
            (world.gauge("breaker.failures", &[call]), world.counter("breaker.opened_total", &[call])),
            (0.0, 0)
        );
    }
}

//! Steps that cannot be used: found, named, left out, and gone back from.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{DType, Device, Tensor, Var};
use leyline::error::BoxError;
use leyline::region::Eager;
use leyline_testkit::recording_recorder::RecordingRecorder;
use tolaria::Error;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::host_read::{HostReads, read_vec};
use tolaria::optim::ScheduleConfig;
use tolaria::plain::{NoPolicy, NoSeeds, PlainModel};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{
    Flow, Observer, Outcome, Parts, RecoveryConfig, RunEvent, Splits, StepReport, TrainConfig, Trainer,
};

/// Windows of two microbatches of two, ten an epoch.
const SAMPLES: u32 = 40;
const EPOCHS: u64 = 4;
const LAST: u64 = 10 * EPOCHS;

/// What goes wrong in the steps from one to another.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// The gradient is no number, the loss is one.
    Gradient,
    /// The loss is no number.
    Loss,
    /// Every answer that is right becomes very wrong: the loss is a number, and very large.
    Jump,
    /// A parameter becomes no number, once.
    Parameter,
    /// So does one that a rectifier cuts off: no loss shows it.
    Hidden,
}

/// Switches a fault on and off, and writes down what happens.
struct World {
    fault: Fault,
    /// Steps after which the fault begins and ends.
    from: u64,
    to: u64,
    /// Whether the fault comes each time that the run is there.
    is_stubborn: bool,
    state: Arc<AtomicU64>,
    weight: Var,
    offset: Var,
    reports: Vec<EpochReport>,
    rates: Vec<f64>,
    back: Vec<(u64, u64, String, f64)>,
}

impl Observer for World {
    fn step(&mut self, report: &StepReport<'_>) -> Flow {
        self.rates.push(report.learning_rate);
        let is_on = report.step.0 >= self.from && report.step.0 < self.to;
        if is_on && self.fault == Fault::Parameter && report.step.0 == self.from {
            let bad = Tensor::new(&[[f32::NAN, 1.0], [1.0, 1.0]], &Device::Cpu).unwrap();
            self.weight.set(&bad).unwrap();
        }
        if is_on && self.fault == Fault::Hidden && report.step.0 == self.from {
            self.offset.set(&Tensor::new(&[f32::NAN], &Device::Cpu).unwrap()).unwrap();
        }
        self.state.store(if is_on { self.fault as u64 } else { 0 }, Ordering::Relaxed);
        if report.step.0 + 1 == self.to && !self.is_stubborn {
            self.fault = Fault::None;
        }
        Flow::Continue
    }

    fn event(&mut self, event: &RunEvent<'_>) {
        if let RunEvent::RolledBack { from, to, culprit, rate_factor, .. } = event {
            self.back.push((from.0, to.0, (*culprit).to_owned(), *rate_factor));
            // What went wrong is over.
            if !self.is_stubborn {
                self.fault = Fault::None;
            }
            self.state.store(0, Ordering::Relaxed);
        }
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        self.reports.retain(|earlier| earlier.epoch < report.epoch);
        self.reports.push(EpochReport { wall_s: 0.0, samples_per_s: 0.0, ..report.clone() });
        Ok(())
    }
}

fn data(bad: &[u32]) -> Dataset {
    let input = |i: u32| {
        let noise = (i * 7 % 11) as f32 / 110.0;
        [if bad.contains(&i) { f32::NAN } else { (i % 2) as f32 + noise }, noise]
    };
    let inputs = Tensor::from_iter((0..SAMPLES).flat_map(input), &Device::Cpu).unwrap();
    let targets = Tensor::from_iter((0..SAMPLES).map(|i| i % 2), &Device::Cpu).unwrap();
    Dataset::new(inputs.reshape((SAMPLES as usize, 2)).unwrap(), targets).unwrap()
}

struct Ended {
    outcome: Result<Outcome, Error>,
    world: World,
    recorder: Arc<RecordingRecorder>,
    bits: Vec<u32>,
}

impl Ended {
    fn counter(&self, name: &str) -> u64 {
        self.recorder.counter_value(name, &[]).unwrap()
    }

    fn loss(&self) -> f64 {
        self.world.reports.last().unwrap().validation.loss
    }
}

fn run(recovery: RecoveryConfig, train: Dataset, planted: (Fault, u64, u64, bool)) -> Ended {
    run_for(None, recovery, (train, data(&[])), planted)
}

fn run_for(
    max_steps: Option<NonZeroU64>,
    recovery: RecoveryConfig,
    (train, validation): (Dataset, Dataset),
    (fault, from, to, is_stubborn): (Fault, u64, u64, bool),
) -> Ended {
    let count = |n| NonZeroUsize::new(n).unwrap();
    let weight = Var::ones((2, 2), DType::F32, &Device::Cpu).unwrap();
    let state = Arc::new(AtomicU64::new(0));
    let offset = Var::zeros(1, DType::F32, &Device::Cpu).unwrap();
    let (w, cut, on) = (weight.clone(), offset.clone(), Arc::clone(&state));
    let named = vec![("weight".to_owned(), weight.clone()), ("offset".to_owned(), offset.clone())];
    let model = PlainModel::new(named, move |x: &Tensor| {
        let logits = x.matmul(&w)?.broadcast_add(&cut.relu()?)?;
        let on = on.load(Ordering::Relaxed);
        if on == Fault::Gradient as u64 {
            // The slope of the root at 0 is infinite.
            let nothing = w.sub(&w.detach())?.sum_all()?.sqrt()?;
            return logits.broadcast_add(&nothing);
        }
        let factor = if on == Fault::Loss as u64 { f64::NAN } else { -1e6 };
        if on == Fault::Loss as u64 || on == Fault::Jump as u64 { logits * factor } else { Ok(logits) }
    });
    let config = TrainConfig {
        batch: BatchConfig { batch_size: count(2), microbatches_per_step: count(2) },
        schedule: ScheduleConfig::constant(0.05),
        // As often as a state is kept. Other faults are found by evaluations too.
        eval_every_steps: NonZeroU64::new(4).filter(|_| matches!(fault, Fault::None | Fault::Gradient)),
        recovery,
        ..TrainConfig::default()
    };
    let recorder = Arc::new(RecordingRecorder::new());
    let splits = Splits { train, validation, test: data(&[]) };
    let parts = Parts {
        num_epochs: EPOCHS,
        max_steps,
        recorder: recorder.clone(),
        ..Parts::new(Arc::new(Classification::new(2)), NoSeeds::new(model.unwrap()), NoPolicy, splits)
    };
    let mut trainer = Trainer::new(config, parts).unwrap();
    let (reports, rates, back) = (Vec::new(), Vec::new(), Vec::new());
    let mut world = World { fault, from, to, is_stubborn, state, weight, offset, reports, rates, back };
    let mut eager = Eager::acquire().unwrap();
    let outcome = trainer.run(&mut eager, &mut world);
    let snapshot = trainer.snapshot(&eager).unwrap();
    let tensors = ["seeds", "optimizer"].into_iter().flat_map(|name| snapshot.components[name].tensors.values());
    let values = tensors.flat_map(|tensor| read_vec(tensor, "test", &mut HostReads::default()).unwrap());
    Ended { outcome, world, recorder, bits: values.map(f32::to_bits).collect() }
}

fn recovery() -> RecoveryConfig {
    RecoveryConfig {
        memory_mib: 1,
        every_steps: NonZeroU64::new(4).unwrap(),
        max_skipped: NonZeroU64::new(2).unwrap(),
        ..RecoveryConfig::default()
    }
}

const NO_FAULT: (Fault, u64, u64, bool) = (Fault::None, 0, 0, false);

#[test]
fn watching_changes_no_bit_of_a_run_without_faults() {
    let plain = run(RecoveryConfig::default(), data(&[]), NO_FAULT);
    for loss_bound in [None, Some(1e9)] {
        let watched = run(RecoveryConfig { loss_bound, ..recovery() }, data(&[]), NO_FAULT);
        assert_eq!((&watched.bits, &watched.world.reports), (&plain.bits, &plain.world.reports), "{loss_bound:?}");
        assert!(watched.counter("tolaria.rollback.snapshots_total") >= 8);
        assert_eq!(watched.counter("tolaria.rollback.fast_hits_total"), 0);
    }
}

#[test]
fn a_fault_that_passes_is_gone_back_from_and_leaves_no_trace() {
    for fault in [Fault::Gradient, Fault::Loss, Fault::Jump] {
        let expected = run(recovery(), data(&[]), (fault, 0, 0, false));
        // In the first epoch, over the end of one, at the end of the run.
        for from in [3, 7, 8, 9, 13, 20, LAST - 3] {
            if fault == Fault::Jump && from < 13 {
                continue; // Not every answer is right yet.
            }
            // The rate stays as it is, so nothing but the way back is left.
            let config = RecoveryConfig { rate_factor: 1.0, loss_bound: Some(20.0), ..recovery() };
            let found = run(config, data(&[]), (fault, from, from + 6, false));
            let what = format!("{fault:?} from step {from}: {:?}", found.world.back);
            assert_eq!(found.outcome.as_ref().unwrap(), &Outcome::Completed, "{what}");
            assert_eq!(found.bits, expected.bits, "{what}");
            assert_eq!(found.world.reports, expected.world.reports, "{what}");
            let culprit = match fault {
                Fault::Gradient => "parameter `weight`",
                // It is the evaluation at the end of the epoch that finds it.
                Fault::Loss if matches!(from, 9 | 20) => "nothing that can still be found",
                _ => "the loss",
            };
            assert!(matches!(&*found.world.back, [(_, to, named, _)] if named == culprit && *to <= from), "{what}");
            assert_eq!(found.counter("tolaria.rollback.fast_hits_total"), 1, "{what}");
            assert!(found.counter("tolaria.steps.skipped_total") >= u64::from(from != 20), "{what}");
        }
    }
}

#[test]
fn a_parameter_that_is_no_number_is_named_and_comes_back_and_the_rate_falls() {
    let expected = run(recovery(), data(&[]), NO_FAULT);
    for from in [3, 9, 16, 22] {
        let found = run(recovery(), data(&[]), (Fault::Parameter, from, from + 1, false));
        assert_eq!(found.outcome.as_ref().unwrap(), &Outcome::Completed);
        let [(_, to, culprit, factor)] = &*found.world.back else { panic!("{:?}", found.world.back) };
        assert!(*to <= from && culprit == "parameter `weight`", "{:?}", found.world.back);
        assert!((factor - 0.5).abs() < 1e-12, "{factor}");
        assert_eq!(found.world.rates.last(), Some(&0.025));
        assert!(found.bits.iter().all(|bits| f32::from_bits(*bits).is_finite()));
        // It learned the same thing, more slowly.
        assert!((found.loss() - expected.loss()).abs() < 0.1, "{} {}", found.loss(), expected.loss());
    }
}

#[test]
fn a_parameter_that_is_no_number_and_that_no_loss_shows_is_found_before_anything_is_decided() {
    for (max_steps, from) in [(None, 12), (None, 19), (None, LAST - 1), (NonZeroU64::new(35), 34)] {
        let found = run_for(max_steps, recovery(), (data(&[]), data(&[])), (Fault::Hidden, from, from + 1, false));
        assert!(found.outcome.is_ok(), "{:?}", found.outcome);
        let named: Vec<&str> = found.world.back.iter().map(|(.., culprit, _)| &**culprit).collect();
        assert_eq!(named, ["parameter `offset`"], "from step {from}");
        assert!(found.bits.iter().all(|bits| f32::from_bits(*bits).is_finite()), "from step {from}");
    }
}

#[test]
fn samples_that_are_no_numbers_are_named_and_left_out_and_nothing_goes_back() {
    let found = run(RecoveryConfig { max_skipped: NonZeroU64::MIN, ..recovery() }, data(&[17]), NO_FAULT);
    assert_eq!(found.outcome.as_ref().unwrap(), &Outcome::Completed);
    assert_eq!((found.world.back.len(), found.counter("tolaria.steps.skipped_total")), (0, EPOCHS));
    let told: Vec<_> =
        found.recorder.events().into_iter().filter(|event| event.desc.name == "tolaria.diverged").collect();
    assert_eq!(told.len() as u64, EPOCHS);
    let said = format!("{:?}", told[0]);
    assert!(said.contains("training sample 17") && said.contains("left_out"), "{said}");
    let expected = run(recovery(), data(&[]), NO_FAULT);
    assert!((found.loss() - expected.loss()).abs() < 0.05, "{} {}", found.loss(), expected.loss());
}

#[test]
fn a_validation_sample_that_is_no_number_ends_the_run_by_its_number_and_nothing_goes_back() {
    let found = run_for(None, recovery(), (data(&[]), data(&[23, 31])), NO_FAULT);
    let told = found.outcome.unwrap_err().to_string();
    assert!(told.contains("validation") && told.contains("sample 23 has a number that is not finite"), "{told}");
    assert_eq!(found.world.back.len(), 0);
}

#[test]
fn a_fault_that_stays_ends_the_run_after_as_many_ways_back_as_it_may_take() {
    for (max_rollbacks, from) in [(0, 12), (2, 12), (3, 15)] {
        let config = RecoveryConfig { max_rollbacks, ..recovery() };
        let found = run(config, data(&[]), (Fault::Loss, from, u64::MAX, true));
        assert!(matches!(found.outcome, Err(Error::Diverged { .. })), "{:?}", found.outcome);
        assert_eq!(found.world.back.len(), max_rollbacks as usize);
        let steps: Vec<u64> = found.world.back.iter().map(|(_, to, ..)| *to).collect();
        assert!(steps.is_sorted_by(|a, b| a >= b), "it goes further back each time: {steps:?}");
        let factors: Vec<f64> = found.world.back.iter().map(|(.., factor)| *factor).collect();
        let expected: Vec<f64> = (1..=max_rollbacks).map(|power| 0.5_f64.powi(power.cast_signed())).collect();
        assert_eq!(factors, expected);
    }
}

//! Steps that share a launch are those that are taken one by one: their bits, what is due between them, and what is left by one that
//! fails.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{DType, Device, Tensor, Var, bail};
use leyline::durable::SavedState;
use leyline::id::StepIndex;
use leyline::model::Pass;
use leyline::region::Eager;
use tolaria::Error;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::host_read::{HostReads, read_vec};
use tolaria::optim::{Decay, OptimizerConfig, ScheduleConfig};
use tolaria::plain::{NoPolicy, NoSeeds, PlainModel};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{
    ExecutionConfig, Flow, NullObserver, Observer, Parts, RecoveryConfig, RunEvent, Splits, TrainConfig, Trainer,
};

/// Windows of an epoch: the last one is short.
const STEPS_PER_EPOCH: u64 = 11;
const NEVER: u64 = u64::MAX;

fn count(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

/// A trainer of 21 samples, two in a step, whose training pass number `fails_at`, from 0, fails.
fn trainer(change: impl FnOnce(&mut TrainConfig), fails_at: u64) -> Trainer<NoSeeds<PlainModel>, NoPolicy> {
    let weight = Var::zeros((2, 2), DType::F32, &Device::Cpu).unwrap();
    let (passes, named) = (AtomicU64::new(0), vec![("weight".to_owned(), weight.clone())]);
    let model = PlainModel::with_pass(named, move |x: &Tensor, pass: Pass<'_>| {
        if pass == Pass::Train && passes.fetch_add(1, Ordering::Relaxed) == fails_at {
            bail!("planted");
        }
        x.matmul(&weight)
    });
    let inputs: Vec<f32> = (0..42_u16).map(|i| f32::from(i * 7 % 11) / 11.0 - 0.4).collect();
    let inputs = Tensor::from_vec(inputs, (21, 2), &Device::Cpu).unwrap();
    let targets = Tensor::from_iter((0..21_u32).map(|i| i % 2), &Device::Cpu).unwrap();
    let data = Dataset::new(inputs, targets).unwrap();
    let splits = Splits { train: data.clone(), validation: data.clone(), test: data };
    let mut config = TrainConfig {
        batch: BatchConfig { batch_size: count(2), microbatches_per_step: NonZeroUsize::MIN },
        // Each step has another rate.
        schedule: ScheduleConfig { learning_rate: 0.1, warmup_steps: 5, decay: Decay::Cosine { final_ratio: 0.0 } },
        optimizer: OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 },
        ema_decay: Some(0.9),
        recovery: RecoveryConfig { memory_mib: 1, every_steps: NonZeroU64::MIN, ..RecoveryConfig::default() },
        ..TrainConfig::default()
    };
    change(&mut config);
    let parts = Parts { num_epochs: 3, ..Parts::plain(Classification::new(2), model.unwrap(), splits) };
    Trainer::new(config, parts).unwrap()
}

fn sharing(count: usize) -> ExecutionConfig {
    ExecutionConfig { steps_per_launch: NonZeroUsize::new(count).unwrap(), ..ExecutionConfig::default() }
}

/// All that a checkpoint would hold, number by number.
fn state(trainer: &mut Trainer<NoSeeds<PlainModel>, NoPolicy>, eager: &Eager) -> Vec<(String, String)> {
    let of = |(name, state): (String, SavedState)| {
        let tensors = state.tensors.iter().map(|(of, tensor)| (of.clone(), format!("{:?}", bits(tensor))));
        let tensors: Vec<_> = tensors.collect();
        [(name.clone(), state.json), (name, format!("{tensors:?}"))]
    };
    trainer.snapshot(eager).unwrap().components.into_iter().flat_map(of).collect()
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    let values = read_vec(&tensor.to_dtype(DType::F32).unwrap(), "test", &mut HostReads::default()).unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

/// Steps of which it was told, and those after which held-out data were evaluated.
#[derive(Default)]
struct Told {
    steps: Vec<u64>,
    evaluated: usize,
}

impl Observer for Told {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        self.steps.push(step.0);
        Flow::Continue
    }

    fn event(&mut self, event: &RunEvent<'_>) {
        self.evaluated += usize::from(matches!(event, RunEvent::Evaluated(_)));
    }

    fn epoch_finished(&mut self, _: &EpochReport) -> Result<(), leyline::error::BoxError> {
        Ok(())
    }
}

#[test]
fn steps_that_share_a_launch_have_the_bits_of_single_ones_and_stop_before_what_is_due() {
    let every = |n| NonZeroU64::new(n);
    for (shared, eval_every, is_checked, first_told) in [
        // 11 steps, of which the last has other sizes; every 8 are looked at, whether they can be used.
        (1, None, false, &[1, 2, 3][..]),
        (4, None, false, &[4, 8, 9, 10, 11, 15, 16, 20, 21, 22]),
        (3, None, false, &[3, 6, 7, 8, 9, 10, 11]),
        (4, every(5), false, &[4, 5, 6, 7, 8, 9, 10, 11]),
        (4, None, true, &[1, 2, 3, 4]),
        (16, None, false, &[1, 2, 3]),
    ] {
        let run = |steps_per_launch, check_each_step| {
            let execution = ExecutionConfig { check_each_step, ..sharing(steps_per_launch) };
            let change = |config: &mut TrainConfig| {
                config.execution = execution;
                config.eval_every_steps = eval_every;
            };
            let (mut trainer, mut told, mut eager) =
                (trainer(change, NEVER), Told::default(), Eager::acquire().unwrap());
            trainer.run(&mut eager, &mut told).unwrap();
            assert_eq!(trainer.optimizer().steps_of("weight"), Some(3 * STEPS_PER_EPOCH));
            (state(&mut trainer, &eager), told)
        };
        let (expected, singly) = run(1, false);
        let (found, told) = run(shared, is_checked);
        assert_eq!(found, expected, "{shared} {eval_every:?}");
        assert_eq!(told.evaluated, singly.evaluated);
        assert_eq!(told.steps[..first_told.len()], *first_told, "{shared} {eval_every:?}");
    }
}

/// What was taken before it is counted; it and what follows were not taken.
#[test]
fn a_step_that_fails_amid_a_launch_leaves_what_a_single_one_leaves() {
    for fails_at in [0, 1, 2, 3, 5, 8, 10] {
        let failed = |steps_per_launch| {
            let mut trainer = trainer(|config| config.execution = sharing(steps_per_launch), fails_at);
            let mut eager = Eager::acquire().unwrap();
            let error = trainer.run(&mut eager, &mut NullObserver).unwrap_err();
            assert!(matches!(error, Error::Model(_)), "{error}");
            let first = (trainer.progress().1.0, state(&mut trainer, &eager));
            assert_eq!(first.0, fails_at, "steps that were taken");
            // The pass fails once: the rest of the run is taken.
            trainer.run(&mut eager, &mut NullObserver).unwrap();
            (first, state(&mut trainer, &eager))
        };
        assert_eq!(failed(4), failed(1), "{fails_at}");
    }
}

#[test]
fn more_steps_than_a_launch_can_have_are_refused_by_name() {
    for (shared, is_refused) in [(16, false), (17, true)] {
        let config = TrainConfig { execution: sharing(shared), ..TrainConfig::default() };
        let refused = config.validate();
        let expected = [("execution.steps_per_launch".to_owned(), "a number from 1 to 16".to_owned())];
        assert_eq!(refused, if is_refused { expected.to_vec() } else { Vec::new() }, "{shared}");
    }
}

//! A model that is told what a pass is for, with state beside its parameters: taken up, it goes on as if it had not stopped.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Tensor, Var};
use leyline::clock::SystemClock;
use leyline::durable::Durable as _;
use leyline::error::BoxError;
use leyline::id::{RunId, StepIndex};
use leyline::model::Pass;
use leyline::region::Eager;
use leyline::telemetry::NullRecorder;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::checkpoint::{CheckpointStore, StdFs};
use tolaria::host_read::{HostReads, read_vec, read_vec_u32};
use tolaria::optim::{OptimizerConfig, ScheduleConfig};
use tolaria::plain::{NoPolicy, NoSeeds, PlainModel};
use tolaria::random::{DrawCounter, Dropout};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Checkpoints, Flow, NullObserver, Observer, Parts, Splits, TrainConfig, Trainer};

const NUM_EPOCHS: u64 = 3;
const STEPS_PER_EPOCH: u64 = 4;

fn count(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

fn samples() -> Dataset {
    let inputs = Tensor::from_iter((0..96_u16).map(|i| f32::from(i * 7 % 11) / 11.0 - 0.4), &Device::Cpu).unwrap();
    let targets = Tensor::from_iter((0..12_u32).map(|i| i % 2), &Device::Cpu).unwrap();
    Dataset::new(inputs.reshape((12, 8)).unwrap(), targets).unwrap()
}

/// One linear layer over inputs without their running mean, with dropout; all that training changes beside the weight.
struct Network {
    seeds: NoSeeds<PlainModel>,
    draws: Var,
}

impl Network {
    fn new(is_saved: bool) -> Self {
        let weight = Var::ones((8, 2), DType::F32, &Device::Cpu).unwrap();
        let mean = Var::zeros((1, 8), DType::F32, &Device::Cpu).unwrap();
        let counter = DrawCounter::new(7, &Device::Cpu).unwrap();
        let (dropout, draws) = (Dropout::new(0.5, 0, &counter).unwrap(), counter.as_var().clone());
        let buffers = vec![("draws".to_owned(), draws.clone()), ("mean".to_owned(), mean.clone())];
        let named = vec![("weight".to_owned(), weight.clone())];
        let model = PlainModel::with_pass(named, move |x: &Tensor, pass: Pass<'_>| {
            let is_training = pass == Pass::Train;
            if is_training {
                counter.advance()?;
                mean.set(&((mean.as_detached_tensor() * 0.9)? + (x.mean_keepdim(0)? * 0.1)?)?)?;
            }
            let centered = x.broadcast_sub(&mean.as_detached_tensor())?;
            dropout.forward(&centered, is_training)?.matmul(&weight)
        });
        let (model, buffers) = (model.unwrap(), if is_saved { buffers } else { Vec::new() });
        Self { seeds: NoSeeds::with_buffers(model, buffers).unwrap(), draws }
    }
}

fn trainer(seeds: NoSeeds<PlainModel>, dir: Option<&Path>) -> Trainer<NoSeeds<PlainModel>, NoPolicy> {
    trainer_on(samples(), 1, seeds, dir)
}

fn trainer_on(
    train: Dataset,
    microbatches_per_step: usize,
    seeds: NoSeeds<PlainModel>,
    dir: Option<&Path>,
) -> Trainer<NoSeeds<PlainModel>, NoPolicy> {
    let config = TrainConfig {
        batch: BatchConfig { batch_size: count(3), microbatches_per_step: count(microbatches_per_step) },
        optimizer: OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 },
        schedule: ScheduleConfig::constant(0.1),
        eval_batch_size: count(5),
        conflict_warn: 1.0,
        ..TrainConfig::default()
    };
    let open = |dir: &Path| Checkpoints {
        store: CheckpointStore::open(dir, count(1), Arc::new(StdFs)).unwrap(),
        every_epochs: NonZeroU64::new(100).unwrap(),
        every_steps: None,
        keep_best: false,
        in_background: true,
        config_digest: String::new(),
    };
    let parts = Parts {
        run_id: RunId::new("plain").unwrap(),
        seed: 4,
        num_epochs: NUM_EPOCHS,
        max_steps: None,
        device: Device::Cpu,
        data: Splits { train, validation: samples(), test: samples() },
        task: Arc::new(Classification::new(2)),
        seeds,
        policy: NoPolicy,
        checkpoints: dir.map(open),
        recorder: Arc::new(NullRecorder),
        clock: Arc::new(SystemClock::new()),
    };
    Trainer::new(config, parts).unwrap()
}

struct StopAfter(u64);

impl Observer for StopAfter {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        if step.0 == self.0 { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

/// Bits of parameters and buffers, and the test loss, of a run that was stopped after these steps and taken up.
fn run(is_saved: bool, stop: Option<u64>) -> (Vec<u32>, u64) {
    let (mut eager, dir) = (Eager::acquire().unwrap(), tempfile::tempdir().unwrap());
    let mut last = trainer(Network::new(is_saved).seeds, Some(dir.path()));
    if let Some(stop) = stop {
        last.run(&mut eager, &mut StopAfter(stop)).unwrap();
        drop(last);
        last = trainer(Network::new(is_saved).seeds, Some(dir.path()));
        last.resume(&mut eager).unwrap().unwrap();
    }
    last.run(&mut eager, &mut NullObserver).unwrap();
    let mut reads = HostReads::default();
    let tensors = last.seeds().save(&eager).unwrap().tensors.into_values();
    let bits = tensors.flat_map(|tensor| match tensor.dtype() {
        DType::U32 => read_vec_u32(&tensor, "test", &mut reads).unwrap(),
        _ => read_vec(&tensor, "test", &mut reads).unwrap().into_iter().map(f32::to_bits).collect(),
    });
    (bits.collect(), last.test(&eager).unwrap().score.loss.to_bits())
}

#[test]
fn a_run_with_dropout_and_running_statistics_that_is_stopped_and_taken_up_has_the_bits_of_one_that_was_not() {
    let expected = run(true, None);
    for stop in 1..NUM_EPOCHS * STEPS_PER_EPOCH {
        assert_eq!(run(true, Some(stop)), expected, "stopped after step {stop}");
        assert_ne!(run(false, Some(stop)).1, run(false, None).1, "masks and statistics matter");
    }
}

/// The rows of samples, of which one has a number that is none; what the passes of a run made of the running mean, in order, and
/// what it is at the end.
fn means_of_a_run(microbatches_per_step: usize) -> (Vec<Vec<f32>>, Vec<f32>) {
    let mut values: Vec<f32> = (0..96_u16).map(|i| f32::from(i * 7 % 11) / 11.0 - 0.4).collect();
    values[8 * 5 + 2] = f32::NAN;
    let targets = Tensor::from_iter((0..12_u32).map(|i| i % 2), &Device::Cpu).unwrap();
    let data = Dataset::new(Tensor::from_vec(values, (12, 8), &Device::Cpu).unwrap(), targets).unwrap();

    let weight = Var::ones((8, 2), DType::F32, &Device::Cpu).unwrap();
    let mean = Var::zeros(8, DType::F32, &Device::Cpu).unwrap();
    let draws = Var::zeros(1, DType::U32, &Device::Cpu).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let buffers = vec![("draws".to_owned(), draws.clone()), ("mean".to_owned(), mean.clone())];
    let (of_pass, named) = (Arc::clone(&seen), vec![("weight".to_owned(), weight.clone())]);
    let counter = draws.clone();
    let model = PlainModel::with_pass(named, move |x: &Tensor, pass: Pass<'_>| {
        if pass == Pass::Train {
            let batch = x.mean(0)?;
            of_pass.lock().unwrap().push(read_vec(&batch, "test", &mut HostReads::default()).unwrap());
            mean.set(&((mean.as_detached_tensor() * 0.5)? + (batch * 0.5)?)?)?;
            counter.set(&(counter.as_detached_tensor() + 1.0)?)?;
        }
        x.broadcast_sub(&mean.as_detached_tensor())?.matmul(&weight)
    });
    let seeds = NoSeeds::with_buffers(model.unwrap(), buffers).unwrap();
    let (mut trainer, mut eager) = (trainer_on(data, microbatches_per_step, seeds, None), Eager::acquire().unwrap());
    trainer.run(&mut eager, &mut NullObserver).unwrap();
    let (saved, mut reads) = (trainer.seeds().save(&eager).unwrap(), HostReads::default());
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let drawn = read_vec_u32(&saved.tensors["draws"], "test", &mut reads).unwrap();
    assert_eq!(drawn, [u32::try_from(seen.len()).unwrap()], "what is no statistic goes on");
    (seen, read_vec(&saved.tensors["mean"], "test", &mut reads).unwrap())
}

#[test]
fn running_statistics_are_those_of_the_steps_that_were_not_left_out() {
    for microbatches_per_step in [1, 2, 3] {
        let (seen, mean) = means_of_a_run(microbatches_per_step);
        assert_eq!(seen.len(), 12);
        let mut expected = vec![0.0; 8];
        let mut num_left_out = 0;
        // Four microbatches in an epoch: of three in a step, the last is alone.
        for step in seen.chunks(4).flat_map(|epoch| epoch.chunks(microbatches_per_step)) {
            if step.iter().flatten().any(|value| value.is_nan()) {
                num_left_out += 1;
                continue;
            }
            for batch in step {
                expected.iter_mut().zip(batch).for_each(|(mean, batch)| *mean = *mean * 0.5 + batch * 0.5);
            }
        }
        assert_eq!(num_left_out, NUM_EPOCHS);
        assert_eq!(mean, expected, "{microbatches_per_step} microbatches in a step");
    }
}

/// Losses in training of a run's epochs, and its running mean at the end; one pass fails, and the trainer is run again.
fn losses_of_a_run_that_fails_in(pass: Option<u32>) -> (Vec<u64>, Vec<f32>) {
    #[derive(Default)]
    struct Losses(Vec<u64>);
    impl Observer for Losses {
        fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
            self.0.push(report.train.as_ref().unwrap().loss.to_bits());
            Ok(())
        }
    }

    let weight = Var::ones((8, 2), DType::F32, &Device::Cpu).unwrap();
    let mean = Var::zeros(8, DType::F32, &Device::Cpu).unwrap();
    let (named, buffers) = (vec![("weight".to_owned(), weight.clone())], vec![("mean".to_owned(), mean.clone())]);
    let num_passes = AtomicU32::new(0);
    let model = PlainModel::with_pass(named, move |x: &Tensor, of: Pass<'_>| {
        if of == Pass::Train {
            mean.set(&((mean.as_detached_tensor() * 0.5)? + (x.mean(0)? * 0.5)?)?)?;
            if pass == Some(num_passes.fetch_add(1, Ordering::Relaxed)) {
                candle_core::bail!("a pass that fails once");
            }
        }
        x.broadcast_sub(&mean.as_detached_tensor())?.matmul(&weight)
    });
    let seeds = NoSeeds::with_buffers(model.unwrap(), buffers).unwrap();
    let (mut trainer, mut eager, mut losses) =
        (trainer_on(samples(), 2, seeds, None), Eager::acquire().unwrap(), Losses::default());
    let failed = trainer.run(&mut eager, &mut losses).is_err();
    assert_eq!(failed, pass.is_some());
    if failed {
        trainer.run(&mut eager, &mut losses).unwrap();
    }
    let saved = trainer.seeds().save(&eager).unwrap();
    (losses.0, read_vec(&saved.tensors["mean"], "test", &mut HostReads::default()).unwrap())
}

#[test]
fn a_step_that_failed_and_is_taken_again_counts_once() {
    let expected = losses_of_a_run_that_fails_in(None);
    // Two steps of two microbatches in an epoch.
    for pass in [0, 1, 3, 6, 7] {
        assert_eq!(losses_of_a_run_that_fails_in(Some(pass)), expected, "pass {pass} fails");
    }
}

#[test]
fn evaluation_drops_nothing_and_draws_nothing() {
    let Network { seeds, draws } = Network::new(true);
    let mut trainer = trainer(seeds, None);
    let (mut eager, mut reads) = (Eager::acquire().unwrap(), HostReads::default());
    let first = trainer.test(&eager).unwrap();
    trainer.run(&mut eager, &mut NullObserver).unwrap();
    let drawn = read_vec_u32(draws.as_tensor(), "test", &mut reads).unwrap();
    assert_eq!(drawn, [u32::try_from(NUM_EPOCHS * STEPS_PER_EPOCH).unwrap(), 0], "one draw per training pass");
    let last = trainer.test(&eager).unwrap();
    assert_eq!(last, trainer.test(&eager).unwrap());
    assert_ne!(last, first);
    assert_eq!(read_vec_u32(draws.as_tensor(), "test", &mut reads).unwrap(), drawn);
}

#[test]
fn names_of_buffers_are_their_own() {
    let var = || Var::zeros(2, DType::F32, &Device::Cpu).unwrap();
    let model = || PlainModel::new(vec![("weight".to_owned(), var())], |x| Ok(x.clone())).unwrap();
    for names in [["weight", "mean"], ["mean", "mean"]] {
        let buffers = names.map(|name| (name.to_owned(), var())).to_vec();
        let error = NoSeeds::with_buffers(model(), buffers).unwrap_err().to_string();
        assert!(error.starts_with("buffers: expected names of their own, found `"), "{error}");
    }
}

/// What a run says whose model cuts the parameter `cut` off, or does not use it.
fn told(is_used: bool) -> String {
    // Nothing depends on what comes before it until it moves.
    let weight = Var::zeros((8, 2), DType::F32, &Device::Cpu).unwrap();
    let cut = Var::ones((8, 8), DType::F32, &Device::Cpu).unwrap();
    let named = vec![("weight".to_owned(), weight.clone()), ("cut".to_owned(), cut.clone())];
    let model = PlainModel::new(named, move |x: &Tensor| {
        // As one of candle-nn's fused operations does it.
        let hidden = if is_used { x.matmul(&cut)?.detach() } else { x.clone() };
        hidden.matmul(&weight)
    });
    let mut trainer = trainer(NoSeeds::new(model.unwrap()), None);
    trainer.run(&mut Eager::acquire().unwrap(), &mut NullObserver).unwrap_err().to_string()
}

#[test]
fn a_parameter_without_a_gradient_is_named_with_the_reason_and_what_to_do() {
    let cut = told(true);
    assert!(cut.starts_with("the loss depends on parameter `cut`, which gets no gradient"), "{cut}");
    assert!(cut.contains("[patch.crates-io]"), "{cut}");
    let unused = told(false);
    assert!(unused.starts_with("the loss does not depend on parameter `cut`"), "{unused}");
}

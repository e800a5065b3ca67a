//! Optimizer steps of the trainer against the same steps as candle offers them, on the CPU.
//!
//! Three forms take the same steps from the same weights: candle's operations, loss and optimizer; the trainer with a network of
//! candle's operations; the trainer with a network of `esper_layers`. Their parameters are compared before a time is taken. Then
//! they take turns, a block of steps each. A step starts with the indices of its samples and ends with updated parameters.

use std::sync::Arc;
use std::time::Duration;

use candle_core::{Device, Tensor, Var};
use candle_nn::{Optimizer as _, SGD};
use leyline::clock::Clock;
use leyline::error::BoxError;
use leyline::id::{EpochIndex, StepIndex};
use leyline::model::{Parameter, Pass, TrainableModel as _};
use leyline::region::Eager;
use leyline::seed::SeedManager as _;
use tolaria::batch::{BatchConfig, Dataset, Sampler};
use tolaria::host_read::{HostReads, read_vec_f64};
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Flow, Observer, Splits, TrainConfig};

use crate::error::Error;
use crate::measure::Measurement;
use crate::models::{Form, Variant, Workload};
use crate::samples::{Samples, ms};
use crate::trainer::{PlainTrainer, constant, count, plain_trainer};

const LEARNING_RATE: f64 = 0.1;
const BLOCKS: usize = 20;
/// Steps until parameters are compared; whole epochs of every work.
const COMPARED_STEPS: usize = 16;
/// Between forms after so many steps: sums of up to 784 products in `f32`, and two ways to write the loss.
const MAX_DIFFERENCE: f64 = 1e-5;
/// What some parameter has moved by then; otherwise equal parameters would say nothing.
const MIN_MOVE: f64 = 1e-3;

/// A network with its data, and how often it is measured.
struct Case {
    name: &'static str,
    steps_per_block: usize,
    make: fn(Form) -> Result<Workload, Error>,
}

const CASES: [Case; 3] = [
    Case { name: "linear4", steps_per_block: 1_000, make: |form| linear(4, form) },
    Case { name: "linear16", steps_per_block: 1_000, make: |form| linear(16, form) },
    Case { name: "mlp", steps_per_block: 8, make: mlp },
];

/// Times of the forms, and how many times longer candle's takes than each of the others.
pub(super) fn measure(clock: &Arc<dyn Clock>, samples: &mut Samples) -> Result<(), Error> {
    CASES.iter().try_for_each(|case| measure_case(case, clock, samples))
}

fn measure_case(case: &Case, clock: &Arc<dyn Clock>, samples: &mut Samples) -> Result<(), Error> {
    let [primitive, layers] = [Form::Primitive, Form::Layers];
    let mut candle = Candle::new((case.make)(primitive)?, clock)?;
    let mut composed = Trained::new((case.make)(primitive)?, clock)?;
    let mut fused = Trained::new((case.make)(layers)?, clock)?;

    let before = values(candle.work.model.parameters())?;
    let mut eager = Eager::acquire()?;
    candle.take(COMPARED_STEPS)?;
    composed.take(COMPARED_STEPS, &mut eager)?;
    fused.take(COMPARED_STEPS, &mut eager)?;
    let expected = values(candle.work.model.parameters())?;
    let moved = largest_difference(&before, &expected);
    if moved.is_nan() || moved < MIN_MOVE {
        let what = format!("the largest change of a parameter of {}", case.name);
        return Err(Error::WrongResult { what, expected: MIN_MOVE, found: moved });
    }
    for trained in [&composed, &fused] {
        let found = largest_difference(&values(trained.trainer.seeds().model().parameters())?, &expected);
        if found.is_nan() || found > MAX_DIFFERENCE {
            let what = format!("the largest difference of a parameter of {} from candle's", case.name);
            return Err(Error::WrongResult { what, expected: 0.0, found });
        }
    }

    for _ in 0..BLOCKS {
        let blocks = [
            ("candle_step", candle.take(case.steps_per_block)?),
            ("composed_step", composed.take(case.steps_per_block, &mut eager)?),
            ("step", fused.take(case.steps_per_block, &mut eager)?),
        ];
        let median = |times: &Vec<f64>| Measurement::of("ms", times.clone()).map_or(f64::NAN, |of| of.median);
        let [candle, composed, fused] = blocks.each_ref().map(|(_, times)| median(times));
        samples.push(format!("{}.speedup_of_composed_step", case.name), "ratio", candle / composed);
        samples.push(format!("{}.speedup", case.name), "ratio", candle / fused);
        for (what, times) in blocks {
            samples.extend(format!("{}.{what}", case.name), "ms", times);
        }
    }
    Ok(())
}

/// `num_inputs`→4 with bias, 16 samples in batches of 4.
fn linear(num_inputs: usize, form: Form) -> Result<Workload, Error> {
    Workload::reference(num_inputs, Variant::of(form), 0, &Device::Cpu)
}

/// 784-512-512-10 with ReLU, batches of 128.
fn mlp(form: Form) -> Result<Workload, Error> {
    Workload::of("mlp", Variant::of(form), 0, &Device::Cpu)
}

fn values(parameters: &[Parameter]) -> Result<Vec<f64>, Error> {
    let mut all = Vec::new();
    for parameter in parameters {
        let flat = parameter.var.as_detached_tensor().flatten_all()?;
        all.extend(read_vec_f64(&flat, "parameters", &mut HostReads::default())?);
    }
    Ok(all)
}

/// NaN when there is one in either.
fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |largest, value| if value > largest || value.is_nan() { value } else { largest })
}

/// Candle's operations, loss and optimizer.
struct Candle {
    work: Workload,
    optimizer: SGD,
    epoch: EpochIndex,
    order: Vec<u32>,
    next: usize,
    clock: Arc<dyn Clock>,
}

impl Candle {
    fn new(work: Workload, clock: &Arc<dyn Clock>) -> Result<Self, Error> {
        let variables: Vec<Var> = work.model.parameters().iter().map(|parameter| parameter.var.clone()).collect();
        let optimizer = SGD::new(variables, LEARNING_RATE)?;
        let order = Sampler::new(0).permutation(EpochIndex(0), work.inputs.dims()[0]);
        Ok(Self { work, optimizer, epoch: EpochIndex(0), order, next: 0, clock: Arc::clone(clock) })
    }

    /// Times of so many steps, in ms.
    fn take(&mut self, num_steps: usize) -> Result<Vec<f64>, Error> {
        let mut times = Vec::with_capacity(num_steps);
        for _ in 0..num_steps {
            if self.next == self.order.len() {
                self.epoch = EpochIndex(self.epoch.0 + 1);
                self.order = Sampler::new(0).permutation(self.epoch, self.order.len());
                self.next = 0;
            }
            let began = self.clock.now();
            let samples = &self.order[self.next..self.next + self.work.batch_size];
            let indices = Tensor::new(samples, &Device::Cpu)?;
            let inputs = self.work.inputs.index_select(&indices, 0)?;
            let targets = self.work.targets.index_select(&indices, 0)?;
            let logits = self.work.model.forward(&inputs, Pass::Train)?.logits;
            self.optimizer.backward_step(&candle_nn::loss::cross_entropy(&logits, &targets)?)?;
            times.push(ms(self.clock.now() - began));
            self.next += self.work.batch_size;
        }
        Ok(times)
    }
}

/// The trainer, which stops after a block.
struct Trained {
    trainer: PlainTrainer,
    clock: Arc<dyn Clock>,
}

impl Trained {
    fn new(work: Workload, clock: &Arc<dyn Clock>) -> Result<Self, Error> {
        let config = TrainConfig {
            batch: BatchConfig { batch_size: count(work.batch_size), microbatches_per_step: count(1) },
            schedule: constant(LEARNING_RATE),
            ..super::config()
        };
        let batch = work.batch(0)?;
        let few = Dataset::new(batch.inputs, batch.targets)?;
        let data = Splits { train: work.dataset()?, validation: few.clone(), test: few };
        let trainer = plain_trainer(config, work.num_classes, work.model, data, [0, u64::MAX], clock)?;
        Ok(Self { trainer, clock: Arc::clone(clock) })
    }

    /// Times of so many steps, in ms, the first one's of the block left out: it starts with the call of the trainer.
    fn take(&mut self, num_steps: usize, eager: &mut Eager) -> Result<Vec<f64>, Error> {
        let times = Vec::with_capacity(num_steps);
        let mut block = Block { clock: Arc::clone(&self.clock), left: num_steps, began: None, times };
        self.trainer.run(eager, &mut block)?;
        Ok(block.times)
    }
}

struct Block {
    clock: Arc<dyn Clock>,
    left: usize,
    /// When the step that runs began, where that is known.
    began: Option<Duration>,
    times: Vec<f64>,
}

impl Observer for Block {
    fn step_finished(&mut self, _step: StepIndex) -> Flow {
        let now = self.clock.now();
        self.times.extend(self.began.map(|began| ms(now - began)));
        self.left -= 1;
        self.began = Some(self.clock.now());
        if self.left == 0 { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        self.began = Some(self.clock.now());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_that_is_not_a_number_is_not_hidden_by_one_that_is() {
        assert!((largest_difference(&[1.0, 2.0], &[1.5, 4.0]) - 2.0).abs() < 1e-12);
        assert!(largest_difference(&[f64::NAN, 2.0], &[0.0, 0.0]).is_nan());
        assert!(largest_difference(&[0.0, f64::NAN], &[9.0, 0.0]).is_nan());
    }

    #[test]
    fn the_forms_start_from_the_same_parameters() {
        for case in &CASES[..2] {
            let [a, b] = [Form::Primitive, Form::Layers].map(|form| (case.make)(form).unwrap());
            assert_eq!(values(a.model.parameters()).unwrap(), values(b.model.parameters()).unwrap(), "{}", case.name);
        }
    }
}

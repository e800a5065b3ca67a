//! Networks that do not grow: those of the benches in both forms, convolutions, accumulation, dropout.

use std::sync::Arc;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use leyline::clock::Clock;
use leyline::region::Eager;
use tolaria::aggregate::ConflictResolution;
use tolaria::batch::Dataset;
use tolaria::optim::{OptimizerConfig, ScheduleConfig};
use tolaria::plain::PlainModel;
use tolaria::random::{DrawCounter, Dropout};
use tolaria::trainer::{ExecutionConfig, StepMode, TrainConfig, TrainPrecision};

use super::MIN_STEPS;
use crate::candle_in_place;
use crate::error::Error;
use crate::gpu::growing::{CLASSES, in_mode, samples};
use crate::gpu::open::Gpu;
use crate::gpu::ran::{Ran, same};
use crate::gpu::report::{Broken, Report, promise};
use crate::models::{Form, Precision, Variant, Workload, largest_gradient_error};
use crate::trainer::{PlainTrainer, all_of, count, plain_trainer, train_config, two_layers};

pub(super) const SGD: OptimizerConfig = OptimizerConfig::Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-4 };
pub(super) const ADAM_W: OptimizerConfig =
    OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
pub(crate) const MUON: OptimizerConfig =
    OptimizerConfig::Muon { momentum: 0.95, nesterov: true, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
/// Name of the network that reduces in all ways.
const REDUCTIONS: &str = "reductions";
/// Compiled steps of a run, percent.
const SHARE: u64 = 50;
/// Of a gradient in `f32`, summed in another order than that of the CPU.
const GRADIENT_TOLERANCE: f64 = 1e-3;

/// A network, its logits of a sample, and what it is trained on.
type Parts = (PlainModel, usize, Dataset);
type Build = Box<dyn Fn(&Device) -> Result<Parts, Error>>;

/// A network with its data, and how it is trained.
struct Network {
    name: String,
    build: Build,
    optimizer: OptimizerConfig,
    batch_size: usize,
    microbatches: usize,
    epochs: u64,
    /// After each step.
    pause: Duration,
    precision: TrainPrecision,
    /// Of compiled steps; captured ones have a launch each.
    steps_per_launch: usize,
}

pub(super) fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    report.check("conv2d.gradient", |_| {
        let error = largest_gradient_error(&gpu.device)?;
        promise(error < GRADIENT_TOLERANCE, || format!("a gradient of candle's convolution is off by {error:e}"))?;
        Ok(format!("largest difference from difference quotients {error:e}"))
    });
    for network in networks() {
        report.check(format!("compiled.{}", network.name), |_| {
            let captured = network.run(StepMode::Graph, &gpu.device, &gpu.clock, eager)?;
            let compiled = network.run(StepMode::Compiled, &gpu.device, &gpu.clock, eager)?;
            if network.name.starts_with(REDUCTIONS) {
                promise(compiled.reductions > 0, || "no reduction was rewritten".to_owned())?;
            }
            let (launches, shared) = (compiled.launches, network.steps_per_launch as u64);
            promise(launches * shared == compiled.steps, || {
                format!("{launches} launches of {} steps", compiled.steps)
            })?;
            same(&captured, &compiled, [MIN_STEPS, SHARE])
        });
    }
}

fn networks() -> Vec<Network> {
    let mut networks = Vec::new();
    for form in Form::ALL {
        let variant = Variant::of(form);
        for (optimizer_name, optimizer) in [("sgd", SGD), ("adam_w", ADAM_W)] {
            let of = |work: &str, batch_size, microbatches, build: Build| Network {
                name: format!("{work}.{}.{optimizer_name}", form.name()),
                build,
                optimizer,
                batch_size,
                microbatches,
                epochs: if work == "ref" { 250 } else { 125 },
                pause: Duration::from_millis(2),
                precision: TrainPrecision::F32,
                steps_per_launch: 1,
            };
            let named = move |name: &'static str| -> Build {
                Box::new(move |device| parts_of(Workload::of(name, variant, 0, device)?))
            };
            networks.push(of("ref", 4, 1, named("ref")));
            networks.push(of("mlp", 128, 1, named("mlp")));
            networks.push(of("accumulation4", 32, 4, named("mlp")));
            networks.push(Network { steps_per_launch: 4, ..of("shared4.mlp", 128, 1, named("mlp")) });
            networks.push(Network { steps_per_launch: 2, ..of("shared2.accumulation4", 32, 4, named("mlp")) });
            let conv2d = Box::new(move |device: &Device| parts_of(Workload::conv2d(variant, 0, device)?));
            networks.push(of("conv2d", 16, 1, conv2d));
            if form == Form::Primitive {
                // More kernels to compile than others have.
                let pause = Duration::from_millis(4);
                for dtype in [DType::F32, DType::BF16] {
                    let build = Box::new(move |device: &Device| reductions(dtype, device));
                    let work = format!("{REDUCTIONS}.{}", dtype.as_str());
                    networks.push(Network { epochs: 500, pause, ..of(&work, 64, 1, build) });
                }
                networks.push(of("dropout", 16, 1, Box::new(dropout)));
            }
            let rectify = if form == Form::Primitive { Tensor::relu } else { esper_layers::relu };
            networks.push(of("relu_at_zero", 16, 1, Box::new(move |device| relu_at_zero(rectify, device))));
        }
        for (optimizer_name, optimizer) in [("adam_w", ADAM_W), ("muon", MUON)] {
            networks.push(Network {
                name: format!("tfm5m.{}.{optimizer_name}", form.name()),
                build: Box::new(move |device| parts_of(Workload::sequence_ends(variant, 0, device)?)),
                optimizer,
                batch_size: 8,
                microbatches: 1,
                epochs: 125,
                pause: Duration::from_millis(1),
                precision: TrainPrecision::F32,
                steps_per_launch: 1,
            });
        }
    }
    // The network rounds its weights itself; where candle asks for copies, the trainer gives them.
    let variant = Variant { form: Form::Primitive, precision: Precision::Bf16 };
    networks.push(Network {
        name: "rounded.mlp.primitive.adam_w".to_owned(),
        build: Box::new(move |device| parts_of(Workload::of("mlp", variant, 0, device)?)),
        optimizer: ADAM_W,
        batch_size: 32,
        microbatches: 4,
        epochs: 125,
        pause: Duration::from_millis(2),
        precision: if candle_in_place::asks_for_copies() { TrainPrecision::Bf16 } else { TrainPrecision::F32 },
        steps_per_launch: 1,
    });
    let variant = Variant { form: Form::Layers, precision: Precision::Bf16Pure };
    let of = |work: &str, batch_size, precision: TrainPrecision, build: Build| Network {
        name: format!("{work}.{}.layers.adam_w", precision.name()),
        build,
        optimizer: ADAM_W,
        batch_size,
        microbatches: 1,
        epochs: 125,
        pause: Duration::from_millis(2),
        precision,
        steps_per_launch: 1,
    };
    for precision in [TrainPrecision::Bf16Pure, TrainPrecision::Bf16Stochastic] {
        let mlp = Box::new(move |device: &Device| parts_of(Workload::of("mlp", variant, 0, device)?));
        networks.push(of("mlp", 128, precision, mlp));
        let transformer = Box::new(move |device: &Device| parts_of(Workload::sequence_ends(variant, 0, device)?));
        networks.push(of("tfm5m", 8, precision, transformer));
    }
    networks
}

impl Network {
    fn run(&self, mode: StepMode, device: &Device, clock: &Arc<dyn Clock>, eager: &mut Eager) -> Result<Ran, Broken> {
        let pause = |_| if mode == StepMode::Compiled { self.pause } else { Duration::ZERO };
        Ran::of(self.trainer(mode, self.epochs, device, clock)?, eager, pause)
    }

    fn trainer(
        &self,
        mode: StepMode,
        num_epochs: u64,
        device: &Device,
        clock: &Arc<dyn Clock>,
    ) -> Result<PlainTrainer, Broken> {
        let (model, num_classes, train) = (self.build)(device)?;
        let of_launch = if mode == StepMode::Compiled { self.steps_per_launch } else { 1 };
        let execution = ExecutionConfig { steps_per_launch: count(of_launch), ..in_mode(mode) };
        let config =
            train_config(self.batch_size, self.microbatches, self.optimizer, ConflictResolution::Mean, execution);
        let config = TrainConfig {
            schedule: ScheduleConfig { learning_rate: 1e-3, ..config.schedule },
            eval_batch_size: count(1024),
            precision: self.precision,
            ..config
        };
        Ok(plain_trainer(config, num_classes, model, all_of(train), [3, num_epochs], clock)?)
    }
}

fn parts_of(work: Workload) -> Result<Parts, Error> {
    let dataset = work.dataset()?;
    Ok((work.model, work.num_classes, dataset))
}

/// 16-32-10 with dropout between the layers, over 128 samples.
fn dropout(device: &Device) -> Result<Parts, Error> {
    let counter = DrawCounter::new(99, device)?;
    let layer = Dropout::new(0.25, 0, &counter)?;
    let model = two_layers(11, CLASSES, device, move |x| {
        counter.advance()?;
        Ok(layer.forward(&x.relu()?, true)?)
    })?;
    let data = samples(128, 16, CLASSES, device).map_err(|Broken(text)| candle_core::Error::Msg(text))?;
    Ok((model, CLASSES, data))
}

/// 16-32-10 with reductions between the layers, along rows and columns, of lengths that are shared out among threads in every
/// way: with infinities, rows that hold what is no number, zeros of both signs, and numbers too small to be normal. What is reduced
/// is of the type `dtype`.
fn reductions(dtype: DType, device: &Device) -> Result<Parts, Error> {
    let widths = [31, 33, 36, 40, 128, 132, 512, 516, 1028, 4096, 4100];
    let spread = |width: usize| {
        let weight = |place: usize| f32::from(u8::try_from(place * 29 % 61).expect("less than 61")) / 61.0 - 0.5;
        Tensor::from_vec((0..32 * width).map(weight).collect(), (32, width), device)
    };
    let hidden = |width: usize| {
        let entry = |place: usize| if place % 5 == 3 { f32::NEG_INFINITY } else { -0.0 };
        Tensor::from_vec((0..width).map(entry).collect(), (1, width), device)?.to_dtype(dtype)
    };
    let spread: Vec<[Tensor; 2]> =
        widths.into_iter().map(|width| Ok([spread(width)?, hidden(width)?])).collect::<candle_core::Result<_>>()?;
    let model = two_layers(17, CLASSES, device, move |x| {
        let mut sum = x.clone();
        for [spread, hidden] in &spread {
            let reduced = reduced(&x.matmul(spread)?.to_dtype(dtype)?, hidden)?;
            sum = sum.broadcast_add(&reduced.to_dtype(DType::F32)?)?;
        }
        Ok(sum)
    })?;
    let data = samples(128, 16, CLASSES, device).map_err(|Broken(text)| candle_core::Error::Msg(text))?;
    Ok((model, CLASSES, data))
}

/// A number per row, shape (rows, 1), by all reductions of candle that have a gradient.
fn reduced(x: &Tensor, hidden: &Tensor) -> candle_core::Result<Tensor> {
    let masked = x.broadcast_add(hidden)?;
    let exp = masked.broadcast_sub(&masked.max_keepdim(1)?.detach())?.exp()?;
    let weights = exp.broadcast_div(&exp.sum_keepdim(1)?)?;
    let centered = x.broadcast_sub(&x.mean_keepdim(1)?)?;
    let deviation = (centered.sqr()?.mean_keepdim(1)? + 1e-5)?.sqrt()?;
    let tiny = ((x * 1e-39)?.sum_keepdim(0)? * 1e37)?;
    let normal = centered.broadcast_div(&deviation)?.broadcast_add(&tiny)?;
    // Infinite, and no number where infinity meets minus infinity.
    let odd = (x.detach() * f64::INFINITY)?;
    let (largest, smallest, sum) = (odd.max_keepdim(1)?, odd.min_keepdim(1)?, odd.sum_keepdim(1)?);
    let num_odd = (largest.ne(&smallest)?.to_dtype(x.dtype())? + sum.ne(&sum)?.to_dtype(x.dtype())?)?;
    (weights * normal)?.sum_keepdim(1)?.broadcast_add(&(num_odd * 1e-3)?)
}

/// 16-32-10 with a rectifier between the layers that sees nothing but zeros, through which the first layer gets a second
/// gradient or does not: that depends on the derivative at 0.
fn relu_at_zero(rectify: fn(&Tensor) -> candle_core::Result<Tensor>, device: &Device) -> Result<Parts, Error> {
    let model = two_layers(13, CLASSES, device, move |hidden| {
        let zeros = (hidden - hidden.detach())?;
        hidden + rectify(&zeros)?
    })?;
    let data = samples(128, 16, CLASSES, device).map_err(|Broken(text)| candle_core::Error::Msg(text))?;
    Ok((model, CLASSES, data))
}

#[cfg(test)]
mod tests {
    use leyline::clock::SystemClock;

    use super::*;

    #[test]
    fn every_network_takes_a_thousand_steps_and_has_a_name_of_its_own() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let mut names = Vec::new();
        for network in networks() {
            let (_, _, data) = (network.build)(&Device::Cpu).unwrap();
            let steps =
                data.len() / (network.batch_size * network.microbatches) * usize::try_from(network.epochs).unwrap();
            assert_eq!(steps, 1000, "{}", network.name);
            assert!(network.trainer(StepMode::Graph, 1, &Device::Cpu, &clock).is_ok(), "{}", network.name);
            names.push(network.name);
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!((names.len(), count), (43, 43), "{names:?}");
    }

    #[test]
    fn an_epoch_of_the_small_networks_moves_their_parameters() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let mut eager = Eager::acquire().unwrap();
        for network in networks()
            .into_iter()
            .filter(|network| !["tfm5m", "mlp", "acc", "shared"].iter().any(|large| network.name.starts_with(large)))
        {
            let trainer =
                network.trainer(StepMode::Compiled, 1, &Device::Cpu, &clock).map_err(|broken| broken.0).unwrap();
            let ran = Ran::of(trainer, &mut eager, |_| Duration::ZERO).map_err(|broken| broken.0).unwrap();
            let moved = ran.start.iter().zip(&ran.parameters).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
            assert!(moved * 2 > ran.start.len(), "{}: {moved} of {}", network.name, ran.start.len());
        }
    }
}

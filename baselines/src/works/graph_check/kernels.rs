//! The crate's own kernels against compositions of candle operations, and against the CPU.

use std::num::NonZeroUsize;

use candle_core::{DType, Device, Tensor, Var};
use esper_graph::precision::{with_copies, working_copy};
use esper_graph::{HostSlice, Precision, StagingLane, StagingRing};
use leyline::id::TopologyRevision;
use leyline::layout::{Owner, ParameterLayout, SegmentSpec};
use leyline::model::Parameter;
use tolaria::host_read::{HostReads, read_scalar, read_vec};
use tolaria::loss::{self, IGNORED};
use tolaria::optim::{Optimizer, OptimizerConfig, Rounding};

use super::super::compile_check::MUON;
use crate::gpu::growing::differing;
use crate::gpu::open::Gpu;
use crate::gpu::report::{Broken, Report, promise};
use crate::models::Draw;

const STEPS: usize = 200;
/// Of updates with copies.
const FEW_STEPS: usize = 20;
/// The first and the last have several chunks, of which blocks take shares: aligned, in fours, and not.
const SHAPES: [(usize, usize); 5] = [(64, 1003), (37, 19), (1, 64), (128, 5), (65, 1003)];
const LEARNING_RATE: f64 = 0.003;
/// Of losses and gradients on two devices: exponentials and logarithms round as each has them.
const ROUNDING: f32 = 4e-6;
/// The same of losses of `bf16`, whose exponentials are approximate.
const APPROXIMATE: f32 = 1e-5;
/// Of gradients that are rounded to 8 bits, one to the one side and one to the other, as a part of each; below [`SMALL`], of that.
const ROUNDING_HALF: f32 = 7.9e-3;
const SMALL: f32 = 1e-3;

pub(super) fn run(gpu: &Gpu, report: &mut Report) {
    let sgd = |momentum, nesterov| OptimizerConfig::Sgd { momentum, nesterov, weight_decay: 1e-2 };
    let adam_w = OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
    for (name, config) in [
        ("sgd", sgd(0.0, false)),
        ("sgd_momentum", sgd(0.9, false)),
        ("sgd_nesterov", sgd(0.9, true)),
        ("lion", OptimizerConfig::Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.01 }),
        ("adam_w", adam_w),
    ] {
        report.check(format!("kernels.{name}"), |_| optimizer(gpu, config));
        report.check(format!("kernels.{name}.copies"), |_| copied_weights(&gpu.device, config));
        for (way, rounding) in [("compensated", Rounding::Compensated), ("stochastic", Rounding::Stochastic)] {
            report.check(format!("kernels.{name}.bf16.{way}"), |_| half_weights(&gpu.device, config, rounding));
        }
    }
    report.check("kernels.muon.copies", |_| copied_weights(&gpu.device, MUON));
    report.check("kernels.copies", |_| copies(gpu));
    report.check("kernels.staging.compute", |_| staged(gpu, StagingLane::Compute));
    report.check("kernels.staging.own", |_| staged(gpu, StagingLane::Own));
    for (rows, classes) in [(37, 19), (1500, 3), (41, 128), (41, 129), (300, 1000), (3, 50_257)] {
        let name = format!("kernels.cross_entropy.{rows}x{classes}");
        report.check(name.clone(), |_| cross_entropy(&gpu.device, rows, classes, DType::F32));
        report.check(format!("{name}.bf16"), |_| cross_entropy(&gpu.device, rows, classes, DType::BF16));
    }
    report.check("kernels.cross_entropy.extreme.bf16", |_| extreme_logits(&gpu.device, 9001));
    report.check("kernels.cross_entropy.extreme.bf16.narrow", |_| extreme_logits(&gpu.device, 901));
    report.check("kernels.cross_entropy.extreme.bf16.warp", |_| extreme_logits(&gpu.device, 101));
}

/// Mean loss, gradient of the sum of losses, losses, and hits.
fn of_loss(device: &Device, logits: &Tensor, targets: &Tensor) -> Result<[Vec<f32>; 4], Broken> {
    let (logits, targets) = (Var::from_tensor(&logits.to_device(device)?)?, targets.to_device(device)?);
    let mean = loss::cross_entropy(&logits, &targets)?;
    let gradients = mean.affine(targets.elem_count() as f64, 0.0)?.backward()?;
    let gradient = gradients.get(&logits).ok_or_else(|| Broken("no gradient".to_owned()))?.to_dtype(DType::F32)?;
    let tensors = [mean, gradient, loss::per_sample(&logits, &targets)?, loss::hits(&logits, &targets)?];
    let values = tensors.map(|tensor| read_vec(&tensor, "check", &mut HostReads::default()));
    let [mean, gradient, losses, hits] = values;
    Ok([mean?, gradient?, losses?, hits?])
}

/// The largest difference as a part of what is expected, or of `least` where that is more; infinite where only one is a number, or finite.
fn off(found: &[f32], expected: &[f32], least: f32) -> f32 {
    let of = |(found, expected): (&f32, &f32)| match (found.is_nan(), expected.is_nan()) {
        (true, true) => 0.0,
        (false, false) if found.to_bits() == expected.to_bits() => 0.0,
        (false, false) if found.is_finite() && expected.is_finite() => {
            (found - expected).abs() / expected.abs().max(least)
        }
        _ => f32::INFINITY,
    };
    found.iter().zip(expected).map(of).fold(0.0, f32::max)
}

/// Rows whose largest logits are huge and equal, or infinite, or no number, on the GPU and on the CPU.
fn extreme_logits(device: &Device, num_classes: usize) -> Result<String, Broken> {
    let (last, late) = (num_classes - 1, num_classes - num_classes / 10);
    let rows: [&[(usize, f32)]; 6] = [
        &[(0, 1e30), (7, 1e30)],
        &[(5, -1e30), (late, 3e4), (last, 3e4)],
        &[(1, f32::NEG_INFINITY), (2, 50.0)],
        &[(3, f32::NAN)],
        &[(4, f32::INFINITY)],
        &[(6, -200.0), (last - 1, 200.0)],
    ];
    let mut logits = vec![0.0_f32; rows.len() * num_classes];
    for (row, few) in rows.iter().enumerate() {
        few.iter().for_each(|(class, logit)| logits[row * num_classes + class] = *logit);
    }
    let logits = Tensor::from_vec(logits, (rows.len(), num_classes), &Device::Cpu)?.to_dtype(DType::BF16)?;
    let target = u32::try_from(late).map_err(|error| Broken(error.to_string()))?;
    let targets = Tensor::new(&[7_u32, target, 1, 2, 4, 6], &Device::Cpu)?;
    let (found, expected) = (of_loss(device, &logits, &targets)?, of_loss(&Device::Cpu, &logits, &targets)?);
    let largest = [off(&found[1], &expected[1], SMALL), off(&found[2], &expected[2], 1.0)];
    promise(largest[0] <= ROUNDING_HALF && largest[1] <= APPROXIMATE, || {
        format!("gradients and losses are off by up to {largest:?}")
    })?;
    promise(differing(&found[3], &expected[3]) == 0, || "the hits are others".to_owned())?;
    Ok(format!("{} rows, off by up to {largest:?} from the CPU", rows.len()))
}

/// Loss, gradient, losses and hits of rows, every third of them ignored, on the GPU and on the CPU.
fn cross_entropy(device: &Device, rows: usize, classes: u32, dtype: DType) -> Result<String, Broken> {
    let mut draw = Draw::new(37, &Device::Cpu);
    let logits = draw.uniform((rows, classes as usize), 8.0)?.to_dtype(dtype)?;
    let targets: Vec<u32> = (0..rows).map(|row| if row % 3 == 1 { IGNORED } else { draw.below(classes) }).collect();
    let targets = Tensor::from_vec(targets, rows, &Device::Cpu)?;
    let (found, expected) = (of_loss(device, &logits, &targets)?, of_loss(&Device::Cpu, &logits, &targets)?);
    let is_half = dtype == DType::BF16;
    let losses = off(&found[0], &expected[0], 1.0).max(off(&found[2], &expected[2], 1.0));
    let gradients = off(&found[1], &expected[1], if is_half { SMALL } else { 1.0 });
    let allowed = if is_half { [APPROXIMATE, ROUNDING_HALF] } else { [ROUNDING; 2] };
    promise(losses <= allowed[0] && gradients <= allowed[1], || {
        format!("losses are off by up to {losses:e}, gradients by {gradients:e}")
    })?;
    promise(differing(&found[3], &expected[3]) == 0, || "the hits are others".to_owned())?;
    let ignored = found[1].chunks(classes as usize).zip(&found[2]).skip(1).step_by(3);
    let is_nothing = |(gradient, loss): (&[f32], &f32)| gradient.iter().chain([loss]).all(|value| value.to_bits() == 0);
    promise(ignored.into_iter().all(is_nothing), || "an ignored row has a loss or a gradient".to_owned())?;
    Ok(format!(
        "{rows} rows, losses off by up to {losses:e} from the CPU, gradients by {gradients:e}, the same hits, and nothing of ignored rows"
    ))
}

/// Many copies at once, of every type and alignment that there is.
fn copies(gpu: &Gpu) -> Result<String, Broken> {
    let mut draw = Draw::new(31, &Device::Cpu);
    let (mut sources, mut targets) = (Vec::new(), Vec::new());
    for (index, len) in [1, 3, 4, 1000, 4096, 70_001].into_iter().cycle().take(40).enumerate() {
        let dtype = [DType::F32, DType::U32, DType::F64, DType::I64][index % 4];
        let whole = (draw.uniform(len + 1, 100.0)? + 100.0)?.to_dtype(dtype)?.to_device(&gpu.device)?;
        // Every other one starts where no vector of 16 bytes does.
        sources.push(whole.narrow(0, index % 2, len)?);
        targets.push(Tensor::zeros(len, dtype, &gpu.device)?);
    }
    // Whole words of smaller types.
    for (len, dtype) in [(1000, DType::BF16), (4, DType::U8)] {
        sources.push((draw.uniform(len, 100.0)? + 100.0)?.to_dtype(dtype)?.to_device(&gpu.device)?);
        targets.push(Tensor::zeros(len, dtype, &gpu.device)?);
    }
    let pairs: Vec<(&Tensor, &Tensor)> = sources.iter().zip(&targets).collect();
    gpu.session.copy_all(&pairs)?;
    let halves = pairs[40].0;
    for (from, to) in [halves.narrow(0, 0, 3), halves.narrow(0, 1, 4)].into_iter().zip([3, 4]) {
        let (from, to) = (from?, Tensor::zeros(to, DType::BF16, &gpu.device)?);
        promise(gpu.session.copy_all(&[(&from, &to)]).is_err(), || format!("{from:?} is in no whole words"))?;
    }
    let mut num_elements = 0;
    for (source, target) in pairs {
        let different = source.ne(target)?.to_dtype(DType::F32)?.sum_all()?;
        let count = read_scalar(&different, "copies", &mut HostReads::default())?;
        promise(count < 0.5, || format!("{count} of {} elements differ", source.elem_count()))?;
        num_elements += source.elem_count();
    }
    Ok(format!("42 tensors of 6 types, {num_elements} elements; parts of words are refused"))
}

/// Parts of every type from the host, one or several, read by a kernel or copied, through a ring that goes around. Each turn has its own
/// numbers and comes while the device has something else to do, so that a buffer that is not waited for has the next turn's numbers. Beside
/// them none, one or two tensors are copied to others, and in the last turn these alone.
fn staged(gpu: &Gpu, lane: StagingLane) -> Result<String, Broken> {
    const TYPES: [DType; 3] = [DType::U32, DType::F32, DType::F64];
    let many: Vec<usize> = (1..41).collect();
    let lengths: [&[usize]; 9] = [
        &[7],
        &[1, 3],
        &[4, 1000, 33],
        &[1, 2, 3, 4, 5],
        &[20_001],
        &[16_320, 60],
        &[3, 20_001],
        &[9, 5, 20_000, 2],
        &many,
    ];
    let mut turns = Vec::new();
    for (turn, lengths) in (0_u32..).zip(lengths.into_iter().cycle().take(5 * lengths.len())) {
        let mut parts = Vec::new();
        for (part, len) in (0_u32..).zip(lengths) {
            let words: Vec<u32> = (0..).map(|index| 31 * index + 1009 * part + 7 * turn).take(*len).collect();
            let singles: Vec<f32> = words.iter().map(|word| *word as f32).collect();
            let doubles: Vec<f64> = words.iter().copied().map(f64::from).collect();
            // Every other one starts where no vector of 16 bytes does.
            let whole = Tensor::zeros(*len + 1, TYPES[(part + turn) as usize % 3], &gpu.device)?;
            parts.push((words, singles, doubles, whole.narrow(0, part as usize % 2, *len)?));
        }
        let copies = (0..turn / 9 % 3).map(|copy| {
            // Whole vectors of 16 bytes in every other turn.
            let from = Tensor::arange(turn, turn + 3000 * copy + 5 + 3 * (turn % 2), &gpu.device)?;
            Ok((from.clone(), from.zeros_like()?))
        });
        turns.push((parts, copies.collect::<candle_core::Result<Vec<_>>>()?));
    }
    turns.last_mut().expect("there are turns").0.clear();
    let mut ring = StagingRing::new(&gpu.session, NonZeroUsize::new(2).expect("2 is not 0"), lane)?;
    let busy = Tensor::ones((2048, 2048), DType::F32, &gpu.device)?;
    for (parts, copies) in &turns {
        let slices = parts.iter().map(|(words, singles, doubles, target)| match target.dtype() {
            DType::U32 => (HostSlice::U32(words), target),
            DType::F32 => (HostSlice::F32(singles), target),
            _ => (HostSlice::F64(doubles), target),
        });
        let slices: Vec<_> = slices.collect();
        let copies: Vec<_> = copies.iter().map(|(from, to)| (from, to)).collect();
        busy.matmul(&busy)?;
        if copies.is_empty() { ring.stage(&slices)? } else { ring.stage_beside(&slices, &copies)? }
    }
    for (turn, (from, to)) in
        turns.iter().zip(0..).flat_map(|((_, copies), turn)| copies.iter().map(move |copy| (turn, copy)))
    {
        let different =
            read_scalar(&from.ne(to)?.to_dtype(DType::F32)?.sum_all()?, "staging", &mut HostReads::default())?;
        promise(different < 0.5, || format!("{different} of {} elements beside turn {turn} differ", to.elem_count()))?;
    }
    let parts = turns.iter().zip(0..).flat_map(|((parts, _), turn)| parts.iter().map(move |part| (turn, part)));
    let staged: Vec<_> = parts.map(|(turn, (_, singles, _, target))| (turn, singles, target)).collect();
    for (turn, expected, target) in &staged {
        let found = read_vec(&target.to_dtype(DType::F32)?, "staging", &mut HostReads::default())?;
        let different = differing(&found, expected);
        promise(different == 0, || format!("{different} of {} elements of turn {turn} differ", expected.len()))?;
    }
    Ok(format!("{} parts of {} types through a ring of 2", staged.len(), TYPES.len()))
}

/// The kernel on the GPU, candle operations on the GPU, and the kernel on the CPU, on the same gradients.
fn optimizer(gpu: &Gpu, config: OptimizerConfig) -> Result<String, Broken> {
    let mut on_gpu = Updated::new(&gpu.device, config)?;
    let mut on_cpu = Updated::new(&Device::Cpu, config)?;
    let mut reference = Reference::new(&gpu.device, config)?;
    let mut draw = Draw::new(23, &Device::Cpu);
    let start = on_gpu.values()?;
    for step in 1..=STEPS {
        let gradient = draw.uniform(on_cpu.layout.num_elements(), 1.0)?;
        on_cpu.step(&gradient)?;
        let gradient = gradient.to_device(&gpu.device)?;
        on_gpu.step(&gradient)?;
        reference.step(&gradient, step)?;
    }
    let (kernel, cpu, composed) = (on_gpu.values()?, on_cpu.values()?, reference.values()?);
    let (from_candle, from_cpu) = (differing(&kernel, &composed), differing(&kernel, &cpu));
    let moved = differing(&kernel, &start);
    promise(moved == kernel.len(), || format!("{moved} of {} elements moved", kernel.len()))?;
    promise(from_candle == 0, || format!("{from_candle} of {} elements differ from candle operations", kernel.len()))?;
    promise(from_cpu == 0, || format!("{from_cpu} of {} elements differ from the CPU", kernel.len()))?;
    Ok(format!("{STEPS} steps of {} elements: the bits of candle operations and of the CPU", kernel.len()))
}

/// Updates that write rounded copies of the weights beside them, of more weights than a launch takes, wherever they begin: the
/// same weights as without, and copies that are what candle rounds them to.
fn copied_weights(device: &Device, config: OptimizerConfig) -> Result<String, Broken> {
    let shapes = many_shapes();
    let [mut copying, mut plain] = [Updated::of(device, config, &shapes)?, Updated::of(device, config, &shapes)?];
    copying.optimizer = copying.optimizer.copying(true);
    let mut draw = Draw::new(37, &Device::Cpu);
    for _ in 0..FEW_STEPS {
        let gradient = draw.uniform(plain.layout.num_elements(), 1.0)?.to_device(device)?;
        copying.step(&gradient)?;
        // Once: from then on the updates write them.
        copying.optimizer.refresh_copies(&copying.parameters, &copying.layout)?;
        plain.step(&gradient)?;
    }
    let different = differing(&copying.values()?, &plain.values()?);
    promise(different == 0, || format!("{different} elements of weights differ from those without copies"))?;
    let copies = copying.optimizer.working_copies(&copying.parameters, &copying.layout)?;
    let num_copies = copies.len();
    promise(num_copies == shapes.len(), || format!("{num_copies} of {} weights have copies", shapes.len()))?;
    let compare = || {
        for Parameter { name, var } in &copying.parameters {
            let copy = working_copy(var, DType::BF16).ok_or_else(|| Broken(format!("{name} has no copy")))?;
            let pair = [copy, var.as_detached_tensor().to_dtype(DType::BF16)?];
            let [copy, rounded] =
                pair.map(|of| read_vec(&of.to_dtype(DType::F32)?, "copies", &mut HostReads::default()));
            let different = differing(&copy?, &rounded?);
            promise(different == 0, || format!("{different} elements of the copy of {name} differ"))?;
        }
        Ok(format!("{FEW_STEPS} steps of {num_copies} weights"))
    };
    with_copies(Precision::Bf16, copies, compare).0
}

/// Updates of parameters of `bf16`, as many: the bits of the CPU, of which most moved.
fn half_weights(device: &Device, config: OptimizerConfig, rounding: Rounding) -> Result<String, Broken> {
    let shapes = many_shapes();
    let half = |device: &Device| -> Result<Updated, Broken> {
        let mut updated = Updated::of(device, config, &shapes)?;
        for parameter in &mut updated.parameters {
            parameter.var = Var::from_tensor(&parameter.var.as_detached_tensor().to_dtype(DType::BF16)?)?;
        }
        updated.optimizer = updated.optimizer.rounding(rounding);
        Ok(updated)
    };
    let (mut on_gpu, mut on_cpu) = (half(device)?, half(&Device::Cpu)?);
    let mut draw = Draw::new(41, &Device::Cpu);
    let start = on_cpu.values()?;
    for _ in 0..FEW_STEPS {
        let gradient = draw.uniform(on_cpu.layout.num_elements(), 1.0)?;
        on_cpu.step(&gradient)?;
        on_gpu.step(&gradient.to_device(device)?)?;
    }
    let (found, expected) = (on_gpu.values()?, on_cpu.values()?);
    let (different, moved) = (differing(&found, &expected), differing(&found, &start));
    promise(different == 0, || format!("{different} of {} elements differ from the CPU", found.len()))?;
    promise(moved > found.len() / 2, || format!("{moved} of {} elements moved", found.len()))?;
    Ok(format!("{FEW_STEPS} steps of {} elements, of which {moved} moved: the bits of the CPU", found.len()))
}

/// More than a launch takes, wherever they begin.
fn many_shapes() -> Vec<(usize, usize)> {
    (0..200).map(|index| (1 + index % 5, 1 + 7 * index % 37)).chain([(65, 1003), (1, 1)]).collect()
}

fn parameters(device: &Device, shapes: &[(usize, usize)]) -> Result<Vec<Parameter>, Broken> {
    let mut draw = Draw::new(29, &Device::Cpu);
    let mut parameter = |(index, shape): (usize, (usize, usize))| -> Result<Parameter, Broken> {
        let value = draw.uniform(shape, 0.5)?.to_device(device)?;
        Ok(Parameter { name: format!("p{index:03}"), var: Var::from_tensor(&value)? })
    };
    shapes.iter().copied().enumerate().map(&mut parameter).collect()
}

fn values(parameters: &[Parameter]) -> Result<Vec<f32>, Broken> {
    crate::gpu::growing::values_of(parameters)
}

/// Parameters with the optimizer of the trainer.
struct Updated {
    parameters: Vec<Parameter>,
    layout: ParameterLayout,
    optimizer: Optimizer,
}

impl Updated {
    fn new(device: &Device, config: OptimizerConfig) -> Result<Self, Broken> {
        Self::of(device, config, &SHAPES)
    }

    fn of(device: &Device, config: OptimizerConfig, shapes: &[(usize, usize)]) -> Result<Self, Broken> {
        let parameters = parameters(device, shapes)?;
        let spec = |parameter: &Parameter| SegmentSpec {
            name: parameter.name.clone(),
            shape: parameter.var.dims().to_vec(),
            owner: Owner::Host,
            isolated: false,
        };
        let layout = ParameterLayout::new(TopologyRevision(0), parameters.iter().map(spec).collect())
            .map_err(|error| Broken(error.to_string()))?;
        Ok(Self { parameters, layout, optimizer: Optimizer::new(config) })
    }

    fn step(&mut self, gradient: &Tensor) -> Result<(), Broken> {
        Ok(self.optimizer.step(&self.parameters, &self.layout, gradient, LEARNING_RATE)?)
    }

    fn values(&self) -> Result<Vec<f32>, Broken> {
        values(&self.parameters)
    }
}

/// The same formulas, one candle operation after the other.
struct Reference {
    parameters: Vec<Parameter>,
    config: OptimizerConfig,
    first: Vec<Tensor>,
    second: Vec<Tensor>,
}

impl Reference {
    fn new(device: &Device, config: OptimizerConfig) -> Result<Self, Broken> {
        let parameters = parameters(device, &SHAPES)?;
        let zeros = || parameters.iter().map(|p| Tensor::zeros(p.var.shape(), DType::F32, device));
        let (first, second) = (zeros().collect::<Result<_, _>>()?, zeros().collect::<Result<_, _>>()?);
        Ok(Self { first, second, parameters, config })
    }

    fn step(&mut self, gradient: &Tensor, step: usize) -> Result<(), Broken> {
        let mut offset = 0;
        for (index, parameter) in self.parameters.iter().enumerate() {
            let before = parameter.var.as_detached_tensor();
            let part = gradient.narrow(0, offset, before.elem_count())?.reshape(before.shape())?;
            offset += before.elem_count();
            let after = match self.config {
                OptimizerConfig::Sgd { momentum, nesterov, weight_decay } => {
                    let direction = (part + (&before * weight_decay)?)?;
                    let update = if momentum > 0.0 {
                        let speed = ((&self.first[index] * momentum)? + &direction)?;
                        self.first[index] = speed.clone();
                        if nesterov { (direction + (speed * momentum)?)? } else { speed }
                    } else {
                        direction
                    };
                    (before - (update * LEARNING_RATE)?)?
                }
                OptimizerConfig::AdamW { beta1, beta2, eps, weight_decay } => {
                    let correction = |beta: f64| 1.0 - beta.powf(step as f64);
                    let first = ((&self.first[index] * beta1)? + (&part * (1.0 - beta1))?)?;
                    let second = ((&self.second[index] * beta2)? + (part.sqr()? * (1.0 - beta2))?)?;
                    let root = ((second.sqrt()? * (1.0 / correction(beta2).sqrt()))? + eps)?;
                    let update = ((&first / root)? * (LEARNING_RATE / correction(beta1)))?;
                    (self.first[index], self.second[index]) = (first, second);
                    ((before * (1.0 - LEARNING_RATE * weight_decay))? - update)?
                }
                OptimizerConfig::Lion { beta1, beta2, weight_decay } => {
                    let sign = ((&self.first[index] * beta1)? + (&part * (1.0 - beta1))?)?.sign()?;
                    self.first[index] = ((&self.first[index] * beta2)? + (part * (1.0 - beta2))?)?;
                    ((before * (1.0 - LEARNING_RATE * weight_decay))? - (sign * LEARNING_RATE)?)?
                }
                // Products of matrices have other bits on the CPU.
                OptimizerConfig::Muon { .. } => return Err(Broken("muon is no element-wise rule".to_owned())),
            };
            parameter.var.set(&after)?;
        }
        Ok(())
    }

    fn values(&self) -> Result<Vec<f32>, Broken> {
        values(&self.parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_many_weights_are_what_these_are_rounded_to_on_the_cpu() {
        let sgd = OptimizerConfig::Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-2 };
        copied_weights(&Device::Cpu, sgd).map_err(|broken| broken.0).unwrap();
    }

    #[test]
    fn rows_that_are_ignored_are_nothing_on_the_cpu() {
        for (rows, classes) in [(37, 19), (300, 100)] {
            for dtype in [DType::F32, DType::BF16] {
                cross_entropy(&Device::Cpu, rows, classes, dtype).map_err(|broken| broken.0).unwrap();
            }
        }
    }
}

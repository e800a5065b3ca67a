//! A training step made of the trainer's parts: forward pass, loss, backward pass, flat gradient, optimizer.

use std::num::NonZeroUsize;

use candle_core::{DType, Tensor};
use leyline::batch::Batch;
use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use tolaria::grad::{GradientBufferPool, GradientScope, gather_gradients};
use tolaria::graph::{Captured, HostSlice, StagingLane, StagingRing};

use tolaria::optim::{Optimizer, UpdatePlan};

use crate::error::Error;
use crate::works::gpu::open::{Gpu, capture, refused, replay};
use crate::works::gpu::samples::{Samples, ms, us};
use crate::works::models::Workload;

/// Steps that are compared bit for bit.
const COMPARED: usize = 200;
const WARM_UP: usize = 20;
const REPETITIONS: usize = 500;
/// Steps per measured unit of `ref`: its epoch.
const REF_STEPS: usize = 4;

/// A step whose inputs are static tensors.
struct Step {
    work: Workload,
    batch: Batch,
    table: Tensor,
    loss: Tensor,
    optimizer: Optimizer,
    pool: GradientBufferPool,
    ring: StagingRing,
    /// The constants that are on the device.
    loaded: Vec<f32>,
    next: usize,
}

impl Step {
    fn new(gpu: &Gpu, name: &str) -> Result<Self, Error> {
        let work = Workload::named(name, 0, &gpu.device)?;
        let Batch { inputs, targets } = work.batch(0)?;
        let mut optimizer = Optimizer::new(work.optimizer);
        let model = &work.model;
        // Makes the moments; the count of updates starts with the first step all the same in both runs.
        let plan = optimizer.prepare(model.parameters(), model.layout(), work.learning_rate)?;
        let rows = plan.table().len();
        Ok(Self {
            batch: Batch { inputs: inputs.copy()?, targets: targets.copy()? },
            table: Tensor::zeros(rows, DType::F32, &gpu.device)?,
            loss: Tensor::zeros(1, DType::F32, &gpu.device)?,
            optimizer,
            pool: GradientBufferPool::new(),
            ring: StagingRing::new(&gpu.session, NonZeroUsize::new(4).expect("4 is not 0"), StagingLane::Compute)?,
            loaded: Vec::new(),
            next: 0,
            work,
        })
    }

    /// Brings the next batch and the optimizer's constants to the device.
    fn load(&mut self) -> Result<UpdatePlan, Error> {
        let model = &self.work.model;
        let plan = self.optimizer.prepare(model.parameters(), model.layout(), self.work.learning_rate)?;
        let batch = self.work.batch(self.next)?;
        self.next += 1;
        self.optimizer.commit(model.layout(), &plan);
        let table = plan.table();
        if table != self.loaded {
            self.ring.stage(&[(HostSlice::F32(&table), &self.table)])?;
            self.loaded = table;
        }
        self.batch.inputs.slice_set(&batch.inputs, 0, 0)?;
        self.batch.targets.slice_set(&batch.targets, 0, 0)?;
        Ok(plan)
    }

    /// Device work only; leaves no tensor behind.
    fn region(&self, plan: &UpdatePlan) -> Result<(), Error> {
        let model = &self.work.model;
        let (parameters, layout) = (model.parameters(), model.layout());
        let loss = self.work.loss(&self.batch)?;
        let gradient = self.pool.lease_to_write(layout.num_elements(), DType::F32, self.loss.device())?;
        gather_gradients(&loss.backward()?, parameters, layout, GradientScope::Main, &gradient)?;
        self.optimizer.apply(parameters, layout, gradient.as_tensor(), plan, Some(&self.table))?;
        Ok(self.loss.slice_set(&loss.detach().reshape(1)?, 0, 0)?)
    }

    fn eagerly(&mut self, gpu: &Gpu) -> Result<(), Error> {
        let plan = self.load()?;
        gpu.session.warm(|| self.region(&plan))
    }

    fn replayed(&mut self, captured: &Captured) -> Result<(), Error> {
        self.load()?;
        replay(captured)
    }
}

/// Steps that are timed together.
pub(super) fn unit_of(name: &str) -> usize {
    if name == "ref" { REF_STEPS } else { 1 }
}

/// Measures one work; says what was compared.
pub(super) fn measure(gpu: &Gpu, eager: &mut Eager, name: &str, samples: &mut Samples) -> Result<String, Error> {
    let unit = unit_of(name);
    let mut step = Step::new(gpu, name)?;
    let start = step.work.parameters()?;
    for _ in 0..COMPARED {
        step.eagerly(gpu)?;
    }
    let expected = step.work.parameters()?;

    let (mut replayed, captured) = recorded(gpu, eager, name)?;
    for _ in replayed.next..COMPARED {
        replayed.replayed(&captured)?;
    }
    let found = replayed.work.parameters()?;
    let differing = expected.iter().zip(&found).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    let moved = start.iter().zip(&found).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    if differing > 0 || moved * 2 < found.len() {
        let what = format!("{name}: parameters that differ between eager steps and replays ({moved} moved)");
        return Err(Error::WrongResult { what, expected: 0.0, found: differing as f64 });
    }

    report(name, &captured, samples);
    let mut timer = gpu.session.timer().map_err(|refusal| refused("a timer", refusal))?;
    for index in 0..WARM_UP + REPETITIONS {
        let began = gpu.now();
        for _ in 0..unit {
            step.eagerly(gpu)?;
        }
        gpu.wait()?;
        let eager_time = gpu.now() - began;

        let began = gpu.now();
        for _ in 0..unit {
            replayed.replayed(&captured)?;
        }
        let enqueued = gpu.now() - began;
        gpu.wait()?;
        let replay_time = gpu.now() - began;

        gpu.session.time(&mut timer, || replay(&captured))?;
        gpu.wait()?;
        if index >= WARM_UP {
            samples.push(format!("{name}.eager"), "us", us(eager_time));
            samples.push(format!("{name}.replay"), "us", us(replay_time));
            samples.push(format!("{name}.replay.enqueued"), "us", us(enqueued) / unit as f64);
            if let Some(ms) = timer.last_ms() {
                samples.push(format!("{name}.replay.device"), "us", ms * 1e3);
            }
        }
    }
    let median = |what: &str| samples.median(&format!("{name}.{what}")).unwrap_or(f64::NAN);
    let speedup = median("eager") / median("replay");
    samples.push(format!("{name}.speedup"), "ratio", speedup);
    let names = captured.report().nodes.kernels_by_name.iter();
    let mut names: Vec<(&String, &usize)> = names.collect();
    names.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let most: Vec<String> = names.iter().take(6).map(|(name, count)| format!("{count} {name}")).collect();
    Ok(format!(
        "{} parameters, {COMPARED} steps compared, 0 differ, {moved} moved; most frequent kernels: {}",
        found.len(),
        most.join(", ")
    ))
}

/// A step after two eager runs, with its graph.
fn recorded(gpu: &Gpu, eager: &mut Eager, name: &str) -> Result<(Step, Captured), Error> {
    let mut step = Step::new(gpu, name)?;
    step.eagerly(gpu)?;
    // The plan of the second step serves the recording too: what changes is read from the table.
    let plan = step.load()?;
    gpu.session.warm(|| step.region(&plan))?;
    let mut captured = capture(&gpu.session, eager, name, || step.region(&plan))?;
    for parameter in step.work.model.parameters() {
        captured.hold(parameter.name.as_str(), parameter.var.as_tensor())?;
    }
    Ok((step, captured))
}

fn report(name: &str, captured: &Captured, samples: &mut Samples) {
    let report = captured.report();
    samples.push(format!("{name}.capture"), "ms", ms(report.times.capture()));
    samples.push(format!("{name}.instantiate"), "ms", ms(report.times.instantiate + report.times.upload));
    let nodes = &report.nodes;
    for (kind, count) in [
        ("kernels", nodes.kernels),
        ("memsets", nodes.memsets),
        ("copies", nodes.device_copies),
        ("memory", nodes.allocations + nodes.frees),
        ("others", nodes.others),
    ] {
        samples.push(format!("{name}.nodes.{kind}"), "count", count as f64);
    }
}

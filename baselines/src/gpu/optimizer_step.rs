//! A training step made of the trainer's parts: forward pass, loss, backward pass, flat gradient, optimizer; or several that share a
//! launch.

use std::num::NonZeroUsize;
use std::time::Duration;

use candle_core::{DType, Tensor};
use esper_graph::precision::with_copies;
use esper_graph::{Captured, CompiledGraph, Feed, HostSlice, Precision, StagingLane, StagingRing};
use leyline::batch::Batch;
use leyline::model::TrainableModel as _;
use tolaria::grad::{GradientBufferPool, GradientScope, gather_gradients, row_type};
use tolaria::host_read::{HostReads, read_vec};
use tolaria::optim::{Optimizer, UpdatePlan};

use super::open::{Gpu, refused, replay};
use crate::candle_in_place;
use crate::error::Error;
use crate::models::{self, Workload};

/// Steps that are timed together: of `ref` its epoch.
pub(crate) fn unit_of(name: &str) -> usize {
    if name == "ref" { 4 } else { 1 }
}

fn new_optimizer(work: &Workload) -> Optimizer {
    Optimizer::new(work.optimizer).rounding(work.variant.precision.of_training().rounding())
}

/// The steps of a launch, whose inputs are static tensors.
pub(crate) struct OptimizerStep {
    pub(crate) work: Workload,
    inputs: Vec<Inputs>,
    /// Of each of them.
    losses: Tensor,
    optimizer: Optimizer,
    pool: GradientBufferPool,
    ring: StagingRing,
    num_steps: usize,
}

/// What a step reads.
struct Inputs {
    batch: Batch,
    table: Tensor,
    /// The constants that are on the device.
    loaded: Vec<f32>,
}

impl Inputs {
    fn tensors(&self) -> [(&str, &Tensor); 3] {
        [("inputs", &self.batch.inputs), ("targets", &self.batch.targets), ("table", &self.table)]
    }
}

impl OptimizerStep {
    #[cfg_attr(not(feature = "cuda"), allow(unreachable_code, reason = "without GPU support there is no session"))]
    pub(crate) fn new(gpu: &Gpu, work: Workload) -> Result<Self, Error> {
        let mut optimizer = new_optimizer(&work);
        let model = &work.model;
        // Makes the moments; the count of updates starts with the first step all the same in every run.
        let plan = optimizer.prepare(model.parameters(), model.layout(), work.learning_rate)?;
        let rows = plan.table().len();
        let inputs = || {
            let Batch { inputs, targets } = work.batch(0)?;
            let batch = Batch { inputs: inputs.copy()?, targets: targets.copy()? };
            let table = Tensor::zeros(rows, DType::F32, &gpu.device)?;
            Ok::<_, Error>(Inputs { batch, table, loaded: Vec::new() })
        };
        Ok(Self {
            inputs: (0..work.steps_per_launch).map(|_| inputs()).collect::<Result<_, _>>()?,
            losses: Tensor::zeros(work.steps_per_launch, DType::F32, &gpu.device)?,
            optimizer,
            pool: GradientBufferPool::new(),
            ring: StagingRing::new(&gpu.session, NonZeroUsize::new(4).expect("4 is not 0"), StagingLane::Compute)?,
            num_steps: 0,
            work,
        })
    }

    /// The same, whose updates write copies of the weights where its products round them: as the trainer's do where they are replayed.
    pub(crate) fn copying(mut self) -> Result<Self, Error> {
        let (model, rate) = (&self.work.model, self.work.learning_rate);
        let variant = self.work.variant;
        let is_asked = variant.rounds_weights()
            || (variant.precision == models::Precision::Bf16 && candle_in_place::asks_for_copies());
        self.optimizer = new_optimizer(&self.work).copying(is_asked);
        self.optimizer.prepare(model.parameters(), model.layout(), rate)?;
        // Nobody but the optimizer writes parameters from here on.
        self.optimizer.refresh_copies(model.parameters(), model.layout())?;
        Ok(self)
    }

    /// Steps that were loaded.
    pub(crate) fn num_steps(&self) -> usize {
        self.num_steps
    }

    /// Brings the next batches and the optimizer's constants to the device.
    pub(crate) fn load(&mut self) -> Result<Vec<UpdatePlan>, Error> {
        let (plans, mut feed) = self.feed()?;
        feed.run().map_err(|refusal| refused("a copy to the inputs", refusal))?;
        Ok(plans)
    }

    /// The next batches and the optimizer's constants, on their way to the device.
    fn feed(&mut self) -> Result<(Vec<UpdatePlan>, Feed<'_>), Error> {
        let model = &self.work.model;
        let (mut plans, mut tables, mut batches) = (Vec::new(), Vec::new(), Vec::new());
        for _ in &self.inputs {
            let plan = self.optimizer.prepare(model.parameters(), model.layout(), self.work.learning_rate)?;
            batches.push(self.work.batch(self.num_steps)?);
            self.num_steps += 1;
            self.optimizer.commit(model.layout(), &plan);
            tables.push(plan.table());
            plans.push(plan);
        }
        let (mut constants, mut samples) = (Vec::new(), Vec::new());
        for ((inputs, table), batch) in self.inputs.iter().zip(&tables).zip(&batches) {
            if *table != inputs.loaded {
                constants.push((HostSlice::F32(table), &inputs.table));
            }
            samples.extend([(&batch.inputs, &inputs.batch.inputs), (&batch.targets, &inputs.batch.targets)]);
        }
        let feed = self.ring.feed(&constants, &samples)?;
        for (inputs, table) in self.inputs.iter_mut().zip(tables) {
            inputs.loaded = table;
        }
        Ok((plans, feed))
    }

    /// Device work only; leaves no tensor behind.
    pub(crate) fn region(&self, plans: &[UpdatePlan]) -> Result<(), Error> {
        let mut steps = self.inputs.iter().zip(plans).enumerate();
        steps.try_for_each(|(index, (inputs, plan))| self.take(index, inputs, plan))
    }

    fn take(&self, index: usize, inputs: &Inputs, plan: &UpdatePlan) -> Result<(), Error> {
        let model = &self.work.model;
        let (parameters, layout) = (model.parameters(), model.layout());
        let copies = self.optimizer.working_copies(parameters, layout)?;
        // Layers say themselves what they multiply.
        let loss = with_copies(Precision::F32, copies, || self.work.loss(&inputs.batch)).0?;
        let gradient = self.pool.lease_to_write(
            layout.num_elements(),
            row_type(parameters, self.losses.device()),
            self.losses.device(),
        )?;
        gather_gradients(&loss.backward()?, parameters, layout, GradientScope::Main, &gradient)?;
        self.optimizer.apply(parameters, layout, gradient.as_tensor(), plan, Some(&inputs.table))?;
        Ok(self.losses.slice_set(&loss.detach().reshape(1)?, 0, index)?)
    }

    /// The next steps, one kernel after the other, in the way a region runs.
    pub(crate) fn eagerly(&mut self, gpu: &Gpu) -> Result<(), Error> {
        let plans = self.load()?;
        gpu.session.warm(|| self.region(&plans))
    }

    /// The next steps as a replay.
    pub(crate) fn replayed(&mut self, captured: &Captured) -> Result<(), Error> {
        self.load()?;
        replay(captured)
    }

    /// The next steps as a replay of what was compiled; `launched` is told what the call took that launches it.
    pub(crate) fn compiled(
        &mut self,
        gpu: &Gpu,
        compiled: &CompiledGraph,
        launched: impl FnOnce(Duration),
    ) -> Result<(), Error> {
        let (_, mut feed) = self.feed()?;
        let began = gpu.now();
        compiled.replay_fed(&mut feed).map_err(|refusal| refused("a compiled replay", refusal))?;
        launched(gpu.now() - began);
        Ok(())
    }

    /// Values of all parameters. Waits for the device.
    pub(crate) fn parameters(&self) -> Result<Vec<f32>, Error> {
        self.work.parameters()
    }

    /// Loss before the last step. Waits for the device.
    pub(crate) fn last_loss(&self) -> Result<f32, Error> {
        let losses = read_vec(&self.losses, "bench_loss", &mut HostReads::default())?;
        Ok(losses[losses.len() - 1])
    }

    /// What a graph of the step must keep alive and this value does not.
    pub(crate) fn held(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        let parameters = self.work.model.parameters().iter();
        let parameters = parameters.map(|parameter| (parameter.name.as_str(), parameter.var.as_tensor()));
        parameters.chain(self.inputs.iter().flat_map(Inputs::tensors)).chain([("losses", &self.losses)])
    }
}

//! A training step made of the trainer's parts: forward pass, loss, backward pass, flat gradient, optimizer.

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

/// A step whose inputs are static tensors.
pub(crate) struct OptimizerStep {
    pub(crate) work: Workload,
    batch: Batch,
    table: Tensor,
    loss: Tensor,
    optimizer: Optimizer,
    pool: GradientBufferPool,
    ring: StagingRing,
    /// The constants that are on the device.
    loaded: Vec<f32>,
    num_steps: usize,
}

impl OptimizerStep {
    #[cfg_attr(not(feature = "cuda"), allow(unreachable_code, reason = "without GPU support there is no session"))]
    pub(crate) fn new(gpu: &Gpu, work: Workload) -> Result<Self, Error> {
        let Batch { inputs, targets } = work.batch(0)?;
        let mut optimizer = new_optimizer(&work);
        let model = &work.model;
        // Makes the moments; the count of updates starts with the first step all the same in every run.
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

    /// Brings the next batch and the optimizer's constants to the device.
    pub(crate) fn load(&mut self) -> Result<UpdatePlan, Error> {
        let (plan, mut feed) = self.feed()?;
        feed.run().map_err(|refusal| refused("a copy to the inputs", refusal))?;
        Ok(plan)
    }

    /// The next batch and the optimizer's constants, on their way to the device.
    fn feed(&mut self) -> Result<(UpdatePlan, Feed<'_>), Error> {
        let model = &self.work.model;
        let plan = self.optimizer.prepare(model.parameters(), model.layout(), self.work.learning_rate)?;
        let batch = self.work.batch(self.num_steps)?;
        self.num_steps += 1;
        self.optimizer.commit(model.layout(), &plan);
        let table = plan.table();
        let constants = [(HostSlice::F32(&table), &self.table)];
        let has_moved = table != self.loaded;
        let samples = [(&batch.inputs, &self.batch.inputs), (&batch.targets, &self.batch.targets)];
        let feed = self.ring.feed(if has_moved { &constants } else { &[] }, &samples)?;
        self.loaded = table;
        Ok((plan, feed))
    }

    /// Device work only; leaves no tensor behind.
    pub(crate) fn region(&self, plan: &UpdatePlan) -> Result<(), Error> {
        let model = &self.work.model;
        let (parameters, layout) = (model.parameters(), model.layout());
        let copies = self.optimizer.working_copies(parameters, layout)?;
        // Layers say themselves what they multiply.
        let loss = with_copies(Precision::F32, copies, || self.work.loss(&self.batch)).0?;
        let gradient = self.pool.lease_to_write(
            layout.num_elements(),
            row_type(parameters, self.loss.device()),
            self.loss.device(),
        )?;
        gather_gradients(&loss.backward()?, parameters, layout, GradientScope::Main, &gradient)?;
        self.optimizer.apply(parameters, layout, gradient.as_tensor(), plan, Some(&self.table))?;
        Ok(self.loss.slice_set(&loss.detach().reshape(1)?, 0, 0)?)
    }

    /// The next step, one launch after the other, in the way a region runs.
    pub(crate) fn eagerly(&mut self, gpu: &Gpu) -> Result<(), Error> {
        let plan = self.load()?;
        gpu.session.warm(|| self.region(&plan))
    }

    /// The next step as a replay.
    pub(crate) fn replayed(&mut self, captured: &Captured) -> Result<(), Error> {
        self.load()?;
        replay(captured)
    }

    /// The next step as a replay of what was compiled; `launched` is told what the call took that launches it.
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
        Ok(read_vec(&self.loss, "bench_loss", &mut HostReads::default())?[0])
    }

    /// What a graph of the step must keep alive and this value does not.
    pub(crate) fn held(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        let parameters = self.work.model.parameters().iter();
        let parameters = parameters.map(|parameter| (parameter.name.as_str(), parameter.var.as_tensor()));
        let buffers = [
            ("inputs", &self.batch.inputs),
            ("targets", &self.batch.targets),
            ("table", &self.table),
            ("loss", &self.loss),
        ];
        parameters.chain(buffers)
    }
}

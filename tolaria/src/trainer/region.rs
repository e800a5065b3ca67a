//! The part of an optimizer step that may be recorded: forward, backward, combination, clipping and update; of several steps, one
//! after the other, where they share a launch.
//!
//! A [`Region`] is all that this part can name. The seed manager, the policy and the executor are not in it, so nothing of
//! them can be called while a step is recorded, by whatever route.

use std::borrow::Cow;

use candle_core::{DType, Device, Tensor};
use esper_graph::backward::backward;
use esper_graph::precision::with_copies;
use esper_graph::{ExecutionMode, GraphKey, Refusal, execute};
use leyline::error::BoxError;
use leyline::id::StepIndex;
use leyline::layout::Segment;
use leyline::model::{HostNumbers, Outputs, Pass, TrainableModel};
use leyline::network::Buffer;
use leyline::region::Recording;
use leyline::task::Task;

use crate::aggregate::{GradientEngine, SumsLayout, WindowPlan};
use crate::batch::Dataset;
use crate::cpu::to_f32;
use crate::error::{self, Error};
use crate::grad::{GradientBufferPool, GradientLease, GradientScope, Weight, gather_weighed, row_type};
use crate::host_read::HostReads;
use crate::optim::{Optimizer, UpdatePlan};
use crate::trainer::executor::StepShape;
use crate::trainer::inputs::{StaticInputs, StepInputs};
use crate::trainer::loss_scale::LossScale;
use crate::trainer::precision::TrainPrecision;
use crate::trainer::sums::EpochSums;

/// What the host decides about a step before it runs.
#[derive(Debug)]
pub(super) struct StepPlan {
    pub(super) shape: StepShape,
    pub(super) step: StepIndex,
    pub(super) learning_rate: f64,
    /// Samples of each microbatch.
    pub(super) sizes: Vec<usize>,
    pub(super) window: WindowPlan,
    /// Whether each gradient is added to the sum so far as it comes, so that one is kept.
    pub(super) is_summed: bool,
    /// What the aggregation reads from the device; empty where it reads the plan.
    pub(super) arguments: Vec<f64>,
    /// Constants of the optimizer, (parameters, 5); empty where nobody reads them from the device.
    pub(super) table: Vec<f32>,
    pub(super) update: UpdatePlan,
}

impl StepPlan {
    /// How what is left of the gradients is combined.
    fn window(&self) -> Cow<'_, WindowPlan> {
        if self.is_summed { Cow::Owned(self.window.summed()) } else { Cow::Borrowed(&self.window) }
    }
}

/// The steps of a launch, ready to run or to be recorded.
pub(super) struct Region<'a, M> {
    pub(super) model: &'a M,
    /// What the model changes by itself, and not in a step that is left out.
    pub(super) statistics: &'a [Buffer],
    pub(super) task: &'a dyn Task,
    pub(super) precision: TrainPrecision,
    pub(super) data: &'a Dataset,
    pub(super) device: &'a Device,
    /// One or more of one shape, in their order.
    pub(super) plans: &'a [StepPlan],
    /// Steps that were taken when it was run last: all, unless one failed.
    pub(super) num_taken: usize,
    pub(super) engine: &'a mut GradientEngine,
    pub(super) optimizer: &'a Optimizer,
    pub(super) sums: &'a EpochSums,
    /// The largest loss of a microbatch that counts, (1,) of `f32`; absent where any does.
    pub(super) bound: Option<&'a Tensor>,
    pub(super) pool: &'a GradientBufferPool,
    pub(super) reads: &'a mut HostReads,
}

impl<M: TrainableModel> Region<'_, M> {
    /// All that steps of its shape have in common.
    pub(super) fn key(&self) -> GraphKey {
        let first = self.first();
        let shape = first.shape;
        let mut key = GraphKey::new(ExecutionMode::Train, self.device)
            .tag("optimizer", self.optimizer.config().name())
            .topology(shape.topology)
            .precision(shape.precision)
            .switches(shape.switches)
            .tag("tells_owners_apart", shape.tells_owners_apart.to_string());
        if shape.num_steps > 1 {
            key = key.tag("steps", shape.num_steps.to_string());
        }
        for size in &first.sizes {
            let inputs = &self.data.spec().inputs;
            let dims: Vec<usize> = std::iter::once(*size).chain(inputs.dims().iter().copied()).collect();
            key = key.shape(dims, inputs.dtype());
        }
        key
    }

    /// The first of its steps.
    pub(super) fn first(&self) -> &StepPlan {
        &self.plans[0]
    }

    /// Inputs for steps of its shape, which stay where they are.
    pub(super) fn inputs(&self) -> Result<Vec<StepInputs>, Error> {
        let of = |plan| StaticInputs::new(plan, self.data, self.device).map(StepInputs::Static);
        self.plans.iter().map(of).collect()
    }

    /// A buffer for the gradient of a microbatch. It needs no zeros where the losses reach every segment.
    fn lease(&self, outputs: &Outputs) -> Result<GradientLease, Error> {
        let shadows = outputs.shadows.iter().map(|shadow| GradientScope::Shadow(shadow.seed));
        let scopes: Vec<GradientScope> = std::iter::once(GradientScope::Main).chain(shadows).collect();
        let is_written = |segment: &Segment| scopes.iter().any(|scope| scope.contains(segment));
        let layout = self.model.layout();
        let count = layout.num_elements();
        let is_alone = self.engine.reads_a_row_as_it_is(self.first().sizes.len()) && self.sums.scale().is_none();
        let dtype = if is_alone { row_type(self.model.parameters(), self.device) } else { DType::F32 };
        if layout.segments().iter().all(is_written) {
            self.pool.lease_to_write(count, dtype, self.device)
        } else {
            self.pool.lease(count, dtype, self.device)
        }
    }

    /// The gradients of all microbatches, or their sum alone; their losses are added to the sums.
    fn gradients(&mut self, plan: &StepPlan, inputs: &StepInputs) -> Result<Vec<GradientLease>, Error> {
        let mut rows = Vec::with_capacity(plan.sizes.len());
        for (index, num_samples) in plan.sizes.iter().enumerate() {
            let batch = inputs.batch(self.data, index)?;
            let outputs =
                self.model.forward(&batch.inputs, Pass::Train).map_err(|source| Error::Model(BoxError::new(source)))?;
            let adds = plan.is_summed && index > 0;
            if !adds {
                rows.push(self.lease(&outputs)?);
            }
            let row = rows.last().expect("the first microbatch has a row");
            let coefficient = if plan.is_summed { to_f32(plan.window.fractions()[index]) } else { 1.0 };
            let main = self.task.mean_loss(&outputs.logits, &batch.targets)?;
            self.gather(&main, GradientScope::Main, row, coefficient, adds)?;
            for shadow in &outputs.shadows {
                let side = self.task.mean_loss(&shadow.logits, &shadow.targets(&batch.targets)?)?;
                self.gather(&side, GradientScope::Shadow(shadow.seed), row, coefficient, adds)?;
            }
            let num_hits = self.task.num_hits(&outputs.logits, &batch.targets)?;
            self.sums.add_microbatch(&within(&main.detach(), self.bound)?, num_hits.as_ref(), *num_samples)?;
        }
        Ok(rows)
    }

    /// Puts the gradient of a loss, times `coefficient`, into a row, or adds it there.
    fn gather(
        &self,
        loss: &Tensor,
        scope: GradientScope,
        into: &GradientLease,
        coefficient: f32,
        adds: bool,
    ) -> Result<(), Error> {
        let scaled = self.sums.scale().map(|scale| Ok::<_, Error>((scale.of(scope)?, scale.scaled(loss, scope)?)));
        let scaled = scaled.transpose()?;
        let gradients = backward(scaled.as_ref().map_or(loss, |(_, scaled)| scaled))?;
        let weight = Weight { scale: scaled.as_ref().map(|(scale, _)| scale), coefficient, adds };
        gather_weighed(&gradients, self.model.parameters(), self.model.layout(), scope, into, &weight)
    }

    fn take(&mut self, plan: &StepPlan, inputs: &StepInputs, before: Option<&Before>) -> Result<(), Error> {
        // Up to where parameters move: in it a weight is rounded once.
        let copies = self.optimizer.working_copies(self.model.parameters(), self.model.layout())?;
        let (rows, num_products) = with_copies(plan.shape.precision, copies, || self.gradients(plan, inputs));
        let rows = rows?;
        self.precision.check_products(num_products)?;

        let (arguments, sums) = (inputs.arguments(), Some(self.sums.as_tensor()));
        let window = plan.window();
        let has_loss = self.sums.scale().map(|_| self.sums.has_loss()).transpose()?;
        let combination = self.engine.combine(rows, &window, arguments, sums, self.reads)?;
        before.map_or(Ok(()), |before| before.write_back(self.statistics, self.sums))?;
        let (parameters, layout) = (self.model.parameters(), self.model.layout());
        if let Some((scale, has_loss)) = self.sums.scale().zip(has_loss) {
            scale.follow(&combination, &has_loss)?;
        }
        self.optimizer.apply_combination(parameters, layout, &combination, &plan.update, inputs.table())
    }

    /// Takes the microbatches of a step that failed out of the running statistics, and out of the sums where their gradients were
    /// not combined yet.
    fn undo(&self, before: Option<&Before>) -> candle_core::Result<()> {
        before.map_or(Ok(()), |before| before.restore(self.statistics))?;
        self.sums.take_back()
    }
}

impl<M: TrainableModel> execute::Region<Vec<StepInputs>> for Region<'_, M> {
    type Error = Error;

    /// What it reads besides tensors is the same for all steps of one shape.
    fn run(&mut self, _recording: &Recording, inputs: &Vec<StepInputs>) -> Result<(), Error> {
        self.num_taken = 0;
        for (plan, inputs) in self.plans.iter().zip(inputs) {
            let before = Before::of(self.statistics, self.sums)?;
            let taken = self.take(plan, inputs, before.as_ref());
            if taken.is_err() {
                // What is told is why the step failed, not why this did.
                self.undo(before.as_ref()).ok();
            }
            taken?;
            self.num_taken += 1;
        }
        Ok(())
    }

    fn told(error: &Error) -> (String, Option<Refusal>) {
        let refusal = match error {
            Error::MissingGradient { name } => Some(Refusal::MissingGradient { name: name.clone() }),
            _ => None,
        };
        (error::chain(error), refusal)
    }

    fn parameters(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.model.parameters().iter().map(|parameter| (parameter.name.as_str(), parameter.var.as_tensor()))
    }

    fn held(&self, inputs: &Vec<StepInputs>) -> Vec<(String, Tensor)> {
        let layout = self.model.layout();
        let mut held: Vec<(String, Tensor)> =
            self.parameters().map(|(name, tensor)| (name.to_owned(), tensor.clone())).collect();
        held.extend(self.statistics.iter().map(|(name, statistic)| (name.clone(), statistic.as_tensor().clone())));
        let moments = self.optimizer.moments(layout);
        held.extend(moments.map(|(name, moments)| (format!("moments of {name}"), moments.clone())));
        let averages = self.optimizer.averages(layout);
        held.extend(averages.map(|(name, average)| (format!("average of {name}"), average.clone())));
        held.extend(self.optimizer.copies(layout).map(|(name, copy)| (format!("copy of {name}"), copy.clone())));
        held.extend(self.pool.idle(layout.num_elements()).into_iter().map(|b| ("a gradient buffer".to_owned(), b)));
        held.push(("sums of the epoch".to_owned(), self.sums.as_tensor().clone()));
        held.extend(self.bound.map(|bound| ("bound of the loss".to_owned(), bound.clone())));
        let scale = self.sums.scale().into_iter().flat_map(LossScale::tensors);
        held.extend(scale.map(|(name, tensor)| (name.to_owned(), tensor.clone())));
        held.extend(self.engine.tensors().into_iter().map(|(name, tensor)| (name.to_owned(), tensor)));
        if let Some((inputs, targets)) = self.data.tensors().filter(|(i, _)| i.device().same_device(self.device)) {
            held.push(("inputs of the data set".to_owned(), inputs.clone()));
            held.push(("targets of the data set".to_owned(), targets.clone()));
        }
        held.extend(self.task.tensors().into_iter().map(|tensor| ("a tensor of the task".to_owned(), tensor)));
        let inputs = inputs.iter().flat_map(StepInputs::tensors);
        held.extend(inputs.map(|(name, tensor)| (name.to_owned(), tensor.clone())));
        held
    }

    fn promise(&self) -> HostNumbers {
        self.model.host_numbers()
    }
}

/// What the model changes by itself, as it was before a step.
struct Before {
    statistics: Vec<Tensor>,
    /// Samples of the steps that were left out so far, (1,).
    num_skipped: Tensor,
}

impl Before {
    /// Copies on the device; none where the model changes nothing by itself.
    fn of(statistics: &[Buffer], sums: &EpochSums) -> candle_core::Result<Option<Self>> {
        if statistics.is_empty() {
            return Ok(None);
        }
        let copies = statistics.iter().map(|(_, statistic)| statistic.as_detached_tensor().copy());
        Ok(Some(Self {
            statistics: copies.collect::<candle_core::Result<_>>()?,
            num_skipped: num_skipped(sums)?.copy()?,
        }))
    }

    fn restore(&self, statistics: &[Buffer]) -> candle_core::Result<()> {
        statistics.iter().zip(&self.statistics).try_for_each(|((_, statistic), before)| statistic.set(before))
    }

    /// Undoes what the passes of a step changed, where the sums say by now that it is left out.
    fn write_back(&self, statistics: &[Buffer], sums: &EpochSums) -> candle_core::Result<()> {
        let is_skipped = num_skipped(sums)?.gt(&self.num_skipped)?.reshape(())?;
        for ((_, statistic), before) in statistics.iter().zip(&self.statistics) {
            let is_skipped = is_skipped.broadcast_as(statistic.shape())?;
            statistic.set(&is_skipped.where_cond(before, &statistic.as_detached_tensor())?)?;
        }
        Ok(())
    }
}

fn num_skipped(sums: &EpochSums) -> candle_core::Result<Tensor> {
    sums.as_tensor().narrow(0, SumsLayout::SKIPPED_SAMPLES, 1)
}

/// The loss, or what is not finite where it is beyond its bound: then the step changes nothing.
fn within(loss: &Tensor, bound: Option<&Tensor>) -> candle_core::Result<Tensor> {
    let Some(bound) = bound else { return Ok(loss.clone()) };
    let loss = loss.flatten_all()?;
    // One or nothing: a division by one gives the same bits.
    &loss / loss.le(bound)?.to_dtype(loss.dtype())?
}

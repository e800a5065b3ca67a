//! One optimizer step, from samples to updated parameters.

use candle_core::{DType, Tensor};
use leyline::error::BoxError;
use leyline::id::StepIndex;
use leyline::layout::{ParameterLayout, Segment};
use leyline::model::{Outputs, Pass, TrainableModel};
use leyline::policy::Policy;
use leyline::region::{Eager, Recording};
use leyline::seed::{Attribution, SeedManager};

use crate::aggregate::{ProjectionOrder, WindowPlan};
use crate::batch::{Window, num_windows, to_device};
use crate::error::{self, Error};
use crate::grad::{GradientLease, GradientScope, gather_gradients};
use crate::graph::{Captured, Draft, ExecutionMode, GraphKey, Refusal, Session};
use crate::loss;
use crate::optim::UpdatePlan;
use crate::trainer::inputs::{InputSizes, StepInputs, StepValues};
use crate::trainer::run::Trainer;
use crate::trainer::runner::StepShape;

/// What the host decides about a step before it runs.
struct StepPlan {
    sizes: Vec<usize>,
    window: WindowPlan,
    /// What the aggregation reads from the device; empty where it reads the plan.
    arguments: Vec<f64>,
    update: UpdatePlan,
}

impl<S: SeedManager, P: Policy> Trainer<S, P> {
    /// Takes one accumulation window. Seeds are asked before and told after; in between nothing but device work happens.
    pub(super) fn step(&mut self, eager: &mut Eager, order: &[u32], window: &Window) -> Result<(), Error> {
        let samples: Vec<&[u32]> = window.microbatches().map(|positions| &order[positions]).collect();
        let learning_rate = self.learning_rate(self.cursor.step);
        let plan = self.plan(eager, &samples, learning_rate)?;
        let shape = StepShape {
            topology: self.parts.seeds.model().layout().revision(),
            num_samples: window.num_samples(),
            tells_owners_apart: plan.window.tells_owners_apart(),
        };
        let inputs = self.load(shape, samples, &plan)?;

        if self.runner.needs_draft(shape) {
            let outcome = eager.record(|recording| self.draft(recording, &inputs, &plan));
            let held = self.held();
            self.runner.drafted(shape, outcome, held);
        }
        let parameters = self.parts.seeds.model().parameters().iter();
        let addressed = parameters.map(|parameter| (parameter.name.as_str(), parameter.var.as_tensor()));
        if !self.runner.replay(shape, addressed) {
            let began = self.runner.begin_first_step();
            eager.record(|recording| self.run_eagerly(recording, shape, &inputs, &plan))?;
            self.runner.end_first_step(began);
            if self.runner.is_warm(shape) {
                let outcome = eager.record(|recording| self.capture(recording, &inputs, &plan));
                let held = self.held();
                self.runner.recorded(shape, outcome, &held);
            }
        }
        self.finish_step(eager, &plan, learning_rate)
    }

    /// Shows the seed manager the first microbatch of an epoch, which `window` begins.
    pub(super) fn show_first_batch(&mut self, eager: &Eager, order: &[u32], window: &Window) -> Result<(), Error> {
        let Some(positions) = window.microbatches().next() else { return Ok(()) };
        let batch = to_device(self.parts.data.train.gather(&order[positions])?, &self.parts.device)?;
        self.parts.seeds.inspect_batch(eager, &batch).map_err(|error| self.seed_error(error))
    }

    /// Learning rate of the step with this index.
    pub(super) fn learning_rate(&self, step: StepIndex) -> f64 {
        let per_epoch = num_windows(self.parts.data.train.len(), &self.config.batch) as u64;
        self.config.schedule.at(step, per_epoch.saturating_mul(self.parts.num_epochs))
    }

    fn plan(&mut self, eager: &Eager, samples: &[&[u32]], learning_rate: f64) -> Result<StepPlan, Error> {
        let sizes: Vec<usize> = samples.iter().map(|samples| samples.len()).collect();
        let attributions = self.attribute(eager, samples)?;
        let microbatches: Vec<(usize, Attribution)> = sizes.iter().copied().zip(attributions).collect();
        let order = ProjectionOrder { seed: self.parts.seed, step: self.cursor.step };
        let window = self.window(eager, &microbatches, order)?;
        let model = self.parts.seeds.model();
        let update = self.optimizer.prepare(model.parameters(), model.layout(), learning_rate)?;
        let on_device = self.runner.can_record() && window.tells_owners_apart();
        let arguments = if on_device { window.arguments() } else { Vec::new() };
        Ok(StepPlan { sizes, window, arguments, update })
    }

    fn window(
        &self,
        eager: &Eager,
        microbatches: &[(usize, Attribution)],
        order: ProjectionOrder,
    ) -> Result<WindowPlan, Error> {
        let slots = self.engine.geometry().owners();
        let plan = WindowPlan::new(microbatches, slots, self.engine.config(), order)?;
        if !plan.tells_owners_apart() {
            return Ok(plan);
        }
        let seeds = self.export_seeds(eager)?;
        let alpha = |id| seeds.iter().find(|state| state.seed_id == id).map(|state| state.alpha.get());
        Ok(plan.with_alphas(slots, alpha))
    }

    /// Attribution matters only where gradients of several owners and several microbatches are told apart.
    fn attribute(&mut self, eager: &Eager, samples: &[&[u32]]) -> Result<Vec<Attribution>, Error> {
        let engine = &self.engine;
        if !engine.config().tells_owners_apart() || samples.len() < 2 || engine.geometry().owners().len() < 2 {
            return Ok(vec![Attribution::host_only(); samples.len()]);
        }
        let step = self.cursor.step;
        samples
            .iter()
            .map(|samples| {
                let batch = to_device(self.parts.data.train.gather(samples)?, &self.parts.device)?;
                let attribution = self.parts.seeds.attribute_batch(eager, &batch);
                attribution.map_err(|source| Error::SeedManager { step, source: BoxError::new(source) })
            })
            .collect()
    }

    /// Brings what the step reads to the device.
    fn load(&mut self, shape: StepShape, samples: Vec<&[u32]>, plan: &StepPlan) -> Result<StepInputs, Error> {
        // Nobody reads the table where nothing is recorded.
        let table = if self.runner.can_record() { plan.update.table() } else { Vec::new() };
        let values = StepValues { samples, table, arguments: &plan.arguments };
        let (train, device) = (&self.parts.data.train, &self.parts.device);
        let describe = || {
            let mut key = GraphKey::new(ExecutionMode::Train, device)
                .optimizer(self.config.optimizer.name())
                .topology(shape.topology)
                .tag("tells_owners_apart", shape.tells_owners_apart.to_string());
            for size in &plan.sizes {
                let mut dims = train.inputs().dims().to_vec();
                dims[0] = *size;
                key = key.shape(dims, DType::F32);
            }
            let sizes = InputSizes {
                microbatches: plan.sizes.clone(),
                num_updated: values.table.len() / crate::optim::TABLE_WIDTH,
                num_arguments: values.arguments.len(),
            };
            (key, sizes)
        };
        self.runner.load(shape, train, device, &values, describe)
    }

    /// The region, eagerly.
    fn run_eagerly(
        &mut self,
        recording: &Recording,
        shape: StepShape,
        inputs: &StepInputs,
        plan: &StepPlan,
    ) -> Result<(), Error> {
        match self.runner.session().filter(|_| self.runner.warms_up(shape)) {
            Some(session) => session.warm(|| self.update(recording, inputs, plan)),
            None => self.update(recording, inputs, plan),
        }
    }

    /// The region, recorded; nothing in it runs.
    fn capture(&mut self, recording: &Recording, inputs: &StepInputs, plan: &StepPlan) -> Result<Captured, Refusal> {
        self.record(inputs, plan, |session, region| session.record(recording, region))
    }

    /// The region, recorded to be compiled.
    fn draft(&mut self, recording: &Recording, inputs: &StepInputs, plan: &StepPlan) -> Result<Draft, Refusal> {
        self.record(inputs, plan, |session, region| session.draft(recording, region))
    }

    fn record<R>(
        &mut self,
        inputs: &StepInputs,
        plan: &StepPlan,
        record: impl FnOnce(&Session, &mut dyn FnMut(&Recording) -> Result<(), String>) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        let session = self.runner.session().ok_or(Refusal::Unsupported { why: "no device that records" })?;
        let mut missing = None;
        let outcome = record(&session, &mut |recording| {
            self.update(recording, inputs, plan).map_err(|error| {
                if let Error::MissingGradient { name } = &error {
                    missing = Some(name.clone());
                }
                error::chain(&error)
            })
        });
        match missing {
            Some(name) => outcome.map_err(|_| Refusal::MissingGradient { name }),
            None => outcome,
        }
    }

    /// Forward, backward, combination, clipping and update: the region. What it reads besides tensors is the same for
    /// all steps of one shape.
    fn update(&mut self, _recording: &Recording, inputs: &StepInputs, plan: &StepPlan) -> Result<(), Error> {
        let model = self.parts.seeds.model();
        let (parameters, layout) = (model.parameters(), model.layout());
        let mut rows = Vec::with_capacity(plan.sizes.len());
        for (index, num_samples) in plan.sizes.iter().enumerate() {
            let batch = inputs.batch(&self.parts.data.train, index)?;
            let outputs =
                model.forward(&batch.inputs, Pass::Train).map_err(|source| Error::Model(BoxError::new(source)))?;
            let gradient = self.lease(layout, &outputs)?;
            let main = loss::cross_entropy(&outputs.logits, &batch.targets)?;
            gather_gradients(&main.backward()?, parameters, layout, GradientScope::Main, &gradient)?;
            for shadow in &outputs.shadows {
                let side = loss::cross_entropy(&shadow.logits, &batch.targets)?;
                gather_gradients(&side.backward()?, parameters, layout, GradientScope::Shadow(shadow.seed), &gradient)?;
            }
            let correct = loss::correct(&outputs.logits, &batch.targets)?;
            self.sums.add_microbatch(&main.detach(), &correct, *num_samples)?;
            rows.push(gradient);
        }

        let sums = Some(self.sums.as_tensor());
        let combination = self.engine.combine(rows, &plan.window, inputs.arguments(), sums, &mut self.reads)?;
        self.optimizer.apply_combination(parameters, layout, &combination, &plan.update, inputs.table())
    }

    /// A buffer for the gradient of a microbatch. It needs no zeros where the losses reach every segment.
    fn lease(&self, layout: &ParameterLayout, outputs: &Outputs) -> Result<GradientLease, Error> {
        let shadows = outputs.shadows.iter().map(|shadow| GradientScope::Shadow(shadow.seed));
        let scopes: Vec<GradientScope> = std::iter::once(GradientScope::Main).chain(shadows).collect();
        let is_written = |segment: &Segment| scopes.iter().any(|scope| scope.contains(segment));
        let (count, device) = (layout.num_elements(), &self.parts.device);
        if layout.segments().iter().all(is_written) {
            self.pool.lease_to_write(count, DType::F32, device)
        } else {
            self.pool.lease(count, DType::F32, device)
        }
    }

    /// What a recorded step points at, beside its inputs.
    fn held(&self) -> Vec<(String, Tensor)> {
        let model = self.parts.seeds.model();
        let layout = model.layout();
        let data = &self.parts.data.train;
        let mut held: Vec<(String, Tensor)> =
            model.parameters().iter().map(|p| (p.name.clone(), p.var.as_tensor().clone())).collect();
        let moments = self.optimizer.moments(layout);
        held.extend(moments.map(|(name, moments)| (format!("moments of {name}"), moments.clone())));
        held.extend(self.pool.idle(layout.num_elements()).into_iter().map(|b| ("a gradient buffer".to_owned(), b)));
        held.push(("sums of the epoch".to_owned(), self.sums.as_tensor().clone()));
        held.extend(self.engine.tensors().into_iter().map(|(name, tensor)| (name.to_owned(), tensor)));
        if data.inputs().device().same_device(&self.parts.device) {
            held.push(("inputs of the data set".to_owned(), data.inputs().clone()));
            held.push(("targets of the data set".to_owned(), data.targets().clone()));
        }
        held
    }

    /// What the host knows after a step, however it ran.
    fn finish_step(&mut self, eager: &mut Eager, plan: &StepPlan, learning_rate: f64) -> Result<(), Error> {
        self.optimizer.commit(self.parts.seeds.model().layout(), &plan.update);
        let host = self.sums.host();
        host.num_steps += 1;
        host.num_microbatches += plan.sizes.len() as u64;
        host.num_samples += plan.sizes.iter().map(|size| *size as u64).sum::<u64>();
        if plan.window.tells_owners_apart() {
            host.num_pairs += plan.window.num_pairs();
            host.host_share += plan.window.host_share();
            host.num_windows += 1;
        }
        self.cursor.step = self.cursor.step.next();
        self.cursor.window += 1;
        let step = self.cursor.step;
        self.parts
            .seeds
            .finish_step(eager, step)
            .map_err(|source| Error::SeedManager { step, source: BoxError::new(source) })?;
        self.instruments.steps_total.add(1);
        self.instruments.learning_rate.set(learning_rate);
        Ok(())
    }
}

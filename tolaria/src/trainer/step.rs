//! One optimizer step: what the host decides before it and knows after it. What runs on the device is in `region.rs`.

use candle_core::DType;
use leyline::error::BoxError;
use leyline::id::StepIndex;
use leyline::model::TrainableModel;
use leyline::policy::Policy;
use leyline::region::Eager;
use leyline::seed::{Attribution, SeedManager};

use crate::aggregate::{ProjectionOrder, WindowPlan};
use crate::batch::{Window, num_windows, to_device};
use crate::error::Error;
use crate::trainer::inputs::{InputSizes, StepInputs, StepValues};
use crate::trainer::region::{Region, StepPlan};
use crate::trainer::run::Trainer;
use crate::trainer::runner::StepShape;
use esper_graph::{ExecutionMode, GraphKey};

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

        let mut region = Region {
            model: self.parts.seeds.model(),
            data: &self.parts.data.train,
            device: &self.parts.device,
            inputs: &inputs,
            plan: &plan,
            engine: &mut self.engine,
            optimizer: &self.optimizer,
            sums: &self.sums,
            pool: &self.pool,
            reads: &mut self.reads,
        };
        let step = self.cursor.step;
        if self.runner.needs_draft(shape) {
            let began = self.parts.clock.now();
            let outcome = region.draft(eager, self.runner.session());
            self.runner.drafted(shape, step, began, outcome)?;
        }
        if !self.runner.replay(shape, region.parameters()) {
            let began = self.runner.begin_first_step();
            let warm_up = self.runner.session().filter(|_| self.runner.warms_up(shape));
            region.run_eagerly(eager, warm_up.as_ref())?;
            self.runner.end_first_step(began);
            if self.runner.is_warm(shape) {
                let outcome = region.capture(eager, self.runner.session());
                let promise = region.model.host_numbers();
                self.runner.recorded(shape, step.next(), outcome, &region.held(), promise)?;
            }
        }
        self.finish_step(eager, &plan, learning_rate)?;
        if self.runner.can_record() {
            self.plans.insert(shape, plan);
        }
        Ok(())
    }

    /// Confirms that the steps replayed so far are what the model says: before they are evaluated or saved. Steps
    /// replayed afterwards are tested anew.
    ///
    /// # Errors
    /// [`Error::FrozenValue`].
    pub(super) fn settle(&mut self, eager: &mut Eager) -> Result<(), Error> {
        for shape in self.runner.open_shapes() {
            let (Some(plan), Some(inputs)) = (self.plans.get(&shape), self.runner.inputs(shape)) else { continue };
            let mut region = Region {
                model: self.parts.seeds.model(),
                data: &self.parts.data.train,
                device: &self.parts.device,
                inputs: &inputs,
                plan,
                engine: &mut self.engine,
                optimizer: &self.optimizer,
                sums: &self.sums,
                pool: &self.pool,
                reads: &mut self.reads,
            };
            let began = self.parts.clock.now();
            let outcome = region.draft(eager, self.runner.session());
            self.runner.test(shape, self.cursor.step, began, outcome)?;
        }
        self.runner.doubt();
        Ok(())
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
                .tag("optimizer", self.config.optimizer.name())
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

    /// What the host knows after a step, however it ran.
    fn finish_step(&mut self, eager: &mut Eager, plan: &StepPlan, learning_rate: f64) -> Result<(), Error> {
        self.optimizer.commit(self.parts.seeds.model().layout(), &plan.update);
        let host = self.sums.host();
        host.num_steps += 1;
        host.num_microbatches += plan.sizes.len() as u64;
        host.num_samples += plan.sizes.iter().map(|size| *size as u64).sum::<u64>();
        if plan.window.tells_owners_apart() {
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

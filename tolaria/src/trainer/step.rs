//! One optimizer step: what the host decides before it and knows after it. What runs on the device is in `region.rs`.

use std::num::NonZeroU64;

use leyline::error::BoxError;
use leyline::id::StepIndex;
use leyline::model::TrainableModel;
use leyline::policy::Policy;
use leyline::region::Eager;
use leyline::seed::{Attribution, SeedManager};

use crate::aggregate::{ProjectionOrder, WindowPlan};
use crate::batch::{EpochOrder, Window, to_device};
use crate::error::Error;
use crate::trainer::executor::{StepExecutor, StepShape};
use crate::trainer::feed::WindowSamples;
use crate::trainer::phase::phase;
use crate::trainer::region::{Region, StepPlan};
use crate::trainer::run::Trainer;

impl<S: SeedManager, P: Policy> Trainer<S, P> {
    /// Takes one accumulation window.
    ///
    /// # Errors
    /// Those of the step; [`Error::AtStep`] around them where each step is checked.
    /// # Sync
    /// none, but waits for the device where each step is checked
    pub(super) fn step(&mut self, eager: &mut Eager, order: &EpochOrder, index: usize) -> Result<(), Error> {
        let step = self.cursor.step;
        let taken = self.take_step(eager, order, index);
        if !self.config.execution.check_each_step {
            return taken;
        }
        let checked = taken.and_then(|()| Ok(self.parts.device.synchronize()?));
        checked.map_err(|source| Error::AtStep { step, source: Box::new(source) })
    }

    /// Seeds are asked before and told after; in between nothing but device work happens.
    fn take_step(&mut self, eager: &mut Eager, order: &EpochOrder, index: usize) -> Result<(), Error> {
        let loading = phase!("load");
        let mut samples = self.feed.window(&self.parts.data.train, &self.parts.device, order, index)?;
        drop(loading);
        let plan = {
            let _phase = phase!("plan");
            let plan = self.plan(eager, &order.windows[index], &samples)?;
            let model = self.parts.seeds.model();
            self.optimizer.refresh_copies(model.parameters(), model.layout())?;
            plan
        };
        let (executor, mut region) = self.region(&plan);
        if let Err(error) = executor.step(eager, &mut samples, &mut region) {
            return Err(self.explained(error));
        }
        self.feed.recycle(samples);
        self.finish_step(eager, plan)
    }

    /// Confirms that the steps replayed so far are what the model says: before they are evaluated or saved. Steps
    /// replayed afterwards are tested anew.
    ///
    /// # Errors
    /// [`Error::FrozenValue`].
    pub(super) fn settle(&mut self, eager: &mut Eager) -> Result<(), Error> {
        // What is recorded finds them as what was captured did.
        let model = self.parts.seeds.model();
        self.optimizer.refresh_copies(model.parameters(), model.layout())?;
        for shape in self.executor.graphs().open_shapes() {
            let Some(plan) = self.plans.remove(&shape) else { continue };
            let step = self.cursor.step;
            let (executor, mut region) = self.region(&plan);
            let tested = executor.test(eager, step, &mut region);
            self.plans.insert(shape, plan);
            tested?;
        }
        self.executor.doubt();
        Ok(())
    }

    /// What a step of this plan may touch while it is recorded, and who runs it.
    fn region<'a>(&'a mut self, plan: &'a StepPlan) -> (&'a mut StepExecutor, Region<'a, S::Model>) {
        let region = Region {
            model: self.parts.seeds.model(),
            statistics: self.parts.seeds.statistics(),
            task: &*self.parts.task,
            precision: self.config.precision,
            data: &self.parts.data.train,
            device: &self.parts.device,
            plan,
            engine: &mut self.engine,
            optimizer: &self.optimizer,
            sums: &self.sums,
            bound: self.recovery.bound.as_ref(),
            pool: &self.pool,
            reads: &mut self.reads,
        };
        (&mut self.executor, region)
    }

    /// Shows the seed manager the first microbatches of an epoch, as many as it wants.
    /// They are shown as the data give them, before any transform.
    pub(super) fn show_first_batches(&mut self, eager: &Eager, order: &EpochOrder) -> Result<(), Error> {
        for positions in order.windows.iter().flat_map(Window::microbatches) {
            if !self.parts.seeds.wants_batch(eager) {
                break;
            }
            let batch = to_device(self.parts.data.train.gather(&order.samples[positions])?, &self.parts.device)?;
            self.parts.seeds.inspect_batch(eager, &batch).map_err(|error| self.seed_error(error))?;
        }
        Ok(())
    }

    /// Learning rate of the step with this index.
    pub(super) fn learning_rate(&self, step: StepIndex) -> f64 {
        let num_steps = self.steps_per_epoch().saturating_mul(self.parts.num_epochs);
        let max_steps = self.parts.max_steps.map_or(u64::MAX, NonZeroU64::get);
        self.config.schedule.at(step, num_steps.min(max_steps)) * self.recovery.guard.rate
    }

    fn plan(&mut self, eager: &Eager, window: &Window, samples: &WindowSamples<'_>) -> Result<StepPlan, Error> {
        let num_samples = window.num_samples();
        let sizes: Vec<usize> = window.microbatches().map(|positions| positions.len()).collect();
        let microbatches = self.attribute(eager, samples, &sizes)?;
        let step = self.cursor.step;
        let window = self.window(eager, &microbatches, ProjectionOrder { seed: self.parts.seed, step })?;
        let model = self.parts.seeds.model();
        let (topology, tells_owners_apart) = (model.layout().revision(), window.tells_owners_apart());
        let learning_rate = self.learning_rate(step);
        let update = self.optimizer.prepare(model.parameters(), model.layout(), learning_rate)?;
        // Nobody reads these from the device where nothing is recorded.
        let can_record = self.executor.can_record();
        Ok(StepPlan {
            shape: StepShape {
                topology,
                precision: self.config.precision.of_products(&self.parts.device),
                switches: self.config.precision.switches(&self.parts.device),
                num_samples,
                tells_owners_apart,
            },
            step,
            learning_rate,
            is_summed: !tells_owners_apart && !self.config.has_room_for_rows(model.layout().num_elements()),
            sizes,
            arguments: if can_record && tells_owners_apart { window.arguments() } else { Vec::new() },
            window,
            table: if can_record { update.table() } else { Vec::new() },
            update,
        })
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

    /// Whether steps of so many microbatches attribute them: only where gradients of several owners and several microbatches are told
    /// apart does it matter.
    pub(super) fn attributes(&self, num_microbatches: usize) -> bool {
        let (config, owners) = (self.engine.config(), self.engine.geometry().owners());
        config.tells_owners_apart() && num_microbatches >= 2 && owners.len() >= 2
    }

    /// The number of samples and the attribution of each microbatch.
    fn attribute(
        &mut self,
        eager: &Eager,
        samples: &WindowSamples<'_>,
        sizes: &[usize],
    ) -> Result<Vec<(usize, Attribution)>, Error> {
        let sizes = sizes.iter().copied();
        if !self.attributes(sizes.len()) {
            return Ok(sizes.map(|size| (size, Attribution::host_only())).collect());
        }
        let step = self.cursor.step;
        sizes
            .enumerate()
            .map(|(index, size)| {
                let batch = samples.batch(&self.parts.data.train, &self.parts.device, index)?;
                let attribution = self.parts.seeds.attribute_batch(eager, &batch);
                let attribution =
                    attribution.map_err(|source| Error::SeedManager { step, source: BoxError::new(source) })?;
                Ok((size, attribution))
            })
            .collect()
    }

    /// What the host knows after a step, however it ran.
    fn finish_step(&mut self, eager: &mut Eager, plan: StepPlan) -> Result<(), Error> {
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
        if !self.is_frozen() {
            let finished = self.parts.seeds.finish_step(eager, step);
            finished.map_err(|source| Error::SeedManager { step, source: BoxError::new(source) })?;
        }
        self.instruments.steps_total.add(1);
        self.instruments.learning_rate.set(plan.learning_rate);
        if self.executor.can_record() {
            self.plans.insert(plan.shape, plan);
        }
        Ok(())
    }
}

//! The optimizer steps of a launch: what the host decides before them and knows after them. What runs on the device is in
//! `region.rs`, how many share a launch in `launch.rs`.

use std::num::NonZeroU64;
use std::ops::Range;

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
    /// Takes the step of the accumulation window `index`, with those after it that share its launch. Returns how many they are.
    ///
    /// # Errors
    /// Those of the step; [`Error::AtStep`] around them where each step is checked.
    /// # Sync
    /// none, but waits for the device where each step is checked
    pub(super) fn step(&mut self, eager: &mut Eager, order: &EpochOrder, index: usize) -> Result<usize, Error> {
        let count = self.steps_of_launch(eager, order, index)?;
        let step = self.cursor.step;
        let taken = self.take_steps(eager, order, index..index + count);
        if !self.config.execution.check_each_step {
            return taken.map(|()| count);
        }
        let checked = taken.and_then(|()| Ok(self.parts.device.synchronize()?));
        checked.map(|()| count).map_err(|source| Error::AtStep { step, source: Box::new(source) })
    }

    /// Seeds are asked before and told after; in between nothing but device work happens.
    fn take_steps(&mut self, eager: &mut Eager, order: &EpochOrder, indices: Range<usize>) -> Result<(), Error> {
        let loading = phase!("load");
        let (data, device) = (&self.parts.data.train, &self.parts.device);
        let (mut samples, mut missing) = (Vec::with_capacity(indices.len()), None);
        for index in indices.clone() {
            match self.feed.window(data, device, order, index) {
                Ok(window) => samples.push(window),
                Err(error) => {
                    missing = Some(error);
                    break;
                }
            }
        }
        drop(loading);
        // Steps before one without samples are taken.
        if let Some(error) = missing.take_if(|_| samples.is_empty()) {
            return Err(error);
        }
        let plans = {
            let _phase = phase!("plan");
            let steps = indices.zip(&samples).zip(0..);
            let plan = |((index, samples), ahead)| self.plan(eager, &order.windows[index], samples, ahead);
            let mut plans = steps.map(plan).collect::<Result<Vec<_>, _>>()?;
            plans.iter_mut().for_each(|plan| plan.shape.num_steps = samples.len());
            let model = self.parts.seeds.model();
            self.optimizer.refresh_copies(model.parameters(), model.layout())?;
            plans
        };
        let (executor, mut region) = self.region(&plans);
        let taken = executor.step(eager, &mut samples, &mut region);
        let num_taken = if taken.is_ok() { plans.len() } else { region.num_taken };
        if taken.is_ok() {
            samples.into_iter().for_each(|samples| self.feed.recycle(samples));
        }
        let finished = self.finish_steps(eager, plans, num_taken);
        taken.map_err(|error| self.explained(error)).and(finished).and(missing.map_or(Ok(()), Err))
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
            let Some(plans) = self.plans.remove(&shape) else { continue };
            let step = self.cursor.step;
            let (executor, mut region) = self.region(&plans);
            let tested = executor.test(eager, step, &mut region);
            self.plans.insert(shape, plans);
            tested?;
        }
        self.executor.doubt();
        Ok(())
    }

    /// What steps of these plans may touch while they are recorded, and who runs them.
    fn region<'a>(&'a mut self, plans: &'a [StepPlan]) -> (&'a mut StepExecutor, Region<'a, S::Model>) {
        let region = Region {
            model: self.parts.seeds.model(),
            statistics: self.parts.seeds.statistics(),
            task: &*self.parts.task,
            precision: self.config.precision,
            data: &self.parts.data.train,
            device: &self.parts.device,
            plans,
            num_taken: 0,
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

    /// Plans the step after the next `ahead`, which are planned already.
    fn plan(
        &mut self,
        eager: &Eager,
        window: &Window,
        samples: &WindowSamples<'_>,
        ahead: u64,
    ) -> Result<StepPlan, Error> {
        let num_samples = window.num_samples();
        let sizes: Vec<usize> = window.microbatches().map(|positions| positions.len()).collect();
        let microbatches = self.attribute(eager, samples, &sizes)?;
        let step = StepIndex(self.cursor.step.0 + ahead);
        let window = self.window(eager, &microbatches, ProjectionOrder { seed: self.parts.seed, step })?;
        let model = self.parts.seeds.model();
        let (topology, tells_owners_apart) = (model.layout().revision(), window.tells_owners_apart());
        let learning_rate = self.learning_rate(step);
        let update = self.optimizer.prepare_ahead(model.parameters(), model.layout(), learning_rate, ahead)?;
        // Nobody reads these from the device where nothing is recorded.
        let can_record = self.executor.can_record();
        Ok(StepPlan {
            shape: StepShape {
                topology,
                precision: self.config.precision.of_products(&self.parts.device),
                switches: self.config.precision.switches(&self.parts.device),
                num_samples,
                tells_owners_apart,
                num_steps: 1,
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

    /// What the host knows after the first `num_taken` of these steps were taken, however they ran.
    fn finish_steps(&mut self, eager: &mut Eager, plans: Vec<StepPlan>, num_taken: usize) -> Result<(), Error> {
        let first = self.cursor.step.0;
        for plan in &plans[..num_taken] {
            self.count_step(plan);
        }
        // The device is as far as the last of them, whatever the seed manager says of the first.
        let finished = (first..self.cursor.step.0).try_for_each(|step| self.tell_seeds(eager, StepIndex(step).next()));
        if let Some(plan) = plans.first().filter(|_| self.executor.can_record() && num_taken == plans.len()) {
            self.plans.insert(plan.shape, plans);
        }
        finished
    }

    fn count_step(&mut self, plan: &StepPlan) {
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
        self.instruments.steps_total.add(1);
        self.instruments.learning_rate.set(plan.learning_rate);
    }

    fn tell_seeds(&mut self, eager: &mut Eager, step: StepIndex) -> Result<(), Error> {
        if self.is_frozen() {
            return Ok(());
        }
        let finished = self.parts.seeds.finish_step(eager, step);
        finished.map_err(|source| Error::SeedManager { step, source: BoxError::new(source) })
    }
}

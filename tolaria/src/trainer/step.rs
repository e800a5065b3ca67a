//! One optimizer step, from samples to updated parameters.

use candle_core::DType;
use leyline::batch::Batch;
use leyline::error::BoxError;
use leyline::id::StepIndex;
use leyline::model::{Pass, TrainableModel};
use leyline::policy::Policy;
use leyline::region::{Eager, Recording};
use leyline::seed::{Attribution, SeedManager};

use crate::aggregate::{ConflictResolution, MicrobatchGradient, ProjectionOrder, aggregate};
use crate::batch::{Window, num_windows};
use crate::error::Error;
use crate::grad::{GradientScope, gather_gradients};
use crate::loss;
use crate::optim::measure_and_clip;
use crate::trainer::run::Trainer;

impl<S: SeedManager, P: Policy> Trainer<S, P> {
    /// Takes one accumulation window. Seeds are asked before and told after; in between nothing but device work happens.
    pub(super) fn step(&mut self, eager: &mut Eager, order: &[u32], window: &Window) -> Result<(), Error> {
        let batches = window
            .microbatches()
            .map(|positions| self.parts.data.train.gather(&order[positions]))
            .collect::<Result<Vec<Batch>, _>>()?;
        let attributions = self.attribute(eager, &batches)?;
        let learning_rate = self.learning_rate(self.cursor.step);
        eager.record(|recording| self.update(recording, &batches, attributions, learning_rate))?;

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

    /// Learning rate of the step with this index.
    pub(super) fn learning_rate(&self, step: StepIndex) -> f64 {
        let per_epoch = num_windows(self.parts.data.train.len(), &self.config.batch) as u64;
        self.config.schedule.at(step, per_epoch.saturating_mul(self.parts.num_epochs))
    }

    /// Attribution matters only where gradients of several microbatches can conflict.
    fn attribute(&mut self, eager: &Eager, batches: &[Batch]) -> Result<Vec<Attribution>, Error> {
        if self.config.conflict == ConflictResolution::Mean || batches.len() < 2 {
            return Ok(vec![Attribution::host_only(); batches.len()]);
        }
        let step = self.cursor.step;
        let attribute = |batch| self.parts.seeds.attribute_batch(eager, batch);
        let attributions: Result<_, _> = batches.iter().map(attribute).collect();
        attributions.map_err(|source| Error::SeedManager { step, source: BoxError::new(source) })
    }

    /// Forward, backward, combination, clipping and update: the region.
    fn update(
        &mut self,
        _recording: &Recording,
        batches: &[Batch],
        attributions: Vec<Attribution>,
        learning_rate: f64,
    ) -> Result<(), Error> {
        let model = self.parts.seeds.model();
        let (parameters, layout) = (model.parameters(), model.layout());
        let mut rows = Vec::with_capacity(batches.len());
        for (batch, attribution) in batches.iter().zip(attributions) {
            let outputs =
                model.forward(&batch.inputs, Pass::Train).map_err(|source| Error::Model(BoxError::new(source)))?;
            let gradient = self.pool.lease(layout.num_elements(), DType::F32, &self.parts.device)?;
            let main = loss::cross_entropy(&outputs.logits, &batch.targets)?;
            gather_gradients(&main.backward()?, parameters, layout, GradientScope::Main, &gradient)?;
            for shadow in &outputs.shadows {
                let side = loss::cross_entropy(&shadow.logits, &batch.targets)?;
                gather_gradients(&side.backward()?, parameters, layout, GradientScope::Shadow(shadow.seed), &gradient)?;
            }
            let correct = loss::correct(&outputs.logits, &batch.targets)?;
            self.sums.add_microbatch(&main.detach(), &correct, batch.num_samples())?;
            rows.push(MicrobatchGradient { gradient, num_samples: batch.num_samples(), attribution });
        }

        let num_microbatches = rows.len();
        let order = ProjectionOrder { seed: self.parts.seed, step: self.cursor.step };
        let combined = aggregate(rows, layout, self.config.conflict, order, &mut self.reads)?;
        let gradient = combined.gradient.as_tensor();
        let norms = measure_and_clip(gradient, layout, self.sums.owners(), self.config.clip_norm)?;
        self.sums.add_norms(&norms.main_sq, &norms.owners_sq)?;
        self.optimizer.step(parameters, layout, gradient, learning_rate)?;

        let host = self.sums.host();
        host.num_steps += 1;
        host.num_microbatches += num_microbatches as u64;
        host.num_samples += batches.iter().map(|batch| batch.num_samples() as u64).sum::<u64>();
        if let Some(conflicts) = combined.conflicts {
            host.num_conflicts += conflicts.stats.conflicting_pairs;
            host.num_pairs += conflicts.stats.all_pairs;
            host.host_share += combined.host_share;
            host.num_windows += 1;
        }
        Ok(())
    }
}

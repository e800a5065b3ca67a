//! The samples of a window, read and changed: what a step waits for, or a worker does ahead of it.

use std::sync::Arc;

use leyline::id::EpochIndex;
use leyline::source::{SampleSpec, Source, SourceError};
use leyline::task::Task;

use super::host::HostBatch;
use super::transform::{Place, SampleRandom, Transform};
use super::windows::Window;
use crate::error;

/// The samples of an epoch in their order, and how they are cut into optimizer steps.
#[derive(Debug)]
pub(crate) struct EpochOrder {
    pub(crate) epoch: EpochIndex,
    pub(crate) samples: Vec<u32>,
    pub(crate) windows: Vec<Window>,
}

/// Makes the microbatches of a window. What it makes follows from seed, epoch and window alone.
#[derive(Debug)]
pub(crate) struct Gatherer {
    source: Arc<dyn Source>,
    spec: SampleSpec,
    transforms: Vec<Arc<dyn Transform>>,
    seed: u64,
    /// Looks at targets that nobody has looked at before.
    task: Option<Arc<dyn Task>>,
}

/// What is being done, to say what a panic interrupted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// The samples that are being read, or the one that is being changed.
    pub(crate) samples: Vec<u32>,
}

impl Gatherer {
    /// # Errors
    /// A transform that does not fit the samples, by its name; more than 256 of them.
    pub(crate) fn new(
        source: Arc<dyn Source>,
        transforms: Vec<Arc<dyn Transform>>,
        seed: u64,
        task: Option<Arc<dyn Task>>,
    ) -> Result<Self, SourceError> {
        let spec = source.spec();
        for transform in &transforms {
            let misfit = |expected| format!("the transform `{}` expects {expected}", transform.describe());
            transform.fits(&spec).map_err(|expected| SourceError::rejected(misfit(expected)))?;
        }
        if transforms.len() > 256 {
            return Err(SourceError::rejected(format!("expected at most 256 transforms, found {}", transforms.len())));
        }
        Ok(Self { source, spec, transforms, seed, task })
    }

    pub(crate) fn spec(&self) -> &SampleSpec {
        &self.spec
    }

    /// Fills `into` with the microbatches of a window.
    ///
    /// # Errors
    /// Those of source and transforms.
    pub(crate) fn gather(
        &self,
        order: &EpochOrder,
        window: &Window,
        into: &mut Vec<HostBatch>,
        progress: &mut Progress,
    ) -> Result<(), SourceError> {
        into.resize_with(window.num_microbatches(), HostBatch::new);
        for (positions, batch) in window.microbatches().zip(into) {
            let samples = &order.samples[positions.clone()];
            progress.samples.clear();
            progress.samples.extend_from_slice(samples);
            batch.resize(&self.spec, samples.len());
            self.source.read(samples, &mut batch.all(&self.spec))?;
            if let Some(task) = &self.task {
                self.check_targets(&**task, samples, batch)?;
            }
            if self.transforms.is_empty() {
                continue;
            }
            for (row, (sample, position)) in samples.iter().zip(positions).enumerate() {
                progress.samples.clear();
                progress.samples.push(*sample);
                self.transform(order.epoch, position, *sample, batch, row)
                    .map_err(|error| if error.sample.is_some() { error } else { error.of_sample(*sample) })?;
            }
        }
        Ok(())
    }

    /// One sample is as good as the other: the error says which microbatch it was.
    fn check_targets(&self, task: &dyn Task, samples: &[u32], batch: &HostBatch) -> Result<(), SourceError> {
        let checked = batch.targets(&self.spec).and_then(|targets| Ok(task.check_targets(&targets)?));
        checked.map_err(|error| {
            let message = format!("targets of the samples {samples:?} cannot be used: {}", error::chain(&error));
            SourceError::corrupt(self.source.describe(), message)
        })
    }

    fn transform(
        &self,
        epoch: EpochIndex,
        position: usize,
        sample: u32,
        batch: &mut HostBatch,
        row: usize,
    ) -> Result<(), SourceError> {
        let short = |value: u64| (value & 0xFFFF_FFFF) as u32;
        let place = Place { epoch: short(epoch.0), position: short(position as u64), sample };
        for (number, transform) in (0..=u8::MAX).zip(&self.transforms) {
            let mut random = SampleRandom::new(self.seed, place, number);
            transform.apply(&mut batch.sample(&self.spec, row), &self.spec, &mut random)?;
        }
        Ok(())
    }
}

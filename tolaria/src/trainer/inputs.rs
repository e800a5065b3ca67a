//! What an optimizer step reads: its samples, and the numbers that change from step to step.
//!
//! On a GPU they are copied into tensors that stay where they are, one set per shape of step, so that a recorded step
//! finds the new values at the old addresses. On the CPU the samples themselves are used.

use candle_core::{DType, Device, Tensor};
use esper_graph::{Feed, HostSlice, StagingRing};
use leyline::batch::Batch;

use crate::batch::Dataset;
use crate::error::Error;
use crate::optim::TABLE_WIDTH;
use crate::trainer::feed::{self, WindowSamples};
use crate::trainer::region::StepPlan;

/// Inputs of a step on the device.
#[derive(Debug)]
pub(super) enum StepInputs {
    /// The samples are at hand, and everything else comes from the host.
    Direct(Vec<Batch>),
    /// Tensors that stay where they are.
    Static(StaticInputs),
}

#[derive(Debug)]
pub(super) struct StaticInputs {
    samples: Samples,
    table: Tensor,
    /// The table as it is on the device.
    loaded: Vec<f32>,
    arguments: Option<Tensor>,
}

#[derive(Debug)]
enum Samples {
    /// The data are on the device: indices (N,), and where each microbatch is in them.
    Selected { indices: Tensor, sizes: Vec<usize> },
    /// The data are on the host: the samples themselves.
    Copied(Vec<Batch>),
}

impl StepInputs {
    /// The samples themselves.
    pub(super) fn direct(data: &Dataset, samples: &mut WindowSamples<'_>, device: &Device) -> Result<Self, Error> {
        samples.take(data, device).map(Self::Direct)
    }

    /// What differs from step to step, on its way to where it is read; nothing where that is the host.
    pub(super) fn load<'r>(
        &mut self,
        ring: &'r mut StagingRing,
        data: &Dataset,
        samples: &WindowSamples<'_>,
        plan: &StepPlan,
    ) -> Result<Option<Feed<'r>>, Error> {
        match self {
            Self::Direct(_) => Ok(None),
            Self::Static(inputs) => inputs.load(ring, data, samples, plan).map(Some),
        }
    }

    /// What was loaded may not be on the device: the next step loads all of it.
    pub(super) fn load_anew(&mut self) {
        if let Self::Static(inputs) = self {
            inputs.loaded.clear();
        }
    }

    /// Samples of microbatch `index`. On the device they are selected here, as part of the step.
    pub(super) fn batch(&self, data: &Dataset, index: usize) -> Result<Batch, Error> {
        match self {
            Self::Direct(batches) => Ok(batches[index].clone()),
            Self::Static(StaticInputs { samples: Samples::Copied(batches), .. }) => Ok(batches[index].clone()),
            Self::Static(StaticInputs { samples: Samples::Selected { indices, sizes }, .. }) => {
                let start: usize = sizes[..index].iter().sum();
                data.select(&indices.narrow(0, start, sizes[index])?)
            }
        }
    }

    /// Constants of the optimizer.
    pub(super) fn table(&self) -> Option<&Tensor> {
        match self {
            Self::Direct(_) => None,
            Self::Static(inputs) => Some(&inputs.table),
        }
    }

    /// Arguments of the aggregation.
    pub(super) fn arguments(&self) -> Option<&Tensor> {
        match self {
            Self::Direct(_) => None,
            Self::Static(inputs) => inputs.arguments.as_ref(),
        }
    }

    /// Every tensor that stays where it is, with a name for messages.
    pub(super) fn tensors(&self) -> Vec<(&'static str, &Tensor)> {
        match self {
            Self::Direct(_) => Vec::new(),
            Self::Static(inputs) => inputs.tensors(),
        }
    }
}

impl StaticInputs {
    /// Tensors of zeros for steps like this one.
    pub(super) fn new(plan: &StepPlan, data: &Dataset, device: &Device) -> Result<Self, Error> {
        let samples = if data.device().same_device(device) {
            let indices = Tensor::zeros(plan.sizes.iter().sum::<usize>(), DType::U32, device)?;
            Samples::Selected { indices, sizes: plan.sizes.clone() }
        } else {
            let batches = plan.sizes.iter().map(|size| feed::zeros(data, *size, device));
            Samples::Copied(batches.collect::<Result<_, Error>>()?)
        };
        let num_updated = plan.table.len() / TABLE_WIDTH;
        let table = Tensor::zeros((num_updated.max(1), TABLE_WIDTH), DType::F32, device)?;
        let arguments = match plan.arguments.len() {
            0 => None,
            count => Some(Tensor::zeros(count, DType::F64, device)?),
        };
        Ok(Self { samples, table, loaded: Vec::new(), arguments })
    }

    /// The values of a step, to be copied in, in the order of the compute stream.
    fn load<'r>(
        &mut self,
        ring: &'r mut StagingRing,
        data: &Dataset,
        samples: &WindowSamples<'_>,
        plan: &StepPlan,
    ) -> Result<Feed<'r>, Error> {
        let mut parts = Vec::with_capacity(2 + 2 * plan.sizes.len());
        // Constants that stay the same, as those of SGD at a constant rate, are copied once.
        let has_moved = self.loaded != plan.table;
        if has_moved {
            // What is on the device is known again once the copy was enqueued.
            self.loaded.clear();
            parts.push((HostSlice::F32(&plan.table), &self.table));
        }
        if let Some(arguments) = &self.arguments {
            parts.push((HostSlice::F64(&plan.arguments), arguments));
        }
        let feed = match (&self.samples, samples) {
            (Samples::Selected { indices, .. }, WindowSamples::Indices(samples)) => {
                let all = samples.concat();
                data.check(&all)?;
                parts.push((HostSlice::U32(&all), indices));
                ring.feed(&parts, &[])?
            }
            (Samples::Copied(batches), WindowSamples::Host(rows)) => {
                for (batch, rows) in batches.iter().zip(rows) {
                    let (inputs, targets) = rows.slices();
                    parts.push((inputs, &batch.inputs));
                    parts.push((targets, &batch.targets));
                }
                ring.feed(&parts, &[])?
            }
            _ => unreachable!("samples of data on the device are indices, others are on the host"),
        };
        if has_moved {
            self.loaded.clone_from(&plan.table);
        }
        Ok(feed)
    }

    fn tensors(&self) -> Vec<(&'static str, &Tensor)> {
        let mut tensors = vec![("optimizer constants", &self.table)];
        tensors.extend(self.arguments.as_ref().map(|arguments| ("arguments of the aggregation", arguments)));
        match &self.samples {
            Samples::Selected { indices, .. } => tensors.push(("indices", indices)),
            Samples::Copied(batches) => {
                tensors.extend(batches.iter().flat_map(|b| [("inputs", &b.inputs), ("targets", &b.targets)]));
            }
        }
        tensors
    }
}

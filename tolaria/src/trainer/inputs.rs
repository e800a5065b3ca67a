//! What the optimizer steps of a launch read: their samples, and the numbers that change from step to step.
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

    /// What differs from step to step, all of it on its way to where it is read at once; nothing where that is the host.
    pub(super) fn load<'r>(
        steps: &mut [Self],
        ring: &'r mut StagingRing,
        data: &Dataset,
        samples: &[WindowSamples<'_>],
        plans: &[StepPlan],
    ) -> Result<Option<Feed<'r>>, Error> {
        let indices = samples.iter().map(|samples| samples.indices(data)).collect::<Result<Vec<_>, _>>()?;
        let mut parts = Vec::new();
        for (step, ((samples, indices), plan)) in steps.iter_mut().zip(samples.iter().zip(&indices).zip(plans)) {
            let Self::Static(step) = step else { return Ok(None) };
            // What is on the device is known again once the copy was enqueued.
            if step.loaded != plan.table {
                step.loaded.clear();
            }
            step.parts(samples, indices, plan, &mut parts);
        }
        let feed = ring.feed(&parts, &[])?;
        for (step, plan) in steps.iter_mut().zip(plans) {
            if let Self::Static(step) = step {
                step.loaded.clone_from(&plan.table);
            }
        }
        Ok(Some(feed))
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
    fn parts<'a>(
        &'a self,
        samples: &'a WindowSamples<'_>,
        of_samples: &'a [u32],
        plan: &'a StepPlan,
        parts: &mut Vec<(HostSlice<'a>, &'a Tensor)>,
    ) {
        // Constants that stay the same, as those of SGD at a constant rate, are copied once.
        if self.loaded != plan.table {
            parts.push((HostSlice::F32(&plan.table), &self.table));
        }
        if let Some(arguments) = &self.arguments {
            parts.push((HostSlice::F64(&plan.arguments), arguments));
        }
        match (&self.samples, samples) {
            (Samples::Selected { indices, .. }, WindowSamples::Indices(_)) => {
                parts.push((HostSlice::U32(of_samples), indices));
            }
            (Samples::Copied(batches), WindowSamples::Host(rows)) => {
                for (batch, rows) in batches.iter().zip(rows) {
                    let (inputs, targets) = rows.slices();
                    parts.push((inputs, &batch.inputs));
                    parts.push((targets, &batch.targets));
                }
            }
            _ => unreachable!("samples of data on the device are indices, others are on the host"),
        }
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

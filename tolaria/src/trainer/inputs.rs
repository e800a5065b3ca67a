//! What an optimizer step reads: its samples, and the numbers that change from step to step.
//!
//! On a GPU they are copied into tensors that stay where they are, one set per shape of step, so that a recorded step
//! finds the new values at the old addresses. On the CPU the samples themselves are used.

use candle_core::{DType, Device, Tensor};
use leyline::batch::Batch;

use crate::batch::Dataset;
use crate::error::Error;
use crate::optim::TABLE_WIDTH;
use esper_graph::{HostSlice, StagingRing};

/// Sizes of the inputs of one shape of step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InputSizes {
    /// Samples of each microbatch.
    pub(super) microbatches: Vec<usize>,
    /// Parameters that the optimizer updates.
    pub(super) num_updated: usize,
    /// Numbers that the aggregation reads; 0 when it reads none.
    pub(super) num_arguments: usize,
}

/// Host values of one step.
#[derive(Debug)]
pub(super) struct StepValues<'a> {
    /// Samples of each microbatch, as indices of the data set.
    pub(super) samples: Vec<&'a [u32]>,
    /// Constants of the optimizer, (parameters, 4).
    pub(super) table: Vec<f32>,
    /// Arguments of the aggregation.
    pub(super) arguments: &'a [f64],
}

/// Inputs of a step on the device.
#[derive(Debug, Clone)]
pub(super) enum StepInputs {
    /// The samples are at hand, and everything else comes from the host.
    Direct(Vec<Batch>),
    /// Tensors that stay where they are.
    Static(StaticInputs),
}

#[derive(Debug, Clone)]
pub(super) struct StaticInputs {
    samples: Samples,
    table: Tensor,
    arguments: Option<Tensor>,
}

#[derive(Debug, Clone)]
enum Samples {
    /// The data are on the device: indices (N,), and where each microbatch is in them.
    Selected { indices: Tensor, sizes: Vec<usize> },
    /// The data are on the host: the samples themselves.
    Copied(Vec<Batch>),
}

impl StepInputs {
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
}

impl StaticInputs {
    /// Tensors of zeros.
    pub(super) fn new(sizes: &InputSizes, data: &Dataset, device: &Device) -> Result<Self, Error> {
        let samples = if data.inputs().device().same_device(device) {
            let indices = Tensor::zeros(sizes.microbatches.iter().sum::<usize>(), DType::U32, device)?;
            Samples::Selected { indices, sizes: sizes.microbatches.clone() }
        } else {
            let batch = |size: &usize| {
                let mut dims = data.inputs().dims().to_vec();
                dims[0] = *size;
                let inputs = Tensor::zeros(dims, DType::F32, device)?;
                Ok(Batch { inputs, targets: Tensor::zeros(*size, DType::U32, device)? })
            };
            Samples::Copied(sizes.microbatches.iter().map(batch).collect::<Result<_, Error>>()?)
        };
        let table = Tensor::zeros((sizes.num_updated.max(1), TABLE_WIDTH), DType::F32, device)?;
        let arguments = match sizes.num_arguments {
            0 => None,
            count => Some(Tensor::zeros(count, DType::F64, device)?),
        };
        Ok(Self { samples, table, arguments })
    }

    /// Copies the values of a step in, in the order of the compute stream; the table only when it is `new_table`.
    pub(super) fn load(
        &self,
        ring: &mut StagingRing,
        data: &Dataset,
        values: &StepValues<'_>,
        new_table: bool,
    ) -> Result<(), Error> {
        for samples in &values.samples {
            data.check(samples)?;
        }
        let mut parts = Vec::with_capacity(2 + 2 * values.samples.len());
        if new_table {
            parts.push((HostSlice::F32(&values.table), &self.table));
        }
        if let Some(arguments) = &self.arguments {
            parts.push((HostSlice::F64(values.arguments), arguments));
        }
        match &self.samples {
            Samples::Selected { indices, .. } => {
                let all = values.samples.concat();
                parts.push((HostSlice::U32(&all), indices));
                ring.stage(&parts)?;
            }
            Samples::Copied(batches) => {
                let rows: Vec<(Vec<f32>, Vec<u32>)> =
                    values.samples.iter().map(|samples| data.host_rows(samples)).collect::<Result<_, _>>()?;
                for (batch, (inputs, targets)) in batches.iter().zip(&rows) {
                    parts.push((HostSlice::F32(inputs), &batch.inputs));
                    parts.push((HostSlice::U32(targets), &batch.targets));
                }
                ring.stage(&parts)?;
            }
        }
        Ok(())
    }

    /// Every tensor, with a name for messages.
    pub(super) fn tensors(&self) -> Vec<(&'static str, &Tensor)> {
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

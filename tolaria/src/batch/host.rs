//! Samples on the host, in buffers that are used again.

use candle_core::{DType, Device, Tensor};
use esper_graph::HostSlice;
use leyline::batch::Batch;
use leyline::source::{Field, SampleSpec, SamplesMut, ValuesMut};

use crate::error::Error;

/// Numbers of some samples, one sample behind the other.
#[derive(Debug)]
enum HostValues {
    F32(Vec<f32>),
    U32(Vec<u32>),
}

impl HostValues {
    /// Room for `count` samples; what is in it is of no use.
    fn resize(&mut self, field: &Field, count: usize) {
        let len = field.num_elements() * count;
        match (self, field.dtype()) {
            (Self::F32(values), DType::F32) => values.resize(len, 0.0),
            (Self::U32(values), DType::U32) => values.resize(len, 0),
            (other, DType::F32) => *other = Self::F32(vec![0.0; len]),
            (other, _) => *other = Self::U32(vec![0; len]),
        }
    }

    fn rows(&mut self, rows: std::ops::Range<usize>, width: usize) -> ValuesMut<'_> {
        let range = rows.start * width..rows.end * width;
        match self {
            Self::F32(values) => ValuesMut::F32(&mut values[range]),
            Self::U32(values) => ValuesMut::U32(&mut values[range]),
        }
    }

    fn slice(&self) -> HostSlice<'_> {
        match self {
            Self::F32(values) => HostSlice::F32(values),
            Self::U32(values) => HostSlice::U32(values),
        }
    }

    /// A tensor with (count, …) elements on a device.
    fn copy(&self, field: &Field, count: usize, device: &Device) -> Result<Tensor, Error> {
        let dims: Vec<usize> = std::iter::once(count).chain(field.dims().iter().copied()).collect();
        Ok(match self {
            Self::F32(values) => Tensor::from_slice(values, dims, device)?,
            Self::U32(values) => Tensor::from_slice(values, dims, device)?,
        })
    }

    /// A tensor with (count, …) elements, which takes the buffer over.
    fn take(&mut self, field: &Field, count: usize) -> Result<Tensor, Error> {
        let dims: Vec<usize> = std::iter::once(count).chain(field.dims().iter().copied()).collect();
        Ok(match self {
            Self::F32(values) => Tensor::from_vec(std::mem::take(values), dims, &Device::Cpu)?,
            Self::U32(values) => Tensor::from_vec(std::mem::take(values), dims, &Device::Cpu)?,
        })
    }
}

/// The samples of one microbatch.
#[derive(Debug)]
pub(crate) struct HostBatch {
    inputs: HostValues,
    targets: HostValues,
    num_samples: usize,
}

impl HostBatch {
    /// No samples.
    pub(crate) fn new() -> Self {
        Self { inputs: HostValues::U32(Vec::new()), targets: HostValues::U32(Vec::new()), num_samples: 0 }
    }

    /// Room for `count` samples like `spec`.
    pub(crate) fn resize(&mut self, spec: &SampleSpec, count: usize) {
        self.inputs.resize(&spec.inputs, count);
        self.targets.resize(&spec.targets, count);
        self.num_samples = count;
    }

    /// All of it.
    pub(crate) fn all(&mut self, spec: &SampleSpec) -> SamplesMut<'_> {
        self.rows(spec, 0..self.num_samples)
    }

    /// One of them.
    pub(crate) fn sample(&mut self, spec: &SampleSpec, row: usize) -> SamplesMut<'_> {
        self.rows(spec, row..row + 1)
    }

    fn rows(&mut self, spec: &SampleSpec, rows: std::ops::Range<usize>) -> SamplesMut<'_> {
        SamplesMut {
            inputs: self.inputs.rows(rows.clone(), spec.inputs.num_elements()),
            targets: self.targets.rows(rows, spec.targets.num_elements()),
        }
    }

    /// Inputs and targets, for a copy to a device.
    pub(crate) fn slices(&self) -> (HostSlice<'_>, HostSlice<'_>) {
        (self.inputs.slice(), self.targets.slice())
    }

    /// Tensors on a device.
    pub(crate) fn copy(&self, spec: &SampleSpec, device: &Device) -> Result<Batch, Error> {
        let count = self.num_samples;
        let (inputs, targets) = (&self.inputs, &self.targets);
        Ok(Batch {
            inputs: inputs.copy(&spec.inputs, count, device)?,
            targets: targets.copy(&spec.targets, count, device)?,
        })
    }

    /// The targets, on the CPU.
    pub(crate) fn targets(&self, spec: &SampleSpec) -> Result<Tensor, Error> {
        self.targets.copy(&spec.targets, self.num_samples, &Device::Cpu)
    }

    /// Tensors on the CPU, which take the buffers over.
    pub(crate) fn take(&mut self, spec: &SampleSpec) -> Result<Batch, Error> {
        let count = self.num_samples;
        Ok(Batch { inputs: self.inputs.take(&spec.inputs, count)?, targets: self.targets.take(&spec.targets, count)? })
    }
}

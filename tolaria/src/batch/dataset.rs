//! A data set: in memory, or read from a source that need not fit into it.

use std::sync::Arc;

use candle_core::{DType, Device, Storage, Tensor};
use leyline::batch::Batch;
use leyline::source::{Field, SampleSpec, SamplesMut, Source, SourceError, ValuesMut};

use super::host::HostBatch;
use super::source::subset::{self, Subset};
use crate::error::Error;
use crate::host_read::{self, HostReads};

/// N samples with their targets.
#[derive(Debug, Clone)]
pub struct Dataset {
    samples: Samples,
    spec: SampleSpec,
    digest: String,
}

#[derive(Debug, Clone)]
enum Samples {
    /// On one device.
    Memory { inputs: Tensor, targets: Tensor, lengths: Option<Arc<[u32]>>, weights: Option<Arc<[f64]>> },
    /// Read when they are needed.
    Source(Arc<dyn Source>),
}

impl Dataset {
    /// Takes `inputs` (N, …) of `f32`, or of `u32` for tokens, and `targets` (N, …) of `u32` or `f32`. Whether a task can be
    /// trained by these targets is looked at where both are known.
    ///
    /// # Errors
    /// [`Error::InvalidData`] for other types, unequal counts, or more samples than `u32` can number.
    /// # Sync
    /// one device-to-host copy of the targets
    pub fn new(inputs: Tensor, targets: Tensor) -> Result<Self, Error> {
        let refuse = |what, message| Err(Error::InvalidData { what, message });
        for (what, tensor) in [("inputs", &inputs), ("targets", &targets)] {
            if tensor.rank() == 0 || !matches!(tensor.dtype(), DType::F32 | DType::U32) {
                let (dtype, shape) = (tensor.dtype(), tensor.shape());
                return refuse(what, format!("expected f32 or u32 of shape (N, …), found {dtype:?} {shape:?}"));
            }
        }
        let num_samples = inputs.dims()[0];
        if targets.dims()[0] != num_samples {
            return refuse("targets", format!("expected {num_samples}, one per input, found {}", targets.dims()[0]));
        }
        if !targets.device().same_device(inputs.device()) {
            return refuse("targets", "expected them on the device of the inputs".to_owned());
        }
        if u32::try_from(num_samples).is_err() {
            return refuse("inputs", format!("expected at most {} samples, found {num_samples}", u32::MAX));
        }
        let mut hasher = blake3::Hasher::new();
        let reads = &mut HostReads::default();
        if targets.dtype() == DType::U32 {
            for label in host_read::read_vec_u32(&targets, "labels", reads)? {
                hasher.update(&label.to_le_bytes());
            }
        } else {
            for value in host_read::read_vec(&targets, "labels", reads)? {
                hasher.update(&value.to_le_bytes());
            }
        }
        let (inputs, targets) = (inputs.contiguous()?, targets.contiguous()?);
        let spec = SampleSpec { inputs: field(&inputs), targets: field(&targets) };
        let samples = Samples::Memory { inputs, targets, lengths: None, weights: None };
        Ok(Self { samples, spec, digest: hasher.finalize().to_string() })
    }

    /// Samples that are read when they are needed, from files say ([`source`](crate::batch::source)).
    ///
    /// # Errors
    /// [`Error::InvalidData`] for more samples than `u32` can number.
    pub fn from_source(source: Arc<dyn Source>) -> Result<Self, Error> {
        if u32::try_from(source.len()).is_err() {
            let message = format!("expected at most {} samples, found {}", u32::MAX, source.len());
            return Err(Error::InvalidData { what: "inputs", message });
        }
        let (spec, digest) = (source.spec(), source.digest());
        Ok(Self { samples: Samples::Source(source), spec, digest })
    }

    /// The same with the length of each sample, by which they can be put into buckets; nothing for samples of a source, which
    /// says them itself.
    ///
    /// # Errors
    /// [`Error::InvalidData`] for another number of them.
    pub fn with_lengths(mut self, of_samples: Vec<u32>) -> Result<Self, Error> {
        self.one_each("lengths", of_samples.len())?;
        if let Samples::Memory { lengths, .. } = &mut self.samples {
            *lengths = Some(of_samples.into());
        }
        Ok(self)
    }

    /// The same with a weight for each sample, by which they can be drawn; nothing for samples of a source, which says them
    /// itself.
    ///
    /// # Errors
    /// [`Error::InvalidData`] for another number of them.
    pub fn with_weights(mut self, of_samples: Vec<f64>) -> Result<Self, Error> {
        self.one_each("weights", of_samples.len())?;
        if let Samples::Memory { weights, .. } = &mut self.samples {
            *weights = Some(of_samples.into());
        }
        Ok(self)
    }

    fn one_each(&self, what: &'static str, found: usize) -> Result<(), Error> {
        let expected = self.len();
        let message = || format!("expected {expected}, one per sample, found {found}");
        if found == expected { Ok(()) } else { Err(Error::InvalidData { what, message: message() }) }
    }

    /// Samples (N).
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.samples {
            Samples::Memory { targets, .. } => targets.dims()[0],
            Samples::Source(source) => source.len(),
        }
    }

    /// Whether there is no sample.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Type and shape of each sample.
    #[must_use]
    pub fn spec(&self) -> &SampleSpec {
        &self.spec
    }

    /// In memory the BLAKE3 of the targets in little-endian order, otherwise what the source says: tells other samples, or
    /// another order of them, from these.
    pub(crate) fn digest(&self) -> &str {
        &self.digest
    }

    /// All inputs, shape (N, …), where they are in memory.
    #[must_use]
    pub fn inputs(&self) -> Option<&Tensor> {
        self.tensors().map(|(inputs, _)| inputs)
    }

    /// All targets, shape (N, …), where they are in memory.
    #[must_use]
    pub fn targets(&self) -> Option<&Tensor> {
        self.tensors().map(|(_, targets)| targets)
    }

    pub(crate) fn tensors(&self) -> Option<(&Tensor, &Tensor)> {
        match &self.samples {
            Samples::Memory { inputs, targets, .. } => Some((inputs, targets)),
            Samples::Source(_) => None,
        }
    }

    /// Where samples are handed out: the CPU, unless all of them are in the memory of another device.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.inputs().map_or(&Device::Cpu, Tensor::device)
    }

    /// The samples, as a source.
    pub(crate) fn as_source(&self) -> Arc<dyn Source> {
        match &self.samples {
            Samples::Memory { .. } => Arc::new(self.clone()),
            Samples::Source(source) => Arc::clone(source),
        }
    }

    /// The samples `start..start + count`, of those in memory without a copy.
    ///
    /// # Errors
    /// When the range leaves the data set, or samples cannot be read.
    /// # Sync
    /// none
    pub fn slice(&self, start: usize, count: usize) -> Result<Batch, Error> {
        match &self.samples {
            Samples::Memory { inputs, targets, .. } => {
                Ok(Batch { inputs: inputs.narrow(0, start, count)?, targets: targets.narrow(0, start, count)? })
            }
            Samples::Source(source) => {
                let outside =
                    || Error::Source(SourceError::rejected(format!("there are no samples {start} to {count}")));
                let end = start.checked_add(count).and_then(|end| u32::try_from(end).ok()).ok_or_else(outside)?;
                let start = u32::try_from(start).map_err(|_| outside())?;
                self.read_batch(&**source, &(start..end).collect::<Vec<_>>())
            }
        }
    }

    /// The samples at `indices`, in that order; an index may occur more than once.
    ///
    /// # Errors
    /// [`Error::InvalidData`] for an index outside the data set; when the device fails, or samples cannot be read.
    /// # Sync
    /// none; off the CPU the indices are copied to the device
    pub fn gather(&self, indices: &[u32]) -> Result<Batch, Error> {
        self.check(indices)?;
        match &self.samples {
            Samples::Memory { inputs, .. } if !inputs.device().is_cpu() => self.gather_on_device(indices),
            Samples::Memory { inputs, targets, .. } => {
                Ok(Batch { inputs: gather_rows(inputs, indices)?, targets: gather_rows(targets, indices)? })
            }
            Samples::Source(source) => self.read_batch(&**source, indices),
        }
    }

    /// The samples at `indices` as a data set of their own; those of a source stay where they are.
    pub(crate) fn subset(&self, indices: &[u32]) -> Result<Self, Error> {
        if self.tensors().is_none() {
            return Self::from_source(Arc::new(Subset::new(self.as_source(), indices.to_vec())));
        }
        let Batch { inputs, targets } = self.gather(indices)?;
        let mut subset = Self::new(inputs, targets)?;
        if let Some(lengths) = Source::lengths(self) {
            subset = subset.with_lengths(subset::of(lengths, indices))?;
        }
        if let Some(weights) = Source::weights(self) {
            subset = subset.with_weights(subset::of(weights, indices))?;
        }
        Ok(subset)
    }

    fn read_batch(&self, source: &dyn Source, indices: &[u32]) -> Result<Batch, Error> {
        let mut batch = HostBatch::new();
        batch.resize(&self.spec, indices.len());
        source.read(indices, &mut batch.all(&self.spec))?;
        batch.take(&self.spec)
    }

    fn gather_on_device(&self, indices: &[u32]) -> Result<Batch, Error> {
        self.select(&Tensor::new(indices, self.device())?)
    }

    /// Confirms that every index names a sample.
    pub(crate) fn check(&self, indices: &[u32]) -> Result<(), Error> {
        let Some(index) = indices.iter().find(|index| **index as usize >= self.len()) else { return Ok(()) };
        let message = format!("expected an index below {}, found {index}", self.len());
        Err(Error::InvalidData { what: "indices", message })
    }

    /// The samples at `indices` (B,) of `u32` on the data's device, which the caller has checked.
    pub(crate) fn select(&self, indices: &Tensor) -> Result<Batch, Error> {
        let Some((inputs, targets)) = self.tensors() else { unreachable!("only samples in memory are selected from") };
        Ok(Batch { inputs: inputs.index_select(indices, 0)?, targets: targets.index_select(indices, 0)? })
    }
}

/// Samples in the memory of the CPU.
impl Source for Dataset {
    fn len(&self) -> usize {
        self.len()
    }

    fn spec(&self) -> SampleSpec {
        self.spec.clone()
    }

    fn digest(&self) -> String {
        self.digest.clone()
    }

    fn read(&self, samples: &[u32], into: &mut SamplesMut<'_>) -> Result<(), SourceError> {
        let Some((inputs, targets)) = self.tensors() else { return self.as_source().read(samples, into) };
        Source::check(self, samples)?;
        into.check(&self.spec, samples.len())?;
        for (table, buffer) in [(inputs, &mut into.inputs), (targets, &mut into.targets)] {
            let copied = match buffer {
                ValuesMut::F32(rows) => copy_rows(table, samples, rows),
                ValuesMut::U32(rows) => copy_rows(table, samples, rows),
            };
            copied.map_err(|error| SourceError::rejected(crate::error::chain(&error)))?;
        }
        Ok(())
    }

    fn lengths(&self) -> Option<&[u32]> {
        match &self.samples {
            Samples::Memory { lengths, .. } => lengths.as_deref(),
            Samples::Source(source) => source.lengths(),
        }
    }

    fn weights(&self) -> Option<&[f64]> {
        match &self.samples {
            Samples::Memory { weights, .. } => weights.as_deref(),
            Samples::Source(source) => source.weights(),
        }
    }
}

/// Type and shape of one row of a table.
fn field(table: &Tensor) -> Field {
    let dims = &table.dims()[1..];
    if table.dtype() == DType::U32 { Field::u32(dims) } else { Field::f32(dims) }
}

/// One copy per row: `index_select` would go through a tensor of indices and a general stride computation.
fn gather_rows(table: &Tensor, indices: &[u32]) -> Result<Tensor, Error> {
    let mut dims = table.dims().to_vec();
    dims[0] = indices.len();
    Ok(match table.dtype() {
        DType::U32 => Tensor::from_vec(rows::<u32>(table, indices)?, dims, table.device())?,
        _ => Tensor::from_vec(rows::<f32>(table, indices)?, dims, table.device())?,
    })
}

/// The batch on `device`. Of a view only its own elements are copied.
pub(crate) fn to_device(batch: Batch, device: &Device) -> Result<Batch, Error> {
    let moved = |tensor: Tensor| -> Result<Tensor, Error> {
        if tensor.device().same_device(device) {
            return Ok(tensor);
        }
        // Copied first: a tensor moves with the whole storage that it is a view of.
        Ok(tensor.force_contiguous()?.to_device(device)?)
    };
    Ok(Batch { inputs: moved(batch.inputs)?, targets: moved(batch.targets)? })
}

fn rows<T: candle_core::WithDType>(table: &Tensor, indices: &[u32]) -> Result<Vec<T>, Error> {
    let mut rows = Vec::with_capacity(indices.len() * width(table));
    each_row(table, indices, |row| rows.extend_from_slice(row))?;
    Ok(rows)
}

fn copy_rows<T: candle_core::WithDType>(table: &Tensor, indices: &[u32], into: &mut [T]) -> Result<(), Error> {
    let mut rest = into;
    each_row(table, indices, |row| {
        let (into, others) = std::mem::take(&mut rest).split_at_mut(row.len());
        into.copy_from_slice(row);
        rest = others;
    })
}

fn width(table: &Tensor) -> usize {
    table.elem_count() / table.dims()[0].max(1)
}

/// Shows the rows at `indices`, of which each is one, in their order.
fn each_row<T: candle_core::WithDType>(
    table: &Tensor,
    indices: &[u32],
    mut show: impl FnMut(&[T]),
) -> Result<(), Error> {
    let width = width(table);
    let (storage, layout) = table.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return Err(Error::mismatch("rows of a data set", "the memory of the CPU", "that of another device"));
    };
    let table = crate::cpu::slice::<T>(storage, layout)?;
    for index in indices {
        let start = *index as usize * width;
        show(&table[start..start + width]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::testing::values;

    fn tensor<T: candle_core::WithDType>(values: Vec<T>, shape: &[usize]) -> Tensor {
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    }

    fn dataset() -> Dataset {
        let inputs = tensor((0_u8..24).map(f32::from).collect(), &[2, 2, 6]).reshape((6, 2, 2)).unwrap();
        Dataset::new(inputs, tensor(vec![0_u32, 1, 2, 0, 1, 2], &[6])).unwrap()
    }

    #[track_caller]
    fn refused(inputs: Tensor, targets: Tensor, message: &str) {
        let error = Dataset::new(inputs, targets).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }

    #[test]
    fn unfit_data_is_refused_by_name() {
        let inputs = || tensor(vec![0.0_f32; 4], &[2, 2]);
        let targets = || tensor(vec![0_u32, 1], &[2]);
        refused(tensor(vec![0.0_f64; 4], &[2, 2]), targets(), "inputs cannot be used: expected f32 or u32");
        refused(inputs(), tensor(vec![0_i64, 1], &[2]), "targets cannot be used: expected f32 or u32");
        refused(inputs(), Tensor::new(1_u32, &Device::Cpu).unwrap(), "shape (N, …)");
        refused(inputs(), tensor(vec![0_u32], &[1]), "expected 2, one per input, found 1");
    }

    #[track_caller]
    fn check(indices: &[u32]) {
        let data = dataset();
        let (copied, selected) = (data.gather(indices).unwrap(), data.gather_on_device(indices).unwrap());
        assert_eq!(copied.inputs.dims(), [indices.len(), 2, 2]);
        assert_eq!(copied.num_samples(), indices.len());
        let first: Vec<f32> = values(&copied.inputs).into_iter().step_by(4).collect();
        assert_eq!(first, indices.iter().map(|i| 4.0 * *i as f32).collect::<Vec<_>>());
        if !indices.is_empty() {
            assert_eq!(values(&copied.inputs), values(&selected.inputs));
            let targets = |batch: &Batch| values(&batch.targets.to_dtype(DType::F32).unwrap());
            assert_eq!(targets(&copied), targets(&selected));
        }
    }

    #[test]
    fn rows_come_in_the_order_of_their_indices_on_both_paths() {
        check(&[0, 1, 2, 3, 4, 5]);
        check(&[5, 0, 5]);
        check(&[3]);
        check(&[]);
    }

    #[test]
    fn inputs_may_be_tokens_and_targets_values_of_any_shape() {
        let tokens = tensor((0_u32..12).collect(), &[4, 3]);
        let targets = tensor((0_u8..8).map(f32::from).collect(), &[4, 2]);
        let data = Dataset::new(tokens, targets).unwrap();
        for batch in [data.gather(&[3, 1]).unwrap(), data.gather_on_device(&[3, 1]).unwrap()] {
            assert_eq!(values(&batch.inputs.to_dtype(DType::F32).unwrap()), [9.0, 10.0, 11.0, 3.0, 4.0, 5.0]);
            assert_eq!(values(&batch.targets), [6.0, 7.0, 2.0, 3.0]);
            assert_eq!((batch.num_samples(), batch.inputs.dtype()), (2, DType::U32));
        }
    }

    #[test]
    fn an_index_outside_is_refused() {
        assert!(dataset().gather(&[0, 6]).unwrap_err().to_string().contains("expected an index below 6, found 6"));
    }

    #[test]
    fn a_slice_is_the_same_as_its_indices() {
        let data = dataset();
        let (slice, gathered) = (data.slice(2, 3).unwrap(), data.gather(&[2, 3, 4]).unwrap());
        assert_eq!(values(&slice.inputs), values(&gathered.inputs));
        assert!(data.slice(4, 3).is_err());
    }
}

//! A data set that fits into memory.

use candle_core::{DType, Device, Storage, Tensor};
use esper_graph::HostSlice;
use leyline::batch::Batch;

use crate::error::Error;
use crate::host_read::{self, HostReads};

/// N samples with their targets, on one device.
#[derive(Debug, Clone)]
pub struct Dataset {
    inputs: Tensor,
    targets: Tensor,
    labels: blake3::Hash,
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
        let (inputs, targets, labels) = (inputs.contiguous()?, targets.contiguous()?, hasher.finalize());
        Ok(Self { inputs, targets, labels })
    }

    /// Samples (N).
    #[must_use]
    pub fn len(&self) -> usize {
        self.targets.dims()[0]
    }

    /// Whether there is no sample.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// BLAKE3 of the targets in little-endian order: tells other samples, or another order of them, from these.
    pub(crate) fn labels(&self) -> blake3::Hash {
        self.labels
    }

    /// All inputs, shape (N, …).
    #[must_use]
    pub fn inputs(&self) -> &Tensor {
        &self.inputs
    }

    /// All targets, shape (N, …).
    #[must_use]
    pub fn targets(&self) -> &Tensor {
        &self.targets
    }

    /// The samples `start..start + count`, without a copy.
    ///
    /// # Errors
    /// When the range leaves the data set.
    /// # Sync
    /// none
    pub fn slice(&self, start: usize, count: usize) -> Result<Batch, Error> {
        Ok(Batch { inputs: self.inputs.narrow(0, start, count)?, targets: self.targets.narrow(0, start, count)? })
    }

    /// The samples at `indices`, in that order; an index may occur more than once.
    ///
    /// # Errors
    /// [`Error::InvalidData`] for an index outside the data set; when the device fails.
    /// # Sync
    /// none; off the CPU the indices are copied to the device
    pub fn gather(&self, indices: &[u32]) -> Result<Batch, Error> {
        self.check(indices)?;
        if self.inputs.device().is_cpu() { self.gather_rows(indices) } else { self.gather_on_device(indices) }
    }

    /// The samples at `indices` as a data set of their own.
    pub(crate) fn subset(&self, indices: &[u32]) -> Result<Self, Error> {
        let Batch { inputs, targets } = self.gather(indices)?;
        Self::new(inputs, targets)
    }

    /// One copy per row: `index_select` would go through a tensor of indices and a general stride computation.
    fn gather_rows(&self, indices: &[u32]) -> Result<Batch, Error> {
        let rows = |table: &Tensor| HostRows::of(table, indices)?.into_tensor(table, indices.len());
        Ok(Batch { inputs: rows(&self.inputs)?, targets: rows(&self.targets)? })
    }

    fn gather_on_device(&self, indices: &[u32]) -> Result<Batch, Error> {
        self.select(&Tensor::new(indices, self.inputs.device())?)
    }

    pub(crate) fn host_rows(&self, indices: &[u32]) -> Result<[HostRows; 2], Error> {
        Ok([HostRows::of(&self.inputs, indices)?, HostRows::of(&self.targets, indices)?])
    }

    /// Confirms that every index names a sample.
    pub(crate) fn check(&self, indices: &[u32]) -> Result<(), Error> {
        let Some(index) = indices.iter().find(|index| **index as usize >= self.len()) else { return Ok(()) };
        let message = format!("expected an index below {}, found {index}", self.len());
        Err(Error::InvalidData { what: "indices", message })
    }

    /// The samples at `indices` (B,) of `u32` on the data's device, which the caller has checked.
    pub(crate) fn select(&self, indices: &Tensor) -> Result<Batch, Error> {
        Ok(Batch { inputs: self.inputs.index_select(indices, 0)?, targets: self.targets.index_select(indices, 0)? })
    }
}

/// Rows of a table in host memory.
#[derive(Debug)]
pub(crate) enum HostRows {
    F32(Vec<f32>),
    U32(Vec<u32>),
}

impl HostRows {
    fn of(table: &Tensor, indices: &[u32]) -> Result<Self, Error> {
        Ok(match table.dtype() {
            DType::U32 => Self::U32(rows(table, indices)?),
            _ => Self::F32(rows(table, indices)?),
        })
    }

    fn into_tensor(self, table: &Tensor, count: usize) -> Result<Tensor, Error> {
        let mut dims = table.dims().to_vec();
        dims[0] = count;
        Ok(match self {
            Self::F32(rows) => Tensor::from_vec(rows, dims, table.device())?,
            Self::U32(rows) => Tensor::from_vec(rows, dims, table.device())?,
        })
    }

    /// The rows as they are copied to a device.
    pub(crate) fn as_slice(&self) -> HostSlice<'_> {
        match self {
            Self::F32(rows) => HostSlice::F32(rows),
            Self::U32(rows) => HostSlice::U32(rows),
        }
    }
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
    let width = table.elem_count() / table.dims()[0].max(1);
    let (storage, layout) = table.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else { unreachable!("rows are gathered on the CPU") };
    let table = crate::cpu::slice::<T>(storage, layout)?;
    let mut rows = Vec::with_capacity(indices.len() * width);
    for index in indices {
        let start = *index as usize * width;
        rows.extend_from_slice(&table[start..start + width]);
    }
    Ok(rows)
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
            assert_eq!(batch.inputs.to_vec2::<u32>().unwrap(), [[9, 10, 11], [3, 4, 5]]);
            assert_eq!(batch.targets.to_vec2::<f32>().unwrap(), [[6.0, 7.0], [2.0, 3.0]]);
            assert_eq!(batch.num_samples(), 2);
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

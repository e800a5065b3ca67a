//! A labeled data set that fits into memory.

use candle_core::{DType, Device, Storage, Tensor};
use leyline::batch::Batch;

use crate::error::Error;
use crate::host_read::{self, HostReads};

/// N samples with their classes, on one device.
#[derive(Debug, Clone)]
pub struct Dataset {
    inputs: Tensor,
    targets: Tensor,
    num_classes: usize,
    labels: blake3::Hash,
}

impl Dataset {
    /// Takes `inputs` (N, …) of `f32` and `targets` (N,) of `u32`, each below `num_classes`.
    ///
    /// # Errors
    /// [`Error::InvalidData`] for other types, unequal counts, more samples than `u32` can number, or a target that
    /// is no class.
    /// # Sync
    /// one device-to-host copy of the targets
    pub fn new(inputs: Tensor, targets: Tensor, num_classes: usize) -> Result<Self, Error> {
        let refuse = |what, message| Err(Error::InvalidData { what, message });
        if inputs.rank() == 0 || inputs.dtype() != DType::F32 {
            let found = format!("expected f32 of shape (N, …), found {:?} {:?}", inputs.dtype(), inputs.shape());
            return refuse("inputs", found);
        }
        if targets.rank() != 1 || targets.dtype() != DType::U32 {
            let found = format!("expected u32 of shape (N,), found {:?} {:?}", targets.dtype(), targets.shape());
            return refuse("targets", found);
        }
        let num_samples = inputs.dims()[0];
        if targets.elem_count() != num_samples {
            return refuse("targets", format!("expected {num_samples}, one per input, found {}", targets.elem_count()));
        }
        if !targets.device().same_device(inputs.device()) {
            return refuse("targets", "expected them on the device of the inputs".to_owned());
        }
        if u32::try_from(num_samples).is_err() {
            return refuse("inputs", format!("expected at most {} samples, found {num_samples}", u32::MAX));
        }
        let labels = host_read::read_vec_u32(&targets, "labels", &mut HostReads::default())?;
        if let Some(index) = labels.iter().position(|label| *label as usize >= num_classes) {
            let found = format!("expected classes below {num_classes}, found {} at sample {index}", labels[index]);
            return refuse("targets", found);
        }
        let mut hasher = blake3::Hasher::new();
        for label in &labels {
            hasher.update(&label.to_le_bytes());
        }
        let (inputs, targets, labels) = (inputs.contiguous()?, targets.contiguous()?, hasher.finalize());
        Ok(Self { inputs, targets, num_classes, labels })
    }

    /// Samples (N).
    #[must_use]
    pub fn len(&self) -> usize {
        self.targets.elem_count()
    }

    /// Whether there is no sample.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Classes.
    #[must_use]
    pub fn num_classes(&self) -> usize {
        self.num_classes
    }

    /// BLAKE3 of the targets as little-endian `u32`: tells other samples, or another order of them, from these.
    pub(crate) fn labels(&self) -> blake3::Hash {
        self.labels
    }

    /// All inputs, shape (N, …).
    #[must_use]
    pub fn inputs(&self) -> &Tensor {
        &self.inputs
    }

    /// All targets, shape (N,).
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
        Self::new(inputs, targets, self.num_classes)
    }

    /// One copy per row: `index_select` would go through a tensor of indices and a general stride computation.
    fn gather_rows(&self, indices: &[u32]) -> Result<Batch, Error> {
        let mut dims = self.inputs.dims().to_vec();
        dims[0] = indices.len();
        Ok(Batch {
            inputs: Tensor::from_vec(rows::<f32>(&self.inputs, indices)?, dims, self.inputs.device())?,
            targets: Tensor::from_vec(rows::<u32>(&self.targets, indices)?, indices.len(), self.targets.device())?,
        })
    }

    fn gather_on_device(&self, indices: &[u32]) -> Result<Batch, Error> {
        self.select(&Tensor::new(indices, self.inputs.device())?)
    }

    /// The rows at `indices`, as they are on the CPU.
    pub(crate) fn host_rows(&self, indices: &[u32]) -> Result<(Vec<f32>, Vec<u32>), Error> {
        Ok((rows(&self.inputs, indices)?, rows(&self.targets, indices)?))
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
        Dataset::new(inputs, tensor(vec![0_u32, 1, 2, 0, 1, 2], &[6]), 3).unwrap()
    }

    #[track_caller]
    fn refused(inputs: Tensor, targets: Tensor, message: &str) {
        let error = Dataset::new(inputs, targets, 3).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }

    #[test]
    fn unfit_data_is_refused_by_name() {
        let inputs = || tensor(vec![0.0_f32; 4], &[2, 2]);
        let targets = || tensor(vec![0_u32, 1], &[2]);
        refused(tensor(vec![0.0_f64; 4], &[2, 2]), targets(), "inputs cannot be used: expected f32");
        refused(inputs(), tensor(vec![0_i64, 1], &[2]), "targets cannot be used: expected u32");
        refused(inputs(), tensor(vec![0_u32, 1], &[2, 1]), "shape (N,)");
        refused(inputs(), tensor(vec![0_u32], &[1]), "expected 2, one per input, found 1");
        refused(inputs(), tensor(vec![0_u32, 3], &[2]), "expected classes below 3, found 3 at sample 1");
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

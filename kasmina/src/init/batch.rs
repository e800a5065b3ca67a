//! The batch from which new seeds start, as a part of a saved state.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use leyline::batch::Batch;

use crate::error::{Error, TensorProblem};

// No parameter can have these names: those of the network begin with `host.` or `seed.`.
const INPUTS: &str = "latest_batch.inputs";
const TARGETS: &str = "latest_batch.targets";

/// Samples of an epoch from which seeds start, at most, but for those of its last batch.
pub(crate) const MOST_SAMPLES: usize = 512;

/// The batch behind those that were kept, or instead of them where its samples have another form: a host may take several.
pub(crate) fn with_batch(kept: Option<&Batch>, batch: &Batch) -> candle_core::Result<Batch> {
    let is_alike = |kept: &&Batch| kept.inputs.dims().get(1..) == batch.inputs.dims().get(1..);
    let Some(kept) = kept.filter(is_alike) else { return Ok(batch.clone()) };
    let joined = |a: &Tensor, b: &Tensor| Tensor::cat(&[a, b], 0);
    Ok(Batch { inputs: joined(&kept.inputs, &batch.inputs)?, targets: joined(&kept.targets, &batch.targets)? })
}

/// Copies the batch into `tensors`; a batch that is a slice of its data set is copied without the rest.
pub(crate) fn save_batch(batch: Option<&Batch>, tensors: &mut BTreeMap<String, Tensor>) -> candle_core::Result<()> {
    if let Some(batch) = batch {
        tensors.insert(INPUTS.to_owned(), batch.inputs.force_contiguous()?);
        tensors.insert(TARGETS.to_owned(), batch.targets.force_contiguous()?);
    }
    Ok(())
}

/// Takes the batch out of `tensors`; none when it is not there.
///
/// # Errors
/// [`Error::SavedTensor`] when it is not there in full; when the device fails.
pub(crate) fn take_batch(tensors: &mut BTreeMap<String, Tensor>, device: &Device) -> Result<Option<Batch>, Error> {
    let on_device = |tensor: Tensor| tensor.detach().force_contiguous()?.to_device(device);
    let (inputs, targets) = match (tensors.remove(INPUTS), tensors.remove(TARGETS)) {
        (None, None) => return Ok(None),
        (Some(inputs), Some(targets)) => (inputs, targets),
        (found, _) => {
            let name = if found.is_some() { TARGETS } else { INPUTS }.to_owned();
            return Err(Error::SavedTensor { name, problem: TensorProblem::Missing });
        }
    };
    Ok(Some(Batch { inputs: on_device(inputs)?, targets: on_device(targets)? }))
}

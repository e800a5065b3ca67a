//! The two files that carry a snapshot: `state.json` and `tensors.safetensors`, to bytes and back.

use std::borrow::Cow;
use std::collections::BTreeMap;

use candle_core::{CpuStorage, DType, Device, Storage, Tensor};
use leyline::durable::SavedState;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, View};

use super::error::{CheckpointError, Fault};
use super::name::{check_portable, check_tensor};

/// Most bytes of `state.json`.
pub const MAX_STATE_BYTES: u64 = 256 << 20;
/// Most bytes of `tensors.safetensors`.
pub const MAX_TENSORS_BYTES: u64 = 64 << 30;

pub(super) const STATE_FILE: &str = "state.json";
pub(super) const TENSORS_FILE: &str = "tensors.safetensors";

/// Content of the two files.
#[derive(Debug)]
pub(super) struct Payload {
    pub(super) state: Vec<u8>,
    pub(super) tensors: Vec<u8>,
}

// The tensor file is little-endian, and candle reads and writes the byte order of the machine.
const _: () = assert!(cfg!(target_endian = "little"));

/// The types of version 1.
const DTYPES: [(DType, Dtype); 9] = [
    (DType::U8, Dtype::U8),
    (DType::U32, Dtype::U32),
    (DType::I16, Dtype::I16),
    (DType::I32, Dtype::I32),
    (DType::I64, Dtype::I64),
    (DType::BF16, Dtype::BF16),
    (DType::F16, Dtype::F16),
    (DType::F32, Dtype::F32),
    (DType::F64, Dtype::F64),
];

/// Writes the components down. The same components give the same bytes.
///
/// # Sync
/// One device-to-host copy per tensor that is not on the CPU.
pub(super) fn encode(components: &BTreeMap<String, SavedState>) -> Result<Payload, CheckpointError> {
    let unwritable = |file| move |fault| CheckpointError::Unwritable { file, fault };
    // Before anything is copied: views can be larger than memory.
    check_size(num_tensor_bytes(components), MAX_TENSORS_BYTES).map_err(unwritable(TENSORS_FILE))?;
    let mut documents = BTreeMap::new();
    let mut tensors = Vec::new();
    for (component, saved) in components {
        check_portable("component name", component)?;
        documents.insert(component, &saved.json);
        for (name, tensor) in &saved.tensors {
            check_tensor(name)?;
            let full_name = format!("{component}/{name}");
            let host = HostTensor::new(&full_name, tensor)?;
            tensors.push((full_name, host));
        }
    }
    let state = serde_json::to_vec(&documents).map_err(Fault::Json).map_err(unwritable(STATE_FILE))?;
    check_size(state.len() as u64, MAX_STATE_BYTES).map_err(unwritable(STATE_FILE))?;
    let tensors =
        safetensors::serialize(tensors, None).map_err(Fault::Safetensors).map_err(unwritable(TENSORS_FILE))?;
    check_size(tensors.len() as u64, MAX_TENSORS_BYTES).map_err(unwritable(TENSORS_FILE))?;
    Ok(Payload { state, tensors })
}

fn num_tensor_bytes(components: &BTreeMap<String, SavedState>) -> u64 {
    let tensors = components.values().flat_map(|saved| saved.tensors.values());
    let sizes =
        tensors.map(|tensor| (tensor.elem_count() as u64).saturating_mul(tensor.dtype().size_in_bytes() as u64));
    sizes.fold(0, u64::saturating_add)
}

/// Refuses a size beyond a limit of the format.
pub(super) fn check_size(bytes: u64, limit: u64) -> Result<(), Fault> {
    if bytes > limit { Err(Fault::TooLarge { bytes, limit }) } else { Ok(()) }
}

/// Component names and documents of `state.json`.
pub(super) fn parse_state(bytes: &[u8]) -> Result<BTreeMap<String, String>, Fault> {
    let documents: BTreeMap<String, String> = serde_json::from_slice(bytes).map_err(Fault::Json)?;
    for component in documents.keys() {
        check_portable("component name", component)?;
    }
    Ok(documents)
}

/// A stored tensor whose name and type have been checked.
#[derive(Debug)]
pub(super) struct StoredTensor<'data> {
    component: String,
    name: String,
    dtype: DType,
    view: TensorView<'data>,
}

/// The tensors of `tensors.safetensors`, by name; each belongs to one of `documents`. Copies nothing.
pub(super) fn parse_tensors<'data>(
    bytes: &'data [u8],
    documents: &BTreeMap<String, String>,
) -> Result<Vec<StoredTensor<'data>>, Fault> {
    let mut views = SafeTensors::deserialize(bytes).map_err(Fault::Safetensors)?.tensors();
    views.sort_by(|(a, _), (b, _)| a.cmp(b));
    let checked = views.into_iter().map(|(tensor, view)| {
        let owner = tensor.split_once('/').filter(|(component, _)| documents.contains_key(*component));
        let Some((component, name)) = owner else { return Err(Fault::Orphan { tensor }) };
        check_tensor(name)?;
        let Some((dtype, _)) = DTYPES.iter().find(|(_, stored)| *stored == view.dtype()) else {
            return Err(Fault::DType { dtype: view.dtype().to_string(), tensor });
        };
        Ok(StoredTensor { component: component.to_owned(), name: name.to_owned(), dtype: *dtype, view })
    });
    checked.collect()
}

/// Puts the components together again, tensors on the CPU.
pub(super) fn assemble(
    documents: BTreeMap<String, String>,
    tensors: Vec<StoredTensor<'_>>,
) -> Result<BTreeMap<String, SavedState>, Fault> {
    let mut components: BTreeMap<String, SavedState> = documents
        .into_iter()
        .map(|(component, json)| (component, SavedState { json, tensors: BTreeMap::new() }))
        .collect();
    for StoredTensor { component, name, dtype, view } in tensors {
        let tensor = Tensor::from_raw_buffer(view.data(), dtype, view.shape(), &Device::Cpu)
            .map_err(|source| Fault::Tensor { tensor: format!("{component}/{name}"), source: Box::new(source) })?;
        components.entry(component).or_default().tensors.insert(name, tensor);
    }
    Ok(components)
}

/// A contiguous tensor on the host, of a type that can be stored.
#[derive(Debug)]
struct HostTensor {
    tensor: Tensor,
    dtype: Dtype,
}

impl HostTensor {
    fn new(full_name: &str, tensor: &Tensor) -> Result<Self, CheckpointError> {
        let Some((_, dtype)) = DTYPES.iter().find(|(dtype, _)| *dtype == tensor.dtype()) else {
            return Err(CheckpointError::UnsupportedDType { tensor: full_name.to_owned(), dtype: tensor.dtype() });
        };
        let tensor = tensor
            .to_device(&Device::Cpu)
            .and_then(|tensor| tensor.contiguous())
            .map_err(|source| CheckpointError::Device { tensor: full_name.to_owned(), source: Box::new(source) })?;
        Ok(Self { tensor, dtype: *dtype })
    }
}

// candle's own `View` panics where a copy from the device fails; here that copy has been made already.
impl View for HostTensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        self.tensor.dims()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(little_endian(&self.tensor))
    }

    fn data_len(&self) -> usize {
        self.tensor.elem_count() * self.tensor.dtype().size_in_bytes()
    }
}

/// The elements of a [`HostTensor`], bit for bit.
fn little_endian(tensor: &Tensor) -> Vec<u8> {
    let (storage, layout) = tensor.storage_and_layout();
    let (start, end) = layout.contiguous_offsets().expect("a host tensor is contiguous");
    let Storage::Cpu(storage) = &*storage else { unreachable!("a host tensor is on the CPU") };
    match storage {
        CpuStorage::U8(values) => values[start..end].to_vec(),
        CpuStorage::U32(values) => join(&values[start..end], |value| value.to_le_bytes()),
        CpuStorage::I16(values) => join(&values[start..end], |value| value.to_le_bytes()),
        CpuStorage::I32(values) => join(&values[start..end], |value| value.to_le_bytes()),
        CpuStorage::I64(values) => join(&values[start..end], |value| value.to_le_bytes()),
        CpuStorage::BF16(values) => join(&values[start..end], |value| value.to_le_bytes()),
        CpuStorage::F16(values) => join(&values[start..end], |value| value.to_le_bytes()),
        CpuStorage::F32(values) => join(&values[start..end], |value| value.to_le_bytes()),
        CpuStorage::F64(values) => join(&values[start..end], |value| value.to_le_bytes()),
        _ => unreachable!("a host tensor has one of the types of `DTYPES`"),
    }
}

/// Written into place rather than collected: this form compiles to one block copy.
fn join<T: Copy, const N: usize>(values: &[T], to_bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * N];
    for (place, value) in bytes.chunks_exact_mut(N).zip(values) {
        place.copy_from_slice(&to_bytes(*value));
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_may_reach_its_limit_and_not_pass_it() {
        assert!(check_size(4, 4).is_ok());
        let fault = check_size(5, 4).unwrap_err();
        assert_eq!(fault.to_string(), "it has 5 bytes; the limit is 4");
    }
}

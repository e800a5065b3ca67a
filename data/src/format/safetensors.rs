//! Arrays by name in a safetensors file: `inputs` and `targets`, or `x` and `y`.

use std::path::Path;

use safetensors::{Dtype, SafeTensors};

use super::array::{Array, Element, LIMIT_BYTES, inputs_and_targets};
use super::{Format, Reading, Records};
use crate::error::quoted;
use crate::{Error, unpack};

/// Inputs and targets by name.
pub(super) const FORMAT: Format =
    Format { name: "safetensors", endings: &[".safetensors"], starts: &[], keys: &[], read };

/// As the format has it.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The whole file, unless its first bytes are none of a header.
fn claim(head: &[u8]) -> Option<u64> {
    let (length, header) = head.split_first_chunk::<8>()?;
    (u64::from_le_bytes(*length) <= MAX_HEADER_BYTES && header.first() == Some(&b'{')).then_some(LIMIT_BYTES)
}

fn read(path: &Path, reading: &Reading<'_>) -> Result<Records, Error> {
    let (bytes, place) = (unpack::read_claimed(path, LIMIT_BYTES, claim)?, path.display().to_string());
    let file = SafeTensors::deserialize(&bytes).map_err(|error| Error::Content {
        place: place.clone(),
        found: error.to_string(),
        expected: "a whole safetensors file".into(),
    })?;
    let mut names = file.names();
    names.sort_unstable();
    let (inputs, targets) = inputs_and_targets(&names, reading.learned.is_some(), &place)?;
    let array = |name: &str| {
        let tensor = file.tensor(name).expect("a name of the file");
        let place = format!("{place}: {}", quoted(name));
        let element = match tensor.dtype() {
            Dtype::BOOL => Element::Bool,
            Dtype::U8 => Element::U8,
            Dtype::I8 => Element::I8,
            Dtype::U16 => Element::U16,
            Dtype::I16 => Element::I16,
            Dtype::U32 => Element::U32,
            Dtype::I32 => Element::I32,
            Dtype::U64 => Element::U64,
            Dtype::I64 => Element::I64,
            Dtype::F32 => Element::F32,
            Dtype::F64 => Element::F64,
            other => {
                let found = format!("numbers of the type {other:?}");
                return Err(Error::Content { place, found, expected: Element::ACCEPTED.into() });
            }
        };
        // The bytes lie in the file, which outlives the view of it.
        Array::new(&place, tensor.shape().to_vec(), element, false, tensor.data())
    };
    let targets = targets.map(|name| array(name).map(|array| (name, array))).transpose()?;
    array(inputs)?.records(targets.as_ref().map(|(name, array)| (*name, array)), &place)
}

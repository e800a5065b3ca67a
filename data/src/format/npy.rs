//! Arrays as `numpy` saves them: one (`.npy`), or several by name (`.npz`), stored or deflated.
//!
//! The header of an array is read here, since a reader that believes it takes the memory that it claims.

use std::io::Cursor;
use std::path::Path;

use flate2::read::DeflateDecoder;
use zip::{CompressionMethod, ZipArchive};

use super::array::{Array, Element, LIMIT_BYTES, inputs_and_targets};
use super::{Format, Reading, Records};
use crate::error::quoted;
use crate::{Error, unpack};

/// One matrix, with the target in its last column.
pub(super) const NPY: Format = Format {
    name: "npy",
    endings: &[".npy"],
    starts: &[MAGIC],
    keys: &[],
    read: |path, reading| read_npy(path, reading),
};
/// Inputs and targets by name.
pub(super) const NPZ: Format =
    Format { name: "npz", endings: &[".npz"], starts: &[], keys: &[], read: |path, reading| read_npz(path, reading) };

const MAGIC: &[u8] = b"\x93NUMPY";
/// Most arrays of a file that are looked at.
const MAX_ARRAYS: usize = 1000;

fn read_npy(path: &Path, reading: &Reading<'_>) -> Result<Records, Error> {
    let (bytes, place) = (unpack::read_file(path, LIMIT_BYTES)?, path.display().to_string());
    array(&bytes, &place)?.matrix_records(reading, &place)
}

fn read_npz(path: &Path, reading: &Reading<'_>) -> Result<Records, Error> {
    let (bytes, place) = (unpack::read_file(path, LIMIT_BYTES)?, path.display().to_string());
    let damaged = |found: String| Error::Content {
        place: place.clone(),
        found,
        expected: "an archive of arrays, as `numpy.savez` writes it".into(),
    };
    let mut archive = ZipArchive::new(Cursor::new(bytes.as_slice())).map_err(|error| damaged(error.to_string()))?;
    if archive.len() > MAX_ARRAYS {
        return Err(damaged(format!("{} files", archive.len())));
    }
    let names = archive.file_names().filter_map(Result::ok);
    let names: Vec<String> = names.filter_map(|name| Some(name.strip_suffix(".npy")?.to_owned())).collect();
    let shown: Vec<&str> = names.iter().map(String::as_str).collect();
    let (inputs, targets) = inputs_and_targets(&shown, reading.learned.is_some(), &place)?;
    let mut member = |name: &str| -> Result<Vec<u8>, Error> {
        let index = archive.index_for_name(&format!("{name}.npy")).expect("a name of the archive");
        let file = archive.by_index_raw(index).map_err(|error| damaged(error.to_string()))?;
        let (place, method, sum) = (format!("{place}: {}", quoted(name)), file.compression(), file.crc32());
        let unpacked = match method {
            CompressionMethod::Stored => unpack::read_all(file, &place, LIMIT_BYTES),
            CompressionMethod::DEFLATE => unpack::read_all(DeflateDecoder::new(file), &place, LIMIT_BYTES),
            other => Err(damaged(format!("{} packed by {other}", quoted(name)))),
        }?;
        let mut found = flate2::Crc::new();
        found.update(&unpacked);
        if found.sum() == sum { Ok(unpacked) } else { Err(damaged(format!("{} with a wrong check sum", quoted(name)))) }
    };
    let input_bytes = member(inputs)?;
    let target_bytes = targets.map(&mut member).transpose()?;
    let of = |name: &str| format!("{place}: {}", quoted(name));
    let target_array = match (targets, &target_bytes) {
        (Some(name), Some(bytes)) => Some((name, array(bytes, &of(name))?)),
        _ => None,
    };
    let target_array = target_array.as_ref().map(|(name, array)| (*name, array));
    array(&input_bytes, &of(inputs))?.records(target_array, &place)
}

/// The array in the bytes of one `.npy`.
///
/// # Errors
/// [`Error::Content`] naming what is wrong with the header, or a length that is not what it says.
fn array<'a>(bytes: &'a [u8], place: &str) -> Result<Array<'a>, Error> {
    let wrong = |found: &str, expected: &str| Error::Content {
        place: place.into(),
        found: found.into(),
        expected: expected.into(),
    };
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| wrong("other first bytes", "those of an npy file"))?;
    let short = || wrong("an end within the header", "a whole npy file");
    let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(short)?;
    let (length, rest) = match version[0] {
        1 => rest.split_first_chunk::<2>().map(|(length, rest)| (usize::from(u16::from_le_bytes(*length)), rest)),
        2 | 3 => rest
            .split_first_chunk::<4>()
            .map(|(length, rest)| (usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX), rest)),
        other => return Err(wrong(&format!("version {other}"), "version 1, 2 or 3 of npy")),
    }
    .ok_or_else(short)?;
    let (header, data) = rest.split_at_checked(length).ok_or_else(short)?;
    let header = String::from_utf8_lossy(header);
    let field = |key: &str| {
        let (_, rest) = header.split_once(&format!("'{key}':"))?;
        Some(rest.trim_start())
    };
    let no_header = || wrong(&format!("the header {}", quoted(&header)), "`descr`, `fortran_order` and `shape`");
    let descr = field("descr").and_then(|text| text.strip_prefix('\'')?.split('\'').next()).ok_or_else(no_header)?;
    let order = field("fortran_order").ok_or_else(no_header)?;
    let shape = field("shape").and_then(|text| text.strip_prefix('(')?.split(')').next()).ok_or_else(no_header)?;
    let element = match descr.trim_start_matches(['<', '>', '|', '=']) {
        "b1" => Element::Bool,
        "u1" => Element::U8,
        "i1" => Element::I8,
        "u2" => Element::U16,
        "i2" => Element::I16,
        "u4" => Element::U32,
        "i4" => Element::I32,
        "u8" => Element::U64,
        "i8" => Element::I64,
        "f4" => Element::F32,
        "f8" => Element::F64,
        _ => return Err(wrong(&format!("numbers of the type {}", quoted(descr)), Element::ACCEPTED)),
    };
    let sizes = shape.split(',').map(str::trim).filter(|size| !size.is_empty()).map(str::parse);
    let sizes: Vec<usize> = sizes.collect::<Result<_, _>>().map_err(|_| no_header())?;
    if !order.starts_with("False") && sizes.len() > 1 {
        return Err(wrong("columns first (fortran_order)", "rows first: `numpy.ascontiguousarray`"));
    }
    Array::new(place, sizes, element, descr.starts_with('>'), data)
}

//! Arrays as `numpy` saves them: one (`.npy`), or several by name (`.npz`), stored or deflated.
//!
//! The header of an array is read here, since a reader that believes it takes the memory that it claims.

use std::fs::File;
use std::io::{BufReader, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use flate2::read::DeflateDecoder;
use zip::{CompressionMethod, ZipArchive};

use super::array::{Array, Element, LIMIT_BYTES, inputs_and_targets, num_bytes};
use super::{Format, Reading, Records};
use crate::Error;
use crate::error::quoted;
use crate::unpack::{self, Limited};

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
    let (bytes, place) = (unpack::read_claimed(path, LIMIT_BYTES, claim)?, path.display().to_string());
    array(&bytes, &place)?.matrix_records(reading, &place)
}

fn read_npz(path: &Path, reading: &Reading<'_>) -> Result<Records, Error> {
    let ((packed, num_bytes), place) = (unpack::open_plain(path, LIMIT_BYTES)?, path.display().to_string());
    let damaged = |found: String| Error::Content {
        place: place.clone(),
        found,
        expected: "an archive of arrays, as `numpy.savez` writes it".into(),
    };
    let mut archive = ZipArchive::new(BufReader::new(packed)).map_err(|error| damaged(error.to_string()))?;
    if archive.len() > MAX_ARRAYS {
        return Err(damaged(format!("{} files", archive.len())));
    }
    let num_entries = num_entries(path).map_err(|source| Error::Read { path: path.into(), source })?;
    if num_entries.is_some_and(|entries| entries != archive.len()) {
        return Err(damaged(format!("{} names of {} files", archive.len(), num_entries.unwrap_or_default())));
    }
    let names = archive.file_names().filter_map(Result::ok);
    let names: Vec<String> = names.filter_map(|name| Some(name.strip_suffix(".npy")?.to_owned())).collect();
    let shown: Vec<&str> = names.iter().map(String::as_str).collect();
    let (inputs, targets) = inputs_and_targets(&shown, reading.learned.is_some(), &place)?;
    let mut member = |name: &str| -> Result<Vec<u8>, Error> {
        let index = archive.index_for_name(&format!("{name}.npy")).expect("a name of the archive");
        let file = archive.by_index_raw(index).map_err(|error| damaged(error.to_string()))?;
        let (place, method, sum) = (format!("{place}: {}", quoted(name)), file.compression(), file.crc32());
        let limited = Limited::packed(place.clone(), file.compressed_size().min(num_bytes), LIMIT_BYTES);
        let unpacked = match method {
            _ if file.encrypted() => Err(damaged(format!("{} encrypted", quoted(name)))),
            CompressionMethod::Stored => limited.read_claimed(file, claim),
            CompressionMethod::DEFLATE => limited.read_claimed(DeflateDecoder::new(file), claim),
            other => Err(damaged(format!("{} packed by {other}", quoted(name)))),
        }?;
        // First: of numbers that are more or fewer than they should be, not all were read.
        array(&unpacked, &place)?;
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

/// Files of an archive as it counts them itself, where it is short enough to do so in two bytes: of those with one name, the reader of
/// the archive knows the last.
fn num_entries(path: &Path) -> std::io::Result<Option<usize>> {
    const END: usize = 22;
    let mut file = File::open(path)?;
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(END as u64 + u64::from(u16::MAX))))?;
    let mut last = Vec::new();
    file.read_to_end(&mut last)?;
    let end = last.windows(END).rev().find_map(|end| end.strip_prefix(b"PK\x05\x06"));
    let count = end.and_then(|end| Some(u16::from_le_bytes(*end[6..].first_chunk()?)));
    Ok(count.filter(|&count| count < u16::MAX).map(usize::from))
}

/// What the header of an array says, and the bytes behind it.
struct Header<'a> {
    shape: Vec<usize>,
    element: Element,
    is_big_endian: bool,
    data: &'a [u8],
}

/// Bytes of the whole file.
fn claim(head: &[u8]) -> Option<u64> {
    let header = header(head, "").ok()?;
    let before = head.len() - header.data.len();
    num_bytes(&header.shape, header.element).map(|numbers| numbers as u64 + before as u64)
}

/// The array in the bytes of one `.npy`.
///
/// # Errors
/// As [`header`]; [`Error::Content`] for a length that is not what it says.
fn array<'a>(bytes: &'a [u8], place: &str) -> Result<Array<'a>, Error> {
    let Header { shape, element, is_big_endian, data } = header(bytes, place)?;
    Array::new(place, shape, element, is_big_endian, data)
}

/// # Errors
/// [`Error::Content`] naming what is wrong with it.
fn header<'a>(bytes: &'a [u8], place: &str) -> Result<Header<'a>, Error> {
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
    Ok(Header { shape: sizes, element, is_big_endian: descr.starts_with('>'), data })
}

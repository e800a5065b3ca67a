//! The IDX format of MNIST: a magic number, big-endian sizes, then big-endian numbers.

use std::path::Path;

use super::array::{Array, Element, LIMIT_BYTES as LIMIT_ARRAY_BYTES};
use super::{Format, Reading, Records};
use crate::error::quoted;
use crate::{Error, unpack};

/// Inputs with their labels in a second file.
pub(super) const FORMAT: Format = Format {
    name: "idx",
    endings: &["-ubyte", "-ubyte.gz", ".idx", ".idx.gz"],
    starts: &[&[0, 0, 8], &[0, 0, 9], &[0, 0, 11], &[0, 0, 12], &[0, 0, 13], &[0, 0, 14]],
    keys: &[],
    read,
};

/// No known file has more: 60 000 images of 28 × 28.
pub(crate) const LIMIT_BYTES: u64 = 64 << 20;

const UNSIGNED_BYTES: u8 = 0x08;

/// Sizes and bytes of an IDX file of unsigned bytes.
#[derive(Debug, PartialEq)]
pub(crate) struct Idx<'a> {
    /// Size of each dimension, slowest first.
    pub sizes: Vec<usize>,
    /// The elements, row-major; exactly as many as the sizes say.
    pub elements: &'a [u8],
}

/// Checks the header and the length of `bytes`, which hold unsigned bytes; copies nothing.
///
/// # Errors
/// [`Error::Idx`] naming the field: a magic number other than `00 00 08 D` with D = `num_dimensions`, a size of 0,
/// sizes whose product overflows, or a length that is not exactly header plus product.
pub(crate) fn parse<'a>(bytes: &'a [u8], num_dimensions: u8, place: &str) -> Result<Idx<'a>, Error> {
    let magic = [0, 0, UNSIGNED_BYTES, num_dimensions];
    if let Some((found, _)) = bytes.split_first_chunk::<4>().filter(|(found, _)| **found != magic) {
        let expected = format!("{} (unsigned bytes, {num_dimensions} dimensions)", hex(magic));
        return Err(Error::Idx { place: place.into(), field: "magic number", found: hex(*found), expected });
    }
    parse_any(bytes, place).map(|(idx, _)| idx)
}

/// As [`parse`], for numbers of any type in any number of dimensions.
fn parse_any<'a>(bytes: &'a [u8], place: &str) -> Result<(Idx<'a>, Element), Error> {
    let (idx, element, num_bytes) = header(bytes, place)?;
    if idx.elements.len() != num_bytes {
        // No more is read than what is needed to tell.
        let found = idx.elements.len();
        let found =
            if found > num_bytes { "more bytes".to_owned() } else { format!("{found} bytes") } + " after the header";
        let expected = format!("{num_bytes} bytes for the sizes {:?}", idx.sizes);
        return Err(Error::Idx { place: place.into(), field: "length", found, expected });
    }
    Ok((idx, element))
}

/// Bytes of the whole file.
fn claim(head: &[u8]) -> Option<u64> {
    let (idx, _, num_bytes) = header(head, "").ok()?;
    Some((head.len() - idx.elements.len()) as u64 + num_bytes as u64)
}

/// The header, all that is behind it, and how many bytes should be.
fn header<'a>(bytes: &'a [u8], place: &str) -> Result<(Idx<'a>, Element, usize), Error> {
    let wrong =
        |field, found: String, expected: String| Err(Error::Idx { place: place.into(), field, found, expected });
    let Some((magic, mut rest)) = bytes.split_first_chunk::<4>() else {
        return wrong("length", format!("{} bytes", bytes.len()), "a header".into());
    };
    let element = match magic {
        [0, 0, UNSIGNED_BYTES, _] => Element::U8,
        [0, 0, 0x09, _] => Element::I8,
        [0, 0, 0x0b, _] => Element::I16,
        [0, 0, 0x0c, _] => Element::I32,
        [0, 0, 0x0d, _] => Element::F32,
        [0, 0, 0x0e, _] => Element::F64,
        other => {
            let expected = "0x0000TTDD: a type of 08, 09, 0b, 0c, 0d or 0e, and 1 or more dimensions".into();
            return wrong("magic number", hex(*other), expected);
        }
    };
    let num_dimensions = magic[3];
    if num_dimensions == 0 {
        return wrong("magic number", hex(*magic), "1 or more dimensions".into());
    }
    let mut sizes = Vec::with_capacity(usize::from(num_dimensions));
    let mut num_bytes = element.size();
    for _ in 0..num_dimensions {
        let Some((size, after)) = rest.split_first_chunk::<4>() else {
            return wrong("length", format!("{} bytes", bytes.len()), format!("a header with {num_dimensions} sizes"));
        };
        rest = after;
        let size = u32::from_be_bytes(*size);
        let product = usize::try_from(size).ok().and_then(|size| num_bytes.checked_mul(size));
        let (Some(product @ 1..), Ok(size)) = (product, usize::try_from(size)) else {
            return wrong("size", size.to_string(), "sizes above 0 with a product that can be addressed".into());
        };
        num_bytes = product;
        sizes.push(size);
    }
    Ok((Idx { sizes, elements: rest }, element, num_bytes))
}

/// Reads inputs, and targets from the file beside them: `images-idx3` has its labels in `labels-idx1`.
fn read(path: &Path, reading: &Reading<'_>) -> Result<Records, Error> {
    let place = path.display().to_string();
    let of = |path: &Path| unpack::read_claimed(path, LIMIT_ARRAY_BYTES, claim);
    let bytes = of(path)?;
    let array = |bytes, place: &str| -> Result<Array<'_>, Error> {
        let (idx, element) = parse_any(bytes, place)?;
        Array::new(place, idx.sizes, element, true, idx.elements)
    };
    let name = path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
    let digits = |text: &str| {
        text.find("idx").map(|at| (at + 3, text[at + 3..].chars().take_while(char::is_ascii_digit).count()))
    };
    let mut beside = name.replacen("images", "labels", 1);
    if let Some((at, count)) = digits(&beside) {
        beside.replace_range(at..at + count, "1");
    }
    let labels = path.with_file_name(&beside);
    if beside == name || !labels.is_file() {
        if reading.learned.is_some() {
            return array(&bytes, &place)?.records(None, &place);
        }
        let found = format!("no file of labels beside `{name}`");
        let expected = "`…images-idx3-ubyte` and `…labels-idx1-ubyte` in one folder".into();
        return Err(Error::Content { place, found, expected });
    }
    let (label_bytes, label_place) = (of(&labels)?, labels.display().to_string());
    array(&bytes, &place)?.records(Some(("labels", &array(&label_bytes, &label_place)?)), &place)
}

/// Compares the sizes with those of the published file.
///
/// # Errors
/// [`Error::Idx`] when they differ.
pub(crate) fn check_sizes(idx: &Idx<'_>, expected: &[usize], place: &str) -> Result<(), Error> {
    if idx.sizes == expected {
        return Ok(());
    }
    let (found, expected) = (quoted(&format!("{:?}", idx.sizes)), format!("`{expected:?}`"));
    Err(Error::Idx { place: place.into(), field: "list of sizes", found, expected })
}

fn hex(bytes: [u8; 4]) -> String {
    format!("{:#010x}", u32::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABELS: [u8; 11] = [0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9];

    #[track_caller]
    fn check_refused(bytes: &[u8], num_dimensions: u8, message: &str) {
        assert_eq!(parse(bytes, num_dimensions, "x").unwrap_err().to_string(), message);
    }

    #[test]
    fn a_well_formed_file_gives_its_sizes_and_bytes() {
        assert_eq!(parse(&LABELS, 1, "x").unwrap(), Idx { sizes: vec![3], elements: &[7, 8, 9] });
        let images = [0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2, 1, 2, 3, 4];
        assert_eq!(parse(&images, 3, "x").unwrap(), Idx { sizes: vec![1, 2, 2], elements: &[1, 2, 3, 4] });
    }

    #[test]
    fn every_cut_is_refused() {
        for length in 0..LABELS.len() {
            assert!(
                matches!(parse(&LABELS[..length], 1, "x"), Err(Error::Idx { field: "length", .. })),
                "cut at {length}"
            );
        }
    }

    #[test]
    fn junk_is_refused_by_field() {
        let magic = "expected 0x00000801 (unsigned bytes, 1 dimensions)";
        check_refused(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 3], 1, &format!("x: magic number is 0x1f8b0800, {magic}"));
        check_refused(&[0, 0, 8, 3, 0, 0, 0, 3, 7, 8, 9], 1, &format!("x: magic number is 0x00000803, {magic}"));
        check_refused(&[0, 0, 13, 1, 0, 0, 0, 3], 1, &format!("x: magic number is 0x00000d01, {magic}"));
        check_refused(b"", 1, "x: length is 0 bytes, expected a header");
        let size = "expected sizes above 0 with a product that can be addressed";
        check_refused(&[0, 0, 8, 1, 0, 0, 0, 0], 1, &format!("x: size is 0, {size}"));
        let mut longer = LABELS.to_vec();
        longer.push(0);
        check_refused(&longer, 1, "x: length is more bytes after the header, expected 3 bytes for the sizes [3]");
        check_refused(
            &[0, 0, 8, 1, 255, 255, 255, 255, 1],
            1,
            "x: length is 1 bytes after the header, expected 4294967295 bytes for the sizes [4294967295]",
        );
        let bomb = [[0, 0, 8, 3].as_slice(), &[255; 12], &[1]].concat();
        check_refused(&bomb, 3, &format!("x: size is 4294967295, {size}"));
    }

    #[test]
    fn sizes_other_than_the_published_ones_are_refused() {
        let idx = parse(&LABELS, 1, "x").unwrap();
        assert!(check_sizes(&idx, &[3], "x").is_ok());
        let error = check_sizes(&idx, &[10_000], "x").unwrap_err();
        assert_eq!(error.to_string(), "x: list of sizes is `[3]`, expected `[10000]`");
    }
}

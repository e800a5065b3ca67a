//! The IDX format of MNIST: a magic number, big-endian sizes, then bytes.

use super::Error;
use super::error::quoted;

/// No known file has more: 60 000 images of 28 × 28.
pub(super) const LIMIT_BYTES: u64 = 64 << 20;

const UNSIGNED_BYTES: u8 = 0x08;

/// Sizes and bytes of an IDX file of unsigned bytes.
#[derive(Debug, PartialEq)]
pub(super) struct Idx<'a> {
    /// Size of each dimension, slowest first.
    pub sizes: Vec<usize>,
    /// The elements, row-major; exactly as many as the sizes say.
    pub elements: &'a [u8],
}

/// Checks the header and the length of `bytes`; copies nothing.
///
/// # Errors
/// [`Error::Idx`] naming the field: a magic number other than `00 00 08 D` with D = `num_dimensions`, a size of 0,
/// sizes whose product overflows, or a length that is not exactly header plus product.
pub(super) fn parse<'a>(bytes: &'a [u8], num_dimensions: u8, place: &str) -> Result<Idx<'a>, Error> {
    let wrong =
        |field, found: String, expected: String| Err(Error::Idx { place: place.into(), field, found, expected });
    let magic = [0, 0, UNSIGNED_BYTES, num_dimensions];
    let Some((found, mut rest)) = bytes.split_first_chunk::<4>() else {
        return wrong("length", format!("{} bytes", bytes.len()), "a header".into());
    };
    if *found != magic {
        return wrong(
            "magic number",
            hex(*found),
            format!("{} (unsigned bytes, {num_dimensions} dimensions)", hex(magic)),
        );
    }
    let mut sizes = Vec::with_capacity(usize::from(num_dimensions));
    let mut num_elements = 1_usize;
    for _ in 0..num_dimensions {
        let Some((size, after)) = rest.split_first_chunk::<4>() else {
            return wrong("length", format!("{} bytes", bytes.len()), format!("a header with {num_dimensions} sizes"));
        };
        rest = after;
        let size = u32::from_be_bytes(*size);
        let product = usize::try_from(size).ok().and_then(|size| num_elements.checked_mul(size));
        let (Some(product @ 1..), Ok(size)) = (product, usize::try_from(size)) else {
            return wrong("size", size.to_string(), "sizes above 0 with a product that can be addressed".into());
        };
        num_elements = product;
        sizes.push(size);
    }
    if rest.len() != num_elements {
        let expected = format!("{num_elements} bytes for the sizes {sizes:?}");
        return wrong("length", format!("{} bytes after the header", rest.len()), expected);
    }
    Ok(Idx { sizes, elements: rest })
}

/// Compares the sizes with those of the published file.
///
/// # Errors
/// [`Error::Idx`] when they differ.
pub(super) fn check_sizes(idx: &Idx<'_>, expected: &[usize], place: &str) -> Result<(), Error> {
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
        check_refused(&longer, 1, "x: length is 4 bytes after the header, expected 3 bytes for the sizes [3]");
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

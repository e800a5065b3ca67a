//! Two files of numbers, row by row: inputs and targets of samples.

use std::path::Path;

use leyline::source::{Field, SampleSpec, SamplesMut, Source, SourceError, ValuesMut};

use super::file::{FileReader, misfit};

/// How a number is stored, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// A byte.
    U8,
    /// Two bytes, unsigned.
    U16,
    /// Four bytes, unsigned.
    U32,
    /// Eight bytes, signed.
    I64,
    /// Four bytes.
    F32,
}

impl Element {
    /// Bytes of one number.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::U32 | Self::F32 => 4,
            Self::I64 => 8,
        }
    }

    /// Unsigned numbers as `u32`.
    pub(super) fn widen(self, bytes: &[u8], into: &mut [u32]) {
        match self {
            Self::U8 => each(bytes, into, |[byte]: [u8; 1]| u32::from(byte)),
            Self::U16 => each(bytes, into, |two| u32::from(u16::from_le_bytes(two))),
            Self::U32 => each(bytes, into, u32::from_le_bytes),
            Self::I64 | Self::F32 => unreachable!("only unsigned numbers are widened"),
        }
    }
}

/// As what a stored number is handed out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReadAs {
    /// As it is: classes, tokens. Not for `f32`.
    U32,
    /// Multiplied by `scale`, as by 1/255 where bytes are brightness.
    F32 {
        /// The factor.
        scale: f32,
    },
}

/// Where rows are in a file and what they become.
#[derive(Debug, Clone, PartialEq)]
pub struct ArrayLayout {
    /// How numbers are stored.
    pub element: Element,
    /// Bytes before the first row: a header.
    pub offset: u64,
    /// Dimensions of one row; none are one number.
    pub dims: Vec<usize>,
    /// As what numbers are handed out.
    pub read_as: ReadAs,
}

/// Rows of numbers in a file, all of one shape, to its end.
#[derive(Debug)]
pub struct ArrayFile {
    file: FileReader,
    layout: ArrayLayout,
    num_rows: usize,
    row_bytes: usize,
}

impl ArrayFile {
    /// Opens a file of rows.
    ///
    /// # Errors
    /// As [`FileReader::open`]; [`ErrorKind::Rejected`](leyline::error::ErrorKind::Rejected) where the file is no whole number of
    /// rows, or more of them than `u32` can number.
    pub fn open(path: &Path, layout: ArrayLayout) -> Result<Self, SourceError> {
        let file = FileReader::open(path)?;
        let row_bytes = layout.dims.iter().try_fold(layout.element.size(), |bytes, dim| bytes.checked_mul(*dim));
        let Some(row_bytes) = row_bytes.filter(|bytes| *bytes > 0 && u32::try_from(*bytes).is_ok()) else {
            return Err(misfit(&file, format!("expected rows of 1 byte to 4 GiB, found the shape {:?}", layout.dims)));
        };
        if layout.element == Element::F32 && layout.read_as == ReadAs::U32 {
            return Err(misfit(&file, "numbers of f32 cannot be read as u32".to_owned()));
        }
        let Some(bytes) = file.num_bytes().checked_sub(layout.offset).filter(|b| b.is_multiple_of(row_bytes as u64))
        else {
            let (found, offset) = (file.num_bytes(), layout.offset);
            let message = format!("expected {offset} bytes and whole rows of {row_bytes} bytes, found {found} bytes");
            return Err(misfit(&file, message));
        };
        let num_rows = bytes / row_bytes as u64;
        if num_rows > u64::from(u32::MAX) {
            return Err(misfit(&file, format!("expected at most {} rows, found {num_rows}", u32::MAX)));
        }
        Ok(Self { num_rows: usize::try_from(num_rows).unwrap_or(usize::MAX), file, layout, row_bytes })
    }

    /// Rows.
    #[must_use]
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    fn field(&self) -> Field {
        match self.layout.read_as {
            ReadAs::U32 => Field::u32(self.layout.dims.clone()),
            ReadAs::F32 { .. } => Field::f32(self.layout.dims.clone()),
        }
    }

    fn read(&self, samples: &[u32], into: &mut ValuesMut<'_>) -> Result<(), SourceError> {
        let Some(first) = samples.first() else { return Ok(()) };
        self.file.unchanged().map_err(|error| error.of_sample(*first))?;
        let (mut bytes, width) = (vec![0; self.row_bytes], self.row_bytes / self.layout.element.size());
        for (row, sample) in samples.iter().enumerate() {
            let offset = self.layout.offset + u64::from(*sample) * self.row_bytes as u64;
            let range = row * width..(row + 1) * width;
            let read = self.file.read_at(offset, &mut bytes).and_then(|()| match into {
                ValuesMut::F32(values) => self.to_f32(&bytes, &mut values[range]),
                ValuesMut::U32(values) => self.to_u32(&bytes, &mut values[range]),
            });
            read.map_err(|error| error.of_sample(*sample))?;
        }
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "what f32 holds is what was asked for")]
    fn to_f32(&self, bytes: &[u8], into: &mut [f32]) -> Result<(), SourceError> {
        let ReadAs::F32 { scale } = self.layout.read_as else {
            return Err(SourceError::rejected("numbers are not f32"));
        };
        match self.layout.element {
            Element::U8 => each(bytes, into, |[byte]: [u8; 1]| f32::from(byte) * scale),
            Element::U16 => each(bytes, into, |two| f32::from(u16::from_le_bytes(two)) * scale),
            Element::U32 => each(bytes, into, |four| u32::from_le_bytes(four) as f32 * scale),
            Element::I64 => each(bytes, into, |eight| i64::from_le_bytes(eight) as f32 * scale),
            Element::F32 => each(bytes, into, |four| f32::from_le_bytes(four) * scale),
        }
        Ok(())
    }

    fn to_u32(&self, bytes: &[u8], into: &mut [u32]) -> Result<(), SourceError> {
        match self.layout.element {
            Element::U8 | Element::U16 | Element::U32 => self.layout.element.widen(bytes, into),
            Element::I64 => {
                let outside = bytes.as_chunks().0.iter().map(|eight| i64::from_le_bytes(*eight));
                if let Some(outside) = outside.into_iter().find(|value| u32::try_from(*value).is_err()) {
                    return Err(self.file.corrupt(format!("expected numbers from 0 to {}, found {outside}", u32::MAX)));
                }
                each(bytes, into, |eight| u32::try_from(i64::from_le_bytes(eight)).unwrap_or_default());
            }
            Element::F32 => return Err(SourceError::rejected("numbers of f32 cannot be read as u32")),
        }
        Ok(())
    }
}

fn each<const SIZE: usize, T>(bytes: &[u8], into: &mut [T], value: impl Fn([u8; SIZE]) -> T) {
    for (into, bytes) in into.iter_mut().zip(bytes.as_chunks().0) {
        *into = value(*bytes);
    }
}

/// Samples whose inputs are the rows of one file and whose targets are those of another one.
///
/// # Examples
/// ```
/// use leyline::source::{SamplesMut, Source as _};
/// use tolaria::batch::source::{ArrayFile, ArrayLayout, ArraySource, Element, ReadAs};
///
/// let dir = tempfile::tempdir()?;
/// let (images, labels) = (dir.path().join("images.bin"), dir.path().join("labels.bin"));
/// std::fs::write(&images, [0, 2, 4, 6, 8, 10])?; // three images of two bytes
/// std::fs::write(&labels, [7, 8, 9])?;
///
/// let read_as = ReadAs::F32 { scale: 0.5 };
/// let images = ArrayLayout { element: Element::U8, offset: 0, dims: vec![2], read_as };
/// let inputs = ArrayFile::open(&dir.path().join("images.bin"), images)?;
/// let labels = ArrayLayout { element: Element::U8, offset: 0, dims: vec![], read_as: ReadAs::U32 };
/// let source = ArraySource::new(inputs, ArrayFile::open(&dir.path().join("labels.bin"), labels)?)?;
///
/// let (mut inputs, mut targets) = ([0.0; 4], [0; 2]);
/// source.read(&[2, 0], &mut SamplesMut::new(&mut inputs, &mut targets))?;
/// assert_eq!((inputs, targets), ([4.0, 5.0, 0.0, 1.0], [9, 7]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ArraySource {
    inputs: ArrayFile,
    targets: ArrayFile,
    digest: String,
}

impl ArraySource {
    /// Row i of both files is sample i.
    ///
    /// # Errors
    /// Where they have not as many rows, or cannot be read.
    pub fn new(inputs: ArrayFile, targets: ArrayFile) -> Result<Self, SourceError> {
        if inputs.num_rows != targets.num_rows {
            let message = format!("expected {} rows, one per input, found {}", inputs.num_rows, targets.num_rows);
            return Err(misfit(&targets.file, message));
        }
        let mut hasher = blake3::Hasher::new();
        for array in [&inputs, &targets] {
            hasher.update(format!("{:?}", array.layout).as_bytes()).update(array.file.fingerprint()?.as_bytes());
        }
        Ok(Self { inputs, targets, digest: hasher.finalize().to_string() })
    }
}

impl Source for ArraySource {
    fn len(&self) -> usize {
        self.inputs.num_rows
    }

    fn spec(&self) -> SampleSpec {
        SampleSpec { inputs: self.inputs.field(), targets: self.targets.field() }
    }

    fn digest(&self) -> String {
        self.digest.clone()
    }

    fn read(&self, samples: &[u32], into: &mut SamplesMut<'_>) -> Result<(), SourceError> {
        self.check(samples)?;
        into.check(&self.spec(), samples.len())?;
        self.inputs.read(samples, &mut into.inputs)?;
        self.targets.read(samples, &mut into.targets)
    }

    fn describe(&self) -> String {
        let (inputs, targets) = (self.inputs.file.path().display(), self.targets.file.path().display());
        format!("{} samples of {inputs} and {targets}", self.len())
    }
}

#[cfg(test)]
mod tests {
    use leyline::error::ErrorKind;

    use super::*;

    fn opened(
        bytes: &[u8],
        element: Element,
        offset: u64,
        dims: &[usize],
        read_as: ReadAs,
    ) -> Result<ArrayFile, SourceError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.bin");
        std::fs::write(&path, bytes).unwrap();
        ArrayFile::open(&path, ArrayLayout { element, offset, dims: dims.to_vec(), read_as })
    }

    #[track_caller]
    fn refused(bytes: &[u8], element: Element, offset: u64, dims: &[usize], message: &str) {
        let error = opened(bytes, element, offset, dims, ReadAs::U32).unwrap_err();
        assert!(error.kind == ErrorKind::Rejected && error.place.ends_with("a.bin"), "{error}");
        assert!(error.to_string().contains(message), "{error}");
    }

    #[test]
    fn a_layout_that_does_not_fit_its_file_is_refused_with_what_was_found() {
        refused(b"abcde", Element::U16, 0, &[], "expected 0 bytes and whole rows of 2 bytes, found 5 bytes");
        refused(b"abcde", Element::U8, 6, &[], "expected 6 bytes and whole rows of 1 bytes, found 5 bytes");
        refused(b"abcd", Element::U8, 0, &[2, 0], "rows of 1 byte to 4 GiB");
        refused(b"abcd", Element::U32, 0, &[usize::MAX, 3], "rows of 1 byte to 4 GiB");
        refused(b"abcd", Element::F32, 0, &[], "cannot be read as u32");
    }

    #[track_caller]
    fn check(bytes: &[u8], element: Element, expected: &[u32]) {
        let count = bytes.len() / element.size();
        let dims: &[usize] = &[count];
        let (mut whole, mut scaled) = (vec![0_u32; count], vec![0.0_f32; count]);
        opened(bytes, element, 0, dims, ReadAs::U32).unwrap().read(&[0], &mut ValuesMut::U32(&mut whole)).unwrap();
        let as_f32 = opened(bytes, element, 0, dims, ReadAs::F32 { scale: 0.5 }).unwrap();
        as_f32.read(&[0], &mut ValuesMut::F32(&mut scaled)).unwrap();
        assert_eq!(whole, expected);
        assert_eq!(scaled, expected.iter().map(|value| *value as f32 * 0.5).collect::<Vec<_>>());
    }

    #[test]
    fn numbers_of_every_type_are_read_as_they_were_stored() {
        check(&[0, 1, 255], Element::U8, &[0, 1, 255]);
        check(&[1, 0, 0, 1, 255, 255], Element::U16, &[1, 256, 65_535]);
        check(&[1, 0, 0, 0, 0, 0, 1, 0], Element::U32, &[1, 65_536]);
        check(&[1, 0, 0, 0, 0, 0, 0, 0, 9, 1, 0, 0, 0, 0, 0, 0], Element::I64, &[1, 265]);
    }

    #[test]
    fn a_class_that_is_no_class_is_refused_with_its_sample() {
        let bytes: Vec<u8> = [3_i64, -1].into_iter().flat_map(i64::to_le_bytes).collect();
        let labels = opened(&bytes, Element::I64, 0, &[], ReadAs::U32).unwrap();
        let error = labels.read(&[0, 1], &mut ValuesMut::U32(&mut [0; 2])).unwrap_err();
        assert!(error.sample == Some(1) && error.to_string().contains("found -1"), "{error}");
    }

    #[test]
    fn files_of_unequal_length_are_refused() {
        let rows = |bytes: &[u8]| opened(bytes, Element::U8, 0, &[], ReadAs::U32).unwrap();
        let error = ArraySource::new(rows(b"abc"), rows(b"ab")).unwrap_err();
        assert!(error.to_string().contains("expected 3 rows, one per input, found 2"), "{error}");
    }
}

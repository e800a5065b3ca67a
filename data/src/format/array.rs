//! Arrays of numbers in files: their bytes, checked against their shape, as inputs and targets.

use std::borrow::Cow;

use super::{Features, Reading, Records};
use crate::column::{Cells, Column};
use crate::error::quoted;
use crate::{Error, Inputs};

/// Largest file of arrays, after unpacking.
pub(super) const LIMIT_BYTES: u64 = 8 << 30;
/// 8 GB of inputs.
pub(super) const MAX_VALUES: usize = 1 << 31;

/// Each target is an output of the network.
const MAX_TARGETS: usize = 10_000;

/// How a number is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F32,
    F64,
}

impl Element {
    /// What a message lists.
    pub(super) const ACCEPTED: &'static str = "bool, u8, i8, u16, i16, u32, i32, u64, i64, f32 or f64";

    pub(super) fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Whether single precision holds each of its numbers.
    fn is_single(self) -> bool {
        self.size() <= 2 || self == Self::F32
    }

    /// The number in so many bytes, the lowest first. Whole numbers beyond 2^53 lose their last digits.
    fn read(self, bytes: &[u8]) -> f64 {
        fn take<const N: usize>(bytes: &[u8]) -> [u8; N] {
            bytes.try_into().expect("as many bytes as the number has")
        }
        match self {
            Self::Bool => f64::from(u8::from(bytes[0] != 0)),
            Self::U8 => f64::from(bytes[0]),
            Self::I8 => f64::from(i8::from_le_bytes(take(bytes))),
            Self::U16 => f64::from(u16::from_le_bytes(take(bytes))),
            Self::I16 => f64::from(i16::from_le_bytes(take(bytes))),
            Self::U32 => f64::from(u32::from_le_bytes(take(bytes))),
            Self::I32 => f64::from(i32::from_le_bytes(take(bytes))),
            Self::U64 => u64::from_le_bytes(take(bytes)) as f64,
            Self::I64 => i64::from_le_bytes(take(bytes)) as f64,
            Self::F32 => f64::from(f32::from_le_bytes(take(bytes))),
            Self::F64 => f64::from_le_bytes(take(bytes)),
        }
    }
}

/// Bytes of an array; none where there are no samples, or too many numbers.
pub(super) fn num_bytes(shape: &[usize], element: Element) -> Option<usize> {
    let count = shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size))?;
    (count > 0 && count <= MAX_VALUES && !shape.is_empty()).then(|| count.saturating_mul(element.size()))
}

/// A place for so many values.
///
/// # Errors
/// [`Error::Content`] where there is no memory for them.
pub(super) fn room<T>(num_values: usize, place: &str) -> Result<Vec<T>, Error> {
    let mut values = Vec::new();
    let reserved = values.try_reserve_exact(num_values);
    reserved.map(|()| values).map_err(|_| Error::Content {
        place: place.into(),
        found: format!("{num_values} values"),
        expected: format!("as many as there is memory for, {} bytes each", size_of::<T>()),
    })
}

/// Numbers of a shape.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Array<'a> {
    shape: Vec<usize>,
    element: Element,
    is_big_endian: bool,
    bytes: Cow<'a, [u8]>,
}

impl<'a> Array<'a> {
    /// # Errors
    /// [`Error::Content`] when there are no samples, or not as many bytes as the shape says; nothing is allocated.
    pub(super) fn new(
        place: &str,
        shape: Vec<usize>,
        element: Element,
        is_big_endian: bool,
        bytes: impl Into<Cow<'a, [u8]>>,
    ) -> Result<Self, Error> {
        let bytes = bytes.into();
        let wrong = |found: String, expected: String| Error::Content { place: place.into(), found, expected };
        let Some(expected) = num_bytes(&shape, element) else {
            let expected = format!("sizes above 0 with at most {MAX_VALUES} numbers in all, samples first");
            return Err(wrong(format!("the shape {shape:?}"), expected));
        };
        if bytes.len() != expected {
            // No more is read than what is needed to tell.
            let found = if bytes.len() > expected { "more bytes".to_owned() } else { format!("{} bytes", bytes.len()) };
            let expected = format!("{expected} bytes for the shape {shape:?}");
            return Err(wrong(format!("{found} of numbers"), expected));
        }
        Ok(Self { shape, element, is_big_endian, bytes })
    }

    fn numbers(&self) -> impl Iterator<Item = f64> {
        let size = self.element.size();
        self.bytes.chunks_exact(size).map(move |bytes| {
            if self.is_big_endian {
                let mut turned = [0_u8; 8];
                turned[..size].copy_from_slice(bytes);
                turned[..size].reverse();
                self.element.read(&turned[..size])
            } else {
                self.element.read(bytes)
            }
        })
    }

    fn values<T>(&self, place: &str, value: impl Fn(f64) -> T) -> Result<Vec<T>, Error> {
        let width = self.shape[1..].iter().product::<usize>();
        let checked = |(index, number): (usize, f64)| {
            let sample = index / width.max(1);
            let wrong = || Error::Content {
                place: place.into(),
                found: format!("{number} in sample {sample}"),
                expected: "finite numbers".into(),
            };
            if number.abs() <= f64::from(f32::MAX) { Ok(value(number)) } else { Err(wrong()) }
        };
        let mut values = room(self.bytes.len() / self.element.size(), place)?;
        for entry in self.numbers().enumerate() {
            values.push(checked(entry)?);
        }
        Ok(values)
    }

    #[expect(clippy::cast_possible_truncation, reason = "numbers that single precision holds")]
    fn features(&self, place: &str, shape: Vec<usize>) -> Result<Features, Error> {
        Ok(if self.element.is_single() {
            Features::Whole(Inputs::Values(self.values(place, |number| number as f32)?), shape)
        } else {
            Features::Exact(self.values(place, |number| number)?, shape)
        })
    }

    /// (N,) or (N, W) as W columns.
    fn columns(&self, name: &str, place: &str) -> Result<Vec<Column>, Error> {
        let width = match self.shape.as_slice() {
            [_] => 1,
            [_, width] => *width,
            shape => {
                let (found, expected) = (format!("targets of the shape {shape:?}"), "(N,) or (N, W)".into());
                return Err(Error::Content { place: place.into(), found, expected });
            }
        };
        if width > MAX_TARGETS {
            let (found, expected) = (format!("{width} targets per sample"), format!("at most {MAX_TARGETS}"));
            return Err(Error::Content { place: place.into(), found, expected });
        }
        if let Some((index, number)) =
            self.numbers().enumerate().find(|(_, number)| number.is_nan() || number.abs() > f64::from(f32::MAX))
        {
            let (found, expected) =
                (format!("the target {number} in sample {}", index / width), "finite numbers".into());
            return Err(Error::Content { place: place.into(), found, expected });
        }
        let mut columns = vec![Vec::with_capacity(self.shape[0]); width];
        for (index, number) in self.numbers().enumerate() {
            columns[index % width].push(number);
        }
        let column = |(position, values)| Column {
            name: if width == 1 { name.to_owned() } else { format!("{name} {}", position + 1) },
            position,
            cells: Cells::Numbers(values),
        };
        Ok(columns.into_iter().enumerate().map(column).collect())
    }

    /// The records of inputs (N, …) and targets (N,) or (N, W). Samples of one number are vectors of one.
    ///
    /// # Errors
    /// [`Error::Content`] for other shapes, other numbers of samples, or numbers that are not finite.
    pub(super) fn records(&self, targets: Option<(&str, &Array<'_>)>, place: &str) -> Result<Records, Error> {
        let shape = if self.shape.len() > 1 { self.shape[1..].to_vec() } else { vec![1] };
        let notes = vec![format!("{} samples of the shape {shape:?}", self.shape[0])];
        let mut records = Records::new(self.features(place, shape)?, notes);
        if let Some((name, targets)) = targets {
            if targets.shape[0] != self.shape[0] {
                let (found, expected) =
                    (format!("{} targets", targets.shape[0]), format!("{}, one per sample", self.shape[0]));
                return Err(Error::Content { place: place.into(), found, expected });
            }
            records.targets = targets.columns(name, place)?;
        }
        Ok(records)
    }

    /// The records of one matrix (N, F + 1) with the target in the last column, or (N, F) where F features were learned from.
    ///
    /// # Errors
    /// As [`Array::records`].
    pub(super) fn matrix_records(&self, reading: &Reading<'_>, place: &str) -> Result<Records, Error> {
        let &[num_rows, width] = self.shape.as_slice() else {
            let (found, expected) =
                (format!("the shape {:?}", self.shape), "(N, F + 1), the target last; or two arrays".into());
            return Err(Error::Content { place: place.into(), found, expected });
        };
        if reading.learned.is_some_and(|plan| plan.features.len() == width) {
            return self.records(None, place);
        }
        if width < 2 {
            let (found, expected) = ("one column".into(), "2 or more: features and a target".into());
            return Err(Error::Content { place: place.into(), found, expected });
        }
        let rows = self.bytes.chunks_exact(width * self.element.size());
        let split = (width - 1) * self.element.size();
        let (inputs, target): (Vec<&[u8]>, Vec<&[u8]>) = rows.map(|row| row.split_at(split)).unzip();
        let part = |shape: Vec<usize>, rows: Vec<&[u8]>| {
            Array::new(place, shape, self.element, self.is_big_endian, rows.concat())
        };
        part(vec![num_rows, width - 1], inputs)?
            .records(Some(("the last column", &part(vec![num_rows], target)?)), place)
    }
}

/// Which of the named arrays are inputs and targets: `inputs` and `targets`, or `x` and `y`, or `X` and `y`.
///
/// # Errors
/// [`Error::Content`] with the names that are there.
pub(super) fn inputs_and_targets<'a>(
    names: &[&'a str],
    is_learned: bool,
    place: &str,
) -> Result<(&'a str, Option<&'a str>), Error> {
    let has = |name: &str| names.iter().find(|known| **known == name).copied();
    for (inputs, targets) in [("inputs", "targets"), ("x", "y"), ("X", "y")] {
        match (has(inputs), has(targets)) {
            (Some(inputs), Some(targets)) => return Ok((inputs, Some(targets))),
            (Some(inputs), None) if is_learned => return Ok((inputs, None)),
            (Some(_) | None, _) => {}
        }
    }
    let shown: Vec<String> = names.iter().take(8).map(|name| quoted(name)).collect();
    let found = if shown.is_empty() { "no arrays".to_owned() } else { format!("the arrays {}", shown.join(", ")) };
    Err(Error::Content { place: place.into(), found, expected: "`inputs` and `targets`, or `x` and `y`".into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_divided_into_columns_of_which_there_are_at_most_as_many_as_outputs() {
        let array = |shape: [usize; 2]| {
            let bytes: Vec<u8> = (0..shape[0] * shape[1]).map(|index| u8::try_from(index % 7).unwrap()).collect();
            Array::new("x", shape.to_vec(), Element::U8, false, bytes).unwrap().columns("y", "x")
        };
        let columns = array([3, 2]).unwrap();
        let found: Vec<_> = columns.iter().map(|column| (&*column.name, &column.cells)).collect();
        let expected = [vec![0.0, 2.0, 4.0], vec![1.0, 3.0, 5.0]].map(Cells::Numbers);
        assert_eq!(found, [("y 1", &expected[0]), ("y 2", &expected[1])]);
        assert_eq!(array([2, MAX_TARGETS]).unwrap().len(), MAX_TARGETS);
        let error = array([2, MAX_TARGETS + 1]).unwrap_err().to_string();
        assert_eq!(error, "x: found 10001 targets per sample, expected at most 10000");
    }
}

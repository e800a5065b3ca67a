//! Tensors of a module by name, and the one form in which they are stored: safetensors, which holds numbers and names and
//! nothing that could run.
//!
//! Names are those of a blueprint's tensors, for example `down.weight`; tensors named `gate.…` belong to a way of blending
//! and are passed over.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, TensorView};

/// Bytes before the header: its length.
const PREFIX_BYTES: usize = 8;

/// Why weights cannot be used.
#[non_exhaustive]
#[derive(Debug, Clone, thiserror::Error)]
pub enum WeightsError {
    /// More bytes than are read.
    #[error("the artifact has {bytes} bytes: expected at most {limit}")]
    TooLarge {
        /// Its size (bytes).
        bytes: usize,
        /// The limit (bytes).
        limit: usize,
    },
    /// Another kind of file, some of which run code when they are opened.
    #[error("the artifact is {kind}: expected safetensors")]
    OtherFormat {
        /// What it is.
        kind: &'static str,
    },
    /// Damaged, or no known kind of file.
    #[error("the artifact is not valid safetensors")]
    Format(#[source] Arc<SafeTensorError>),
    /// A name occurs twice.
    #[error("the artifact has two tensors `{name}`")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// The seed needs a tensor that is not there.
    #[error("artifact tensor `{name}` is missing: expected shape {expected:?}")]
    Missing {
        /// Its name.
        name: String,
        /// Its shape.
        expected: Vec<usize>,
    },
    /// The seed has no such tensor.
    #[error("artifact tensor `{name}` belongs to no weight: expected one of {expected}")]
    Unexpected {
        /// Its name.
        name: String,
        /// The names of the seed.
        expected: String,
    },
    /// A tensor has another shape.
    #[error("artifact tensor `{name}` has shape {found:?}: expected {expected:?}")]
    Shape {
        /// Its name.
        name: String,
        /// What was found.
        found: Vec<usize>,
        /// What is needed.
        expected: Vec<usize>,
    },
    /// A tensor has more or fewer values than its shape says.
    #[error("artifact tensor `{name}` has {found} values: expected {expected} for shape {shape:?}")]
    Length {
        /// Its name.
        name: String,
        /// Values (count).
        found: usize,
        /// Values of the shape (count).
        expected: usize,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// A tensor has elements of another type.
    #[error("artifact tensor `{name}` has elements of {found}: expected {expected}")]
    ElementType {
        /// Its name.
        name: String,
        /// What was found.
        found: String,
        /// What is accepted.
        expected: String,
    },
    /// A value is infinite, not a number, or too large for the network's type.
    #[error("artifact tensor `{name}` has the value {value} at {index}: expected finite values of {element_type}")]
    NotFinite {
        /// Its name.
        name: String,
        /// Where, in row-major order.
        index: usize,
        /// The value.
        value: f64,
        /// Type of the network's elements.
        element_type: String,
    },
}

impl From<SafeTensorError> for WeightsError {
    fn from(source: SafeTensorError) -> Self {
        Self::Format(Arc::new(source))
    }
}

/// Tensors of `f32`, `f64` or `bf16` by name, as bytes of safetensors. A copy shares the bytes.
///
/// The values may be anything, NaN included, until [`Self::fit`] has looked at them.
///
/// ```
/// use esper_weights::{Dtype, Weights};
/// let weights = Weights::from_f32([("up.bias", vec![2], vec![0.5, -1.0])])?;
/// let read = Weights::from_bytes(weights.bytes().clone())?;
/// assert_eq!(read.fit(&[("up.bias", Dtype::F64, &[2])])?, [[0.5, -1.0]]);
/// let error = read.fit(&[("up.bias", Dtype::F64, &[3])]).unwrap_err();
/// assert_eq!(error.to_string(), "artifact tensor `up.bias` has shape [2]: expected [3]");
/// # Ok::<(), esper_weights::WeightsError>(())
/// ```
#[derive(Clone)]
pub struct Weights {
    bytes: Arc<[u8]>,
    tensors: BTreeMap<String, Stored>,
}

/// A tensor within the bytes.
#[derive(Clone)]
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    range: Range<usize>,
}

impl Weights {
    /// Most bytes that [`Self::from_bytes`] reads.
    pub const MAX_BYTES: usize = 1 << 28;

    /// Reads safetensors of `f32`, `f64` or `bf16`. Nothing of the bytes is ever run.
    ///
    /// # Errors
    /// When they are too many, another kind of file, damaged, or have other types.
    pub fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Result<Self, WeightsError> {
        Self::from_bytes_within(bytes, Self::MAX_BYTES)
    }

    /// As [`Self::from_bytes`], of at most `limit` bytes.
    ///
    /// # Errors
    /// As [`Self::from_bytes`].
    pub fn from_bytes_within(bytes: impl Into<Arc<[u8]>>, limit: usize) -> Result<Self, WeightsError> {
        let bytes = bytes.into();
        if bytes.len() > limit {
            return Err(WeightsError::TooLarge { bytes: bytes.len(), limit });
        }
        Self::read(bytes)
    }

    /// As [`Self::from_bytes`], of any size: whoever read the bytes had a limit of its own.
    pub(crate) fn read(bytes: Arc<[u8]>) -> Result<Self, WeightsError> {
        let (header_len, metadata) = match SafeTensors::read_metadata(&bytes) {
            Ok(read) => read,
            // Only now: the length of a valid header may begin with any byte, those of an archive included.
            Err(source) => {
                return Err(other_format(&bytes).map_or(source.into(), |kind| WeightsError::OtherFormat { kind }));
            }
        };
        let mut tensors = BTreeMap::new();
        for name in metadata.offset_keys() {
            if is_passed_over(&name) {
                continue;
            }
            let info = metadata.info(&name).expect("the name is one of its keys");
            if !matches!(info.dtype, Dtype::F32 | Dtype::F64 | Dtype::BF16) {
                let (found, expected) = (name_of(info.dtype), "f32, f64 or bf16".to_owned());
                return Err(WeightsError::ElementType { name, found, expected });
            }
            let (start, end) = info.data_offsets;
            let range = PREFIX_BYTES + header_len + start..PREFIX_BYTES + header_len + end;
            tensors.insert(name, Stored { dtype: info.dtype, shape: info.shape.clone(), range });
        }
        Ok(Self { bytes, tensors })
    }

    /// Takes tensors that were read elsewhere: name, shape, and values in row-major order.
    ///
    /// # Errors
    /// When a name occurs twice, or a tensor has another number of values than its shape says.
    pub fn from_f32<N, S, V>(tensors: impl IntoIterator<Item = (N, S, V)>) -> Result<Self, WeightsError>
    where
        N: Into<String>,
        S: Into<Vec<usize>>,
        V: AsRef<[f32]>,
    {
        let mut checked = BTreeMap::new();
        for (name, shape, values) in tensors {
            let (name, shape, values) = (name.into(), shape.into(), values.as_ref());
            let expected = shape.iter().try_fold(1_usize, |product, &side| product.checked_mul(side));
            if expected != Some(values.len()) {
                let (found, expected) = (values.len(), expected.unwrap_or(usize::MAX));
                return Err(WeightsError::Length { name, found, expected, shape });
            }
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            if checked.insert(name.clone(), (Dtype::F32, shape, bytes)).is_some() {
                return Err(WeightsError::Duplicate { name });
            }
        }
        Self::read(serialize(&checked)?.into())
    }

    /// Takes tensors of a network: name, type, shape, and the exact values in row-major order, as many as the shape says.
    ///
    /// # Errors
    /// When the type is neither `f32`, `f64` nor `bf16`, or values do not fill their shape.
    pub fn from_network<'a>(
        tensors: impl IntoIterator<Item = (&'a str, Dtype, &'a [usize], Vec<f64>)>,
    ) -> Result<Self, WeightsError> {
        let mut stored = BTreeMap::new();
        for (name, dtype, shape, values) in tensors {
            stored.insert(name.to_owned(), (dtype, shape.to_vec(), encode(name, dtype, &values)?));
        }
        Self::read(serialize(&stored)?.into())
    }

    /// The stored form.
    #[must_use]
    pub fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }

    /// Every tensor with its shape and exact values, by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize], Vec<f64>)> {
        self.tensors.iter().map(|(name, stored)| (&**name, &*stored.shape, self.values(stored)))
    }

    /// The values for a module with tensors of these names, types and shapes, in that order: exactly one stored tensor for
    /// each, and finite in its type.
    ///
    /// # Errors
    /// With the name of the first tensor that does not fit.
    pub fn fit(&self, module: &[(&str, Dtype, &[usize])]) -> Result<Vec<Vec<f64>>, WeightsError> {
        let mut fitting = Vec::with_capacity(module.len());
        for &(name, dtype, shape) in module {
            let owned = || name.to_owned();
            let stored = self.tensors.get(name);
            let stored = stored.ok_or_else(|| WeightsError::Missing { name: owned(), expected: shape.to_vec() })?;
            if stored.shape != shape {
                let (found, expected) = (stored.shape.clone(), shape.to_vec());
                return Err(WeightsError::Shape { name: owned(), found, expected });
            }
            // What is stored as `f32` goes into every network; a wider type would be rounded unseen.
            if stored.dtype != Dtype::F32 && stored.dtype != dtype {
                let expected =
                    if dtype == Dtype::F32 { "f32".to_owned() } else { format!("f32 or {}", name_of(dtype)) };
                return Err(WeightsError::ElementType { name: owned(), found: name_of(stored.dtype), expected });
            }
            let values = self.values(stored);
            check_finite(name, dtype, &values)?;
            fitting.push(values);
        }
        let known: BTreeSet<&str> = module.iter().map(|(name, ..)| *name).collect();
        match self.tensors.keys().find(|name| !known.contains(name.as_str())) {
            Some(name) => {
                let expected: Vec<&str> = module.iter().map(|(name, ..)| *name).collect();
                Err(WeightsError::Unexpected { name: name.clone(), expected: expected.join(", ") })
            }
            None => Ok(fitting),
        }
    }

    /// Refuses tensors of other types than `f32`, which goes into every network.
    pub(crate) fn check_portable(&self) -> Result<(), WeightsError> {
        match self.tensors.iter().find(|(_, stored)| stored.dtype != Dtype::F32) {
            Some((name, stored)) => {
                let (found, expected) = (name_of(stored.dtype), "f32".to_owned());
                Err(WeightsError::ElementType { name: name.clone(), found, expected })
            }
            None => Ok(()),
        }
    }

    /// Refuses values that no seed accepts.
    pub(crate) fn check_finite(&self) -> Result<(), WeightsError> {
        self.tensors.iter().try_for_each(|(name, stored)| check_finite(name, stored.dtype, &self.values(stored)))
    }

    /// Exact for every accepted type.
    fn values(&self, stored: &Stored) -> Vec<f64> {
        let data = self.data(stored);
        match stored.dtype {
            Dtype::F64 => data.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect(),
            // The upper half of an `f32`.
            Dtype::BF16 => {
                let value = |&[low, high]: &[u8; 2]| f64::from(f32::from_le_bytes([0, 0, low, high]));
                data.as_chunks().0.iter().map(value).collect()
            }
            _ => data.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect(),
        }
    }

    fn data(&self, stored: &Stored) -> &[u8] {
        &self.bytes[stored.range.clone()]
    }
}

impl PartialEq for Weights {
    /// The same tensors, bit for bit.
    fn eq(&self, other: &Self) -> bool {
        let alike = |(a, b): ((&String, &Stored), (&String, &Stored))| {
            let same_form = a.0 == b.0 && a.1.dtype == b.1.dtype && a.1.shape == b.1.shape;
            same_form && self.data(a.1) == other.data(b.1)
        };
        self.tensors.len() == other.tensors.len() && self.tensors.iter().zip(&other.tensors).all(alike)
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.tensors.iter().map(|(name, stored)| (name, &stored.shape))).finish()
    }
}

fn check_finite(name: &str, dtype: Dtype, values: &[f64]) -> Result<(), WeightsError> {
    let largest = largest_finite(dtype);
    match values.iter().position(|value| !value.is_finite() || value.abs() > largest) {
        Some(index) => {
            let (name, value, element_type) = (name.to_owned(), values[index], name_of(dtype));
            Err(WeightsError::NotFinite { name, index, value, element_type })
        }
        None => Ok(()),
    }
}

/// Tensors of a way of blending, which a blueprint does not have.
fn is_passed_over(name: &str) -> bool {
    name.starts_with("gate.")
}

/// Kinds of files that hold programs or other archives, by their first bytes.
fn other_format(bytes: &[u8]) -> Option<&'static str> {
    // Damaged safetensors: a length of 8 bytes, which may be any of these, and then a brace.
    if bytes.get(8) == Some(&b'{') {
        return None;
    }
    match bytes {
        // A local file, an empty archive, a spanned one.
        [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] | [b'P', b'K', 7, 8, ..] => Some("a zip archive"),
        // Opcode PROTO with its protocol.
        [0x80, 0..=5, ..] => Some("a pickle"),
        [0x7f, b'E', b'L', b'F', ..] => Some("an executable"),
        [0x1f, 0x8b, ..] => Some("a gzip archive"),
        _ => None,
    }
}

fn serialize(tensors: &BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>) -> Result<Vec<u8>, WeightsError> {
    let mut views = Vec::with_capacity(tensors.len());
    for (name, (dtype, shape, bytes)) in tensors {
        views.push((name, TensorView::new(*dtype, shape.clone(), bytes)?));
    }
    Ok(safetensors::serialize(views, None)?)
}

/// `values` as they are stored; exact, because they were elements of `dtype`.
#[expect(clippy::cast_possible_truncation, reason = "the values were f32 or bf16 before")]
fn encode(name: &str, dtype: Dtype, values: &[f64]) -> Result<Vec<u8>, WeightsError> {
    match dtype {
        Dtype::F32 => Ok(values.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect()),
        Dtype::F64 => Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect()),
        Dtype::BF16 => {
            let upper = |&value: &f64| {
                let [_, _, low, high] = (value as f32).to_le_bytes();
                [low, high]
            };
            Ok(values.iter().flat_map(upper).collect())
        }
        other => {
            let (name, found, expected) = (name.to_owned(), name_of(other), "f32, f64 or bf16".to_owned());
            Err(WeightsError::ElementType { name, found, expected })
        }
    }
}

fn name_of(dtype: Dtype) -> String {
    dtype.to_string().to_lowercase()
}

/// Largest finite value; of a `bf16` the largest one, beyond which half a step would round to infinity.
fn largest_finite(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::BF16 => f64::from(f32::from_bits(0x7f7f_0000)),
        Dtype::F64 => f64::MAX,
        _ => f64::from(f32::MAX),
    }
}

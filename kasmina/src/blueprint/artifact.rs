//! Weights of seeds from outside: read as data, checked, and copied into a module.
//!
//! The only format is safetensors, which holds numbers and names and nothing that could run. Names are those of the
//! blueprint's [`WeightSpec`](crate::weight::WeightSpec)s, for example `down.weight`; tensors named `gate.…` belong to a
//! way of blending and are passed over.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor, Var};
use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, TensorView, serialize};

use crate::blueprint::SeedModule;
use crate::error::Error;
use crate::host_read::read_f64;

/// Why weights cannot be used.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
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
    Format(#[source] SafeTensorError),
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
    DType {
        /// Its name.
        name: String,
        /// What was found.
        found: String,
        /// What is accepted.
        expected: String,
    },
    /// A value is infinite, not a number, or too large for the network's type.
    #[error("artifact tensor `{name}` has the value {value} at {index}: expected finite values of {dtype}")]
    NotFinite {
        /// Its name.
        name: String,
        /// Where, in row-major order.
        index: usize,
        /// The value.
        value: f64,
        /// Type of the network's elements.
        dtype: &'static str,
    },
}

/// Weights of a module on the host, by their names within the module.
#[derive(Debug, Clone, PartialEq)]
pub struct SeedWeights {
    tensors: BTreeMap<String, HostTensor>,
}

#[derive(Debug, Clone, PartialEq)]
struct HostTensor {
    dtype: DType,
    shape: Vec<usize>,
    /// Exact for every accepted type.
    values: Vec<f64>,
}

impl SeedWeights {
    /// Most bytes that are read.
    pub const MAX_BYTES: usize = 1 << 28;

    /// Reads safetensors of `f32`, `f64` or `bf16`. Nothing of the bytes is ever run.
    ///
    /// # Errors
    /// When they are too many, another kind of file, damaged, or have other types.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ArtifactError> {
        if bytes.len() > Self::MAX_BYTES {
            return Err(ArtifactError::TooLarge { bytes: bytes.len(), limit: Self::MAX_BYTES });
        }
        if let Some(kind) = other_format(bytes) {
            return Err(ArtifactError::OtherFormat { kind });
        }
        let file = SafeTensors::deserialize(bytes).map_err(ArtifactError::Format)?;
        let mut tensors = BTreeMap::new();
        for (name, view) in file.tensors() {
            if is_passed_over(&name) {
                continue;
            }
            let (dtype, values) = decode(&name, &view)?;
            let tensor = HostTensor { dtype, shape: view.shape().to_vec(), values };
            if tensors.insert(name.clone(), tensor).is_some() {
                return Err(ArtifactError::Duplicate { name });
            }
        }
        Ok(Self { tensors })
    }

    /// Takes tensors that were read elsewhere: name, shape, and values in row-major order.
    ///
    /// # Errors
    /// When a name occurs twice, or a tensor has another number of values than its shape says.
    pub fn from_f32<N, S, V>(tensors: impl IntoIterator<Item = (N, S, V)>) -> Result<Self, ArtifactError>
    where
        N: Into<String>,
        S: Into<Vec<usize>>,
        V: AsRef<[f32]>,
    {
        let mut checked = BTreeMap::new();
        for (name, shape, values) in tensors {
            let (name, shape, values) = (name.into(), shape.into(), values.as_ref());
            if is_passed_over(&name) {
                continue;
            }
            let expected = shape.iter().try_fold(1_usize, |product, &side| product.checked_mul(side));
            if expected != Some(values.len()) {
                let (found, expected) = (values.len(), expected.unwrap_or(usize::MAX));
                return Err(ArtifactError::Length { name, found, expected, shape });
            }
            let values = values.iter().copied().map(f64::from).collect();
            if checked.insert(name.clone(), HostTensor { dtype: DType::F32, shape, values }).is_some() {
                return Err(ArtifactError::Duplicate { name });
            }
        }
        Ok(Self { tensors: checked })
    }

    /// Refuses what does not fit; afterwards each tensor of the module has exactly one counterpart here.
    fn check<'a>(&self, expected: impl Iterator<Item = (&'a str, &'a Tensor)>) -> Result<(), ArtifactError> {
        let mut names = Vec::new();
        for (name, own) in expected {
            names.push(name);
            let found = self
                .tensors
                .get(name)
                .ok_or_else(|| ArtifactError::Missing { name: name.to_owned(), expected: own.dims().to_vec() })?;
            found.check(name, own)?;
        }
        match self.tensors.keys().find(|name| !names.contains(&name.as_str())) {
            Some(name) => Err(ArtifactError::Unexpected { name: name.clone(), expected: names.join(", ") }),
            None => Ok(()),
        }
    }
}

impl HostTensor {
    /// Refuses another shape or type than that of `own`, and what would not be finite there.
    fn check(&self, name: &str, own: &Tensor) -> Result<(), ArtifactError> {
        let name = || name.to_owned();
        if self.shape != own.dims() {
            return Err(ArtifactError::Shape {
                name: name(),
                found: self.shape.clone(),
                expected: own.dims().to_vec(),
            });
        }
        // What is stored as `f32` goes into every network; a wider type would be rounded unseen.
        let dtype = own.dtype();
        if self.dtype != DType::F32 && self.dtype != dtype {
            let expected = if dtype == DType::F32 { "f32".to_owned() } else { format!("f32 or {}", dtype.as_str()) };
            return Err(ArtifactError::DType { name: name(), found: self.dtype.as_str().to_owned(), expected });
        }
        let largest = largest_finite(dtype);
        match self.values.iter().position(|value| !value.is_finite() || value.abs() > largest) {
            Some(index) => {
                let value = self.values[index];
                Err(ArtifactError::NotFinite { name: name(), index, value, dtype: dtype.as_str() })
            }
            None => Ok(()),
        }
    }

    fn to_tensor(&self, dtype: DType, device: &Device) -> candle_core::Result<Tensor> {
        let host = Tensor::from_slice(&self.values, self.shape.as_slice(), &Device::Cpu)?;
        host.to_dtype(dtype)?.to_device(device)
    }
}

impl SeedModule {
    /// Copies weights into the module's tensors in place: optimizers and captured steps see them. All are checked before
    /// the first is written, so a refusal changes nothing. A seed with weights is no newborn: in full it may change the
    /// answer at once.
    ///
    /// # Errors
    /// [`Error::Artifact`] with the name of the first tensor that does not fit; when the device fails.
    /// # Sync
    /// none
    pub fn load(&self, weights: &SeedWeights) -> Result<(), Error> {
        weights.check(self.weights().entries().map(|(name, var)| (name, var.as_tensor())))?;
        let mut loaded = Vec::new();
        for (name, var) in self.weights().entries() {
            loaded.push((var, weights.tensors[name].to_tensor(var.dtype(), var.device())?));
        }
        // Shapes and types agree: only a failing device stops here.
        for (var, tensor) in loaded {
            var.set(&tensor)?;
        }
        Ok(())
    }

    /// Copies of the tensors with their names, on the device.
    pub(crate) fn copies(&self) -> candle_core::Result<Vec<(String, Tensor)>> {
        let copy = |(name, var): (&str, &Var)| Ok((name.to_owned(), var.as_detached_tensor().copy()?));
        self.weights().entries().map(copy).collect()
    }

    /// Copies what [`Self::copies`] of a like module gave into the tensors of this one; false, and nothing done, where it
    /// is none.
    pub(crate) fn adopt(&self, weights: &[(String, Tensor)]) -> candle_core::Result<bool> {
        let own: Vec<(&str, &Var)> = self.weights().entries().collect();
        let alike = |((name, var), (other, tensor)): (&(&str, &Var), &(String, Tensor))| {
            name == other && var.shape() == tensor.shape() && var.dtype() == tensor.dtype()
        };
        if own.len() != weights.len() || !own.iter().zip(weights).all(alike) {
            return Ok(false);
        }
        for ((_, var), (_, tensor)) in own.iter().zip(weights) {
            var.set(tensor)?;
        }
        Ok(true)
    }

    /// The module's weights as safetensors bytes, in the type of the network.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// One device-to-host copy for each tensor.
    pub fn export(&self) -> Result<Vec<u8>, Error> {
        let mut stored = Vec::new();
        for (name, var) in self.weights().entries() {
            let (dtype, bytes) = encode(var.dtype(), &read_f64(&var.as_detached_tensor())?)?;
            stored.push((name, dtype, var.dims().to_vec(), bytes));
        }
        let views: Result<Vec<_>, _> = stored
            .iter()
            .map(|(name, dtype, shape, bytes)| Ok((*name, TensorView::new(*dtype, shape.clone(), bytes)?)))
            .collect();
        let bytes = views.and_then(|views| serialize(views, None)).map_err(ArtifactError::Format)?;
        Ok(bytes)
    }
}

/// Tensors of a way of blending, which a blueprint does not have.
fn is_passed_over(name: &str) -> bool {
    name.starts_with("gate.")
}

/// Kinds of files that hold programs or other archives, by their first bytes.
fn other_format(bytes: &[u8]) -> Option<&'static str> {
    // Safetensors begin with a length of 8 bytes, which may be any of these, and then a brace.
    if bytes.get(8) == Some(&b'{') {
        return None;
    }
    match bytes {
        [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => Some("a zip archive"),
        [0x80, 0..=5, ..] => Some("a pickle"),
        [0x7f, b'E', b'L', b'F', ..] => Some("an executable"),
        [0x1f, 0x8b, ..] => Some("a gzip archive"),
        _ => None,
    }
}

fn decode(name: &str, view: &TensorView<'_>) -> Result<(DType, Vec<f64>), ArtifactError> {
    let data = view.data();
    match view.dtype() {
        Dtype::F32 => Ok((DType::F32, data.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect())),
        Dtype::F64 => Ok((DType::F64, data.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect())),
        // The upper half of an `f32`.
        Dtype::BF16 => {
            let value = |&[low, high]: &[u8; 2]| f64::from(f32::from_le_bytes([0, 0, low, high]));
            Ok((DType::BF16, data.as_chunks().0.iter().map(value).collect()))
        }
        other => Err(ArtifactError::DType {
            name: name.to_owned(),
            found: other.to_string().to_lowercase(),
            expected: "f32, f64 or bf16".to_owned(),
        }),
    }
}

/// `values` as they are stored; exact, because they were elements of `dtype`.
#[expect(clippy::cast_possible_truncation, reason = "the values were f32 or bf16 before")]
fn encode(dtype: DType, values: &[f64]) -> Result<(Dtype, Vec<u8>), Error> {
    match dtype {
        DType::F32 => Ok((Dtype::F32, values.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect())),
        DType::F64 => Ok((Dtype::F64, values.iter().flat_map(|value| value.to_le_bytes()).collect())),
        DType::BF16 => {
            let upper = |&value: &f64| {
                let [_, _, low, high] = (value as f32).to_le_bytes();
                [low, high]
            };
            Ok((Dtype::BF16, values.iter().flat_map(upper).collect()))
        }
        _ => Err(candle_core::Error::UnsupportedDTypeForOp(dtype, "export").into()),
    }
}

/// Largest finite value; of a `bf16` the largest one, beyond which half a step would round to infinity.
fn largest_finite(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => f64::from(f32::from_bits(0x7f7f_0000)),
        DType::F64 => f64::MAX,
        _ => f64::from(f32::MAX),
    }
}

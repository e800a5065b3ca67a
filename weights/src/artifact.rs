//! The weights of one blueprint: immutable, hashed and of a known form from the moment they exist.

use std::fmt;
use std::sync::Arc;

use leyline::id::BlueprintId;
use sha2::{Digest, Sha256};

use crate::cancel::CancelToken;
use crate::error::{FormatError, StoreError, hex};
use crate::tensors::{Weights, WeightsError};

/// Bytes hashed between two looks at the cancellation.
const HASH_CHUNK_BYTES: usize = 1 << 20;

/// Weights of a blueprint as safetensors. A copy shares the bytes.
///
/// One that exists is sound: its digest is that of its bytes, and they are safetensors of `f32`, which goes into every
/// network. The values may still be anything, NaN included; whoever builds a module from them decides about that.
#[derive(Clone)]
pub struct Artifact(Arc<Content>);

struct Content {
    blueprint: BlueprintId,
    sha256: [u8; 32],
    weights: Weights,
}

/// A tensor in the memory of the host.
#[derive(Debug, Clone, PartialEq)]
pub struct HostTensor {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its elements in row-major order.
    pub values: Vec<f32>,
}

impl Artifact {
    /// Takes bytes as they are, with no digest to compare them with.
    ///
    /// # Errors
    /// [`StoreError::Format`] when they are not safetensors of `f32`.
    pub fn new(blueprint: BlueprintId, bytes: impl Into<Arc<[u8]>>) -> Result<Self, StoreError> {
        let bytes = bytes.into();
        let sha256 = digest(&bytes, &CancelToken::never())?;
        Self::hashed(blueprint, Weights::read(bytes), sha256)
    }

    /// Takes bytes that must hash to `expected`. These very bytes are hashed and kept: there is no second read.
    ///
    /// # Errors
    /// [`StoreError::Integrity`] before anything in them is looked at, then [`StoreError::Format`];
    /// [`StoreError::Cancelled`] when the token is raised meanwhile.
    pub fn verified(
        blueprint: BlueprintId,
        bytes: impl Into<Arc<[u8]>>,
        expected: [u8; 32],
        cancel: &CancelToken,
    ) -> Result<Self, StoreError> {
        let bytes = bytes.into();
        let found = digest(&bytes, cancel)?;
        if found != expected {
            return Err(StoreError::Integrity { expected, found });
        }
        Self::hashed(blueprint, Weights::read(bytes), found)
    }

    /// Makes the bytes from tensors.
    ///
    /// # Errors
    /// [`StoreError::Format`] when a tensor has not as many values as its shape says, or a name occurs twice.
    pub fn from_tensors(blueprint: BlueprintId, tensors: &[HostTensor]) -> Result<Self, StoreError> {
        let tensors = tensors.iter().map(|tensor| (&*tensor.name, tensor.shape.clone(), &tensor.values));
        match Weights::from_f32(tensors) {
            Ok(weights) => Self::of(blueprint, weights),
            Err(source) => Err(FormatError::Weights { blueprint, source }.into()),
        }
    }

    /// Weights that were read already.
    pub(crate) fn of(blueprint: BlueprintId, weights: Weights) -> Result<Self, StoreError> {
        let sha256 = digest(weights.bytes(), &CancelToken::never())?;
        Self::hashed(blueprint, Ok(weights), sha256)
    }

    fn hashed(
        blueprint: BlueprintId,
        weights: Result<Weights, WeightsError>,
        sha256: [u8; 32],
    ) -> Result<Self, StoreError> {
        match weights.and_then(|weights| weights.check_portable().map(|()| weights)) {
            Ok(weights) => Ok(Self(Arc::new(Content { blueprint, sha256, weights }))),
            Err(source) => Err(FormatError::Weights { blueprint, source }.into()),
        }
    }

    /// Whose weights they are.
    #[must_use]
    pub fn blueprint(&self) -> &BlueprintId {
        &self.0.blueprint
    }

    /// The bytes that were hashed.
    #[must_use]
    pub fn bytes(&self) -> &Arc<[u8]> {
        self.0.weights.bytes()
    }

    /// SHA-256 of the bytes.
    #[must_use]
    pub fn sha256(&self) -> [u8; 32] {
        self.0.sha256
    }

    /// Number of bytes.
    #[must_use]
    pub fn num_bytes(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// The tensors in the bytes.
    #[must_use]
    pub fn weights(&self) -> &Weights {
        &self.0.weights
    }
}

impl fmt::Debug for Artifact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Artifact")
            .field("blueprint", &self.0.blueprint)
            .field("num_bytes", &self.bytes().len())
            .field("sha256", &hex(&self.0.sha256))
            .finish_non_exhaustive()
    }
}

impl PartialEq for Artifact {
    fn eq(&self, other: &Self) -> bool {
        self.0.blueprint == other.0.blueprint && self.0.sha256 == other.0.sha256
    }
}

fn digest(bytes: &[u8], cancel: &CancelToken) -> Result<[u8; 32], StoreError> {
    let mut hasher = Sha256::new();
    for chunk in bytes.chunks(HASH_CHUNK_BYTES) {
        if cancel.is_cancelled() {
            return Err(StoreError::Cancelled);
        }
        hasher.update(chunk);
    }
    Ok(hasher.finalize().into())
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::{Dtype, TensorView};

    use super::*;

    fn id(name: &str) -> BlueprintId {
        BlueprintId::new(name).unwrap()
    }

    fn two_tensors() -> Vec<HostTensor> {
        vec![
            HostTensor { name: "down.weight".into(), shape: vec![2, 3], values: vec![1.0, -2.0, 0.5, 0.0, 3.0, -0.25] },
            HostTensor { name: "up.bias".into(), shape: vec![2], values: vec![f32::MIN_POSITIVE, f32::MAX] },
        ]
    }

    #[test]
    fn tensors_survive_their_bytes() {
        let artifact = Artifact::from_tensors(id("mlp"), &two_tensors()).unwrap();
        let tensors = two_tensors();
        let expected = tensors.iter().map(|t| (&*t.name, &*t.shape, t.values.iter().copied().map(f64::from).collect()));
        assert_eq!(artifact.weights().tensors().collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        let again = Artifact::new(id("mlp"), artifact.bytes().to_vec()).unwrap();
        assert_eq!(again, artifact);
        assert_eq!(again.weights(), artifact.weights());
        assert_eq!(Artifact::from_tensors(id("none"), &[]).unwrap().weights().tensors().count(), 0);
    }

    #[test]
    fn the_digest_is_that_of_the_bytes() {
        let artifact = Artifact::from_tensors(id("mlp"), &two_tensors()).unwrap();
        assert_eq!(artifact.sha256(), <[u8; 32]>::from(Sha256::digest(artifact.bytes())));
        // FIPS 180-4: the digest of the empty message.
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(hex(&digest(&[], &CancelToken::never()).unwrap()), empty);
        let text = format!("{artifact:?}");
        assert!(text.contains("mlp") && text.contains(&hex(&artifact.sha256())) && text.len() < 200, "{text}");
    }

    #[test]
    fn any_changed_byte_is_found_before_the_form_is_looked_at() {
        let artifact = Artifact::from_tensors(id("mlp"), &two_tensors()).unwrap();
        for at in 0..artifact.bytes().len() {
            let mut bytes = artifact.bytes().to_vec();
            bytes[at] ^= 1;
            let error = Artifact::verified(id("mlp"), bytes, artifact.sha256(), &CancelToken::never()).unwrap_err();
            assert!(
                matches!(error, StoreError::Integrity { expected, found }
                if expected == artifact.sha256() && found != expected),
                "byte {at}: {error}"
            );
        }
    }

    #[track_caller]
    fn check_refused(bytes: &[u8], text: &str) {
        let StoreError::Format(error) = Artifact::new(id("mlp"), bytes).unwrap_err() else {
            panic!("another kind of error")
        };
        assert_eq!(error.to_string(), "the weights of `mlp` cannot be used");
        let source = std::error::Error::source(&error).unwrap();
        assert!(source.to_string().contains(text), "{source}");
    }

    #[test]
    fn bytes_that_are_no_safetensors_are_refused_with_what_they_are() {
        let whole = Artifact::from_tensors(id("mlp"), &two_tensors()).unwrap();
        check_refused(b"\x80\x02}q\x00.", "the artifact is a pickle: expected safetensors");
        check_refused(b"\x80\x05\x95\x00\x00\x00\x00\x00\x00\x00\x00.", "a pickle");
        check_refused(
            b"PK\x03\x04\x00\x00\x00\x00\x00\x00\x00\x00",
            "the artifact is a zip archive: expected safetensors",
        );
        check_refused(b"PK\x05\x06", "zip archive");
        check_refused(b"", "not valid safetensors");
        check_refused(&[0xff; 64], "not valid safetensors");
        check_refused(&whole.bytes()[..whole.bytes().len() - 1], "not valid safetensors");
        check_refused(&[whole.bytes(), &b"x"[..]].concat(), "not valid safetensors");
        let data = [0_u8; 4];
        for (dtype, num, text) in
            [(Dtype::F16, 2, "f16: expected f32, f64 or bf16"), (Dtype::BF16, 2, "bf16: expected f32")]
        {
            let view = TensorView::new(dtype, vec![num], &data).unwrap();
            let bytes = safetensors::serialize([("w", view)], None).unwrap();
            check_refused(&bytes, &format!("artifact tensor `w` has elements of {text}"));
        }
        let short = HostTensor { name: "w".into(), shape: vec![3], values: vec![0.0] };
        assert!(matches!(Artifact::from_tensors(id("mlp"), &[short]), Err(StoreError::Format(_))));
    }

    #[test]
    fn a_header_whose_length_reads_like_a_pickle_is_safetensors_all_the_same() {
        let header = r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        let mut bytes = 640_u64.to_le_bytes().to_vec();
        assert_eq!(bytes[..2], [0x80, 2], "as a pickle of protocol 2 begins");
        bytes.extend(format!("{header:<640}").bytes());
        bytes.extend(1.5_f32.to_le_bytes());
        let read = Artifact::new(id("mlp"), bytes).unwrap();
        assert_eq!(read.weights().tensors().collect::<Vec<_>>(), [("w", &[1][..], vec![1.5])]);
    }

    #[test]
    fn hashing_ends_when_it_is_cancelled() {
        let (source, token) = CancelToken::new();
        source.cancel();
        let error = Artifact::verified(id("mlp"), vec![1, 2, 3], [0; 32], &token).unwrap_err();
        assert!(matches!(error, StoreError::Cancelled), "{error}");
    }
}

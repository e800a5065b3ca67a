//! The weights of one blueprint: immutable, hashed and of a known form from the moment they exist.

use std::fmt;
use std::sync::Arc;

use leyline::id::BlueprintId;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use sha2::{Digest, Sha256};

use crate::prefetch::cancel::CancelToken;
use crate::prefetch::error::{FormatError, StoreError, hex};

/// Bytes hashed between two looks at the cancellation.
const HASH_CHUNK_BYTES: usize = 1 << 20;
/// Bytes before the header: its length.
const PREFIX_BYTES: usize = 8;

/// Weights of a blueprint as safetensors. A copy shares the bytes.
///
/// One that exists is sound: its digest is that of its bytes, and they are safetensors of `f32`. The values may still
/// be anything, NaN included; whoever builds a module from them decides about that.
#[derive(Clone)]
pub struct Artifact(Arc<Content>);

struct Content {
    blueprint: BlueprintId,
    bytes: Arc<[u8]>,
    sha256: [u8; 32],
    tensors: Vec<Placed>,
}

/// Where a tensor is in the bytes.
struct Placed {
    name: String,
    shape: Vec<usize>,
    start: usize,
    end: usize,
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
        Self::parse(blueprint, bytes, sha256)
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
        Self::parse(blueprint, bytes, found)
    }

    /// Makes the bytes from tensors.
    ///
    /// # Errors
    /// [`StoreError::Format`] when a tensor has not as many values as its shape says.
    pub fn from_tensors(blueprint: BlueprintId, tensors: &[HostTensor]) -> Result<Self, StoreError> {
        let invalid = |blueprint: &BlueprintId, source| FormatError::Safetensors {
            blueprint: blueprint.clone(),
            source: Arc::new(source),
        };
        let data: Vec<Vec<u8>> =
            tensors.iter().map(|tensor| tensor.values.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
        let views: Result<Vec<(&str, TensorView<'_>)>, _> = tensors
            .iter()
            .zip(&data)
            .map(|(tensor, data)| Ok((&*tensor.name, TensorView::new(Dtype::F32, tensor.shape.clone(), data)?)))
            .collect();
        let views = views.map_err(|source| invalid(&blueprint, source))?;
        let bytes = safetensors::serialize(views, None).map_err(|source| invalid(&blueprint, source))?;
        Self::new(blueprint, bytes)
    }

    fn parse(blueprint: BlueprintId, bytes: Arc<[u8]>, sha256: [u8; 32]) -> Result<Self, StoreError> {
        let (header_len, metadata) = match SafeTensors::read_metadata(&bytes) {
            Ok(read) => read,
            // Only now: the length of a valid header may begin with any byte, those of an archive included.
            Err(source) => {
                return Err(match archive_form(&bytes) {
                    Some(form) => FormatError::Archive { blueprint, form },
                    None => FormatError::Safetensors { blueprint, source: Arc::new(source) },
                }
                .into());
            }
        };
        let mut names = metadata.offset_keys();
        names.sort_unstable();
        let mut tensors = Vec::with_capacity(names.len());
        for name in names {
            let info = metadata.info(&name).expect("the name is one of its keys");
            if info.dtype != Dtype::F32 {
                let found = info.dtype.to_string();
                return Err(FormatError::ElementType { blueprint, tensor: name, found }.into());
            }
            let data = PREFIX_BYTES + header_len;
            let (start, end) = (data + info.data_offsets.0, data + info.data_offsets.1);
            tensors.push(Placed { name, shape: info.shape.clone(), start, end });
        }
        Ok(Self(Arc::new(Content { blueprint, bytes, sha256, tensors })))
    }

    /// Whose weights they are.
    #[must_use]
    pub fn blueprint(&self) -> &BlueprintId {
        &self.0.blueprint
    }

    /// The bytes that were hashed.
    #[must_use]
    pub fn bytes(&self) -> &Arc<[u8]> {
        &self.0.bytes
    }

    /// SHA-256 of the bytes.
    #[must_use]
    pub fn sha256(&self) -> [u8; 32] {
        self.0.sha256
    }

    /// Number of bytes.
    #[must_use]
    pub fn num_bytes(&self) -> u64 {
        self.0.bytes.len() as u64
    }

    /// Every tensor by name, its values copied out of the bytes.
    ///
    /// # Sync
    /// none; plain host data
    #[must_use]
    pub fn tensors(&self) -> Vec<HostTensor> {
        let values = |placed: &Placed| {
            let elements = self.0.bytes[placed.start..placed.end].chunks_exact(4);
            elements.map(|b| f32::from_le_bytes(b.try_into().expect("chunks of four bytes"))).collect()
        };
        let tensor = |p: &Placed| HostTensor { name: p.name.clone(), shape: p.shape.clone(), values: values(p) };
        self.0.tensors.iter().map(tensor).collect()
    }
}

impl fmt::Debug for Artifact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Artifact")
            .field("blueprint", &self.0.blueprint)
            .field("num_bytes", &self.0.bytes.len())
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

/// Names a form that can carry code, by its first bytes.
fn archive_form(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        // Opcode PROTO with its protocol, 2 to 5; older protocols have no mark of their own.
        [0x80, 2..=5, ..] => Some("pickle"),
        // A local file, an empty archive, a spanned one.
        [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] | [b'P', b'K', 7, 8, ..] => Some("zip"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(artifact.tensors(), two_tensors());
        let again = Artifact::new(id("mlp"), artifact.bytes().to_vec()).unwrap();
        assert_eq!(again, artifact);
        assert_eq!(again.tensors(), two_tensors());
        assert_eq!(Artifact::from_tensors(id("none"), &[]).unwrap().tensors(), []);
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
        assert!(error.to_string().contains(text), "{error}");
    }

    #[test]
    fn bytes_that_are_no_safetensors_are_refused_with_what_they_are() {
        let whole = Artifact::from_tensors(id("mlp"), &two_tensors()).unwrap();
        check_refused(b"\x80\x02}q\x00.", "`mlp` is a pickle archive: expected safetensors");
        check_refused(b"\x80\x05\x95\x00\x00\x00\x00\x00\x00\x00\x00.", "pickle archive");
        check_refused(b"PK\x03\x04\x00\x00\x00\x00\x00\x00\x00\x00", "`mlp` is a zip archive: expected safetensors");
        check_refused(b"PK\x05\x06", "zip archive");
        check_refused(b"", "not valid safetensors");
        check_refused(&[0xff; 64], "not valid safetensors");
        check_refused(&whole.bytes()[..whole.bytes().len() - 1], "not valid safetensors");
        check_refused(&[whole.bytes(), &b"x"[..]].concat(), "not valid safetensors");
        let data = [0_u8; 4];
        let half = TensorView::new(Dtype::F16, vec![2], &data).unwrap();
        let half = safetensors::serialize([("w", half)], None).unwrap();
        check_refused(&half, "tensor `w` of `mlp` has elements of F16: expected F32");
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
        let tensors = Artifact::new(id("mlp"), bytes).unwrap().tensors();
        assert_eq!(tensors, [HostTensor { name: "w".into(), shape: vec![1], values: vec![1.5] }]);
    }

    #[test]
    fn hashing_ends_when_it_is_cancelled() {
        let (source, token) = CancelToken::new();
        source.cancel();
        let error = Artifact::verified(id("mlp"), vec![1, 2, 3], [0; 32], &token).unwrap_err();
        assert!(matches!(error, StoreError::Cancelled), "{error}");
    }
}

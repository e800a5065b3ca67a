//! Artifacts in a folder: `<blueprint>.safetensors` beside a `manifest.json` that pins their digests.
//!
//! ```text
//! {"mlp": {"sha256": "9f86d0…", "bytes": 4168}, …}
//! ```
//!
//! The manifest is read once, when the folder is opened: from then on its digests are pinned, and a file that is
//! swapped afterwards is refused. Each fetch reads its file once, and those bytes are hashed, compared and handed out.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leyline::id::BlueprintId;
use serde::{Deserialize, Serialize};

use crate::artifact::Artifact;
use crate::cancel::CancelToken;
use crate::error::{FormatError, StoreError, unhex};
use crate::store::KernelStore;

pub(crate) const MANIFEST_FILE: &str = "manifest.json";
const MAX_MANIFEST_BYTES: u64 = 16 << 20;
/// Bytes read between two looks at the cancellation.
const READ_CHUNK_BYTES: usize = 1 << 20;

/// A folder of artifacts.
#[derive(Debug)]
pub struct DirectoryStore {
    dir: PathBuf,
    pins: BTreeMap<BlueprintId, Pin>,
    max_artifact_bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Pin {
    sha256: [u8; 32],
    bytes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ManifestEntry {
    pub(crate) sha256: String,
    pub(crate) bytes: u64,
}

/// The manifest of a folder as it is written.
pub(crate) fn read_manifest(dir: &Path) -> Result<BTreeMap<BlueprintId, ManifestEntry>, StoreError> {
    let text = read_plain(dir, MANIFEST_FILE, MAX_MANIFEST_BYTES, &CancelToken::never())?;
    Ok(serde_json::from_slice(&text).map_err(|source| FormatError::Manifest(Arc::new(source)))?)
}

/// The characters of an id leave no way to name another folder.
pub(crate) fn artifact_file(blueprint: &BlueprintId) -> String {
    format!("{blueprint}.safetensors")
}

impl DirectoryStore {
    /// Largest artifact that is read unless [`Self::with_max_bytes`] says otherwise: 1 GiB.
    pub const DEFAULT_MAX_ARTIFACT_BYTES: u64 = 1 << 30;

    /// Opens a folder and pins what its manifest lists. Blueprints that are published later need another opening.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::TooLarge`], or [`StoreError::Format`] for a manifest that is not valid or
    /// is a link.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, StoreError> {
        let dir = dir.as_ref().canonicalize()?;
        let mut pins = BTreeMap::new();
        for (blueprint, ManifestEntry { sha256, bytes }) in read_manifest(&dir)? {
            let Some(digest) = unhex(&sha256) else {
                return Err(FormatError::Digest { blueprint, found: sha256 }.into());
            };
            pins.insert(blueprint, Pin { sha256: digest, bytes });
        }
        Ok(Self { dir, pins, max_artifact_bytes: Self::DEFAULT_MAX_ARTIFACT_BYTES })
    }

    /// Accepts artifacts of at most so many bytes.
    #[must_use]
    pub fn with_max_bytes(self, max_artifact_bytes: u64) -> Self {
        Self { max_artifact_bytes, ..self }
    }

    /// The blueprints of the manifest.
    pub fn blueprints(&self) -> impl Iterator<Item = &BlueprintId> {
        self.pins.keys()
    }
}

impl KernelStore for DirectoryStore {
    fn fetch(&self, blueprint: &BlueprintId, cancel: &CancelToken) -> Result<Artifact, StoreError> {
        let pin = self.pins.get(blueprint).ok_or(StoreError::Missing)?;
        if pin.bytes > self.max_artifact_bytes {
            return Err(StoreError::TooLarge { bytes: pin.bytes, limit: self.max_artifact_bytes });
        }
        let bytes = match read_plain(&self.dir, &artifact_file(blueprint), self.max_artifact_bytes, cancel) {
            Err(StoreError::Io(source)) if source.kind() == io::ErrorKind::NotFound => return Err(StoreError::Missing),
            read => read?,
        };
        let found = bytes.len() as u64;
        let artifact = Artifact::verified(blueprint.clone(), bytes, pin.sha256, cancel)?;
        if found != pin.bytes {
            return Err(FormatError::Length { blueprint: blueprint.clone(), expected: pin.bytes, found }.into());
        }
        Ok(artifact)
    }
}

/// All bytes of a plain file of the folder, read once.
fn read_plain(dir: &Path, name: &str, limit: u64, cancel: &CancelToken) -> Result<Arc<[u8]>, StoreError> {
    let mut file = open_plain(dir, name, OpenOptions::new().read(true))?;
    let len = file.metadata()?.len();
    read_once(&mut file, len, limit, cancel)
}

/// Opens a plain file of the folder. A link is refused wherever it leads.
pub(crate) fn open_plain(dir: &Path, name: &str, options: &OpenOptions) -> Result<File, StoreError> {
    let not_plain = |problem| StoreError::from(FormatError::NotPlain { name: name.to_owned(), problem });
    let path = dir.join(name);
    let before = fs::symlink_metadata(&path)?;
    if before.is_symlink() {
        return Err(not_plain("a link"));
    }
    if !before.is_file() {
        return Err(not_plain("no plain file"));
    }
    let file = options.open(&path)?;
    // A link put in place between the two calls would have been followed.
    if !is_same_file(&before, &file.metadata()?) {
        return Err(not_plain("replaced while it was opened"));
    }
    Ok(file)
}

fn read_once(file: &mut File, len: u64, limit: u64, cancel: &CancelToken) -> Result<Arc<[u8]>, StoreError> {
    let too_large = |bytes| StoreError::TooLarge { bytes, limit };
    let size = usize::try_from(len).ok().filter(|_| len <= limit).ok_or_else(|| too_large(len))?;
    // Filled in place: turning a `Vec` into an `Arc` would copy every artifact once more.
    let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, size).collect();
    let room = Arc::get_mut(&mut bytes).expect("nobody else has it yet");
    for chunk in room.chunks_mut(READ_CHUNK_BYTES) {
        if cancel.is_cancelled() {
            return Err(StoreError::Cancelled);
        }
        file.read_exact(chunk)?;
    }
    // Bytes beyond the length would be neither hashed nor handed out, but then the file is not what was measured.
    if file.take(1).read(&mut [0])? != 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file grew while it was read").into());
    }
    Ok(bytes)
}

#[cfg(unix)]
fn is_same_file(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(not(unix))]
fn is_same_file(_: &fs::Metadata, b: &fs::Metadata) -> bool {
    b.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::HostTensor;
    use crate::error::hex;

    fn id(name: &str) -> BlueprintId {
        BlueprintId::new(name).unwrap()
    }

    fn artifact(value: f32) -> Artifact {
        let tensor = HostTensor { name: "w".into(), shape: vec![3], values: vec![value; 3] };
        Artifact::from_tensors(id("mlp"), &[tensor]).unwrap()
    }

    /// A folder that publishes these bytes as `mlp`.
    fn folder(published: &[u8]) -> tempfile::TempDir {
        let digest = Artifact::verified(id("mlp"), published, [0; 32], &CancelToken::never());
        let Err(StoreError::Integrity { found, .. }) = digest else { panic!("no digest is zero") };
        let dir = tempfile::tempdir().unwrap();
        let manifest = format!(r#"{{"mlp":{{"sha256":"{}","bytes":{}}}}}"#, hex(&found), published.len());
        fs::write(dir.path().join(MANIFEST_FILE), manifest).unwrap();
        fs::write(dir.path().join("mlp.safetensors"), published).unwrap();
        dir
    }

    fn fetch(store: &DirectoryStore) -> Result<Artifact, StoreError> {
        store.fetch(&id("mlp"), &CancelToken::never())
    }

    #[test]
    fn what_was_published_is_handed_out() {
        let dir = folder(artifact(0.5).bytes());
        let store = DirectoryStore::open(dir.path()).unwrap();
        assert_eq!(store.blueprints().collect::<Vec<_>>(), [&id("mlp")]);
        let fetched = fetch(&store).unwrap();
        assert_eq!((&fetched, fetched.weights()), (&artifact(0.5), artifact(0.5).weights()));
        let exact = store.with_max_bytes(fetched.num_bytes());
        assert!(fetch(&exact).is_ok(), "the limit itself is accepted");
    }

    #[test]
    fn a_corrupted_byte_anywhere_is_an_integrity_error() {
        let sound = artifact(0.5);
        let dir = folder(sound.bytes());
        let store = DirectoryStore::open(dir.path()).unwrap();
        for at in 0..sound.bytes().len() {
            let mut bytes = sound.bytes().to_vec();
            bytes[at] ^= 0x10;
            fs::write(dir.path().join("mlp.safetensors"), bytes).unwrap();
            let error = fetch(&store).unwrap_err();
            assert!(matches!(error, StoreError::Integrity { expected, .. } if expected == sound.sha256()), "{error}");
        }
        for changed in [&sound.bytes()[..sound.bytes().len() - 1], &[&sound.bytes()[..], b"x"].concat()[..], b""] {
            fs::write(dir.path().join("mlp.safetensors"), changed).unwrap();
            assert!(matches!(fetch(&store), Err(StoreError::Integrity { .. })));
        }
    }

    #[test]
    fn a_file_and_manifest_swapped_after_the_opening_are_refused() {
        let dir = folder(artifact(0.5).bytes());
        let store = DirectoryStore::open(dir.path()).unwrap();
        let other = folder(artifact(9.0).bytes());
        for name in [MANIFEST_FILE, "mlp.safetensors"] {
            fs::rename(other.path().join(name), dir.path().join(name)).unwrap();
        }
        assert!(matches!(fetch(&store), Err(StoreError::Integrity { .. })));
        assert_eq!(fetch(&DirectoryStore::open(dir.path()).unwrap()).unwrap(), artifact(9.0));
    }

    #[test]
    fn bytes_already_read_do_not_change_with_the_file() {
        let dir = folder(artifact(0.5).bytes());
        let fetched = fetch(&DirectoryStore::open(dir.path()).unwrap()).unwrap();
        // In place: a mapping of the file, or a second read of it, would see the new bytes.
        fs::write(dir.path().join("mlp.safetensors"), artifact(9.0).bytes()).unwrap();
        assert_eq!(fetched.weights(), artifact(0.5).weights());
    }

    #[test]
    fn archives_are_refused_even_when_they_were_published() {
        for (bytes, text) in [
            (
                &b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00K\x01."[..],
                "the artifact is a pickle: expected safetensors",
            ),
            (b"PK\x03\x04\x14\x00\x00\x00\x00\x00", "the artifact is a zip archive: expected safetensors"),
        ] {
            let dir = folder(bytes);
            let error = fetch(&DirectoryStore::open(dir.path()).unwrap()).unwrap_err();
            let StoreError::Format(FormatError::Weights { source, .. }) = error else { panic!("{error}") };
            assert_eq!(source.to_string(), text);
        }
    }

    #[test]
    fn what_is_not_there_is_missing() {
        let dir = folder(artifact(0.5).bytes());
        let store = DirectoryStore::open(dir.path()).unwrap();
        fs::copy(dir.path().join("mlp.safetensors"), dir.path().join("conv.safetensors")).unwrap();
        let unlisted = store.fetch(&id("conv"), &CancelToken::never());
        assert!(matches!(unlisted, Err(StoreError::Missing)), "nothing without a pinned digest is handed out");
        fs::remove_file(dir.path().join("mlp.safetensors")).unwrap();
        assert!(matches!(fetch(&store), Err(StoreError::Missing)));
    }

    #[test]
    fn sizes_over_the_limit_are_not_read() {
        let sound = artifact(0.5);
        let limit = sound.num_bytes() - 1;
        let dir = folder(sound.bytes());
        let store = DirectoryStore::open(dir.path()).unwrap().with_max_bytes(limit);
        let error = fetch(&store).unwrap_err();
        assert!(matches!(error, StoreError::TooLarge { bytes, .. } if bytes == limit + 1), "{error}");
        // Sparse, and three gigabytes, behind a manifest that speaks of a few bytes.
        let dir = folder(sound.bytes());
        let store = DirectoryStore::open(dir.path()).unwrap();
        let file = File::options().write(true).open(dir.path().join("mlp.safetensors")).unwrap();
        file.set_len(3 << 30).unwrap();
        let error = fetch(&store).unwrap_err();
        assert!(
            matches!(error, StoreError::TooLarge { bytes, limit } if bytes == 3 << 30 && limit == 1 << 30),
            "{error}"
        );
    }

    #[test]
    fn a_manifest_of_another_form_is_refused() {
        let sha256 = "0".repeat(64);
        for (manifest, text) in [
            ("", "the manifest is not valid"),
            ("[]", "the manifest is not valid"),
            (&format!(r#"{{"../mlp":{{"sha256":"{sha256}","bytes":1}}}}"#), "the manifest is not valid"),
            (
                &format!(r#"{{"mlp":{{"sha256":"{sha256}","bytes":1,"path":"/etc/passwd"}}}}"#),
                "the manifest is not valid",
            ),
            (r#"{"mlp":{"sha256":"00","bytes":1}}"#, "the digest of `mlp` is `00`: expected 64 hexadecimal digits"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(MANIFEST_FILE), manifest).unwrap();
            let StoreError::Format(error) = DirectoryStore::open(dir.path()).unwrap_err() else {
                panic!("another kind of error")
            };
            assert_eq!(error.to_string(), text, "{manifest}");
        }
        let dir = folder(artifact(0.5).bytes());
        let path = dir.path().join(MANIFEST_FILE);
        let longer = fs::read_to_string(&path)
            .unwrap()
            .replace(&format!("\"bytes\":{}", artifact(0.5).num_bytes()), "\"bytes\":1");
        fs::write(path, longer).unwrap();
        let error = fetch(&DirectoryStore::open(dir.path()).unwrap()).unwrap_err();
        assert!(matches!(error, StoreError::Format(FormatError::Length { expected: 1, .. })), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn links_and_folders_are_refused_wherever_they_lead() {
        use std::os::unix::fs::symlink;

        #[track_caller]
        fn check(result: Result<Artifact, StoreError>, text: &str) {
            let Err(StoreError::Format(error)) = result else { panic!("{result:?}") };
            assert_eq!(error.to_string(), text);
        }
        let outside = folder(artifact(0.5).bytes());
        let dir = folder(artifact(0.5).bytes());
        let store = DirectoryStore::open(dir.path()).unwrap();
        let path = dir.path().join("mlp.safetensors");
        fs::rename(&path, dir.path().join("kept")).unwrap();
        for target in [outside.path().join("mlp.safetensors"), dir.path().join("kept"), "nowhere".into()] {
            symlink(target, &path).unwrap();
            check(fetch(&store), "`mlp.safetensors` is a link: expected a plain file in the folder of the store");
            fs::remove_file(&path).unwrap();
        }
        fs::create_dir(&path).unwrap();
        check(fetch(&store), "`mlp.safetensors` is no plain file: expected a plain file in the folder of the store");
        let linked = tempfile::tempdir().unwrap();
        symlink(outside.path().join(MANIFEST_FILE), linked.path().join(MANIFEST_FILE)).unwrap();
        let error = DirectoryStore::open(linked.path()).unwrap_err();
        assert!(matches!(error, StoreError::Format(FormatError::NotPlain { .. })), "{error}");
    }

    #[test]
    fn a_cancelled_fetch_ends_without_an_artifact() {
        let dir = folder(artifact(0.5).bytes());
        let store = DirectoryStore::open(dir.path()).unwrap();
        let (source, token) = CancelToken::new();
        source.cancel();
        assert!(matches!(store.fetch(&id("mlp"), &token), Err(StoreError::Cancelled)));
    }
}

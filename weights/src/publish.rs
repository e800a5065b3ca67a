//! Publishing weights in the folder of a [`DirectoryStore`](super::DirectoryStore), so that a crash leaves no damage unseen.
//!
//! ```text
//!  checked ─► .mlp.safetensors.new ─► mlp.safetensors ─► .manifest.json.new ─► manifest.json
//!             written, synced         renamed, folder    written, synced       renamed, folder
//!                                     synced                                   synced
//! ```
//!
//! | it stops | what the folder then has |
//! |---|---|
//! | before the artifact is renamed | what it had before |
//! | between the renamings, the blueprint new | what it had before; the new file is listed nowhere |
//! | between the renamings, the blueprint replaced | the new file under the old digest: an `Integrity` error for this one blueprint |
//! | after the manifest is renamed | all of it |
//!
//! Publishing again mends each of them.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use leyline::error::{Error as LeylineError, ErrorKind};
use leyline::id::BlueprintId;

use crate::artifact::Artifact;
use crate::directory::{MANIFEST_FILE, ManifestEntry, artifact_file, open_plain, read_manifest};
use crate::error::{StoreError, hex};
use crate::tensors::{Weights, WeightsError};

/// Held while one process publishes, so that no entry of another is lost.
const LOCK_FILE: &str = ".publish.lock";

/// What to do where the blueprint is published already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfPublished {
    /// Nothing is written.
    Refuse,
    /// The new weights take the place of the old ones.
    Replace,
}

/// Why weights were not published.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// No seed could load them.
    #[error("the weights cannot be published")]
    Weights(#[from] WeightsError),
    /// No store could hand them out, or the folder has no valid manifest.
    #[error("the library cannot take the weights")]
    Store(#[from] StoreError),
    /// There are weights of this name.
    #[error("`{blueprint}` is published already")]
    Published {
        /// The name.
        blueprint: BlueprintId,
    },
    /// A file could not be written.
    #[error("{} cannot be written", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl LeylineError for PublishError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Store(StoreError::Io(_)) | Self::Io { .. } => ErrorKind::Io,
            Self::Weights(_) | Self::Store(_) => ErrorKind::Corrupt,
            Self::Published { .. } => ErrorKind::Rejected,
        }
    }
}

/// Writes weights of `blueprint` into the folder and lists them in its manifest; the folder is made where there is none.
/// Returns their SHA-256.
///
/// Stores that are open keep the digests they began with: they refuse what was replaced, and do not see what is new.
///
/// # Errors
/// Before anything is written: [`PublishError::Weights`] for what no seed could load,
/// [`PublishError::Store`] for what no store could hand out, for a manifest that is not valid and for a lock that is a link,
/// [`PublishError::Published`]. [`PublishError::Io`] at any time; the table of the module says what is there then.
pub fn publish(
    dir: impl AsRef<Path>,
    blueprint: &BlueprintId,
    bytes: &[u8],
    if_published: IfPublished,
) -> Result<[u8; 32], PublishError> {
    publish_in_steps(here(Some(dir.as_ref())), blueprint, bytes, if_published, &mut |_| Ok(()))
}

/// As [`publish`]; `reached` is asked after every step on the disk whether to go on.
fn publish_in_steps(
    dir: &Path,
    blueprint: &BlueprintId,
    bytes: &[u8],
    if_published: IfPublished,
    reached: &mut dyn FnMut(&'static str) -> io::Result<()>,
) -> Result<[u8; 32], PublishError> {
    let weights = Weights::from_bytes(bytes)?;
    weights.check_finite()?;
    let artifact = Artifact::of(blueprint.clone(), weights)?;
    let at = |path: &Path| {
        let path = path.to_owned();
        |source| PublishError::Io { path, source }
    };
    make_folder(dir, reached).map_err(at(dir))?;
    let lock = dir.join(LOCK_FILE);
    // A new one is no link that leads elsewhere, and what was there keeps its content.
    match File::create_new(&lock) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(at(&lock)(error)),
        _ => {}
    }
    // Let go of when it is dropped, or by the system when the process ends.
    let held = open_plain(dir, LOCK_FILE, OpenOptions::new().write(true))?;
    held.lock().map_err(at(&lock))?;

    let mut manifest = match read_manifest(dir) {
        Err(StoreError::Io(source)) if source.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
        read => read?,
    };
    if if_published == IfPublished::Refuse && manifest.contains_key(blueprint) {
        return Err(PublishError::Published { blueprint: blueprint.clone() });
    }
    let sha256 = artifact.sha256();
    manifest.insert(blueprint.clone(), ManifestEntry { sha256: hex(&sha256), bytes: artifact.num_bytes() });
    let text = serde_json::to_vec_pretty(&manifest).expect("a map of texts and numbers can be written as JSON");
    for (name, bytes) in [(artifact_file(blueprint), bytes), (MANIFEST_FILE.to_owned(), &text[..])] {
        put(dir, &name, bytes, reached).map_err(at(&dir.join(name)))?;
    }
    Ok(sha256)
}

/// The path, or the current folder where there is none or an empty one, which cannot be opened.
fn here(path: Option<&Path>) -> &Path {
    path.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the folder and what is missing above it, durably but where a parent may not be synced.
fn make_folder(dir: &Path, reached: &mut dyn FnMut(&'static str) -> io::Result<()>) -> io::Result<()> {
    let parent = here(dir.parent());
    let is_new = !dir.try_exists()?;
    if is_new {
        make_folder(parent, reached)?;
        match fs::create_dir(dir) {
            Err(error) if !dir.is_dir() => return Err(error),
            _ => {}
        }
    }
    // One that is there may be left by a process that ended between making and syncing.
    let may_not = [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem, io::ErrorKind::InvalidInput];
    match sync_folder(parent) {
        Err(error) if !may_not.contains(&error.kind()) => Err(error),
        _ if is_new => reached("folder synced"),
        _ => Ok(()),
    }
}

/// Writes a file beside its place, and renames it into it.
fn put(
    dir: &Path,
    name: &str,
    bytes: &[u8],
    reached: &mut dyn FnMut(&'static str) -> io::Result<()>,
) -> io::Result<()> {
    let temporary = dir.join(format!(".{name}.new"));
    // Left by one that was interrupted; a link is not followed.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = File::create_new(&temporary)?;
    reached("made")?;
    file.write_all(bytes)?;
    reached("written")?;
    file.sync_all()?;
    reached("synced")?;
    fs::rename(&temporary, dir.join(name))?;
    reached("renamed")?;
    sync_folder(dir)?;
    reached("folder synced")
}

/// Makes renamings in the folder last.
#[cfg(unix)]
fn sync_folder(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(not(unix))]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::HostTensor;
    use crate::cancel::CancelToken;
    use crate::directory::DirectoryStore;
    use crate::store::KernelStore as _;

    const STEPS: usize = 10;

    fn id(name: &str) -> BlueprintId {
        BlueprintId::new(name).unwrap()
    }

    fn artifact(name: &str, value: f32) -> Artifact {
        let tensor = HostTensor { name: "w".into(), shape: vec![3], values: vec![value; 3] };
        Artifact::from_tensors(id(name), &[tensor]).unwrap()
    }

    /// Stops after so many steps.
    fn interrupted(dir: &Path, artifact: &Artifact, num_steps: usize) -> Result<[u8; 32], PublishError> {
        let mut left = num_steps;
        publish_in_steps(dir, artifact.blueprint(), artifact.bytes(), IfPublished::Replace, &mut |_| {
            if left == 0 {
                return Err(io::Error::other("power failure"));
            }
            left -= 1;
            Ok(())
        })
    }

    fn fetch(dir: &Path, name: &str) -> Result<Artifact, StoreError> {
        DirectoryStore::open(dir)?.fetch(&id(name), &CancelToken::never())
    }

    fn put_all(dir: &Path, artifacts: &[Artifact]) {
        for artifact in artifacts {
            let sha256 = publish(dir, artifact.blueprint(), artifact.bytes(), IfPublished::Refuse).unwrap();
            assert_eq!(sha256, artifact.sha256());
        }
    }

    #[test]
    fn what_is_published_is_handed_out_beside_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("new").join("library");
        put_all(&dir, &[artifact("mlp", 1.0), artifact("conv", 2.0)]);
        for (name, value) in [("mlp", 1.0), ("conv", 2.0)] {
            assert_eq!(fetch(&dir, name).unwrap(), artifact(name, value));
        }
        let refused = publish(&dir, &id("mlp"), artifact("mlp", 3.0).bytes(), IfPublished::Refuse).unwrap_err();
        assert!(matches!(refused, PublishError::Published { .. }), "{refused}");
        assert_eq!(fetch(&dir, "mlp").unwrap(), artifact("mlp", 1.0));
        publish(&dir, &id("mlp"), artifact("mlp", 3.0).bytes(), IfPublished::Replace).unwrap();
        assert_eq!(fetch(&dir, "mlp").unwrap(), artifact("mlp", 3.0));
        assert_eq!(fetch(&dir, "conv").unwrap(), artifact("conv", 2.0));
        let names: Vec<String> =
            fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert!(!names.iter().any(|name| name.contains(".new")), "{names:?}");
    }

    #[test]
    fn a_new_blueprint_that_is_interrupted_is_there_or_is_not_there() {
        for num_steps in 0..STEPS {
            let dir = tempfile::tempdir().unwrap();
            put_all(dir.path(), &[artifact("conv", 2.0)]);
            let error = interrupted(dir.path(), &artifact("mlp", 1.0), num_steps).unwrap_err();
            assert!(matches!(error, PublishError::Io { .. }), "{error}");
            assert_eq!(fetch(dir.path(), "conv").unwrap(), artifact("conv", 2.0), "after {num_steps} steps");
            match fetch(dir.path(), "mlp") {
                Ok(found) => assert!(num_steps >= 8 && found == artifact("mlp", 1.0), "after {num_steps} steps"),
                Err(error) => assert!(num_steps < 8 && matches!(error, StoreError::Missing), "{num_steps}: {error}"),
            }
            publish(dir.path(), &id("mlp"), artifact("mlp", 1.0).bytes(), IfPublished::Replace).unwrap();
            assert_eq!(fetch(dir.path(), "mlp").unwrap(), artifact("mlp", 1.0));
        }
    }

    #[test]
    fn a_replacement_that_is_interrupted_leaves_old_weights_new_weights_or_an_integrity_error() {
        for num_steps in 0..STEPS {
            let dir = tempfile::tempdir().unwrap();
            let (old, new) = (artifact("mlp", 1.0), artifact("mlp", 9.0));
            put_all(dir.path(), &[old.clone(), artifact("conv", 2.0)]);
            interrupted(dir.path(), &new, num_steps).unwrap_err();
            assert_eq!(fetch(dir.path(), "conv").unwrap(), artifact("conv", 2.0), "after {num_steps} steps");
            // The third step is the synced artifact; the eighth the synced manifest.
            match (num_steps, fetch(dir.path(), "mlp")) {
                (0..3, Ok(found)) => assert_eq!(found, old, "after {num_steps} steps"),
                (3..8, Err(StoreError::Integrity { expected, found })) => {
                    assert_eq!((expected, found), (old.sha256(), new.sha256()), "after {num_steps} steps");
                }
                (8.., Ok(found)) => assert_eq!(found, new, "after {num_steps} steps"),
                (_, found) => panic!("after {num_steps} steps: {found:?}"),
            }
            publish(dir.path(), &id("mlp"), new.bytes(), IfPublished::Replace).unwrap();
            assert_eq!(fetch(dir.path(), "mlp").unwrap(), new);
        }
        let dir = tempfile::tempdir().unwrap();
        assert!(interrupted(dir.path(), &artifact("mlp", 1.0), STEPS).is_ok(), "there is no step more");
    }

    #[test]
    fn what_no_seed_could_load_is_refused_and_nothing_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("library");
        let half = [0_u8; 2];
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F16, vec![1], &half).unwrap();
        let half = safetensors::serialize([("w", view)], None).unwrap();
        let double = 1.5_f64.to_le_bytes();
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F64, vec![1], &double).unwrap();
        let double = safetensors::serialize([("w", view)], None).unwrap();
        for (bytes, message) in [
            (&b"PK\x03\x04 an archive"[..], "the artifact is a zip archive: expected safetensors"),
            (b"", "the artifact is not valid safetensors"),
            (&half, "artifact tensor `w` has elements of f16: expected f32, f64 or bf16"),
            (&double, "artifact tensor `w` has elements of f64: expected f32"),
            (
                artifact("mlp", f32::NAN).bytes(),
                "artifact tensor `w` has the value NaN at 0: expected finite values of f32",
            ),
        ] {
            let error = publish(&library, &id("mlp"), bytes, IfPublished::Replace).unwrap_err();
            let mut texts = vec![error.to_string()];
            let mut cause = std::error::Error::source(&error);
            while let Some(error) = cause {
                texts.push(error.to_string());
                cause = error.source();
            }
            assert!(texts.iter().any(|text| text == message), "{texts:?}");
            assert!(!library.exists(), "{message}");
        }
    }

    #[test]
    fn a_manifest_that_is_not_valid_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(MANIFEST_FILE), "{\"mlp\": 3}").unwrap();
        let error = publish(dir.path(), &id("mlp"), artifact("mlp", 1.0).bytes(), IfPublished::Replace).unwrap_err();
        assert!(matches!(error, PublishError::Store(StoreError::Format(_))), "{error}");
        assert_eq!(fs::read(dir.path().join(MANIFEST_FILE)).unwrap(), b"{\"mlp\": 3}");
        assert!(!dir.path().join("mlp.safetensors").exists());
    }

    #[cfg(unix)]
    #[test]
    fn a_lock_that_leads_elsewhere_is_refused_and_what_it_leads_to_is_left_alone() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let target = outside.path().join("thesis");
        fs::write(&target, "content").unwrap();
        for target in [&target, &outside.path().join("nowhere")] {
            std::os::unix::fs::symlink(target, dir.path().join(LOCK_FILE)).unwrap();
            let error = publish(dir.path(), &id("mlp"), artifact("mlp", 1.0).bytes(), IfPublished::Refuse).unwrap_err();
            assert!(matches!(error, PublishError::Store(StoreError::Format(_))), "{error}");
            fs::remove_file(dir.path().join(LOCK_FILE)).unwrap();
        }
        assert_eq!(fs::read(&target).unwrap(), b"content");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        // What a file holds that is the lock is not looked at.
        fs::write(dir.path().join(LOCK_FILE), "content").unwrap();
        put_all(dir.path(), &[artifact("mlp", 1.0)]);
        assert_eq!(fs::read(dir.path().join(LOCK_FILE)).unwrap(), b"content");
    }

    #[test]
    fn folders_that_are_made_are_durable_before_anything_is_in_them() {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("new").join("library");
        let mut steps = Vec::new();
        let mlp = artifact("mlp", 1.0);
        publish_in_steps(&library, mlp.blueprint(), mlp.bytes(), IfPublished::Refuse, &mut |step| {
            steps.push((step, library.exists()));
            Ok(())
        })
        .unwrap();
        assert_eq!(steps[..3], [("folder synced", false), ("folder synced", true), ("made", true)]);
        let error = interrupted(&dir.path().join("other"), &mlp, 0).unwrap_err();
        assert!(matches!(error, PublishError::Io { .. }), "{error}");
        publish(dir.path().join("other"), &id("mlp"), mlp.bytes(), IfPublished::Refuse).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_parent_that_may_not_be_synced_is_no_hindrance() {
        use std::os::unix::fs::PermissionsExt as _;
        let parent = tempfile::tempdir().unwrap();
        fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o300)).unwrap();
        let library = parent.path().join("library");
        let put = || publish(&library, &id("mlp"), artifact("mlp", 1.0).bytes(), IfPublished::Replace);
        let results = [(); 2].map(|()| put());
        fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o700)).unwrap();
        results.into_iter().for_each(|result| result.map(drop).unwrap());
    }

    #[test]
    fn an_empty_path_is_the_current_folder() {
        make_folder(here(Some(Path::new(""))), &mut |_| panic!("nothing is made")).unwrap();
    }

    #[test]
    fn entries_of_those_who_publish_at_once_are_all_kept() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["a", "b", "c", "d", "e", "f"];
        std::thread::scope(|scope| {
            for name in names {
                let dir = dir.path();
                scope.spawn(move || put_all(dir, &[artifact(name, 1.0)]));
            }
        });
        let store = DirectoryStore::open(dir.path()).unwrap();
        assert_eq!(store.blueprints().map(BlueprintId::as_str).collect::<Vec<_>>(), names);
        assert!(names.iter().all(|name| fetch(dir.path(), name).is_ok()));
    }
}

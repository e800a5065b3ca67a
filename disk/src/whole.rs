//! Files that are written whole or not at all, and directories that stay.

use std::ffi::OsString;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::path::Path;

use crate::fs::{EntryKind, Fs};

/// Letters and digits that tell what is being written from what another process writes at the same time.
const NUM_RANDOM: usize = 6;

/// Writes a file durably: after a crash there is the old one or the new one. Only its owner can use it; a file that is there
/// keeps its permissions.
///
/// # Errors
/// When it cannot be written; then the old one is there, unless only its durability is in doubt.
pub fn replace_file(fs: &dyn Fs, path: &Path, content: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let temporary = loop {
        let mut beside = OsString::from(".");
        beside.push(name);
        beside.push(".");
        beside.push(random_name());
        let temporary = path.with_file_name(beside);
        match fs.write_synced(&temporary, content) {
            Ok(()) => break temporary,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                // A full disk should not stay full. It need not be there, and whoever locks the folder removes it.
                fs.remove_file(&temporary).ok();
                return Err(error);
            }
        }
    };
    let is_there = fs.kind(path).map(|kind| kind == Some(EntryKind::File));
    let put = is_there.and_then(|is_there| if is_there { fs.copy_mode(path, &temporary) } else { Ok(()) });
    if let Err(error) = put.and_then(|()| fs.rename(&temporary, path)) {
        fs.remove_file(&temporary).ok();
        return Err(error);
    }
    fs.sync_dir(folder_of(path))
}

/// Whether `name` is what [`replace_file`] of the file `of` leaves beside it when the process is killed: `.OF.` and six letters
/// or digits.
#[must_use]
pub fn is_left_over(name: &str, of: &str) -> bool {
    let random = name.strip_prefix('.').and_then(|rest| rest.strip_prefix(of)).and_then(|rest| rest.strip_prefix('.'));
    random.is_some_and(|random| random.len() == NUM_RANDOM && random.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// Makes `dir` and its missing ancestors, durably but where a parent may not be synced. What exists is taken as it is, a link to
/// a directory included; it is made durable too.
///
/// # Errors
/// When a directory cannot be looked at, made or made durable.
pub fn make_dirs(fs: &dyn Fs, dir: &Path) -> io::Result<()> {
    let parent = folder_of(dir);
    if fs.kind(dir)?.is_none() {
        make_dirs(fs, parent)?;
        match fs.create_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    // One that is there may be left by a process that ended between making and syncing. The root is in no directory.
    let synced = if dir.parent().is_some() { fs.sync_dir(parent) } else { Ok(()) };
    let may_not = [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem, io::ErrorKind::InvalidInput];
    synced.or_else(|error| if may_not.contains(&error.kind()) { Ok(()) } else { Err(error) })
}

/// The directory that holds `path`.
#[must_use]
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn random_name() -> String {
    // The keys of a fresh `RandomState` are random, which is all that is needed to avoid one another.
    let mut number = RandomState::new().build_hasher().finish();
    let mut digit = || {
        let digit = number % 36;
        number /= 36;
        char::from_digit(u32::try_from(digit).expect("below 36"), 36).expect("a digit below 36")
    };
    (0..NUM_RANDOM).map(|_| digit()).collect()
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::fs::StdFs;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("a file").permissions().mode() & 0o777
    }

    #[test]
    fn a_new_file_belongs_to_its_owner_alone_and_an_old_one_stays_as_it_was_opened_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.html");
        replace_file(&StdFs, &path, b"first").unwrap();
        assert_eq!(mode(&path), 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        replace_file(&StdFs, &path, b"second").unwrap();
        assert_eq!((mode(&path), fs::read(&path).unwrap()), (0o644, b"second".to_vec()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[cfg(feature = "testkit")]
    #[test]
    fn directories_are_durable_also_where_an_earlier_call_could_not_sync_them() {
        use std::sync::Arc;

        use crate::testkit::{Failure, FaultFs, SimFs, Which};

        let dir = Path::new("/a/b");
        for parent in ["", "a"] {
            let disk = Arc::new(SimFs::default());
            let which = Which::Named(format!("sync_dir {parent}"), 0);
            let faulty = FaultFs::failing_at(Arc::clone(&disk) as Arc<dyn Fs>, Failure::Once, which);
            assert!(make_dirs(&faulty, dir).is_err() && faulty.has_failed());
            make_dirs(&*disk, dir).unwrap();
            disk.record();
            disk.take_points().remove(0).for_each_state(|disk| {
                assert_eq!(disk.kind(dir).unwrap(), Some(EntryKind::Directory), "/{parent}");
            });
        }
    }

    #[test]
    fn a_directory_is_made_and_taken_also_where_its_parent_may_not_be_synced() {
        let dir = tempfile::tempdir().unwrap();
        let (parent, child) = (dir.path().join("parent"), dir.path().join("parent").join("child"));
        make_dirs(&StdFs, &parent).unwrap();
        fs::set_permissions(&parent, fs::Permissions::from_mode(0o300)).unwrap();
        let results = [(); 2].map(|()| make_dirs(&StdFs, &child));
        fs::set_permissions(&parent, fs::Permissions::from_mode(0o700)).unwrap();
        results.into_iter().for_each(Result::unwrap);
        // Not even the superuser can sync that one.
        #[cfg(target_os = "linux")]
        make_dirs(&StdFs, Path::new("/proc/self")).unwrap();
    }

    #[test]
    fn what_a_killed_writer_leaves_is_told_from_other_files() {
        let left = format!(".run.json.{}", random_name());
        assert!(is_left_over(&left, "run.json"), "{left}");
        for other in
            ["run.json", ".run.json", ".run.json.bak", ".run.json.abcde-", ".other.json.abcdef", "run.json.abcdef"]
        {
            assert!(!is_left_over(other, "run.json"), "{other}");
        }
        assert_ne!(random_name(), random_name());
    }
}

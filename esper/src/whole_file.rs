//! Files that are written whole or not at all, and that only their owner can use, as everything in a run folder.

use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use atomic_write_file::AtomicWriteFile;

/// Writes a file durably: after a crash there is the old one or the new one. A file that is there keeps its permissions.
pub(crate) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = AtomicWriteFile::options().mode(0o600).open(path)?;
    file.write_all(content)?;
    file.commit()
}

/// Whether `name` is what [`write`] of the file `of` leaves beside it when the process is killed: `.OF.` and six letters or
/// digits.
pub(crate) fn is_left_over(name: &str, of: &str) -> bool {
    let random = name.strip_prefix('.').and_then(|rest| rest.strip_prefix(of)).and_then(|rest| rest.strip_prefix('.'));
    random.is_some_and(|random| random.len() == 6 && random.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_new_file_belongs_to_its_owner_alone_and_an_old_one_stays_as_it_was_opened_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.html");
        write(&path, b"first").unwrap();
        assert_eq!(mode(&path), 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        write(&path, b"second").unwrap();
        assert_eq!((mode(&path), fs::read(&path).unwrap()), (0o644, b"second".to_vec()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_a_killed_writer_leaves_is_told_from_other_files() {
        let dir = tempfile::tempdir().unwrap();
        let unfinished = AtomicWriteFile::open(dir.path().join("run.json")).unwrap();
        let name = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().file_name().into_string().unwrap();
        drop(unfinished);
        assert!(is_left_over(&name, "run.json"), "{name}");
        for other in
            ["run.json", ".run.json", ".run.json.bak", ".run.json.abcde-", ".other.json.abcdef", "run.json.abcdef"]
        {
            assert!(!is_left_over(other, "run.json"), "{other}");
        }
    }
}

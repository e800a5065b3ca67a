//! Damaged files are kept under another name, so that the run can go on with what is readable.

use std::io;
use std::path::{Path, PathBuf};

use esper_disk::{Fs, folder_of};

/// Copies `path`, durably, to the first free name of `STEM.damaged-1.EXTENSION`, `STEM.damaged-2.EXTENSION`, … beside it, and
/// gives that name. The copy is readable and writable by its owner only; `path` is left as it is.
///
/// # Errors
/// When it cannot be copied; nothing is left behind then.
pub fn set_aside(fs: &dyn Fs, path: &Path) -> io::Result<PathBuf> {
    let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let (stem, extension) = (text(path.file_stem()), text(path.extension()));
    let bytes = fs.read(path, u64::MAX)?;
    let mut number = 1_u32;
    loop {
        let aside = path.with_file_name(format!("{stem}.damaged-{number}.{extension}"));
        match fs.write_synced(&aside, &bytes) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            written => {
                let durable = written.and_then(|()| fs.sync_dir(folder_of(path)));
                return durable.inspect_err(|_| _ = fs.remove_file(&aside)).map(|()| aside);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use std::sync::Arc;

    use esper_disk::StdFs;
    use esper_disk::testkit::{Failure, FaultFs, SimFs, Which};

    use super::*;

    #[test]
    fn a_copy_that_may_not_be_durable_is_not_left_behind() {
        let disk = Arc::new(SimFs::default());
        let path = Path::new("/metrics.jsonl");
        disk.write_synced(path, b"damage").unwrap();
        let sync = Which::Named("sync_dir ".to_owned(), 0);
        let fs = FaultFs::failing_at(Arc::clone(&disk) as Arc<dyn Fs>, Failure::Once, sync);
        assert!(set_aside(&fs, path).is_err() && fs.has_failed());
        assert_eq!(disk.list(Path::new("/")).unwrap(), ["metrics.jsonl"]);
    }

    #[test]
    fn every_copy_has_a_name_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        for number in 1..=3 {
            fs::write(&path, format!("damage {number}")).unwrap();
            let aside = set_aside(&StdFs, &path).unwrap();
            assert_eq!(aside, dir.path().join(format!("metrics.damaged-{number}.jsonl")));
            assert_eq!(fs::read_to_string(aside).unwrap(), format!("damage {number}"));
        }
        assert!(set_aside(&StdFs, &dir.path().join("absent.bin")).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4);
    }
}

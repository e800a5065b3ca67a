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
            Err(error) => {
                fs.remove_file(&aside).ok();
                return Err(error);
            }
            Ok(()) => return fs.sync_dir(folder_of(path)).map(|()| aside),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use esper_disk::StdFs;

    use super::*;

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

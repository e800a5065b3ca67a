//! Damaged files are kept under another name, so that the run can go on with what is readable.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::sink::private_options;

/// Copies `path`, durably, to the first free name of `STEM.damaged-1.EXTENSION`, `STEM.damaged-2.EXTENSION`, … beside it, and
/// gives that name. The copy is readable and writable by its owner only; `path` is left as it is.
///
/// # Errors
/// When it cannot be copied; nothing is left behind then.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let (stem, extension) = (text(path.file_stem()), text(path.extension()));
    let mut number = 1_u32;
    loop {
        let aside = path.with_file_name(format!("{stem}.damaged-{number}.{extension}"));
        match private_options().write(true).create_new(true).open(&aside) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error),
            Ok(mut copy) => {
                let copied = File::open(path).and_then(|mut from| io::copy(&mut from, &mut copy));
                if let Err(error) = copied.and_then(|_| copy.sync_all()) {
                    fs::remove_file(&aside).ok();
                    return Err(error);
                }
                return Ok(aside);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_copy_has_a_name_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        for number in 1..=3 {
            fs::write(&path, format!("damage {number}")).unwrap();
            let aside = set_aside(&path).unwrap();
            assert_eq!(aside, dir.path().join(format!("metrics.damaged-{number}.jsonl")));
            assert_eq!(fs::read_to_string(aside).unwrap(), format!("damage {number}"));
        }
        assert!(set_aside(&dir.path().join("absent.bin")).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4);
    }
}

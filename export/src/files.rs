//! Files of an export, read with a limit.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use crate::error::Error;

/// The bytes of a file of the folder, at most `limit`.
pub(crate) fn read(dir: &Path, file: &'static str, limit: u64) -> Result<Vec<u8>, Error> {
    let path = dir.join(file);
    let opened = File::open(&path).and_then(|opened| Ok((opened.metadata()?.is_file(), opened)));
    let opened = match opened {
        Ok((true, opened)) => opened,
        Ok((false, _)) => {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "it is no file");
            return Err(Error::Read { path, source });
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(Error::NotAnExport { dir: dir.to_owned(), file });
        }
        Err(source) => return Err(Error::Read { path, source }),
    };
    let mut bytes = Vec::new();
    // One byte more than there may be shows that there are more, whatever the system says of the size.
    match opened.take(limit.saturating_add(1)).read_to_end(&mut bytes) {
        Err(source) => Err(Error::Read { path, source }),
        Ok(_) if bytes.len() as u64 > limit => {
            Err(Error::Size { path, found: bytes.len() as u64, expected: format!("at most {limit}") })
        }
        Ok(_) => Ok(bytes),
    }
}

//! Reads a file, plain or gzip, into memory with an upper limit.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use sha2::{Digest, Sha256};

use super::Error;

/// Unpacks all of a gzip stream.
///
/// # Errors
/// [`Error::TooLarge`] when more than `limit_bytes` come out (no more than that is ever held), [`Error::Unpack`] when
/// the stream is damaged, cut short or followed by anything that is not gzip.
pub(super) fn gunzip(packed: impl Read, place: &str, limit_bytes: u64) -> Result<Vec<u8>, Error> {
    read_all(MultiGzDecoder::new(packed), place, limit_bytes)
}

/// Reads all of a stream.
///
/// # Errors
/// [`Error::TooLarge`] when more than `limit_bytes` come out, [`Error::Unpack`] when it is damaged or cut short.
pub(super) fn read_all(source: impl Read, place: &str, limit_bytes: u64) -> Result<Vec<u8>, Error> {
    read_limited(source, place, limit_bytes)
        .map_err(|error| error.into_error(|source| Error::Unpack { place: place.into(), source }))
}

/// Reads a file to its end, unpacking it when its name ends in `.gz`.
///
/// # Errors
/// As [`gunzip`], and [`Error::Read`].
pub(super) fn read_file(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, Error> {
    let place = path.display().to_string();
    let failed = |source| Error::Read { path: path.into(), source };
    let file = File::open(path).map_err(failed)?;
    if is_gzip_name(path) {
        return gunzip(BufReader::new(file), &place, limit_bytes);
    }
    read_limited(file, &place, limit_bytes).map_err(|error| error.into_error(failed))
}

/// Whether the name of a file says that it is compressed.
pub(super) fn is_gzip_name(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"))
}

/// The sha256 sum of `bytes` in hexadecimal.
pub(super) fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares the sum of `bytes` with the published one.
///
/// # Errors
/// [`Error::WrongSum`] when they differ.
pub(super) fn check_sum(bytes: &[u8], expected: &str, place: &str) -> Result<(), Error> {
    let found = sha256_hex(bytes);
    if found == expected {
        Ok(())
    } else {
        Err(Error::WrongSum { place: place.into(), expected: expected.into(), found })
    }
}

enum Limited {
    TooLarge(Error),
    Io(io::Error),
}

impl Limited {
    fn into_error(self, wrap: impl FnOnce(io::Error) -> Error) -> Error {
        match self {
            Self::TooLarge(error) => error,
            Self::Io(source) => wrap(source),
        }
    }
}

fn read_limited(source: impl Read, place: &str, limit_bytes: u64) -> Result<Vec<u8>, Limited> {
    let mut bytes = Vec::new();
    // One byte more than allowed tells "exactly at the limit" from "beyond it".
    let read = source.take(limit_bytes.saturating_add(1)).read_to_end(&mut bytes).map_err(Limited::Io)?;
    if u64::try_from(read).is_ok_and(|read| read <= limit_bytes) {
        Ok(bytes)
    } else {
        Err(Limited::TooLarge(Error::TooLarge { place: place.into(), limit_bytes }))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    pub(crate) fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn content_up_to_the_limit_passes_and_one_byte_more_does_not() {
        let packed = gzip(&[7; 1000]);
        assert_eq!(gunzip(&packed[..], "x", 1000).unwrap(), [7; 1000]);
        let error = gunzip(&packed[..], "x", 999).unwrap_err();
        assert_eq!(error.to_string(), "x: larger than 999 bytes after unpacking");
    }

    #[test]
    fn a_bomb_is_stopped_at_the_limit() {
        let bomb = gzip(&vec![0; 64 << 20]);
        assert!(bomb.len() < 1 << 20, "the bomb must be small: {}", bomb.len());
        let mut unpacked = 0;
        let counted = CountReads { inner: &bomb[..], read: &mut unpacked };
        assert!(matches!(gunzip(counted, "bomb", 1 << 16), Err(Error::TooLarge { limit_bytes: 65536, .. })));
        assert!(unpacked < bomb.len() / 2, "read {unpacked} of {} packed bytes before stopping", bomb.len());
    }

    #[test]
    fn every_cut_and_any_trailing_byte_is_an_error() {
        let packed = gzip(b"0,1,2\n3,4,5\n");
        for length in 1..packed.len() {
            assert!(matches!(gunzip(&packed[..length], "x", 100), Err(Error::Unpack { .. })), "cut at {length}");
        }
        let mut longer = packed;
        longer.push(1);
        assert!(matches!(gunzip(&longer[..], "x", 100), Err(Error::Unpack { .. })));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read_file(Path::new("no/such/file.csv"), 10).unwrap_err();
        assert_eq!(error.to_string(), "cannot read no/such/file.csv");
    }

    struct CountReads<'a> {
        inner: &'a [u8],
        read: &'a mut usize,
    }

    impl Read for CountReads<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let size = buffer.len().min(512);
            let count = self.inner.read(&mut buffer[..size])?;
            *self.read += count;
            Ok(count)
        }
    }
}

//! Reads a file, plain or gzip, into memory with an upper limit.

use std::fs::{self, File, FileType};
use std::io::{self, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use sha2::{Digest, Sha256};

use super::Error;

/// What packed content may come to whatever its size is, and how many times its size it may come to: files of measurements, texts
/// and images come to 20 times, what was made to fill a memory to 1000.
const UNPACKED_BYTES: u64 = 128 << 20;
const UNPACKED_TIMES: u64 = 200;
/// First bytes of a file, which hold the longest header of an array.
const HEAD_BYTES: u64 = 68 << 10;

/// Unpacks all of a gzip stream.
///
/// # Errors
/// [`Error::TooLarge`] when more than `limit_bytes` come out (no more than that is ever held), [`Error::Unpack`] when
/// the stream is damaged, cut short or followed by anything that is not gzip.
pub(super) fn gunzip(packed: impl Read, place: &str, limit_bytes: u64) -> Result<Vec<u8>, Error> {
    let limited = Limited { place: place.into(), limit_bytes, is_packed: true };
    limited.read(MultiGzDecoder::new(packed))
}

/// Reads a file to its end, unpacking it when its name ends in `.gz`.
///
/// # Errors
/// As [`gunzip`], and [`Error::Read`]; [`Error::Content`] for what is no file, or longer than the limit.
pub(super) fn read_file(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, Error> {
    let (source, limited) = open(path, limit_bytes)?;
    limited.read(source)
}

/// As [`read_file`], of a file whose first bytes say how long it is: no more is read than that and the byte behind it. Where `claim`
/// cannot tell the length, the first bytes are all that is read.
///
/// # Errors
/// As [`read_file`].
pub(super) fn read_claimed(
    path: &Path,
    limit_bytes: u64,
    claim: impl Fn(&[u8]) -> Option<u64>,
) -> Result<Vec<u8>, Error> {
    let (source, limited) = open(path, limit_bytes)?;
    limited.read_claimed(source, claim)
}

/// Opens a file to be read from its start, unpacked where its name ends in `.gz`.
///
/// # Errors
/// [`Error::Read`]; [`Error::Content`] for what is no file, or longer than the limit.
fn open(path: &Path, limit_bytes: u64) -> Result<(Box<dyn Read>, Limited), Error> {
    let (file, num_bytes) = open_plain(path, limit_bytes)?;
    let place = path.display().to_string();
    if is_gzip_name(path) {
        let source = MultiGzDecoder::new(BufReader::new(file));
        return Ok((Box::new(source), Limited::packed(place, num_bytes, limit_bytes)));
    }
    Ok((Box::new(file), Limited { place, limit_bytes, is_packed: false }))
}

/// Opens a file, and says how long it is.
///
/// # Errors
/// [`Error::Read`]; [`Error::Content`] for what is no file, or longer than the limit.
pub(super) fn open_plain(path: &Path, limit_bytes: u64) -> Result<(File, u64), Error> {
    let failed = |source| Error::Read { path: path.into(), source };
    // Before it is opened: that waits for whoever writes into a pipe.
    let metadata = fs::metadata(path).map_err(failed)?;
    expect_file(path, metadata.file_type())?;
    if metadata.len() > limit_bytes {
        let (found, expected) = (format!("{} bytes", metadata.len()), format!("at most {limit_bytes}"));
        return Err(Error::Content { place: path.display().to_string(), found, expected });
    }
    Ok((File::open(path).map_err(failed)?, metadata.len()))
}

/// Data are read more than once, and their length is asked for: a pipe has none.
///
/// # Errors
/// [`Error::Content`] for what is no regular file.
pub(super) fn expect_file(path: &Path, found: FileType) -> Result<(), Error> {
    if found.is_file() {
        return Ok(());
    }
    let found = if found.is_dir() { "a folder" } else { "a pipe, a socket or a device" }.to_owned();
    Err(Error::Content { place: path.display().to_string(), found, expected: "a regular file".into() })
}

/// What so many packed bytes may come to.
pub(super) fn unpacked_limit(num_bytes: u64) -> u64 {
    num_bytes.saturating_mul(UNPACKED_TIMES).max(UNPACKED_BYTES)
}

/// What is read of a stream at most.
#[derive(Debug)]
pub(super) struct Limited {
    place: String,
    limit_bytes: u64,
    is_packed: bool,
}

impl Limited {
    /// What comes out of so many packed bytes.
    pub(super) fn packed(place: String, num_bytes: u64, limit_bytes: u64) -> Self {
        Self { place, limit_bytes: unpacked_limit(num_bytes).min(limit_bytes), is_packed: true }
    }

    /// As [`read_claimed`], of a stream.
    pub(super) fn read_claimed(
        &self,
        mut source: impl Read,
        claim: impl Fn(&[u8]) -> Option<u64>,
    ) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        source.by_ref().take(HEAD_BYTES).read_to_end(&mut bytes).map_err(|error| self.failed(error))?;
        let claimed = claim(&bytes).unwrap_or(0);
        if claimed > self.limit_bytes {
            return Err(self.too_large());
        }
        let more = (claimed + 1).saturating_sub(bytes.len() as u64);
        source.take(more).read_to_end(&mut bytes).map_err(|error| self.failed(error))?;
        Ok(bytes)
    }

    fn read(&self, source: impl Read) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        // One byte more than allowed tells "exactly at the limit" from "beyond it".
        let source = source.take(self.limit_bytes.saturating_add(1)).read_to_end(&mut bytes);
        let read = source.map_err(|error| self.failed(error))?;
        if u64::try_from(read).is_ok_and(|read| read <= self.limit_bytes) { Ok(bytes) } else { Err(self.too_large()) }
    }

    fn too_large(&self) -> Error {
        Error::TooLarge { place: self.place.clone(), limit_bytes: self.limit_bytes }
    }

    fn failed(&self, source: io::Error) -> Error {
        if self.is_packed {
            Error::Unpack { place: self.place.clone(), source }
        } else {
            Error::Read { path: self.place.clone().into(), source }
        }
    }
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
        assert_eq!(error.to_string(), "x: larger than 999 bytes after unpacking, the most that is accepted");
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

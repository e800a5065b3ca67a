//! Packets as frames in a file, one after the other.

use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use esper_disk::{Fs, Open, ReadFrom, StdFs};

use crate::aside::set_aside;
use crate::codec::{FrameError, encode_frame};
use crate::error::Error;
use crate::packet::Packet;
use crate::reader::{FrameReader, TornTail};
use crate::sink::Sink;
use crate::sink::append::{AppendFile, older};

/// Appends frames to a file.
#[derive(Debug)]
pub struct FrameSink {
    file: AppendFile,
    last_sequence: Option<u64>,
    repaired: Option<TornTail>,
}

impl FrameSink {
    /// Opens `path` for appending, or creates it. All frames in it are verified first. An incomplete frame at the end,
    /// or an end of nothing but zeros, is what a stopped writer or machine leaves behind: it is cut off and reported
    /// ([`FrameSink::repaired`]). A file with a damaged frame is set aside with a warning ([`set_aside`]): appending after the
    /// frame would make the new ones unreadable. In its place stays what can be read, frames after the damage included.
    ///
    /// # Errors
    /// [`Error::InUse`] when another writer has the file, [`Error::File`] when a frame has a version or kind that this build
    /// does not read. [`Error::Io`] for everything else.
    pub fn append(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::append_on(Arc::new(StdFs), path)
    }

    /// As [`append`](Self::append), on another file system.
    ///
    /// # Errors
    /// As there.
    pub fn append_on(fs: Arc<dyn Fs>, path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let mut file = AppendFile::open(fs, path)?;
        let mut last_sequence = None;
        let repaired = match scan(&file, &mut last_sequence) {
            Err(Error::Frame { offset, source }) if source.is_damage() => {
                recover(&mut file, offset, &source, &mut last_sequence)?;
                None
            }
            scanned => scanned.map_err(Error::file(path))?,
        };
        if let Some(torn) = repaired {
            file.truncate(torn.offset)?;
            let (offset, bytes) = (torn.offset, torn.bytes);
            tracing::warn!(path = %path.display(), offset, bytes, "cut off an incomplete frame");
        }
        // A file that was just begun: the numbers go on after the full one.
        let last_sequence = last_sequence.or_else(|| last_of_older(&file));
        Ok(Self { file, last_sequence, repaired })
    }

    /// The same with a file of at most `bytes`, and one full file kept beside it, as `packets.1.bin` beside `packets.bin`. Together
    /// they have at most twice as much; a packet that is larger has a file to itself.
    #[must_use]
    pub fn with_limit(mut self, bytes: u64) -> Self {
        self.file.limit(bytes);
        self
    }

    /// What was cut off when the file was opened.
    #[must_use]
    pub fn repaired(&self) -> Option<TornTail> {
        self.repaired
    }
}

impl Sink for FrameSink {
    fn name(&self) -> &'static str {
        "frames"
    }

    fn write(&mut self, packet: &Packet) -> Result<(), Error> {
        let sequence = packet.sequence;
        self.file.append(&encode_frame(packet).map_err(|source| Error::Encode { sequence, source })?)?;
        self.last_sequence = Some(sequence);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.file.sync()
    }

    fn last_sequence(&self) -> Option<u64> {
        self.last_sequence
    }
}

/// Sequence number of the last frame of the full file before this one; absent without one.
fn last_of_older(file: &AppendFile) -> Option<u64> {
    let older = file.fs().open(&older(file.path()), Open::Existing).ok()?;
    let total_bytes = older.size().ok()?;
    let packets = FrameReader::new(BufReader::new(ReadFrom::new(&*older, 0)), total_bytes);
    packets.filter_map(Result::ok).last().map(|packet| packet.sequence)
}

/// Verifies all frames and notes the sequence number of the last one.
fn scan(file: &AppendFile, last_sequence: &mut Option<u64>) -> Result<Option<TornTail>, Error> {
    for packet in FrameReader::new(BufReader::new(ReadFrom::new(file.file(), 0)), file.len()) {
        match packet {
            Ok(packet) => *last_sequence = Some(packet.sequence),
            Err(Error::TornTail(torn)) => return Ok(Some(torn)),
            Err(Error::Frame { offset, source: FrameError::Magic }) if is_zero_from(file, offset)? => {
                return Ok(Some(TornTail { offset, bytes: file.len() - offset }));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Sets the file aside, and takes out of it what is no frame from byte `offset` on, where one is damaged. A frame after the
/// damage is believed because its header and its payload verify; it is encoded anew, which gives the same bytes.
fn recover(
    file: &mut AppendFile,
    offset: u64,
    reason: &FrameError,
    last_sequence: &mut Option<u64>,
) -> Result<(), Error> {
    let path = file.path().to_owned();
    let aside = set_aside(file.fs(), &path).map_err(Error::io("set aside", &path))?;
    let mut bytes = Vec::new();
    ReadFrom::new(file.file(), offset).read_to_end(&mut bytes).map_err(Error::io("read", &path))?;
    file.truncate(offset)?;
    let mut num_found = 0;
    // What is damaged may announce more than there is.
    let packets = FrameReader::new(bytes.as_slice(), bytes.len() as u64).through_torn();
    for packet in packets.filter_map(Result::ok) {
        let sequence = packet.sequence;
        file.append(&encode_frame(&packet).map_err(|source| Error::Encode { sequence, source })?)?;
        *last_sequence = (*last_sequence).max(Some(sequence));
        num_found += 1;
    }
    tracing::warn!(
        path = %path.display(), offset, %reason, aside = %aside.display(), num_found,
        "a frame is damaged: the file is set aside, and the frames that can be read stay"
    );
    Ok(())
}

fn is_zero_from(file: &AppendFile, offset: u64) -> Result<bool, Error> {
    let zeros = || -> io::Result<bool> {
        for byte in BufReader::new(ReadFrom::new(file.file(), offset)).bytes() {
            if byte? != 0 {
                return Ok(false);
            }
        }
        Ok(true)
    };
    zeros().map_err(Error::io("read", file.path()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use leyline::error::{Error as _, ErrorKind};

    use super::*;
    use crate::packet::tests::full_packet;

    fn packet(sequence: u64) -> Packet {
        Packet { sequence, ..full_packet() }
    }

    fn sequences(path: &Path) -> Vec<u64> {
        FrameReader::open(path).unwrap().map(|packet| packet.unwrap().sequence).collect()
    }

    #[test]
    fn a_file_cut_anywhere_is_repaired_and_appended_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("packets.bin");
        let frame_bytes = encode_frame(&packet(1)).unwrap().len();
        let bytes = [encode_frame(&packet(1)).unwrap(), encode_frame(&packet(2)).unwrap()].concat();
        for cut in frame_bytes..bytes.len() {
            fs::write(&path, &bytes[..cut]).unwrap();
            let mut sink = FrameSink::append(&path).unwrap();
            let lost = (cut > frame_bytes).then_some((frame_bytes as u64, (cut - frame_bytes) as u64));
            assert_eq!(sink.repaired().map(|torn| (torn.offset, torn.bytes)), lost);
            assert_eq!(sink.last_sequence(), Some(1));
            sink.write(&packet(3)).unwrap();
            assert_eq!(sequences(&path), [1, 3], "cut at {cut}");
        }
    }

    #[test]
    fn numbers_go_on_after_a_full_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("packets.bin");
        let mut sink = FrameSink::append(&path).unwrap().with_limit(1);
        for sequence in 1..=3 {
            sink.write(&Packet { sequence, ..full_packet() }).unwrap();
        }
        drop(sink);
        assert_eq!(FrameSink::append(&path).unwrap().last_sequence(), Some(3));
        // Stopped after the full file was moved, and before anything was written.
        fs::write(&path, b"").unwrap();
        assert_eq!(FrameSink::append(&path).unwrap().last_sequence(), Some(2));
        fs::remove_file(older(&path)).unwrap();
        assert_eq!(FrameSink::append(&path).unwrap().last_sequence(), None);
    }

    #[test]
    fn an_end_of_zeros_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("packets.bin");
        let frame = encode_frame(&packet(1)).unwrap();
        fs::write(&path, [frame.clone(), vec![0; 4096]].concat()).unwrap();
        let mut sink = FrameSink::append(&path).unwrap();
        assert_eq!(sink.repaired(), Some(TornTail { offset: frame.len() as u64, bytes: 4096 }));
        sink.write(&packet(2)).unwrap();
        assert_eq!(sequences(&path), [1, 2]);
    }

    /// The only file beside `packets.bin`, which is removed.
    fn aside(dir: &Path) -> Vec<u8> {
        let path = dir.join("packets.damaged-1.bin");
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(fs::read_dir(dir).unwrap().count(), 1);
        bytes
    }

    #[test]
    fn a_file_that_is_damaged_anywhere_is_set_aside_and_loses_the_damaged_frame_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("packets.bin");
        let frame_bytes = encode_frame(&packet(1)).unwrap().len();
        let whole = [1, 2, 3].map(|sequence| encode_frame(&packet(sequence)).unwrap()).concat();
        // Not every one, for each is made durable.
        for at in (0..whole.len()).step_by(11) {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            fs::write(&path, &bytes).unwrap();
            let mut sink = FrameSink::append(&path).unwrap();
            let mut left: Vec<u64> = vec![1, 2, 3];
            left.remove(at / frame_bytes);
            assert_eq!(sink.last_sequence(), left.last().copied(), "byte {at}");
            sink.write(&packet(4)).unwrap();
            left.push(4);
            assert_eq!(sequences(&path), left, "byte {at}");
            assert_eq!(aside(dir.path()), bytes, "byte {at}");
        }
    }

    #[test]
    fn damage_of_any_length_before_a_torn_end_is_recovered_from() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("packets.bin");
        let frames = [1, 2, 3].map(|sequence| encode_frame(&packet(sequence)).unwrap());
        for damage in
            [&b""[..], b"E", b"ESPRTELM", &[0; 100], &[b"ESPRTELM".as_slice(), &[7; 80]].concat(), &frames[1][..90]]
        {
            let bytes = [&frames[0], damage, &frames[2], &frames[0][..70]].concat();
            fs::write(&path, &bytes).unwrap();
            let mut sink = FrameSink::append(&path).unwrap();
            sink.write(&packet(4)).unwrap();
            assert_eq!(sequences(&path), [1, 3, 4], "{damage:?}");
            if !damage.is_empty() {
                assert_eq!(aside(dir.path()), bytes, "{damage:?}");
            }
        }
    }

    #[test]
    fn frames_of_another_version_are_refused_and_left_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("packets.bin");
        let mut bytes = encode_frame(&packet(1)).unwrap();
        bytes[8] = 9;
        let checksum = crc32c::crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&checksum.to_le_bytes());
        fs::write(&path, &bytes).unwrap();
        let error = FrameSink::append(&path).unwrap_err();
        assert!(matches!(&error, Error::File { source, .. } if matches!(**source, Error::Frame { offset: 0, .. })));
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(fs::read(&path).unwrap(), bytes);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_packet_that_breaks_a_rule_is_refused_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("packets.bin");
        let mut sink = FrameSink::append(&path).unwrap();
        assert!(sink.write(&packet(0)).is_err());
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        assert_eq!(sink.last_sequence(), None);
    }
}

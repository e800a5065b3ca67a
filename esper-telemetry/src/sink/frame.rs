//! Packets as frames in a file, one after the other.

use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use crate::codec::{FrameError, encode_frame};
use crate::error::Error;
use crate::packet::Packet;
use crate::reader::{FrameReader, TornTail};
use crate::sink::Sink;
use crate::sink::append::AppendFile;

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
    /// ([`FrameSink::repaired`]).
    ///
    /// # Errors
    /// [`Error::InUse`] when another writer has the file, [`Error::File`] when a frame is damaged: appending after
    /// it would make the new frames unreadable. [`Error::Io`] for everything else.
    pub fn append(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let mut file = AppendFile::open(path)?;
        let (last_sequence, repaired) = scan(&file).map_err(Error::file(path))?;
        if let Some(torn) = repaired {
            file.truncate(torn.offset)?;
            let (offset, bytes) = (torn.offset, torn.bytes);
            tracing::warn!(path = %path.display(), offset, bytes, "cut off an incomplete frame");
        }
        Ok(Self { file, last_sequence, repaired })
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

fn scan(file: &AppendFile) -> Result<(Option<u64>, Option<TornTail>), Error> {
    let mut last_sequence = None;
    for packet in FrameReader::new(BufReader::new(file.file()), file.len()) {
        match packet {
            Ok(packet) => last_sequence = Some(packet.sequence),
            Err(Error::TornTail(torn)) => return Ok((last_sequence, Some(torn))),
            Err(Error::Frame { offset, source: FrameError::Magic }) if is_zero_from(file, offset)? => {
                return Ok((last_sequence, Some(TornTail { offset, bytes: file.len() - offset })));
            }
            Err(error) => return Err(error),
        }
    }
    Ok((last_sequence, None))
}

fn is_zero_from(file: &AppendFile, offset: u64) -> Result<bool, Error> {
    let zeros = || -> io::Result<bool> {
        let mut input = file.file();
        input.seek(SeekFrom::Start(offset))?;
        for byte in BufReader::new(input).bytes() {
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

    #[test]
    fn damage_before_the_end_is_refused_and_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("packets.bin");
        let mut bytes = [encode_frame(&packet(1)).unwrap(), encode_frame(&packet(2)).unwrap()].concat();
        bytes[100] ^= 4;
        fs::write(&path, &bytes).unwrap();
        let error = FrameSink::append(&path).unwrap_err();
        assert!(matches!(&error, Error::File { source, .. } if matches!(**source, Error::Frame { offset: 0, .. })));
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(fs::read(&path).unwrap(), bytes);
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

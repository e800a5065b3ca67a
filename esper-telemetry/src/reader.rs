//! Reading a sequence of frames from a file or any other stream.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use crate::codec::{HEADER_BYTES, Header};
use crate::error::Error;
pub use crate::error::TornTail;
use crate::packet::Packet;

/// Iterates over the packets of a stream. Ends after the first error: what follows a damaged frame cannot be found
/// again with certainty.
///
/// A frame that is cut off by the end of the stream is [`Error::TornTail`]; everything else that is not a packet is
/// [`Error::Frame`]. Both carry the offset of the frame.
#[derive(Debug)]
pub struct FrameReader<R> {
    input: R,
    total_bytes: u64,
    offset: u64,
    done: bool,
}

impl FrameReader<BufReader<File>> {
    /// Reads `path` as long as it is now.
    ///
    /// # Errors
    /// [`Error::Io`] when the file cannot be opened.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let total_bytes = file.metadata().map_err(Error::io("inspect", path))?.len();
        Ok(Self::new(BufReader::new(file), total_bytes))
    }
}

impl<R: Read> FrameReader<R> {
    /// Reads the first `total_bytes` of `input`. A frame that claims more is torn, and nothing is allocated for it.
    pub fn new(input: R, total_bytes: u64) -> Self {
        Self { input, total_bytes, offset: 0, done: false }
    }

    /// Where the next frame starts; after an error, where the frame in question starts.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    fn read_frame(&mut self) -> Result<Packet, Error> {
        let offset = self.offset;
        let left = self.total_bytes - offset;
        let torn = Error::TornTail(TornTail { offset, bytes: left });
        let mut bytes = [0; HEADER_BYTES];
        if left < bytes.len() as u64 {
            return Err(torn);
        }
        self.fill(&mut bytes)?;
        let header = Header::parse(&bytes).map_err(|source| Error::Frame { offset, source })?;
        let frame_bytes = (HEADER_BYTES + header.payload_bytes) as u64;
        if left < frame_bytes {
            return Err(torn);
        }
        let mut payload = vec![0; header.payload_bytes];
        self.fill(&mut payload)?;
        let packet = header.open(&payload).map_err(|source| Error::Frame { offset, source })?;
        self.offset += frame_bytes;
        Ok(packet)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        let (offset, left) = (self.offset, self.total_bytes - self.offset);
        self.input.read_exact(bytes).map_err(|source| match source.kind() {
            // The stream is shorter than was announced.
            io::ErrorKind::UnexpectedEof => Error::TornTail(TornTail { offset, bytes: left }),
            _ => Error::Read { offset, source },
        })
    }
}

impl<R: Read> Iterator for FrameReader<R> {
    type Item = Result<Packet, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done || self.offset >= self.total_bytes {
            return None;
        }
        let frame = self.read_frame();
        self.done = frame.is_err();
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{FrameError, encode_frame};
    use crate::packet::tests::full_packet;

    fn stream(num_packets: u64) -> (Vec<u8>, Vec<u64>) {
        let mut bytes = Vec::new();
        let mut ends = vec![0];
        for sequence in 1..=num_packets {
            bytes.extend(encode_frame(&Packet { sequence, ..full_packet() }).unwrap());
            ends.push(bytes.len() as u64);
        }
        (bytes, ends)
    }

    fn read(bytes: &[u8]) -> (Vec<u64>, Option<Error>) {
        let mut packets = Vec::new();
        for packet in FrameReader::new(bytes, bytes.len() as u64) {
            match packet {
                Ok(packet) => packets.push(packet.sequence),
                Err(error) => return (packets, Some(error)),
            }
        }
        (packets, None)
    }

    #[test]
    fn a_stream_cut_anywhere_gives_the_whole_frames_and_names_the_torn_one() {
        let (bytes, ends) = stream(3);
        for cut in 0..=bytes.len() {
            let whole = ends.iter().filter(|&&end| end > 0 && end <= cut as u64).count();
            let (packets, error) = read(&bytes[..cut]);
            assert_eq!(packets.len(), whole, "cut at {cut}");
            let rest = cut as u64 - ends[whole];
            match error {
                None => assert_eq!(rest, 0, "cut at {cut}"),
                Some(Error::TornTail(TornTail { offset, bytes })) => assert_eq!((offset, bytes), (ends[whole], rest)),
                Some(error) => panic!("cut at {cut}: {error}"),
            }
        }
    }

    #[test]
    fn a_damaged_frame_ends_the_iteration_with_its_offset() {
        let (mut bytes, ends) = stream(3);
        bytes[usize::try_from(ends[1]).unwrap() + HEADER_BYTES] ^= 1;
        let mut reader = FrameReader::new(bytes.as_slice(), bytes.len() as u64);
        assert_eq!(reader.next().unwrap().unwrap().sequence, 1);
        match reader.next().unwrap().unwrap_err() {
            Error::Frame { offset, source: FrameError::PayloadDigest } => assert_eq!(offset, ends[1]),
            error => panic!("{error}"),
        }
        assert!(reader.next().is_none());
        assert_eq!(reader.offset(), ends[1]);
    }

    #[test]
    fn a_stream_shorter_than_announced_is_torn() {
        let (bytes, _) = stream(1);
        let mut reader = FrameReader::new(&bytes[..bytes.len() - 1], bytes.len() as u64);
        assert!(matches!(reader.next(), Some(Err(Error::TornTail(TornTail { offset: 0, .. })))));
    }
}

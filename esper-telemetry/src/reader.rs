//! Reading a sequence of frames from a file or any other stream.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use crate::codec::{FrameError, HEADER_BYTES, Header, MAGIC};
use crate::error::Error;
pub use crate::error::TornTail;
use crate::packet::Packet;

/// As much is read at once, where there is more.
const CHUNK_BYTES: usize = 1 << 16;

/// So often at most the bytes of a stream are hashed for headers that lie about what follows; then what they announce is passed over, with
/// whatever is in it.
const MAX_IN_VAIN: u64 = 8;

/// Iterates over the packets of a stream, and goes on behind a frame that is damaged.
///
/// A frame that is cut off by the end of the stream is [`Error::TornTail`], and the end; everything else that is not a packet is
/// [`Error::Frame`], once, and what follows is skipped up to the next header that verifies. Both carry the offset of the frame.
#[derive(Debug)]
pub struct FrameReader<R> {
    input: R,
    total_bytes: u64,
    offset: u64,
    /// What was read, of which so many bytes were passed over: the rest begins at the offset.
    ahead: Vec<u8>,
    num_passed: usize,
    is_lost: bool,
    skipped_bytes: u64,
    /// Bytes of payloads that did not verify.
    hashed_in_vain: u64,
    /// Bytes of the frame that did not verify.
    announced: usize,
    /// Whether a frame that is cut off is the end.
    ends_where_torn: bool,
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
        let ahead = Vec::new();
        Self {
            input,
            total_bytes,
            offset: 0,
            ahead,
            num_passed: 0,
            is_lost: false,
            skipped_bytes: 0,
            hashed_in_vain: 0,
            announced: 0,
            ends_where_torn: true,
            done: false,
        }
    }

    /// Takes a frame that is cut off for damaged: what follows it is looked for as well.
    pub(crate) fn through_torn(mut self) -> Self {
        self.ends_where_torn = false;
        self
    }

    /// Where the next frame starts; after an error, where the frame in question starts.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes so far that are no packet's: from the start of each damaged frame to the next header that verifies.
    #[must_use]
    pub fn skipped_bytes(&self) -> u64 {
        self.skipped_bytes
    }

    fn read_frame(&mut self) -> Result<Packet, Error> {
        let offset = self.offset;
        let header = self.header()?.map_err(|source| Error::Frame { offset, source })?;
        let frame_bytes = HEADER_BYTES + header.payload_bytes;
        let payload = &self.fill(frame_bytes)?[HEADER_BYTES..frame_bytes];
        match header.open(payload) {
            Ok(packet) => {
                self.pass(frame_bytes);
                Ok(packet)
            }
            Err(source) => {
                self.hashed_in_vain += header.payload_bytes as u64;
                self.announced = frame_bytes;
                Err(Error::Frame { offset, source })
            }
        }
    }

    fn header(&mut self) -> Result<Result<Header, FrameError>, Error> {
        let bytes = self.fill(HEADER_BYTES)?;
        Ok(Header::parse(bytes.first_chunk().expect("as many bytes as a header has")))
    }

    /// Passes over the damaged frame, up to what is a header; to the end where there is none.
    fn find_header(&mut self) -> Result<(), Error> {
        let start = self.offset;
        let announced = std::mem::take(&mut self.announced);
        let is_passed_over = self.hashed_in_vain > MAX_IN_VAIN.saturating_mul(self.total_bytes);
        self.pass(if is_passed_over { announced.max(1) } else { 1 });
        while self.offset < self.total_bytes {
            let left = usize::try_from(self.total_bytes - self.offset).unwrap_or(usize::MAX);
            let bytes = self.fill(left.min(HEADER_BYTES))?;
            let (found, num_bytes) = (bytes.windows(MAGIC.len()).position(|bytes| bytes == MAGIC), bytes.len());
            // The last bytes of what was read may be the first of a magic number.
            let to_pass = found.unwrap_or(if num_bytes == left { left } else { num_bytes + 1 - MAGIC.len() });
            self.pass(to_pass);
            if found.is_some() {
                if left - to_pass < HEADER_BYTES || self.header()?.is_ok() {
                    break;
                }
                self.pass(1);
            }
        }
        self.skipped_bytes += self.offset - start;
        Ok(())
    }

    fn pass(&mut self, num_bytes: usize) {
        self.num_passed += num_bytes;
        self.offset += num_bytes as u64;
    }

    /// What was read of the rest, at least the next so many bytes.
    fn fill(&mut self, num_bytes: usize) -> Result<&[u8], Error> {
        let (offset, left) = (self.offset, self.total_bytes - self.offset);
        let torn = Error::TornTail(TornTail { offset, bytes: left });
        if left < num_bytes as u64 {
            return Err(torn);
        }
        if self.ahead.len() - self.num_passed < num_bytes {
            self.ahead.drain(..std::mem::take(&mut self.num_passed));
            let wanted = left.min(num_bytes.max(CHUNK_BYTES) as u64) - self.ahead.len() as u64;
            let read = self.input.by_ref().take(wanted).read_to_end(&mut self.ahead);
            // Where that is enough nothing is missing yet.
            if self.ahead.len() < num_bytes {
                // The stream is shorter than was announced.
                return Err(read.map_or_else(|source| Error::Read { offset, source }, |_| torn));
            }
        }
        Ok(&self.ahead[self.num_passed..])
    }
}

impl<R: Read> Iterator for FrameReader<R> {
    type Item = Result<Packet, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let found = if std::mem::take(&mut self.is_lost) { self.find_header() } else { Ok(()) };
        if found.is_ok() && self.offset >= self.total_bytes {
            return None;
        }
        let frame = found.and_then(|()| self.read_frame());
        self.is_lost = match &frame {
            Err(Error::Frame { .. }) => true,
            Err(Error::TornTail(_)) => !self.ends_where_torn,
            _ => false,
        };
        self.done = frame.is_err() && !self.is_lost;
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::encode_frame;
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
    fn a_frame_with_any_byte_damaged_is_told_of_once_and_the_others_are_read() {
        let (whole, ends) = stream(3);
        let (start, end) = (usize::try_from(ends[1]).unwrap(), usize::try_from(ends[2]).unwrap());
        for at in start..end {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x41;
            let mut reader = FrameReader::new(bytes.as_slice(), bytes.len() as u64);
            assert_eq!(reader.next().unwrap().unwrap().sequence, 1);
            let error = reader.next().unwrap().unwrap_err();
            assert!(matches!(error, Error::Frame { offset, .. } if offset == ends[1]), "byte {at}: {error}");
            assert_eq!(reader.next().unwrap().unwrap().sequence, 3, "byte {at}");
            assert!(reader.next().is_none());
            assert_eq!((reader.skipped_bytes(), reader.offset()), (ends[2] - ends[1], ends[3]), "byte {at}");
        }
    }

    #[test]
    fn far_behind_what_is_no_frame_and_looks_like_one_the_next_is_found() {
        let (frame, _) = stream(1);
        for num_bytes in (0..200).chain(CHUNK_BYTES - 80..CHUNK_BYTES + 80) {
            let mut junk = vec![7; num_bytes];
            junk.splice(num_bytes / 2..num_bytes / 2, MAGIC);
            let bytes = [&junk[..], &frame[..], &frame[..frame.len() - 1]].concat();
            let mut reader = FrameReader::new(bytes.as_slice(), bytes.len() as u64);
            assert!(matches!(reader.next(), Some(Err(Error::Frame { offset: 0, .. }))), "{num_bytes}");
            assert_eq!(reader.next().unwrap().unwrap().sequence, 1, "{num_bytes}");
            assert!(matches!(reader.next(), Some(Err(Error::TornTail(_)))), "{num_bytes}");
            assert_eq!(reader.skipped_bytes(), junk.len() as u64, "{num_bytes}");
        }
    }

    #[test]
    fn a_large_damaged_frame_full_of_what_looks_like_one_takes_no_longer_for_that() {
        let (frame, _) = stream(1);
        let payload = MAGIC.repeat(1 << 19);
        let mut header = frame[..HEADER_BYTES].to_vec();
        header[16..24].copy_from_slice(&(payload.len() as u64).to_le_bytes());
        let checksum = crc32c::crc32c(&header[..60]).to_le_bytes();
        header[60..].copy_from_slice(&checksum);
        let frame = [header, payload, frame].concat();
        let mut reader = FrameReader::new(frame.as_slice(), frame.len() as u64);
        assert!(matches!(reader.next(), Some(Err(Error::Frame { offset: 0, .. }))));
        assert_eq!(reader.next().unwrap().unwrap().sequence, 1);
    }

    #[test]
    fn headers_that_lie_about_their_payload_cost_a_few_readings_of_the_file_and_frames_between_them_are_found() {
        let (frame, _) = stream(1);
        let total = 1 << 19;
        let mut bytes = Vec::new();
        while bytes.len() < total {
            // A tenth of what follows; nothing of it verifies.
            let mut header = frame[..HEADER_BYTES].to_vec();
            header[16..24].copy_from_slice(&((total - bytes.len()) as u64 / 10).to_le_bytes());
            let checksum = crc32c::crc32c(&header[..60]).to_le_bytes();
            header[60..].copy_from_slice(&checksum);
            bytes.extend(header);
        }
        bytes.extend(&frame);
        let mut reader = FrameReader::new(bytes.as_slice(), bytes.len() as u64);
        let found = reader.by_ref().filter_map(Result::ok).count();
        let in_vain = reader.hashed_in_vain / bytes.len() as u64;
        assert!(found == 1 && in_vain <= MAX_IN_VAIN + 1, "{found} frames, the file hashed {in_vain} times in vain");
    }

    #[test]
    fn a_damaged_last_frame_ends_the_iteration() {
        let (mut bytes, ends) = stream(3);
        bytes[usize::try_from(ends[2]).unwrap() + HEADER_BYTES] ^= 1;
        let mut reader = FrameReader::new(bytes.as_slice(), bytes.len() as u64);
        assert_eq!((0..2).map(|_| reader.next().unwrap().unwrap().sequence).last(), Some(2));
        match reader.next().unwrap().unwrap_err() {
            Error::Frame { offset, source: FrameError::PayloadDigest } => assert_eq!(offset, ends[2]),
            error => panic!("{error}"),
        }
        assert!(reader.next().is_none());
        assert_eq!((reader.offset(), reader.skipped_bytes()), (ends[3], ends[3] - ends[2]));
    }

    #[test]
    fn a_stream_shorter_than_announced_is_torn() {
        let (bytes, _) = stream(1);
        let mut reader = FrameReader::new(&bytes[..bytes.len() - 1], bytes.len() as u64);
        assert!(matches!(reader.next(), Some(Err(Error::TornTail(TornTail { offset: 0, .. })))));
    }
}

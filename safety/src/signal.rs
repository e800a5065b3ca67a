//! A small file through which processes of a run tell each other of its emergency level. Shared memory by way of the page
//! cache: nobody waits for a disk, and a process that is killed leaves what it wrote.
//!
//! ```text
//!  0    slot 0 ┐ what the run says        256  slot 0 ┐ what an operator orders
//!  128  slot 1 ┘                          384  slot 1 ┘
//!
//!  slot   magic 4 │ version 1 │ level 1 │ length of the reason 1 │ 0 │ sequence 8 │ unix time, ms 8 │ reason 100 │ CRC-32C of all 4
//! ```
//! A writer takes the other slot than that of the newest signal, and the next number; the file is locked meanwhile. A reader takes
//! the slot with the highest number whose checksum is right: a slot that is being written, or was torn by a loss of power, is
//! none, and the one before stands. A file that holds neither is no file of signals, or one that nobody has written to.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use crate::emergency::{Level, Origin};

const MAGIC: [u8; 4] = *b"ESIG";
const VERSION: u8 = 1;
const SLOT_BYTES: usize = 128;
const CHECKED_BYTES: usize = SLOT_BYTES - 4;
const REASON_AT: usize = 24;
/// Times that a damaged slot is read.
const READS: usize = 16;
/// Longer reasons are cut.
pub const MAX_REASON_BYTES: usize = CHECKED_BYTES - REASON_AT;

/// What one side last said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signal {
    /// Grows with each signal of the side, from 1.
    pub sequence: u64,
    /// When, milliseconds since 1970-01-01 UTC.
    pub unix_ms: u64,
    /// How bad it is.
    pub level: Level,
    /// For people; at most [`MAX_REASON_BYTES`].
    pub reason: String,
}

/// The file of one run.
#[derive(Debug)]
pub struct SignalFile {
    file: File,
}

impl SignalFile {
    /// Opens or makes the file, for reading and writing by its owner alone.
    ///
    /// # Errors
    /// When it cannot be, or is no regular file.
    pub fn open(path: &Path) -> io::Result<Self> {
        if path.symlink_metadata().is_ok_and(|found| !found.is_file()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let mut options = OpenOptions::new();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        Ok(Self { file: options.read(true).write(true).create(true).truncate(false).open(path)? })
    }

    /// The newest signal of a side; none before the first, and where both slots are damaged.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(&mut self, side: Origin) -> io::Result<Option<Signal>> {
        let [first, second] = self.slots(side)?;
        Ok(match (first, second) {
            (Some(first), Some(second)) => Some(if first.sequence > second.sequence { first } else { second }),
            (first, second) => first.or(second),
        })
    }

    /// Says something for a side, and returns its number.
    ///
    /// # Errors
    /// When another process is writing, [`io::ErrorKind::WouldBlock`]; when the file cannot be written.
    pub fn write(&mut self, side: Origin, level: Level, reason: &str, unix_ms: u64) -> io::Result<u64> {
        self.file.try_lock().map_err(|error| match error {
            TryLockError::Error(error) => error,
            TryLockError::WouldBlock => io::ErrorKind::WouldBlock.into(),
        })?;
        let written = self.write_locked(side, level, reason, unix_ms);
        self.file.unlock()?;
        written
    }

    fn write_locked(&mut self, side: Origin, level: Level, reason: &str, unix_ms: u64) -> io::Result<u64> {
        let slots = self.slots(side)?.map(|slot| slot.map_or(0, |signal| signal.sequence));
        let index = usize::from(slots[0] > slots[1]);
        let sequence = slots[0].max(slots[1]).saturating_add(1);
        let reason = reason[..reason.floor_char_boundary(MAX_REASON_BYTES)].to_owned();
        let bytes = encode(&Signal { sequence, unix_ms, level, reason });
        self.file.seek(SeekFrom::Start(offset(side, index)))?;
        self.file.write_all(&bytes)?;
        Ok(sequence)
    }

    /// A slot that is damaged is perhaps being written, and the other one then older than it was: they are read again.
    fn slots(&mut self, side: Origin) -> io::Result<[Option<Signal>; 2]> {
        let mut last = [None, None];
        for _ in 0..READS {
            let mut bytes = Vec::with_capacity(2 * SLOT_BYTES);
            self.file.seek(SeekFrom::Start(offset(side, 0)))?;
            (&self.file).take(2 * SLOT_BYTES as u64).read_to_end(&mut bytes)?;
            bytes.resize(2 * SLOT_BYTES, 0);
            let slots = bytes.split_at(SLOT_BYTES);
            last = [decode(slots.0), decode(slots.1)];
            let is_whole =
                |(bytes, slot): (&[u8], &Option<Signal>)| slot.is_some() || bytes.iter().all(|byte| *byte == 0);
            if is_whole((slots.0, &last[0])) && is_whole((slots.1, &last[1])) {
                break;
            }
            std::thread::yield_now();
        }
        Ok(last)
    }
}

const fn offset(side: Origin, slot: usize) -> u64 {
    let first = match side {
        Origin::Run => 0,
        Origin::Operator => 2,
    };
    ((first + slot) * SLOT_BYTES) as u64
}

fn encode(signal: &Signal) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    let length = signal.reason.len().min(MAX_REASON_BYTES);
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = VERSION;
    bytes[5] = signal.level.number();
    bytes[6] = u8::try_from(length).unwrap_or(u8::MAX);
    bytes[8..16].copy_from_slice(&signal.sequence.to_le_bytes());
    bytes[16..24].copy_from_slice(&signal.unix_ms.to_le_bytes());
    bytes[REASON_AT..REASON_AT + length].copy_from_slice(&signal.reason.as_bytes()[..length]);
    let checksum = crc32c::crc32c(&bytes[..CHECKED_BYTES]);
    bytes[CHECKED_BYTES..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// None unless every byte is as a writer of this version leaves it.
fn decode(bytes: &[u8]) -> Option<Signal> {
    let (checked, checksum) = bytes.split_at_checked(CHECKED_BYTES)?;
    let number = |at: usize| checked[at..at + 8].try_into().map(u64::from_le_bytes).ok();
    if checked[..4] != MAGIC || checked[4] != VERSION || checksum != crc32c::crc32c(checked).to_le_bytes() {
        return None;
    }
    let reason = checked.get(REASON_AT..REASON_AT + usize::from(checked[6]))?;
    Some(Signal {
        sequence: number(8)?,
        unix_ms: number(16)?,
        level: Level::of_number(checked[5])?,
        reason: std::str::from_utf8(reason).ok()?.to_owned(),
    })
}

#[cfg(test)]
#[cfg(not(feature = "model-check"))]
mod tests {
    use super::*;

    fn file() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("emergency");
        (dir, path)
    }

    #[test]
    fn what_one_side_says_the_other_reads_and_longer_reasons_are_cut() {
        let (_dir, path) = file();
        let [mut run, mut operator] = [(); 2].map(|()| SignalFile::open(&path).unwrap());
        assert_eq!((run.read(Origin::Run).unwrap(), run.read(Origin::Operator).unwrap()), (None, None));
        for (number, reason) in ["", "disk", &"ä".repeat(99)].into_iter().enumerate() {
            let level = Level::ALL[number + 1];
            assert_eq!(operator.write(Origin::Operator, level, reason, 7).unwrap(), number as u64 + 1);
            let read = run.read(Origin::Operator).unwrap().unwrap();
            assert_eq!((read.sequence, read.unix_ms, read.level), (number as u64 + 1, 7, level));
            assert!(reason.starts_with(&read.reason) && read.reason.len() >= reason.len().min(MAX_REASON_BYTES - 1));
        }
        assert_eq!(run.read(Origin::Run).unwrap(), None, "each side has its own");
        run.write(Origin::Run, Level::Halt, "told", 9).unwrap();
        assert_eq!(operator.read(Origin::Run).unwrap().unwrap().reason, "told");
        assert_eq!(operator.read(Origin::Operator).unwrap().unwrap().sequence, 3);
    }

    #[test]
    fn every_torn_write_leaves_the_signal_before() {
        let old = encode(&Signal { sequence: 1, unix_ms: 5, level: Level::Notice, reason: "old".to_owned() });
        let new = encode(&Signal { sequence: 3, unix_ms: 6, level: Level::Halt, reason: "new".to_owned() });
        let (_dir, path) = file();
        let mut signals = SignalFile::open(&path).unwrap();
        signals.write(Origin::Run, Level::Notice, "first", 1).unwrap();
        signals.write(Origin::Run, Level::Safe, "before", 2).unwrap();
        let whole = std::fs::read(&path).unwrap();
        // The third goes over the first; of it some bytes are there and some are not.
        for cut in 0..SLOT_BYTES {
            for (front, back) in [(&new, &old), (&old, &new)] {
                let torn = [&front[..cut], &back[cut..]].concat();
                let differs = torn != old && torn != new;
                std::fs::write(&path, [&torn, &whole[SLOT_BYTES..]].concat()).unwrap();
                let read = signals.read(Origin::Run).unwrap().unwrap();
                let expected = if torn == new { "new" } else { "before" };
                assert_eq!(read.reason, expected, "cut at {cut}, torn: {differs}");
            }
        }
        for (place, bit) in (0..SLOT_BYTES).flat_map(|place| (0..8).map(move |bit| (place, bit))) {
            let mut bytes = new;
            bytes[place] ^= 1 << bit;
            assert_eq!(decode(&bytes), None, "byte {place}, bit {bit}");
        }
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let read = signals.read(Origin::Run).unwrap();
            assert!(read.is_none_or(|signal| ["first", "before"].contains(&signal.reason.as_str())), "{length} bytes");
        }
    }

    /// Writers and readers at the same time: what is read was written, numbers never go back, and none is given twice.
    #[test]
    fn readers_see_whole_signals_in_order_while_others_write() {
        const WRITERS: usize = 3;
        const WRITES: usize = 400;
        let (_dir, path) = file();
        let write = || {
            let mut signals = SignalFile::open(&path).unwrap();
            let mut numbers = Vec::new();
            while numbers.len() < WRITES {
                let level = Level::ALL[numbers.len() % 5];
                match signals.write(Origin::Operator, level, &level.name().repeat(8), 1) {
                    Ok(number) => numbers.push(number),
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
            }
            numbers
        };
        let mut numbers: Vec<u64> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS).map(|_| scope.spawn(write)).collect();
            let mut signals = SignalFile::open(&path).unwrap();
            let mut last = 0;
            while !writers.iter().all(|writer| writer.is_finished()) {
                if let Some(signal) = signals.read(Origin::Operator).unwrap() {
                    assert_eq!(signal.reason, signal.level.name().repeat(8));
                    assert!(signal.sequence >= last, "{} after {last}", signal.sequence);
                    last = signal.sequence;
                }
            }
            writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
        });
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=(WRITERS * WRITES) as u64).collect::<Vec<_>>());
    }
}

//! Packets as event files of TensorBoard: every metric a scalar over optimizer steps.
//!
//! A file is a sequence of records, `u64` length, checksum, bytes, checksum, little-endian, each an `Event` of TensorFlow's `event.proto`. Of
//! that format only the few fields are written that TensorBoard asks of scalars.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esper_disk::{Fs, StdFs};

use crate::error::Error;
use crate::packet::{Metric, OWN_SOURCE, Packet};
use crate::sink::Sink;
use crate::sink::append::AppendFile;

/// Appends the metrics of each packet to an event file in `FOLDER/RUN`, for `tensorboard --logdir FOLDER`: TensorBoard takes the files of one
/// folder for one run, of which the newest counts.
///
/// A metric `tolaria.training.loss` is the scalar `tolaria/training.loss`; its labels follow, as in `kasmina/seed.alpha/seed_id=seed-1`. Values
/// are rounded to `f32`, as TensorBoard has them; one that is larger is left out. Where the step of a packet is below that of the one before, because the run
/// went back, TensorBoard is told to forget what it has of later steps. Events are not written, nor are packets that a recorder makes on its own:
/// they are of no step.
///
/// ```
/// use esper_telemetry::sink::TensorBoardSink;
///
/// let dir = tempfile::tempdir()?;
/// let sink = TensorBoardSink::create(dir.path(), "run-1", 1_700_000_000)?;
/// assert_eq!(sink.path().file_name().unwrap(), "events.out.tfevents.1700000000.run-1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TensorBoardSink {
    file: AppendFile,
    path: PathBuf,
    last_step: u64,
}

impl TensorBoardSink {
    /// Creates the folder, one in it for the run, and a file there. The run began, or was taken up again, so many seconds after
    /// 1970-01-01 UTC.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(folder: impl AsRef<Path>, run: &str, unix_s: u64) -> Result<Self, Error> {
        Self::create_on(Arc::new(StdFs), folder, run, unix_s)
    }

    /// As [`create`](Self::create), on another file system.
    ///
    /// # Errors
    /// As there.
    pub fn create_on(fs: Arc<dyn Fs>, folder: impl AsRef<Path>, run: &str, unix_s: u64) -> Result<Self, Error> {
        let of_run = folder.as_ref().join(run);
        for folder in [folder.as_ref(), &of_run] {
            match fs.create_dir(folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(Error::io("create", folder)(error));
                }
                _ => {}
            }
        }
        // A run that is taken up again within one second has another file.
        let names = (1..).map(|number| match number {
            1 => format!("events.out.tfevents.{unix_s}.{run}"),
            _ => format!("events.out.tfevents.{unix_s}.{run}.{number}"),
        });
        let mut opened = names.map(|name| {
            let path = of_run.join(name);
            AppendFile::open(Arc::clone(&fs), &path).map(|file| (file, path))
        });
        let is_taken = |opened: &Result<(AppendFile, _), _>| match opened {
            Ok((file, _)) => file.len() > 0,
            Err(error) => matches!(error, Error::InUse { .. }),
        };
        let (mut file, path) = loop {
            if let Some(free) = opened.next().filter(|opened| !is_taken(opened)) {
                break free?;
            }
        };
        file.begin_with(record(&Message::default().double(1, unix_s as f64).bytes(3, b"brain.Event:2").0));
        // The header alone: the name is taken.
        file.append(&[])?;
        Ok(Self { file, path, last_step: u64::MAX })
    }

    /// As [`FrameSink::with_limit`](crate::sink::FrameSink::with_limit).
    #[must_use]
    pub fn with_limit(mut self, bytes: u64) -> Self {
        self.file.limit(bytes);
        self
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Sink for TensorBoardSink {
    fn name(&self) -> &'static str {
        "tensor_board"
    }

    #[expect(clippy::cast_possible_truncation, reason = "scalars of TensorBoard are f32")]
    fn write(&mut self, packet: &Packet) -> Result<(), Error> {
        if packet.source == OWN_SOURCE {
            return Ok(());
        }
        let step = packet.step.0;
        let event = || Message::default().double(1, packet.created_unix_ms as f64 / 1e3).varint(2, step);
        let mut records = Vec::new();
        if step < self.last_step {
            // The log of a session, which begins: of this step and later ones nothing before counts.
            records.extend(record(&event().bytes(7, &Message::default().varint(1, 1).0).0));
        }
        let values = packet.metrics.iter().filter(|metric| (metric.value as f32).is_finite());
        let summary = values.fold(Message::default(), |summary, metric| {
            summary.bytes(1, &Message::default().bytes(1, tag(metric).as_bytes()).float(2, metric.value as f32).0)
        });
        records.extend(record(&event().bytes(5, &summary.0).0));
        self.file.append(&records)?;
        self.last_step = step;
        Ok(())
    }

    fn takes_events(&self) -> bool {
        false
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.file.sync()
    }
}

/// The first part of a name is the group in which TensorBoard shows it.
fn tag(metric: &Metric) -> String {
    let labels = metric.labels.iter().map(|(label, value)| format!("/{label}={value}"));
    std::iter::once(metric.name.replacen('.', "/", 1)).chain(labels).collect()
}

fn record(bytes: &[u8]) -> Vec<u8> {
    let len = (bytes.len() as u64).to_le_bytes();
    let sum = |bytes: &[u8]| crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    [&len[..], &sum(&len), bytes, &sum(bytes)].concat()
}

/// A message of protocol buffers.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn number(mut self, mut number: u64) -> Self {
        while number >= 0x80 {
            self.0.push(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        self.0.push(number.to_le_bytes()[0]);
        self
    }

    fn varint(self, field: u64, value: u64) -> Self {
        self.number(field << 3).number(value)
    }

    fn double(self, field: u64, value: f64) -> Self {
        self.fixed(field << 3 | 1, &value.to_le_bytes())
    }

    fn float(self, field: u64, value: f32) -> Self {
        self.fixed(field << 3 | 5, &value.to_le_bytes())
    }

    fn bytes(self, field: u64, bytes: &[u8]) -> Self {
        self.number(field << 3 | 2).fixed(bytes.len() as u64, bytes)
    }

    fn fixed(self, before: u64, bytes: &[u8]) -> Self {
        let mut message = self.number(before);
        message.0.extend_from_slice(bytes);
        message
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use leyline::id::StepIndex;

    use super::*;
    use crate::packet::tests::full_packet;
    use crate::sink::append::older;

    #[test]
    fn checksums_are_those_of_the_format() {
        // Of an empty record, as TensorFlow's `tf.io.TFRecordWriter` writes it.
        assert_eq!(record(b""), [0, 0, 0, 0, 0, 0, 0, 0, 0x29, 0x03, 0x98, 0x07, 0xd8, 0xea, 0x82, 0xa2]);
    }

    #[test]
    fn the_bytes_of_a_packet_are_those_of_the_format() {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = TensorBoardSink::create(dir.path().join("new"), "run-1", 1_700_000_000).unwrap();
        let header = fs::metadata(sink.path()).unwrap().len();
        let mut packet = full_packet();
        packet.metrics.truncate(1);
        packet.metrics[0].value = 0.25;
        packet.metrics.push(Metric { value: 1e300, ..packet.metrics[0].clone() });
        sink.write(&packet).unwrap();
        let bytes = fs::read(sink.path()).unwrap();
        let value = [&b"\x0a\x15tolaria/training.loss\x15"[..], &0.25_f32.to_le_bytes()].concat();
        let time = [&b"\x09"[..], &1_700_000_000.123_f64.to_le_bytes()].concat();
        let start = record(&[&time[..], b"\x10\xac\x02\x3a\x02\x08\x01"].concat());
        let summary = record(&[&time[..], b"\x10\xac\x02\x2a\x1e\x0a\x1c", &value].concat());
        assert_eq!(bytes[usize::try_from(header).unwrap()..], [start, summary].concat());
    }

    #[test]
    fn a_file_that_is_there_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut sinks = [1, 1, 2].map(|unix_s| TensorBoardSink::create(dir.path(), "run-1", unix_s).unwrap());
        let names = sinks.each_mut().map(|sink| {
            sink.write(&full_packet()).unwrap();
            sink.path().file_name().unwrap().to_str().unwrap()["events.out.tfevents.".len()..].to_owned()
        });
        assert_eq!(names, ["1.run-1", "1.run-1.2", "2.run-1"]);
        drop(sinks);
        let of_run = dir.path().join("run-1");
        let before = fs::read(of_run.join("events.out.tfevents.1.run-1.2")).unwrap();
        TensorBoardSink::create(dir.path(), "run-1", 1).unwrap();
        assert_eq!(fs::read(of_run.join("events.out.tfevents.1.run-1.2")).unwrap(), before);
        assert_eq!(fs::read_dir(of_run).unwrap().count(), 4);
    }

    #[test]
    fn a_file_that_begins_where_another_is_full_begins_as_every_file_does() {
        let dir = tempfile::tempdir().unwrap();
        let sink = TensorBoardSink::create(dir.path(), "run-1", 1).unwrap();
        let path = sink.path().to_owned();
        let header = fs::read(&path).unwrap();
        let mut sink = sink.with_limit(header.len() as u64);
        for step in 1..=3 {
            sink.write(&Packet { step: StepIndex(step), ..full_packet() }).unwrap();
        }
        for path in [older(&path), path] {
            let bytes = fs::read(path).unwrap();
            assert!(bytes.starts_with(&header) && bytes.len() > header.len(), "{} bytes", bytes.len());
        }
    }

    #[test]
    fn runs_in_one_folder_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let paths =
            ["run-1", "run-2"].map(|run| TensorBoardSink::create(dir.path(), run, 1).unwrap().path().to_owned());
        assert_eq!(
            paths.each_ref().map(|path| path.parent().unwrap()),
            ["run-1", "run-2"].map(|run| dir.path().join(run))
        );
    }

    #[test]
    fn a_session_begins_where_steps_go_back_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = TensorBoardSink::create(dir.path(), "run-1", 1).unwrap();
        let begun = [10, 20, 20, 15, 16].map(|step| {
            let before = fs::read(sink.path()).unwrap().len();
            sink.write(&Packet { step: StepIndex(step), ..full_packet() }).unwrap();
            fs::read(sink.path()).unwrap()[before..].windows(4).any(|bytes| bytes == b"\x3a\x02\x08\x01")
        });
        assert_eq!(begun, [true, false, false, true, false]);
    }

    #[test]
    fn what_the_recorder_adds_on_its_own_is_left_out_and_begins_no_session() {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = TensorBoardSink::create(dir.path(), "run-1", 1).unwrap();
        let before = fs::read(sink.path()).unwrap();
        sink.write(&Packet { source: OWN_SOURCE.to_owned(), ..full_packet() }).unwrap();
        assert_eq!(fs::read(sink.path()).unwrap(), before);
    }
}

//! Packets as JSON, one object per line.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use esper_disk::{Fs, FsFile, Open, ReadFrom, StdFs};
use serde::Deserialize;

use crate::error::Error;
use crate::packet::Packet;
use crate::sink::Sink;
use crate::sink::append::{AppendFile, older};

/// Appends one line per packet to a file.
#[derive(Debug)]
pub struct JsonLinesSink {
    file: AppendFile,
    last_sequence: Option<u64>,
}

impl JsonLinesSink {
    /// Opens `path` for appending, or creates it. An incomplete last line is cut off.
    ///
    /// # Errors
    /// [`Error::InUse`] when another writer has the file, [`Error::Io`] for everything else.
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
        let end = end_of_last_line(file.file(), file.len()).map_err(Error::io("read", path))?;
        if end < file.len() {
            let bytes = file.len() - end;
            tracing::warn!(path = %path.display(), offset = end, bytes, "cut off an incomplete line");
            file.truncate(end)?;
        }
        // A file that was just begun: the numbers go on after the full one.
        let last_sequence = match end {
            0 => file.fs().open(&older(path), Open::Existing).ok().and_then(|full| last_number(&*full)),
            _ => last_number(file.file()),
        };
        Ok(Self { file, last_sequence })
    }

    /// As [`FrameSink::with_limit`](crate::sink::FrameSink::with_limit).
    #[must_use]
    pub fn with_limit(mut self, bytes: u64) -> Self {
        self.file.limit(bytes);
        self
    }
}

impl Sink for JsonLinesSink {
    fn name(&self) -> &'static str {
        "json_lines"
    }

    fn write(&mut self, packet: &Packet) -> Result<(), Error> {
        let encode = |source| Error::Json { sequence: packet.sequence, source };
        let mut line = serde_json::to_vec(packet).map_err(encode)?;
        line.push(b'\n');
        self.file.append(&line)?;
        self.last_sequence = Some(packet.sequence);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.file.sync()
    }

    fn last_sequence(&self) -> Option<u64> {
        self.last_sequence
    }
}

/// Sequence number of the packet on the last whole line; absent where there is none.
fn last_number(file: &dyn FsFile) -> Option<u64> {
    #[derive(Deserialize)]
    struct Numbered {
        sequence: u64,
    }
    let end = end_of_last_line(file, file.size().ok()?).ok()?;
    let start = end_of_last_line(file, end.checked_sub(1)?).ok()?;
    let line = ReadFrom::new(file, start).take(end - start);
    serde_json::from_reader::<_, Numbered>(io::BufReader::new(line)).ok().map(|packet| packet.sequence)
}

/// Looks for the last line break from the end: files grow long, lines do not.
fn end_of_last_line(file: &dyn FsFile, len: u64) -> io::Result<u64> {
    const BLOCK: u64 = 64 << 10;
    let mut end = len;
    let mut block = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        block.clear();
        ReadFrom::new(file, start).take(end - start).read_to_end(&mut block)?;
        if let Some(at) = block.iter().rposition(|&byte| byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::*;
    use crate::packet::tests::full_packet;

    #[test]
    fn a_packet_is_one_object_on_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("packets.jsonl");
        let mut packet = full_packet();
        packet.events[0].attributes.insert("reason".to_owned(), "two\nlines".to_owned());
        let mut sink = JsonLinesSink::append(&path).unwrap();
        sink.write(&packet).unwrap();
        sink.write(&packet).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2);
        let found: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        let expected = json!({
            "version": 1, "run_id": "run-1", "sequence": 7, "source": "tolaria", "created_unix_ms": 1_700_000_000_123_u64,
            "epoch": 3, "step": 300, "level": "critical", "priority": "critical",
            "metrics": [
                {"name": "tolaria.training.loss", "value": 0.25, "unit": "nats", "kind": "gauge"},
                {"name": "tolaria.epochs.total", "value": 3.0, "unit": "count", "kind": "counter"},
                {"name": "kasmina.seed.alpha", "labels": {"seed_id": "seed-1"}, "value": 0.5, "unit": "ratio", "kind": "gauge"},
                {"name": "kasmina.seed.alpha", "labels": {"seed_id": "seed-2"}, "value": -0.0, "unit": "ratio", "kind": "gauge"},
            ],
            "events": [
                {"name": "seed_stage", "level": "info",
                 "attributes": {"from": "training", "to": "blending", "reason": "two\nlines"}},
                {"name": "tolaria.halt", "level": "critical"},
            ],
            "health": {"status": "degraded", "summary": "grad_conflict_high"},
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn numbers_go_on_after_the_last_line_or_after_a_full_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("packets.jsonl");
        let last = || JsonLinesSink::append(&path).unwrap().last_sequence();
        assert_eq!(last(), None);
        let mut sink = JsonLinesSink::append(&path).unwrap().with_limit(1);
        for sequence in 1..=3 {
            sink.write(&Packet { sequence, ..full_packet() }).unwrap();
        }
        drop(sink);
        assert_eq!(last(), Some(3));
        // Stopped after the full file was moved, and before anything was written.
        fs::write(&path, b"").unwrap();
        assert_eq!(last(), Some(2));
        fs::write(&path, "no packet\n").unwrap();
        assert_eq!(last(), None);
    }

    #[test]
    fn an_incomplete_last_line_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("packets.jsonl");
        let long = "x".repeat(200_000);
        for (before, after) in [
            ("", ""),
            ("{", ""),
            ("{}\n", "{}\n"),
            ("{}\n{\"a\":", "{}\n"),
            (&format!("{{}}\n{long}"), "{}\n"),
            (&format!("{long}\n{long}\n"), &format!("{long}\n{long}\n")),
        ] {
            fs::write(&path, before).unwrap();
            drop(JsonLinesSink::append(&path).unwrap());
            assert_eq!(fs::read_to_string(&path).unwrap(), after);
        }
    }
}

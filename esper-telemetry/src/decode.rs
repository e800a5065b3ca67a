//! Frame files for people and for tools: `esper telemetry decode FILE [--json]`.

use std::io::{self, Write};
use std::path::Path;

use leyline::telemetry::HealthStatus;

use crate::catalogue::{level_name, unit_name};
use crate::error::Error;
use crate::packet::Packet;
use crate::reader::{FrameReader, TornTail};

/// What to make of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeFormat {
    /// Indented text. Control characters are escaped, so that a terminal can show it.
    Text,
    /// One JSON object per line, as [`crate::sink::JsonLinesSink`] writes it.
    Json,
}

/// What was found in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decoded {
    /// Packets written out.
    pub num_packets: u64,
    /// The incomplete frame at the end, if there is one: the writer runs still or was stopped.
    pub torn_tail: Option<TornTail>,
}

/// Writes the packets in the frame file `path` to `out`.
///
/// # Errors
/// [`Error::File`] with the offset of the first damaged frame; the packets before and after it have been written out.
/// [`Error::Output`] when `out` fails.
pub fn decode_file(path: &Path, format: DecodeFormat, out: &mut dyn Write) -> Result<Decoded, Error> {
    let mut decoded = Decoded { num_packets: 0, torn_tail: None };
    let mut damaged = None;
    for packet in FrameReader::open(path)? {
        match packet {
            Ok(packet) => write_packet(&packet, format, out)?,
            Err(Error::TornTail(torn)) => {
                decoded.torn_tail = Some(torn);
                break;
            }
            Err(error @ Error::Frame { .. }) => {
                damaged.get_or_insert(error);
                continue;
            }
            Err(error) => return Err(Error::file(path)(error)),
        }
        decoded.num_packets += 1;
    }
    out.flush().map_err(Error::Output)?;
    if let Some(error) = damaged {
        return Err(Error::file(path)(error));
    }
    Ok(decoded)
}

fn write_packet(packet: &Packet, format: DecodeFormat, out: &mut dyn Write) -> Result<(), Error> {
    match format {
        DecodeFormat::Text => write_text(packet, out).map_err(Error::Output),
        DecodeFormat::Json => {
            let line =
                serde_json::to_string(packet).map_err(|source| Error::Json { sequence: packet.sequence, source })?;
            writeln!(out, "{line}").map_err(Error::Output)
        }
    }
}

/// Names have passed the packet's checks; every other text is escaped.
fn write_text(packet: &Packet, out: &mut dyn Write) -> io::Result<()> {
    let Packet { run_id, sequence, source, epoch, step, created_unix_ms, .. } = packet;
    let status = health_name(packet.health.status);
    write!(out, "{run_id} #{sequence} {source} epoch {epoch} step {step} at {created_unix_ms} ms: {status}")?;
    if !packet.health.summary.is_empty() {
        write!(out, " ({})", packet.health.summary.escape_debug())?;
    }
    writeln!(out)?;
    for event in &packet.events {
        write!(out, "  {} {}", level_name(event.level), event.name)?;
        for (name, value) in &event.attributes {
            write!(out, " {name}={value:?}")?;
        }
        writeln!(out)?;
    }
    for metric in &packet.metrics {
        write!(out, "  {}", metric.name)?;
        for (name, value) in &metric.labels {
            write!(out, " {name}={value:?}")?;
        }
        writeln!(out, " = {} {}", metric.value, unit_name(metric.unit))?;
    }
    Ok(())
}

fn health_name(status: HealthStatus) -> &'static str {
    match status {
        HealthStatus::Healthy => "healthy",
        HealthStatus::Degraded => "degraded",
        HealthStatus::Unhealthy => "unhealthy",
        HealthStatus::Critical => "critical",
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::codec::encode_frame;
    use crate::packet::tests::full_packet;

    fn decode(bytes: &[u8], format: DecodeFormat) -> (Result<Decoded, Error>, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("packets.bin");
        fs::write(&path, bytes).unwrap();
        let mut out = Vec::new();
        let decoded = decode_file(&path, format, &mut out);
        (decoded, String::from_utf8(out).unwrap())
    }

    #[test]
    fn text_shows_everything_and_escapes_control_characters() {
        let mut packet = full_packet();
        packet.events[0].attributes.insert("reason".to_owned(), "\u{1b}[2J\n".to_owned());
        packet.health.summary = "a\u{1b}b".to_owned();
        let (decoded, text) = decode(&encode_frame(&packet).unwrap(), DecodeFormat::Text);
        assert_eq!(decoded.unwrap(), Decoded { num_packets: 1, torn_tail: None });
        let expected = "\
run-1 #7 tolaria epoch 3 step 300 at 1700000000123 ms: degraded (a\\u{1b}b)
  info seed_stage from=\"training\" reason=\"\\u{1b}[2J\\n\" to=\"blending\"
  critical tolaria.halt
  tolaria.training.loss = 0.25 nats
  tolaria.epochs.total = 3 count
  kasmina.seed.alpha seed_id=\"seed-1\" = 0.5 ratio
  kasmina.seed.alpha seed_id=\"seed-2\" = -0 ratio
";
        assert_eq!(text, expected);
    }

    #[test]
    fn json_has_a_line_per_packet_and_a_torn_tail_is_reported() {
        let frame = encode_frame(&full_packet()).unwrap();
        let bytes = [&frame[..], &frame[..], &frame[..100]].concat();
        let (decoded, text) = decode(&bytes, DecodeFormat::Json);
        let torn_tail = Some(TornTail { offset: 2 * frame.len() as u64, bytes: 100 });
        assert_eq!(decoded.unwrap(), Decoded { num_packets: 2, torn_tail });
        let line = serde_json::to_string(&full_packet()).unwrap();
        assert_eq!(text, format!("{line}\n{line}\n"));
    }

    #[test]
    fn a_damaged_frame_is_an_error_after_the_packets_around_it() {
        let frame = encode_frame(&full_packet()).unwrap();
        let mut bytes = frame.repeat(3);
        bytes[frame.len() + 70] ^= 1;
        let (decoded, text) = decode(&bytes, DecodeFormat::Json);
        let Err(Error::File { source, .. }) = decoded else { panic!("{decoded:?}") };
        assert_eq!(source.to_string(), format!("the frame at byte {} is not usable", frame.len()));
        assert_eq!(text.lines().count(), 2);
    }
}

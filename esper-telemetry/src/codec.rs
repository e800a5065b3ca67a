//! Frames: a packet as bytes, and back. The only module that names the codec crate, so that it can be replaced.
//!
//! A frame is a header of 64 bytes, parsed by hand, and a payload. The header has the same layout in every version;
//! all numbers are little-endian:
//!
//! ```text
//!  0  magic "ESPRTELM"        16  payload length u64         56  zero u32
//!  8  format version u16      24  BLAKE3 of the payload      60  CRC-32C of bytes 0..60
//! 10  kind u16                    (32 bytes)
//! 12  zero u32
//! ```
//! Nothing of the payload is looked at, and nothing is allocated for it, before the header is found whole, of a known
//! version and kind, and of an accepted length; nothing of it is decoded before its digest is verified. Decoding has a
//! limit, must use every byte, and ends with [`Packet::validate`]. The wire types do not recurse, hold no shared
//! pointers and no elements of size zero: the codec's limit does not cover those.

use std::collections::BTreeMap;

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use bincode::enc::Encoder;
use bincode::error::EncodeError;
use bincode::{Decode, Encode};
use leyline::id::{EpochIndex, RunId, StepIndex};
use leyline::telemetry::{Health, HealthStatus, Level, MetricKind, Priority, Unit};

use crate::packet::{EventRecord, InvalidPacket, Metric, PACKET_VERSION, Packet};

/// Bytes of a frame before its payload.
pub const HEADER_BYTES: usize = 64;

/// Longest payload of a packet, in bytes: a hundred times what a large run produces.
pub const MAX_PAYLOAD_BYTES: usize = 16 << 20;

/// Most memory that decoding may claim: the payload, and lists while they are being filled.
const DECODE_LIMIT: usize = 24 << 20;

pub(crate) const MAGIC: [u8; 8] = *b"ESPRTELM";
const KIND_PACKET: u16 = 1;

/// Bytes that are no frame of a packet.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The bytes end inside the frame.
    #[error("{found} of {needed} bytes are there")]
    Truncated {
        /// Bytes of the header or of the whole frame.
        needed: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// The bytes do not begin with the magic number.
    #[error("this is no telemetry frame: it does not begin with ESPRTELM")]
    Magic,
    /// The header is damaged.
    #[error("the header is damaged: its checksum does not match")]
    HeaderChecksum,
    /// The frame has a format that this build does not know.
    #[error(
        "frame format version {found} is not supported: this build reads version {PACKET_VERSION}; \
         read it with `esper telemetry decode` of the release that wrote it, or of a later one"
    )]
    Version {
        /// The version found.
        found: u16,
    },
    /// The frame holds something else than a packet.
    #[error("frame kind {found} is not supported: expected {KIND_PACKET}, a packet")]
    Kind {
        /// The kind found.
        found: u16,
    },
    /// The payload is longer than is accepted.
    #[error("the payload has {bytes} bytes: expected at most {MAX_PAYLOAD_BYTES}")]
    TooLarge {
        /// Length of the payload.
        bytes: u64,
    },
    /// The payload is damaged.
    #[error("the payload is damaged: its digest does not match")]
    PayloadDigest,
    /// The payload is no packet.
    #[error("the payload cannot be decoded")]
    Payload(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Bytes are left after the packet.
    #[error("{bytes} bytes follow the packet inside its payload")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// The packet breaks a rule.
    #[error("the packet breaks a rule")]
    Invalid(#[from] InvalidPacket),
}

impl FrameError {
    /// Whether the bytes are not what was written; otherwise another build wrote them.
    pub(crate) fn is_damage(&self) -> bool {
        !matches!(self, Self::Version { .. } | Self::Kind { .. })
    }
}

/// The frame of `packet`.
///
/// # Errors
/// [`FrameError::Invalid`] and [`FrameError::TooLarge`]: nothing is written that [`decode_frame`] would refuse.
pub fn encode_frame(packet: &Packet) -> Result<Vec<u8>, FrameError> {
    packet.validate()?;
    let mut frame = Vec::with_capacity(HEADER_BYTES + 64 * (1 + packet.metrics.len()));
    frame.resize(HEADER_BYTES, 0);
    bincode::encode_into_std_write(to_wire(packet), &mut frame, codec()).map_err(|e| FrameError::Payload(e.into()))?;
    seal(PACKET_VERSION, KIND_PACKET, frame)
}

/// The packet in the frame at the start of `bytes`, and the length of the frame.
///
/// # Errors
/// [`FrameError`]; no panic and no allocation beyond the limits, whatever the bytes.
pub fn decode_frame(bytes: &[u8]) -> Result<(Packet, usize), FrameError> {
    let found = bytes.len() as u64;
    let (header, rest) = bytes
        .split_first_chunk::<HEADER_BYTES>()
        .ok_or(FrameError::Truncated { needed: HEADER_BYTES as u64, found })?;
    let header = Header::parse(header)?;
    let payload = rest
        .get(..header.payload_bytes)
        .ok_or(FrameError::Truncated { needed: (HEADER_BYTES + header.payload_bytes) as u64, found })?;
    Ok((header.open(payload)?, HEADER_BYTES + header.payload_bytes))
}

/// A header that is whole, of a known version and kind, and announces an accepted length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    /// Length of the payload, at most [`MAX_PAYLOAD_BYTES`].
    pub(crate) payload_bytes: usize,
    digest: [u8; 32],
}

impl Header {
    pub(crate) fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        if bytes[..8] != MAGIC {
            return Err(FrameError::Magic);
        }
        if crc32c::crc32c(&bytes[..60]) != u32::from_le_bytes(field(bytes, 60)) {
            return Err(FrameError::HeaderChecksum);
        }
        let version = u16::from_le_bytes(field(bytes, 8));
        if version != PACKET_VERSION {
            return Err(FrameError::Version { found: version });
        }
        let kind = u16::from_le_bytes(field(bytes, 10));
        if kind != KIND_PACKET {
            return Err(FrameError::Kind { found: kind });
        }
        let length = u64::from_le_bytes(field(bytes, 16));
        match usize::try_from(length) {
            Ok(payload_bytes) if payload_bytes <= MAX_PAYLOAD_BYTES => {
                Ok(Self { payload_bytes, digest: field(bytes, 24) })
            }
            _ => Err(FrameError::TooLarge { bytes: length }),
        }
    }

    /// The packet in `payload`.
    pub(crate) fn open(&self, payload: &[u8]) -> Result<Packet, FrameError> {
        if *blake3::hash(payload).as_bytes() != self.digest {
            return Err(FrameError::PayloadDigest);
        }
        let (wire, consumed): (WirePacket, usize) =
            bincode::decode_from_slice(payload, codec()).map_err(|e| FrameError::Payload(e.into()))?;
        if consumed != payload.len() {
            return Err(FrameError::Trailing { bytes: payload.len() - consumed });
        }
        Ok(Packet::try_from(wire)?)
    }
}

/// Fills in the header, whose place is before the payload.
fn seal(version: u16, kind: u16, mut frame: Vec<u8>) -> Result<Vec<u8>, FrameError> {
    let (header, payload) = frame.split_first_chunk_mut::<HEADER_BYTES>().expect("the header has its place");
    let length = payload.len() as u64;
    if payload.len() > MAX_PAYLOAD_BYTES {
        return Err(FrameError::TooLarge { bytes: length });
    }
    header[..8].copy_from_slice(&MAGIC);
    header[8..10].copy_from_slice(&version.to_le_bytes());
    header[10..12].copy_from_slice(&kind.to_le_bytes());
    header[16..24].copy_from_slice(&length.to_le_bytes());
    header[24..56].copy_from_slice(blake3::hash(payload).as_bytes());
    let checksum = crc32c::crc32c(&header[..60]);
    header[60..].copy_from_slice(&checksum.to_le_bytes());
    Ok(frame)
}

fn field<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the slice has N bytes")
}

fn codec() -> Configuration<LittleEndian, Varint, Limit<DECODE_LIMIT>> {
    bincode::config::standard().with_limit::<DECODE_LIMIT>()
}

/// A packet as it is read; [`to_wire`] has the same fields in the same order.
#[derive(Decode)]
#[cfg_attr(test, derive(Encode))]
struct WirePacket {
    run_id: String,
    sequence: u64,
    source: String,
    created_unix_ms: u64,
    epoch: u64,
    step: u64,
    level: u8,
    priority: u8,
    metrics: Vec<WireMetric>,
    events: Vec<WireEvent>,
    health_status: u8,
    health_summary: String,
}

#[derive(Decode)]
#[cfg_attr(test, derive(Encode))]
struct WireMetric {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
    unit: u8,
    kind: u8,
}

#[derive(Decode)]
#[cfg_attr(test, derive(Encode))]
struct WireEvent {
    name: String,
    level: u8,
    attributes: Vec<(String, String)>,
}

/// A packet as it is written, out of where it lies: lists of references would take as long as writing them.
fn to_wire(packet: &Packet) -> impl Encode {
    (
        packet.run_id.as_str(),
        packet.sequence,
        &packet.source,
        packet.created_unix_ms,
        packet.epoch.0,
        packet.step.0,
        level_number(packet.level),
        priority_number(packet.priority),
        Each(&packet.metrics, |metric| {
            (&metric.name, &metric.labels, metric.value, unit_number(metric.unit), kind_number(metric.kind))
        }),
        Each(&packet.events, |event| (&event.name, level_number(event.level), &event.attributes)),
        health_number(packet.health.status),
        &packet.health.summary,
    )
}

/// A list whose items are written as what the function makes of them.
struct Each<'a, T, W>(&'a [T], fn(&'a T) -> W);

impl<T, W: Encode> Encode for Each<'_, T, W> {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        (self.0.len() as u64).encode(encoder)?;
        self.0.iter().try_for_each(|item| (self.1)(item).encode(encoder))
    }
}

impl TryFrom<WirePacket> for Packet {
    type Error = InvalidPacket;

    fn try_from(wire: WirePacket) -> Result<Self, InvalidPacket> {
        let metric = |(index, metric): (usize, WireMetric)| {
            let at = |field| format!("metrics[{index}].{field}");
            Ok(Metric {
                name: metric.name,
                labels: from_wire(metric.labels, || at("labels"))?,
                value: metric.value,
                unit: known(unit_from(metric.unit), || at("unit"))?,
                kind: known(kind_from(metric.kind), || at("kind"))?,
            })
        };
        let event = |(index, event): (usize, WireEvent)| {
            let at = |field| format!("events[{index}].{field}");
            Ok(EventRecord {
                name: event.name,
                level: known(level_from(event.level), || at("level"))?,
                attributes: from_wire(event.attributes, || at("attributes"))?,
            })
        };
        let run_id = RunId::new(wire.run_id)
            .map_err(|error| InvalidPacket { field: "run_id".to_owned(), expected: error.expected })?;
        let packet = Self {
            version: PACKET_VERSION,
            run_id,
            sequence: wire.sequence,
            source: wire.source,
            created_unix_ms: wire.created_unix_ms,
            epoch: EpochIndex(wire.epoch),
            step: StepIndex(wire.step),
            level: known(level_from(wire.level), || "level".to_owned())?,
            priority: known(priority_from(wire.priority), || "priority".to_owned())?,
            metrics: wire.metrics.into_iter().enumerate().map(metric).collect::<Result<_, _>>()?,
            events: wire.events.into_iter().enumerate().map(event).collect::<Result<_, _>>()?,
            health: Health {
                status: known(health_from(wire.health_status), || "health.status".to_owned())?,
                summary: wire.health_summary,
            },
        };
        packet.validate()?;
        Ok(packet)
    }
}

fn from_wire(
    pairs: Vec<(String, String)>,
    field: impl FnOnce() -> String,
) -> Result<BTreeMap<String, String>, InvalidPacket> {
    if pairs.is_sorted_by(|a, b| a.0 < b.0) {
        Ok(pairs.into_iter().collect())
    } else {
        Err(InvalidPacket { field: field(), expected: "sorted by name, each name once" })
    }
}

fn known<T>(value: Option<T>, field: impl FnOnce() -> String) -> Result<T, InvalidPacket> {
    value.ok_or_else(|| InvalidPacket { field: field(), expected: "a number of this version" })
}

/// Both directions from one table, so that they cannot differ; a new variant does not build without a number.
macro_rules! wire_numbers {
    ($to:ident $from:ident $type:ident { $($variant:ident = $number:literal),* $(,)? }) => {
        fn $to(value: $type) -> u8 {
            match value {
                $($type::$variant => $number,)*
            }
        }

        fn $from(number: u8) -> Option<$type> {
            match number {
                $($number => Some($type::$variant),)*
                _ => None,
            }
        }
    };
}

wire_numbers!(level_number level_from Level { Info = 1, Warning = 2, Error = 3, Critical = 4 });
wire_numbers!(priority_number priority_from Priority { Low = 1, Normal = 2, High = 3, Critical = 4 });
wire_numbers!(health_number health_from HealthStatus { Healthy = 1, Degraded = 2, Unhealthy = 3, Critical = 4 });
wire_numbers!(kind_number kind_from MetricKind { Counter = 1, Gauge = 2 });
wire_numbers!(unit_number unit_from Unit {
    Count = 1,
    Ratio = 2,
    Flag = 3,
    State = 4,
    Milliseconds = 5,
    Bytes = 6,
    Nats = 7,
    PercentagePoints = 8,
    GradientNorm = 9,
    LearningRate = 10,
    SamplesPerSecond = 11,
});

#[cfg(test)]
mod tests;

//! Frames survive a round trip, keep their bytes over releases, and nothing else is accepted as a frame.

use std::fs;
use std::path::Path;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;
use crate::packet::tests::full_packet;

fn minimal_packet() -> Packet {
    Packet {
        version: PACKET_VERSION,
        run_id: RunId::new("r").unwrap(),
        sequence: 1,
        source: "a".to_owned(),
        created_unix_ms: 0,
        epoch: EpochIndex(0),
        step: StepIndex(0),
        level: Level::Info,
        priority: Priority::Normal,
        metrics: vec![],
        events: vec![],
        health: Health::default(),
    }
}

const UNITS: [Unit; 11] = [
    Unit::Count,
    Unit::Ratio,
    Unit::Flag,
    Unit::State,
    Unit::Milliseconds,
    Unit::Bytes,
    Unit::Nats,
    Unit::PercentagePoints,
    Unit::GradientNorm,
    Unit::LearningRate,
    Unit::SamplesPerSecond,
];
const LEVELS: [Level; 4] = [Level::Info, Level::Warning, Level::Error, Level::Critical];
const HEALTH: [HealthStatus; 4] =
    [HealthStatus::Healthy, HealthStatus::Degraded, HealthStatus::Unhealthy, HealthStatus::Critical];

/// A packet that uses every unit, kind and level.
fn every_number_packet() -> Packet {
    let metric = |(index, &unit): (usize, &Unit)| Metric {
        name: format!("a.m{index}"),
        labels: BTreeMap::new(),
        value: [1e-300, f64::MAX, -1.5][index % 3],
        unit,
        kind: if index % 2 == 0 { MetricKind::Gauge } else { MetricKind::Counter },
    };
    let event = |(index, &level): (usize, &Level)| EventRecord {
        name: format!("a.e{index}"),
        level,
        attributes: BTreeMap::new(),
    };
    Packet {
        level: Level::Critical,
        priority: Priority::Critical,
        metrics: UNITS.iter().enumerate().map(metric).collect(),
        events: LEVELS.iter().enumerate().map(event).collect(),
        ..minimal_packet()
    }
}

#[test]
fn golden_frames_are_written_and_read_as_ever() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for (name, packet) in [
        ("packet_minimal.bin", minimal_packet()),
        ("packet_full.bin", full_packet()),
        ("packet_every_number.bin", every_number_packet()),
    ] {
        let path = dir.join(name);
        if std::env::var_os("ESPER_REGENERATE_GOLDEN").is_some() {
            fs::write(&path, encode_frame(&packet).unwrap()).unwrap();
        }
        let golden = fs::read(&path).unwrap();
        assert_eq!(encode_frame(&packet).unwrap(), golden, "{name} is written differently: that is a new version");
        assert_eq!(decode_frame(&golden).unwrap(), (packet, golden.len()), "{name} is read differently");
    }
}

#[test]
fn every_single_bit_flip_is_refused() {
    let frame = encode_frame(&full_packet()).unwrap();
    for bit in 0..frame.len() * 8 {
        let mut flipped = frame.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(decode_frame(&flipped).is_err(), "bit {bit} was flipped and the frame accepted");
    }
}

#[test]
fn every_prefix_is_refused_as_truncated() {
    let frame = encode_frame(&full_packet()).unwrap();
    for len in 0..frame.len() {
        match decode_frame(&frame[..len]) {
            Err(FrameError::Truncated { needed, found }) => {
                assert_eq!(found, len as u64);
                assert_eq!(needed, if len < HEADER_BYTES { HEADER_BYTES } else { frame.len() } as u64);
            }
            other => panic!("{len} bytes: {other:?}"),
        }
    }
}

#[test]
fn bytes_after_the_frame_are_left_to_the_caller() {
    let frame = encode_frame(&full_packet()).unwrap();
    let longer = [&frame[..], b"ESPRTELM"].concat();
    assert_eq!(decode_frame(&longer).unwrap(), (full_packet(), frame.len()));
}

/// A frame whose header was changed by somebody who knows its checksum.
fn forge(change: impl FnOnce(&mut [u8])) -> FrameError {
    let mut frame = encode_frame(&full_packet()).unwrap();
    change(&mut frame[..60]);
    let checksum = crc32c::crc32c(&frame[..60]);
    frame[60..64].copy_from_slice(&checksum.to_le_bytes());
    decode_frame(&frame).unwrap_err()
}

#[test]
fn an_unknown_version_is_named_with_the_known_one() {
    let error = forge(|header| header[8] = 2);
    assert_eq!(
        error.to_string(),
        "frame format version 2 is not supported: this build reads version 1; \
         read it with `esper telemetry decode` of the release that wrote it, or of a later one"
    );
}

#[test]
fn a_forged_header_is_refused_by_the_check_that_it_meets() {
    assert!(matches!(forge(|header| header[0] = b'e'), FrameError::Magic));
    assert!(matches!(forge(|header| header[10] = 2), FrameError::Kind { found: 2 }));
    assert!(matches!(forge(|header| header[24] ^= 1), FrameError::PayloadDigest));
    for bytes in [MAX_PAYLOAD_BYTES as u64 + 1, 1 << 40, u64::MAX] {
        let error = forge(|header| header[16..24].copy_from_slice(&bytes.to_le_bytes()));
        assert!(matches!(error, FrameError::TooLarge { bytes: found } if found == bytes));
    }
    let error = forge(|header| header[16..24].copy_from_slice(&(MAX_PAYLOAD_BYTES as u64).to_le_bytes()));
    assert!(matches!(error, FrameError::Truncated { .. }));
}

fn sealed(payload: &[u8]) -> Vec<u8> {
    seal(PACKET_VERSION, KIND_PACKET, [&[0; HEADER_BYTES], payload].concat()).unwrap()
}

fn open(payload: &[u8]) -> FrameError {
    decode_frame(&sealed(payload)).unwrap_err()
}

fn payload_of(packet: &Packet) -> Vec<u8> {
    encode_frame(packet).unwrap().split_off(HEADER_BYTES)
}

/// Nine bytes that announce 2^40 elements. Without a limit the decoder would ask for a terabyte and abort.
const BOMB: [u8; 9] = [253, 0, 0, 0, 0, 0, 1, 0, 0];

#[test]
fn a_bomb_at_every_list_and_text_is_refused_before_it_allocates() {
    assert!(matches!(decode_frame(&BOMB), Err(FrameError::Truncated { .. })));
    // A text of one letter is [1, letter]; then created, epoch, step, level and priority of a minimal packet.
    let before_metrics = [1, b'r', 1, 1, b'a', 0, 0, 0, 1, 2];
    let text: &[u8] = &[1, b'a'];
    let at_name = [&before_metrics[..], &[1]].concat();
    let at_labels = [&at_name[..], text].concat();
    let at_label_value = [&at_labels[..], &[1], text].concat();
    let at_events = [&before_metrics[..], &[0]].concat();
    let at_attributes = [&at_events[..], &[1], text, &[1]].concat();
    let at_summary = [&at_events[..], &[0, 1]].concat();
    for (place, mut payload) in [
        ("run_id", vec![]),
        ("source", vec![1, b'r', 1]),
        ("metrics", before_metrics.to_vec()),
        ("metrics.name", at_name),
        ("metrics.labels", at_labels),
        ("metrics.labels value", at_label_value),
        ("events", at_events),
        ("events.attributes", at_attributes),
        ("health.summary", at_summary),
    ] {
        payload.extend(BOMB);
        match open(&payload) {
            FrameError::Payload(source) => assert_eq!(format!("{source:?}"), "LimitExceeded", "{place}"),
            error => panic!("{place}: {error}"),
        }
    }
}

#[test]
fn bytes_after_the_packet_in_the_payload_are_refused() {
    let mut payload = payload_of(&full_packet());
    payload.push(0);
    assert!(matches!(open(&payload), FrameError::Trailing { bytes: 1 }));
}

#[track_caller]
fn check_invalid(change: impl FnOnce(&mut WirePacket), field: &str) {
    let payload = payload_of(&full_packet());
    let (mut wire, _): (WirePacket, usize) = bincode::decode_from_slice(&payload, codec()).unwrap();
    change(&mut wire);
    match open(&bincode::encode_to_vec(wire, codec()).unwrap()) {
        FrameError::Invalid(invalid) => assert_eq!(invalid.field, field),
        error => panic!("{error}"),
    }
}

#[test]
fn a_packet_that_breaks_a_rule_is_refused_though_its_digest_matches() {
    check_invalid(|wire| wire.run_id = "Run".to_owned(), "run_id");
    check_invalid(|wire| wire.sequence = 0, "sequence");
    check_invalid(|wire| wire.level = 0, "level");
    check_invalid(|wire| wire.level = 1, "level");
    check_invalid(|wire| wire.priority = 5, "priority");
    check_invalid(|wire| wire.health_status = 0, "health.status");
    check_invalid(|wire| wire.metrics[0].value = f64::NAN, "metrics[0].value");
    check_invalid(|wire| wire.metrics[1].unit = 12, "metrics[1].unit");
    check_invalid(|wire| wire.metrics[1].kind = 3, "metrics[1].kind");
    check_invalid(|wire| wire.metrics[2].labels.push(("a".to_owned(), String::new())), "metrics[2].labels");
    check_invalid(|wire| wire.metrics[3].labels = wire.metrics[2].labels.clone(), "metrics[3].labels");
    check_invalid(|wire| wire.events[0].level = 9, "events[0].level");
    check_invalid(|wire| wire.events[0].attributes.swap(0, 1), "events[0].attributes");
}

#[test]
fn nothing_is_written_that_would_not_be_read() {
    let mut packet = full_packet();
    packet.metrics[0].value = f64::INFINITY;
    assert!(matches!(encode_frame(&packet), Err(FrameError::Invalid(_))));
    let attributes: BTreeMap<_, _> = (0..32).map(|i| (format!("a{i}"), "x".repeat(1024))).collect();
    let event = EventRecord { name: "a".to_owned(), level: Level::Info, attributes };
    let huge = Packet { events: vec![event; 600], ..minimal_packet() };
    huge.validate().unwrap();
    assert!(matches!(encode_frame(&huge), Err(FrameError::TooLarge { .. })));
}

fn pairs(max_value: &'static str) -> impl Strategy<Value = BTreeMap<String, String>> {
    btree_map("[a-z_][a-z0-9_]{0,8}", max_value, 0..4)
}

prop_compose! {
    fn metric()(
        name in "[a-z0-9_]{1,6}(\\.[a-z0-9_]{1,6}){0,3}",
        labels in pairs("\\PC{0,30}"),
        value in any::<f64>().prop_filter("finite", |value| value.is_finite()),
        unit in prop::sample::select(&UNITS[..]),
        counts in any::<bool>(),
    ) -> Metric {
        Metric { name, labels, value, unit, kind: if counts { MetricKind::Counter } else { MetricKind::Gauge } }
    }
}

prop_compose! {
    fn event()(
        name in "[a-z0-9_]{1,6}(\\.[a-z0-9_]{1,6}){0,3}",
        level in prop::sample::select(&LEVELS[..]),
        attributes in pairs(".{0,60}"),
    ) -> EventRecord {
        EventRecord { name, level, attributes }
    }
}

prop_compose! {
    fn packet()(
        run_id in "[a-z0-9_-]{1,64}",
        numbers in (1_u64.., any::<u64>(), any::<u64>(), any::<u64>()),
        source in "[a-z]{1,10}",
        metrics in vec(metric(), 0..8),
        events in vec(event(), 0..5),
        status in prop::sample::select(&HEALTH[..]),
        summary in ".{0,60}",
    ) -> Packet {
        let (sequence, created_unix_ms, epoch, step) = numbers;
        let unique: BTreeMap<_, _> = metrics.into_iter().map(|m| ((m.name.clone(), m.labels.clone()), m)).collect();
        Packet {
            version: PACKET_VERSION,
            run_id: RunId::new(run_id).unwrap(),
            sequence,
            source,
            created_unix_ms,
            epoch: EpochIndex(epoch),
            step: StepIndex(step),
            level: Packet::level_of(&events),
            priority: Packet::priority_of(&events),
            metrics: unique.into_values().collect(),
            events,
            health: Health { status, summary },
        }
    }
}

proptest! {
    #[test]
    fn a_packet_survives_its_frame(packet in packet()) {
        let frame = encode_frame(&packet).unwrap();
        let (found, consumed) = decode_frame(&frame).unwrap();
        prop_assert_eq!(consumed, frame.len());
        prop_assert_eq!(&encode_frame(&found).unwrap(), &frame, "bit for bit");
        let (wire, _): (WirePacket, usize) = bincode::decode_from_slice(&frame[HEADER_BYTES..], codec()).unwrap();
        prop_assert_eq!(bincode::encode_to_vec(wire, codec()).unwrap(), &frame[HEADER_BYTES..], "as the codec writes it");
        prop_assert_eq!(found, packet);
    }

    #[test]
    fn junk_is_no_frame(junk in vec(any::<u8>(), 0..300)) {
        prop_assert!(decode_frame(&junk).is_err());
    }

    #[test]
    fn junk_after_the_magic_is_no_frame(junk in vec(any::<u8>(), 0..300)) {
        prop_assert!(decode_frame(&[&MAGIC[..], &junk].concat()).is_err());
    }

    #[test]
    fn a_sealed_payload_is_a_valid_packet_or_an_error(
        packet in packet(),
        edits in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut payload = payload_of(&packet);
        for (index, byte) in edits {
            let at = index.index(payload.len());
            payload[at] = byte;
        }
        if let Ok((found, _)) = decode_frame(&sealed(&payload)) {
            prop_assert_eq!(found.validate(), Ok(()));
        }
    }
}

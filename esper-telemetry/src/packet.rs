//! The packet: what a run looked like at one point, complete in itself.

use std::collections::{BTreeMap, BTreeSet};

use leyline::id::{EpochIndex, RunId, StepIndex};
use leyline::telemetry::{Event, Health, HealthStatus, Level, MetricKind, Priority, Unit};
use serde::Serialize;

use crate::name::{DOTTED, MAX_NAME_BYTES, PLAIN, clip, is_dotted, is_plain};

/// Version of the packet model and of its wire form.
pub const PACKET_VERSION: u16 = 1;

/// Source of the packets that the recorder makes on its own.
pub(crate) const OWN_SOURCE: &str = "telemetry";

/// Most metrics in a packet.
pub const MAX_METRICS: usize = 8192;

/// Most events in a packet.
pub const MAX_EVENTS: usize = 1024;

/// Most labels of a metric, and most attributes of an event.
pub const MAX_PAIRS: usize = 32;

/// Longest text that is not a name (attribute value, health summary), in bytes; a recorder cuts longer ones.
pub const MAX_TEXT_BYTES: usize = 1024;

/// Longest value of a label, in bytes; a recorder cuts longer ones.
pub const MAX_LABEL_BYTES: usize = MAX_NAME_BYTES;

/// All values of a run at one boundary and the events since the boundary before it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Packet {
    /// [`PACKET_VERSION`] of the writer.
    pub version: u16,
    /// The run.
    pub run_id: RunId,
    /// Grows by one with every packet of a recorder, from 1.
    pub sequence: u64,
    /// Who published, for example `tolaria`; `telemetry` for packets the recorder writes on its own.
    pub source: String,
    /// When the values were read, milliseconds since 1970-01-01 UTC.
    pub created_unix_ms: u64,
    /// Epochs completed.
    pub epoch: EpochIndex,
    /// Optimizer steps taken.
    pub step: StepIndex,
    /// The worst level among the events, `info` without events.
    pub level: Level,
    /// The highest priority among the events, `normal` without events.
    pub priority: Priority,
    /// Values by name and labels. What was not measured is not in the list.
    pub metrics: Vec<Metric>,
    /// Events in the order in which they were recorded.
    pub events: Vec<EventRecord>,
    /// State of the publisher, as it gave it.
    #[serde(with = "HealthFields")]
    pub health: Health,
}

/// One value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Metric {
    /// Name of the descriptor.
    pub name: String,
    /// Label values by label name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The value, finite.
    pub value: f64,
    /// Unit of the value.
    pub unit: Unit,
    /// How the metric behaves.
    pub kind: MetricKind,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EventRecord {
    /// Name of the descriptor.
    pub name: String,
    /// How bad it is.
    pub level: Level,
    /// Attribute values by attribute name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

/// A packet that breaks a rule of the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` must be {expected}")]
pub struct InvalidPacket {
    /// Path of the field, for example `metrics[3].value`.
    pub field: String,
    /// What is accepted.
    pub expected: &'static str,
}

impl Packet {
    /// The worst level among `events`.
    #[must_use]
    pub fn level_of(events: &[EventRecord]) -> Level {
        events.iter().map(|event| event.level).max().unwrap_or(Level::Info)
    }

    /// The highest priority among `events`. This is the only place where a priority is decided.
    #[must_use]
    pub fn priority_of(events: &[EventRecord]) -> Priority {
        Priority::from(Self::level_of(events))
    }

    /// The first metric of this name.
    #[must_use]
    pub fn metric(&self, name: &str) -> Option<&Metric> {
        self.metrics.iter().find(|metric| metric.name == name)
    }

    /// Checks every rule of the model. Frames are checked when written and when read.
    ///
    /// # Errors
    /// [`InvalidPacket`] with the first field that breaks a rule.
    pub fn validate(&self) -> Result<(), InvalidPacket> {
        require(self.version == PACKET_VERSION, || "version".to_owned(), "the version of this build")?;
        require(self.sequence > 0, || "sequence".to_owned(), "at least 1")?;
        require(is_dotted(&self.source), || "source".to_owned(), DOTTED)?;
        require(self.metrics.len() <= MAX_METRICS, || "metrics".to_owned(), "at most 8192 values")?;
        require(self.events.len() <= MAX_EVENTS, || "events".to_owned(), "at most 1024 events")?;
        require(self.level == Self::level_of(&self.events), || "level".to_owned(), "the worst level among the events")?;
        require(
            self.priority == Self::priority_of(&self.events),
            || "priority".to_owned(),
            "the highest among the events",
        )?;
        require(self.health.summary.len() <= MAX_TEXT_BYTES, || "health.summary".to_owned(), "at most 1024 bytes")?;
        for (index, metric) in self.metrics.iter().enumerate() {
            let at = |field| move || format!("metrics[{index}].{field}");
            require(is_dotted(&metric.name), at("name"), DOTTED)?;
            require(metric.value.is_finite(), at("value"), "finite")?;
            check_pairs(&metric.labels, MAX_LABEL_BYTES, at("labels"))?;
        }
        for (index, event) in self.events.iter().enumerate() {
            let at = |field| move || format!("events[{index}].{field}");
            require(is_dotted(&event.name), at("name"), DOTTED)?;
            check_pairs(&event.attributes, MAX_TEXT_BYTES, at("attributes"))?;
        }
        if let Some(index) = self.first_repeated_metric() {
            require(false, || format!("metrics[{index}].labels"), "used once per metric")?;
        }
        Ok(())
    }

    /// Index of a metric with the name and the labels of one before it.
    fn first_repeated_metric(&self) -> Option<usize> {
        // Hashes that differ are enough; to compare names, which begin alike, takes longer than all else of a check.
        let mut hashes = vec![0_u32; (4 * self.metrics.len()).next_power_of_two()];
        let places = hashes.len() - 1;
        let is_new = |metric: &Metric| {
            let texts = metric.labels.iter().flat_map(|(name, value)| [name, value]);
            let hash = texts.fold(mix(0, &metric.name), |hash, text| mix(hash, text));
            let (hash, place) = ((hash >> 32) as u32 | 1, (hash >> 24) as usize);
            // A place that is not 0 is taken; where many in a row are, names are compared.
            let mut places = (place..).take(32).map(|place| place & places);
            let free = places.find(|&place| hashes[place] == 0 || hashes[place] == hash);
            free.is_some_and(|free| std::mem::replace(&mut hashes[free], hash) == 0)
        };
        if self.metrics.iter().all(is_new) {
            return None;
        }
        let mut seen = BTreeSet::new();
        self.metrics.iter().position(|metric| !seen.insert((&metric.name, &metric.labels)))
    }
}

impl EventRecord {
    /// The record of `event`: attributes that its descriptor does not name are left out, long values are cut.
    pub(crate) fn of(event: &Event) -> Self {
        let attributes = event
            .attributes
            .iter()
            .filter(|(name, _)| event.desc.attributes.contains(name))
            .map(|(name, value)| ((*name).to_owned(), clip(value, MAX_TEXT_BYTES).to_owned()))
            .take(MAX_PAIRS)
            .collect();
        Self { name: event.desc.name.to_owned(), level: event.desc.level, attributes }
    }
}

/// The fields of [`Health`], which is not serializable itself.
#[derive(Serialize)]
#[serde(remote = "Health")]
struct HealthFields {
    status: HealthStatus,
    summary: String,
}

fn check_pairs(
    pairs: &BTreeMap<String, String>,
    max_value_bytes: usize,
    field: impl Fn() -> String,
) -> Result<(), InvalidPacket> {
    if pairs.is_empty() {
        return Ok(());
    }
    require(pairs.len() <= MAX_PAIRS, &field, "at most 32 pairs")?;
    require(pairs.keys().all(|name| is_plain(name)), &field, PLAIN)?;
    let short = pairs.values().all(|value| value.len() <= max_value_bytes);
    require(short, field, "texts of at most 128 bytes for labels, 1024 for attributes")
}

/// A hash of `text` after what `hash` is of, by words of eight bytes: names are too short for a checksum to be quick.
fn mix(hash: u64, text: &str) -> u64 {
    let mix = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    let (words, rest) = text.as_bytes().as_chunks::<8>();
    let rest = match text.as_bytes().last_chunk::<8>() {
        Some(last) => u64::from_le_bytes(*last),
        None => rest.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    };
    let hash = mix(hash, text.len() as u64);
    mix(words.iter().fold(hash, |hash, word| mix(hash, u64::from_le_bytes(*word))), rest)
}

/// The field is only turned into text when the rule is broken.
fn require(holds: bool, field: impl FnOnce() -> String, expected: &'static str) -> Result<(), InvalidPacket> {
    if holds { Ok(()) } else { Err(InvalidPacket { field: field(), expected }) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A packet with every field in use.
    pub(crate) fn full_packet() -> Packet {
        let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let metric = |name: &str, labels: &[(&str, &str)], value, unit, kind| Metric {
            name: name.to_owned(),
            labels: pairs(labels),
            value,
            unit,
            kind,
        };
        Packet {
            version: PACKET_VERSION,
            run_id: RunId::new("run-1").unwrap(),
            sequence: 7,
            source: "tolaria".to_owned(),
            created_unix_ms: 1_700_000_000_123,
            epoch: EpochIndex(3),
            step: StepIndex(300),
            level: Level::Critical,
            priority: Priority::Critical,
            metrics: vec![
                metric("tolaria.training.loss", &[], 0.25, Unit::Nats, MetricKind::Gauge),
                metric("tolaria.epochs.total", &[], 3.0, Unit::Count, MetricKind::Counter),
                metric("kasmina.seed.alpha", &[("seed_id", "seed-1")], 0.5, Unit::Ratio, MetricKind::Gauge),
                metric("kasmina.seed.alpha", &[("seed_id", "seed-2")], -0.0, Unit::Ratio, MetricKind::Gauge),
            ],
            events: vec![
                EventRecord {
                    name: "seed_stage".to_owned(),
                    level: Level::Info,
                    attributes: pairs(&[("from", "training"), ("to", "blending")]),
                },
                EventRecord { name: "tolaria.halt".to_owned(), level: Level::Critical, attributes: pairs(&[]) },
            ],
            health: Health { status: HealthStatus::Degraded, summary: "grad_conflict_high".to_owned() },
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Packet), field: &str) {
        let mut packet = full_packet();
        change(&mut packet);
        assert_eq!(packet.validate().unwrap_err().field, field);
    }

    #[test]
    fn a_packet_with_every_field_in_use_is_valid() {
        full_packet().validate().unwrap();
    }

    #[test]
    fn every_rule_is_checked_and_names_its_field() {
        check(|p| p.version = 2, "version");
        check(|p| p.sequence = 0, "sequence");
        check(|p| p.source.clear(), "source");
        check(|p| p.level = Level::Info, "level");
        check(|p| p.priority = Priority::High, "priority");
        check(|p| p.health.summary = "x".repeat(MAX_TEXT_BYTES + 1), "health.summary");
        check(|p| p.metrics[1].name = "A".to_owned(), "metrics[1].name");
        check(|p| p.metrics[0].value = f64::NAN, "metrics[0].value");
        check(|p| p.metrics[0].value = f64::NEG_INFINITY, "metrics[0].value");
        check(|p| p.metrics[3].labels = p.metrics[2].labels.clone(), "metrics[3].labels");
        check(|p| _ = p.metrics[2].labels.insert("a.b".to_owned(), String::new()), "metrics[2].labels");
        check(|p| _ = p.metrics[2].labels.insert("a".to_owned(), "x".repeat(129)), "metrics[2].labels");
        check(|p| p.events[1].name = "a b".to_owned(), "events[1].name");
        check(|p| _ = p.events[0].attributes.insert("a".to_owned(), "x".repeat(1025)), "events[0].attributes");
        check(
            |p| p.events[0].attributes.extend((0..40).map(|i| (format!("a{i}"), String::new()))),
            "events[0].attributes",
        );
        check(|p| p.metrics = vec![p.metrics[0].clone(); MAX_METRICS + 1], "metrics");
        check(|p| p.events = vec![p.events[1].clone(); MAX_EVENTS + 1], "events");
    }

    #[test]
    fn one_metric_of_very_many_that_is_there_twice_is_found() {
        let mut packet = full_packet();
        let named = |name| Metric { name, ..full_packet().metrics[0].clone() };
        packet.metrics = (0..MAX_METRICS).map(|number| named(format!("a.metric_{number}"))).collect();
        packet.validate().unwrap();
        for (first, second) in [(0, MAX_METRICS - 1), (1, 2), (5000, 5001)] {
            let mut repeated = packet.clone();
            repeated.metrics[second] = repeated.metrics[first].clone();
            assert_eq!(repeated.validate().unwrap_err().field, format!("metrics[{second}].labels"));
        }
    }

    #[test]
    fn level_and_priority_are_those_of_the_worst_event() {
        let of = |levels: &[Level]| {
            let record = |&level| EventRecord { name: "a".to_owned(), level, attributes: BTreeMap::new() };
            let events: Vec<_> = levels.iter().map(record).collect();
            (Packet::level_of(&events), Packet::priority_of(&events))
        };
        assert_eq!(of(&[]), (Level::Info, Priority::Normal));
        assert_eq!(of(&[Level::Info]), (Level::Info, Priority::Normal));
        assert_eq!(of(&[Level::Warning, Level::Info]), (Level::Warning, Priority::High));
        assert_eq!(of(&[Level::Error, Level::Critical, Level::Info]), (Level::Critical, Priority::Critical));
    }
}

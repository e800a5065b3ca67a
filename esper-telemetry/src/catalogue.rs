//! The catalogue: every metric and event of a program, checked and sorted; documents and exporters are made from it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use leyline::telemetry::{EventDesc, Level, MetricDesc, MetricKind, Unit};

use crate::error::Error;
use crate::name::{DOTTED, PLAIN, is_dotted, is_plain};
use crate::packet::MAX_PAIRS;
use crate::prometheus::PrometheusName;
use crate::telemetry;

/// The descriptor lists that one subsystem publishes.
pub type Group = (&'static [&'static MetricDesc], &'static [&'static EventDesc]);

/// All descriptors of a program, each name once. Metrics and events are named apart: an event may share the name of
/// the metric that counts it.
#[derive(Debug, Clone)]
pub struct Catalogue {
    metrics: BTreeMap<&'static str, &'static MetricDesc>,
    events: BTreeMap<&'static str, &'static EventDesc>,
}

impl Catalogue {
    /// Collects the descriptors of `groups` and those of this crate ([`telemetry::METRICS`], [`telemetry::EVENTS`]).
    ///
    /// # Errors
    /// [`Error::InvalidName`], [`Error::DuplicateName`], and [`Error::PrometheusCollision`] when two metrics would be
    /// exported under one name.
    pub fn new(groups: &[Group]) -> Result<Self, Error> {
        let mut catalogue = Self { metrics: BTreeMap::new(), events: BTreeMap::new() };
        for (metrics, events) in groups.iter().chain([&(telemetry::METRICS, telemetry::EVENTS)]) {
            for desc in *metrics {
                catalogue.add_metric(desc)?;
            }
            for desc in *events {
                catalogue.add_event(desc)?;
            }
        }
        let mut exported = BTreeMap::new();
        for desc in catalogue.metrics() {
            let prometheus = PrometheusName::of(desc).family().to_owned();
            if let Some(first) = exported.insert(prometheus.clone(), desc.name) {
                return Err(Error::PrometheusCollision { prometheus, first, second: desc.name });
            }
        }
        Ok(catalogue)
    }

    /// Every metric, by name.
    pub fn metrics(&self) -> impl Iterator<Item = &'static MetricDesc> {
        self.metrics.values().copied()
    }

    /// Every event, by name.
    pub fn events(&self) -> impl Iterator<Item = &'static EventDesc> {
        self.events.values().copied()
    }

    /// The metric of this name.
    #[must_use]
    pub fn metric(&self, name: &str) -> Option<&'static MetricDesc> {
        self.metrics.get(name).copied()
    }

    /// The event of this name.
    #[must_use]
    pub fn event(&self, name: &str) -> Option<&'static EventDesc> {
        self.events.get(name).copied()
    }

    /// The reference of all metrics and events as Markdown.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let mut out = String::from("# Telemetry\n\nGenerated from the descriptors in the code; do not edit.\n");
        out.push_str(
            "\n## Metrics\n\n| name | kind | unit | labels | Prometheus | meaning |\n|---|---|---|---|---|---|\n",
        );
        for desc in self.metrics() {
            row(
                &mut out,
                [
                    code(desc.name),
                    kind_name(desc.kind).to_owned(),
                    unit_name(desc.unit).to_owned(),
                    codes(desc.labels),
                    code(&PrometheusName::of(desc).name),
                    cell(desc.help),
                ],
            );
        }
        out.push_str("\n## Events\n\n| name | level | attributes | meaning |\n|---|---|---|---|\n");
        for desc in self.events() {
            let level = level_name(desc.level).to_owned();
            row(&mut out, [code(desc.name), level, codes(desc.attributes), cell(desc.help)]);
        }
        out
    }

    fn add_metric(&mut self, desc: &'static MetricDesc) -> Result<(), Error> {
        check_names("a metric", desc.name, "a label", desc.labels)?;
        match self.metrics.insert(desc.name, desc) {
            Some(_) => Err(Error::DuplicateName { what: "metric", name: desc.name }),
            None => Ok(()),
        }
    }

    fn add_event(&mut self, desc: &'static EventDesc) -> Result<(), Error> {
        check_names("an event", desc.name, "an attribute", desc.attributes)?;
        match self.events.insert(desc.name, desc) {
            Some(_) => Err(Error::DuplicateName { what: "event", name: desc.name }),
            None => Ok(()),
        }
    }
}

/// Checks the name of a descriptor and the names of its labels or attributes, which must differ from each other.
pub(crate) fn check_names(
    what: &'static str,
    name: &'static str,
    part: &'static str,
    parts: &'static [&'static str],
) -> Result<(), Error> {
    if !is_dotted(name) {
        return Err(Error::InvalidName { what, name, expected: DOTTED });
    }
    for (index, &name) in parts.iter().enumerate() {
        if index >= MAX_PAIRS {
            return Err(Error::InvalidName { what: part, name, expected: "at most 32 names per descriptor" });
        }
        if !is_plain(name) {
            return Err(Error::InvalidName { what: part, name, expected: PLAIN });
        }
        if parts[..index].contains(&name) {
            return Err(Error::InvalidName { what: part, name, expected: "each name once per descriptor" });
        }
    }
    Ok(())
}

/// The word for a unit, as in documents and decoded packets.
pub(crate) fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Count => "count",
        Unit::Ratio => "ratio",
        Unit::Flag => "flag",
        Unit::State => "state",
        Unit::Milliseconds => "ms",
        Unit::Bytes => "bytes",
        Unit::Nats => "nats",
        Unit::PercentagePoints => "percentage points",
        Unit::GradientNorm => "gradient norm",
        Unit::LearningRate => "learning rate",
        Unit::SamplesPerSecond => "samples/s",
    }
}

/// The word for a level, as in documents and decoded packets.
pub(crate) fn level_name(level: Level) -> &'static str {
    match level {
        Level::Info => "info",
        Level::Warning => "warning",
        Level::Error => "error",
        Level::Critical => "critical",
    }
}

fn kind_name(kind: MetricKind) -> &'static str {
    match kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
    }
}

fn row<const N: usize>(out: &mut String, cells: [String; N]) {
    for cell in cells {
        write!(out, "| {cell} ").expect("writing to a string does not fail");
    }
    out.push_str("|\n");
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

fn codes(names: &[&str]) -> String {
    names.iter().map(|name| code(name)).collect::<Vec<_>>().join(", ")
}

fn cell(text: &str) -> String {
    text.trim().replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! gauges {
        ($($name:literal $unit:ident [$($label:literal),*]);*) => {
            &[$(&MetricDesc {
                name: $name, kind: MetricKind::Gauge, unit: Unit::$unit, help: "a | b", labels: &[$($label),*],
            }),*]
        };
    }

    const EVENT: &EventDesc =
        &EventDesc { name: "a.loss", level: Level::Critical, help: "falls", attributes: &["why"] };

    #[track_caller]
    fn check_refused(groups: &[Group], expected: &str) {
        assert_eq!(Catalogue::new(groups).unwrap_err().to_string(), expected);
    }

    #[test]
    fn descriptors_are_sorted_and_those_of_this_crate_are_added() {
        static METRICS: &[&MetricDesc] = gauges!["z.last" Count []; "a.loss" Nats ["seed_id"]];
        let catalogue = Catalogue::new(&[(METRICS, &[EVENT])]).unwrap();
        let names: Vec<_> = catalogue.metrics().map(|desc| desc.name).collect();
        assert!(names.is_sorted());
        assert_eq!(names.len(), 2 + telemetry::METRICS.len());
        assert!(catalogue.metric("esper.telemetry.dropped_total").is_some());
        assert_eq!(catalogue.event("a.loss"), Some(EVENT), "an event may share the name of a metric");
        assert_eq!(catalogue.metric("a.los"), None);
    }

    #[test]
    fn names_appear_once() {
        static METRICS: &[&MetricDesc] = gauges!["a.loss" Nats []];
        check_refused(&[(METRICS, &[]), (METRICS, &[])], "two metric descriptors are named `a.loss`");
        check_refused(&[(&[], &[EVENT, EVENT])], "two event descriptors are named `a.loss`");
        check_refused(&[(telemetry::METRICS, &[])], "two metric descriptors are named `esper.telemetry.dropped_total`");
    }

    #[test]
    fn names_use_the_accepted_characters() {
        static METRIC: &[&MetricDesc] = gauges!["a.Loss" Nats []];
        static LABEL: &[&MetricDesc] = gauges!["a.loss" Nats ["seed.id"]];
        static TWICE: &[&MetricDesc] = gauges!["a.loss" Nats ["seed", "seed"]];
        check_refused(&[(METRIC, &[])], &format!("`a.Loss` is no name of a metric: expected {DOTTED}"));
        check_refused(&[(LABEL, &[])], &format!("`seed.id` is no name of a label: expected {PLAIN}"));
        check_refused(&[(TWICE, &[])], "`seed` is no name of a label: expected each name once per descriptor");
    }

    #[test]
    fn two_metrics_never_share_a_prometheus_name() {
        static METRICS: &[&MetricDesc] = gauges!["a.b_c" Count []; "a.b.c" Count []];
        check_refused(&[(METRICS, &[])], "`a.b.c` and `a.b_c` would both be exported as `esper_a_b_c`");
        const GAUGE: MetricDesc =
            MetricDesc { name: "a.mode", kind: MetricKind::Gauge, unit: Unit::Count, help: "", labels: &[] };
        // In OpenMetrics the family of a counter is without its `_total`.
        static FAMILY: &[&MetricDesc] =
            &[&GAUGE, &MetricDesc { name: "a.mode_total", kind: MetricKind::Counter, ..GAUGE }];
        check_refused(&[(FAMILY, &[])], "`a.mode` and `a.mode_total` would both be exported as `esper_a_mode`");
    }

    #[test]
    fn the_reference_has_a_row_per_descriptor_and_escapes_the_separator() {
        static METRICS: &[&MetricDesc] = gauges!["a.wait_ms" Milliseconds ["seed_id", "rank"]];
        let text = Catalogue::new(&[(METRICS, &[EVENT])]).unwrap().to_markdown();
        assert!(
            text.contains("| `a.wait_ms` | gauge | ms | `seed_id`, `rank` | `esper_a_wait_seconds` | a \\| b |\n"),
            "{text}"
        );
        assert!(text.contains("| `a.loss` | critical | `why` | falls |\n"), "{text}");
        let rows = text.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(rows, 2 + telemetry::METRICS.len() + telemetry::EVENTS.len());
    }
}

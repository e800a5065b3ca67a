//! What a Prometheus server reads: every series of a recorder, with base units, as OpenMetrics text.
//!
//! Reading shares a lock with whoever asks for a handle for the first time, for as long as it takes to read the values, one
//! relaxed load each, and to copy the names of new series.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use leyline::telemetry::{Counter, EventDesc, MetricDesc, MetricKind};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry as Families;

use crate::catalogue::level_name;
use crate::ledger::Ledger;
use crate::prometheus::PrometheusName;
use crate::recorder::TelemetryRecorder;
use crate::registry::{Registry, Series};
use crate::telemetry;

/// Media type of [`Exposition::text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Reads a recorder as often as it is asked to.
///
/// Counters without labels and those of events are there from the start, at 0. A gauge that was not measured is absent,
/// and so is one that is not finite.
#[derive(Debug)]
pub struct Exposition {
    families: Families,
}

impl Exposition {
    /// Reads `recorder`. `build` becomes the labels of `esper_build_info`.
    #[must_use]
    pub fn new(recorder: &TelemetryRecorder, build: Vec<(&'static str, String)>) -> Self {
        let mut families = Families::default();
        families.register("esper_build", "The program that trains", Info::new(build));
        let (registry, ledger) = recorder.parts();
        families.register_collector(Box::new(Recorded { registry, ledger, mirror: Mutex::default() }));
        Self { families }
    }

    /// All series as they are now, or were at the [end of the run](crate::Guard::end_run); see [`CONTENT_TYPE`].
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        text::encode(&mut out, &self.families).expect("writing to a string does not fail");
        out
    }
}

#[derive(Debug)]
struct Recorded {
    registry: Arc<Registry>,
    ledger: Arc<Ledger>,
    mirror: Mutex<Vec<Series>>,
}

type Label<'a> = (&'a str, &'a str);

/// A value with its labels.
type Labelled<'a> = (Vec<Label<'a>>, f64);

impl Collector for Recorded {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut mirror = self.mirror.lock().unwrap_or_else(PoisonError::into_inner);
        self.ledger.tell_waiting();
        let now = self.registry.read();
        // Those that are new since then are of the next time.
        self.registry.extend(&mut mirror);
        let mut families: BTreeMap<&str, (&MetricDesc, Vec<Labelled<'_>>)> = BTreeMap::new();
        for (series, value) in mirror.iter().zip(now) {
            let (_, values) = families.entry(series.desc().name).or_insert((series.desc(), Vec::new()));
            values.extend(value.filter(|value| value.is_finite()).map(|value| (series.labels().collect(), value)));
        }
        for desc in self.registry.catalogue().metrics().filter(|desc| is_bare_counter(desc)) {
            families.entry(desc.name).or_insert((desc, vec![(Vec::new(), 0.0)]));
        }
        let of_event = |(desc, count): &(&'static EventDesc, Counter)| {
            (vec![("event", desc.name), ("level", level_name(desc.level))], count.get() as f64)
        };
        let desc = &telemetry::EVENTS_BY_NAME;
        families.insert(desc.name, (desc, self.ledger.by_name().map(of_event).collect()));
        families.values().try_for_each(|(desc, values)| family(&mut encoder, desc, values))
    }
}

fn is_bare_counter(desc: &MetricDesc) -> bool {
    desc.kind == MetricKind::Counter && desc.labels.is_empty()
}

fn family(encoder: &mut DescriptorEncoder<'_>, desc: &MetricDesc, values: &[Labelled<'_>]) -> fmt::Result {
    if values.is_empty() {
        return Ok(());
    }
    let name = PrometheusName::of(desc);
    let kind = match desc.kind {
        MetricKind::Counter => MetricType::Counter,
        MetricKind::Gauge => MetricType::Gauge,
    };
    // The encoder adds the suffix of a counter.
    let mut metric = encoder.encode_descriptor(name.family(), desc.help.trim(), None, kind)?;
    for (labels, value) in values {
        let value = value * name.scale;
        if labels.is_empty() {
            put(&mut metric, desc.kind, value)?;
        } else {
            put(&mut metric.encode_family(labels)?, desc.kind, value)?;
        }
    }
    Ok(())
}

fn put(encoder: &mut MetricEncoder<'_>, kind: MetricKind, value: f64) -> fmt::Result {
    match kind {
        MetricKind::Counter => encoder.encode_counter(&value, None::<&Exemplar<[Label<'_>; 0], f64>>),
        MetricKind::Gauge => encoder.encode_gauge(&value),
    }
}

#[cfg(test)]
mod tests {
    use leyline::clock::SystemClock;
    use leyline::id::RunId;
    use leyline::telemetry::{Event, Level, Recorder as _, Unit};

    use super::*;
    use crate::{Catalogue, QueueConfig};

    static LATENCY: MetricDesc = desc("a.latency_ms", MetricKind::Gauge, Unit::Milliseconds, &[]);
    static ALPHA: MetricDesc = desc("a.alpha", MetricKind::Gauge, Unit::Ratio, &["seed_id"]);
    static FAILED: MetricDesc = desc("a.failures_total", MetricKind::Counter, Unit::Count, &[]);
    static REFUSED: MetricDesc = desc("a.refused_total", MetricKind::Counter, Unit::Count, &["reason"]);
    static HALT: EventDesc = EventDesc { name: "a.halt", level: Level::Critical, help: "", attributes: &[] };

    const fn desc(name: &'static str, kind: MetricKind, unit: Unit, labels: &'static [&'static str]) -> MetricDesc {
        MetricDesc { name, kind, unit, help: "Of a test", labels }
    }

    /// The lines that are samples and begin so.
    fn samples(text: &str, prefix: &str) -> Vec<String> {
        text.lines().filter(|line| line.starts_with(prefix)).map(str::to_owned).collect()
    }

    #[test]
    fn counters_are_there_at_zero_gauges_when_they_are_measured_and_units_are_base_units() {
        static METRICS: &[&MetricDesc] = &[&LATENCY, &ALPHA, &FAILED, &REFUSED];
        static EVENTS: &[&EventDesc] = &[&HALT];
        let catalogue = Catalogue::new(&[(METRICS, EVENTS)]).unwrap();
        let (run, clock) = (RunId::new("run-1").unwrap(), Arc::new(SystemClock::new()));
        let (recorder, _guard) =
            TelemetryRecorder::start(run, catalogue, Vec::new(), QueueConfig::default(), clock).unwrap();
        let exposition = Exposition::new(&recorder, vec![("version", "1 \"x\"\\\n".to_owned())]);
        let latency = recorder.gauge(&LATENCY, &[]);
        let alpha = recorder.gauge(&ALPHA, &["a \"quoted\"\\\nname"]);
        let before = exposition.text();
        assert_eq!(samples(&before, "esper_a_"), ["esper_a_failures_total 0.0"]);
        assert_eq!(
            samples(&before, "esper_events_total{event=\"a"),
            ["esper_events_total{event=\"a.halt\",level=\"critical\"} 0.0"]
        );
        latency.set(250.0);
        alpha.set(f64::NAN);
        recorder.counter(&REFUSED, &["late"]).add(2);
        recorder.counter(&FAILED, &[]).add(1);
        recorder.event(Event::new(&HALT));
        let after = exposition.text();
        assert_eq!(
            samples(&after, "esper_a_"),
            [
                "esper_a_failures_total 1.0",
                "esper_a_latency_seconds 0.25",
                "esper_a_refused_total{reason=\"late\"} 2.0",
            ]
        );
        assert_eq!(
            samples(&after, "esper_events_total{event=\"a"),
            ["esper_events_total{event=\"a.halt\",level=\"critical\"} 1.0"]
        );
        alpha.set(0.5);
        let escaped = "esper_a_alpha_ratio{seed_id=\"a \\\"quoted\\\"\\\\\\nname\"} 0.5";
        assert_eq!(samples(&exposition.text(), "esper_a_alpha"), [escaped]);
        assert!(after.ends_with("# EOF\n"));
        assert_eq!(samples(&after, "# TYPE esper_a_failures"), ["# TYPE esper_a_failures counter"]);
    }
}

//! A packet in the messages of OTLP.

use std::collections::BTreeMap;

use leyline::id::RunId;
use leyline::telemetry::{Level, MetricKind};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, SeverityNumber};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Metric, NumberDataPoint, Sum, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;

use crate::catalogue::level_name;
use crate::packet::{self, Packet};
use crate::prometheus::OtlpName;

/// What sends: this program, with the run as its instance.
pub(super) fn resource(run: &RunId) -> Resource {
    let attributes = [
        ("service.name", "esper"),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", run.as_str()),
    ];
    Resource { attributes: attributes.map(|(key, text)| attribute(key, text)).into(), ..Resource::default() }
}

pub(super) fn scope() -> InstrumentationScope {
    InstrumentationScope { name: "esper-telemetry".to_owned(), ..InstrumentationScope::default() }
}

/// One metric for each name, with a point for each set of labels. Sums begin at `started_unix_nano`.
pub(super) fn metrics(packet: &Packet, started_unix_nano: u64) -> Vec<Metric> {
    let time_unix_nano = unix_nano(packet);
    let mut by_name: BTreeMap<&str, Vec<&packet::Metric>> = BTreeMap::new();
    for metric in &packet.metrics {
        by_name.entry(&metric.name).or_default().push(metric);
    }
    let one = |(name, series): (&str, Vec<&packet::Metric>)| {
        let first = series.first()?;
        let OtlpName { name, unit, scale } = OtlpName::of(name, first.unit);
        let is_sum = first.kind == MetricKind::Counter;
        let point = |metric: &&packet::Metric| NumberDataPoint {
            attributes: attributes(&metric.labels),
            start_time_unix_nano: if is_sum { started_unix_nano } else { 0 },
            time_unix_nano,
            value: Some(number_data_point::Value::AsDouble(metric.value * scale)),
            ..NumberDataPoint::default()
        };
        let data_points = series.iter().map(point).collect();
        let data = if is_sum {
            let aggregation_temporality = AggregationTemporality::Cumulative.into();
            Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic: true })
        } else {
            Data::Gauge(Gauge { data_points })
        };
        Some(Metric { name, unit: unit.to_owned(), data: Some(data), ..Metric::default() })
    };
    by_name.into_iter().filter_map(one).collect()
}

/// The events as log records, each with its name as its body too, since not every receiver shows names of events.
pub(super) fn logs(packet: &Packet) -> Vec<LogRecord> {
    let time_unix_nano = unix_nano(packet);
    let one = |event: &packet::EventRecord| LogRecord {
        time_unix_nano,
        observed_time_unix_nano: time_unix_nano,
        severity_number: severity(event.level).into(),
        severity_text: level_name(event.level).to_owned(),
        body: Some(text(&event.name)),
        attributes: attributes(&event.attributes),
        event_name: event.name.clone(),
        ..LogRecord::default()
    };
    packet.events.iter().map(one).collect()
}

fn unix_nano(packet: &Packet) -> u64 {
    packet.created_unix_ms.saturating_mul(1_000_000)
}

fn severity(level: Level) -> SeverityNumber {
    match level {
        Level::Info => SeverityNumber::Info,
        Level::Warning => SeverityNumber::Warn,
        Level::Error => SeverityNumber::Error,
        Level::Critical => SeverityNumber::Fatal,
    }
}

fn attributes(pairs: &BTreeMap<String, String>) -> Vec<KeyValue> {
    pairs.iter().map(|(key, value)| attribute(key, value)).collect()
}

fn attribute(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(text(value)), ..KeyValue::default() }
}

fn text(text: &str) -> AnyValue {
    AnyValue { value: Some(Value::StringValue(text.to_owned())) }
}

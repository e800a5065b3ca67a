//! How a metric is called in Prometheus: `esper_` prefix, base units, `_total` for counters and for nothing else; and in OpenTelemetry.
//!
//! Names in packets keep their own units; [`PrometheusName::scale`] turns a packet's value into the base unit.

use leyline::telemetry::{MetricDesc, MetricKind, Unit};

/// The exported form of one metric.
#[derive(Debug, Clone, PartialEq)]
pub struct PrometheusName {
    /// The name, for example `esper_tolaria_training_latency_seconds`.
    pub name: String,
    /// What a packet's value is multiplied by to be in the unit of the name.
    pub scale: f64,
}

impl PrometheusName {
    /// The exported form of `desc`.
    #[must_use]
    pub fn of(desc: &MetricDesc) -> Self {
        let base = base_unit(desc.unit);
        let mut name = stem(desc.name, &base).replace('.', "_");
        if !name.ends_with(base.suffix) {
            name.push_str(base.suffix);
        }
        if desc.kind == MetricKind::Counter {
            name.push_str("_total");
        }
        Self { name, scale: base.scale }
    }

    /// The family in OpenMetrics, which for a counter has no `_total`.
    pub(crate) fn family(&self) -> &str {
        self.name.trim_end_matches("_total")
    }
}

/// The form of one metric in OpenTelemetry, which a collector exports to Prometheus under its [`PrometheusName`]: collectors write dots as `_`,
/// add the unit, and `_total` to sums that only grow.
///
/// ```
/// use esper_telemetry::prometheus::OtlpName;
/// use leyline::telemetry::Unit;
///
/// let found = OtlpName::of("tolaria.training.latency_ms", Unit::Milliseconds);
/// assert_eq!((found.name.as_str(), found.unit, found.scale), ("esper.tolaria.training.latency", "s", 1e-3));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct OtlpName {
    /// The name, for example `esper.tolaria.training.latency`.
    pub name: String,
    /// The unit in UCUM: `s`, `By`, `1`, `{sample}/s`, or what is counted, in braces.
    pub unit: &'static str,
    /// What a packet's value is multiplied by to be in that unit.
    pub scale: f64,
}

impl OtlpName {
    /// The form of the metric that packets call `name`.
    #[must_use]
    pub fn of(name: &str, unit: Unit) -> Self {
        let base = base_unit(unit);
        let counted = if unit == Unit::SamplesPerSecond { "_samples" } else { "" };
        Self { name: stem(name, &base) + counted, unit: base.ucum, scale: base.scale }
    }
}

/// The name with the prefix and without its unit, dots as they are.
fn stem(name: &str, base: &BaseUnit) -> String {
    let mut stem = match name.split('.').next() {
        Some("esper") => name.to_owned(),
        _ => format!("esper.{name}"),
    };
    // A gauge that ends in `_total` would be taken for a counter.
    for suffix in ["_total"].iter().chain(base.spoken) {
        if stem.replace('.', "_").ends_with(suffix) {
            stem.truncate(stem.len() - suffix.len());
        }
    }
    stem
}

struct BaseUnit {
    suffix: &'static str,
    /// How names in packets spell the unit.
    spoken: &'static [&'static str],
    scale: f64,
    ucum: &'static str,
}

fn base_unit(unit: Unit) -> BaseUnit {
    let plain = |ucum| BaseUnit { suffix: "", spoken: &[], scale: 1.0, ucum };
    match unit {
        Unit::Milliseconds => BaseUnit { suffix: "_seconds", spoken: &["_ms"], scale: 1e-3, ucum: "s" },
        Unit::Bytes => BaseUnit { suffix: "_bytes", ..plain("By") },
        Unit::Ratio => BaseUnit { suffix: "_ratio", ..plain("1") },
        Unit::PercentagePoints => {
            BaseUnit { suffix: "_ratio", spoken: &["_pp", "_percentage_points"], scale: 1e-2, ucum: "1" }
        }
        Unit::SamplesPerSecond => {
            BaseUnit { suffix: "_samples_per_second", spoken: &["_samples_per_s"], ..plain("{sample}/s") }
        }
        Unit::Count => plain("{count}"),
        Unit::Flag => plain("{flag}"),
        Unit::State => plain("{state}"),
        Unit::Nats => plain("{nat}"),
        Unit::GradientNorm => plain("{gradient_norm}"),
        Unit::LearningRate => plain("{learning_rate}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &'static str, kind: MetricKind, unit: Unit, expected: &str, scale: f64) {
        let found = PrometheusName::of(&MetricDesc { name, kind, unit, help: "", labels: &[] });
        assert_eq!(found, PrometheusName { name: expected.to_owned(), scale });
    }

    #[test]
    fn gauges_get_the_prefix_and_the_base_unit_once() {
        use MetricKind::Gauge;
        check("tolaria.training.loss", Gauge, Unit::Nats, "esper_tolaria_training_loss", 1.0);
        check("tolaria.hook.latency_ms", Gauge, Unit::Milliseconds, "esper_tolaria_hook_latency_seconds", 1e-3);
        check("a.wait", Gauge, Unit::Milliseconds, "esper_a_wait_seconds", 1e-3);
        check("a.size_bytes", Gauge, Unit::Bytes, "esper_a_size_bytes", 1.0);
        check("a.size", Gauge, Unit::Bytes, "esper_a_size_bytes", 1.0);
        check("a.conflict_ratio", Gauge, Unit::Ratio, "esper_a_conflict_ratio", 1.0);
        check("a.share", Gauge, Unit::Ratio, "esper_a_share_ratio", 1.0);
        check("a.gain_pp", Gauge, Unit::PercentagePoints, "esper_a_gain_ratio", 1e-2);
        check("a.samples_per_s", Gauge, Unit::SamplesPerSecond, "esper_a_samples_per_second", 1.0);
        check("a.throughput", Gauge, Unit::SamplesPerSecond, "esper_a_throughput_samples_per_second", 1.0);
    }

    #[test]
    fn counters_and_only_counters_end_in_total() {
        use MetricKind::{Counter, Gauge};
        check("tolaria.epochs.failed", Counter, Unit::Count, "esper_tolaria_epochs_failed_total", 1.0);
        check("tolaria.steps.total", Counter, Unit::Count, "esper_tolaria_steps_total", 1.0);
        check("a.busy_ms_total", Counter, Unit::Milliseconds, "esper_a_busy_seconds_total", 1e-3);
        check("tolaria.grad_agg.microbatches_total", Gauge, Unit::Count, "esper_tolaria_grad_agg_microbatches", 1.0);
        check("esper.telemetry.dropped_total", Counter, Unit::Count, "esper_telemetry_dropped_total", 1.0);
    }
}

//! How a metric is called in Prometheus: `esper_` prefix, base units, `_total` for counters and for nothing else.
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
        let flat = desc.name.replace('.', "_");
        let mut name = if flat.starts_with("esper_") { flat } else { format!("esper_{flat}") };
        // A gauge that ends in `_total` would be taken for a counter.
        strip(&mut name, "_total");
        let base = base_unit(desc.unit);
        base.spoken.iter().for_each(|suffix| strip(&mut name, suffix));
        if !name.ends_with(base.suffix) {
            name.push_str(base.suffix);
        }
        if desc.kind == MetricKind::Counter {
            name.push_str("_total");
        }
        Self { name, scale: base.scale }
    }
}

struct BaseUnit {
    suffix: &'static str,
    /// How names in packets spell the unit.
    spoken: &'static [&'static str],
    scale: f64,
}

fn base_unit(unit: Unit) -> BaseUnit {
    let (suffix, spoken, scale): (_, &'static [&'static str], _) = match unit {
        Unit::Milliseconds => ("_seconds", &["_ms"], 1e-3),
        Unit::Bytes => ("_bytes", &[], 1.0),
        Unit::Ratio => ("_ratio", &[], 1.0),
        Unit::PercentagePoints => ("_ratio", &["_pp", "_percentage_points"], 1e-2),
        Unit::SamplesPerSecond => ("_samples_per_second", &["_samples_per_s"], 1.0),
        Unit::Count | Unit::Flag | Unit::State | Unit::Nats | Unit::GradientNorm | Unit::LearningRate => ("", &[], 1.0),
    };
    BaseUnit { suffix, spoken, scale }
}

fn strip(name: &mut String, suffix: &str) {
    if name.ends_with(suffix) {
        name.truncate(name.len() - suffix.len());
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

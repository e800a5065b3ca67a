//! The handles of the seed manager, and what each thing that happens writes to them.

use std::sync::Arc;
use std::time::Duration;

use leyline::command::Order;
use leyline::id::SeedId;
use leyline::seed::{AttributionMode, GateReport, Transition};
use leyline::telemetry::{Counter, Event, Gauge, Recorder};

use super::seeds::{SeedGauges, SeedReading, count};
use super::{events, metrics};
use crate::manager::numbered;

/// Coverage of an order's inputs below which it is reported.
const DEGRADED_COVERAGE: f64 = 0.3;

/// The handles of the seed manager.
#[derive(Debug)]
pub(crate) struct Telemetry {
    recorder: Arc<dyn Recorder>,
    seeds: SeedGauges,
    apply_ms: Gauge,
    finalize_ms: Gauge,
    restore_ms: Gauge,
    prewarm_ms: Gauge,
    audits: Counter,
    violations: Counter,
    total_violations: u64,
    reported_violations: u64,
    fallbacks: Counter,
    in_fallback: bool,
    history_size: Gauge,
    history_dropped: (Counter, u64),
}

impl Telemetry {
    pub(crate) fn new(recorder: Arc<dyn Recorder>) -> Self {
        let (gauge, counter) = (|desc| recorder.gauge(desc, &[]), |desc| recorder.counter(desc, &[]));
        Self {
            seeds: SeedGauges::new(Arc::clone(&recorder)),
            apply_ms: gauge(&metrics::APPLY_MS),
            finalize_ms: gauge(&metrics::FINALIZE_MS),
            restore_ms: gauge(&metrics::ROLLBACK_LATENCY),
            prewarm_ms: gauge(&metrics::PREWARM_LATENCY),
            audits: counter(&metrics::ISOLATION_AUDITS),
            violations: counter(&metrics::ISOLATION_VIOLATIONS),
            total_violations: 0,
            reported_violations: 0,
            fallbacks: counter(&metrics::ATTRIBUTION_FALLBACKS),
            in_fallback: false,
            history_size: gauge(&metrics::CACHE_TELEMETRY_SIZE),
            history_dropped: (counter(&metrics::TELEMETRY_DROPPED), 0),
            recorder,
        }
    }

    pub(crate) fn event(&self, event: Event) {
        self.recorder.event(event);
    }

    pub(crate) fn recorder(&self) -> &Arc<dyn Recorder> {
        &self.recorder
    }

    pub(crate) fn applied(&self, took: Duration) {
        self.apply_ms.set(millis(took));
    }

    pub(crate) fn epoch_finished(&self, took: Duration) {
        self.finalize_ms.set(millis(took));
    }

    pub(crate) fn restored(&self, took: Duration) {
        self.restore_ms.set(millis(took));
    }

    pub(crate) fn prewarmed(&self, latency_ms: f64) {
        self.prewarm_ms.set(latency_ms);
    }

    /// Size of all histories, and how many entries those of the seeds that are listed have dropped.
    pub(crate) fn histories(&mut self, size: u64, dropped: u64) {
        self.history_size.set(count(size));
        let (counter, seen) = &mut self.history_dropped;
        // Less than before when a seed is gone: what it dropped was counted.
        counter.add(dropped.saturating_sub(*seen));
        *seen = dropped;
    }

    /// What an order says about its issuer.
    pub(crate) fn annotations(&self, order: &Order) {
        let Some(coverage) = order.input_coverage else { return };
        let about = |desc| numbered(Event::new(desc).with("coverage", format_args!("{coverage:.3}")), order);
        self.event(about(&events::TAMIYO_ANNOTATIONS));
        if coverage < DEGRADED_COVERAGE {
            self.event(about(&events::DEGRADED_INPUTS));
        }
    }

    pub(crate) fn transition(&self, transition: &Transition, alpha: f64) {
        let event = Event::new(&events::SEED_STAGE_CHANGED)
            .with("seed_id", transition.seed)
            .with("from", transition.from)
            .with("stage", transition.to)
            .with("alpha", format_args!("{alpha:.4}"))
            .with("reason", &transition.reason);
        self.event(event);
    }

    /// A gate's verdict: that it lets a seed pass, or that it refused one. There is no id yet where germination was
    /// refused.
    pub(crate) fn gate(&self, seed: Option<SeedId>, report: &GateReport) {
        let (desc, name, conditions) = if report.passed {
            (&events::GATE_PASSED, "met", &report.met)
        } else {
            (&events::GATE_FAILURE, "failed", &report.failed)
        };
        let about = Event::new(desc);
        let event = seed
            .into_iter()
            .fold(about, |event, seed| event.with("seed_id", seed))
            .with("gate", report.gate)
            .with("target", report.target)
            .with("score", format_args!("{:.3}", report.score))
            .with(name, conditions.join("; "));
        self.event(event);
    }

    /// An audit that found so many leaks.
    pub(crate) fn audited(&mut self, num_violations: u64, first: Option<&str>) {
        self.audits.add(1);
        self.violations.add(num_violations);
        self.total_violations += num_violations;
        if let Some(first) = first {
            let event = Event::new(&events::VIOLATION_RECORDED).with("violations", num_violations).with("first", first);
            self.event(event);
        }
    }

    /// Repeats the total of leaks at the end of an epoch in which it grew.
    pub(crate) fn repeat_violations(&mut self) {
        if self.total_violations > self.reported_violations {
            self.reported_violations = self.total_violations;
            self.event(Event::new(&events::ISOLATION_TOTAL).with("violations", self.total_violations));
        }
    }

    /// Counts a fallback, and reports when fallbacks begin.
    pub(crate) fn attribution(&mut self, wanted: AttributionMode, used: AttributionMode, fell_back: bool) {
        self.fallbacks.add(u64::from(fell_back));
        if fell_back && !self.in_fallback {
            let (wanted, used) = (format!("{wanted:?}"), format!("{used:?}"));
            self.event(Event::new(&events::ATTRIBUTION_FALLBACK).with("wanted", wanted).with("used", used));
        }
        self.in_fallback = fell_back;
    }

    /// Follows a ramp.
    pub(crate) fn alpha(&self, seed: SeedId, alpha: f64, steps_done: Option<u64>) {
        self.seeds.alpha(seed, alpha, steps_done);
    }

    /// Brings the gauges of seeds up to date.
    pub(crate) fn seeds(&mut self, readings: impl Iterator<Item = SeedReading>) {
        self.seeds.update(readings);
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

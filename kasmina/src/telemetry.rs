//! Metrics and events of the seed manager.

use std::collections::BTreeMap;
use std::sync::Arc;

use leyline::id::SeedId;
use leyline::seed::{AttributionMode, SeedState, Transition};
use leyline::telemetry::{Counter, Event, EventDesc, Gauge, Level, Recorder};

use crate::command::Rejection;

leyline::declare_metrics! {
    /// Seeds from germination to holding.
    SEEDS_ACTIVE = Gauge "kasmina.seeds.active" Count [];
    /// Seeds that became part of the host.
    SEEDS_FOSSILIZED = Gauge "kasmina.seeds.fossilized" Count [];
    /// Wire number of the seed's stage; absent once its slot is free.
    SEED_STAGE = Gauge "kasmina.seed.stage" State ["seed_id"];
    /// Blend coefficient of the seed.
    SEED_ALPHA = Gauge "kasmina.seed.alpha" Ratio ["seed_id"];
    /// Optimizer steps done of the running alpha ramp; absent when none runs.
    SEED_ALPHA_STEPS = Gauge "kasmina.seed.alpha_steps" Count ["seed_id"];
    /// Trainable elements of the seed.
    SEED_PARAMETERS = Gauge "kasmina.seed.parameters" Count ["seed_id"];
    /// Commands that passed all security checks.
    COMMANDS_ACCEPTED = Counter "kasmina.command_verifier.accepted_total" Count [];
    /// Commands that failed a security check.
    COMMANDS_REJECTED = Counter "kasmina.command_verifier.rejections_total" Count ["reason"];
    /// Leaks between a seed in shadow training and the host, found by isolation audits.
    ISOLATION_VIOLATIONS = Counter "kasmina.isolation.violations" Count [];
    /// Microbatches whose attribution could not be measured in the configured mode.
    ATTRIBUTION_FALLBACKS = Counter "kasmina.attribution.fallbacks_total" Count [];
}

const fn event(name: &'static str, level: Level, attributes: &'static [&'static str], help: &'static str) -> EventDesc {
    EventDesc { name, level, help, attributes }
}

/// A command was carried out.
pub static SEED_OPERATION: EventDesc = event(
    "seed_operation",
    Level::Info,
    &["operation", "seed_id", "blueprint_id", "slot_id", "sequence", "reason"],
    "A command was carried out",
);
/// A command was authentic and refused.
pub static OPERATION_REFUSED: EventDesc = event(
    "operation_refused",
    Level::Warning,
    &["operation", "seed_id", "sequence", "error"],
    "An authentic command was refused; nothing changed",
);
/// A seed changed its stage.
pub static SEED_STAGE_CHANGED: EventDesc =
    event("seed_stage", Level::Info, &["seed_id", "from", "stage", "alpha", "reason"], "A seed changed its stage");
/// A gate's verdict is that the seed may pass.
pub static GATE_PASSED: EventDesc = event(
    "gate_event",
    Level::Info,
    &["seed_id", "target", "met"],
    "A gate began to let the seed pass, or let it pass on a command",
);
/// A gate refused a seed that a command wanted to pass.
pub static GATE_FAILURE: EventDesc = event(
    "gate_failure",
    Level::Warning,
    &["seed_id", "target", "failed"],
    "A gate refused a seed that a command wanted to pass",
);
/// A command failed a security check. Nothing of its content is repeated.
pub static COMMAND_REJECTED: EventDesc =
    event("command_rejected", Level::Error, &["reason"], "A command failed a security check");
/// A ramp ended.
pub static RAMP_FINISHED: EventDesc =
    event("ramp_finished", Level::Info, &["seed_id", "alpha", "step"], "An alpha ramp reached its target");
/// An audit found leaks.
pub static VIOLATION_RECORDED: EventDesc = event(
    "violation_recorded",
    Level::Critical,
    &["violations", "first"],
    "An isolation audit found leaks between a seed in shadow training and the host",
);
/// Attribution fell back.
pub static ATTRIBUTION_FALLBACK: EventDesc = event(
    "attribution_fallback",
    Level::Warning,
    &["wanted", "used"],
    "The configured attribution mode began to have no result",
);

/// Every event of this crate.
pub static EVENTS: &[&EventDesc] = &[
    &SEED_OPERATION,
    &OPERATION_REFUSED,
    &SEED_STAGE_CHANGED,
    &GATE_PASSED,
    &GATE_FAILURE,
    &COMMAND_REJECTED,
    &RAMP_FINISHED,
    &VIOLATION_RECORDED,
    &ATTRIBUTION_FALLBACK,
];

/// The handles of the seed manager.
#[derive(Debug)]
pub(crate) struct Telemetry {
    recorder: Arc<dyn Recorder>,
    active: Gauge,
    fossilized: Gauge,
    pub(crate) accepted: Counter,
    rejected: [Counter; Rejection::REASONS.len()],
    violations: Counter,
    fallbacks: Counter,
    in_fallback: bool,
    seeds: BTreeMap<SeedId, SeedGauges>,
}

#[derive(Debug)]
struct SeedGauges {
    stage: Gauge,
    alpha: Gauge,
    alpha_steps: Gauge,
    parameters: Gauge,
}

impl Telemetry {
    pub(crate) fn new(recorder: Arc<dyn Recorder>) -> Self {
        Self {
            active: recorder.gauge(&SEEDS_ACTIVE, &[]),
            fossilized: recorder.gauge(&SEEDS_FOSSILIZED, &[]),
            accepted: recorder.counter(&COMMANDS_ACCEPTED, &[]),
            rejected: Rejection::REASONS.map(|reason| recorder.counter(&COMMANDS_REJECTED, &[reason])),
            violations: recorder.counter(&ISOLATION_VIOLATIONS, &[]),
            fallbacks: recorder.counter(&ATTRIBUTION_FALLBACKS, &[]),
            in_fallback: false,
            seeds: BTreeMap::new(),
            recorder,
        }
    }

    pub(crate) fn event(&self, event: Event) {
        self.recorder.event(event);
    }

    pub(crate) fn rejected(&self, rejection: &Rejection) {
        let reason = rejection.reason();
        for (known, counter) in Rejection::REASONS.iter().zip(&self.rejected) {
            counter.add(u64::from(*known == reason));
        }
        self.event(Event::new(&COMMAND_REJECTED).with("reason", reason));
    }

    pub(crate) fn transition(&self, transition: &Transition, alpha: f64) {
        let event = Event::new(&SEED_STAGE_CHANGED)
            .with("seed_id", transition.seed)
            .with("from", transition.from)
            .with("stage", transition.to)
            .with("alpha", format_args!("{alpha:.4}"))
            .with("reason", &transition.reason);
        self.event(event);
    }

    pub(crate) fn violations(&self, count: u64, first: &str) {
        self.violations.add(count);
        self.event(Event::new(&VIOLATION_RECORDED).with("violations", count).with("first", first));
    }

    /// Counts a fallback, and reports when fallbacks begin.
    pub(crate) fn attribution(&mut self, wanted: AttributionMode, used: AttributionMode, fell_back: bool) {
        self.fallbacks.add(u64::from(fell_back));
        if fell_back && !self.in_fallback {
            let (wanted, used) = (format!("{wanted:?}"), format!("{used:?}"));
            self.event(Event::new(&ATTRIBUTION_FALLBACK).with("wanted", wanted).with("used", used));
        }
        self.in_fallback = fell_back;
    }

    /// Follows a ramp.
    pub(crate) fn alpha(&self, seed: SeedId, alpha: f64, steps_done: Option<u64>) {
        if let Some(gauges) = self.seeds.get(&seed) {
            gauges.alpha.set(alpha);
            gauges.alpha_steps.set_or_clear(steps_done.map(count));
        }
    }

    /// Brings the gauges up to date; those of seeds that are gone become absent.
    pub(crate) fn seeds<'a>(&mut self, states: impl Iterator<Item = (SeedState, Option<u64>)> + 'a) {
        let (mut active, mut fossilized) = (0_u32, 0_u32);
        let mut seen = BTreeMap::new();
        for (state, alpha_steps) in states {
            let gauges = self.seeds.remove(&state.seed_id).unwrap_or_else(|| {
                let label = state.seed_id.to_string();
                let gauge = |desc| self.recorder.gauge(desc, &[&label]);
                SeedGauges {
                    stage: gauge(&SEED_STAGE),
                    alpha: gauge(&SEED_ALPHA),
                    alpha_steps: gauge(&SEED_ALPHA_STEPS),
                    parameters: gauge(&SEED_PARAMETERS),
                }
            });
            gauges.stage.set(f64::from(state.stage.wire()));
            gauges.alpha.set(state.alpha.get());
            gauges.alpha_steps.set_or_clear(alpha_steps.map(count));
            gauges.parameters.set(count(state.num_parameters));
            active += u32::from(state.stage.is_live());
            fossilized += u32::from(state.stage == leyline::seed::SeedStage::Fossilized);
            seen.insert(state.seed_id, gauges);
        }
        for gone in self.seeds.values() {
            for gauge in [&gone.stage, &gone.alpha, &gone.alpha_steps, &gone.parameters] {
                gauge.set_or_clear(None);
            }
        }
        self.seeds = seen;
        self.active.set(f64::from(active));
        self.fossilized.set(f64::from(fossilized));
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn count(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_every_metric_belongs_to_this_subsystem() {
        let metrics: BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
        let events: BTreeSet<&str> = EVENTS.iter().map(|event| event.name).collect();
        assert_eq!((metrics.len(), events.len()), (METRICS.len(), EVENTS.len()));
        assert!(metrics.iter().all(|name| name.starts_with("kasmina.")));
    }
}

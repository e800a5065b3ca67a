//! Metrics and events of the policy.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leyline::command::Operation;
use leyline::id::SeedId;
use leyline::state::SystemState;
use leyline::telemetry::{Counter, Event, EventDesc, Gauge, Level, Recorder};

use crate::risk::{RiskRule, Verdict};
use crate::tracker::Signals;

leyline::declare_metrics! {
    /// Mean loss on held-out data at the last decision, nats per sample.
    VALIDATION_LOSS = Gauge "tamiyo.validation_loss" Nats [];
    /// That loss minus the one measured before; positive when it got worse.
    LOSS_DELTA = Gauge "tamiyo.loss_delta" Nats [];
    /// Duration of the last decision, checking included.
    INFERENCE_LATENCY = Gauge "tamiyo.inference.latency_ms" Milliseconds [];
    /// Orders given.
    DECISIONS = Counter "tamiyo.decision.total" Count ["operation"];
    /// Proposals that did not fit the state and were dropped.
    REFUSED = Counter "tamiyo.proposal.refused_total" Count [];
    /// Networks that were taken up, the first one included.
    NETWORKS_LOADED = Counter "tamiyo.policy.loaded_total" Count [];
    /// Networks that were refused; the one before stays.
    NETWORKS_REFUSED = Counter "tamiyo.policy.refused_total" Count [];
    /// Decisions at which a rule of risk fired.
    RISKS = Counter "tamiyo.risk.total" Count ["rule"];
    /// Whether the host has stabilized.
    STABILIZED = Gauge "tamiyo.host.stabilized" Flag [];
    /// Measured epochs since the validation loss improved.
    PLATEAU_EPOCHS = Gauge "tamiyo.plateau_epochs" Count [];
    /// Accuracy with the seed minus accuracy without it, on held-out data.
    CONTRIBUTION = Gauge "tamiyo.seed.contribution_pp" PercentagePoints ["seed_id"];
    /// Loss without the seed minus loss with it, on held-out data; positive when the seed helps.
    LOSS_GAIN = Gauge "tamiyo.seed.loss_gain" Nats ["seed_id"];
}

/// An order was given.
pub static DECISION: EventDesc = EventDesc {
    name: "tamiyo.decision",
    level: Level::Info,
    help: "the policy gave an order",
    attributes: &["epoch", "operation", "seed_id", "slot", "blueprint", "rule", "detail"],
};

/// A proposal did not fit the state.
pub static PROPOSAL_REFUSED: EventDesc = EventDesc {
    name: "tamiyo.proposal_refused",
    level: Level::Warning,
    help: "a proposal of the policy did not fit the state and was dropped",
    attributes: &["epoch", "operation", "rule", "reason"],
};

/// The policy waits.
pub static WAITING: EventDesc = EventDesc {
    name: "tamiyo.waiting",
    level: Level::Info,
    help: "why the policy gave no more orders at a decision",
    attributes: &["epoch", "rule", "detail"],
};

/// A rule of risk fires, and did not at the decision before.
pub static RISK: EventDesc = EventDesc {
    name: "tamiyo.risk",
    level: Level::Warning,
    help: "a limit of risk is exceeded from this decision on; what it holds back is told as waiting",
    attributes: &["epoch", "rule", "severity", "value", "limit"],
};

/// The host stabilized for the first time.
pub static INITIATED: EventDesc = EventDesc {
    name: "tamiyo_initiated",
    level: Level::Info,
    help: "the host has stabilized; from now on seeds may germinate",
    attributes: &["epoch", "stable_epochs", "validation_loss"],
};

/// The validation loss stopped improving.
pub static PLATEAU_DETECTED: EventDesc = EventDesc {
    name: "plateau_detected",
    level: Level::Info,
    help: "the validation loss has not improved for as long as the policy is patient",
    attributes: &["epoch", "plateau_epochs", "best_validation_loss"],
};

/// A network was taken up.
pub static POLICY_LOADED: EventDesc = EventDesc {
    name: "tamiyo.policy_loaded",
    level: Level::Info,
    help: "the policy decides by this network from now on",
    attributes: &["epoch", "digest"],
};

/// A network was not taken up.
pub static POLICY_REFUSED: EventDesc = EventDesc {
    name: "policy_update_rejected",
    level: Level::Warning,
    help: "a network for the policy cannot be used; it goes on with the one before",
    attributes: &["epoch", "reason"],
};

/// Every event of this crate.
pub static EVENTS: &[&EventDesc] =
    &[&DECISION, &PROPOSAL_REFUSED, &WAITING, &RISK, &INITIATED, &PLATEAU_DETECTED, &POLICY_LOADED, &POLICY_REFUSED];

/// Handles of the metrics, and the edges of the events.
#[derive(Debug)]
pub(crate) struct Instruments {
    recorder: Arc<dyn Recorder>,
    validation_loss: Gauge,
    loss_delta: Gauge,
    latency: Gauge,
    refused: Counter,
    risks: [(RiskRule, Counter); RiskRule::ALL.len()],
    stabilized: Gauge,
    plateau_epochs: Gauge,
    seeds: BTreeMap<SeedId, SeedGauges>,
}

#[derive(Debug)]
struct SeedGauges {
    contribution: Gauge,
    loss_gain: Gauge,
}

impl Instruments {
    pub(crate) fn new(recorder: Arc<dyn Recorder>) -> Self {
        Self {
            validation_loss: recorder.gauge(&VALIDATION_LOSS, &[]),
            loss_delta: recorder.gauge(&LOSS_DELTA, &[]),
            latency: recorder.gauge(&INFERENCE_LATENCY, &[]),
            refused: recorder.counter(&REFUSED, &[]),
            // Each is there from the start, at 0.
            risks: RiskRule::ALL.map(|rule| (rule, recorder.counter(&RISKS, &[rule.name()]))),
            stabilized: recorder.gauge(&STABILIZED, &[]),
            plateau_epochs: recorder.gauge(&PLATEAU_EPOCHS, &[]),
            seeds: BTreeMap::new(),
            recorder,
        }
    }

    /// Sets what was measured; a seed that is no longer live has no contribution any more.
    pub(crate) fn record_state(&mut self, state: &SystemState, loss: Option<f64>, loss_delta: Option<f64>) {
        self.validation_loss.set_or_clear(loss);
        self.loss_delta.set_or_clear(loss_delta);
        let recorder = &self.recorder;
        let mut gone = std::mem::take(&mut self.seeds);
        for seed in state.seeds.iter().filter(|seed| seed.stage.is_live()) {
            let gauges = gone.remove(&seed.seed_id).unwrap_or_else(|| SeedGauges::new(&**recorder, seed.seed_id));
            let measured = seed.counterfactual;
            gauges.contribution.set_or_clear(measured.and_then(|m| m.accuracy_gain_pp).filter(|gain| gain.is_finite()));
            gauges.loss_gain.set_or_clear(measured.map(|m| m.loss_gain).filter(|gain| gain.is_finite()));
            self.seeds.insert(seed.seed_id, gauges);
        }
        for gauges in gone.into_values() {
            gauges.contribution.set_or_clear(None);
            gauges.loss_gain.set_or_clear(None);
        }
    }

    /// Sets the signals and reports what became true with this decision.
    pub(crate) fn record_signals(&self, state: &SystemState, before: Option<Signals>, after: Option<Signals>) {
        let (Some(before), Some(after)) = (before, after) else { return };
        self.stabilized.set(f64::from(u8::from(after.stabilized)));
        self.plateau_epochs.set(after.epochs_since_improvement as f64);
        if after.stabilized && !before.stabilized {
            let mut event =
                Event::new(&INITIATED).with("epoch", state.epoch).with("stable_epochs", after.stable_epochs);
            if let Some(loss) = after.loss {
                event = event.with("validation_loss", loss);
            }
            self.recorder.event(event);
        }
        if let Some(best) = after.best_loss.filter(|_| after.on_plateau && !before.on_plateau) {
            let event = Event::new(&PLATEAU_DETECTED)
                .with("epoch", state.epoch)
                .with("plateau_epochs", after.epochs_since_improvement)
                .with("best_validation_loss", best);
            self.recorder.event(event);
        }
    }

    pub(crate) fn record_loaded(&self, state: &SystemState, digest: &str) {
        self.recorder.counter(&NETWORKS_LOADED, &[]).add(1);
        self.recorder.event(Event::new(&POLICY_LOADED).with("epoch", state.epoch).with("digest", digest));
    }

    pub(crate) fn record_refused_network(&self, state: &SystemState, reason: &str) {
        self.recorder.counter(&NETWORKS_REFUSED, &[]).add(1);
        self.recorder.event(Event::new(&POLICY_REFUSED).with("epoch", state.epoch).with("reason", reason));
    }

    pub(crate) fn record_decision(&self, state: &SystemState, operation: &Operation, rule: &str, detail: &str) {
        let name = operation.name();
        self.recorder.counter(&DECISIONS, &[name]).add(1);
        let event = Event::new(&DECISION)
            .with("epoch", state.epoch)
            .with("operation", name)
            .with("rule", rule)
            .with("detail", detail);
        let event = operation.seed().into_iter().fold(event, |event, seed| event.with("seed_id", seed));
        self.recorder.event(match operation {
            Operation::Germinate { slot, blueprint, .. } => event.with("slot", slot).with("blueprint", blueprint),
            _ => event,
        });
    }

    pub(crate) fn record_refusal(&self, state: &SystemState, operation: &Operation, rule: &str, reason: &str) {
        self.refused.add(1);
        let event = Event::new(&PROPOSAL_REFUSED)
            .with("epoch", state.epoch)
            .with("operation", operation)
            .with("rule", rule)
            .with("reason", reason);
        self.recorder.event(event);
    }

    /// Counts the verdicts, and reports those that begin.
    pub(crate) fn record_risks(&self, state: &SystemState, verdicts: &[Verdict], beginning: &[&Verdict]) {
        for (rule, counter) in &self.risks {
            counter.add(verdicts.iter().filter(|verdict| verdict.rule == *rule).count() as u64);
        }
        for Verdict { rule, severity, value, limit } in beginning {
            let event = Event::new(&RISK).with("epoch", state.epoch).with("rule", rule.name());
            let event = event.with("severity", severity.name()).with("value", value).with("limit", limit);
            self.recorder.event(event);
        }
    }

    pub(crate) fn record_waiting(&self, state: &SystemState, rule: &str, detail: &str) {
        let event = Event::new(&WAITING).with("epoch", state.epoch).with("rule", rule).with("detail", detail);
        self.recorder.event(event);
    }

    pub(crate) fn record_latency(&self, latency: Duration) {
        self.latency.set(latency.as_secs_f64() * 1e3);
    }
}

impl SeedGauges {
    fn new(recorder: &dyn Recorder, seed: SeedId) -> Self {
        let label = seed.to_string();
        Self {
            contribution: recorder.gauge(&CONTRIBUTION, &[&label]),
            loss_gain: recorder.gauge(&LOSS_GAIN, &[&label]),
        }
    }
}

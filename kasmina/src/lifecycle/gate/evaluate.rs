//! Which conditions each gate has.
#![deny(clippy::wildcard_enum_match_arm)]

use leyline::seed::{Confirmed, Confirming, Counterfactual, Gate, GateReport, GradientHealth, SeedStage};

use crate::lifecycle::confirm::least_z;
use crate::lifecycle::gate::conditions::Conditions;
use crate::lifecycle::table::{Move, Trigger};
use crate::lifecycle::{AlphaController, GateConfig, HistoryEntry};

/// Fewer samples have no standard error.
pub(crate) const MIN_SAMPLES: u64 = 2;

/// A measurement, and how long ago it was taken.
#[derive(Debug, Clone, Copy)]
pub(in crate::lifecycle) struct Aged<T> {
    pub(in crate::lifecycle) value: T,
    /// Epochs that ended since; none when that is not known.
    pub(in crate::lifecycle) age: Option<u64>,
}

/// What a gate looks at in a seed.
#[derive(Debug, Clone, Copy)]
pub(in crate::lifecycle) struct Subject<'a> {
    pub(in crate::lifecycle) stage: SeedStage,
    pub(in crate::lifecycle) epochs_in_stage: u64,
    pub(in crate::lifecycle) paused: bool,
    pub(in crate::lifecycle) weights_pending: bool,
    pub(in crate::lifecycle) isolation_violations: u64,
    pub(in crate::lifecycle) epochs_since_audit: Option<u64>,
    pub(in crate::lifecycle) num_parameters: u64,
    pub(in crate::lifecycle) prewarm_ms: Option<f64>,
    pub(in crate::lifecycle) alpha: &'a AlphaController,
    pub(in crate::lifecycle) counterfactual: Option<Aged<Counterfactual>>,
    pub(in crate::lifecycle) gradient: Option<Aged<GradientHealth>>,
    pub(in crate::lifecycle) stability: Option<f64>,
    pub(in crate::lifecycle) confirmation: Option<Confirmed>,
    pub(in crate::lifecycle) last_move: Option<&'a HistoryEntry>,
}

/// What a gate looks at around a seed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Surroundings {
    /// Trainable elements of the host and of every seed in it (count).
    pub(crate) network_parameters: u64,
    /// Whether the network has a graft of the seed.
    pub(crate) in_network: bool,
    /// Epochs for which a slot is barred (count).
    pub(crate) embargo_epochs: u64,
    /// Epochs from one audit of isolation to the next (count; 0 for no audits).
    pub(crate) audit_every_epochs: u64,
    /// What the next confirmation has to come to; none where nobody confirms, and then gains are taken as they are given.
    pub(crate) confirming: Option<Confirming>,
}

/// What G0 looks at: there is no seed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one per condition")]
pub(crate) struct Germination {
    pub(crate) slot_is_free: bool,
    pub(crate) blueprint_is_known: bool,
    pub(crate) blueprint_fits: bool,
    pub(crate) shape_is_kept: bool,
    /// Trainable elements of the seed (count).
    pub(crate) num_parameters: u64,
    /// Trainable elements of the network with the seed (count).
    pub(crate) network_parameters: u64,
}

/// The verdict of G0.
pub(in crate::lifecycle) fn evaluate_germination(config: &GateConfig, germination: &Germination) -> GateReport {
    let mut conditions = Conditions::of(config, Gate::Sanity);
    conditions.holds(germination.slot_is_free, "slot free");
    conditions.holds(germination.blueprint_is_known, "blueprint known");
    conditions.holds(germination.blueprint_fits, "blueprint fits the slot");
    conditions.holds(germination.shape_is_kept, "shape kept by the seed");
    conditions.parameters(config, germination.num_parameters, germination.network_parameters);
    conditions.report(SeedStage::Germinated)
}

/// The verdict of the gate of `row`; none when the row has no gate. G0 has its own function.
pub(in crate::lifecycle) fn evaluate(
    config: &GateConfig,
    subject: &Subject<'_>,
    around: Surroundings,
    row: &Move,
) -> Option<GateReport> {
    let gate = row.gate?;
    let mut conditions = Conditions::of(config, gate);
    match gate {
        Gate::Sanity => return None,
        Gate::GradientHealth => {
            if row.trigger != Trigger::Resume {
                let stage = subject.stage;
                conditions.holds(stage == SeedStage::Germinated, format!("stage {stage}, needs germinated"));
                conditions.holds(!subject.paused, if subject.paused { "paused" } else { "not paused" });
            }
            conditions.weights(subject.weights_pending);
            // Where it does not train in the shadow there is nothing to audit yet: what can be asked is that somebody will.
            conditions.isolation(around.audit_every_epochs, Some(0), subject.isolation_violations);
        }
        Gate::Stability => {
            conditions.epochs(subject.stage, subject.epochs_in_stage, config.training_min_epochs);
            conditions.gradient(config, subject.gradient);
            if config.require_gain {
                let (z, min) = match around.confirming {
                    Some(next) => (config.confidence_z.max(least_z(next.level)), next.min_gain),
                    None => (config.confidence_z, 0.0),
                };
                // Once the confirming samples were read, what is measured again and again decides nothing more.
                if around.confirming.is_none() || subject.confirmation.is_none() {
                    conditions.gain(config, subject.counterfactual, z, min);
                    conditions.stability(subject.stability, config.min_stability);
                }
                if let Some(next) = around.confirming {
                    conditions.confirmed(subject.confirmation, next);
                }
            }
            conditions.isolation(around.audit_every_epochs, subject.epochs_since_audit, subject.isolation_violations);
            conditions.latency(subject.prewarm_ms, config.latency_budget_ms);
        }
        Gate::Interface => {
            conditions.epochs(subject.stage, subject.epochs_in_stage, config.blending_min_epochs);
            conditions.ramp(subject.alpha);
        }
        Gate::SystemImpact => {
            conditions.epochs(subject.stage, subject.epochs_in_stage, config.holding_min_epochs);
            match around.confirming {
                Some(next) => {
                    conditions.confirmed(subject.confirmation, next);
                    conditions.harmless(config, subject.counterfactual);
                }
                None => conditions.gain(config, subject.counterfactual, config.confidence_z, config.min_loss_gain),
            }
            conditions.stability(subject.stability, config.min_stability);
            conditions.parameters(config, subject.num_parameters, around.network_parameters);
        }
        Gate::Reset => {
            conditions.holds(!around.in_network, if around.in_network { "a graft is left" } else { "no graft left" });
            let parameters = subject.num_parameters;
            conditions.holds(parameters == 0, format!("{parameters} parameters left, needs 0"));
            // The epochs of the reset count too, so that a longer embargo of a later configuration comes to an end.
            let embargo = subject.last_move.filter(|last| last.from == SeedStage::Embargoed);
            let served = embargo.map_or(0, |last| last.epochs_in_stage.saturating_add(subject.epochs_in_stage));
            conditions.epochs(SeedStage::Embargoed, served, around.embargo_epochs);
            let closed = subject.last_move.is_some_and(|last| last.to == subject.stage);
            conditions.holds(closed, if closed { "history complete" } else { "history incomplete" });
        }
    }
    Some(conditions.report(row.to))
}

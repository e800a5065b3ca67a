//! The record of one seed: its stage, clocks, alpha, evidence and history, and the moves between stages.
//!
//! What a move does is said by [`table`]; here its effects on the record are carried out.
#![deny(clippy::wildcard_enum_match_arm)]

use leyline::command::{AlphaRamp, Blend};
use leyline::id::{BlueprintId, EpochIndex, SeedId, SlotId};
use leyline::seed::{
    AlphaMode, Confirmed, Counterfactual, Evidence, GateReport, GradientHealth, SeedStage, SeedState, Transition,
};
use leyline::unit::Alpha;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::graft::{Role, SeedSpec};
use crate::lifecycle::gate::{self, Aged, Germination, MIN_SAMPLES, Subject, Surroundings};
use crate::lifecycle::history::Ring;
use crate::lifecycle::table::{self, Condition, Effect, MOVES, Move, Trigger};
use crate::lifecycle::{AlphaController, GateConfig, HistoryEntry, measured};

/// Moves that a history holds.
const MAX_HISTORY: usize = 100;
/// The largest count that is taken up from a saved record: more than enough can be counted after it.
const MAX_COUNT: u64 = u64::MAX / 2;
/// Measurements that stability looks back on.
const MAX_GAINS: usize = 8;

/// Everything about a seed but its tensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SeedRecord {
    pub(crate) id: SeedId,
    pub(crate) slot: SlotId,
    pub(crate) blueprint: BlueprintId,
    pub(crate) blend: Blend,
    /// Width of its bottleneck.
    pub(crate) width: usize,
    /// Trainable elements; 0 once pruned.
    pub(crate) num_parameters: u64,
    pub(crate) alpha: AlphaController,
    stage: SeedStage,
    previous_stage: Option<SeedStage>,
    paused: bool,
    weights_pending: bool,
    /// Why it is being removed, while it fades.
    fading: Option<String>,
    age_epochs: u64,
    epochs_in_stage: u64,
    isolation_violations: u64,
    /// Epochs that ended since an audit of isolation in which it trained in the shadow; none before the first one since it
    /// entered its stage or came back.
    #[serde(default)]
    epochs_since_audit: Option<u64>,
    /// The latest epoch that ended; none before the first one of its life.
    #[serde(default)]
    epoch: Option<EpochIndex>,
    /// Latency of its first forward passes, where a budget asks for it.
    prewarm_ms: Option<f64>,
    #[serde(with = "measured::counterfactual")]
    counterfactual: Option<Counterfactual>,
    /// When that was measured.
    #[serde(default)]
    counterfactual_epoch: Option<EpochIndex>,
    #[serde(with = "measured::gradient")]
    gradient: Option<GradientHealth>,
    /// When that was measured.
    #[serde(default)]
    gradient_epoch: Option<EpochIndex>,
    /// What was measured in this epoch or before does not count: it is about another stage, or about before a pause.
    #[serde(default)]
    evidence_after: Option<EpochIndex>,
    /// In this stage.
    gains: Ring<Gain, MAX_GAINS>,
    /// Once in its life, also over a pause: it says that the seed helped when it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    confirmation: Option<Confirmed>,
    last_gate: Option<GateReport>,
    history: Ring<HistoryEntry, MAX_HISTORY>,
    /// Moves so far, those that the history has dropped included.
    num_moves: u64,
}

/// A measured loss gain, nats per sample.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Gain(#[serde(with = "measured::float")] f64);

/// What a germination makes a record from.
#[derive(Debug, Clone)]
pub(crate) struct Newborn {
    pub(crate) id: SeedId,
    pub(crate) slot: SlotId,
    pub(crate) blueprint: BlueprintId,
    pub(crate) blend: Blend,
    /// Width of its bottleneck.
    pub(crate) width: usize,
    /// Trainable elements.
    pub(crate) num_parameters: u64,
    pub(crate) prewarm_ms: Option<f64>,
}

/// Why a row is followed, and where alpha is to go if it starts alpha on a way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cause<'a> {
    pub(crate) reason: &'a str,
    pub(crate) ramp: Option<AlphaRamp>,
}

/// What the end of an epoch did to a seed.
#[derive(Debug, Default)]
pub(crate) struct EpochEnd {
    pub(crate) transitions: Vec<Transition>,
    /// The verdict of a gate that let the seed pass, or that began to keep it where it is.
    pub(crate) verdict: Option<GateReport>,
}

/// Two fields of a record that contradict each other.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Contradiction {
    pub(crate) field: &'static str,
    pub(crate) found: String,
    pub(crate) expected: String,
}

impl SeedRecord {
    /// A seed that germinates now, if G0 lets it.
    ///
    /// # Errors
    /// The verdict of G0.
    pub(crate) fn germinated(
        newborn: Newborn,
        gates: &GateConfig,
        germination: &Germination,
        reason: &str,
    ) -> Result<(Self, Vec<Transition>), GateReport> {
        let verdict = gate::evaluate_germination(gates, germination);
        if !verdict.passed {
            return Err(verdict);
        }
        let Newborn { id, slot, blueprint, blend, width, num_parameters, prewarm_ms } = newborn;
        let mut record = Self {
            id,
            slot,
            blueprint,
            blend,
            width,
            num_parameters,
            alpha: AlphaController::new(Alpha::ZERO),
            stage: SeedStage::Dormant,
            previous_stage: None,
            paused: false,
            weights_pending: false,
            fading: None,
            age_epochs: 0,
            epochs_in_stage: 0,
            isolation_violations: 0,
            epochs_since_audit: None,
            epoch: None,
            prewarm_ms,
            counterfactual: None,
            counterfactual_epoch: None,
            gradient: None,
            gradient_epoch: None,
            evidence_after: None,
            gains: Ring::new(),
            confirmation: None,
            last_gate: None,
            history: Ring::new(),
            num_moves: 0,
        };
        let row = Move::find(SeedStage::Dormant, Condition::Active, Trigger::Germinate)
            .expect("the table has a row for germination");
        let transition = record
            .follow(row, Some(verdict), Cause { reason, ramp: None })
            .expect("no effect of germination can be refused");
        Ok((record, transition.into_iter().collect()))
    }

    /// What its part of the network is built from.
    pub(crate) fn spec(&self) -> SeedSpec {
        SeedSpec {
            id: self.id,
            slot: self.slot.clone(),
            blueprint: self.blueprint.clone(),
            width: self.width,
            blend: self.blend.clone(),
            alpha: self.alpha.alpha(),
        }
    }

    pub(crate) fn stage(&self) -> SeedStage {
        self.stage
    }

    /// Whether it was taken out of the computation for a while.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Why it is being removed, if it fades and is not paused.
    pub(crate) fn fading(&self) -> Option<&str> {
        self.fading.as_deref().filter(|_| !self.paused)
    }

    /// Whether it bars its slot for others.
    pub(crate) fn occupies_slot(&self) -> bool {
        !table::leaves_slot(self.stage)
    }

    /// Its moves, oldest first: the latest 100.
    pub(crate) fn history(&self) -> impl ExactSizeIterator<Item = &HistoryEntry> {
        self.history.iter()
    }

    /// Violations of isolation charged to it (count).
    pub(crate) fn num_violations(&self) -> u64 {
        self.isolation_violations
    }

    /// Time of a forward pass when it germinated, ms; absent when it was not taken.
    pub(crate) fn prewarm_ms(&self) -> Option<f64> {
        self.prewarm_ms
    }

    /// Whether it comes before the gate that looks at a latency, and has none.
    pub(crate) fn lacks_latency(&self) -> bool {
        self.prewarm_ms.is_none() && matches!(self.stage, SeedStage::Germinated | SeedStage::Training)
    }

    /// Keeps a time of a forward pass, ms.
    pub(crate) fn set_prewarm_ms(&mut self, latency_ms: f64) {
        self.prewarm_ms = Some(latency_ms);
    }

    /// Moves that its history holds, and moves that it has dropped (count).
    pub(crate) fn history_size(&self) -> (u64, u64) {
        let size = self.history.iter().len() as u64;
        (size, self.num_moves.saturating_sub(size))
    }

    /// Says whether its weights are still being fetched.
    pub(crate) fn set_weights_pending(&mut self, pending: bool) {
        self.weights_pending = pending;
    }

    /// Isolation was audited while it trained in the shadow.
    pub(crate) fn note_audit(&mut self) {
        self.epochs_since_audit = Some(0);
    }

    /// Whether isolation was audited since it entered its stage or came back.
    pub(crate) fn is_audited(&self) -> bool {
        self.epochs_since_audit.is_some()
    }

    /// Counts leaks between it and the host.
    pub(crate) fn add_violations(&mut self, count: u64) {
        self.isolation_violations = self.isolation_violations.saturating_add(count);
    }

    /// Its role in the network; none when it has no place there.
    pub(crate) fn role(&self) -> Option<Role> {
        self.unpaused_role().map(|role| if self.paused { Role::Idle } else { role })
    }

    /// The role it has when it is not paused.
    fn unpaused_role(&self) -> Option<Role> {
        table::role(self.stage).map(|role| if self.fading.is_some() { Role::Fading } else { role })
    }

    fn condition(&self) -> Condition {
        match (self.paused, &self.fading) {
            (true, _) => Condition::Paused,
            (false, Some(_)) => Condition::Fading,
            (false, None) => Condition::Active,
        }
    }

    /// The row of the table for what is asked of this seed.
    ///
    /// # Errors
    /// [`Error::IllegalTransition`] and [`Error::CannotPause`] when the stage does not allow it in whatever condition,
    /// [`Error::NotPaused`] for a resumption, else [`Error::SeedPaused`] or [`Error::SeedFading`].
    pub(crate) fn find_move(&self, trigger: Trigger) -> Result<&'static Move, Error> {
        let (seed, stage) = (self.id, self.stage);
        // A seed without influence has none to lose.
        let at_once = trigger == Trigger::CullGradually && stage.acts_on_output() && self.alpha.alpha().is_zero();
        let trigger = if at_once { Trigger::Cull } else { trigger };
        let condition = self.condition();
        if let Some(row) = Move::find(stage, condition, trigger) {
            return Ok(row);
        }
        let legal_otherwise = Move::find(stage, Condition::Active, trigger).is_some();
        Err(match (condition, trigger.aim()) {
            (Condition::Paused, _) if legal_otherwise => Error::SeedPaused { seed },
            (Condition::Fading, _) if legal_otherwise => Error::SeedFading { seed },
            (_, Some(to)) => Error::IllegalTransition { seed, from: stage, to },
            (_, None) if trigger == Trigger::Resume => Error::NotPaused { seed },
            (_, None) => Error::CannotPause { seed, stage },
        })
    }

    /// The verdict of the gate of a row; none when it has no gate.
    pub(crate) fn judge(&self, gates: &GateConfig, around: Surroundings, row: &Move) -> Option<GateReport> {
        let aged = |epoch: Option<EpochIndex>| epoch.and_then(|epoch| self.age_of(epoch));
        let subject = Subject {
            stage: self.stage,
            epochs_in_stage: self.epochs_in_stage,
            paused: self.paused,
            weights_pending: self.weights_pending,
            isolation_violations: self.isolation_violations,
            epochs_since_audit: self.epochs_since_audit,
            num_parameters: self.num_parameters,
            prewarm_ms: self.prewarm_ms,
            alpha: &self.alpha,
            counterfactual: self.counterfactual.map(|value| Aged { value, age: aged(self.counterfactual_epoch) }),
            gradient: self.gradient.map(|value| Aged { value, age: aged(self.gradient_epoch) }),
            stability: self.stability(),
            confirmation: self.confirmation,
            last_move: self.history.last(),
        };
        gate::evaluate(gates, &subject, around, row)
    }

    /// Asks the gate that an active live seed stands before, and keeps the verdict as the latest one. Returns it when it
    /// lets the seed pass and did not before.
    pub(crate) fn judge_next(&mut self, gates: &GateConfig, around: Surroundings) -> Option<&GateReport> {
        if !self.stage.is_live() || self.condition() != Condition::Active {
            return None;
        }
        let ahead = |row: &&Move| row.from == self.stage && row.when == Condition::Active && row.gate.is_some();
        let row = MOVES.iter().find(ahead)?;
        let verdict = self.judge(gates, around, row);
        let announced = self.has_announced(row);
        self.last_gate = verdict;
        self.last_gate.as_ref().filter(|report| report.passed && !announced)
    }

    /// Whether the end of an epoch has announced already that the gate of a row lets the seed pass. The verdict of a
    /// resumption is announced by nothing but the resumption.
    pub(crate) fn has_announced(&self, row: &Move) -> bool {
        let latest = self.last_gate.as_ref().filter(|_| row.changes_stage());
        latest.is_some_and(|report| Some(report.gate) == row.gate && report.target == row.to && report.passed)
    }

    /// The latest verdict of a gate.
    pub(crate) fn latest_gate(&self) -> Option<&GateReport> {
        self.last_gate.as_ref()
    }

    /// Carries out the effects of a row on the record. Returns the stage change, if it is one.
    ///
    /// # Errors
    /// [`Error::RampRunning`] when a ramp is to start while one runs; what came before in the row was carried out, so
    /// callers follow a row on a copy.
    pub(crate) fn follow(
        &mut self,
        row: &Move,
        verdict: Option<GateReport>,
        cause: Cause<'_>,
    ) -> Result<Option<Transition>, Error> {
        if row.changes_stage() {
            self.previous_stage = Some(row.from).filter(|from| *from != SeedStage::Dormant);
            self.num_moves += 1;
            self.history.push(HistoryEntry {
                age_epochs: self.age_epochs,
                from: row.from,
                to: row.to,
                epochs_in_stage: self.epochs_in_stage,
                reason: cause.reason.to_owned(),
            });
            self.epochs_in_stage = 0;
            self.forget_evidence();
        }
        for &effect in row.effects {
            self.carry_out(effect, cause)?;
        }
        self.stage = row.to;
        // A resumption is no step of the life: the gate ahead is still the one to show.
        // On the way back to blending, what was judged before does not count any more.
        if row.changes_stage() && (verdict.is_some() || row.to.is_live()) {
            self.last_gate = verdict;
        }
        let transition = Transition { seed: self.id, from: row.from, to: row.to, reason: cause.reason.to_owned() };
        Ok(row.changes_stage().then_some(transition))
    }

    fn forget_evidence(&mut self) {
        let epochs = [self.epoch, self.counterfactual_epoch, self.gradient_epoch];
        self.evidence_after = epochs.into_iter().fold(self.evidence_after, Option::max);
        (self.counterfactual, self.counterfactual_epoch) = (None, None);
        (self.gradient, self.gradient_epoch) = (None, None);
        self.epochs_since_audit = None;
        self.gains.clear();
    }

    fn carry_out(&mut self, effect: Effect, cause: Cause<'_>) -> Result<(), Error> {
        match effect {
            Effect::ForgetEvidence => self.forget_evidence(),
            Effect::StartRamp => {
                let seed = self.id;
                let started = cause.ramp.map_or(Ok(()), |ramp| self.alpha.retarget(ramp));
                started.map_err(|running| Error::RampRunning { seed, steps_left: running.steps_left })?;
            }
            Effect::StartFade => {
                let ramp = cause.ramp.unwrap_or(AlphaRamp { target: Alpha::ZERO, steps: 0, curve: <_>::default() });
                self.alpha.fade(ramp.steps, ramp.curve);
            }
            Effect::StartPause => self.paused = true,
            Effect::EndPause => self.paused = false,
            Effect::Become(Role::Fading) => self.fading = Some(cause.reason.to_owned()),
            Effect::ZeroAlpha => {
                self.alpha = AlphaController::new(Alpha::ZERO);
                self.fading = None;
            }
            Effect::FreeParameters => {
                self.num_parameters = 0;
                self.weights_pending = false;
            }
            // Parts of the network and of the slot, which the manager changes or derives from the stage.
            Effect::Become(Role::Idle | Role::Shadow | Role::Acting | Role::Permanent)
            | Effect::LeaveNetwork
            | Effect::FreeSlot => {}
        }
        Ok(())
    }

    /// Keeps what was measured; what was not measured this time stays as it was. What is no later than what is kept, or
    /// than the entry into the stage, does not count: an epoch is measured once.
    pub(crate) fn record(&mut self, evidence: &Evidence) {
        let epoch = Some(evidence.epoch);
        if evidence.counterfactual.is_some() && epoch > self.counterfactual_epoch.max(self.evidence_after) {
            (self.counterfactual, self.counterfactual_epoch) = (evidence.counterfactual, epoch);
            let usable = evidence.counterfactual.filter(|measured| measured.num_samples >= MIN_SAMPLES);
            usable.into_iter().for_each(|measured| self.gains.push(Gain(measured.loss_gain)));
        }
        if evidence.gradient.is_some() && epoch > self.gradient_epoch.max(self.evidence_after) {
            (self.gradient, self.gradient_epoch) = (evidence.gradient, epoch);
        }
    }

    /// Epochs that ended since this one; none for an epoch that cannot be over yet.
    fn age_of(&self, epoch: EpochIndex) -> Option<u64> {
        let Some(now) = self.epoch else { return Some(0) };
        // Evidence comes shortly before the end of its epoch.
        (epoch.0 <= now.0.saturating_add(1)).then(|| now.0.saturating_sub(epoch.0))
    }

    /// Share of the latest measurements in this stage that showed a gain; none before the first.
    #[expect(clippy::cast_precision_loss, reason = "there are eight at most")]
    fn stability(&self) -> Option<f64> {
        let gains = self.gains.iter();
        let (num_gains, num_positive) = (gains.len(), gains.filter(|gain| gain.0 > 0.0).count());
        (num_gains > 0).then(|| num_positive as f64 / num_gains as f64)
    }

    /// Ends an epoch: the seed grows older, and one that was removed moves towards the release of its slot. A gate that
    /// does not let it pass keeps it in its stage.
    pub(crate) fn finish_epoch(
        &mut self,
        gates: &GateConfig,
        around: Surroundings,
        epoch: EpochIndex,
    ) -> Result<EpochEnd, Error> {
        self.age_epochs += 1;
        self.epoch = Some(epoch);
        let mut end = EpochEnd::default();
        if self.paused {
            return Ok(end);
        }
        self.epochs_in_stage += 1;
        self.epochs_since_audit = self.epochs_since_audit.map(|epochs| epochs.saturating_add(1));
        while let Some((row, reason)) = self.due(around.embargo_epochs) {
            let verdict = self.judge(gates, around, row);
            if verdict.as_ref().is_some_and(|report| !report.passed) {
                let before = std::mem::replace(&mut self.last_gate, verdict.clone());
                let kept_before = before.is_some_and(|before| before.target == row.to && !before.passed);
                end.verdict = verdict.filter(|_| !kept_before);
                break;
            }
            end.verdict = verdict.clone().or(end.verdict);
            end.transitions.extend(self.follow(row, verdict, Cause { reason, ramp: None })?);
        }
        Ok(end)
    }

    fn due(&self, embargo_epochs: u64) -> Option<(&'static Move, &'static str)> {
        let row = Move::find(self.stage, self.condition(), Trigger::EpochEnd)?;
        let (epochs, reason) = match row.to {
            SeedStage::Embargoed => (1, "the slot is barred after a removal"),
            SeedStage::Resetting => (embargo_epochs, "the embargo is over"),
            SeedStage::Dormant
            | SeedStage::Germinated
            | SeedStage::Training
            | SeedStage::Blending
            | SeedStage::Holding
            | SeedStage::Fossilized
            | SeedStage::Pruned => (1, "the slot is free"),
        };
        (self.epochs_in_stage >= epochs).then_some((row, reason))
    }

    /// Whether every entry of the history is a legal move from where the one before led, and none is later than now.
    fn history_is_a_life(&self) -> bool {
        let (entries, later) = (self.history.iter(), self.history.iter().skip(1));
        let legal = self.history.iter().all(|entry| entry.from.may_become(entry.to));
        let follow = entries.zip(later).all(|(a, b)| a.to == b.from && a.age_epochs <= b.age_epochs);
        legal && follow && self.history.last().is_none_or(|last| last.age_epochs <= self.age_epochs)
    }

    /// The first field that contradicts another; none for a record that a life can lead to.
    pub(crate) fn contradiction(&self) -> Option<Contradiction> {
        let (stage, alpha) = (self.stage, self.alpha.alpha());
        let (alpha_fits, fades) = match self.unpaused_role() {
            Some(Role::Acting) => (true, false),
            Some(Role::Fading) => (!alpha.is_zero(), true),
            Some(Role::Permanent) => (alpha.is_one(), false),
            Some(Role::Idle | Role::Shadow) | None => (alpha.is_zero(), false),
        };
        let alpha_fits = alpha_fits && (stage != SeedStage::Holding || alpha.is_one());
        let ramps = self.alpha.mode() != AlphaMode::Hold;
        let ramp_fits = self.alpha.is_reachable() && (!ramps || stage == SeedStage::Blending);
        let falls = self.alpha.mode() == AlphaMode::Down && self.alpha.target().is_zero();
        let fade_fits = self.fading.is_none() || (fades && falls && stage == SeedStage::Blending);
        let (last, num_kept) = (self.history.last(), self.history.iter().len() as u64);
        let history_fits = last.is_some_and(|last| last.to == stage) && self.history_is_a_life();
        let previous = last.map(|last| last.from).filter(|from| *from != SeedStage::Dormant);
        let name = |stage: Option<SeedStage>| stage.map_or("none", SeedStage::name).to_owned();
        let latency_fits = self.prewarm_ms.is_none_or(|latency| latency >= 0.0);
        let waiting_fits = !self.weights_pending || stage == SeedStage::Germinated;
        let parameters = self.num_parameters;
        let parameters_fit = parameters == 0 || self.unpaused_role().is_some();
        let (in_stage, age) = (self.epochs_in_stage, self.age_epochs);
        let score_fits = self.last_gate.as_ref().is_none_or(|report| (0.0..=1.0).contains(&report.score));
        let rows = [
            ("alpha.ramp", ramp_fits, "contradictory".into(), "none, or one of a blending seed on its way".into()),
            ("alpha", alpha_fits, alpha.to_string(), format!("one that fits stage {stage}")),
            ("fading", fade_fits, "present".into(), "none, or a blending seed on its way to alpha 0".into()),
            ("paused", !self.paused || stage.is_live(), self.paused.to_string(), format!("false in stage {stage}")),
            ("history", history_fits, name(last.map(|l| l.to)), format!("legal moves with {stage} at their end")),
            ("num_moves", self.num_moves >= num_kept, self.num_moves.to_string(), format!("at least {num_kept}")),
            ("previous_stage", previous == self.previous_stage, name(self.previous_stage), name(previous)),
            ("weights_pending", waiting_fits, self.weights_pending.to_string(), format!("false in stage {stage}")),
            ("num_parameters", parameters_fit, parameters.to_string(), format!("0 in stage {stage}")),
            ("age_epochs", age <= MAX_COUNT, age.to_string(), format!("at most {MAX_COUNT}")),
            ("num_moves", self.num_moves <= MAX_COUNT, self.num_moves.to_string(), format!("at most {MAX_COUNT}")),
            ("epochs_in_stage", in_stage <= age, in_stage.to_string(), format!("at most {age}, its age")),
            ("last_gate.score", score_fits, "out of range".into(), "0 to 1".into()),
            ("prewarm_ms", latency_fits, format!("{:?}", self.prewarm_ms), "at least 0".into()),
        ];
        let broken = rows.into_iter().find(|(_, fits, ..)| !fits);
        broken.map(|(field, _, found, expected)| Contradiction { field, found, expected })
    }

    /// The seed as others see it.
    pub(crate) fn export(&self) -> SeedState {
        let alpha_target = match self.stage {
            // In shadow training the side loss sees the seed in full, and that is where blending will lead.
            SeedStage::Germinated | SeedStage::Training => Alpha::ONE,
            SeedStage::Dormant
            | SeedStage::Blending
            | SeedStage::Holding
            | SeedStage::Fossilized
            | SeedStage::Pruned
            | SeedStage::Embargoed
            | SeedStage::Resetting => self.alpha.target(),
        };
        SeedState {
            stage: self.stage,
            previous_stage: self.previous_stage,
            paused: self.paused,
            weights_pending: self.weights_pending,
            age_epochs: self.age_epochs,
            epochs_in_stage: self.epochs_in_stage,
            blend: self.blend.mode(),
            alpha: self.alpha.alpha(),
            alpha_target,
            alpha_mode: self.alpha.mode(),
            alpha_ramp: self.alpha.progress(),
            counterfactual: self.counterfactual,
            counterfactual_epoch: self.counterfactual_epoch,
            gradient: self.gradient,
            gradient_epoch: self.gradient_epoch,
            stability: self.stability(),
            isolation_violations: self.isolation_violations,
            confirmation: self.confirmation,
            last_gate: self.last_gate.clone(),
            ..SeedState::germinated(self.id, self.slot.clone(), self.blueprint.clone(), self.num_parameters)
        }
    }
}

mod confirm;

pub(crate) use confirm::judged;

#[cfg(test)]
mod tests;

//! The policy as the trainer sees it: proposals checked and put into order.

use std::collections::BTreeMap;
use std::sync::Arc;

use leyline::clock::Clock;
use leyline::command::{Blend, Operation, Order};
use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::policy::{Decision, Policy, Rationale};
use leyline::region::Eager;
use leyline::state::SystemState;
use leyline::telemetry::Recorder;
use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::check::Outlook;
use crate::coverage::input_coverage;
use crate::error::Error;
use crate::policy::learned::Networks;
use crate::policy::{PolicyKind, Proposal, Proposer, TamiyoConfig};
use crate::risk::{RiskConfig, RiskMemory, hold_back, shown};
use crate::telemetry::Instruments;

const FORMAT: u32 = 2;

/// Turns states into orders by the configured policy.
///
/// The reason of an order is its rule and the values that it fired on. Those of proposals that were dropped and the reasons
/// for waiting are in [`Decision::waiting`]. The clock only measures latency.
#[derive(Debug)]
pub struct Tamiyo {
    clock: Arc<dyn Clock>,
    instruments: Instruments,
    kind: PolicyKind,
    blend: Blend,
    policy: Box<dyn Proposer>,
    networks: Option<Box<dyn Networks>>,
    progress: Progress,
    risk: RiskConfig,
    risk_memory: RiskMemory,
}

/// What the service itself remembers.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Progress {
    /// Earlier builds kept the number of the last command here, and a layer around the policy keeps it now.
    #[serde(default, skip_serializing, rename = "sequence")]
    _sequence: IgnoredAny,
    /// Last finite validation loss.
    validation_loss: Option<f64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    format: u32,
    progress: Progress,
    /// What the rules of risk remember; absent in states of before there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    risk: Option<RiskMemory>,
    /// What the policy remembers, under its name; earlier builds wrote the name alone of one that remembers nothing.
    memory: Value,
}

/// The policy that is named, and what it remembers.
fn remembered(memory: Value) -> Result<(PolicyKind, Value), serde_json::Error> {
    if memory.is_string() {
        return Ok((PolicyKind::deserialize(memory)?, Value::Null));
    }
    let mut named = BTreeMap::<PolicyKind, Value>::deserialize(memory)?.into_iter();
    match (named.len(), named.next()) {
        (1, Some(one)) => Ok(one),
        (count, _) => Err(serde_json::Error::invalid_length(count, &"the memory of one policy")),
    }
}

/// An error with what it comes from.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}

impl Tamiyo {
    /// A policy with nothing observed yet.
    ///
    /// # Errors
    /// [`Error::Config`] with everything that is wrong with the configuration.
    pub fn new(mut config: TamiyoConfig, clock: Arc<dyn Clock>, recorder: Arc<dyn Recorder>) -> Result<Self, Error> {
        config.validate().map_err(|issues| Error::Config { issues })?;
        // No network has limits of its own.
        config.learned.limits.clone_from(&config.heuristic);
        Ok(Self {
            clock,
            instruments: Instruments::new(recorder),
            kind: config.policy,
            blend: config.blend.clone(),
            risk: config.risk.clone(),
            risk_memory: RiskMemory::default(),
            policy: config.begin(),
            networks: None,
            progress: Progress::default(),
        })
    }

    /// With networks for `learned`; no other policy asks for any.
    ///
    /// What is decided then also depends on what there is when it is looked for: each change is told in [`Decision::waiting`], as
    /// `policy_loaded` or `policy_refused`.
    #[must_use]
    pub fn with_networks(mut self, networks: Box<dyn Networks>) -> Self {
        self.networks = (self.kind == PolicyKind::Learned).then_some(networks);
        self
    }

    /// Looks for another network: what came of it, where there is one.
    fn look(&mut self, state: &SystemState) -> Option<Proposal> {
        let held = self.policy.held().map(|held| held.digest.as_str());
        match self.networks.as_mut()?.look(state.epoch, held)? {
            Ok(held) => {
                self.instruments.record_loaded(state, &held.digest);
                let told = Proposal::wait("policy_loaded", held.digest.clone());
                self.policy.hold(held);
                Some(told)
            }
            Err(error) => {
                let reason = told(&error);
                self.instruments.record_refused_network(state, &reason);
                Some(Proposal::wait("policy_refused", reason))
            }
        }
    }

    fn check(state: &SystemState) -> Result<(), Error> {
        match state.seeds.windows(2).find(|pair| pair[0].seed_id >= pair[1].seed_id) {
            Some(pair) => Err(Error::SeedOrder { seed: pair[1].seed_id }),
            None => Ok(()),
        }
    }

    /// Checks the proposals against the state and orders those that fit.
    fn issue(&self, state: &SystemState, mut proposals: Vec<Proposal>) -> Decision {
        proposals.sort_by_key(Proposal::precedence);
        for proposal in &mut proposals {
            // No policy chooses one of its own.
            if let Some(Operation::Germinate { blend, .. }) = &mut proposal.operation {
                blend.clone_from(&self.blend);
            }
        }
        let mut outlook = Outlook::of(state);
        let mut decision = Decision::default();
        let input_coverage = Some(input_coverage(state));
        for Proposal { operation, rule, detail } in proposals {
            let Some(operation) = operation else {
                self.instruments.record_waiting(state, rule, &detail);
                decision.waiting.push(Rationale { rule: rule.to_owned(), detail });
                continue;
            };
            if let Err(refusal) = outlook.admit(&operation) {
                let reason = refusal.to_string();
                self.instruments.record_refusal(state, &operation, rule, &reason);
                decision.waiting.push(Rationale { rule: rule.to_owned(), detail: format!("dropped: {reason}") });
                continue;
            }
            self.instruments.record_decision(state, &operation, rule, &detail);
            decision.orders.push(Order { input_coverage, ..Order::new(operation, format!("{rule}: {detail}")) });
        }
        decision
    }
}

impl ErrorType for Tamiyo {
    type Error = Error;
}

impl Policy for Tamiyo {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn decide(&mut self, state: &SystemState) -> Result<Decision, Error> {
        let started = self.clock.now();
        Self::check(state)?;
        let loss = state.validation.as_ref().map(|score| score.loss).filter(|loss| loss.is_finite());
        let delta = loss.zip(self.progress.validation_loss).map(|(now, before)| now - before);
        self.progress.validation_loss = loss.or(self.progress.validation_loss);
        self.instruments.record_state(state, loss, delta);

        let looked = self.look(state);
        let before = self.policy.signals();
        let verdicts = self.risk.judge(&mut self.risk_memory, state);
        self.instruments.record_risks(state, &verdicts, &self.risk_memory.beginning(&verdicts));
        let mut proposals = hold_back(&verdicts, self.policy.propose(&shown(&verdicts, state)));
        proposals.extend(looked);
        self.instruments.record_signals(state, before, self.policy.signals());
        let decision = self.issue(state, proposals);
        self.instruments.record_latency(self.clock.now().saturating_sub(started));
        Ok(decision)
    }
}

impl Durable for Tamiyo {
    fn save(&self, eager: &Eager) -> Result<SavedState, Error> {
        eager.check()?;
        let memory: Value = serde_json::from_str(&self.policy.save(eager)?.json).map_err(Error::Save)?;
        let memory = serde_json::to_value(BTreeMap::from([(self.kind, memory)])).map_err(Error::Save)?;
        let saved = Saved { format: FORMAT, progress: self.progress, risk: Some(self.risk_memory.clone()), memory };
        let json = serde_json::to_string(&saved).map_err(Error::Save)?;
        Ok(SavedState { json, ..SavedState::default() })
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), Error> {
        eager.check()?;
        let Saved { format, progress, risk, memory } = serde_json::from_str(&saved.json).map_err(Error::Restore)?;
        if format != FORMAT {
            return Err(Error::RestoreFormat { expected: FORMAT, found: format });
        }
        let (found, memory) = remembered(memory).map_err(Error::RestoreMemory)?;
        if found != self.kind {
            return Err(Error::RestorePolicy { expected: self.kind, found });
        }
        self.policy.restore(eager, &SavedState { json: memory.to_string(), ..SavedState::default() })?;
        (self.progress, self.risk_memory) = (progress, risk.unwrap_or_else(RiskMemory::of_an_earlier_version));
        Ok(())
    }
}

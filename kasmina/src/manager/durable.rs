//! Saving the seed manager and bringing it back.
//!
//! A state is rebuilt aside and swapped in when it is complete, so a failed restore changes nothing (DU-2). The
//! tensors are new ones: the layout gets a revision under which this manager has not trained yet, so that nothing
//! captured before can be taken for valid. Readings of the samples that confirm stay read. A manager that has done
//! nothing takes the saved revision as it is.

use std::cell::RefCell;
use std::collections::BTreeMap;

use candle_core::Tensor;
use leyline::durable::{Durable, SavedState};
use leyline::id::{SeedId, TopologyRevision};
use leyline::model::TrainableModel;
use leyline::region::Eager;
use leyline::seed::{SeedStage, Transition};
use leyline::telemetry::Event;
use serde::{Deserialize, Serialize};

use crate::blueprint::Registry;
use crate::error::{Error, TensorProblem};
use crate::graft::{Graft, GraftedModel, NetworkSpec, Role, rounded};
use crate::host::{Host, HostConfig};
use crate::init::{self, InitMode};
use crate::isolation::Monitor;
use crate::lifecycle::{Confirmations, Contradiction, SeedRecord};
use crate::manager::Kasmina;
use crate::manager::operation::least_latency;
use crate::manager::state::State;
use crate::telemetry::events;
use crate::weight::{ElementType, WeightSet, WeightSource};

const FORMAT: u32 = 3;
/// The largest revision, and the most confirmations, that are taken up: there are more after it than can be made.
const MAX_COUNT: u64 = u64::MAX / 2;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: u32,
    host: HostConfig,
    revision: TopologyRevision,
    init_seed: u64,
    next_seed: u32,
    /// Earlier builds confirmed nothing.
    #[serde(default)]
    confirmations: Confirmations,
    /// Ordered by id.
    seeds: Vec<SeedRecord>,
    /// Stage changes that the next end of an epoch has to return.
    unreturned: Vec<SavedTransition>,
    /// Without it an epoch that is taken up in its middle would be audited twice, and leaks charged twice.
    epochs_since_audit: Monitor,
    /// Whether the samples that are kept are of the epoch that goes on. Earlier builds forgot it.
    #[serde(default)]
    is_filling: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedTransition {
    seed: SeedId,
    from: SeedStage,
    to: SeedStage,
    reason: String,
}

impl From<&Transition> for SavedTransition {
    fn from(Transition { seed, from, to, reason }: &Transition) -> Self {
        Self { seed: *seed, from: *from, to: *to, reason: reason.clone() }
    }
}

impl From<SavedTransition> for Transition {
    fn from(SavedTransition { seed, from, to, reason }: SavedTransition) -> Self {
        Self { seed, from, to, reason }
    }
}

impl Durable for Kasmina {
    fn save(&self, eager: &Eager) -> Result<SavedState, Error> {
        self.thread.check(eager)?;
        let state = &self.state;
        let document = Document {
            format: FORMAT,
            host: self.config.host.clone(),
            revision: state.model.layout().revision(),
            init_seed: state.init_seed,
            next_seed: state.next_seed,
            confirmations: state.confirmations,
            seeds: state.seeds.values().cloned().collect(),
            unreturned: state.unreturned.iter().map(SavedTransition::from).collect(),
            epochs_since_audit: self.monitor,
            is_filling: self.is_filling,
        };
        let mut tensors = BTreeMap::new();
        for weights in state.model.host().weights() {
            weights.save(&mut tensors)?;
        }
        for graft in state.model.grafts() {
            for weights in graft.weights() {
                weights.save(&mut tensors)?;
            }
        }
        init::save_batch(state.latest_batch.as_ref(), &mut tensors)?;
        Ok(SavedState { json: serde_json::to_string(&document)?, tensors })
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), Error> {
        self.thread.check(eager)?;
        let document: Document = serde_json::from_str(&saved.json)?;
        let (monitor, is_filling) = (document.epochs_since_audit, document.is_filling);
        let began = self.clock.now();
        let state = self.rebuild(document, saved)?;
        let previous = self.take_over(state);
        // A seed that waits for weights is germinated, which was checked, and can be removed without a change of the
        // layout. Should the removal fail all the same, the state before is back, and its seeds wait anew.
        if let Err(error) = self.await_restored() {
            self.take_over(previous);
            self.await_restored()?;
            return Err(error);
        }
        // From here on nothing can fail.
        self.monitor = monitor;
        (self.is_filling, self.costs) = (is_filling, RefCell::default());
        self.violations.audited(std::iter::empty(), 0, &BTreeMap::new());
        self.untouched = false;
        self.telemetry.event(Event::new(&events::TEACHER_DEREGISTERED));
        self.report_host();
        self.update_gauges();
        self.telemetry.restored(self.clock.now().saturating_sub(began));
        Ok(())
    }
}

impl Kasmina {
    /// Puts a state in the place of the present one, whose seeds wait for no weights any more; returns that one.
    fn take_over(&mut self, state: State) -> State {
        let previous = std::mem::replace(&mut self.state, state);
        if let Some(library) = &mut self.library {
            previous.seeds.keys().for_each(|&seed| library.forget(seed, "registry_reset", &self.telemetry));
        }
        previous
    }

    fn rebuild(&self, document: Document, saved: &SavedState) -> Result<State, Error> {
        let Document {
            format, host, revision, init_seed, next_seed, confirmations, seeds: records, unreturned, ..
        } = document;
        let (read, confirmed) = (confirmations.read, confirmations.confirmed);
        require("confirmations.confirmed", confirmed <= read, confirmed, format_args!("at most {read}"))?;
        require("confirmations.read", read <= MAX_COUNT, read, format_args!("at most {MAX_COUNT}"))?;
        require("format", format == FORMAT, format, FORMAT)?;
        require("revision", revision.0 <= MAX_COUNT, revision.0, format_args!("at most {MAX_COUNT}"))?;
        require("next_seed", next_seed > 0, next_seed, "at least 1")?;
        let own = &self.config.host;
        require("host", host == *own, format_args!("{host:?}"), format_args!("{own:?}"))?;

        let device = self.state.model.device();
        let dtype = self.config.dtype.dtype();
        let mut tensors = saved.tensors.clone();
        // Taken out in any case: no parameter has its name.
        let latest_batch = init::take_batch(&mut tensors, device)?;
        let latest_batch = latest_batch.filter(|_| self.config.seed_init == InitMode::GradMax);
        let host = Host::build(
            &host,
            self.config.has_around(),
            &mut WeightSource::saved(&mut tensors).with_dtype(dtype),
            device,
        )?;
        let current = self.state.model.layout().revision();
        let is_new = revision > current || (self.untouched && revision == current);
        let revision = if is_new { revision } else { current.next() };
        let mut state = State {
            model: GraftedModel::new(host, device.clone(), revision)?
                .with_checkpointing(self.config.activation_checkpointing)
                .with_shadow_cost(self.config.shadow_cost),
            seeds: BTreeMap::new(),
            unreturned: unreturned.into_iter().map(Transition::from).collect(),
            next_seed,
            confirmations,
            spent: self.state.spent.clone(),
            confirming_samples: self.state.confirming_samples,
            init_seed,
            latest_batch,
        };
        for mut record in records {
            check_record(&state, &record)?;
            if let Some(role) = record.role() {
                let (slot_index, slot) = state.slot(&record.slot)?;
                let blueprint = self.registry.get(&record.blueprint)?;
                let mut source = WeightSource::saved(&mut tensors).with_dtype(dtype);
                let graft = Graft::build(&record.spec(), role, blueprint, slot.shape, &mut source, device)?;
                graft.module.probe(slot.shape, dtype, device)?;
                let num_parameters = graft.weights().map(WeightSet::num_elements).sum::<usize>() as u64;
                let (field, found) = (field_of(&record, "num_parameters"), record.num_parameters);
                require(&field, found == num_parameters, found, num_parameters)?;
                // The gate before blending waits for a latency that only a germination would take.
                if self.config.gates.latency_budget_ms.is_some() && record.lacks_latency() {
                    let clock = &*self.clock;
                    record.set_prewarm_ms(least_latency(&graft.module, slot.shape, dtype, clock, device)?);
                }
                state.model.insert(slot_index, graft);
            }
            state.seeds.insert(record.id, record);
        }
        for Transition { seed, from, to, .. } in &state.unreturned {
            let legal = seed.0 < next_seed && from.may_become(*to);
            require("unreturned", legal, format_args!("{seed} from {from} to {to}"), "a move of a known seed")?;
        }
        if let Some(name) = tensors.into_keys().next() {
            return Err(Error::SavedTensor { name, problem: TensorProblem::Unexpected });
        }
        state.model.rebuild(revision)?;
        Ok(state)
    }
}

impl NetworkSpec {
    /// The network that acts in the saved state of a manager, and its tensors: what only trains beside it, what is paused and
    /// what is no part of the network is left out. What it answers is bit for bit what the network of the manager answers.
    ///
    /// # Errors
    /// [`Error::Saved`] and [`Error::SavedTensor`] for a state that no manager of this version wrote.
    /// # Sync
    /// none: the tensors are those of the state.
    pub fn of_saved(saved: &SavedState) -> Result<(Self, BTreeMap<String, Tensor>), Error> {
        let document: Document = serde_json::from_str(&saved.json)?;
        let (format, host) = (document.format, document.host);
        require("format", format == FORMAT, format, FORMAT)?;
        let first = saved.tensors.iter().find(|(name, _)| name.starts_with("host.")).map(|(_, tensor)| tensor.dtype());
        let Some(dtype) = first.and_then(ElementType::of) else {
            return Err(Error::Saved {
                field: "host".to_owned(),
                found: first.map_or("without tensors".to_owned(), |dtype| dtype.as_str().to_owned()),
                expected: "tensors of f32, f64 or bf16".to_owned(),
            });
        };
        let acts = |record: &SeedRecord| match record.role() {
            Some(Role::Permanent) => true,
            Some(Role::Acting | Role::Fading) => rounded(record.alpha.alpha().get(), dtype.dtype()) > 0.0,
            Some(Role::Idle | Role::Shadow) | None => false,
        };
        let seeds = document.seeds.iter().filter(|record| acts(record)).map(SeedRecord::spec).collect();
        let spec = Self { host, dtype, seeds };
        let mut tensors = BTreeMap::new();
        for (name, _) in spec.tensors(&Registry::all())? {
            let missing = || Error::SavedTensor { name: name.clone(), problem: TensorProblem::Missing };
            let tensor = saved.tensors.get(&name).ok_or_else(missing)?.clone();
            tensors.insert(name, tensor);
        }
        Ok((spec, tensors))
    }
}

/// Refuses a record that contradicts itself or those before it.
fn check_record(state: &State, record: &SeedRecord) -> Result<(), Error> {
    let field = |name: &str| field_of(record, name);
    let last = state.seeds.last_key_value().map_or(SeedId(0), |(id, _)| *id);
    let in_order = record.id > last && record.id.0 < state.next_seed;
    require(&field("id"), in_order, record.id, format_args!("more than {last}, less than seed-{}", state.next_seed))?;
    state.slot(&record.slot)?;
    if record.occupies_slot() {
        let other = state.occupant(&record.slot);
        require(&field("slot"), other.is_none(), &record.slot, "a slot that no other live seed has")?;
    }
    match record.contradiction() {
        None => Ok(()),
        Some(Contradiction { field: name, found, expected }) => require(&field(name), false, found, expected),
    }
}

fn field_of(record: &SeedRecord, name: &str) -> String {
    format!("seeds.{}.{name}", record.id)
}

fn require(
    field: &str,
    holds: bool,
    found: impl std::fmt::Display,
    expected: impl std::fmt::Display,
) -> Result<(), Error> {
    if holds {
        return Ok(());
    }
    Err(Error::Saved { field: field.to_owned(), found: found.to_string(), expected: expected.to_string() })
}

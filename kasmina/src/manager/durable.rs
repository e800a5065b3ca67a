//! Saving the seed manager and bringing it back.
//!
//! A state is rebuilt aside and swapped in when it is complete, so a failed restore changes nothing (DU-2). The
//! tensors are new ones: the layout gets a revision under which this manager has not trained yet, so that nothing
//! captured before can be taken for valid. A manager that has done nothing takes the saved revision as it is.

use std::collections::BTreeMap;

use leyline::durable::{Durable, SavedState};
use leyline::id::{SeedId, TopologyRevision};
use leyline::model::TrainableModel;
use serde::{Deserialize, Serialize};

use crate::blueprint::SeedModule;
use crate::error::{Error, TensorProblem};
use crate::graft::{AlphaCell, Graft, GraftedModel, Role};
use crate::host::{Host, HostConfig};
use crate::lifecycle::SeedRecord;
use crate::manager::Kasmina;
use crate::manager::state::State;
use crate::weight::WeightSource;

const FORMAT: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: u32,
    host: HostConfig,
    revision: TopologyRevision,
    init_seed: u64,
    next_seed: u32,
    last_sequence: Option<u64>,
    /// Ordered by id.
    seeds: Vec<SeedRecord>,
}

impl Durable for Kasmina {
    fn save(&self) -> Result<SavedState, Error> {
        let state = &self.state;
        let document = Document {
            format: FORMAT,
            host: self.config.host.clone(),
            revision: state.model.layout().revision(),
            init_seed: state.init_seed,
            next_seed: state.next_seed,
            last_sequence: self.verifier.last_sequence(),
            seeds: state.seeds.values().cloned().collect(),
        };
        let mut tensors = BTreeMap::new();
        for weights in state.model.host().weights() {
            weights.save(&mut tensors)?;
        }
        for graft in state.model.grafts() {
            graft.module.weights().save(&mut tensors)?;
        }
        Ok(SavedState { json: serde_json::to_string(&document)?, tensors })
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), Error> {
        let document: Document = serde_json::from_str(&saved.json)?;
        let last_sequence = document.last_sequence;
        let state = self.rebuild(document, saved)?;
        self.state = state;
        self.untouched = false;
        self.verifier.set_last_sequence(last_sequence);
        self.update_gauges();
        Ok(())
    }
}

impl Kasmina {
    fn rebuild(&self, document: Document, saved: &SavedState) -> Result<State, Error> {
        let Document { format, host, revision, init_seed, next_seed, last_sequence: _, seeds: records } = document;
        require("format", format == FORMAT, format, FORMAT)?;
        let own = &self.config.host;
        require("host", host == *own, format_args!("{host:?}"), format_args!("{own:?}"))?;

        let device = self.state.model.device();
        let mut tensors = saved.tensors.clone();
        let host = Host::build(&host, &mut WeightSource::Saved(&mut tensors), device)?;
        let current = self.state.model.layout().revision();
        let is_new = revision > current || (self.untouched && revision == current);
        let revision = if is_new { revision } else { current.next() };
        let mut state = State {
            model: GraftedModel::new(host, device.clone(), revision)?,
            seeds: BTreeMap::new(),
            next_seed,
            init_seed,
        };
        for record in records {
            check_record(&state, &record)?;
            if let Some(role) = Role::of(record.stage()) {
                let (slot_index, slot) = state.slot(&record.slot)?;
                let blueprint = self.registry.get(&record.blueprint)?;
                let mut source = WeightSource::Saved(&mut tensors);
                let module = SeedModule::build(blueprint, record.id, slot.shape, record.width, &mut source, device)?;
                let alpha = AlphaCell::new(record.alpha.alpha(), device)?;
                state.model.insert(slot_index, Graft { seed: record.id, role, module, alpha });
            }
            state.seeds.insert(record.id, record);
        }
        if let Some(name) = tensors.into_keys().next() {
            return Err(Error::SavedTensor { name, problem: TensorProblem::Unexpected });
        }
        state.model.rebuild(revision)?;
        Ok(state)
    }
}

/// Refuses a record that contradicts itself or those before it.
fn check_record(state: &State, record: &SeedRecord) -> Result<(), Error> {
    let field = |name: &str| format!("seeds.{}.{name}", record.id);
    let last = state.seeds.last_key_value().map_or(SeedId(0), |(id, _)| *id);
    let in_order = record.id > last && record.id.0 < state.next_seed;
    require(&field("id"), in_order, record.id, format_args!("more than {last}, less than seed-{}", state.next_seed))?;
    state.slot(&record.slot)?;
    if record.occupies_slot() {
        let other = state.occupant(&record.slot);
        require(&field("slot"), other.is_none(), &record.slot, "a slot that no other live seed has")?;
    }
    let alpha = record.alpha.alpha();
    let consistent = match Role::of(record.stage()) {
        Some(Role::Acting) => true,
        Some(Role::Permanent) => alpha.is_one(),
        Some(Role::Idle | Role::Shadow) | None => alpha.is_zero(),
    };
    require(&field("alpha"), consistent, alpha, format_args!("one that fits stage {}", record.stage()))
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

//! A seed manager without seeds, for networks that do not grow.

use std::collections::BTreeMap;

use leyline::batch::Batch;
use leyline::command::SignedCommand;
use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorType;
use leyline::id::{EpochIndex, StepIndex};
use leyline::model::TrainableModel;
use leyline::region::Eager;
use leyline::seed::{Applied, Attribution, Evidence, SeedManager, SeedState, SlotState, Transition};

use serde::{Deserialize, Serialize};

use crate::error::Error;

const FORMAT: u32 = 1;

/// Everything but the parameters: a network without seeds has nothing else.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: u32,
}

/// Owns a network and refuses every command.
#[derive(Debug)]
pub struct NoSeeds<M> {
    model: M,
}

impl<M: TrainableModel> NoSeeds<M> {
    /// Wraps `model`.
    pub fn new(model: M) -> Self {
        Self { model }
    }
}

impl<M: TrainableModel> ErrorType for NoSeeds<M> {
    type Error = Error;
}

impl<M: TrainableModel> Durable for NoSeeds<M> {
    fn save(&self) -> Result<SavedState, Error> {
        let tensors = self
            .model
            .parameters()
            .iter()
            .map(|p| Ok((p.name.clone(), p.var.as_tensor().copy()?)))
            .collect::<Result<BTreeMap<_, _>, Error>>()?;
        let json = serde_json::to_string(&Document { format: FORMAT })
            .map_err(|e| Error::State { field: "seeds", message: e.to_string() })?;
        Ok(SavedState { json, tensors })
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), Error> {
        let document: Document =
            serde_json::from_str(&saved.json).map_err(|e| Error::State { field: "seeds", message: e.to_string() })?;
        if document.format != FORMAT {
            let message = format!("expected format {FORMAT}, found {}", document.format);
            return Err(Error::State { field: "seeds", message });
        }
        let known = self.model.parameters();
        if let Some(name) = saved.tensors.keys().find(|name| !known.iter().any(|p| p.name == **name)) {
            return Err(Error::State { field: "seeds", message: format!("no parameter is named `{name}`") });
        }
        let mut updates = Vec::with_capacity(saved.tensors.len());
        for parameter in self.model.parameters() {
            let tensor = saved
                .tensors
                .get(&parameter.name)
                .filter(|t| t.dims() == parameter.var.dims() && t.dtype() == parameter.var.dtype())
                .ok_or_else(|| Error::State {
                    field: "seeds",
                    message: format!("no tensor of the right shape and dtype for `{}`", parameter.name),
                })?;
            updates.push((&parameter.var, tensor.to_device(parameter.var.device())?));
        }
        for (var, tensor) in updates {
            var.set(&tensor)?;
        }
        Ok(())
    }
}

impl<M: TrainableModel> SeedManager for NoSeeds<M> {
    type Model = M;

    fn model(&self) -> &M {
        &self.model
    }

    fn attribute_batch(&mut self, eager: &Eager, _batch: &Batch) -> Result<Attribution, Error> {
        eager.check()?;
        Ok(Attribution::host_only())
    }

    fn inspect_batch(&mut self, eager: &Eager, _batch: &Batch) -> Result<(), Error> {
        Ok(eager.check()?)
    }

    fn export_seed_states(&self, eager: &Eager) -> Result<Vec<SeedState>, Error> {
        eager.check()?;
        Ok(Vec::new())
    }

    fn export_slot_states(&self, eager: &Eager) -> Result<Vec<SlotState>, Error> {
        eager.check()?;
        Ok(Vec::new())
    }

    fn apply(&mut self, eager: &mut Eager, _command: &SignedCommand) -> Result<Applied, Error> {
        eager.check()?;
        Err(Error::NoSlots)
    }

    fn record_evidence(&mut self, eager: &Eager, evidence: &[Evidence]) -> Result<(), Error> {
        eager.check()?;
        match evidence.first() {
            Some(first) => Err(Error::UnknownSeed { seed: first.seed }),
            None => Ok(()),
        }
    }

    fn finish_step(&mut self, eager: &mut Eager, _step: StepIndex) -> Result<(), Error> {
        Ok(eager.check()?)
    }

    fn finish_epoch(&mut self, eager: &mut Eager, _epoch: EpochIndex) -> Result<Vec<Transition>, Error> {
        eager.check()?;
        Ok(Vec::new())
    }
}

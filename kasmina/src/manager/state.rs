//! Network and records of the seeds: everything a command may change and a snapshot must hold.

use std::collections::BTreeMap;

use leyline::id::{SeedId, SlotId};
use leyline::seed::SlotState;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::blueprint::Registry;
use crate::error::Error;
use crate::graft::GraftedModel;
use crate::host::HostSlot;
use crate::lifecycle::SeedRecord;

/// Network and records.
#[derive(Debug)]
pub(super) struct State {
    pub(super) model: GraftedModel,
    /// From germination to the end of the reset; permanent seeds for good.
    pub(super) seeds: BTreeMap<SeedId, SeedRecord>,
    pub(super) next_seed: u32,
    /// All initial weights follow from it.
    pub(super) init_seed: u64,
}

impl State {
    pub(super) fn record(&self, seed: SeedId) -> Result<&SeedRecord, Error> {
        self.seeds.get(&seed).ok_or(Error::UnknownSeed { seed })
    }

    /// A slot of the host with its position.
    pub(super) fn slot(&self, id: &SlotId) -> Result<(usize, &HostSlot), Error> {
        let slots = self.model.host().slots();
        slots.iter().enumerate().find(|(_, slot)| slot.id == *id).ok_or_else(|| {
            let known = slots.iter().map(|slot| slot.id.as_str()).collect::<Vec<_>>().join(", ");
            Error::UnknownSlot { slot: id.clone(), known }
        })
    }

    pub(super) fn occupant(&self, slot: &SlotId) -> Option<&SeedRecord> {
        self.seeds.values().find(|record| record.slot == *slot && record.occupies_slot())
    }

    pub(super) fn export_slots(&self, registry: &Registry, width: usize) -> Vec<SlotState> {
        let slots = self.model.host().slots().iter();
        slots
            .map(|slot| {
                let here = self.seeds.values().filter(|record| record.slot == slot.id);
                SlotState {
                    slot: slot.id.clone(),
                    occupant: self.occupant(&slot.id).map(|record| record.id),
                    num_fossilized: here.filter(|record| !record.occupies_slot()).count() as u64,
                    offers: registry.offers(slot.shape, width),
                }
            })
            .collect()
    }
}

/// Generator of the host's initial weights (stream 0) or of a seed's (its number, from 1).
///
/// A stream for each, so that the weights of a seed do not depend on what germinated before it.
pub(super) fn weight_rng(init_seed: u64, stream: u32) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(init_seed);
    rng.set_stream(u64::from(stream));
    rng
}

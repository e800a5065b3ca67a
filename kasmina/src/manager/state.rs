//! Network and records of the seeds: everything a command may change and a snapshot must hold.

use std::collections::BTreeMap;

use leyline::batch::Batch;
use leyline::id::{SeedId, SlotId};
use leyline::layout::Owner;
use leyline::model::TrainableModel;
use leyline::seed::{BlueprintOffer, Confirming, SeedState, SlotState, Transition};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::blueprint::Registry;
use crate::config::KasminaConfig;
use crate::error::Error;
use crate::graft::{GraftedModel, SeedBlend, slot_of};
use crate::host::{HostSlot, SlotShape};
use crate::lifecycle::{Confirmations, SeedRecord, Spent, Surroundings};
use crate::weight::WeightSet;

/// Network and records.
#[derive(Debug)]
pub(super) struct State {
    pub(super) model: GraftedModel,
    /// From germination to the end of the reset; permanent seeds for good.
    pub(super) seeds: BTreeMap<SeedId, SeedRecord>,
    /// Stage changes between ends of epochs that the next one has to return.
    pub(super) unreturned: Vec<Transition>,
    pub(super) next_seed: u32,
    /// Gains that were confirmed or refused.
    pub(super) confirmations: Confirmations,
    /// Of all states of the process.
    pub(super) spent: Spent,
    /// On how many samples gains are confirmed, where somebody does it.
    pub(super) confirming_samples: Option<u64>,
    /// All initial weights follow from it.
    pub(super) init_seed: u64,
    /// The batch that was seen last, where new seeds start from one.
    pub(super) latest_batch: Option<Batch>,
}

impl State {
    pub(super) fn record(&self, seed: SeedId) -> Result<&SeedRecord, Error> {
        self.seeds.get(&seed).ok_or(Error::UnknownSeed { seed })
    }

    /// A slot of the host with its position.
    pub(super) fn slot(&self, id: &SlotId) -> Result<(usize, &HostSlot), Error> {
        slot_of(self.model.host().slots(), id)
    }

    pub(super) fn occupant(&self, slot: &SlotId) -> Option<&SeedRecord> {
        self.seeds.values().find(|record| record.slot == *slot && record.occupies_slot())
    }

    /// Trainable elements of the host and of every seed, whether or not they train now (count).
    pub(super) fn network_parameters(&self) -> u64 {
        let host: usize = self.model.host().weights().map(WeightSet::num_elements).sum();
        self.seeds.values().fold(host as u64, |sum, record| sum.saturating_add(record.num_parameters))
    }

    /// What the gates look at around a seed.
    pub(super) fn surroundings(&self, seed: SeedId, config: &KasminaConfig) -> Surroundings {
        let in_layout = self.model.layout().num_elements_of(Owner::Seed(seed)) > 0;
        Surroundings {
            network_parameters: self.network_parameters(),
            in_network: in_layout || self.model.graft(seed).is_some(),
            embargo_epochs: config.embargo_epochs,
            audit_every_epochs: config.isolation.check_every_epochs,
            confirming: self.confirming(config),
        }
    }

    /// What the next confirmation has to come to, where somebody confirms.
    pub(super) fn confirming(&self, config: &KasminaConfig) -> Option<Confirming> {
        Some(self.confirmations.next(&config.gates, self.confirming_samples?))
    }

    pub(super) fn export_seeds(&self) -> Vec<SeedState> {
        let slots = self.model.host().slots();
        let depth = |id: &SlotId| slots.iter().position(|slot| slot.id == *id).unwrap_or_default();
        let states = self.seeds.values().map(|record| SeedState {
            layer_depth: u32::try_from(depth(&record.slot)).unwrap_or(u32::MAX),
            ..record.export()
        });
        states.collect()
    }

    pub(super) fn export_slots(&self, registry: &Registry, config: &KasminaConfig) -> Vec<SlotState> {
        let slots = self.model.host().slots().iter();
        slots
            .map(|slot| {
                let here = self.seeds.values().filter(|record| record.slot == slot.id);
                SlotState {
                    slot: slot.id.clone(),
                    occupant: self.occupant(&slot.id).map(|record| record.id),
                    num_fossilized: here.filter(|record| !record.occupies_slot()).count() as u64,
                    offers: offers(registry, config, slot.shape),
                }
            })
            .collect()
    }
}

/// What a slot of this shape has on offer.
pub(super) fn offers(registry: &Registry, config: &KasminaConfig, slot: SlotShape) -> Vec<BlueprintOffer> {
    registry.offers(slot, config.seed_width, SeedBlend::num_elements(&config.offered_blend, slot))
}

/// Generator of the host's initial weights (stream 0) or of a seed's (its number, from 1).
///
/// A stream for each, so that the weights of a seed do not depend on what germinated before it.
pub(super) fn weight_rng(init_seed: u64, stream: u32) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(init_seed);
    rng.set_stream(u64::from(stream));
    rng
}

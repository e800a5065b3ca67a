//! What the network, its seeds and what is on offer cost.

use leyline::command::Blend;
use leyline::id::{BlueprintId, SeedId, SlotId, TopologyRevision};
use leyline::model::TrainableModel;
use leyline::seed::{AttributionMode, Cost, Costs};
use leyline::unit::Alpha;

use crate::blueprint::SeedModule;
use crate::error::Error;
use crate::graft::{AlphaCell, Graft, Role, SeedBlend};
use crate::init::{self, InitMode};
use crate::manager::Kasmina;
use crate::manager::state::{offers, weight_rng};
use crate::weight::WeightSource;

/// What holds until the network changes.
#[derive(Debug, Clone)]
pub(super) struct Known {
    revision: TopologyRevision,
    batch_size: usize,
    costs: Costs,
}

impl Kasmina {
    /// Costs with microbatches of so many samples; counted once for each form of the network.
    pub(super) fn known_costs(&self, batch_size: usize) -> Result<Costs, Error> {
        let revision = self.state.model.layout().revision();
        let mut known = self.costs.borrow_mut();
        if let Some(known) = known.as_ref().filter(|known| (known.revision, known.batch_size) == (revision, batch_size))
        {
            return Ok(known.costs.clone());
        }
        let costs = self.count_costs(batch_size)?;
        *known = Some(Known { revision, batch_size, costs: costs.clone() });
        Ok(costs)
    }

    fn count_costs(&self, batch_size: usize) -> Result<Costs, Error> {
        let model = &self.state.model;
        let (network, now) = (model.permanent().cost()?, model.cost()?);
        let mut seeds = Vec::new();
        for graft in model.grafts() {
            let slot_index = model.slot_index(graft.seed).expect("a graft of the network has a slot");
            seeds.extend(model.looking_cost(graft, slot_index, batch_size)?.map(|cost| (graft.seed, cost)));
        }
        seeds.sort_by_key(|(seed, _)| *seed);
        let num_acting = self.acting().len() as f64;
        let passes = match self.config.attribution {
            AttributionMode::Contribution if num_acting > 0.0 => 1.0,
            AttributionMode::Probe if num_acting > 0.0 => 1.0 + num_acting,
            _ => 0.0,
        };
        // No pass for the gradient at a slot takes more than one that trains.
        let from_samples = if self.config.seed_init == InitMode::GradMax { init::MOST_SAMPLES + batch_size } else { 0 };
        Ok(Costs {
            network,
            attribution: passes * now.evaluation,
            germination: from_samples as f64 * now.training,
            seeds,
            offers: self.count_offers(now, batch_size)?,
        })
    }

    fn count_offers(&self, network: Cost, batch_size: usize) -> Result<Vec<(SlotId, BlueprintId, Cost)>, Error> {
        let model = &self.state.model;
        let (width, device, dtype) = (self.config.seed_width, model.device(), model.dtype());
        let mut costs = Vec::new();
        for (slot_index, slot) in model.host().slots().iter().enumerate() {
            for offer in offers(&self.registry, &self.config, slot.shape) {
                let mut source = WeightSource::draw(weight_rng(0, 0)).with_dtype(dtype);
                let (kind, seed) = (self.registry.get(&offer.blueprint)?, SeedId(0));
                let module = SeedModule::without_probe(kind, seed, slot.shape, width, &mut source, device)?;
                let mut blended = |blend: &Blend| SeedBlend::build(blend, seed, slot.shape, &mut source, device);
                let blend = match blended(&self.config.offered_blend) {
                    // It does not fit here, and is refused when a seed is to come.
                    Err(Error::ChannelWeights { .. } | Error::NoMargin { .. }) => blended(&Blend::Residual)?,
                    found => found?,
                };
                let alpha = AlphaCell::new(Alpha::ZERO, dtype, device)?;
                let graft = Graft { seed, role: Role::Shadow, module, blend, alpha };
                let cost = model.shadow_cost_of(&graft, slot_index, network, batch_size)?;
                costs.push((slot.id.clone(), offer.blueprint, cost));
            }
        }
        Ok(costs)
    }
}

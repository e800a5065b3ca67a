//! A network as it acts, described: enough to build it again from its tensors, without the manager that grew it.

use std::collections::{BTreeMap, BTreeSet};

use candle_core::{Device, Tensor};
use leyline::command::Blend;
use leyline::id::{BlueprintId, SeedId, SlotId, TopologyRevision};
use leyline::unit::Alpha;
use serde::{Deserialize, Serialize};

use crate::blueprint::{Registry, SeedModule};
use crate::config::KasminaConfig;
use crate::error::{Error, TensorProblem};
use crate::graft::{Graft, GraftedModel, Role, SeedBlend, rounded};
use crate::host::{Host, HostConfig, HostSlot};
use crate::weight::{ElementType, WeightSource};

/// A host and the seeds that act in it.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use kasmina::{blueprint::Registry, graft::NetworkSpec, host::HostConfig, weight::ElementType};
/// # use leyline::model::{Pass, TrainableModel as _};
/// let host = HostConfig::Mlp { inputs: 2, hidden: vec![], classes: 2 };
/// let spec = NetworkSpec { host, dtype: ElementType::F32, seeds: vec![] };
/// let registry = Registry::all();
/// assert_eq!(spec.tensors(&registry)?, [("host.head.weight".to_owned(), vec![2, 2]), ("host.head.bias".to_owned(), vec![2])]);
/// let cpu = Device::Cpu;
/// let tensors = [("host.head.weight", Tensor::eye(2, DType::F32, &cpu)?), ("host.head.bias", Tensor::new(&[0.5_f32, 0.0], &cpu)?)];
/// let network = spec.build(tensors.map(|(name, tensor)| (name.to_owned(), tensor)).into(), &registry, &cpu)?;
/// let outputs = network.forward(&Tensor::new(&[[3_f32, 4.0]], &cpu)?, Pass::Evaluate { overrides: &[] })?;
/// assert_eq!(outputs.logits.to_vec2::<f32>()?, [[3.5, 4.0]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkSpec {
    /// The host, with all of its sizes.
    pub host: HostConfig,
    /// Type of weights and signals.
    pub dtype: ElementType,
    /// The seeds in the order of their ids, which at each slot is the order in which they act.
    pub seeds: Vec<SeedSpec>,
}

/// A seed that acts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedSpec {
    /// Its id, after which its tensors are named.
    pub id: SeedId,
    /// Where it acts.
    pub slot: SlotId,
    /// What it computes.
    pub blueprint: BlueprintId,
    /// Width of its bottleneck.
    pub width: usize,
    /// How its output is mixed with the value of the slot.
    pub blend: Blend,
    /// How much of it acts, above 0: 1 for a permanent seed.
    pub alpha: Alpha,
}

impl NetworkSpec {
    /// Whether a seed acts around a layer, where a host has slots only where they are asked for.
    fn has_around(&self) -> bool {
        self.seeds.iter().any(|seed| seed.slot.as_str().starts_with("around"))
    }

    /// Names and shapes of the tensors that the network needs; nothing is allocated for them.
    ///
    /// # Errors
    /// [`Error::Config`] for sizes that no host has, [`Error::Saved`] for a list of seeds that cannot act together, and what
    /// refuses a seed that does not fit its slot, or is too large.
    pub fn tensors(&self, registry: &Registry) -> Result<Vec<(String, Vec<usize>)>, Error> {
        let (host, mut tensors) = Host::preview(&self.host, self.has_around())?;
        let (mut last, mut closed) = (None, BTreeSet::new());
        for seed in &self.seeds {
            let wrong = |field: &str, found: String, expected: String| {
                Err(Error::Saved { field: format!("seeds.{}.{field}", seed.id), found, expected })
            };
            let (_, slot) = slot_of(host.slots(), &seed.slot)?;
            if last >= Some(seed.id) {
                return wrong(
                    "id",
                    "not above the one before".to_owned(),
                    "seeds in the order of their ids".to_owned(),
                );
            }
            if rounded(seed.alpha.get(), self.dtype.dtype()) <= 0.0 {
                return wrong("alpha", seed.alpha.to_string(), "a number above 0, up to 1".to_owned());
            }
            if closed.contains(&seed.slot) {
                let expected = "no seed behind one whose alpha is below 1 in its slot".to_owned();
                return wrong("slot", seed.slot.to_string(), expected);
            }
            if !seed.alpha.is_one() {
                closed.insert(&seed.slot);
            }
            if !(1..=KasminaConfig::MAX_SEED_WIDTH).contains(&seed.width) {
                return wrong("width", seed.width.to_string(), format!("1 to {}", KasminaConfig::MAX_SEED_WIDTH));
            }
            last = Some(seed.id);
            let blueprint = registry.get(&seed.blueprint)?;
            if !blueprint.fits(slot.shape) {
                let (blueprint, slot_id) = (seed.blueprint.clone(), seed.slot.clone());
                return Err(Error::BlueprintDoesNotFit { blueprint, slot: slot_id, shape: slot.shape });
            }
            let of_blend = SeedBlend::num_elements(&seed.blend, slot.shape);
            registry.check_size(&seed.blueprint, slot.shape, seed.width, of_blend)?;
            let mut source = WeightSource::list();
            SeedModule::weights_at(&**blueprint, seed.id, slot.shape, seed.width, &mut source, &Device::Cpu)?;
            SeedBlend::build(&seed.blend, seed.id, slot.shape, &mut source, &Device::Cpu)?;
            tensors.extend(source.into_listed());
        }
        Ok(tensors)
    }

    /// Builds the network from its tensors, those of [`Self::tensors`] and no others.
    ///
    /// # Errors
    /// As [`Self::tensors`]; [`Error::SavedTensor`] with the first tensor that is missing, has another shape or type, or that
    /// nothing needs; when the device fails.
    /// # Sync
    /// none
    pub fn build(
        &self,
        mut tensors: BTreeMap<String, Tensor>,
        registry: &Registry,
        device: &Device,
    ) -> Result<GraftedModel, Error> {
        self.tensors(registry)?;
        let (dtype, revision) = (self.dtype.dtype(), TopologyRevision(1));
        let mut source = WeightSource::saved(&mut tensors).with_dtype(dtype);
        let host = Host::build(&self.host, self.has_around(), &mut source, device)?;
        let slots = host.slots().to_vec();
        let mut model = GraftedModel::new(host, device.clone(), revision)?;
        for seed in &self.seeds {
            let (index, slot) = slot_of(&slots, &seed.slot)?;
            let role = if seed.alpha.is_one() { Role::Permanent } else { Role::Acting };
            let mut source = WeightSource::saved(&mut tensors).with_dtype(dtype);
            let blueprint = registry.get(&seed.blueprint)?;
            model.insert(index, Graft::build(seed, role, blueprint, slot.shape, &mut source, device)?);
        }
        if let Some(name) = tensors.into_keys().next() {
            return Err(Error::SavedTensor { name, problem: TensorProblem::Unexpected });
        }
        model.rebuild(revision)?;
        Ok(model)
    }
}

/// A slot with its position.
pub(crate) fn slot_of<'a>(slots: &'a [HostSlot], id: &SlotId) -> Result<(usize, &'a HostSlot), Error> {
    slots.iter().enumerate().find(|(_, slot)| slot.id == *id).ok_or_else(|| {
        let known = slots.iter().map(|slot| slot.id.as_str()).collect::<Vec<_>>().join(", ");
        Error::UnknownSlot { slot: id.clone(), known }
    })
}

//! The blueprints on offer.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use candle_core::Device;
use leyline::id::{BlueprintId, SeedId};
use leyline::seed::BlueprintOffer;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::blueprint::{Blueprint, Noise, Offered, SeedModule, built_in};
use crate::config::{ConfigIssue, KasminaConfig};
use crate::error::Error;
use crate::host::SlotShape;
use crate::weight::{MAX_ELEMENTS, WeightSource, num_elements};

/// Blueprints by name.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    blueprints: BTreeMap<BlueprintId, Arc<dyn Blueprint>>,
    budgets: BTreeMap<BlueprintId, u64>,
}

impl Registry {
    /// The useful blueprints.
    #[must_use]
    pub fn standard() -> Self {
        Self::built_in(&[Offered::Always])
    }

    /// The useful blueprints and those that are offered by name only.
    ///
    /// What a slot is offered decides what a policy tries there, so that more offers at the slots of a known network
    /// would change its runs.
    #[must_use]
    pub fn extended() -> Self {
        Self::built_in(&[Offered::Always, Offered::ByName])
    }

    /// The useful blueprints and the harmful ones, for control experiments.
    #[must_use]
    pub fn with_noise() -> Self {
        Self::built_in(&[Offered::Always, Offered::AsControl])
    }

    /// Every blueprint of this crate: what a network that is built again may hold.
    #[must_use]
    pub fn all() -> Self {
        Self::built_in(&[Offered::Always, Offered::ByName, Offered::AsControl])
    }

    fn built_in(which: &[Offered]) -> Self {
        // To probe them all takes milliseconds, and whoever reads a configuration or an export needs them.
        static PROBED: LazyLock<Registry> = LazyLock::new(|| {
            let mut registry = Registry::default();
            for (_, blueprint) in built_in() {
                registry
                    .register(blueprint)
                    .expect("blueprints of this crate have different names and pass their probes");
            }
            registry
        });
        let left_out = built_in().into_iter().filter(|(offered, _)| !which.contains(offered));
        let mut registry = PROBED.clone();
        for (_, blueprint) in left_out {
            registry.blueprints.retain(|id, _| id.as_str() != blueprint.name());
        }
        registry
    }

    /// What the configuration may choose from: everything where it names blueprints.
    pub(crate) fn on_offer(config: &KasminaConfig) -> Self {
        match (&config.blueprints, config.noise_blueprint) {
            (Some(_), _) => Self::all(),
            (None, true) => Self::with_noise(),
            (None, false) => Self::standard(),
        }
    }

    /// What is wrong with the names and budgets in the configuration.
    pub(crate) fn issues(&self, config: &KasminaConfig) -> Vec<ConfigIssue> {
        let mut issues = Vec::new();
        let is_known = |name: &String| self.blueprints.keys().any(|id| id.as_str() == name);
        if let Some(names) = &config.blueprints {
            if names.is_empty() {
                issues.push(ConfigIssue::new("blueprints", format!("is empty: expected some of {}", self.names())));
            }
            for (index, name) in names.iter().enumerate() {
                let key = format!("blueprints[{index}]");
                if !is_known(name) {
                    issues.push(ConfigIssue::new(key, format!("is `{name}`: expected one of {}", self.names())));
                } else if names[..index].contains(name) {
                    issues.push(ConfigIssue::new(key, format!("is `{name}` again: expected each name once")));
                }
            }
            if config.noise_blueprint && !names.iter().any(|name| name == Noise.name()) {
                let message = "is true, but `blueprints` does not name `noise`: expected both or neither";
                issues.push(ConfigIssue::new("noise_blueprint", message));
            }
        }
        for (name, budget) in &config.blueprint_budgets {
            let key = format!("blueprint_budgets.{name}");
            if !is_known(name) {
                let message = format!("names no blueprint on offer: expected one of {}", self.names());
                issues.push(ConfigIssue::new(key, message));
            } else if *budget == 0 {
                issues.push(ConfigIssue::new(key, "is 0: expected at least 1 parameter"));
            }
        }
        issues
    }

    /// Keeps what the configuration names, and sets its budgets; the configuration has been checked.
    pub(crate) fn configure(&mut self, config: &KasminaConfig) -> Result<(), Error> {
        for (name, budget) in &config.blueprint_budgets {
            self.set_budget(&BlueprintId::new(name.as_str())?, *budget)?;
        }
        if let Some(names) = &config.blueprints {
            self.blueprints.retain(|id, _| names.iter().any(|name| name == id.as_str()));
        }
        Ok(())
    }

    /// Adds a blueprint, and probes it at small shapes of every kind that it claims to fit.
    ///
    /// # Errors
    /// [`Error::Id`] when its name is no id, [`Error::DuplicateBlueprint`] when the name is taken,
    /// [`Error::DuplicateTensor`] or [`Error::ReservedTensor`] when its tensors cannot have the names it gives them,
    /// [`Error::ShapeProbe`] or [`Error::ProbeFailed`] when it does not work at a shape it claims to fit.
    pub fn register(&mut self, blueprint: Arc<dyn Blueprint>) -> Result<(), Error> {
        let id = BlueprintId::new(blueprint.name())?;
        if self.blueprints.contains_key(&id) {
            return Err(Error::DuplicateBlueprint { blueprint: id });
        }
        for shape in PROBES.into_iter().filter(|shape| blueprint.fits(*shape)) {
            for width in PROBE_WIDTHS {
                let mut source = WeightSource::draw(ChaCha8Rng::seed_from_u64(0));
                match SeedModule::build(&blueprint, SeedId(0), shape, width, &mut source, &Device::Cpu) {
                    Ok(_) => {}
                    Err(Error::Tensor(source)) => return Err(Error::ProbeFailed { blueprint: id, shape, source }),
                    Err(error) => return Err(error),
                }
            }
        }
        self.blueprints.insert(id, blueprint);
        Ok(())
    }

    /// Limits the elements that a seed of this blueprint may have, those of its blend included (count).
    ///
    /// # Errors
    /// [`Error::UnknownBlueprint`] with the names on offer.
    pub fn set_budget(&mut self, id: &BlueprintId, max_parameters: u64) -> Result<(), Error> {
        self.get(id)?;
        self.budgets.insert(id.clone(), max_parameters);
        Ok(())
    }

    /// The blueprint of this name.
    ///
    /// # Errors
    /// [`Error::UnknownBlueprint`] with the names on offer.
    pub fn get(&self, id: &BlueprintId) -> Result<&Arc<dyn Blueprint>, Error> {
        let unknown = || Error::UnknownBlueprint { blueprint: id.clone(), known: self.names() };
        self.blueprints.get(id).ok_or_else(unknown)
    }

    /// What fits a slot within its budget, ordered by name, with the elements it would add; those of its blend are `num_of_blend`.
    #[must_use]
    pub fn offers(&self, slot: SlotShape, width: usize, num_of_blend: u64) -> Vec<BlueprintOffer> {
        let fitting = self.blueprints.iter().filter(|(_, blueprint)| blueprint.fits(slot));
        fitting
            .map(|(id, blueprint)| BlueprintOffer {
                blueprint: id.clone(),
                num_parameters: num_parameters(&**blueprint, slot, width).saturating_add(num_of_blend),
            })
            .filter(|offer| self.fits_budget(&offer.blueprint, slot, offer.num_parameters).is_ok())
            .collect()
    }

    /// Refuses a seed that needs more elements at the slot than its blueprint's budget, or any seed, may have; those of its
    /// blend are `num_of_blend`.
    pub(crate) fn check_size(
        &self,
        id: &BlueprintId,
        slot: SlotShape,
        width: usize,
        num_of_blend: u64,
    ) -> Result<(), Error> {
        let num_of_module = num_parameters(&**self.get(id)?, slot, width);
        self.fits_budget(id, slot, num_of_module.saturating_add(num_of_blend))
    }

    fn fits_budget(&self, id: &BlueprintId, slot: SlotShape, num_parameters: u64) -> Result<(), Error> {
        let blueprint = || id.clone();
        match self.budgets.get(id) {
            Some(&budget) if num_parameters > budget => {
                Err(Error::BlueprintOverBudget { blueprint: blueprint(), num_parameters, budget })
            }
            _ if num_parameters > MAX_ELEMENTS => {
                Err(Error::SeedTooLarge { blueprint: blueprint(), shape: slot, num_parameters, limit: MAX_ELEMENTS })
            }
            _ => Ok(()),
        }
    }

    fn names(&self) -> String {
        self.blueprints.keys().map(BlueprintId::as_str).collect::<Vec<_>>().join(", ")
    }
}

/// Shapes at which a new blueprint is tried: of each kind an ordinary one, and the least of each size.
const PROBES: [SlotShape; 18] = [
    SlotShape::Vector { features: 6 },
    SlotShape::Vector { features: 1 },
    SlotShape::Signal { channels: 3, length: 5 },
    SlotShape::Signal { channels: 1, length: 5 },
    SlotShape::Signal { channels: 3, length: 1 },
    SlotShape::Image { channels: 3, height: 5, width: 4 },
    SlotShape::Image { channels: 1, height: 5, width: 4 },
    SlotShape::Image { channels: 3, height: 1, width: 4 },
    SlotShape::Image { channels: 3, height: 1, width: 1 },
    SlotShape::Sequence { length: 5, features: 6 },
    SlotShape::Sequence { length: 5, features: 1 },
    SlotShape::Sequence { length: 1, features: 6 },
    SlotShape::Causal { length: 5, features: 6 },
    SlotShape::Causal { length: 5, features: 1 },
    SlotShape::Causal { length: 1, features: 6 },
    SlotShape::Around { inputs: 6, features: 4 },
    SlotShape::Around { inputs: 6, features: 1 },
    SlotShape::Around { inputs: 1, features: 4 },
];
const PROBE_WIDTHS: [usize; 2] = [1, 4];

fn num_parameters(blueprint: &dyn Blueprint, slot: SlotShape, width: usize) -> u64 {
    num_elements(&blueprint.weights(slot, width))
}

#[cfg(test)]
mod tests;

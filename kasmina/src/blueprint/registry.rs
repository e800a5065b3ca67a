//! The blueprints on offer.

use std::collections::BTreeMap;
use std::sync::Arc;

use leyline::id::BlueprintId;
use leyline::seed::BlueprintOffer;

use crate::blueprint::{Blueprint, Conv, Mlp, Noise, NormMlp};
use crate::error::Error;
use crate::host::SlotShape;
use crate::weight::WeightSpec;

/// Blueprints by name.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    blueprints: BTreeMap<BlueprintId, Arc<dyn Blueprint>>,
}

impl Registry {
    /// The useful blueprints: `mlp`, `norm_mlp`, `conv`.
    #[must_use]
    pub fn standard() -> Self {
        let mut registry = Self::default();
        let standard: [Arc<dyn Blueprint>; 3] = [Arc::new(Mlp), Arc::new(NormMlp), Arc::new(Conv)];
        for blueprint in standard {
            registry.register(blueprint).expect("the standard names are ids and differ");
        }
        registry
    }

    /// The useful blueprints and the harmful `noise`, for control experiments.
    #[must_use]
    pub fn with_noise() -> Self {
        let mut registry = Self::standard();
        registry.register(Arc::new(Noise)).expect("the standard names are ids and differ");
        registry
    }

    /// Adds a blueprint.
    ///
    /// # Errors
    /// [`Error::Id`] when its name is no id, [`Error::DuplicateBlueprint`] when the name is taken.
    pub fn register(&mut self, blueprint: Arc<dyn Blueprint>) -> Result<(), Error> {
        let id = BlueprintId::new(blueprint.name())?;
        if self.blueprints.contains_key(&id) {
            return Err(Error::DuplicateBlueprint { blueprint: id });
        }
        self.blueprints.insert(id, blueprint);
        Ok(())
    }

    /// The blueprint of this name.
    ///
    /// # Errors
    /// [`Error::UnknownBlueprint`] with the names on offer.
    pub fn get(&self, id: &BlueprintId) -> Result<&Arc<dyn Blueprint>, Error> {
        self.blueprints.get(id).ok_or_else(|| {
            let known = self.blueprints.keys().map(BlueprintId::as_str).collect::<Vec<_>>().join(", ");
            Error::UnknownBlueprint { blueprint: id.clone(), known }
        })
    }

    /// What fits a slot, ordered by name, with the elements it would add.
    #[must_use]
    pub fn offers(&self, slot: SlotShape, width: usize) -> Vec<BlueprintOffer> {
        let fitting = self.blueprints.iter().filter(|(_, blueprint)| blueprint.fits(slot));
        fitting
            .map(|(id, blueprint)| {
                let elements: usize = blueprint.weights(slot, width).iter().map(WeightSpec::num_elements).sum();
                BlueprintOffer { blueprint: id.clone(), num_parameters: elements as u64 }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(registry: &Registry, slot: SlotShape, expected: &[(&str, u64)]) {
        let offers = registry.offers(slot, 8);
        let offers: Vec<_> = offers.iter().map(|offer| (offer.blueprint.as_str(), offer.num_parameters)).collect();
        assert_eq!(offers, expected);
    }

    #[test]
    fn a_slot_is_offered_what_fits_it_and_noise_only_on_request() {
        let standard = Registry::standard();
        let (vector, signal) = (SlotShape::Vector { features: 4 }, SlotShape::Signal { channels: 4, length: 10 });
        check(&standard, vector, &[("mlp", 76), ("norm_mlp", 76)]);
        check(&standard, signal, &[("conv", 204), ("mlp", 76), ("norm_mlp", 76)]);
        check(&standard, SlotShape::Signal { channels: 1, length: 10 }, &[("conv", 57), ("mlp", 25)]);
        check(&standard, SlotShape::Signal { channels: 4, length: 1 }, &[("mlp", 76), ("norm_mlp", 76)]);
        check(&Registry::with_noise(), vector, &[("mlp", 76), ("noise", 4), ("norm_mlp", 76)]);
    }

    #[test]
    fn a_name_is_taken_once_and_an_unknown_one_is_answered_with_the_known() {
        let mut registry = Registry::standard();
        assert_eq!(registry.register(Arc::new(Mlp)).unwrap_err().to_string(), "two blueprints are named `mlp`");
        let error = registry.get(&BlueprintId::new("noise").unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "there is no blueprint `noise`: expected one of conv, mlp, norm_mlp");
    }
}

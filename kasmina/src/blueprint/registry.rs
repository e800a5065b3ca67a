//! The blueprints on offer.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::Device;
use leyline::id::{BlueprintId, SeedId};
use leyline::seed::BlueprintOffer;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::blueprint::{Attention, Blueprint, Conv, Depthwise, LowRank, Mlp, Noise, Norm, NormMlp, SeedModule};
use crate::config::{ConfigIssue, KasminaConfig};
use crate::error::Error;
use crate::host::SlotShape;
use crate::weight::{WeightSource, WeightSpec};

/// Blueprints by name.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    blueprints: BTreeMap<BlueprintId, Arc<dyn Blueprint>>,
    budgets: BTreeMap<BlueprintId, u64>,
}

impl Registry {
    /// The useful blueprints: `mlp`, `norm_mlp`, `conv`, and `attention` for sequences.
    #[must_use]
    pub fn standard() -> Self {
        let mut registry = Self::default();
        let standard: [Arc<dyn Blueprint>; 4] = [Arc::new(Mlp), Arc::new(NormMlp), Arc::new(Conv), Arc::new(Attention)];
        for blueprint in standard {
            registry.register(blueprint).expect("the standard blueprints have different names and pass their probes");
        }
        registry
    }

    /// The standard blueprints and those that are offered on request only: `depthwise`, `low_rank`, `norm`.
    ///
    /// What a slot is offered decides what a policy tries there, so that more offers at the slots of a known network
    /// would change its runs.
    #[must_use]
    pub fn extended() -> Self {
        let mut registry = Self::standard();
        let more: [Arc<dyn Blueprint>; 3] = [Arc::new(Depthwise), Arc::new(LowRank), Arc::new(Norm)];
        for blueprint in more {
            registry.register(blueprint).expect("the standard blueprints have different names and pass their probes");
        }
        registry
    }

    /// The useful blueprints and the harmful `noise`, for control experiments.
    #[must_use]
    pub fn with_noise() -> Self {
        let mut registry = Self::standard();
        registry.register(Arc::new(Noise)).expect("the standard blueprints have different names and pass their probes");
        registry
    }

    /// All blueprints there are.
    fn all() -> Self {
        let mut registry = Self::extended();
        registry.register(Arc::new(Noise)).expect("the standard blueprints have different names and pass their probes");
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

    /// Limits the elements that a seed of this blueprint may have (count).
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

    /// What fits a slot within its budget, ordered by name, with the elements it would add.
    #[must_use]
    pub fn offers(&self, slot: SlotShape, width: usize) -> Vec<BlueprintOffer> {
        let fitting = self.blueprints.iter().filter(|(_, blueprint)| blueprint.fits(slot));
        fitting
            .map(|(id, blueprint)| BlueprintOffer {
                blueprint: id.clone(),
                num_parameters: num_parameters(&**blueprint, slot, width),
            })
            .filter(|offer| self.budgets.get(&offer.blueprint).is_none_or(|budget| offer.num_parameters <= *budget))
            .collect()
    }

    /// Refuses a blueprint that needs more elements at the slot than its budget allows.
    pub(crate) fn check_budget(&self, id: &BlueprintId, slot: SlotShape, width: usize) -> Result<(), Error> {
        let num_parameters = num_parameters(&**self.get(id)?, slot, width);
        match self.budgets.get(id) {
            Some(&budget) if num_parameters > budget => {
                Err(Error::BlueprintOverBudget { blueprint: id.clone(), num_parameters, budget })
            }
            _ => Ok(()),
        }
    }

    fn names(&self) -> String {
        self.blueprints.keys().map(BlueprintId::as_str).collect::<Vec<_>>().join(", ")
    }
}

/// Shapes at which a new blueprint is tried: of each kind an ordinary one, and the least of each size.
const PROBES: [SlotShape; 12] = [
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
];
const PROBE_WIDTHS: [usize; 2] = [1, 4];

fn num_parameters(blueprint: &dyn Blueprint, slot: SlotShape, width: usize) -> u64 {
    blueprint.weights(slot, width).iter().map(WeightSpec::num_elements).sum::<usize>() as u64
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Tensor};

    use super::*;
    use crate::blueprint::testing::{awake, numbers, read, seen, tensor};

    /// With the same numbers for its weights, each blueprint gives in `f32` what it gives in `f64`, in that type.
    #[test]
    fn every_blueprint_computes_in_the_type_of_its_operands() {
        let mut registry = Registry::extended();
        registry.register(Arc::new(Noise)).unwrap();
        let mut num_checked = 0;
        for slot in [
            SlotShape::Vector { features: 1 },
            SlotShape::Vector { features: 5 },
            SlotShape::Signal { channels: 1, length: 1 },
            SlotShape::Signal { channels: 3, length: 4 },
            SlotShape::Sequence { length: 1, features: 1 },
            SlotShape::Sequence { length: 1, features: 3 },
            SlotShape::Sequence { length: 4, features: 1 },
            SlotShape::Sequence { length: 4, features: 3 },
        ] {
            for blueprint in registry.blueprints.values().filter(|blueprint| blueprint.fits(slot)) {
                let dims = seen(slot, 2);
                let h = tensor(&numbers(1, dims.iter().product()), &dims);
                let weights = awake(blueprint.as_ref(), slot, 4);
                let wide = blueprint.delta(&weights, &h).unwrap();
                let narrow = |tensor: &Tensor| tensor.to_dtype(DType::F32).unwrap();
                let weights: Vec<Tensor> = weights.iter().map(narrow).collect();
                let single = blueprint.delta(&weights, &narrow(&h)).unwrap();
                assert_eq!((single.dtype(), single.dims()), (DType::F32, wide.dims()));
                let (single, wide) = (read(&single), read(&wide));
                assert!(wide.iter().any(|value| value.abs() > 1e-3), "{} at {slot}: {wide:?}", blueprint.name());
                for (single, wide) in single.iter().zip(&wide) {
                    let error = (single - wide).abs();
                    assert!(error < 1e-4 * (1.0 + wide.abs()), "{} at {slot}: {single} {wide}", blueprint.name());
                }
                num_checked += 1;
            }
        }
        // Vectors: mlp, low_rank, noise, and the norms where C ≥ 2; signals also conv and depthwise,
        // sequences attention where L ≥ 2.
        assert_eq!(num_checked, (3 + 5) + (3 + 7) + (3 + 5) + (3 + 6));
    }

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
        let image = SlotShape::Image { channels: 4, height: 5, width: 6 };
        check(&standard, image, &[("conv", 588), ("mlp", 76), ("norm_mlp", 76)]);
        let pixel = SlotShape::Image { channels: 4, height: 1, width: 1 };
        check(&standard, pixel, &[("mlp", 76), ("norm_mlp", 76)]);
        let line = SlotShape::Image { channels: 1, height: 1, width: 2 };
        check(&standard, line, &[("conv", 153), ("mlp", 25)]);
        check(&Registry::with_noise(), vector, &[("mlp", 76), ("noise", 4), ("norm_mlp", 76)]);
    }

    #[test]
    fn a_sequence_is_offered_attention_where_positions_can_differ() {
        let standard = Registry::standard();
        let sequence = |length, features| SlotShape::Sequence { length, features };
        check(&standard, sequence(5, 4), &[("attention", 156), ("mlp", 76), ("norm_mlp", 76)]);
        check(&standard, sequence(1, 4), &[("mlp", 76), ("norm_mlp", 76)]);
        check(&standard, sequence(5, 1), &[("mlp", 25)]);
        check(&Registry::with_noise(), sequence(5, 1), &[("mlp", 25), ("noise", 1)]);
    }

    #[test]
    fn the_extended_registry_adds_to_the_standard_one() {
        let extended = Registry::extended();
        let (vector, signal) = (SlotShape::Vector { features: 4 }, SlotShape::Signal { channels: 1, length: 10 });
        check(&extended, vector, &[("low_rank", 64), ("mlp", 76), ("norm", 8), ("norm_mlp", 76)]);
        check(&extended, signal, &[("conv", 57), ("depthwise", 6), ("low_rank", 16), ("mlp", 25)]);
        let sequence = SlotShape::Sequence { length: 5, features: 4 };
        let offers = [("attention", 156), ("low_rank", 64), ("mlp", 76), ("norm", 8), ("norm_mlp", 76)];
        check(&extended, sequence, &offers);
    }

    #[test]
    fn convolutions_are_offered_where_positions_have_neighbors() {
        let extended = Registry::extended();
        let signal = |length| SlotShape::Signal { channels: 4, length };
        let image = |height, width| SlotShape::Image { channels: 4, height, width };
        let anywhere = [("low_rank", 64), ("mlp", 76), ("norm", 8), ("norm_mlp", 76)];
        let beside = |more: [(&'static str, u64); 2]| [more.as_slice(), &anywhere].concat();
        check(&extended, signal(10), &beside([("conv", 204), ("depthwise", 36)]));
        check(&extended, signal(1), &anywhere);
        check(&extended, image(5, 6), &beside([("conv", 588), ("depthwise", 60)]));
        check(&extended, image(1, 1), &anywhere);
    }

    #[test]
    fn a_name_is_taken_once_and_an_unknown_one_is_answered_with_the_known() {
        let mut registry = Registry::standard();
        assert_eq!(registry.register(Arc::new(Mlp)).unwrap_err().to_string(), "two blueprints are named `mlp`");
        let error = registry.get(&BlueprintId::new("noise").unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "there is no blueprint `noise`: expected one of attention, conv, mlp, norm_mlp");
    }

    #[test]
    fn a_budget_hides_offers_and_refuses_with_both_numbers() {
        let mut registry = Registry::standard();
        let (conv, signal) = (BlueprintId::new("conv").unwrap(), SlotShape::Signal { channels: 4, length: 10 });
        registry.set_budget(&conv, 204).unwrap();
        check(&registry, signal, &[("conv", 204), ("mlp", 76), ("norm_mlp", 76)]);
        registry.check_budget(&conv, signal, 8).unwrap();
        registry.set_budget(&conv, 203).unwrap();
        check(&registry, signal, &[("mlp", 76), ("norm_mlp", 76)]);
        let error = registry.check_budget(&conv, signal, 8).unwrap_err();
        assert_eq!(error.to_string(), "blueprint `conv` needs 204 parameters: its budget is 203");
        let error = registry.set_budget(&BlueprintId::new("noise").unwrap(), 9).unwrap_err();
        assert_eq!(error.to_string(), "there is no blueprint `noise`: expected one of attention, conv, mlp, norm_mlp");
    }

    /// Claims to fit images, and does not.
    #[derive(Debug)]
    struct Claim(bool);

    impl Blueprint for Claim {
        fn name(&self) -> &'static str {
            "claim"
        }
        fn fits(&self, slot: SlotShape) -> bool {
            matches!(slot, SlotShape::Image { height, .. } if height > 1)
        }
        fn weights(&self, _slot: SlotShape, _width: usize) -> Vec<WeightSpec> {
            Vec::new()
        }
        fn delta(&self, _weights: &[Tensor], h: &Tensor) -> candle_core::Result<Tensor> {
            if self.0 { h.narrow(2, 0, 1) } else { h.transpose(1, 4) }
        }
    }

    #[test]
    fn a_blueprint_that_does_not_work_where_it_claims_to_is_not_registered() {
        let mut registry = Registry::standard();
        for (claim, message) in [
            (Claim(true), "a seed of blueprint `claim` turned shape [2, 3, 5, 4] into [2, 3, 1, 4]"),
            (Claim(false), "blueprint `claim` does not run at shape (3, 5, 4), which it claims to fit"),
        ] {
            assert_eq!(registry.register(Arc::new(claim)).unwrap_err().to_string(), message);
            assert_eq!(registry.names(), "attention, conv, mlp, norm_mlp");
        }
    }
}

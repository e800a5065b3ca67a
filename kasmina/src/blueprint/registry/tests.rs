//! Offers and budgets, and what is refused before it can be offered.

use candle_core::{DType, Tensor};
use leyline::command::Blend;

use super::*;
use crate::blueprint::Mlp;
use crate::blueprint::testing::{awake, numbers, read, seen, tensor};
use crate::graft::SeedBlend;
use crate::weight::WeightSpec;

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
    let offers = registry.offers(slot, 8, 0);
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
    assert_eq!(
        error.to_string(),
        "there is no blueprint `noise`: expected one of attention, causal_attention, conv, mlp, norm_mlp"
    );
}

#[test]
fn a_budget_hides_offers_and_refuses_with_both_numbers() {
    let mut registry = Registry::standard();
    let (conv, signal) = (BlueprintId::new("conv").unwrap(), SlotShape::Signal { channels: 4, length: 10 });
    registry.set_budget(&conv, 204).unwrap();
    check(&registry, signal, &[("conv", 204), ("mlp", 76), ("norm_mlp", 76)]);
    registry.check_size(&conv, signal, 8, 0).unwrap();
    registry.set_budget(&conv, 203).unwrap();
    check(&registry, signal, &[("mlp", 76), ("norm_mlp", 76)]);
    let error = registry.check_size(&conv, signal, 8, 0).unwrap_err();
    assert_eq!(error.to_string(), "blueprint `conv` needs 204 parameters: its budget is 203");
    registry.set_budget(&conv, 214).unwrap();
    registry.check_size(&conv, signal, 8, 10).unwrap();
    let error = registry.check_size(&conv, signal, 8, 11).unwrap_err();
    assert_eq!(error.to_string(), "blueprint `conv` needs 215 parameters: its budget is 214");
    let error = registry.set_budget(&BlueprintId::new("noise").unwrap(), 9).unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no blueprint `noise`: expected one of attention, causal_attention, conv, mlp, norm_mlp"
    );
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
        assert_eq!(registry.names(), "attention, causal_attention, conv, mlp, norm_mlp");
    }
}

/// Claims to fit around a layer, and gives back what it was given.
#[derive(Debug)]
struct Echo;

impl Blueprint for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }
    fn fits(&self, slot: SlotShape) -> bool {
        matches!(slot, SlotShape::Around { .. })
    }
    fn weights(&self, _slot: SlotShape, _width: usize) -> Vec<WeightSpec> {
        Vec::new()
    }
    fn delta(&self, _weights: &[Tensor], h: &Tensor) -> candle_core::Result<Tensor> {
        Ok(h.clone())
    }
}

#[test]
fn a_blueprint_is_tried_around_a_layer_too() {
    let error = Registry::standard().register(Arc::new(Echo)).unwrap_err().to_string();
    assert_eq!(error, "a seed of blueprint `echo` turned shape [2, 4] into [2, 6]");
}

/// An `mlp` whose last tensors have other names.
#[derive(Debug)]
struct Named([&'static str; 2]);

impl Blueprint for Named {
    fn name(&self) -> &'static str {
        "named"
    }
    fn fits(&self, slot: SlotShape) -> bool {
        Mlp.fits(slot)
    }
    fn weights(&self, slot: SlotShape, width: usize) -> Vec<WeightSpec> {
        let mut specs = Mlp.weights(slot, width);
        for (spec, name) in specs.iter_mut().rev().zip(self.0) {
            spec.name = name;
        }
        specs
    }
    fn delta(&self, weights: &[Tensor], h: &Tensor) -> candle_core::Result<Tensor> {
        Mlp.delta(weights, h)
    }
}

#[test]
fn names_of_tensors_are_unique_and_not_those_of_a_blend() {
    for (names, message) in [
        (["a", "a"], Some("blueprint `named` has two tensors named `a`")),
        (["down.weight", "b"], Some("blueprint `named` has two tensors named `down.weight`")),
        (
            ["a", "gate.up.weight"],
            Some("blueprint `named` names a tensor `gate.up.weight`: `gate.` is reserved for blends"),
        ),
        (["gate.", "b"], Some("blueprint `named` names a tensor `gate.`: `gate.` is reserved for blends")),
        (["gate", "gates.weight"], None),
    ] {
        let mut registry = Registry::standard();
        let error = registry.register(Arc::new(Named(names))).err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), message);
        assert_eq!(registry.names().contains("named"), message.is_none());
    }
}
#[test]
fn a_seed_of_more_than_2_to_the_31_elements_is_neither_offered_nor_accepted() {
    let registry = Registry::standard();
    let (mlp, wide) = (BlueprintId::new("mlp").unwrap(), SlotShape::Vector { features: 1 << 20 });
    // 2·C·width + width + C.
    let width = 1 << 10;
    let error = registry.check_size(&mlp, wide, width, 0).unwrap_err();
    let message =
        "a seed of blueprint `mlp` needs 2148533248 parameters at shape (1048576): expected at most 2147483648";
    assert_eq!(error.to_string(), message);
    assert_eq!(registry.offers(wide, width, 0), []);
    registry.check_size(&mlp, wide, width - 1, 0).unwrap();
    assert!(!registry.offers(wide, width - 1, 0).is_empty());
    // The gate of a blend alone: C·C/4 and more.
    let of_gate = SeedBlend::num_elements(&Blend::Gate, wide);
    assert_eq!(of_gate, (1 << 38) + (1 << 18) + (1 << 18) + 1);
    registry.check_size(&mlp, wide, 1, of_gate).unwrap_err();
    // Products that exceed 64 bits are counted as the largest number.
    let huge = SlotShape::Vector { features: usize::MAX / 2 };
    registry.check_size(&mlp, huge, usize::MAX / 2, u64::MAX).unwrap_err();
}

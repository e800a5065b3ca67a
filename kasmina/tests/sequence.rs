//! Seeds in a host of sequences: what each slot is offered, and that every blueprint learns there.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use leyline::command::Operation;
use leyline::error::{Error as _, ErrorKind};
use leyline::id::{BlueprintId, SeedId};
use leyline::model::AlphaOverride;
use leyline::seed::{SeedManager, SeedStage};
use support::{Rig, alpha, bits, config, ramp, slot, transformer};

const BLUEPRINTS: [&str; 4] = ["attention", "mlp", "noise", "norm_mlp"];

fn off(seed: SeedId) -> AlphaOverride {
    AlphaOverride { seed, alpha: alpha(0.0) }
}

#[test]
fn every_slot_is_offered_what_fits_it() {
    let mut rig = Rig::new(config(transformer()));
    let slots = rig.manager.export_slot_states(&rig.eager).unwrap();
    let found: Vec<(&str, Vec<&str>)> = slots
        .iter()
        .map(|slot| (slot.slot.as_str(), slot.offers.iter().map(|offer| offer.blueprint.as_str()).collect()))
        .collect();
    let sequence = BLUEPRINTS.to_vec();
    let expected = [("input", vec!["mlp", "noise", "norm_mlp"]), ("embedded", sequence.clone()), ("block0", sequence)];
    assert_eq!(found, expected);
    let refused = rig.send(Operation::germinate(slot("input"), BlueprintId::new("attention").unwrap())).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Rejected);
    assert_eq!(refused.to_string(), "blueprint `attention` does not fit slot `input` of shape (12)");
}

#[test]
fn a_seed_is_nothing_at_alpha_zero_and_something_once_it_has_learned() {
    let mut eager = None;
    for blueprint in BLUEPRINTS {
        for slot_id in ["embedded", "block0"] {
            let config = config(transformer());
            let mut rig = match eager.take() {
                None => Rig::new(config),
                Some(eager) => Rig::beside(config, eager),
            };
            let bare = (rig.evaluate(&[]), rig.train_logits());
            let seed = rig.germinate(slot_id, blueprint);
            rig.bring_to(seed, SeedStage::Training);
            let before: Vec<_> = rig.seed_vars(seed).iter().map(|var| bits(var)).collect();
            assert_eq!((rig.evaluate(&[]), rig.train_logits()), bare, "{blueprint} at {slot_id} learns in the shadow");
            for variant in 1..4 {
                rig.descend(variant);
            }
            let after: Vec<_> = rig.seed_vars(seed).iter().map(|var| bits(var)).collect();
            assert!(before.iter().zip(&after).all(|(before, after)| before != after), "{blueprint} at {slot_id}");
            rig.ripen(seed);
            rig.send(Operation::StartBlending { seed, ramp: ramp(1.0, 0) }).unwrap();
            let acting = rig.evaluate(&[]);
            assert_ne!(acting, rig.evaluate(&[off(seed)]), "{blueprint} at {slot_id} acts");
            eager = Some(rig.eager);
        }
    }
}

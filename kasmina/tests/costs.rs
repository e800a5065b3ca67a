//! What the manager says that passes cost is what is counted when they run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;

use esper_layers::operations::counted;
use kasmina::KasminaConfig;
use kasmina::host::HostConfig;
use leyline::command::{Blend, ConfidenceGate, Operation};
use leyline::model::{AlphaOverride, Outputs, Pass, TrainableModel};
use leyline::region::Eager;
use leyline::seed::{Cost, Costs, SeedManager, SeedStage};
use support::{Rig, alpha, batch_for, config, hosts, ramp};

fn costs(rig: &Rig, batch_size: usize) -> Costs {
    rig.manager.costs(&rig.eager, batch_size).unwrap().unwrap()
}

#[track_caller]
fn same(found: u64, expected: f64) {
    assert!((found as f64 - expected).abs() < 0.5, "{found} counted, {expected} expected");
}

/// Passes over the batch: the training pass, and the evaluation with the seed as its override says, counted.
fn check(rig: &Rig, network: Cost, looking: Cost, overrides: &[AlphaOverride]) -> Outputs {
    let batch = batch_for(rig.model().host().config(), 1);
    let num_samples = batch.num_samples() as f64;
    let (outputs, trained) = counted(|| rig.model().forward(&batch.inputs, Pass::Train).unwrap());
    let (_, evaluated) = counted(|| rig.model().forward(&batch.inputs, Pass::Evaluate { overrides }).unwrap());
    let (_, as_it_is) = counted(|| rig.model().forward(&batch.inputs, Pass::Evaluate { overrides: &[] }).unwrap());
    same(trained.training, num_samples * network.training);
    same(trained.looking, num_samples * looking.training);
    same(evaluated.looking, num_samples * looking.evaluation);
    same(as_it_is.evaluation, num_samples * network.evaluation);
    outputs
}

#[test]
fn a_blend_that_does_not_fit_a_slot_does_not_keep_its_offers_from_having_a_cost() {
    let host = HostConfig::Mlp { inputs: 3, hidden: vec![1], classes: 2 };
    let offered_blend = Blend::Confidence(ConfidenceGate::default());
    let rig = Rig::new(KasminaConfig { offered_blend, ..config(host) });
    let slots: BTreeSet<_> = costs(&rig, 2).offers.into_iter().map(|(slot, ..)| slot).collect();
    assert_eq!(slots.len(), rig.model().host().slots().len());
}

#[test]
fn costs_of_network_offers_and_seeds_are_those_that_are_counted() {
    let mut eager = Eager::acquire().unwrap();
    for host in hosts() {
        for (shadow_cost, offered_blend) in [(1e9, Blend::Residual), (1.0, Blend::Residual), (1e9, Blend::Gate)] {
            let costing = KasminaConfig { shadow_cost: Some(shadow_cost), offered_blend, ..config(host.clone()) };
            let mut rig = Rig::beside(costing, eager);
            let batch_size = batch_for(&host, 1).num_samples();
            let (slot, blueprint, offered) = costs(&rig, batch_size).offers[0].clone();
            let seed = rig.germinate(slot.as_str(), blueprint.as_str());
            assert_eq!(costs(&rig, batch_size).seeds, [], "a germinated seed costs nothing");
            rig.bring_to(seed, SeedStage::Training);
            let Costs { network, seeds, .. } = costs(&rig, batch_size);
            assert_eq!(seeds, [(seed, offered)], "what was offered is what it costs");
            let outputs = check(&rig, network, offered, &[AlphaOverride { seed, alpha: alpha(1.0) }]);
            let rows = outputs.shadows[0].logits.dim(0).unwrap();
            let is_cheap = offered.training <= shadow_cost * network.training || rows == 1;
            assert!(is_cheap && (shadow_cost < 2.0 || rows == batch_size), "{rows} of {batch_size}: {offered:?}");

            for operation in [Operation::StartBlending { seed, ramp: ramp(1.0, 0) }, Operation::Hold { seed }] {
                rig.send(operation).unwrap();
                rig.ripen(seed);
            }
            let Costs { network: without, seeds, .. } = costs(&rig, batch_size);
            assert_eq!((without, seeds[0].1.training), (network, 0.0), "a seed that may go is no part of what stays");
            let (_, evaluated) = counted(|| {
                let overrides = [AlphaOverride { seed, alpha: alpha(0.0) }];
                rig.model().forward(&batch_for(&host, 1).inputs, Pass::Evaluate { overrides: &overrides }).unwrap()
            });
            same(evaluated.looking, batch_size as f64 * seeds[0].1.evaluation);

            rig.send(Operation::Fossilize { seed }).unwrap();
            let Costs { network, seeds, .. } = costs(&rig, batch_size);
            assert_eq!(seeds, []);
            assert!(network.training > without.training);
            check(
                &rig,
                network,
                Cost { training: 0.0, evaluation: network.evaluation },
                &[AlphaOverride { seed, alpha: alpha(1.0) }],
            );
            eager = rig.eager;
        }
    }
}

//! Properties over arbitrary states: legal whatever it sees, the same on the same states, and the same after a restore.

use leyline::command::Operation;
use leyline::id::{EpochIndex, SeedId};
use leyline::policy::Decision;
use leyline::seed::{AlphaMode, BlueprintOffer, Counterfactual, GradientHealth, SeedStage, SeedState, SlotState};
use leyline::state::SystemState;
use leyline::unit::Alpha;
use proptest::prelude::*;
use proptest::sample::select;

use crate::support::{blueprint_id, config, decide, measured_in, restore, save, score, seed, slot_id, state, tamiyo};

const POLICIES: [&str; 6] = [
    r#"{"heuristic":{"plateau":{"patience_epochs":1},"stability":{"epochs":0},"germination":{"min_epoch":0,
        "max_parameter_ratio":9},"training":{"min_epochs":1,"max_epochs":3},"blending":{"ramp_epochs":1},
        "holding":{"min_epochs":1,"max_epochs":3}}}"#,
    r#"{"policy":"off"}"#,
    r#"{"policy":"fixed","fixed":{"germinations":[{"epoch":1},{"epoch":1,"blueprint":"mlp"},{"epoch":3,"slot":"b"}],
        "training_epochs":1,"ramp_epochs":1,"holding_epochs":1}}"#,
    r#"{"policy":"random","random":{"rate":0.7,"seed":3}}"#,
    r#"{"policy":"learned","learned":{"seed":3}}"#,
    r#"{"policy":"learned","learned":{"seed":4,"choose":"drawn"}}"#,
];

/// Measurements, some of them absent, without error, or no numbers at all.
fn counterfactuals() -> impl Strategy<Value = Option<Counterfactual>> {
    let number = prop_oneof![-1.0..1.0, select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0])];
    let error = prop_oneof![0.0..0.5, select(vec![f64::NAN, -0.1, 0.0])];
    let measured = (number, error, 0..200_u64).prop_map(|(loss_gain, std_error, num_samples)| Counterfactual {
        loss_gain,
        std_error,
        accuracy_gain_pp: Some(0.0),
        num_samples,
    });
    proptest::option::of(measured)
}

fn seeds() -> impl Strategy<Value = Vec<SeedState>> {
    let gradient =
        proptest::option::of((0.0..1.0).prop_map(|health| GradientHealth { norm: 1.0, host_ratio: None, health }));
    let alpha = (select(vec![0.0, 0.5, 1.0]), select(vec![AlphaMode::Hold, AlphaMode::Up, AlphaMode::Down]));
    let one =
        (select(SeedStage::ALL.to_vec()), 0..6_u64, select(vec!["a", "b", "c"]), counterfactuals(), gradient, alpha);
    proptest::collection::vec(one, 0..5).prop_map(|seeds| {
        seeds
            .into_iter()
            .zip(1..)
            .map(|((stage, epochs_in_stage, slot, counterfactual, gradient, (alpha, alpha_mode)), id)| SeedState {
                counterfactual,
                gradient,
                alpha: Alpha::new(alpha).unwrap(),
                alpha_mode,
                ..seed(id, slot, stage, epochs_in_stage)
            })
            .collect()
    })
}

fn slots() -> impl Strategy<Value = Vec<SlotState>> {
    let offers = proptest::collection::vec(any::<bool>(), 3).prop_map(|offered| {
        ["conv", "mlp", "norm"]
            .into_iter()
            .zip(offered)
            .filter(|(_, offered)| *offered)
            .map(|(name, _)| BlueprintOffer { blueprint: blueprint_id(name), num_parameters: 10 })
            .collect::<Vec<_>>()
    });
    let occupant = proptest::option::of((1..9_u32).prop_map(SeedId));
    proptest::collection::vec((occupant, offers), 3).prop_map(|slots| {
        ["a", "b", "c"]
            .into_iter()
            .zip(slots)
            .map(|(name, (occupant, offers))| SlotState { slot: slot_id(name), occupant, num_fossilized: 0, offers })
            .collect()
    })
}

/// Up to twelve states, epoch by epoch, near the end of the run or far from it.
fn histories() -> impl Strategy<Value = Vec<SystemState>> {
    let loss = proptest::option::of(prop_oneof![0.5..1.5, select(vec![f64::NAN, 0.0, 1.0])]);
    let one = (seeds(), slots(), loss);
    (proptest::collection::vec(one, 1..12), select(vec![14, 200])).prop_map(|(shown, num_epochs)| {
        shown
            .into_iter()
            .zip(1..)
            .map(|((seeds, slots, loss), epoch)| SystemState {
                epoch: EpochIndex(epoch),
                num_epochs,
                validation: loss.map(score),
                slots,
                ..state(epoch, seeds, vec![])
            })
            .collect()
    })
}

/// PO-2, and the lifecycle.
#[track_caller]
fn assert_legal(state: &SystemState, decision: &Decision) {
    let mut named = Vec::new();
    let mut taken = Vec::new();
    for order in &decision.orders {
        let to = match &order.operation {
            Operation::Germinate { slot, blueprint, .. } => {
                let found = state.slots.iter().find(|s| s.slot == *slot).expect("the slot is in the state");
                assert!(found.occupant.is_none() && found.offers.iter().any(|offer| offer.blueprint == *blueprint));
                assert!(!taken.contains(slot), "{slot} twice");
                taken.push(slot.clone());
                continue;
            }
            Operation::StartTraining { .. } => SeedStage::Training,
            Operation::StartBlending { .. } => SeedStage::Blending,
            Operation::Hold { .. } => SeedStage::Holding,
            Operation::Fossilize { .. } => SeedStage::Fossilized,
            Operation::Cull { .. } | Operation::CullGradually { .. } => SeedStage::Pruned,
            Operation::Pause { .. } | Operation::Resume { .. } => continue,
        };
        let id = order.operation.seed().unwrap();
        let found = state.seeds.iter().find(|s| s.seed_id == id).expect("the seed is in the state");
        assert!(found.stage.may_become(to), "{} to {to}", found.stage);
        assert!(!named.contains(&id), "{id} twice");
        named.push(id);
    }
}

/// What the heuristic must never do on missing evidence.
#[track_caller]
fn assert_measured(state: &SystemState, decision: &Decision) {
    for order in &decision.orders {
        let of = |id: SeedId| state.seeds.iter().find(|s| s.seed_id == id).unwrap();
        match &order.operation {
            Operation::Germinate { .. } => {
                assert!(state.validation.as_ref().is_some_and(|score| score.loss.is_finite()))
            }
            Operation::StartBlending { seed, .. } => assert!(of(*seed).gradient.is_some()),
            Operation::StartTraining { .. }
            | Operation::Hold { .. }
            | Operation::Fossilize { .. }
            | Operation::Cull { .. }
            | Operation::CullGradually { .. }
            | Operation::Pause { .. }
            | Operation::Resume { .. } => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn decisions_name_only_what_is_there_and_are_legal(history in histories()) {
        for json in POLICIES {
            let mut policy = tamiyo(config(json));
            for state in &history {
                let decision = decide(&mut policy, state);
                assert_legal(state, &decision);
                // What it may not do is no option of a network.
                let drops = decision.waiting.iter().any(|why| why.detail.starts_with("dropped"));
                assert!(!(drops && json.contains("learned")), "{:?}", decision.waiting);
                if json == POLICIES[0] {
                    assert_measured(state, &decision);
                }
            }
        }
    }

    #[test]
    fn a_seed_that_was_never_measured_never_blends_nor_becomes_permanent(history in histories()) {
        let mut policy = tamiyo(config(POLICIES[0]));
        for mut state in history {
            // And so the gates, which what was shown had opened, are shut.
            let unmeasured = |seed| measured_in(state.epoch.0, SeedState { counterfactual: None, last_gate: None, ..seed }, 2.0, 0.01);
            state.seeds = state.seeds.into_iter().map(unmeasured).collect();
            for order in decide(&mut policy, &state).orders {
                let grows = matches!(order.operation, Operation::StartBlending { .. } | Operation::Fossilize { .. });
                prop_assert!(!grows, "{}", order.operation);
            }
        }
    }

    #[test]
    fn the_same_states_give_the_same_decisions_also_after_a_restore(history in histories(), cut in 0..12_usize) {
        for json in POLICIES {
            let mut first = tamiyo(config(json));
            let mut second = tamiyo(config(json));
            for (index, state) in history.iter().enumerate() {
                if index == cut {
                    let saved = save(&second);
                    second = tamiyo(config(json));
                    restore(&mut second, &saved).unwrap();
                }
                prop_assert_eq!(decide(&mut first, state), decide(&mut second, state));
                prop_assert_eq!(save(&first).json, save(&second).json);
            }
        }
    }
}

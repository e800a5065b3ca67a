//! Every stage meets every command: the move takes place, or it is refused and nothing changes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use leyline::command::Operation;
use leyline::error::{Error as _, ErrorKind};
use leyline::id::{BlueprintId, SeedId};
use leyline::model::TrainableModel;
use leyline::seed::{SeedManager, SeedStage};
use support::{Rig, alpha, config, mlp, ramp, slot};

const STAGES: [SeedStage; 8] = [
    SeedStage::Germinated,
    SeedStage::Training,
    SeedStage::Blending,
    SeedStage::Holding,
    SeedStage::Fossilized,
    SeedStage::Pruned,
    SeedStage::Embargoed,
    SeedStage::Resetting,
];

fn operations(seed: SeedId) -> [(SeedStage, Operation); 5] {
    [
        (SeedStage::Training, Operation::StartTraining { seed }),
        (SeedStage::Blending, Operation::StartBlending { seed, ramp: ramp(0.5, 2) }),
        (SeedStage::Holding, Operation::Hold { seed }),
        (SeedStage::Fossilized, Operation::Fossilize { seed }),
        (SeedStage::Pruned, Operation::Cull { seed }),
    ]
}

#[test]
fn every_stage_meets_every_command() {
    let mut eager = None;
    let mut num_moves = 0;
    for from in STAGES {
        for index in 0..5 {
            let mut rig = match eager.take() {
                None => Rig::new(config(mlp())),
                Some(eager) => Rig::beside(config(mlp()), eager),
            };
            let seed = rig.germinate("hidden0", "mlp");
            rig.bring_to(seed, from);
            let before = rig.fingerprint();
            let (to, operation) = operations(seed)[index].clone();
            let outcome = rig.send(operation);
            // A seed that rests in blending gets another target without a move.
            let retargets = (from, to) == (SeedStage::Blending, SeedStage::Blending);
            match outcome {
                Ok(applied) => {
                    assert!(from.may_become(to) || retargets, "{from} became {to}");
                    let moves: Vec<_> = applied.transitions.iter().map(|t| (t.seed, t.from, t.to)).collect();
                    assert_eq!(moves, if retargets { vec![] } else { vec![(seed, from, to)] });
                    assert_eq!(rig.stage(seed), Some(to));
                    num_moves += moves.len();
                }
                Err(error) => {
                    assert!(!from.may_become(to) && !retargets, "{from} did not become {to}: {error}");
                    assert_eq!(error.kind(), ErrorKind::IllegalTransition, "{error}");
                    assert_eq!(rig.fingerprint(), before, "{from} to {to} was refused and changed something");
                }
            }
            eager = Some(rig.eager);
        }
    }
    // The moves of the contract's table that commands can ask for.
    assert_eq!(num_moves, 2 + 2 + 2 + 3);
}

#[test]
fn an_unmet_gate_refuses_and_names_the_condition() {
    let mut rig = Rig::new(config(mlp()));
    let seed = rig.germinate("input", "mlp");
    rig.bring_to(seed, SeedStage::Germinated);
    rig.send(Operation::StartTraining { seed }).unwrap();
    let before = rig.fingerprint();
    let error = rig.send(Operation::StartBlending { seed, ramp: ramp(1.0, 5) }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Rejected);
    for part in ["0 epochs in training, needs 4", "gradient health not measured", "loss gain not measured"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(rig.fingerprint(), before);
    assert_eq!(rig.recorder.events_named("gate_failure").len(), 1);

    for _ in 0..4 {
        rig.end_epoch();
    }
    rig.good_evidence(seed);
    rig.send(Operation::StartBlending { seed, ramp: ramp(1.0, 5) }).unwrap();
    assert!(rig.state(seed).unwrap().last_gate.unwrap().passed);
}

#[test]
fn evidence_of_an_earlier_stage_does_not_open_the_next_gate() {
    let mut rig = Rig::new(config(mlp()));
    let seed = rig.germinate("input", "mlp");
    rig.bring_to(seed, SeedStage::Blending);
    rig.good_evidence(seed);
    rig.send(Operation::Hold { seed }).unwrap();
    for _ in 0..3 {
        rig.end_epoch();
    }
    let error = rig.send(Operation::Fossilize { seed }).unwrap_err();
    assert!(error.to_string().contains("loss gain not measured"), "{error}");
    rig.good_evidence(seed);
    rig.send(Operation::Fossilize { seed }).unwrap();
}

#[test]
fn the_gate_ahead_is_judged_at_every_epoch_end() {
    let mut rig = Rig::new(config(mlp()));
    let seed = rig.germinate("input", "mlp");
    rig.bring_to(seed, SeedStage::Training);
    let gate = rig.state(seed).unwrap().last_gate.unwrap();
    assert_eq!((gate.target, gate.passed), (SeedStage::Blending, true), "{gate:?}");
    assert_eq!(rig.recorder.events_named("gate_event").len(), 1, "once when it begins to pass, not once per epoch");
}

#[test]
fn a_slot_takes_one_seed_at_a_time_and_is_barred_after_a_removal() {
    let mut rig = Rig::new(config(mlp()));
    let germinate = || Operation::Germinate { slot: slot("hidden0"), blueprint: BlueprintId::new("mlp").unwrap() };
    let first = rig.germinate("hidden0", "mlp");
    let refused = rig.send(germinate()).unwrap_err().to_string();
    assert_eq!(refused, "slot `hidden0` is taken by seed-1, which is germinated");
    rig.send(Operation::Cull { seed: first }).unwrap();
    let mut stages = Vec::new();
    for _ in 0..5 {
        assert_eq!(rig.send(germinate()).unwrap_err().kind(), ErrorKind::Rejected);
        stages.extend(rig.end_epoch().into_iter().map(|transition| transition.to));
    }
    assert_eq!(stages, [SeedStage::Embargoed, SeedStage::Resetting, SeedStage::Dormant]);
    assert_eq!(rig.state(first), None);
    let unknown = rig.send(Operation::Cull { seed: first }).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::UnknownSeed);
    assert_eq!(rig.germinate("hidden0", "mlp"), SeedId(2), "a number is used once");
}

#[test]
fn a_permanent_seed_leaves_its_slot_to_others() {
    let mut rig = Rig::new(config(mlp()));
    let first = rig.germinate("hidden0", "mlp");
    rig.bring_to(first, SeedStage::Fossilized);
    let second = rig.germinate("hidden0", "norm_mlp");
    rig.bring_to(second, SeedStage::Holding);
    let slots = rig.manager.export_slot_states(&rig.eager).unwrap();
    let here = slots.iter().find(|state| state.slot == slot("hidden0")).unwrap();
    assert_eq!((here.occupant, here.num_fossilized), (Some(second), 1));
    assert_eq!(slots.iter().map(|state| state.slot.as_str()).collect::<Vec<_>>(), ["input", "hidden0", "hidden1"]);
}

#[test]
fn a_ramp_counts_optimizer_steps_and_only_structure_changes_the_revision() {
    let mut rig = Rig::new(config(mlp()));
    let seed = rig.germinate("hidden0", "mlp");
    rig.bring_to(seed, SeedStage::Training);
    let training = rig.model().layout().revision();
    let applied = rig.send(Operation::StartBlending { seed, ramp: ramp(1.0, 3) }).unwrap();
    let blending = rig.model().layout().revision();
    assert!(applied.topology_changed && blending > training);
    for _ in 0..3 {
        let state = rig.state(seed).unwrap();
        assert!(state.alpha > alpha(0.0) && state.alpha < alpha(1.0));
        let early = rig.send(Operation::Hold { seed }).unwrap_err();
        assert!(early.to_string().contains("alpha ramp Up"), "{early}");
        let again = rig.send(Operation::StartBlending { seed, ramp: ramp(0.0, 3) }).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::IllegalTransition);
        rig.end_step();
    }
    assert_eq!(rig.state(seed).unwrap().alpha, alpha(1.0));
    assert!(!rig.send(Operation::Hold { seed }).unwrap().topology_changed);
    assert_eq!(rig.model().layout().revision(), blending, "a ramp and the end of it are no change of structure");
    let ended = rig.recorder.events_named("ramp_finished");
    assert_eq!(ended.len(), 1);
}

#[test]
fn blending_towards_nothing_is_refused_from_training_and_takes_the_seed_out_later() {
    let mut rig = Rig::new(config(mlp()));
    let seed = rig.germinate("hidden0", "mlp");
    rig.bring_to(seed, SeedStage::Training);
    let refused = rig.send(Operation::StartBlending { seed, ramp: ramp(0.0, 3) }).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Rejected);
    rig.send(Operation::StartBlending { seed, ramp: ramp(1.0, 0) }).unwrap();
    rig.send(Operation::StartBlending { seed, ramp: ramp(0.0, 2) }).unwrap();
    let revision = rig.model().layout().revision();
    rig.end_step();
    assert_eq!(rig.model().layout().revision(), revision);
    rig.end_step();
    assert!(rig.model().layout().revision() > revision, "the branch is left out at alpha 0");
    assert!(rig.model().parameters().iter().all(|parameter| parameter.name.starts_with("host.")));
}

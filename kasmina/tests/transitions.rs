//! Every state of a seed meets every command: what the table says takes place, or it is refused and nothing changes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use kasmina::graft::Role;
use kasmina::lifecycle::table::{Condition, Effect, MOVES, Move, Trigger};
use kasmina::lifecycle::{GateConfig, HistoryEntry};
use kasmina::{Error, KasminaConfig};
use leyline::command::{AlphaCurve, Operation};
use leyline::durable::Durable;
use leyline::error::{Error as _, ErrorKind};
use leyline::id::{BlueprintId, SeedId};
use leyline::model::TrainableModel;
use leyline::region::Eager;
use leyline::seed::{AlphaMode, Gate, SeedManager, SeedStage, SeedState};
use support::{Rig, alpha, batch, bits, config, mlp, ramp, slot};

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

/// Stage, condition and trigger of everything that is legal, written down once more: the table is not to be its own judge.
const LEGAL: [(SeedStage, Condition, Trigger); 37] = {
    use Condition::{Active, Fading, Paused};
    use SeedStage::{Blending, Dormant, Embargoed, Germinated, Holding, Pruned, Resetting, Training};
    [
        (Dormant, Active, Trigger::Germinate),
        (Germinated, Active, Trigger::StartTraining),
        (Germinated, Active, Trigger::Cull),
        (Germinated, Active, Trigger::CullGradually),
        (Germinated, Active, Trigger::Pause),
        (Germinated, Paused, Trigger::Resume),
        (Germinated, Paused, Trigger::Cull),
        (Germinated, Paused, Trigger::CullGradually),
        (Training, Active, Trigger::StartBlending),
        (Training, Active, Trigger::Cull),
        (Training, Active, Trigger::CullGradually),
        (Training, Active, Trigger::Pause),
        (Training, Paused, Trigger::Resume),
        (Training, Paused, Trigger::Cull),
        (Training, Paused, Trigger::CullGradually),
        (Blending, Active, Trigger::StartBlending),
        (Blending, Active, Trigger::Hold),
        (Blending, Active, Trigger::Cull),
        (Blending, Active, Trigger::CullGradually),
        (Blending, Active, Trigger::Pause),
        (Blending, Fading, Trigger::Cull),
        (Blending, Fading, Trigger::Pause),
        (Blending, Fading, Trigger::FadeEnd),
        (Blending, Paused, Trigger::Resume),
        (Blending, Paused, Trigger::Cull),
        (Blending, Paused, Trigger::CullGradually),
        (Holding, Active, Trigger::StartBlending),
        (Holding, Active, Trigger::Fossilize),
        (Holding, Active, Trigger::Cull),
        (Holding, Active, Trigger::CullGradually),
        (Holding, Active, Trigger::Pause),
        (Holding, Paused, Trigger::Resume),
        (Holding, Paused, Trigger::Cull),
        (Holding, Paused, Trigger::CullGradually),
        (Pruned, Active, Trigger::EpochEnd),
        (Embargoed, Active, Trigger::EpochEnd),
        (Resetting, Active, Trigger::EpochEnd),
    ]
};

#[test]
fn the_table_allows_what_is_legal_and_nothing_else() {
    for stage in SeedStage::ALL {
        for when in [Condition::Active, Condition::Fading, Condition::Paused] {
            for trigger in Trigger::ALL {
                let legal = LEGAL.contains(&(stage, when, trigger));
                assert_eq!(Move::find(stage, when, trigger).is_some(), legal, "{stage} {when:?} {trigger}");
            }
        }
    }
    for row in MOVES {
        assert!(LEGAL.contains(&(row.from, row.when, row.trigger)), "{row:?}");
    }
    assert_eq!(MOVES.len(), LEGAL.len());
}

/// Every state of a seed that can be reached, with how it is reached from its stage.
fn states() -> Vec<(SeedStage, Condition, bool)> {
    let active = STAGES.map(|stage| (stage, Condition::Active, false));
    let paused = STAGES.into_iter().filter(|stage| stage.is_live()).map(|stage| (stage, Condition::Paused, false));
    let fading = [(SeedStage::Blending, Condition::Fading, true), (SeedStage::Blending, Condition::Paused, true)];
    active.into_iter().chain(paused).chain(fading).collect()
}

fn operations(seed: SeedId) -> [Operation; 9] {
    let curve = AlphaCurve::Linear;
    [
        Operation::StartTraining { seed },
        Operation::StartBlending { seed, ramp: ramp(0.5, 2) },
        Operation::Hold { seed },
        Operation::Fossilize { seed },
        Operation::Cull { seed },
        Operation::CullGradually { seed, steps: 3, curve },
        Operation::CullGradually { seed, steps: 0, curve },
        Operation::Pause { seed },
        Operation::Resume { seed },
    ]
}

/// How a seed enters a training step: a change of it is a change of the topology.
fn part(rig: &Rig, seed: SeedId) -> Option<Role> {
    let acts = rig.state(seed).is_some_and(|state| !state.alpha.is_zero());
    rig.model().role(seed).filter(|role| match role {
        Role::Idle => false,
        Role::Acting | Role::Fading => acts,
        Role::Shadow | Role::Permanent => true,
    })
}

/// The kind of refusal of what has no row.
fn refusal(stage: SeedStage, trigger: Trigger) -> ErrorKind {
    let stands_in_the_way = Move::find(stage, Condition::Active, trigger).is_some();
    if stands_in_the_way || trigger.aim().is_none() { ErrorKind::Rejected } else { ErrorKind::IllegalTransition }
}

#[track_caller]
fn check_against_the_table(rig: &mut Rig, (stage, condition, fades): (SeedStage, Condition, bool), index: usize) {
    let seed = rig.germinate("hidden0", "mlp");
    rig.bring_to(seed, stage);
    let role_before_pause = rig.model().role(seed);
    if fades {
        rig.send(Operation::CullGradually { seed, steps: 5, curve: AlphaCurve::Linear }).unwrap();
    }
    let role_unpaused = if fades { Some(Role::Fading) } else { role_before_pause };
    if condition == Condition::Paused {
        rig.send(Operation::Pause { seed }).unwrap();
        assert_eq!(rig.model().role(seed), Some(Role::Idle));
    }
    let operation = operations(seed)[index].clone();
    let what = format!("{operation} of a seed that is {stage} and {condition:?}");
    let trigger = Trigger::of(&operation);
    let before = rig.fingerprint();
    let part_before = part(rig, seed);
    match (rig.send(operation), Move::find(stage, condition, trigger)) {
        (Ok(applied), Some(row)) => {
            let moves: Vec<_> = applied.transitions.iter().map(|t| (t.seed, t.from, t.to)).collect();
            assert_eq!(moves, if row.changes_stage() { vec![(seed, stage, row.to)] } else { vec![] }, "{what}");
            let state = rig.state(seed).unwrap();
            assert_eq!(state.stage, row.to, "{what}");
            assert_eq!(state.paused, row.effects.contains(&Effect::StartPause), "{what}");
            let mut role = if row.effects.contains(&Effect::LeaveNetwork) { None } else { rig.model().role(seed) };
            if row.changes_stage() || row.effects.contains(&Effect::ForgetEvidence) {
                assert_eq!((state.counterfactual, state.stability), (None, None), "{what}");
            }
            for effect in row.effects {
                match effect {
                    // A seed that was fading takes that role up again.
                    Effect::Become(_) if trigger == Trigger::Resume => role = role_unpaused,
                    Effect::Become(next) => role = Some(*next),
                    Effect::ZeroAlpha => assert!(state.alpha.is_zero()),
                    Effect::FreeParameters => assert_eq!(state.num_parameters, 0),
                    _ => {}
                }
            }
            assert_eq!(rig.model().role(seed), role, "{what}");
            assert_eq!(applied.topology_changed, part(rig, seed) != part_before, "{what}");
            let history = rig.manager.history(seed).unwrap().last().unwrap().clone();
            assert_eq!(history.to, row.to, "{what}");
        }
        (Err(error), None) => {
            assert_eq!(error.kind(), refusal(stage, trigger), "{what}: {error}");
            assert_eq!(rig.fingerprint(), before, "{what} was refused and changed something");
        }
        (Ok(_), None) => panic!("{what} has no row and was carried out"),
        (Err(error), Some(row)) => panic!("{what} was refused: {error}, but there is {row:?}"),
    }
}

#[test]
fn every_state_meets_every_operation_as_the_table_says() {
    let mut eager = None;
    for state in states() {
        for index in 0..9 {
            let mut rig = match eager.take() {
                None => Rig::new(config(mlp())),
                Some(eager) => Rig::beside(config(mlp()), eager),
            };
            check_against_the_table(&mut rig, state, index);
            eager = Some(rig.eager);
        }
    }
}

#[test]
fn a_pause_in_the_middle_of_a_ramp_stops_it_and_it_goes_on_afterwards() {
    let mut rig = Rig::new(config(mlp()));
    let seed = rig.germinate("hidden0", "mlp");
    let empty = rig.evaluate(&[]);
    rig.bring_to(seed, SeedStage::Training);
    rig.fill(seed, 0.5);
    rig.send(Operation::StartBlending { seed, ramp: ramp(1.0, 4) }).unwrap();
    rig.end_step();
    rig.good_evidence(seed);
    let (before, parameters, acting) = (rig.state(seed).unwrap(), rig.parameter_bits(), rig.evaluate(&[]));
    assert_ne!(acting, empty);

    assert!(rig.send(Operation::Pause { seed }).unwrap().topology_changed);
    assert_eq!(rig.evaluate(&[]), empty, "a paused seed does not act");
    assert!(rig.parameter_bits().len() < parameters.len(), "a paused seed does not train");
    let attribution = rig.manager.attribute_batch(&rig.eager, &batch(1)).unwrap();
    assert!(attribution.weights().is_empty(), "a paused seed is responsible for nothing");
    for _ in 0..9 {
        rig.end_step();
    }
    rig.end_epoch();
    let paused = rig.state(seed).unwrap();
    assert_eq!(paused, SeedState { paused: true, age_epochs: before.age_epochs + 1, ..before.clone() });

    rig.send(Operation::Resume { seed }).unwrap();
    assert_eq!((rig.parameter_bits(), rig.evaluate(&[])), (parameters, acting));
    let resumed = rig.state(seed).unwrap();
    assert_eq!((resumed.counterfactual, resumed.gradient, resumed.stability), (None, None, None));
    assert_eq!(resumed.alpha_ramp, before.alpha_ramp);
    for _ in 0..3 {
        rig.end_step();
    }
    assert_eq!(rig.state(seed).unwrap().alpha, alpha(1.0));
}

#[test]
fn a_gradual_removal_freezes_the_seed_and_ends_with_the_reason_of_the_command() {
    let mut rig = Rig::new(config(mlp()));
    let seed = rig.germinate("hidden0", "mlp");
    let empty = rig.evaluate(&[]);
    rig.bring_to(seed, SeedStage::Training);
    rig.fill(seed, 0.5);
    rig.send(Operation::StartBlending { seed, ramp: ramp(1.0, 8) }).unwrap();
    rig.end_step();
    let rising = rig.state(seed).unwrap().alpha;
    let revision = rig.model().layout().revision();

    let applied = rig.send(Operation::CullGradually { seed, steps: 3, curve: AlphaCurve::Cosine }).unwrap();
    assert!(applied.topology_changed && applied.transitions.is_empty());
    let fading = rig.model().layout().revision();
    assert_eq!(fading.0, revision.0 + 1, "its parameters leave the layout");
    assert!(rig.model().parameters().iter().all(|parameter| parameter.name.starts_with("host.")));
    let frozen: Vec<_> = rig.seed_vars(seed).iter().map(|var| bits(var)).collect();
    let mut last = rising;
    for variant in 0..3 {
        let now = rig.state(seed).unwrap();
        assert!(now.alpha < last && !now.alpha.is_zero(), "{} after {last}", now.alpha);
        assert_eq!((now.stage, now.alpha_mode), (SeedStage::Blending, AlphaMode::Down));
        last = now.alpha;
        assert_eq!(rig.seed_vars(seed).iter().map(|var| bits(var)).collect::<Vec<_>>(), frozen);
        assert_eq!(rig.model().layout().revision(), fading);
        if variant < 2 { rig.descend(variant) } else { rig.end_step() }
    }
    assert_eq!(rig.model().layout().revision().0, fading.0 + 1);
    let gone = rig.state(seed).unwrap();
    assert_eq!((gone.stage, gone.alpha, gone.num_parameters), (SeedStage::Pruned, alpha(0.0), 0));
    assert_eq!(rig.model().role(seed), None);
    assert_ne!(rig.evaluate(&[]), empty, "the host has learned meanwhile");
    let told = rig.recorder.events_named("seed_stage").len();
    let returned = rig.end_epoch();
    let moves: Vec<_> = returned.iter().map(|t| (t.from, t.to, t.reason.as_str())).collect();
    assert_eq!(moves[0], (SeedStage::Blending, SeedStage::Pruned, "test"));
    assert_eq!(moves[1].1, SeedStage::Embargoed);
    assert_eq!(rig.recorder.events_named("seed_stage").len(), told + 1, "the removal was reported when it happened");
    assert!(rig.end_epoch().is_empty());
}

#[test]
fn a_gradual_removal_from_holding_goes_back_to_blending_and_history_says_why() {
    let mut rig = Rig::new(config(mlp()));
    let seed = rig.germinate("hidden0", "mlp");
    rig.bring_to(seed, SeedStage::Holding);
    let applied = rig.send(Operation::CullGradually { seed, steps: 2, curve: AlphaCurve::Linear }).unwrap().transitions;
    assert_eq!((applied[0].from, applied[0].to), (SeedStage::Holding, SeedStage::Blending));
    let history: Vec<HistoryEntry> = rig.manager.history(seed).unwrap().cloned().collect();
    let expected = HistoryEntry {
        age_epochs: 12,
        from: SeedStage::Holding,
        to: SeedStage::Blending,
        epochs_in_stage: 4,
        reason: "test".to_owned(),
    };
    assert_eq!((history.len(), history.last()), (5, Some(&expected)));
    assert_eq!(rig.state(seed).unwrap().previous_stage, Some(SeedStage::Holding));
}

#[test]
fn a_fading_seed_can_be_paused_and_fades_on() {
    let mut rig = Rig::new(config(mlp()));
    let seed = rig.germinate("hidden0", "mlp");
    rig.bring_to(seed, SeedStage::Blending);
    rig.send(Operation::CullGradually { seed, steps: 3, curve: AlphaCurve::Linear }).unwrap();
    rig.end_step();
    rig.send(Operation::Pause { seed }).unwrap();
    for _ in 0..5 {
        rig.end_step();
    }
    assert_eq!(rig.stage(seed), Some(SeedStage::Blending));
    rig.send(Operation::Resume { seed }).unwrap();
    assert_eq!(rig.model().role(seed), Some(Role::Fading));
    rig.end_step();
    rig.end_step();
    assert_eq!(rig.stage(seed), Some(SeedStage::Pruned));
}

#[test]
fn a_budget_refuses_a_germination_with_a_report_and_leaves_no_trace() {
    let host = Rig::new(config(mlp())).model().layout().num_elements() as u64;
    for (gates, failed) in [
        (GateConfig { max_seed_parameters: Some(75), ..GateConfig::default() }, "76 parameters of the seed"),
        (GateConfig { max_total_parameters: Some(host + 75), ..GateConfig::default() }, "parameters of the network"),
    ] {
        let mut rig = Rig::new(KasminaConfig { gates, ..config(mlp()) });
        let before = rig.fingerprint();
        let operation = Operation::germinate(slot("hidden0"), BlueprintId::new("mlp").unwrap());
        let error = rig.send(operation).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected);
        let Error::OverBudget { report, .. } = &error else { panic!("{error}") };
        assert!(report.gate == Gate::Sanity && !report.passed && report.score < 1.0, "{report:?}");
        assert!(report.failed.iter().all(|condition| condition.contains(failed)), "{report:?}");
        assert_eq!(rig.fingerprint(), before);
    }
    let gates =
        GateConfig { max_seed_parameters: Some(76), max_total_parameters: Some(host + 76), ..GateConfig::default() };
    let mut rig = Rig::new(KasminaConfig { gates, ..config(mlp()) });
    let seed = rig.germinate("hidden0", "mlp");
    let gate = rig.state(seed).unwrap().last_gate.unwrap();
    assert!(gate.gate == Gate::Sanity && gate.passed && gate.met.len() == 6, "{gate:?}");
}

#[test]
fn a_latency_budget_times_a_seed_at_its_germination() {
    for (latency_budget_ms, expected) in [(Some(1.0), "latency 0.000 ms, needs at most 1 ms"), (None, "")] {
        let gates = GateConfig { latency_budget_ms, ..GateConfig::default() };
        let mut rig = Rig::new(KasminaConfig { gates, ..config(mlp()) });
        let seed = rig.germinate("hidden0", "mlp");
        rig.bring_to(seed, SeedStage::Training);
        let met = rig.state(seed).unwrap().last_gate.unwrap().met.join("; ");
        assert_eq!(met.contains("latency"), latency_budget_ms.is_some());
        assert!(met.contains(expected), "{met}");
        let saved = rig.manager.save(&rig.eager).unwrap().json;
        assert!(saved.contains(if latency_budget_ms.is_some() { "\"prewarm_ms\":0.0" } else { "\"prewarm_ms\":null" }));
    }
}

#[test]
fn a_gain_that_comes_and_goes_does_not_open_the_gate() {
    let gates = GateConfig { min_stability: 0.5, ..GateConfig::default() };
    let mut rig = Rig::new(KasminaConfig { gates, ..config(mlp()) });
    let seed = rig.germinate("hidden0", "mlp");
    rig.bring_to(seed, SeedStage::Training);
    let measure = |rig: &mut Rig, gain| {
        rig.show_batch();
        rig.evidence(seed, gain);
        rig.end_epoch();
    };
    for gain in [-0.2, -0.2, -0.2, -0.2, -0.2, -0.2, 0.2] {
        measure(&mut rig, gain);
    }
    let error = rig.send(Operation::StartBlending { seed, ramp: ramp(1.0, 5) }).unwrap_err();
    assert!(error.to_string().ends_with("stability 0.250, needs 0.5"), "{error}");
    for _ in 0..3 {
        measure(&mut rig, 0.2);
    }
    rig.send(Operation::StartBlending { seed, ramp: ramp(1.0, 5) }).unwrap();
}

#[test]
fn the_end_of_a_reset_is_a_gate_that_is_passed() {
    let mut rig = Rig::new(config(mlp()));
    let seed = rig.germinate("hidden0", "mlp");
    rig.bring_to(seed, SeedStage::Resetting);
    let history: Vec<SeedStage> = rig.manager.history(seed).unwrap().map(|entry| entry.to).collect();
    use SeedStage::{Embargoed, Germinated, Pruned, Resetting};
    assert_eq!(history, [Germinated, Pruned, Embargoed, Resetting]);
    let released = rig.end_epoch();
    assert_eq!((released.len(), released[0].to), (1, SeedStage::Dormant));
    assert!(rig.manager.history(seed).is_none());
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
    for part in [
        "0 epochs in training, needs 4",
        "gradient health not measured",
        "loss gain not measured",
        "isolation not measured: no audit in this stage",
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(rig.fingerprint(), before);
    assert_eq!(rig.recorder.events_named("gate_failure").len(), 1);

    for _ in 0..4 {
        rig.show_batch();
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
    let told = rig.recorder.events_named("gate_event").len();
    assert_eq!(told, 3, "G0, G1, and G2 once when it begins to pass, not once per epoch");
}

#[test]
fn a_slot_takes_one_seed_at_a_time_and_is_barred_after_a_removal() {
    let mut rig = Rig::new(config(mlp()));
    let germinate = || Operation::germinate(slot("hidden0"), BlueprintId::new("mlp").unwrap());
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
    assert_eq!(rig.manager.config().embargo_epochs, 3, "two less than the ends of epochs that it took");
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
        let again = rig.send(Operation::StartBlending { seed, ramp: ramp(0.5, 3) }).unwrap_err();
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
fn blending_towards_nothing_is_refused_in_every_stage_and_says_what_leads_there() {
    let mut eager = Some(Eager::acquire().unwrap());
    for stage in STAGES {
        let mut rig = Rig::beside(config(mlp()), eager.take().unwrap());
        let seed = rig.germinate("hidden0", "mlp");
        rig.bring_to(seed, stage);
        let before = rig.fingerprint();
        // The last one is above 0, and the network's elements hold it as 0.
        let tiny: &[f64] = if stage == SeedStage::Blending { &[1e-60] } else { &[] };
        for &target in [0.0].iter().chain(tiny) {
            for steps in [0, 2] {
                let refused = rig.send(Operation::StartBlending { seed, ramp: ramp(target, steps) }).unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Rejected);
                let expected =
                    "seed-1 cannot blend towards alpha 0: expected a target above 0; a gradual cull leads to 0";
                assert_eq!(refused.to_string(), expected);
            }
        }
        assert_eq!(rig.fingerprint(), before);
        eager = Some(rig.eager);
    }
}

#[test]
fn a_ramp_of_a_seed_that_acts_moves_no_parameter_in_or_out_of_the_layout() {
    let mut rig = Rig::new(config(mlp()));
    let seed = rig.germinate("hidden0", "mlp");
    rig.bring_to(seed, SeedStage::Blending);
    let layout = rig.model().layout().clone();
    for target in [0.5, 1.0, 1e-30, 0.25] {
        rig.send(Operation::StartBlending { seed, ramp: ramp(target, 2) }).unwrap();
        rig.end_step();
        rig.end_step();
        assert_eq!(rig.model().layout(), &layout, "{target}");
    }
}

//! One record through its life.

use leyline::command::ChannelWeights;
use leyline::id::EpochIndex;
use leyline::seed::{Confirmation, Confirming};

use super::*;

const AROUND: Surroundings = Surroundings {
    network_parameters: 100,
    in_network: false,
    embargo_epochs: 3,
    audit_every_epochs: 4,
    confirming: None,
};
const GERMINATION: Germination = Germination {
    slot_is_free: true,
    blueprint_is_known: true,
    blueprint_fits: true,
    shape_is_kept: true,
    num_parameters: 76,
    network_parameters: 100,
};

fn record() -> SeedRecord {
    let newborn = Newborn {
        id: SeedId(1),
        slot: SlotId::new("input").unwrap(),
        blueprint: BlueprintId::new("mlp").unwrap(),
        blend: Blend::default(),
        width: 8,
        num_parameters: 76,
        prewarm_ms: None,
    };
    SeedRecord::germinated(newborn, &GateConfig::default(), &GERMINATION, "test").unwrap().0
}

/// Follows the row of a trigger without asking its gate.
fn go(seed: &mut SeedRecord, trigger: Trigger) -> Option<Transition> {
    let ramp = AlphaRamp { target: Alpha::ONE, steps: 4, curve: <_>::default() };
    let row = seed.find_move(trigger).unwrap();
    seed.follow(row, None, Cause { reason: "test", ramp: Some(ramp) }).unwrap()
}

/// Evidence of the epoch after the latest one that was measured.
fn measure(seed: &mut SeedRecord, loss_gain: f64) {
    let latest = seed.counterfactual_epoch.max(seed.evidence_after).max(seed.epoch);
    measure_in(seed, latest.map_or(1, |latest| latest.0 + 1), loss_gain, 2);
}

fn measure_in(seed: &mut SeedRecord, epoch: u64, loss_gain: f64, num_samples: u64) {
    let measured = Counterfactual { loss_gain, std_error: 0.0, accuracy_gain_pp: Some(0.0), num_samples };
    let gradient = Some(GradientHealth { norm: loss_gain.abs(), host_ratio: None, health: 1.0 });
    seed.record(&Evidence { seed: seed.id, epoch: EpochIndex(epoch), counterfactual: Some(measured), gradient });
}

/// Ends an epoch, and asks the gate ahead.
fn end_epoch(seed: &mut SeedRecord, around: Surroundings) -> EpochEnd {
    let epoch = EpochIndex(seed.age_epochs + 1);
    seed.finish_epoch(&GateConfig::default(), around, epoch).unwrap()
}

#[test]
fn a_newborn_seed_has_the_verdict_of_its_germination_and_one_entry_of_history() {
    let seed = record();
    assert_eq!((seed.stage, seed.previous_stage, seed.role()), (SeedStage::Germinated, None, Some(Role::Idle)));
    assert_eq!(
        seed.history().map(|entry| (entry.from, entry.to)).collect::<Vec<_>>(),
        [(SeedStage::Dormant, SeedStage::Germinated)]
    );
    assert!(seed.last_gate.as_ref().unwrap().passed);
    assert_eq!(seed.contradiction(), None);
}

#[test]
fn history_tells_how_many_moves_it_holds_and_how_many_it_dropped() {
    let mut seed = record();
    assert_eq!(seed.history_size(), (1, 0));
    go(&mut seed, Trigger::StartTraining);
    assert_eq!(seed.history_size(), (2, 0));
    seed.num_moves += 40;
    assert_eq!(seed.history_size(), (2, 40));
}

#[test]
fn a_germination_that_g0_refuses_leaves_its_verdict() {
    let newborn = Newborn {
        id: SeedId(1),
        slot: SlotId::new("input").unwrap(),
        blueprint: BlueprintId::new("mlp").unwrap(),
        blend: Blend::default(),
        width: 8,
        num_parameters: 76,
        prewarm_ms: None,
    };
    let gates = GateConfig { max_seed_parameters: Some(75), ..GateConfig::default() };
    let verdict = SeedRecord::germinated(newborn, &gates, &GERMINATION, "test").unwrap_err();
    assert_eq!(verdict.failed, ["76 parameters of the seed, needs at most 75"]);
}

#[test]
fn every_row_is_followed_as_it_is_written() {
    for row in MOVES.iter().filter(|row| row.from != SeedStage::Dormant) {
        let mut seed = SeedRecord { stage: row.from, epochs_in_stage: 3, age_epochs: 7, ..record() };
        if row.from.acts_on_output() {
            seed.alpha = AlphaController::new(Alpha::new(0.5).unwrap());
        }
        seed.paused = row.when == Condition::Paused;
        seed.fading = (row.when == Condition::Fading).then(|| "gone".to_owned());
        measure(&mut seed, 1.0);
        if !matches!(row.trigger, Trigger::EpochEnd) {
            assert_eq!(seed.find_move(row.trigger).unwrap(), row);
        }
        let num_entries = seed.history.iter().len();
        let ramp = AlphaRamp { target: Alpha::ONE, steps: 4, curve: <_>::default() };
        let transition = seed.follow(row, None, Cause { reason: "why", ramp: Some(ramp) }).unwrap();
        assert_eq!(transition.is_some(), row.changes_stage());
        assert_eq!(seed.stage, row.to);
        assert_eq!(seed.history.iter().len(), num_entries + usize::from(row.changes_stage()));
        if row.changes_stage() {
            let last = seed.history.last().unwrap();
            assert_eq!((last.from, last.to, last.age_epochs, last.epochs_in_stage), (row.from, row.to, 7, 3));
            assert_eq!((seed.previous_stage, seed.epochs_in_stage), (Some(row.from), 0));
            assert!(seed.counterfactual.is_none() && seed.stability().is_none());
        }
        for effect in row.effects {
            let holds = match effect {
                Effect::ForgetEvidence => seed.counterfactual.is_none() && seed.stability().is_none(),
                Effect::StartRamp => seed.alpha.mode() == AlphaMode::Up,
                Effect::StartFade => seed.alpha.mode() == AlphaMode::Down && seed.alpha.target().is_zero(),
                Effect::StartPause => seed.paused,
                Effect::EndPause => !seed.paused,
                Effect::Become(role) => seed.role() == Some(*role),
                Effect::ZeroAlpha => seed.alpha == AlphaController::new(Alpha::ZERO) && seed.fading.is_none(),
                Effect::LeaveNetwork => seed.role().is_none(),
                Effect::FreeParameters => seed.num_parameters == 0,
                Effect::FreeSlot => !seed.occupies_slot(),
            };
            assert!(holds, "{effect:?} of {row:?}");
        }
    }
}

#[test]
fn what_has_no_row_is_refused_by_the_reason_that_stands_in_the_way() {
    let with = |stage, paused, fading: bool| SeedRecord {
        stage,
        paused,
        fading: fading.then(String::new),
        alpha: AlphaController::new(Alpha::new(0.5).unwrap()),
        ..record()
    };
    for (seed, trigger, message) in [
        (with(SeedStage::Training, true, false), Trigger::StartBlending, "seed-1 is paused"),
        (with(SeedStage::Training, true, false), Trigger::Pause, "seed-1 is paused"),
        (with(SeedStage::Training, true, false), Trigger::Fossilize, "seed-1 is training and cannot become fossilized"),
        (with(SeedStage::Blending, false, true), Trigger::Hold, "seed-1 is being removed gradually"),
        (with(SeedStage::Blending, false, true), Trigger::CullGradually, "seed-1 is being removed gradually"),
        (with(SeedStage::Blending, false, true), Trigger::Resume, "seed-1 is not paused"),
        (with(SeedStage::Fossilized, false, false), Trigger::Pause, "seed-1 is fossilized and cannot be paused"),
        (with(SeedStage::Pruned, false, false), Trigger::Resume, "seed-1 is not paused"),
        (with(SeedStage::Fossilized, false, false), Trigger::CullGradually, "cannot become pruned"),
    ] {
        let error = seed.find_move(trigger).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn a_paused_seed_grows_older_while_its_stage_stands_still() {
    let mut seed = record();
    go(&mut seed, Trigger::StartTraining);
    end_epoch(&mut seed, AROUND);
    measure(&mut seed, 1.0);
    assert!(!seed.is_paused());
    go(&mut seed, Trigger::Pause);
    end_epoch(&mut seed, AROUND);
    assert!(seed.is_paused());
    assert_eq!((seed.age_epochs, seed.epochs_in_stage, seed.role()), (2, 1, Some(Role::Idle)));
    assert!(seed.judge_next(&GateConfig::default(), AROUND).is_none());
    assert!(go(&mut seed, Trigger::Resume).is_none());
    assert_eq!((seed.epochs_in_stage, seed.counterfactual, seed.role()), (1, None, Some(Role::Shadow)));
}

#[test]
fn a_seed_that_was_fading_fades_on_after_a_pause() {
    let mut seed = record();
    go(&mut seed, Trigger::StartTraining);
    go(&mut seed, Trigger::StartBlending);
    assert!(go(&mut seed, Trigger::CullGradually).is_none());
    assert_eq!((seed.role(), seed.fading()), (Some(Role::Fading), Some("test")));
    go(&mut seed, Trigger::Pause);
    assert_eq!((seed.role(), seed.fading()), (Some(Role::Idle), None));
    assert_eq!(seed.contradiction(), None);
    go(&mut seed, Trigger::Resume);
    assert_eq!(seed.role(), Some(Role::Fading));
}

#[test]
fn stability_is_the_share_of_gains_among_the_latest_eight() {
    let mut seed = record();
    assert_eq!(seed.stability(), None);
    for (gain, expected) in [(1.0, 1.0), (-1.0, 0.5), (f64::NAN, 1.0 / 3.0), (0.0, 0.25)] {
        measure(&mut seed, gain);
        assert!((seed.stability().unwrap() - expected).abs() < 1e-12, "{gain}");
    }
    for too_few in 0..2 {
        measure_in(&mut seed, 5 + too_few, 1.0, too_few);
    }
    assert_eq!(seed.gains.iter().len(), 4, "fewer than two samples measure nothing");
    for _ in 0..8 {
        measure(&mut seed, 1.0);
    }
    assert_eq!((seed.stability(), seed.gains.iter().len()), (Some(1.0), 8));
    let json = serde_json::to_string(&SeedRecord { gains: Ring::new(), ..seed.clone() }).unwrap();
    let longer = json.replace("\"gains\":[]", "\"gains\":[1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0,\"nan\"]");
    let error = serde_json::from_str::<SeedRecord>(&longer).unwrap_err().to_string();
    assert!(error.contains("9 entries: expected at most 8"), "{error}");
}

#[test]
fn evidence_that_was_not_taken_again_stays_and_is_of_its_epoch() {
    let mut seed = record();
    measure_in(&mut seed, 3, 1.0, 9);
    let before = seed.export();
    seed.record(&Evidence { seed: seed.id, epoch: EpochIndex(4), counterfactual: None, gradient: None });
    assert_eq!(seed.export(), before);
    assert!(before.counterfactual.is_some() && before.gradient.is_some());
    assert_eq!((before.counterfactual_epoch, before.gradient_epoch), (Some(EpochIndex(3)), Some(EpochIndex(3))));
}

#[test]
fn an_epoch_is_measured_once_and_never_after_a_later_one() {
    let mut seed = record();
    measure_in(&mut seed, 3, 1.0, 9);
    let once = seed.clone();
    for epoch in [3, 3, 2, 0] {
        measure_in(&mut seed, epoch, -1.0, 9);
        assert_eq!(seed, once, "epoch {epoch}");
    }
    measure_in(&mut seed, 4, -1.0, 9);
    assert_eq!(seed.stability(), Some(0.5));
}

#[test]
fn what_was_measured_before_a_move_or_a_pause_is_not_taken_for_new_after_it() {
    for leave in [&[Trigger::StartBlending][..], &[Trigger::Pause, Trigger::Resume]] {
        let mut seed = record();
        go(&mut seed, Trigger::StartTraining);
        for _ in 0..5 {
            end_epoch(&mut seed, AROUND);
        }
        measure_in(&mut seed, 5, 1.0, 9);
        leave.iter().for_each(|trigger| drop(go(&mut seed, *trigger)));
        for epoch in [5, 4] {
            measure_in(&mut seed, epoch, 1.0, 9);
            assert_eq!((seed.counterfactual, seed.gradient, seed.stability()), (None, None, None), "epoch {epoch}");
        }
        measure_in(&mut seed, 6, 1.0, 9);
        assert_eq!((seed.counterfactual_epoch, seed.stability()), (Some(EpochIndex(6)), Some(1.0)));
    }
}

/// The conditions that keep a seed in training after an epoch.
fn kept_by(seed: &mut SeedRecord) -> Vec<String> {
    end_epoch(seed, AROUND);
    seed.judge_next(&GateConfig::default(), AROUND);
    seed.last_gate.clone().unwrap().failed
}

#[test]
fn evidence_and_audits_grow_old_from_epoch_to_epoch() {
    let mut seed = record();
    go(&mut seed, Trigger::StartTraining);
    for _ in 0..3 {
        end_epoch(&mut seed, AROUND);
    }
    let old = |age: u64| {
        let measured = ["gradient health", "loss gain"];
        measured.map(|what| format!("{what} measured {age} epochs ago, needs at most 1"))
    };
    let unaudited = "isolation not measured: no audit in this stage".to_owned();
    measure_in(&mut seed, 4, 1.0, 9);
    assert_eq!(kept_by(&mut seed), [unaudited], "measured in the epoch that ends");
    seed.note_audit();
    assert_eq!(kept_by(&mut seed), [""; 0], "one epoch old");
    assert_eq!(kept_by(&mut seed), old(2));
    // Written down and read again it is as old as it was.
    seed = serde_json::from_str(&serde_json::to_string(&seed).unwrap()).unwrap();
    assert_eq!(kept_by(&mut seed), old(3));
    kept_by(&mut seed);
    let audited = "isolation measured 5 epochs ago, needs at most 4".to_owned();
    assert_eq!(kept_by(&mut seed), [old(5).as_slice(), &[audited]].concat());
    // An epoch that cannot be over yet would stay young for as long.
    measure_in(&mut seed, 1_000, 1.0, 9);
    assert!(kept_by(&mut seed)[0].contains("not measured in an epoch that is known"));
}

#[track_caller]
fn check_cooldown(embargo_epochs: u64, stages: &[SeedStage]) {
    let mut seed = record();
    go(&mut seed, Trigger::Cull);
    let around = Surroundings { embargo_epochs, ..AROUND };
    assert_eq!(stages.len() as u64, embargo_epochs + 2);
    for (epoch, &expected) in stages.iter().enumerate() {
        assert!(seed.occupies_slot());
        end_epoch(&mut seed, around);
        assert_eq!(seed.stage, expected, "after epoch {}", epoch + 1);
    }
    assert!(!seed.occupies_slot());
    assert!(seed.last_gate.as_ref().is_some_and(|report| report.passed && report.target == SeedStage::Dormant));
}

#[test]
fn a_removed_seed_bars_its_slot_for_two_epochs_more_than_the_embargo() {
    use SeedStage::{Dormant, Embargoed, Resetting};
    check_cooldown(0, &[Resetting, Dormant]);
    check_cooldown(1, &[Embargoed, Resetting, Dormant]);
    check_cooldown(3, &[Embargoed, Embargoed, Embargoed, Resetting, Dormant]);
}

#[test]
fn what_is_noted_of_a_seed_is_told_and_asked_for_until_it_is_there() {
    let mut seed = record();
    assert_eq!((seed.num_violations(), seed.prewarm_ms(), seed.is_audited()), (0, None, false));
    for stage in SeedStage::ALL {
        let waits = matches!(stage, SeedStage::Germinated | SeedStage::Training);
        assert_eq!(SeedRecord { stage, ..record() }.lacks_latency(), waits, "{stage}");
        assert!(!SeedRecord { stage, prewarm_ms: Some(0.5), ..record() }.lacks_latency(), "{stage}");
    }
    (2..4).for_each(|count| seed.add_violations(count));
    seed.set_prewarm_ms(0.5);
    seed.set_weights_pending(true);
    seed.note_audit();
    assert_eq!((seed.num_violations(), seed.prewarm_ms(), seed.is_audited()), (5, Some(0.5), true));
    assert!(seed.export().weights_pending);
    go(&mut seed, Trigger::StartTraining);
    assert!(!seed.is_audited(), "it was not audited in this stage");
}

#[test]
fn a_verdict_of_another_gate_for_another_stage_or_that_did_not_pass_announces_nothing() {
    let mut seed = record();
    seed.judge_next(&GateConfig::default(), AROUND);
    let row = seed.find_move(Trigger::StartTraining).unwrap();
    let report = seed.last_gate.clone().unwrap();
    assert!(seed.has_announced(row));
    for other in [
        GateReport { gate: leyline::seed::Gate::Stability, ..report.clone() },
        GateReport { target: SeedStage::Blending, ..report.clone() },
        GateReport { passed: false, ..report },
    ] {
        seed.last_gate = Some(other);
        assert!(!seed.has_announced(row), "{:?}", seed.last_gate);
    }
}

#[test]
fn a_seed_that_left_something_behind_keeps_its_slot_and_says_so_once() {
    check_left_behind(record());
    // The gate that refused something else before has not said it.
    let mut refused = record();
    refused.set_weights_pending(true);
    assert!(refused.judge_next(&GateConfig::default(), AROUND).is_none());
    check_left_behind(refused);
}

#[track_caller]
fn check_left_behind(mut seed: SeedRecord) {
    go(&mut seed, Trigger::Cull);
    let left_behind = Surroundings { in_network: true, embargo_epochs: 0, ..AROUND };
    let mut reports = Vec::new();
    for _ in 0..4 {
        reports.extend(end_epoch(&mut seed, left_behind).verdict);
    }
    assert_eq!(seed.stage, SeedStage::Resetting);
    assert_eq!(reports.len(), 1, "once when it begins, not once per epoch");
    assert_eq!(reports[0].failed, ["a graft is left"]);
    let end = end_epoch(&mut seed, Surroundings { in_network: false, ..left_behind });
    assert_eq!((end.transitions.len(), seed.stage), (1, SeedStage::Dormant));
    let passed = end.verdict.unwrap();
    assert!(passed.passed && passed.gate == leyline::seed::Gate::Reset, "{passed:?}");
}

#[test]
fn a_gate_is_announced_once_and_again_for_another_way_through_it() {
    let gates = GateConfig::default();
    let mut seed = record();
    let ahead = |seed: &SeedRecord, trigger| seed.has_announced(seed.find_move(trigger).unwrap());
    assert!(!ahead(&seed, Trigger::StartTraining));
    assert!(seed.judge_next(&gates, AROUND).is_some_and(|report| report.passed));
    assert!(ahead(&seed, Trigger::StartTraining) && seed.judge_next(&gates, AROUND).is_none());
    go(&mut seed, Trigger::StartTraining);
    go(&mut seed, Trigger::StartBlending);
    seed.alpha = AlphaController::new(Alpha::ONE);
    assert!(seed.judge_next(&gates, AROUND).is_some());
    go(&mut seed, Trigger::Pause);
    assert!(!ahead(&seed, Trigger::Resume), "the verdict on holding is none on the resumption");
    go(&mut seed, Trigger::Resume);
    assert!(ahead(&seed, Trigger::Hold));
    go(&mut seed, Trigger::Hold);
    go(&mut seed, Trigger::StartBlending);
    seed.alpha = AlphaController::new(Alpha::ONE);
    assert!(!ahead(&seed, Trigger::Hold), "it was announced for the first time in blending");
}

#[test]
fn a_gradual_cull_of_a_seed_at_alpha_zero_is_a_cull() {
    let resting = |alpha| SeedRecord { stage: SeedStage::Blending, alpha: AlphaController::new(alpha), ..record() };
    assert_eq!(resting(Alpha::ZERO).find_move(Trigger::CullGradually).unwrap().to, SeedStage::Pruned);
    assert_eq!(resting(Alpha::ONE).find_move(Trigger::CullGradually).unwrap().to, SeedStage::Blending);
}

#[test]
fn a_record_that_no_life_leads_to_is_found_out() {
    let half = AlphaController::new(Alpha::new(0.5).unwrap());
    let life = |broken: SeedRecord, field: &str| {
        assert_eq!(broken.contradiction().map(|c| c.field), Some(field), "{broken:?}");
    };
    life(SeedRecord { alpha: half, ..record() }, "alpha");
    life(SeedRecord { fading: Some(String::new()), alpha: half, ..record() }, "fading");
    life(SeedRecord { stage: SeedStage::Pruned, paused: true, ..record() }, "paused");
    life(SeedRecord { stage: SeedStage::Training, ..record() }, "history");
    life(SeedRecord { previous_stage: Some(SeedStage::Holding), ..record() }, "previous_stage");
    life(SeedRecord { prewarm_ms: Some(-1.0), ..record() }, "prewarm_ms");
    life(SeedRecord { epochs_in_stage: 1, ..record() }, "epochs_in_stage");
    life(SeedRecord { num_moves: 0, ..record() }, "num_moves");
    let mut ramping = AlphaController::new(Alpha::ZERO);
    let ramp = AlphaRamp { target: Alpha::ONE, steps: 4, curve: <_>::default() };
    ramping.retarget(ramp).unwrap();
    life(SeedRecord { alpha: ramping, ..record() }, "alpha.ramp");
    let mut seed = record();
    go(&mut seed, Trigger::StartTraining);
    assert_eq!(seed.contradiction(), None);
    life(SeedRecord { weights_pending: true, ..seed.clone() }, "weights_pending");
    go(&mut seed, Trigger::StartBlending);
    assert_eq!(seed.contradiction(), None);
    let skipped = SeedRecord { history: record().history, ..seed.clone() };
    life(skipped, "history");
    go(&mut seed, Trigger::Hold);
    life(seed.clone(), "alpha.ramp");
    life(SeedRecord { alpha: half, ..seed.clone() }, "alpha");
    go(&mut seed, Trigger::Cull);
    assert_eq!(seed.contradiction(), None);
    life(SeedRecord { num_parameters: 76, ..seed.clone() }, "num_parameters");
    life(SeedRecord { age_epochs: 0, epochs_in_stage: 1, ..seed }, "epochs_in_stage");
    let mut older = record();
    end_epoch(&mut older, AROUND);
    go(&mut older, Trigger::StartTraining);
    life(SeedRecord { age_epochs: 0, epochs_in_stage: 0, ..older }, "history");
    let entry = |age_epochs, from, to| HistoryEntry { age_epochs, from, to, epochs_in_stage: 0, reason: String::new() };
    let lived = |entries: [HistoryEntry; 2]| {
        let (stage, previous_stage) = (entries[1].to, Some(entries[1].from).filter(|from| *from != SeedStage::Dormant));
        let mut seed =
            SeedRecord { stage, previous_stage, age_epochs: 9, num_moves: 2, history: Ring::new(), ..record() };
        entries.into_iter().for_each(|entry| seed.history.push(entry));
        seed
    };
    use SeedStage::{Blending, Dormant, Germinated, Training};
    assert_eq!(lived([entry(3, Dormant, Germinated), entry(3, Germinated, Training)]).contradiction(), None);
    life(lived([entry(4, Dormant, Germinated), entry(3, Germinated, Training)]), "history");
    life(lived([entry(3, Dormant, Germinated), entry(4, Blending, Training)]), "history");
    life(lived([entry(3, Dormant, Blending), entry(4, Blending, Training)]), "history");
}

#[test]
fn a_seed_that_fades_is_on_its_way_to_nothing() {
    let blending = |target: f64| {
        let mut seed = record();
        go(&mut seed, Trigger::StartTraining);
        go(&mut seed, Trigger::StartBlending);
        seed.alpha = AlphaController::new(Alpha::new(0.5).unwrap());
        seed.alpha
            .retarget(AlphaRamp { target: Alpha::new(target).unwrap(), steps: 4, curve: <_>::default() })
            .unwrap();
        SeedRecord { fading: Some(String::new()), ..seed }
    };
    assert_eq!(blending(0.0).contradiction(), None);
    for target in [0.25, 0.5, 1.0] {
        assert_eq!(blending(target).contradiction().map(|c| c.field), Some("fading"), "{target}");
    }
}

#[test]
fn what_is_exported_is_what_the_record_holds() {
    let mut seed = record();
    go(&mut seed, Trigger::StartTraining);
    end_epoch(&mut seed, AROUND);
    go(&mut seed, Trigger::StartBlending);
    measure(&mut seed, 1.0);
    let mut alpha = AlphaController::new(Alpha::ZERO);
    alpha.retarget(AlphaRamp { target: Alpha::new(0.5).unwrap(), steps: 4, curve: <_>::default() }).unwrap();
    alpha.advance();
    let (blend, last_gate) = (Blend::Channel(ChannelWeights::new(vec![0.5]).unwrap()), record().last_gate);
    let seed =
        SeedRecord { alpha, blend, last_gate, paused: true, weights_pending: true, isolation_violations: 3, ..seed };
    let seed = SeedRecord { epochs_in_stage: 1, ..seed };
    let untouched = SeedState::germinated(seed.id, seed.slot.clone(), seed.blueprint.clone(), seed.num_parameters);
    let [held, untouched] = [seed.export(), untouched].map(|state| serde_json::to_value(state).unwrap());
    let differing: Vec<&str> = held
        .as_object()
        .unwrap()
        .iter()
        .filter(|(key, value)| untouched.get(key) != Some(value))
        .map(|(key, _)| &**key)
        .collect();
    assert_eq!(
        differing.join(" "),
        "age_epochs alpha alpha_mode alpha_ramp alpha_target blend counterfactual counterfactual_epoch epochs_in_stage gradient \
         gradient_epoch isolation_violations last_gate paused previous_stage stability stage weights_pending"
    );
    assert_eq!(held["last_gate"], serde_json::to_value(&seed.last_gate).unwrap());
}

/// 180 samples that confirm at 2.5 %, for which 1.96 standard errors are asked.
const CONFIRMING: Confirming =
    Confirming { num_samples: 180, needed_samples: 50, level: 0.025, min_gain: 0.005, num_read: 0, num_confirmed: 0 };

#[test]
fn a_seed_waits_for_its_confirmation_when_all_else_is_met_and_once() {
    let gates = GateConfig::default();
    let around = Surroundings { confirming: Some(CONFIRMING), ..AROUND };
    let ready = |loss_gain: f64, epochs: u64| {
        let mut seed = record();
        go(&mut seed, Trigger::StartTraining);
        for _ in 0..epochs {
            measure(&mut seed, loss_gain);
            seed.counterfactual.as_mut().unwrap().std_error = 0.01;
            seed.note_audit();
            end_epoch(&mut seed, around);
        }
        seed
    };
    let wants = |seed: &SeedRecord| seed.wants_confirmation(&gates, around);
    assert!(wants(&ready(0.1, 4)) && wants(&ready(0.0247, 4)));
    assert!(!wants(&ready(0.0245, 4)), "below 0.005 and 1.96 standard errors");
    assert!(!wants(&ready(0.1, 3)), "before its time");
    let paused = {
        let mut seed = ready(0.1, 4);
        go(&mut seed, Trigger::Pause);
        seed
    };
    assert!(!wants(&paused), "a seed that is out of the computation");
    for (loss_gain, is_above) in [(0.005, false), (0.005_1, true)] {
        let mut seed = ready(loss_gain, 4);
        seed.counterfactual.as_mut().unwrap().std_error = 0.0;
        assert_eq!(wants(&seed), is_above, "{loss_gain}");
    }
    let few = Confirming { num_samples: 49, ..CONFIRMING };
    for confirming in [None, Some(few)] {
        assert!(!ready(0.1, 4).wants_confirmation(&gates, Surroundings { confirming, ..around }));
    }
    let leaks = {
        let mut seed = ready(0.1, 4);
        seed.add_violations(1);
        seed
    };
    let off = GateConfig { off: vec![leyline::seed::Gate::Stability], ..GateConfig::default() };
    assert!(!wants(&leaks) && !leaks.wants_confirmation(&off, around), "what the gate refuses is not read");

    let read = Confirmation { loss_gain: 0.1, p_value: 0.025, worst: 1.0, num_samples: 180 };
    let mut seed = ready(0.1, 4);
    assert!(seed.confirm(judged(&read, CONFIRMING)) && !wants(&seed));
    assert!(seed.export().confirmation.unwrap().passed);
    assert!(!seed.confirm(judged(&Confirmation { p_value: 1.0, ..read }, CONFIRMING)), "a second time");
    assert!(seed.export().confirmation.unwrap().passed);
}

#[test]
fn what_is_not_certain_enough_too_small_or_no_number_is_not_confirmed_and_can_be_saved() {
    let good = Confirmation { loss_gain: 0.1, p_value: 0.025, worst: 1.0, num_samples: 180 };
    let cases = [
        (good, true),
        (Confirmation { p_value: 0.0, ..good }, true),
        (Confirmation { p_value: 0.026, ..good }, false),
        (Confirmation { loss_gain: 0.005, ..good }, false),
        (Confirmation { num_samples: 49, ..good }, false),
        (Confirmation { worst: 0.0, ..good }, false),
        (Confirmation { worst: f64::INFINITY, ..good }, false),
        (Confirmation { loss_gain: f64::INFINITY, ..good }, false),
        (Confirmation { p_value: f64::NAN, ..good }, false),
        (Confirmation { p_value: -1.0, ..good }, false),
    ];
    for (measured, passes) in cases {
        let mut seed = record();
        assert!(seed.confirm(judged(&measured, CONFIRMING)));
        assert_eq!(seed.confirmation.unwrap().passed, passes, "{measured:?}");
        let saved = serde_json::to_string(&seed).unwrap();
        assert_eq!(serde_json::from_str::<SeedRecord>(&saved).unwrap(), seed, "{measured:?}");
    }
}

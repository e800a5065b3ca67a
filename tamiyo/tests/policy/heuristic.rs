//! Every rule of the heuristic, as a table from states to what it says.

use leyline::id::EpochIndex;
use leyline::seed::{AlphaMode, Confirmation, Confirmed, Confirming, SeedStage, SeedState};
use leyline::state::SystemState;
use leyline::unit::Alpha;

use crate::support::{config, decide, gain, judged, score, seed, slot, state, tamiyo, told};

/// Stages of 2 to 4 epochs, a ramp of 2, bounds of two standard errors; a life takes 1 + 2 + 2 + 2 epochs.
pub(crate) const SHORT: &str = r#"{"heuristic":{
    "closing_epochs":2,
    "plateau":{"patience_epochs":2},
    "stability":{"epochs":2},
    "evidence":{"window":2,"confidence_z":2.0},
    "germination":{"min_epoch":3},
    "training":{"min_epochs":2,"max_epochs":4},
    "blending":{"ramp_epochs":2},
    "holding":{"min_epochs":2,"max_epochs":4,"min_gain":0.01}}}"#;

/// Shows the states in order and compares what is said about the last one, germinations apart.
#[track_caller]
fn check_seed(history: &[SeedState], expected: &[&str]) {
    check_seed_at(50, history, expected);
}

/// As [`check_seed`], with the last state after `epoch` of 100.
#[track_caller]
pub(crate) fn check_seed_at(epoch: u64, history: &[SeedState], expected: &[&str]) {
    let mut policy = tamiyo(config(SHORT));
    let first = epoch + 1 - history.len() as u64;
    let mut last = Vec::new();
    for (shown, epoch) in history.iter().zip(first..) {
        last = told(&decide(&mut policy, &state(epoch, vec![shown.clone()], vec![slot("a", &[])])));
    }
    last.pop().expect("a reason against germination comes last");
    assert_eq!(last, expected, "{history:?}");
}

pub(crate) fn at(stage: SeedStage, epochs_in_stage: u64) -> SeedState {
    seed(1, "a", stage, epochs_in_stage)
}

pub(crate) fn measured(stage: SeedStage, epochs_in_stage: u64, loss_gain: f64, std_error: f64) -> SeedState {
    SeedState { counterfactual: gain(loss_gain, std_error), ..at(stage, epochs_in_stage) }
}

pub(crate) fn ramping(mut seed: SeedState, alpha: f64) -> SeedState {
    seed.alpha = Alpha::new(alpha).unwrap();
    seed.alpha_mode = AlphaMode::Up;
    seed
}

#[test]
fn a_germinated_seed_trains_at_once() {
    check_seed(&[at(SeedStage::Germinated, 0)], &["germinated: start_training seed-1"]);
}

#[test]
fn a_training_seed_blends_once_its_lower_bound_is_positive() {
    use SeedStage::Training;
    let blends = ["training_proven: start_blending seed-1 to 1 in 20 steps"];
    check_seed(&[measured(Training, 2, 0.3, 0.1)], &blends);
    check_seed(&[measured(Training, 1, 0.3, 0.1)], &[]);
    check_seed(&[measured(Training, 2, 0.2, 0.1)], &[]);
    check_seed(&[measured(Training, 2, 0.0, 0.0)], &[]);
    check_seed(&[measured(Training, 4, 0.3, 0.1)], &blends);
}

#[test]
fn the_bound_does_not_tighten_with_repetition() {
    use SeedStage::Training;
    let three = [measured(Training, 1, 0.19, 0.1), measured(Training, 2, 0.18, 0.1), measured(Training, 3, 0.19, 0.1)];
    check_seed(&three, &[]);
}

#[test]
fn a_training_seed_without_healthy_gradient_does_not_blend() {
    use SeedStage::Training;
    let mut ill = measured(Training, 2, 0.3, 0.1);
    ill.gradient.as_mut().unwrap().health = 0.69;
    check_seed(&[ill], &[]);
    check_seed(&[SeedState { gradient: None, ..measured(Training, 2, 0.3, 0.1) }], &[]);
}

#[test]
fn a_seed_that_acts_fades_where_that_is_asked_for_and_is_left_alone_meanwhile() {
    use SeedStage::{Blending, Holding, Training};
    let fading = SHORT.replace(r#""ramp_epochs":2"#, r#""ramp_epochs":2,"fade_epochs":3"#);
    let check = |shown: SeedState, epoch, expected: &[&str]| {
        let mut policy = tamiyo(config(&fading));
        let mut last = told(&decide(&mut policy, &state(epoch, vec![shown], vec![slot("a", &[])])));
        last.pop().expect("a reason against germination comes last");
        assert_eq!(last, expected);
    };
    check(at(Holding, 4), 50, &["holding_unproven: cull_gradually seed-1 in 30 steps"]);
    check(at(Training, 4), 50, &["training_unproven: cull seed-1"]);
    let mut on_its_way = ramping(measured(Blending, 1, -0.3, 0.1), 0.4);
    (on_its_way.alpha_mode, on_its_way.alpha_target) = (AlphaMode::Down, Alpha::ZERO);
    check(on_its_way.clone(), 50, &[]);
    check(on_its_way, 98, &["closing: cull seed-1"]);
}

#[test]
fn a_training_seed_is_culled_when_harmful_or_unproven_for_long() {
    use SeedStage::Training;
    check_seed(&[measured(Training, 2, -0.3, 0.1)], &["training_harmful: cull seed-1"]);
    check_seed(&[measured(Training, 1, -0.3, 0.1)], &[]);
    check_seed(&[measured(Training, 2, -0.1, 0.1)], &[]);
    check_seed(&[measured(Training, 3, 0.1, 0.1)], &[]);
    check_seed(&[measured(Training, 4, 0.1, 0.1)], &["training_unproven: cull seed-1"]);
}

#[test]
fn what_was_never_measured_neither_blends_nor_becomes_permanent() {
    use SeedStage::{Holding, Training};
    check_seed(&[at(Training, 3)], &[]);
    check_seed(&[at(Training, 4)], &["training_unproven: cull seed-1"]);
    check_seed(&[measured(Training, 4, f64::NAN, 0.1)], &["training_unproven: cull seed-1"]);
    check_seed(&[measured(Training, 4, 0.3, f64::INFINITY)], &["training_unproven: cull seed-1"]);
    check_seed(&[at(Holding, 3)], &[]);
    check_seed(&[at(Holding, 4)], &["holding_unproven: cull seed-1"]);
}

#[test]
fn evidence_of_training_does_not_carry_into_holding() {
    use SeedStage::{Blending, Holding, Training};
    let mut lives = vec![measured(Training, 2, 0.3, 0.1), measured(Blending, 2, 0.4, 0.1)];
    lives.extend((1..=4).map(|epoch| at(Holding, epoch)));
    check_seed(&lives, &["holding_unproven: cull seed-1"]);
}

#[test]
fn a_blending_seed_holds_when_its_ramp_is_over() {
    use SeedStage::Blending;
    check_seed(&[at(Blending, 2)], &["blending_complete: hold seed-1"]);
    check_seed(&[ramping(at(Blending, 1), 0.5)], &[]);
    check_seed(&[ramping(at(Blending, 2), 1.0)], &[]);
    let part_way = SeedState { alpha: Alpha::new(0.5).unwrap(), ..at(Blending, 2) };
    check_seed(&[part_way], &[]);
}

#[test]
fn two_harmful_measurements_in_a_row_end_a_seed_that_acts() {
    use SeedStage::{Blending, Holding};
    for (stage, rule) in [(Blending, "blending_harmful"), (Holding, "holding_harmful")] {
        let culled = format!("{rule}: cull seed-1");
        let bad = |epoch, value| ramping(measured(stage, epoch, value, 0.1), 0.5);
        check_seed(&[bad(0, -0.3), bad(1, -0.4)], &[&culled]);
        check_seed(&[bad(0, -0.3)], &[]);
        let shown_again = |state| SeedState { counterfactual_epoch: Some(EpochIndex(49)), ..state };
        check_seed(&[shown_again(bad(0, -0.3)), shown_again(bad(1, -0.4))], &[]);
        check_seed(&[bad(0, -0.3), bad(1, 0.1), bad(1, -0.3)], &[]);
        check_seed(&[bad(0, -0.1), bad(1, -0.15)], &[]);
    }
}

#[test]
fn a_holding_seed_becomes_permanent_when_it_is_worth_it() {
    use SeedStage::Holding;
    let permanent = ["holding_proven: fossilize seed-1"];
    check_seed(&[measured(Holding, 2, 0.3, 0.1)], &permanent);
    check_seed(&[measured(Holding, 1, 0.3, 0.1)], &[]);
    check_seed(&[measured(Holding, 2, 0.2, 0.1)], &[]);
    check_seed(&[measured(Holding, 2, 0.009, 0.001)], &[]);
    check_seed(&[measured(Holding, 2, 0.01, 0.001)], &permanent);
    check_seed(&[measured(Holding, 4, 0.3, 0.1)], &permanent);
    check_seed(&[measured(Holding, 4, 0.009, 0.001)], &["holding_unproven: cull seed-1"]);
    check_seed(&[measured(Holding, 4, 0.1, 0.1)], &["holding_unproven: cull seed-1"]);
}

#[test]
fn a_training_seed_that_leaks_is_culled_whatever_it_is_worth() {
    use SeedStage::Training;
    let leaks = |seed: SeedState| SeedState { isolation_violations: 1, ..seed };
    for seed in [at(Training, 0), measured(Training, 1, 0.3, 0.1), measured(Training, 2, 0.3, 0.1)] {
        check_seed(&[leaks(seed)], &["training_leaks: cull seed-1", "isolation_violation"]);
    }
    // It acts: what it did in the shadow is over.
    check_seed(&[leaks(at(SeedStage::Blending, 2))], &["blending_complete: hold seed-1"]);
}

#[test]
fn a_seed_goes_on_where_its_gate_is_open_and_goes_when_it_stays_shut_until_the_time_of_the_stage_is_up() {
    use SeedStage::{Blending, Fossilized, Holding, Training};
    let blends = "training_proven: start_blending seed-1 to 1 in 20 steps";
    let permanent = "holding_proven: fossilize seed-1";
    for (stage, next, goes_on, gives_up) in [
        (Training, Blending, blends, "training_unproven: cull seed-1"),
        (Holding, Fossilized, permanent, "holding_unproven: cull seed-1"),
    ] {
        // Whatever was measured: what has to be, and how much, is the gate's to say.
        for gain in [0.3, 0.001] {
            let seed = |epoch| measured(stage, epoch, gain, 0.1);
            check_seed(&[judged(seed(1), next, true)], &[]);
            for epoch in [2, 3] {
                check_seed(&[judged(seed(epoch), next, false)], &[]);
                check_seed(&[judged(seed(epoch), next, true)], &[goes_on]);
            }
            for epoch in [4, 5] {
                check_seed(&[judged(seed(epoch), next, false)], &[gives_up]);
                check_seed(&[judged(seed(epoch), next, true)], &[goes_on]);
            }
        }
    }
    // The verdict of another gate says nothing about the next one.
    let germinated = judged(at(SeedStage::Germinated, 0), Training, true);
    let other = SeedState { last_gate: germinated.last_gate, ..measured(Training, 4, 0.3, 0.1) };
    check_seed(&[other], &["training_unproven: cull seed-1"]);
    let in_blending = judged(at(Blending, 1), Holding, true);
    let other = SeedState { last_gate: in_blending.last_gate, ..measured(Holding, 4, 0.3, 0.1) };
    check_seed(&[other], &["holding_unproven: cull seed-1"]);
}

pub(crate) fn confirmed(passed: bool, seed: SeedState) -> SeedState {
    let measured = Confirmation { loss_gain: 0.2, p_value: 0.001, worst: 1.0, num_samples: 100 };
    SeedState { confirmation: Some(Confirmed { measured, level: 0.01, passed }), ..seed }
}

pub(crate) fn confirming(num_samples: u64) -> Option<Confirming> {
    let (level, min_gain) = (0.01, 0.0);
    Some(Confirming { num_samples, needed_samples: 60, level, min_gain, num_read: 2, num_confirmed: 0 })
}

#[test]
fn a_seed_whose_gain_was_not_confirmed_is_not_tried_on() {
    let shut = judged(measured(SeedStage::Training, 2, 0.3, 0.1), SeedStage::Blending, false);
    check_seed(&[confirmed(false, shut)], &["training_unconfirmed: cull seed-1"]);
}

#[test]
fn at_the_close_of_a_run_in_which_gains_are_confirmed_what_was_measured_again_and_again_proves_nothing() {
    let holding = measured(SeedStage::Holding, 1, 0.3, 0.1);
    let (kept, culled) = (["closing: fossilize seed-1"], ["closing: cull seed-1"]);
    let cases =
        [(holding.clone(), &culled), (confirmed(false, holding.clone()), &culled), (confirmed(true, holding), &kept)];
    for (seed, expected) in cases {
        let shown = SystemState { confirming: confirming(100), ..state(98, vec![seed], vec![slot("a", &[])]) };
        let found = told(&decide(&mut tamiyo(config(SHORT)), &shown));
        assert_eq!(found[..1], expected[..], "{found:?}");
    }
}

#[test]
fn nothing_germinates_where_too_few_samples_confirm() {
    let with = |num_samples| with_last(plateau(20, 3), |s| s.confirming = confirming(num_samples));
    check(SHORT, &with(59), &["no_power"]);
    check(SHORT, &with(60), &["plateau: germinate mlp in a"]);
    let mut policy = tamiyo(config(SHORT));
    let decisions: Vec<_> = with(59).iter().map(|state| decide(&mut policy, state)).collect();
    let why = &decisions[2].waiting[0].detail;
    assert!(why.contains("59 samples to confirm a gain on, the smallest that matters needs 60"), "{why}");
}

#[test]
fn looking_ends_with_its_share_of_the_compute_and_after_tries_in_vain() {
    let look = |settings: &str, epochs: u64| {
        let json = SHORT.replacen("\"closing", &format!("\"looking\":{{{settings}}},\"closing"), 1);
        let mut policy = tamiyo(config(&json));
        let slots = || vec![slot("a", &[("mlp", 10)]), slot("b", &[("mlp", 10)])];
        let mut last = Vec::new();
        for epoch in 0..epochs {
            let shadow = judged(seed(1, "a", SeedStage::Training, 2), SeedStage::Blending, false);
            last = told(&decide(&mut policy, &state(20 + epoch, vec![shadow], slots())));
        }
        // It is gone, and another slot is free.
        let rest: Vec<String> =
            (0..2).flat_map(|i| told(&decide(&mut policy, &state(20 + epochs + i, vec![], slots())))).collect();
        (last, rest.last().unwrap().clone())
    };
    // 100 epochs: an eighth of all compute is 14.3 epochs of the network, or 7 epochs of a seed that costs 2.
    let budget = r#""max_share":0.125,"epoch_cost":2.0"#;
    let (told, after) = look(budget, 4);
    assert_eq!(
        (told.last().unwrap().as_str(), after.as_str()),
        ("plateau: germinate mlp in b", "plateau: germinate mlp in a")
    );
    let (told, after) = look(budget, 7);
    assert_eq!((told[0].as_str(), after.as_str()), ("looking_spent: cull seed-1", "looking_spent"));
    assert_eq!(look(r#""max_tries":1"#, 3).1, "tries_in_vain");
}

#[test]
fn looking_leaves_every_seed_its_shortest_time_and_a_confirmed_one_its_life() {
    // 7 epochs in the shadow are allowed, see above; 4 are spent in the first four of these, and a life there takes 2.
    let json = SHORT.replacen("\"closing", r#""looking":{"max_share":0.125,"epoch_cost":2.0},"closing"#, 1);
    let slots = || vec![slot("a", &[("mlp", 10)]), slot("b", &[("mlp", 10)]), slot("c", &[("mlp", 10)])];
    let shut = |epochs| judged(seed(1, "a", SeedStage::Training, epochs), SeedStage::Blending, false);
    let young = |epochs| seed(2, "b", SeedStage::Training, epochs);
    let told_with = |num_before: u64, seeds: Vec<SeedState>| {
        let mut policy = tamiyo(config(&json));
        for epoch in 0..num_before {
            decide(&mut policy, &state(20 + epoch, vec![shut(2)], slots()));
        }
        told(&decide(&mut policy, &state(20 + num_before, seeds, slots())))
    };
    // One of the three epochs left is that of the seed that began: two are none for another one, and one is.
    assert_eq!(told_with(4, vec![young(1)]), ["looking_spent"]);
    assert_eq!(told_with(3, vec![young(1)]), ["plateau: germinate mlp in a"]);
    // Nobody is ended before it could be judged; who could was looked at for long enough.
    assert_eq!(told_with(6, vec![young(1)]), ["looking_spent"]);
    assert_eq!(told_with(5, vec![shut(2), young(1)])[0], "looking_spent: cull seed-1");
    assert_eq!(told_with(6, vec![confirmed(true, shut(2))]), ["looking_spent"]);
    assert_eq!(told_with(6, vec![confirmed(false, shut(2))])[0], "training_unconfirmed: cull seed-1");
}

#[test]
fn a_seed_that_returns_from_a_pause_is_judged_anew() {
    use SeedStage::Holding;
    let bad = |epoch, value| measured(Holding, epoch, value, 0.1);
    let paused = |seed: SeedState| SeedState { paused: true, ..seed };
    check_seed(&[bad(0, -0.3), paused(bad(1, -0.3)), bad(1, -0.4)], &[]);
    check_seed(&[bad(0, -0.3), paused(bad(1, -0.3)), bad(1, -0.4), bad(1, -0.5)], &["holding_harmful: cull seed-1"]);
}

#[test]
fn a_seed_that_is_no_longer_live_is_left_alone() {
    use SeedStage::{Embargoed, Fossilized, Pruned, Resetting};
    for stage in [Fossilized, Pruned, Embargoed, Resetting] {
        check_seed(&[measured(stage, 9, -1.0, 0.1)], &[]);
        check_seed_at(100, &[measured(stage, 9, -1.0, 0.1)], &[]);
    }
}

/// Shows `states` in order to a policy with `json` and compares what is said about the last one.
#[track_caller]
pub(crate) fn check(json: &str, states: &[SystemState], expected: &[&str]) {
    let mut policy = tamiyo(config(json));
    let mut last = Vec::new();
    for state in states {
        last = told(&decide(&mut policy, state));
    }
    assert_eq!(last, expected);
}

/// `num` states on one plateau; the last one is after `epoch`.
pub(crate) fn plateau(epoch: u64, num: u64) -> Vec<SystemState> {
    (epoch + 1 - num..=epoch).map(|epoch| state(epoch, vec![], vec![slot("a", &[("mlp", 10)])])).collect()
}

pub(crate) fn with_last(mut states: Vec<SystemState>, change: impl FnOnce(&mut SystemState)) -> Vec<SystemState> {
    change(states.last_mut().unwrap());
    states
}

#[test]
fn a_plateau_germinates() {
    check(SHORT, &plateau(20, 3), &["plateau: germinate mlp in a"]);
}

#[test]
fn nothing_germinates_before_its_share_of_the_run_is_over() {
    let late = SHORT.replace(r#""min_epoch":3"#, r#""min_epoch":3,"min_share":0.405"#);
    check(&late, &plateau(40, 3), &["too_early"]);
    check(&late, &plateau(41, 3), &["plateau: germinate mlp in a"]);
    // In numbers of a computer 0.28 of 100 is more than 28.
    let exact = SHORT.replace(r#""min_epoch":3"#, r#""min_epoch":3,"min_share":0.28"#);
    check(&exact, &plateau(27, 3), &["too_early"]);
    check(&exact, &plateau(28, 3), &["plateau: germinate mlp in a"]);
    let early = SHORT.replace(r#""min_epoch":3"#, r#""min_epoch":30,"min_share":0.2"#);
    check(&early, &plateau(29, 3), &["too_early"]);
    check(&early, &plateau(30, 3), &["plateau: germinate mlp in a"]);
}

#[test]
fn nothing_germinates_without_patience_stability_time_and_measurement() {
    check(SHORT, &plateau(20, 2), &["not_stabilized"]);
    check(SHORT, &plateau(2, 2), &["too_early"]);
    check(SHORT, &plateau(92, 9), &["plateau: germinate mlp in a"]);
    check(SHORT, &plateau(93, 9), &["too_late"]);
    check(SHORT, &with_last(plateau(20, 5), |s| s.validation = Some(score(0.8))), &["improving"]);
    check(SHORT, &with_last(plateau(20, 5), |s| s.validation = None), &["loss_unmeasured", "validation_unmeasured"]);
    check(
        SHORT,
        &with_last(plateau(20, 5), |s| s.validation = Some(score(f64::NAN))),
        &["loss_unmeasured", "validation_unmeasured"],
    );
    let never = plateau(20, 9).into_iter().map(|s| SystemState { validation: None, ..s }).collect::<Vec<_>>();
    check(SHORT, &never, &["loss_unmeasured", "validation_unmeasured"]);
}

#[test]
fn training_loss_is_not_looked_at() {
    let states: Vec<SystemState> =
        plateau(20, 9).into_iter().map(|s| SystemState { train: s.validation, validation: None, ..s }).collect();
    check(SHORT, &states, &["loss_unmeasured", "validation_unmeasured"]);
}

#[test]
fn nothing_germinates_where_no_slot_is_free_or_nothing_is_offered() {
    check(
        SHORT,
        &with_last(plateau(20, 3), |s| s.slots[0].occupant = Some(leyline::id::SeedId(9))),
        &["nothing_to_place"],
    );
    check(SHORT, &with_last(plateau(20, 3), |s| s.slots[0].offers.clear()), &["nothing_to_place"]);
}

#[test]
fn growth_stays_within_the_parameter_budget() {
    let offer = |num_parameters| with_last(plateau(20, 3), |s| s.slots[0].offers[0].num_parameters = num_parameters);
    check(SHORT, &offer(100), &["plateau: germinate mlp in a"]);
    check(SHORT, &offer(101), &["nothing_to_place"]);
    let grown = |num_parameters| with_last(plateau(20, 3), |s| s.host_parameters = num_parameters);
    check(SHORT, &grown(190), &["plateau: germinate mlp in a"]);
    check(SHORT, &grown(191), &["nothing_to_place"]);
    let absolute = SHORT.replace(r#""min_epoch":3"#, r#""min_epoch":3,"max_parameters":109"#);
    check(&absolute, &plateau(20, 3), &["nothing_to_place"]);
    check(&absolute.replace("109", "110"), &plateau(20, 3), &["plateau: germinate mlp in a"]);
}

#[test]
fn a_live_seed_counts_against_seeds_and_parameters() {
    let slots = || vec![slot("a", &[("mlp", 10)]), slot("b", &[("mlp", 10)]), slot("c", &[("mlp", 10)])];
    let with = |seeds: fn() -> Vec<SeedState>| -> Vec<SystemState> {
        (18..=20).map(|epoch| state(epoch, seeds(), slots())).collect()
    };
    let one = with(|| vec![seed(1, "a", SeedStage::Training, 1)]);
    check(SHORT, &one, &["plateau: germinate mlp in b"]);
    let two = with(|| vec![seed(1, "a", SeedStage::Training, 1), seed(2, "b", SeedStage::Holding, 1)]);
    check(SHORT, &two, &["seeds_at_limit"]);
    let big = with(|| vec![SeedState { num_parameters: 95, ..seed(1, "a", SeedStage::Training, 1) }]);
    check(SHORT, &big, &["nothing_to_place"]);
    let culled = with(|| vec![seed(1, "a", SeedStage::Training, 9), seed(2, "b", SeedStage::Holding, 1)]);
    check(SHORT, &culled, &["training_unproven: cull seed-1", "plateau: germinate mlp in c"]);
}

#[test]
fn one_seed_germinates_per_epoch_however_often_it_is_asked() {
    let mut states = plateau(20, 3);
    states.push(states[2].clone());
    check(SHORT, &states, &["germinated_already"]);
}

#[test]
fn every_seed_is_managed_in_the_order_cull_fossilize_move_germinate() {
    let seeds = || {
        vec![
            seed(1, "a", SeedStage::Germinated, 1),
            seed(2, "b", SeedStage::Blending, 2),
            SeedState { counterfactual: gain(0.3, 0.1), ..seed(3, "c", SeedStage::Training, 2) },
            SeedState { counterfactual: gain(0.3, 0.1), ..seed(4, "d", SeedStage::Holding, 2) },
            seed(5, "e", SeedStage::Holding, 4),
        ]
    };
    let slots = || ["a", "b", "c", "d", "e", "f"].map(|name| slot(name, &[("mlp", 10)])).to_vec();
    let json = SHORT.replace(r#""min_epoch":3"#, r#""min_epoch":3,"max_live_seeds":9"#);
    let mut states = vec![state(18, vec![], slots()), state(19, vec![], slots())];
    states.push(state(20, seeds(), slots()));
    check(
        &json,
        &states,
        &[
            "holding_unproven: cull seed-5",
            "holding_proven: fossilize seed-4",
            "germinated: start_training seed-1",
            "blending_complete: hold seed-2",
            "training_proven: start_blending seed-3 to 1 in 20 steps",
            "plateau: germinate mlp in f",
        ],
    );
}

/// Lets germinate in two slots, ends every seed as told by the list of its slot and blueprint, and collects what
/// germinates.
#[track_caller]
fn check_placement(json: &str, offers: &[(&str, u64)], ends: &[(&str, Option<f64>, bool)], expected: &[&str]) {
    let mut policy = tamiyo(config(json));
    let slots = || vec![slot("a", offers), slot("b", offers)];
    let mut epoch = 10;
    let mut next = |policy: &mut _, seeds: Vec<SeedState>| {
        epoch += 1;
        told(&decide(policy, &state(epoch, seeds, slots()))).pop().unwrap()
    };
    for _ in 0..2 {
        next(&mut policy, vec![]);
    }
    let mut found = vec![next(&mut policy, vec![])];
    for (&(name, contribution, fossilized), id) in ends.iter().zip(1..) {
        let germinated = found.last().unwrap();
        let (blueprint, place) = germinated.trim_start_matches("plateau: germinate ").split_once(" in ").unwrap();
        assert_eq!(format!("{blueprint}@{place}"), name, "{found:?}");
        let mut live = seed(id, place, SeedStage::Holding, 1);
        live.blueprint = crate::support::blueprint_id(blueprint);
        live.counterfactual = contribution.and_then(|value| gain(value, 0.001));
        // While it lives both slots are barred, so that only its end lets the next one germinate.
        let mut barred = state(epoch_of(&mut epoch), vec![live.clone()], slots());
        barred.slots.iter_mut().for_each(|slot| slot.occupant = Some(live.seed_id));
        decide(&mut policy, &barred);
        live.stage = if fossilized { SeedStage::Fossilized } else { SeedStage::Pruned };
        let mut after = state(epoch_of(&mut epoch), vec![live], slots());
        after.slots.iter_mut().for_each(|slot| slot.occupant = None);
        found.push(told(&decide(&mut policy, &after)).pop().unwrap());
    }
    let found: Vec<&str> = found.iter().map(|text| text.trim_start_matches("plateau: germinate ")).collect();
    assert_eq!(found, expected);
}

fn epoch_of(epoch: &mut u64) -> u64 {
    *epoch += 1;
    *epoch
}

#[test]
fn untried_pairs_come_first_spread_over_slots() {
    check_placement(
        SHORT,
        &[("conv", 1), ("mlp", 1)],
        &[("conv@a", Some(0.1), true), ("conv@b", Some(0.2), true), ("mlp@a", Some(0.3), true)],
        &["conv in a", "conv in b", "mlp in a", "mlp in b"],
    );
}

#[test]
fn tried_pairs_follow_by_what_they_showed_and_the_unmeasured_last() {
    check_placement(
        SHORT,
        &[("conv", 1), ("mlp", 1)],
        &[
            ("conv@a", Some(0.1), true),
            ("conv@b", Some(0.3), true),
            ("mlp@a", None, true),
            ("mlp@b", Some(-0.1), true),
            ("conv@b", Some(-0.3), true),
        ],
        &["conv in a", "conv in b", "mlp in a", "mlp in b", "conv in b", "conv in a"],
    );
}

#[test]
fn a_culled_blueprint_stands_back_for_two_germinations_everywhere() {
    check_placement(
        SHORT,
        &[("conv", 1), ("mlp", 1)],
        &[
            ("conv@a", Some(-0.5), false),
            ("mlp@b", Some(0.3), true),
            ("mlp@a", Some(0.2), true),
            ("conv@b", Some(-0.5), false),
        ],
        &["conv in a", "mlp in b", "mlp in a", "conv in b", "mlp in b"],
    );
}

#[test]
fn when_every_blueprint_stands_back_the_one_that_waited_longest_is_taken() {
    check_placement(
        SHORT,
        &[("conv", 1), ("mlp", 1)],
        &[("conv@a", Some(-0.5), false), ("mlp@b", Some(-0.5), false), ("conv@b", Some(-0.5), false)],
        &["conv in a", "mlp in b", "conv in b", "mlp in a"],
    );
}

#[test]
fn the_list_of_blueprints_selects_and_orders() {
    let json = SHORT.replace(r#""min_epoch":3"#, r#""min_epoch":3,"blueprints":["mlp","conv"]"#);
    let offers = [("attention", 1), ("conv", 1), ("mlp", 1)];
    let ends = [("mlp@a", Some(0.1), true), ("mlp@b", Some(0.1), true), ("conv@a", Some(0.1), true)];
    check_placement(&json, &offers, &ends, &["mlp in a", "mlp in b", "conv in a", "conv in b"]);
}

#[test]
fn a_ramp_takes_its_shape_from_the_configuration() {
    let json = SHORT.replace(r#""ramp_epochs":2"#, r#""ramp_epochs":3,"curve":"cosine""#);
    let mut policy = tamiyo(config(&json));
    let shown = state(50, vec![measured(SeedStage::Training, 2, 0.3, 0.1)], vec![slot("a", &[])]);
    let decision = decide(&mut policy, &shown);
    let leyline::command::Operation::StartBlending { ramp, .. } = &decision.orders[0].operation else {
        panic!("{decision:?}");
    };
    assert_eq!((ramp.steps, ramp.curve), (30, leyline::command::AlphaCurve::Cosine));
    assert!(ramp.target.is_one());
}

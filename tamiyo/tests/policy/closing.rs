//! The close of a run: what may still become permanent, what waits, and what goes.

use leyline::seed::{SeedStage, SeedState};
use leyline::state::SystemState;
use tamiyo::policy::heuristic::GateEpochs;

use crate::heuristic::{SHORT, at, check_seed_at, confirmed, confirming, measured, ramping};
use crate::support::{config, decide, judged, slot, state, tamiyo, told};

#[test]
fn closing_culls_what_cannot_become_permanent_in_time() {
    use SeedStage::{Germinated, Training};
    let culled = ["closing: cull seed-1"];
    check_seed_at(93, &[at(Germinated, 0)], &["germinated: start_training seed-1"]);
    check_seed_at(94, &[at(Germinated, 0)], &culled);
    check_seed_at(94, &[at(Training, 1)], &[]);
    check_seed_at(95, &[at(Training, 1)], &culled);
    check_seed_at(95, &[measured(Training, 2, 0.3, 0.1)], &["training_proven: start_blending seed-1 to 1 in 20 steps"]);
    check_seed_at(96, &[measured(Training, 2, 0.3, 0.1)], &culled);
    check_seed_at(100, &[measured(Training, 2, 0.3, 0.1)], &culled);
}

#[test]
fn closing_keeps_of_the_acting_seeds_only_the_proven() {
    use SeedStage::{Blending, Holding};
    let (culled, permanent) = (["closing: cull seed-1"], ["closing: fossilize seed-1"]);
    for epoch in [98, 99, 100] {
        check_seed_at(epoch, &[measured(Holding, 1, 0.3, 0.1)], &permanent);
        check_seed_at(epoch, &[measured(Holding, 1, 0.1, 0.1)], &culled);
        check_seed_at(epoch, &[at(Holding, 1)], &culled);
        check_seed_at(epoch, &[ramping(measured(Blending, 1, 0.3, 0.1), 0.5)], &culled);
        check_seed_at(epoch, &[at(Blending, 2)], &culled);
    }
    check_seed_at(97, &[measured(Holding, 1, 0.3, 0.1)], &[]);
    check_seed_at(98, &[measured(Blending, 2, 0.3, 0.1)], &["closing: hold seed-1"]);
    check_seed_at(99, &[measured(Blending, 2, 0.3, 0.1)], &culled);
}

/// As [`check_seed_at`], in a run in which gains are confirmed, of a seed whose gain was.
#[track_caller]
fn check_confirmed(json: &str, epoch: u64, history: &[SeedState], expected: &[&str]) {
    let mut policy = tamiyo(config(json));
    let first = epoch + 1 - history.len() as u64;
    let mut last = Vec::new();
    for (shown, epoch) in history.iter().zip(first..) {
        let seeds = vec![confirmed(true, shown.clone())];
        let shown = SystemState { confirming: confirming(100), ..state(epoch, seeds, vec![slot("a", &[])]) };
        last = told(&decide(&mut policy, &shown));
    }
    last.pop().expect("a reason against germination comes last");
    assert_eq!(last, expected, "epoch {epoch}: {history:?}");
}

#[test]
fn closing_lets_no_confirmed_seed_stay_that_does_harm() {
    use SeedStage::{Blending, Holding};
    let culled = ["closing: cull seed-1"];
    let harmful = |stage| [1, 2].map(|epochs| measured(stage, epochs, -0.3, 0.1));
    for epoch in [98, 99, 100] {
        check_confirmed(SHORT, epoch, &harmful(Holding), &culled);
        check_confirmed(SHORT, epoch, &harmful(Blending), &culled);
    }
    // Whatever its gate says, and at once: a fade might outlast the run.
    let open = harmful(Holding).map(|seed| judged(seed, SeedStage::Fossilized, true));
    check_confirmed(SHORT, 98, &open, &culled);
    let fading = SHORT.replace(r#""ramp_epochs":2"#, r#""ramp_epochs":2,"fade_epochs":3"#);
    check_confirmed(&fading, 98, &harmful(Holding), &culled);
}

#[test]
fn closing_makes_permanent_what_its_gate_lets_pass_and_waits_for_it_while_a_boundary_is_left() {
    let seed = |passed| judged(measured(SeedStage::Holding, 1, 0.1, 0.1), SeedStage::Fossilized, passed);
    for epoch in [98, 99, 100] {
        check_confirmed(SHORT, epoch, &[seed(true)], &["closing: fossilize seed-1"]);
    }
    check_confirmed(SHORT, 98, &[seed(false)], &[]);
    check_confirmed(SHORT, 99, &[seed(false)], &["closing: cull seed-1"]);
    check_confirmed(SHORT, 100, &[seed(false)], &["closing: cull seed-1"]);
}

/// A gate may ask for more epochs than the policy waits for: nothing is counted on that would end before.
#[test]
fn a_life_is_as_long_as_the_gates_ask_for() {
    let with = |training, blending, holding| {
        let mut settings = config(SHORT);
        settings.heuristic.gates = GateEpochs { training, blending, holding };
        settings
    };
    for (gates, life) in
        [((0, 0, 0), 7), ((2, 2, 2), 7), ((4, 0, 0), 9), ((0, 3, 0), 8), ((0, 0, 4), 9), ((4, 3, 4), 12)]
    {
        let settings = with(gates.0, gates.1, gates.2);
        assert_eq!(settings.heuristic.life_epochs(), life, "{gates:?}");
        let last = |shown: SeedState, epoch: u64| {
            let shown = state(epoch, vec![shown], vec![slot("a", &[])]);
            told(&decide(&mut tamiyo(settings.clone()), &shown))[0].clone()
        };
        let germinated = || at(SeedStage::Germinated, 0);
        assert_eq!(last(germinated(), 100 - life), "germinated: start_training seed-1", "{gates:?}");
        assert_eq!(last(germinated(), 101 - life), "closing: cull seed-1", "{gates:?}");
    }
    // What a seed has still to cost before it is judged.
    let room = |training| {
        let mut settings =
            config(&SHORT.replacen("\"closing", r#""looking":{"max_share":0.125,"epoch_cost":2.0},"closing"#, 1));
        settings.heuristic.gates.training = training;
        let slots = vec![slot("a", &[]), slot("b", &[("mlp", 10)])];
        let mut policy = tamiyo(settings);
        let states = (18..=20).map(|epoch| state(epoch, vec![at(SeedStage::Training, 1)], slots.clone()));
        states.map(|state| told(&decide(&mut policy, &state))).last().unwrap()
    };
    assert_eq!(room(0), ["plateau: germinate mlp in b"]);
    assert_eq!(room(7), ["looking_spent"]);
}

#[test]
fn closing_holds_a_seed_only_where_its_gate_can_open_before_the_last_boundary() {
    let (blending, culled) = (measured(SeedStage::Blending, 2, 0.3, 0.1), ["closing: cull seed-1"]);
    let check = |holding, epoch, shown: &SeedState, expected: &[&str]| {
        let mut settings = config(&SHORT.replace(r#""closing_epochs":2"#, r#""closing_epochs":3"#));
        settings.heuristic.gates.holding = holding;
        let shown = state(epoch, vec![shown.clone()], vec![slot("a", &[])]);
        let mut last = told(&decide(&mut tamiyo(settings), &shown));
        last.pop().expect("a reason against germination comes last");
        assert_eq!(last, expected, "epoch {epoch}, {holding} epochs of holding");
    };
    for (holding, last) in [(0, 98), (1, 98), (2, 97)] {
        check(holding, last, &blending, &["closing: hold seed-1"]);
        check(holding, last + 1, &blending, &culled);
    }
    check(3, 97, &blending, &culled);
    let shut = |epochs| judged(measured(SeedStage::Holding, epochs, 0.3, 0.1), SeedStage::Fossilized, false);
    check(3, 97, &shut(1), &[]);
    check(4, 97, &shut(1), &culled);
}

#[test]
fn no_seed_fades_at_the_close() {
    let said = |epoch| {
        let mut settings = config(&SHORT.replace(r#""ramp_epochs":2"#, r#""ramp_epochs":2,"fade_epochs":1"#));
        settings.heuristic.gates.holding = 6;
        let shut = judged(measured(SeedStage::Holding, 5, 0.3, 0.1), SeedStage::Fossilized, false);
        told(&decide(&mut tamiyo(settings), &state(epoch, vec![shut], vec![slot("a", &[])]))).remove(0)
    };
    assert!(said(97).starts_with("holding_unproven: cull_gradually seed-1"), "{}", said(97));
    assert_eq!(said(98), "holding_unproven: cull seed-1");
}

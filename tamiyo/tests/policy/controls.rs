//! The controls: nothing, a clock, and dice.

use leyline::command::Operation;
use leyline::policy::Policy;

use crate::support::{config, decide, operations, seed, slot, state, tamiyo, told};
use crate::world::World;

/// `epoch rule: operation` of every command in a world of `num_epochs`.
fn commands(json: &str, world_seed: u64, num_epochs: u64) -> Vec<String> {
    commands_but_of(0, json, world_seed, num_epochs)
}

/// The same where what is decided in an epoch comes too late, and is dropped.
fn commands_but_of(lost_epoch: u64, json: &str, world_seed: u64, num_epochs: u64) -> Vec<String> {
    let mut policy = tamiyo(config(json));
    let mut world = World::new(world_seed, num_epochs);
    let mut told_so_far = Vec::new();
    while let Some(state) = world.next_state() {
        let decision = decide(&mut policy, &state);
        if state.epoch.0 == lost_epoch {
            continue;
        }
        told_so_far.extend(decision.orders.iter().map(|order| format!("{} {}", state.epoch, order.operation)));
        world.obey(&decision);
    }
    assert_eq!(world.num_refused, 0);
    told_so_far
}

#[test]
fn off_never_does_anything() {
    assert!(commands(r#"{"policy":"off"}"#, 1, 50).is_empty());
    assert_eq!(tamiyo(config(r#"{"policy":"off"}"#)).name(), "off");
}

#[test]
fn fixed_walks_its_clock_whatever_is_measured() {
    let json = r#"{"policy":"fixed","fixed":{"training_epochs":10,"ramp_epochs":5,"holding_epochs":1}}"#;
    let expected = [
        "1 germinate helpful in a",
        "2 start_training seed-1",
        "12 start_blending seed-1 to 1 in 50 steps",
        "17 hold seed-1",
        "18 fossilize seed-1",
    ];
    for world_seed in [1, 2] {
        assert_eq!(commands(json, world_seed, 30), expected);
    }
    let noise = json.replace(r#""fixed":{"#, r#""fixed":{"germinations":[{"epoch":1,"blueprint":"noise"}],"#);
    assert_eq!(commands(&noise, 1, 30)[1..], expected[1..], "a harmful seed goes the same way");
}

#[test]
fn fixed_pauses_every_seed_at_its_age_and_its_clock_stands_still_meanwhile() {
    let json = r#"{"policy":"fixed","fixed":{"training_epochs":2,"ramp_epochs":2,"holding_epochs":2,
        "pause":{"age_epochs":4,"epochs":3}}}"#;
    let expected = [
        "1 germinate helpful in a",
        "2 start_training seed-1",
        "4 start_blending seed-1 to 1 in 20 steps",
        "5 pause seed-1",
        "8 resume seed-1",
        "9 hold seed-1",
        "11 fossilize seed-1",
    ];
    assert_eq!(commands(json, 1, 30), expected);
    // A late answer costs an epoch of the pause, and not all of it.
    assert_eq!(commands_but_of(5, json, 1, 30)[3..5], ["6 pause seed-1", "8 resume seed-1"]);
}

#[test]
fn fixed_takes_slots_and_blueprints_from_its_entries() {
    let json = r#"{"policy":"fixed","fixed":{"training_epochs":1,"ramp_epochs":1,"holding_epochs":1,"germinations":[
        {"epoch":2,"blueprint":"useless"},{"epoch":2,"blueprint":"noise"},{"epoch":3,"slot":"b"}]}}"#;
    assert_eq!(
        commands(json, 1, 9),
        [
            "2 germinate useless in a",
            "2 germinate noise in b",
            "3 start_training seed-1",
            "3 start_training seed-2",
            "4 start_blending seed-1 to 1 in 10 steps",
            "4 start_blending seed-2 to 1 in 10 steps",
            "5 hold seed-1",
            "5 hold seed-2",
            "6 fossilize seed-1",
            "6 fossilize seed-2",
            "7 germinate helpful in b",
            "8 start_training seed-3",
            "9 start_blending seed-3 to 1 in 10 steps",
        ]
    );
}

#[test]
fn an_entry_of_the_schedule_that_finds_no_place_stays_due_and_says_so() {
    let json = r#"{"policy":"fixed","fixed":{"germinations":[{"epoch":1,"blueprint":"mlp"}]}}"#;
    let mut policy = tamiyo(config(json));
    let busy = state(1, vec![seed(1, "a", leyline::seed::SeedStage::Embargoed, 0)], vec![slot("a", &[("mlp", 1)])]);
    assert_eq!(told(&decide(&mut policy, &busy)), ["schedule_blocked"]);
    let other = state(2, vec![], vec![slot("a", &[("conv", 1)])]);
    assert_eq!(told(&decide(&mut policy, &other)), ["schedule_blocked"]);
    let free = state(3, vec![], vec![slot("a", &[("mlp", 1)])]);
    assert_eq!(told(&decide(&mut policy, &free)), ["schedule: germinate mlp in a"]);
    assert!(operations(&decide(&mut policy, &free)).is_empty(), "an entry germinates once");
}

#[test]
fn random_stays_legal_and_uses_every_move() {
    let mut seen = std::collections::BTreeSet::new();
    for world_seed in 0..20 {
        let json = format!(r#"{{"policy":"random","random":{{"seed":{world_seed},"rate":0.3,"ramp_epochs":2}}}}"#);
        // `commands` asserts that the world refused nothing.
        for text in commands(&json, world_seed, 60) {
            seen.insert(text.split(' ').nth(1).unwrap().to_owned());
        }
    }
    let all = ["cull", "fossilize", "germinate", "hold", "start_blending", "start_training"];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), all);
}

#[test]
fn random_depends_on_its_seed_and_rate_alone() {
    let json = |seed: u64, rate: f64| format!(r#"{{"policy":"random","random":{{"seed":{seed},"rate":{rate}}}}}"#);
    assert_eq!(commands(&json(1, 0.3), 1, 60), commands(&json(1, 0.3), 1, 60));
    assert_ne!(commands(&json(1, 0.3), 1, 60), commands(&json(2, 0.3), 1, 60));
    assert!(commands(&json(1, 0.0), 1, 60).is_empty());
}

#[test]
fn random_keeps_to_its_limit_of_live_seeds() {
    let mut policy = tamiyo(config(r#"{"policy":"random","random":{"rate":1.0,"max_live_seeds":1}}"#));
    let slots = || vec![slot("a", &[("mlp", 1)]), slot("b", &[("mlp", 1)])];
    for epoch in 1..50 {
        let shown = state(epoch, vec![seed(1, "a", leyline::seed::SeedStage::Training, 1)], slots());
        let operations = operations(&decide(&mut policy, &shown));
        let culled = operations.iter().any(|operation| matches!(operation, Operation::Cull { .. }));
        let germinated = operations.iter().any(|operation| matches!(operation, Operation::Germinate { .. }));
        assert_eq!(germinated, culled, "{operations:?}");
    }
}

//! The learned policy: what no weights can do, what changes its network, and what it remembers.

use std::sync::Arc;

use leyline::command::Operation;
use leyline::durable::Durable as _;
use leyline::policy::Decision;
use leyline::region::Eager;
use leyline::seed::SeedStage;
use leyline::telemetry::NullRecorder;
use leyline_testkit::clock::ManualClock;
use tamiyo::Tamiyo;
use tamiyo::policy::learned::{Teacher, Trace};

use crate::support::{Scripted, config, decide, random_network, save, slot, state, stubborn_network};
use crate::world::World;

const LEARNED: &str = r#"{"policy":"learned"}"#;

fn with(json: &str, networks: Scripted) -> Tamiyo {
    let policy = Tamiyo::new(config(json), Arc::new(ManualClock::default()), Arc::new(NullRecorder)).unwrap();
    policy.with_networks(Box::new(networks))
}

fn rules(decision: &Decision) -> Vec<(&str, &str)> {
    decision.waiting.iter().map(|why| (&*why.rule, &*why.detail)).collect()
}

/// The operations in worlds of 60 epochs.
fn lives(logits: [f32; 7], seeds: std::ops::Range<u64>) -> Vec<Operation> {
    let mut all = Vec::new();
    for seed in seeds {
        let mut policy = with(LEARNED, Scripted::from([(1, Ok(stubborn_network(logits)))]));
        let mut world = World::new(seed, 60);
        let mut in_shadow = 0;
        while let Some(state) = world.next_state() {
            in_shadow += state.seeds.iter().filter(|seed| seed.stage == SeedStage::Training).count();
            let live = state.seeds.iter().filter(|seed| seed.stage.is_live()).count();
            assert!(live <= 2, "{live} live seeds");
            let decision = decide(&mut policy, &state);
            all.extend(decision.orders.iter().map(|order| order.operation.clone()));
            world.obey(&decision);
        }
        assert_eq!(world.num_refused, 0);
        // A fifth of all compute, at 1.5 times that of the network an epoch.
        assert!(in_shadow <= 10, "{in_shadow} epochs in the shadow");
    }
    all
}

#[test]
fn all_mass_on_one_action_passes_no_limit() {
    const MUCH: f32 = 1e30;
    let count = |operations: &[Operation], name: &str| operations.iter().filter(|one| one.name() == name).count();
    let greedy = lives([0.0, MUCH, 0.0, 0.0, MUCH, 0.0, 0.0], 0..20);
    assert!(count(&greedy, "germinate") > 20 && count(&greedy, "fossilize") > 0);
    let only_waits = lives([MUCH, 0.0, 0.0, 0.0, MUCH, 0.0, 0.0], 0..20);
    assert_eq!(count(&only_waits, "fossilize"), 0);
    let culls = lives([0.0, 0.0, MUCH, 0.0, MUCH, 0.0, 0.0], 0..20);
    assert_eq!((count(&culls, "start_training"), count(&culls, "fossilize")), (0, 0));
    // Six tries in vain end the search of each of twenty runs.
    assert!(count(&culls, "germinate") <= 20 * 6, "{}", count(&culls, "germinate"));
    assert!(lives([MUCH, 0.0, 0.0, MUCH, 0.0, 0.0, 0.0], 0..3).is_empty());
}

/// What earlier runs say is a limit too: of two worlds alike, nothing grows in the one where no pair has a chance.
#[test]
fn nothing_is_tried_where_seeds_of_earlier_runs_leave_none_a_chance() {
    let grows = stubborn_network([0.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0]);
    let found = |kept: u64| {
        let row = format!(r#"{{"slot":"a","blueprint":"mlp","parameters":10,"grown":false,"tries":9,"kept":{kept}}}"#);
        let json = format!(r#"{{"policy":"learned","heuristic":{{"earlier":{{"tries":[{row}]}}}}}}"#);
        let mut policy = with(&json, Scripted::from([(1, Ok(grows.clone()))]));
        let decision = decide(&mut policy, &state(9, vec![], vec![slot("a", &[("mlp", 10)])]));
        (decision.orders.len(), decision.waiting.iter().any(|why| why.rule == "does_not_pay"))
    };
    assert_eq!(found(9), (1, false));
    assert_eq!(found(0), (0, true));
}

#[test]
fn without_a_network_nothing_is_decided_and_said_so() {
    let mut policy = with(LEARNED, Scripted::from([]));
    let decision = decide(&mut policy, &state(9, vec![], vec![slot("a", &[("mlp", 10)])]));
    assert!(decision.orders.is_empty());
    assert_eq!(rules(&decision)[0].0, "no_network");
}

#[test]
fn no_other_policy_asks_for_a_network() {
    let mut policy = with("{}", Scripted::from([(1, Ok(random_network(5, 1.0)))]));
    let decision = decide(&mut policy, &state(9, vec![], vec![slot("a", &[("mlp", 10)])]));
    assert!(!rules(&decision).iter().any(|(rule, _)| *rule == "policy_loaded"), "{decision:?}");
}

#[test]
fn a_network_that_is_refused_leaves_the_one_before() {
    let free = || state(1, vec![], vec![slot("a", &[("mlp", 10)])]);
    let grows = stubborn_network([0.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0]);
    let rests = stubborn_network([0.0, 0.0, 0.0, 5.0, 0.0, 0.0, 0.0]);
    let script = [(1, Ok(rests.clone())), (2, Err("half of it is missing")), (3, Ok(grows))];
    let mut policy = with(LEARNED, Scripted::from(script));
    let at = |epoch: u64| leyline::state::SystemState { epoch: leyline::id::EpochIndex(epoch), ..free() };
    let first = decide(&mut policy, &at(1));
    assert!(rules(&first).contains(&("policy_loaded", "network 1")), "{first:?}");
    let second = decide(&mut policy, &at(2));
    assert!(second.orders.is_empty() && rules(&second).contains(&("policy_refused", "half of it is missing")));
    assert_eq!(rules(&second)[0].0, "learned", "{second:?}");
    let third = decide(&mut policy, &at(3));
    assert!(third.orders.len() == 1 && rules(&third).contains(&("policy_loaded", "network 3")), "{third:?}");
}

#[test]
fn a_restored_policy_decides_by_the_network_it_had() {
    let mut first = with(LEARNED, Scripted::from([(1, Ok(random_network(5, 1.0)))]));
    let states: Vec<_> = (1..9).map(|epoch| state(epoch, vec![], vec![slot("a", &[("mlp", 10)])])).collect();
    decide(&mut first, &states[0]);
    let saved = save(&first);
    let mut second = with(LEARNED, Scripted::from([]));
    second.restore(&mut Eager::acquire().unwrap(), &saved).unwrap();
    for state in &states[1..] {
        assert_eq!(decide(&mut first, state), decide(&mut second, state));
    }
    assert_eq!(save(&first).json, save(&second).json);
}

#[test]
fn a_trace_of_the_rules_has_their_moves_among_its_options() {
    let (mut asked, mut moves) = (0, 0);
    for seed in 0..10 {
        let json = r#"{"policy":"heuristic"}"#;
        let mut policy = crate::support::tamiyo(config(json));
        let mut trace = Trace::new(&config(json), Teacher::Rules);
        let mut world = World::new(seed, 80);
        while let Some(state) = world.next_state() {
            let decision = decide(&mut policy, &state);
            let shown = trace.decide(&state);
            let operations = shown.proposals.iter().filter_map(|one| one.operation.clone()).count();
            assert_eq!(operations, decision.orders.len());
            asked += shown.choices.len();
            moves += shown.choices.iter().filter(|(_, taken)| *taken > 0).count();
            assert!(shown.choices.iter().all(|(choice, taken)| *taken < choice.options.len()));
            world.obey(&decision);
        }
    }
    assert!(asked > 200 && moves > 40, "{asked} choices, {moves} of them moves");
}

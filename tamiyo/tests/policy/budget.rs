//! The budget of looking, where operations are known.

use leyline::seed::{Cost, Costs, SeedStage};
use leyline::state::{Score, SystemState};

use crate::heuristic::SHORT;
use crate::support::{config, decide, judged, seed, slot, state, tamiyo, told};

/// 1000 samples of 10 operations make an epoch of the network; 25 of those are a fifth of 100 epochs and what is looked at.
fn priced(shown: SystemState, costs: [f64; 2]) -> SystemState {
    let training = |training| Cost { training, evaluation: 0.0 };
    let offer = |at: &str, cost| (slot(at, &[]).slot, "mlp".parse().unwrap(), training(cost));
    let seeds = shown.seeds.iter().map(|seed| (seed.seed_id, training(costs[0]))).collect();
    let offers = vec![offer("a", costs[0]), offer("b", costs[1])];
    let costs = Costs { network: training(10.0), seeds, offers, ..Costs::default() };
    SystemState { train: Some(Score::new(1.0, 1000)), costs: Some(costs), ..shown }
}

/// An epoch with a seed in the shadow that could be judged.
fn shadowed(epoch: u64, cost: f64) -> SystemState {
    let shut = judged(seed(1, "a", SeedStage::Training, 2), SeedStage::Blending, false);
    priced(state(epoch, vec![shut], vec![slot("a", &[])]), [cost; 2])
}

/// where operations are known, the budget is of them, and not of epochs.
#[test]
fn looking_is_budgeted_in_operations_where_they_are_known() {
    let decided = |costs: [f64; 2]| {
        let slots = || vec![slot("a", &[("mlp", 10)]), slot("b", &[("mlp", 10)])];
        let states: Vec<_> = (18..=20).map(|epoch| priced(state(epoch, vec![], slots()), costs)).collect();
        let mut policy = tamiyo(config(SHORT));
        states.iter().map(|state| decide(&mut policy, state)).collect::<Vec<_>>().pop().unwrap()
    };
    let free = |costs| told(&decided(costs));
    // The shortest time is 2 epochs, and an audit passes over a tenth of the samples in each: 22, 26.4 and 22.
    assert_eq!(free([100.0, 100.0]), ["plateau: germinate mlp in a"]);
    assert_eq!(free([120.0, 100.0]), ["plateau: germinate mlp in b"]);
    assert_eq!(free([120.0, 120.0]), ["looking_spent"]);
    let detail = &decided([120.0, 120.0]).waiting[0].detail;
    assert!(detail.contains(", 0.0 reserved,"), "of no seed nothing is reserved: {detail}");

    let mut policy = tamiyo(config(SHORT));
    // 11 after the first epoch; another one makes 22, and a third one 33.
    assert_eq!(told(&decide(&mut policy, &shadowed(20, 100.0))).len(), 1, "there is room for another epoch");
    assert_eq!(told(&decide(&mut policy, &shadowed(21, 100.0)))[0], "looking_spent: cull seed-1");
}

/// Skipped steps are in no average, and cost what others do; so does an epoch whose decision came too late to count.
#[test]
fn what_was_looked_at_without_a_result_is_counted() {
    let mut policy = tamiyo(config(SHORT));
    let skipped = |epoch| SystemState {
        samples_per_epoch: Some(1000),
        train: Some(Score::new(1.0, 10)),
        ..shadowed(epoch, 100.0)
    };
    assert_eq!(told(&decide(&mut policy, &skipped(20))).len(), 1, "there is room for another epoch");
    assert_eq!(told(&decide(&mut policy, &skipped(21)))[0], "looking_spent: cull seed-1");
    // All of them were: there is no average.
    let mut policy = tamiyo(config(SHORT));
    decide(&mut policy, &shadowed(20, 60.0));
    let none = SystemState { train: None, samples_per_epoch: Some(1000), ..shadowed(21, 60.0) };
    assert_eq!(told(&decide(&mut policy, &none)).len(), 1, "there is room for another epoch");

    // 60 operations: 6.6 after the first epoch, and a third one would come to 19.8; with the one between that was not decided, a fourth
    // to 26.4.
    let second = |epoch| {
        let mut policy = tamiyo(config(SHORT));
        decide(&mut policy, &shadowed(20, 60.0));
        told(&decide(&mut policy, &shadowed(epoch, 60.0)))
    };
    assert_eq!(second(21).len(), 1, "there is room for another epoch");
    assert_eq!(second(22)[0], "looking_spent: cull seed-1");
}

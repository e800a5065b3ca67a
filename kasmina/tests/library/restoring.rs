//! Seeds that wait in a saved state, or for a library that another one takes the place of.

use kasmina::manager::LibraryConfig;
use leyline::durable::Durable as _;
use leyline::seed::SeedStage;

use crate::shelf::{Shelf, artifact, fresh, host, id, remove};
use crate::support::{Rig, config};

#[test]
fn a_restored_seed_that_waited_is_asked_for_again() {
    let mut shelf = Shelf::new(remove());
    let (seed, old) = shelf.waiting("hidden0", "mlp");
    let saved = shelf.rig.manager.save(&shelf.rig.eager).unwrap();

    // In the manager that saved: the request of before is taken back.
    shelf.rig.manager.restore(&mut shelf.rig.eager, &saved).unwrap();
    assert!(old.cancel.is_cancelled());
    assert_eq!(shelf.events("prefetch_canceled").len(), 1);
    assert_eq!(shelf.events("prefetch_requested").len(), 2);
    let call = shelf.call("mlp");
    shelf.check_requests([0, 0, 0, 1], 1);
    assert_eq!(shelf.of_seed("kasmina.seed.kernel_attached", seed), Some(0.0));
    call.answer();
    shelf.rig.end_step();
    assert!(!shelf.is_waiting(seed));
    assert_eq!(shelf.of_seed("kasmina.seed.kernel_attached", seed), Some(1.0));

    // In a new one.
    let mut other = Shelf::around(Rig::beside(config(host()), shelf.rig.eager), remove());
    other.rig.manager.restore(&mut other.rig.eager, &saved).unwrap();
    assert!(other.is_waiting(seed));
    other.check_requests([0; 4], 1);
    other.call("mlp").answer();
    other.rig.end_step();
    assert_eq!(other.weights(seed), artifact(&id("mlp")).weights().clone());
    other.check_one_event("prefetch_ready", seed, "");
}

#[test]
fn a_restored_seed_whose_weights_cannot_be_asked_for_is_given_up_by_the_rule() {
    let mut shelf = Shelf::new(remove());
    let (seed, _call) = shelf.waiting("hidden0", "mlp");
    let drawn = shelf.weights(seed);
    let saved = shelf.rig.manager.save(&shelf.rig.eager).unwrap();

    let mut alone = Rig::beside(config(host()), shelf.rig.eager);
    alone.manager.restore(&mut alone.eager, &saved).unwrap();
    assert_eq!(alone.stage(seed), Some(SeedStage::Pruned));
    assert_eq!(alone.recorder.events_named("prefetch_error").len(), 1);
    let moves = alone.end_epoch();
    assert_eq!(moves.iter().filter(|moved| moved.to == SeedStage::Pruned).count(), 1, "{moves:?}");
    assert!(moves[0].reason.contains("no library has its weights"), "{moves:?}");

    let library = LibraryConfig { blueprints: Some(vec![id("norm_mlp")]), ..fresh() };
    let mut other = Shelf::around(Rig::beside(config(host()), alone.eager), library);
    other.rig.manager.restore(&mut other.rig.eager, &saved).unwrap();
    assert!(!other.is_waiting(seed));
    assert_eq!(other.weights(seed), drawn);
    assert_eq!(other.of_seed("kasmina.seed.fallback_used", seed), Some(1.0));
    other.train(seed).unwrap();
}

#[test]
fn another_library_is_asked_for_what_seeds_wait_for() {
    let mut first = Shelf::new(remove());
    let (seed, old) = first.waiting("hidden0", "mlp");
    let mut second = Shelf::around(first.rig, remove());
    assert!(old.cancel.is_cancelled(), "nobody waits for the first library");
    assert_eq!(second.events("prefetch_canceled").len(), 1);
    second.check_requests([0, 0, 0, 1], 1);
    second.call("mlp").answer();
    second.rig.end_step();
    assert!(!second.is_waiting(seed));
}

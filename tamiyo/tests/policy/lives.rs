//! Whole runs in a scripted world: helpful seeds stay, others go, and nothing half-grown is left.

use crate::support::{config, decide, restore, save, tamiyo};
use crate::world::{Fate, World};

const SHORT: &str = r#"{"heuristic":{
    "germination":{"min_epoch":3},
    "training":{"min_epochs":5,"max_epochs":10},
    "blending":{"ramp_epochs":3},
    "holding":{"min_epochs":4,"max_epochs":6},
    "looking":{"max_share":1.0,"max_tries":1000}}}"#;

/// The last boundary at which the world obeys is the one after `last_boundary` epochs.
fn live(world_seed: u64, num_epochs: u64, last_boundary: u64) -> World {
    let mut policy = tamiyo(config(SHORT));
    let mut world = World::new(world_seed, num_epochs);
    while let Some(state) = world.next_state() {
        let decision = decide(&mut policy, &state);
        if state.epoch.0 <= last_boundary {
            world.obey(&decision);
        }
    }
    world
}

fn count(fates: &[Fate], blueprint: &str, fossilized: bool) -> usize {
    fates.iter().filter(|fate| fate.blueprint == blueprint && fate.fossilized == fossilized).count()
}

#[test]
fn helpful_seeds_stay_harmful_ones_always_go_and_useless_ones_nearly_always() {
    let worlds: Vec<World> = (0..60).map(|world_seed| live(world_seed, 120, 120)).collect();
    let fates: Vec<Fate> = worlds.iter().flat_map(|world| world.fates.clone()).collect();

    let (kept, lost) = (count(&fates, "helpful", true), count(&fates, "helpful", false));
    assert!(kept > 60, "{kept} helpful seeds became permanent, {lost} were culled");
    assert!(kept * 4 > (kept + lost) * 3, "{kept} helpful seeds became permanent, {lost} were culled");

    assert_eq!(count(&fates, "noise", true), 0);
    assert!(count(&fates, "noise", false) > 60, "the harmful blueprint was never tried");

    // A gain of 0 passes a one-sided bound of 1.645 standard errors in one of twenty cases, and a little more often
    // because it is looked at every epoch.
    let (kept, lost) = (count(&fates, "useless", true), count(&fates, "useless", false));
    assert!(lost > 60 && kept * 8 < kept + lost, "{kept} useless seeds became permanent, {lost} were culled");

    for world in &worlds {
        assert_eq!((world.num_live(), world.num_refused), (0, 0));
        assert!(world.saved_loss() > 0.0, "growth did not pay: {:?}", world.fates);
    }
}

#[test]
fn a_run_of_any_length_ends_without_half_grown_seeds() {
    for num_epochs in 1..70 {
        // A command after the last epoch may find nobody to obey, so none may be needed.
        for last_boundary in [num_epochs, num_epochs - 1] {
            let world = live(num_epochs, num_epochs, last_boundary);
            assert_eq!((world.num_live(), world.num_refused), (0, 0), "{num_epochs} epochs");
            assert_eq!(count(&world.fates, "noise", true), 0, "{num_epochs} epochs");
        }
    }
}

#[test]
fn a_run_that_is_interrupted_goes_on_as_if_it_was_not() {
    let mut whole = tamiyo(config(SHORT));
    let mut parts = tamiyo(config(SHORT));
    let mut world = World::new(5, 120);
    while let Some(state) = world.next_state() {
        let saved = save(&parts);
        parts = tamiyo(config(SHORT));
        restore(&mut parts, &saved).unwrap();
        let decision = decide(&mut whole, &state);
        assert_eq!(decide(&mut parts, &state), decision, "epoch {}", state.epoch);
        world.obey(&decision);
    }
    assert!(world.fates.len() > 5, "too little happened to compare: {:?}", world.fates);
}

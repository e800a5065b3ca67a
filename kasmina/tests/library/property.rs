//! Whatever happens in whatever order: each request has one answer, one event and one count.

use std::collections::BTreeMap;
use std::time::Duration;

use esper_weights::{Artifact, BreakerConfig, PrefetchConfig, StoreError};
use kasmina::KasminaConfig;
use kasmina::manager::{LibraryConfig, OnFailure};
use leyline::command::Operation;
use leyline::durable::Durable as _;
use leyline::id::{BlueprintId, SeedId};
use leyline::seed::SeedManager as _;
use proptest::prelude::*;

use crate::shelf::{ANSWERS, Call, SLOTS, Shelf, WATCHDOG, artifact, fitting, host, id, io_error, remove};
use crate::support::{Rig, config, slot};

#[derive(Debug, Clone)]
enum Act {
    Germinate(usize),
    Answer(usize),
    Misfit(usize),
    Fail(usize),
    Cull(usize),
    Pause(usize),
    Pass(u64),
    EndStep,
    EndEpoch,
    Restore,
    Cleanup,
}

fn act() -> impl Strategy<Value = Act> {
    let at = || 0..SLOTS.len();
    prop_oneof![
        6 => at().prop_map(Act::Germinate),
        4 => at().prop_map(Act::Answer),
        1 => at().prop_map(Act::Misfit),
        2 => at().prop_map(Act::Fail),
        2 => at().prop_map(Act::Cull),
        1 => at().prop_map(Act::Pause),
        2 => (0..900_u64).prop_map(Act::Pass),
        4 => Just(Act::EndStep),
        4 => Just(Act::EndEpoch),
        1 => Just(Act::Restore),
        1 => Just(Act::Cleanup),
    ]
}

/// A shelf with one blueprint per slot, so that each accepted request is one fetch.
struct Play {
    shelf: Shelf,
    calls: BTreeMap<usize, Call>,
    num_fetches: u64,
}

impl Play {
    const BLUEPRINTS: [&str; 3] = ["mlp", "norm_mlp", "noise"];

    fn new(on_failure: OnFailure) -> Self {
        let breaker = BreakerConfig { failures: 1_000, ..BreakerConfig::default() };
        let prefetch = PrefetchConfig { cache_bytes: 0, breaker, ..PrefetchConfig::default() };
        let library = LibraryConfig { on_failure, prefetch, ..remove() };
        let rig = Rig::new(KasminaConfig { embargo_epochs: 0, ..config(host()) });
        Self { shelf: Shelf::around(rig, library), calls: BTreeMap::new(), num_fetches: 0 }
    }

    fn occupant(&self, at: usize) -> Option<SeedId> {
        let slots = self.shelf.rig.manager.export_slot_states(&self.shelf.rig.eager).unwrap();
        slots.iter().find(|state| state.slot == slot(SLOTS[at])).unwrap().occupant
    }

    fn expect_call(&mut self, at: usize) {
        // An older one that hangs gives its worker back.
        self.calls.remove(&at);
        self.calls.insert(at, self.shelf.call(Self::BLUEPRINTS[at]));
        self.num_fetches += 1;
    }

    fn reply(&mut self, at: usize, answer: impl FnOnce(&BlueprintId) -> Result<Artifact, StoreError>) {
        if let Some(call) = self.calls.remove(&at) {
            let answer = answer(&call.blueprint);
            call.reply(answer);
        }
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Germinate(at) if self.occupant(at).is_none() => {
                self.shelf.rig.germinate(SLOTS[at], Self::BLUEPRINTS[at]);
                self.expect_call(at);
            }
            Act::Germinate(_) => {}
            Act::Answer(at) => self.reply(at, |blueprint| {
                // What fits is as different as the blueprints: only that of an `mlp` is played.
                if *blueprint == id("mlp") { Ok(artifact(blueprint)) } else { Err(StoreError::Missing) }
            }),
            Act::Misfit(at) => self.reply(at, |blueprint| Artifact::from_tensors(blueprint.clone(), &fitting()[1..])),
            Act::Fail(at) => self.reply(at, |_| Err(io_error())),
            Act::Cull(at) => {
                if let Some(seed) = self.occupant(at) {
                    // Refused where it is removed already.
                    self.shelf.rig.send(Operation::Cull { seed }).ok();
                }
            }
            Act::Pause(at) => {
                if let Some(seed) = self.occupant(at) {
                    self.shelf.rig.send(Operation::Pause { seed }).ok();
                }
            }
            Act::Pass(ms) => self.shelf.rig.clock.advance(Duration::from_millis(ms)),
            Act::EndStep => self.shelf.rig.end_step(),
            Act::EndEpoch => drop(self.shelf.rig.end_epoch()),
            Act::Restore => {
                let saved = self.shelf.rig.manager.save(&self.shelf.rig.eager).unwrap();
                let waiting: Vec<usize> = (0..SLOTS.len())
                    .filter(|&at| self.occupant(at).is_some_and(|seed| self.shelf.is_waiting(seed)))
                    .collect();
                self.shelf.rig.manager.restore(&mut self.shelf.rig.eager, &saved).unwrap();
                // In the order of the seeds, not of the slots.
                let mut begun: BTreeMap<BlueprintId, Call> = BTreeMap::new();
                for _ in &waiting {
                    let call = self.shelf.calls.recv_timeout(WATCHDOG).expect("a fetch begins");
                    begun.insert(call.blueprint.clone(), call);
                }
                for at in waiting {
                    self.calls.insert(at, begun.remove(&id(Self::BLUEPRINTS[at])).expect("each is fetched"));
                    self.num_fetches += 1;
                }
            }
            Act::Cleanup => self.shelf.rig.manager.emergency_cleanup(&mut self.shelf.rig.eager).unwrap(),
        }
    }

    /// What holds at the end of a step whatever came before.
    fn check(&mut self) {
        self.shelf.rig.end_step();
        let shelf = &self.shelf;
        let waiting = shelf.rig.states().iter().filter(|state| state.weights_pending).count() as u64;
        let statuses = ["ready", "error", "timeout", "canceled"].map(|status| shelf.requests(status));
        assert_eq!(shelf.requests("scheduled"), statuses.iter().sum::<u64>() + waiting);
        assert_eq!(shelf.gauge("kasmina.prefetch.inflight"), Some(waiting as f64), "who waits has a request");
        assert_eq!(shelf.requests("scheduled"), self.num_fetches, "the store saw each request");
        let events = ANSWERS.map(|name| shelf.events(name).len() as u64);
        let [ready, misfits, errors, timeouts, canceled] = events;
        // What was answered and then not wanted any more is counted as answered, and its event says that nobody waits.
        let unwanted = canceled - statuses[3];
        let unused = statuses[0] - (ready + misfits) + (statuses[1] - errors) + (statuses[2] - timeouts);
        assert_eq!(unused, unwanted, "an event for each answer: {events:?} {statuses:?}");
        assert_eq!(shelf.events("prefetch_requested").len() as u64, events.iter().sum::<u64>() + waiting);
        let fallbacks = shelf.rig.recorder.counter_value("kasmina.fallback.events_total", &[]).unwrap();
        assert_eq!(fallbacks, shelf.events("fallback_applied").len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_request_is_answered_by_exactly_one_event_and_counted_once(
        is_fresh in any::<bool>(),
        acts in proptest::collection::vec(act(), 1..50),
    ) {
        let mut play = Play::new(if is_fresh { OnFailure::Fresh } else { OnFailure::Remove });
        for act in &acts {
            play.act(act);
        }
        play.check();
        for act in &acts {
            play.act(act);
            play.check();
        }
    }
}

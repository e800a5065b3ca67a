//! Prefetch as its callers see it: one fetch for all, deadlines, cancellation, faults of the store, and nothing blocks.
//!
//! The stores here are played by the test through channels: a fetch is reported when it begins and ends when the test
//! says so, so that nothing depends on how fast a thread is.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod hangs;
mod rig;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use crossbeam::channel::{bounded, unbounded};
use esper_weights::{
    Artifact, BreakerConfig, BreakerState, CancelToken, HostTensor, KernelStore, Outcome, Poll, PrefetchConfig,
    PrefetchError, Prefetcher, StoreError,
};
use leyline::clock::SystemClock;
use leyline::id::BlueprintId;
use leyline_testkit::clock::ManualClock;
use rig::{
    Answer, Call, PlayedStore, Rig, WATCHDOG, artifact, assert_breaker_open, assert_timed_out, id, io_error, ms,
    must_return,
};

#[test]
fn thirty_two_threads_that_ask_for_one_blueprint_cause_one_fetch() {
    let rig = Rig::workers(6);
    let start = Barrier::new(32);
    let (prefetcher, clock) = (&rig.prefetcher, &rig.clock);
    thread::scope(|scope| {
        let (asked, everybody) = bounded(32);
        for _ in 0..32 {
            let (asked, start) = (asked.clone(), &start);
            scope.spawn(move || {
                start.wait();
                let ticket = prefetcher.request(&id("mlp")).unwrap();
                asked.send(()).unwrap();
                let outcome = prefetcher.wait(&ticket, WATCHDOG);
                assert!(matches!(&outcome, Outcome::Ready(found) if *found == artifact("mlp")), "{outcome:?}");
            });
        }
        let call = rig.call("mlp");
        for _ in 0..32 {
            everybody.recv_timeout(WATCHDOG).unwrap();
        }
        clock.advance(ms(7));
        call.answer();
    });
    let stats = rig.prefetcher.stats();
    assert_eq!((stats.scheduled, stats.ready, stats.inflight, stats.cache_misses), (32, 32, 0, 32));
    assert_eq!((stats.latency_mean_ms, stats.latency_last_ms), (Some(7.0), Some(7.0)));
    assert!(rig.calls.is_empty(), "there was a second fetch");
    assert_eq!(rig.cached(), [artifact("mlp")]);
}

#[test]
fn a_deadline_that_passed_is_decided_once_and_a_late_answer_changes_nothing() {
    let rig = Rig::workers(1);
    let ticket = rig.prefetcher.request(&id("mlp")).unwrap();
    let call = rig.call("mlp");
    rig.clock.advance(ms(999));
    assert!(matches!(rig.prefetcher.poll(&ticket), Poll::Pending));
    assert!(!call.cancel.is_cancelled());
    rig.clock.advance(ms(1));
    assert_timed_out(&rig.prefetcher.poll(&ticket), 1_000);
    assert!(call.cancel.is_cancelled(), "nobody waits any more");
    call.answer();
    let other = rig.prefetcher.request(&id("conv")).unwrap();
    let call = rig.call("conv");
    assert_timed_out(&rig.prefetcher.poll(&ticket), 1_000);
    assert_eq!(rig.cached(), [], "the late answer is not kept");
    call.answer();
    assert!(matches!(rig.prefetcher.wait(&other, WATCHDOG), Outcome::Ready(_)));
    rig.succeed("mlp");
    assert_timed_out(&rig.prefetcher.poll(&ticket), 1_000);
    let stats = rig.prefetcher.stats();
    assert_eq!((stats.scheduled, stats.ready, stats.timeout, stats.canceled), (3, 2, 1, 0));
}

#[test]
fn every_ticket_of_a_flight_has_its_own_deadline() {
    let rig = Rig::workers(1);
    let hasty = rig.prefetcher.request_within(&id("mlp"), ms(100)).unwrap();
    let patient = rig.prefetcher.request_within(&id("mlp"), ms(500)).unwrap();
    let call = rig.call("mlp");
    rig.clock.advance(ms(100));
    assert_timed_out(&rig.prefetcher.poll(&hasty), 100);
    assert!(matches!(rig.prefetcher.poll(&patient), Poll::Pending));
    assert!(!call.cancel.is_cancelled());
    call.answer();
    assert!(matches!(rig.prefetcher.wait(&patient, WATCHDOG), Outcome::Ready(_)));
    assert_timed_out(&rig.prefetcher.poll(&hasty), 100);
    assert_eq!(rig.cached(), [artifact("mlp")]);
}

#[test]
fn a_flight_past_its_own_deadline_takes_nobody_on_board() {
    let rig = Rig::workers(2);
    let first = rig.prefetcher.request(&id("mlp")).unwrap();
    let hung = rig.call("mlp");
    rig.clock.advance(ms(999));
    let second = rig.prefetcher.request(&id("mlp")).unwrap();
    rig.clock.advance(ms(1));
    let third = rig.prefetcher.request(&id("mlp")).unwrap();
    // The second holds the hung flight; the third has one of its own.
    let call = rig.call("mlp");
    assert_timed_out(&rig.prefetcher.poll(&first), 1_000);
    assert!(!hung.cancel.is_cancelled());
    call.answer();
    assert!(matches!(rig.prefetcher.wait(&third, WATCHDOG), Outcome::Ready(_)));
    assert!(matches!(rig.prefetcher.poll(&second), Poll::Pending));
    rig.clock.advance(ms(999));
    assert_timed_out(&rig.prefetcher.poll(&second), 1_000);
    assert!(hung.cancel.is_cancelled());
}

#[test]
fn a_request_cancelled_before_its_fetch_begins_is_never_fetched() {
    let rig = Rig::workers(1);
    let first = rig.prefetcher.request(&id("mlp")).unwrap();
    let call = rig.call("mlp");
    let waiting = rig.prefetcher.request(&id("conv")).unwrap();
    assert_eq!(rig.prefetcher.stats().queued, 1);
    rig.prefetcher.cancel(waiting);
    let stats = rig.prefetcher.stats();
    assert_eq!((stats.queued, stats.canceled, stats.inflight), (0, 1, 1));
    let last = rig.prefetcher.request(&id("norm")).unwrap();
    call.answer();
    rig.call("norm").answer();
    for ticket in [first, last] {
        assert!(matches!(rig.prefetcher.wait(&ticket, WATCHDOG), Outcome::Ready(_)));
    }
    assert!(rig.calls.is_empty());
}

#[test]
fn a_fetch_is_cancelled_when_the_last_who_waits_is_gone_and_brings_nothing() {
    let rig = Rig::workers(1);
    let [first, second] = [(), ()].map(|()| rig.prefetcher.request(&id("mlp")).unwrap());
    let call = rig.call("mlp");
    rig.prefetcher.cancel(first);
    assert!(!call.cancel.is_cancelled());
    drop(second);
    assert!(call.cancel.is_cancelled());
    // A request after the cancellation does not join the dying fetch.
    let third = rig.prefetcher.request(&id("mlp")).unwrap();
    call.answer();
    let call = rig.call("mlp");
    assert_eq!(rig.cached(), [], "the cancelled fetch is not kept");
    call.answer();
    assert!(matches!(rig.prefetcher.wait(&third, WATCHDOG), Outcome::Ready(_)));
    assert_eq!(rig.prefetcher.stats().canceled, 2);
}

#[test]
fn cancelling_after_the_decision_takes_nothing_back() {
    let rig = Rig::workers(1);
    let ticket = rig.prefetcher.request(&id("mlp")).unwrap();
    rig.call("mlp").answer();
    assert!(matches!(rig.prefetcher.wait(&ticket, WATCHDOG), Outcome::Ready(_)));
    rig.prefetcher.cancel(ticket);
    let stats = rig.prefetcher.stats();
    assert_eq!((stats.ready, stats.canceled, stats.cache_entries), (1, 0, 1));
}

#[test]
fn every_fault_of_a_store_is_a_typed_error_and_the_worker_lives_on() {
    let breaker = BreakerConfig { failures: 100, ..BreakerConfig::default() };
    let rig = Rig::new(PrefetchConfig { concurrency: 1, breaker, ..PrefetchConfig::default() });
    type Check = fn(&PrefetchError) -> bool;
    let integrity = || StoreError::Integrity { expected: [1; 32], found: [2; 32] };
    let no_safetensors = || Artifact::new(id("mlp"), &b"PK\x03\x04"[..]).unwrap_err();
    let faults: [(Answer, Check); 8] = [
        (Answer::Give(Err(io_error())), |e| matches!(e, PrefetchError::Store(StoreError::Io(_)))),
        (Answer::Give(Err(StoreError::Missing)), |e| matches!(e, PrefetchError::Store(StoreError::Missing))),
        (Answer::Give(Err(integrity())), |e| matches!(e, PrefetchError::Store(StoreError::Integrity { .. }))),
        (Answer::Give(Err(no_safetensors())), |e| matches!(e, PrefetchError::Store(StoreError::Format(_)))),
        (Answer::Give(Err(StoreError::Cancelled)), |e| matches!(e, PrefetchError::Store(StoreError::Cancelled))),
        (Answer::Panic, |e| matches!(e, PrefetchError::StorePanicked { message } if message == "the store has a bug")),
        (
            Answer::Give(Ok(artifact("conv"))),
            |e| matches!(e, PrefetchError::WrongArtifact { expected, found } if *expected == id("mlp") && *found == id("conv")),
        ),
        (Answer::Panic, |e| e.to_string() == "the store panicked: the store has a bug"),
    ];
    for (index, (answer, check)) in faults.into_iter().enumerate() {
        match rig.round("mlp", answer) {
            Outcome::Failed(error) => assert!(check(&error), "fault {index}: {error:?}"),
            outcome => panic!("fault {index}: {outcome:?}"),
        }
        assert_eq!(rig.cached(), [], "fault {index} left something in the cache");
    }
    rig.succeed("mlp");
    let stats = rig.prefetcher.stats();
    assert_eq!((stats.scheduled, stats.error, stats.ready, stats.fetching), (9, 8, 1, 0));
}

#[test]
fn requests_and_polls_return_while_every_worker_hangs() {
    let breaker = BreakerConfig { failures: 100, ..BreakerConfig::default() };
    let rig = Rig::new(PrefetchConfig { concurrency: 2, queue: 2, breaker, ..PrefetchConfig::default() });
    let tickets = ["a", "b"].map(|name| rig.prefetcher.request(&id(name)).unwrap());
    let hung: Vec<Call> = (0..2).map(|_| rig.calls.recv_timeout(WATCHDOG).unwrap()).collect();
    let rig = must_return("a call beside hanging workers", move || {
        let prefetcher = &rig.prefetcher;
        let waiting = ["c", "d"].map(|name| prefetcher.request(&id(name)).unwrap());
        let refused = prefetcher.request(&id("e")).map(drop);
        assert!(matches!(refused, Err(PrefetchError::QueueFull { limit: 2 })), "{refused:?}");
        let joined = prefetcher.request(&id("a")).unwrap();
        for ticket in tickets.iter().chain(&waiting).chain([&joined]) {
            assert!(matches!(prefetcher.poll(ticket), Poll::Pending));
        }
        prefetcher.cancel(joined);
        assert!(matches!(prefetcher.wait(&waiting[0], ms(1)), Outcome::StillPending));
        rig.clock.advance(ms(1_000));
        for ticket in tickets.iter().chain(&waiting) {
            assert_timed_out(&prefetcher.poll(ticket), 1_000);
        }
        assert_eq!((prefetcher.expire(), prefetcher.clear(), prefetcher.cached().len()), (0, 0, 0));
        rig
    });
    let stats = rig.prefetcher.stats();
    assert_eq!((stats.timeout, stats.canceled, stats.refused_queue_full), (4, 1, 1));
    assert_eq!((stats.inflight, stats.queued, stats.fetching), (0, 0, 2), "the queue is free again");
    assert!(hung.iter().all(|call| call.cancel.is_cancelled()));
    assert_eq!(stats.breaker_failures, 2, "the two that never began say nothing about the store");
    // One worker comes back and serves again.
    hung.into_iter().next().unwrap().answer();
    rig.succeed("f");
}

#[test]
fn dropping_the_prefetcher_does_not_wait_for_a_store_that_hangs() {
    let Rig { prefetcher, clock, calls } = Rig::workers(2);
    let hanging = prefetcher.request(&id("mlp")).unwrap();
    let call = calls.recv_timeout(WATCHDOG).unwrap();
    must_return("the drop", || drop(prefetcher));
    assert!(call.cancel.is_cancelled());
    assert_eq!(hanging.blueprint(), &id("mlp"));
    must_return("the drop of a ticket left over", || drop(hanging));
    call.answer();
    // The store goes with the last worker: all of them came home, the one that hung included.
    assert!(calls.recv_timeout(WATCHDOG).is_err_and(|error| error.is_disconnected()), "a worker is still there");
    drop(clock);
}

/// Works for some fetches, then fails for good.
#[derive(Debug)]
struct KilledStore {
    num_fetches: AtomicU64,
    killed_after: u64,
}

impl KernelStore for KilledStore {
    fn fetch(&self, blueprint: &BlueprintId, _: &CancelToken) -> Result<Artifact, StoreError> {
        if self.num_fetches.fetch_add(1, Ordering::SeqCst) >= self.killed_after {
            return Err(io_error());
        }
        Ok(artifact(blueprint.as_str()))
    }
}

#[test]
fn a_store_killed_in_the_middle_leaves_no_ticket_hanging_and_nothing_wrong_behind() {
    let store = Arc::new(KilledStore { num_fetches: AtomicU64::new(0), killed_after: 20 });
    let clock = Arc::new(ManualClock::default());
    let config = PrefetchConfig { concurrency: 4, ..PrefetchConfig::default() };
    let prefetcher = Prefetcher::new(Arc::clone(&store) as Arc<dyn KernelStore>, config, clock).unwrap();
    let names: Vec<String> = (0..100).map(|n| format!("b{n}")).collect();
    let tickets: Vec<_> = names.iter().map(|name| prefetcher.request(&id(name))).collect();
    let (mut ready, mut errors, mut refused) = (BTreeSet::new(), 0, 0);
    for (name, ticket) in names.iter().zip(tickets) {
        match ticket.map(|ticket| prefetcher.wait(&ticket, WATCHDOG)) {
            Ok(Outcome::Ready(found)) => {
                assert_eq!(found, artifact(name));
                ready.insert(name.clone());
            }
            Ok(Outcome::Failed(PrefetchError::Store(StoreError::Io(_)))) => errors += 1,
            Err(PrefetchError::BreakerOpen { .. }) | Ok(Outcome::Failed(PrefetchError::BreakerOpen { .. })) => {
                refused += 1
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    assert_eq!(ready.len(), 20);
    // Three in a row open the breaker. Each of three other workers may bring a success late that starts the row anew,
    // after two failures, and may be inside the store when it opens.
    assert!((3..=3 + 3 * 2 + 3).contains(&errors), "{errors} fetches failed");
    assert_eq!(refused, 80 - errors);
    let kept: BTreeSet<String> = prefetcher.cached().iter().map(|kept| kept.blueprint().to_string()).collect();
    assert_eq!(kept, ready);
    assert!(prefetcher.cached().iter().all(|kept| *kept == artifact(kept.blueprint().as_str())));
    assert_eq!(store.num_fetches.load(Ordering::SeqCst), 20 + errors, "a refused request reached the store");
    assert_eq!(prefetcher.stats().breaker_state, BreakerState::Open);
}

#[test]
fn three_failures_open_the_breaker_and_what_is_cached_is_still_served() {
    let rig = Rig::workers(1);
    rig.succeed("kept");
    for name in ["a", "b", "c"] {
        rig.fail(name);
    }
    let refused = rig.prefetcher.request(&id("d"));
    assert_breaker_open(refused.map(drop), 30_000);
    let hit = rig.prefetcher.request(&id("kept")).unwrap();
    assert!(matches!(rig.prefetcher.poll(&hit), Poll::Ready(found) if found == artifact("kept")));
    rig.clock.advance(ms(29_999));
    assert_breaker_open(rig.prefetcher.request(&id("d")).map(drop), 1);
    // One failure of a trial opens it for as long again.
    rig.clock.advance(ms(1));
    rig.fail("d");
    assert_breaker_open(rig.prefetcher.request(&id("d")).map(drop), 30_000);
    rig.clock.advance(ms(30_000));
    rig.succeed("d");
    assert_eq!(rig.prefetcher.stats().breaker_state, BreakerState::HalfOpen);
    rig.succeed("e");
    let stats = rig.prefetcher.stats();
    assert_eq!((stats.breaker_state, stats.breaker_failures, stats.refused_breaker_open), (BreakerState::Closed, 0, 3));
}

#[test]
fn what_the_store_does_not_have_does_not_open_the_breaker() {
    let rig = Rig::workers(1);
    for _ in 0..10 {
        let outcome = rig.round("mlp", Answer::Give(Err(StoreError::Missing)));
        assert!(matches!(outcome, Outcome::Failed(PrefetchError::Store(StoreError::Missing))), "{outcome:?}");
    }
    let stats = rig.prefetcher.stats();
    assert_eq!((stats.breaker_state, stats.breaker_failures, stats.error), (BreakerState::Closed, 0, 10));
}

#[test]
fn fetches_that_wait_while_the_breaker_opens_do_not_reach_the_store() {
    let rig = Rig::workers(1);
    let names = ["a", "b", "c", "d", "e"];
    let tickets = names.map(|name| rig.prefetcher.request(&id(name)).unwrap());
    for name in ["a", "b", "c"] {
        rig.call(name).fail();
    }
    for ticket in &tickets[3..] {
        let outcome = rig.prefetcher.wait(ticket, WATCHDOG);
        assert!(matches!(outcome, Outcome::Failed(PrefetchError::BreakerOpen { .. })), "{outcome:?}");
    }
    assert!(rig.calls.is_empty());
}

#[test]
fn a_store_that_hangs_opens_the_breaker_by_its_deadlines() {
    let rig = Rig::workers(3);
    let tickets = ["a", "b", "c"].map(|name| rig.prefetcher.request(&id(name)).unwrap());
    let hung: Vec<Call> = (0..3).map(|_| rig.calls.recv_timeout(WATCHDOG).unwrap()).collect();
    rig.clock.advance(ms(1_000));
    assert_breaker_open(rig.prefetcher.request(&id("d")).map(drop), 30_000);
    for ticket in &tickets {
        assert_timed_out(&rig.prefetcher.poll(ticket), 1_000);
    }
    drop(hung);
}

#[test]
fn a_hit_is_ready_at_once_and_needs_no_worker() {
    let rig = Rig::workers(1);
    rig.succeed("mlp");
    let _hanging = rig.prefetcher.request(&id("conv")).unwrap();
    let hung = rig.call("conv");
    let hit = rig.prefetcher.request(&id("mlp")).unwrap();
    assert!(matches!(rig.prefetcher.poll(&hit), Poll::Ready(found) if found == artifact("mlp")));
    assert!(matches!(rig.prefetcher.wait(&hit, Duration::ZERO), Outcome::Ready(_)));
    let stats = rig.prefetcher.stats();
    assert_eq!((stats.cache_hits, stats.cache_misses, stats.cache_hit_rate()), (1, 2, Some(1.0 / 3.0)));
    assert_eq!((stats.scheduled, stats.ready, stats.inflight), (3, 2, 1));
    drop(hung);
}

#[test]
fn the_cache_keeps_to_its_bytes_and_its_time() {
    let size = artifact("a").num_bytes();
    let rig = Rig::new(PrefetchConfig { cache_bytes: 2 * size, ..PrefetchConfig::default() });
    for name in ["a", "b"] {
        rig.succeed(name);
    }
    drop(rig.prefetcher.request(&id("a")).unwrap());
    rig.succeed("c");
    assert_eq!(rig.cached(), [artifact("a"), artifact("c")], "the least recently used one went");
    let stats = rig.prefetcher.stats();
    assert_eq!((stats.cache_bytes, stats.cache_evictions), (2 * size, 1));
    rig.clock.advance(ms(299_999));
    assert_eq!(rig.prefetcher.expire(), 0);
    rig.clock.advance(ms(1));
    assert_eq!(rig.prefetcher.expire(), 2);
    let large = HostTensor { name: "w".into(), shape: vec![1_000], values: vec![1.0; 1_000] };
    let large = Artifact::from_tensors(id("large"), &[large]).unwrap();
    let outcome = rig.round("large", Answer::Give(Ok(large.clone())));
    assert!(matches!(outcome, Outcome::Ready(found) if found == large), "it is handed out");
    assert_eq!(rig.cached(), [], "and not kept");
}

#[test]
fn clearing_cancels_everything_and_nothing_begun_before_enters_afterwards() {
    let rig = Rig::workers(1);
    rig.succeed("kept");
    let begun = rig.prefetcher.request(&id("a")).unwrap();
    let call = rig.call("a");
    let queued = rig.prefetcher.request(&id("b")).unwrap();
    assert_eq!(rig.prefetcher.clear(), 1);
    for ticket in [&begun, &queued] {
        assert!(matches!(rig.prefetcher.poll(ticket), Poll::Failed(PrefetchError::Cancelled)));
    }
    assert!(call.cancel.is_cancelled());
    call.answer();
    rig.succeed("c");
    assert_eq!(rig.cached(), [artifact("c")]);
    assert!(matches!(rig.prefetcher.poll(&begun), Poll::Failed(PrefetchError::Cancelled)));
    let stats = rig.prefetcher.stats();
    assert_eq!((stats.canceled, stats.queued, stats.cache_evictions), (2, 0, 0));
}

#[test]
fn waiting_ends_at_the_deadline_of_a_running_clock() {
    let (sender, calls) = unbounded();
    let store = Arc::new(PlayedStore { calls: sender });
    let config = PrefetchConfig { deadline_ms: 20, ..PrefetchConfig::default() };
    let prefetcher = Prefetcher::new(store, config, Arc::new(SystemClock::new())).unwrap();
    let ticket = prefetcher.request(&id("mlp")).unwrap();
    let outcome = prefetcher.wait(&ticket, WATCHDOG);
    assert!(matches!(outcome, Outcome::Failed(PrefetchError::TimedOut { deadline_ms: 20 })), "{outcome:?}");
    drop(calls);
}

#[test]
fn a_ticket_of_another_prefetcher_is_refused() {
    let (one, other) = (Rig::workers(1), Rig::workers(1));
    let ticket = one.prefetcher.request(&id("mlp")).unwrap();
    assert!(matches!(other.prefetcher.poll(&ticket), Poll::Failed(PrefetchError::ForeignTicket)));
    let outcome = other.prefetcher.wait(&ticket, WATCHDOG);
    assert!(matches!(outcome, Outcome::Failed(PrefetchError::ForeignTicket)), "{outcome:?}");
}

#[test]
fn an_unusable_configuration_is_refused_with_every_issue() {
    let store = Arc::new(KilledStore { num_fetches: AtomicU64::new(0), killed_after: 0 });
    let config = PrefetchConfig { concurrency: 0, queue: 0, ..PrefetchConfig::default() };
    let error = Prefetcher::new(store, config, Arc::new(ManualClock::default())).unwrap_err();
    let expected = "`prefetch.concurrency` is 0: expected 1 to 256; `prefetch.queue` is 0: expected 1 to 65536";
    assert_eq!(error.to_string(), expected);
}

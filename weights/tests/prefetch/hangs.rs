//! Stores that never answer: their threads are given up and replaced, up to a bound, and the breaker is told.

use std::thread;
use std::time::Duration;

use esper_weights::{BreakerConfig, BreakerState, Outcome, PrefetchConfig, PrefetchError};

use crate::rig::{Call, Rig, WATCHDOG, assert_breaker_open, assert_timed_out, id, ms, must_return};

/// Requests until one succeeds, while the store answers nothing for as long as `hangs` says; `None` when none does within
/// the bound. What hangs stays in `hung` and is never answered.
fn heal(rig: &Rig, hangs: usize, hung: &mut Vec<Call>) -> Option<usize> {
    for round in 0..hangs + 10 {
        match rig.prefetcher.request(&id(&format!("b{round}"))) {
            Ok(ticket) => {
                // A fetch that no thread begins in a second is begun by nobody.
                let Ok(call) = rig.calls.recv_timeout(Duration::from_secs(1)) else { return None };
                if hung.len() >= hangs {
                    call.answer();
                    assert!(matches!(rig.prefetcher.wait(&ticket, WATCHDOG), Outcome::Ready(_)));
                    return Some(round);
                }
                hung.push(call);
                rig.clock.advance(ms(1_000));
                assert_timed_out(&rig.prefetcher.poll(&ticket), 1_000);
            }
            Err(PrefetchError::BreakerOpen { retry_in_ms }) => rig.clock.advance(ms(retry_in_ms)),
            Err(error) => panic!("{error}"),
        }
    }
    None
}

#[test]
fn a_store_that_never_answered_serves_again_once_it_does() {
    for hangs in [0, 1, 2, 3, 7] {
        let rig = Rig::workers(2);
        let mut hung = Vec::new();
        let healed = must_return("healing", move || {
            let round = heal(&rig, hangs, &mut hung);
            (round.map(|_| rig.prefetcher.stats()), rig, hung)
        });
        let (stats, rig, hung) = healed;
        let stats = stats.unwrap_or_else(|| panic!("after {hangs} fetches that hang nobody fetches any more"));
        assert_eq!((stats.ready, stats.timeout, stats.abandoned), (1, hangs as u64, hangs as u64));
        // Trusted again after as many successes as after any other failure.
        if stats.breaker_state == BreakerState::HalfOpen {
            rig.succeed("trial");
        }
        let state = rig.prefetcher.stats().breaker_state;
        assert_eq!(state, BreakerState::Closed, "after {hangs}");
        must_return("the drop", move || drop(rig));
        drop(hung);
    }
}

#[test]
fn a_trial_that_hangs_opens_the_breaker_again() {
    let rig = Rig::workers(1);
    for name in ["a", "b", "c"] {
        rig.fail(name);
    }
    rig.clock.advance(ms(30_000));
    let tickets = ["d", "e"].map(|name| rig.prefetcher.request(&id(name)).unwrap());
    let hung = rig.call("d");
    assert_eq!(rig.prefetcher.stats().breaker_state, BreakerState::HalfOpen);
    rig.clock.advance(ms(1_000));
    for ticket in &tickets {
        assert_timed_out(&rig.prefetcher.poll(ticket), 1_000);
    }
    assert_breaker_open(rig.prefetcher.request(&id("f")).map(drop), 30_000);
    drop(hung);
}

#[test]
fn threads_that_hang_are_replaced_up_to_a_bound_and_then_it_says_so() {
    let breaker = BreakerConfig { failures: 1_000, ..BreakerConfig::default() };
    let rig = Rig::new(PrefetchConfig { concurrency: 2, abandoned: 3, breaker, ..PrefetchConfig::default() });
    let mut hung = Vec::new();
    for round in 0..5 {
        let ticket = rig.prefetcher.request(&id(&format!("b{round}"))).unwrap();
        hung.push(rig.call(&format!("b{round}")));
        rig.clock.advance(ms(1_000));
        assert_timed_out(&rig.prefetcher.poll(&ticket), 1_000);
    }
    let refused = rig.prefetcher.request(&id("f")).unwrap_err();
    assert!(matches!(refused, PrefetchError::StoreHangs { threads: 5 }), "{refused:?}");
    assert_eq!(
        refused.to_string(),
        "5 threads wait for the store, which has answered none of them: no more are started"
    );
    let stats = rig.prefetcher.stats();
    assert_eq!((stats.abandoned, stats.fetching, stats.queued, stats.refused_breaker_open), (5, 5, 0, 1));
    // One that comes back after all serves again.
    hung.remove(0).answer();
    let mut patience = (0..6_000).map(|_| thread::sleep(ms(10)));
    while rig.prefetcher.stats().abandoned == 5 {
        patience.next().expect("the thread comes back");
    }
    rig.succeed("f");
    assert_eq!(rig.prefetcher.stats().abandoned, 4);
}

#[test]
fn a_thread_that_comes_back_late_leaves_no_more_workers_than_there_should_be() {
    let rig = Rig::workers(1);
    for round in 0..20 {
        let name = format!("late{round}");
        let ticket = rig.prefetcher.request(&id(&name)).unwrap();
        let late = rig.call(&name);
        rig.prefetcher.cancel(ticket);
        let ticket = rig.prefetcher.request(&id("next")).unwrap();
        let next = rig.call("next");
        late.answer();
        rig.prefetcher.cancel(ticket);
        next.answer();
        let mut patience = (0..6_000).map(|_| thread::sleep(ms(10)));
        while rig.prefetcher.stats().fetching > 0 {
            patience.next().expect("both come back");
        }
    }
    let tickets = ["a", "b"].map(|name| rig.prefetcher.request(&id(name)).unwrap());
    let call = rig.call("a");
    assert!(rig.calls.recv_timeout(ms(100)).is_err(), "a second worker is there");
    call.answer();
    rig.call("b").answer();
    for ticket in &tickets {
        assert!(matches!(rig.prefetcher.wait(ticket, WATCHDOG), Outcome::Ready(_)));
    }
}

//! Any sequence of events leaves the maps consistent, decides every ticket once, and keeps no unwanted answer.

use proptest::prelude::*;

use super::*;
use crate::artifact::HostTensor;
use crate::error::StoreError;
use esper_safety::{BreakerConfig, BreakerState};

fn blueprint(name: usize) -> BlueprintId {
    BlueprintId::new(format!("b{name}")).unwrap()
}

fn artifact(blueprint: &BlueprintId, fetch: usize) -> Artifact {
    let tensor = HostTensor { name: "w".into(), shape: vec![1], values: vec![fetch as f32] };
    Artifact::from_tensors(blueprint.clone(), &[tensor]).unwrap()
}

#[derive(Debug, Clone)]
enum Event {
    Request {
        name: usize,
        limit_ms: u64,
    },
    Begin,
    /// The n-th of the running fetches comes back.
    Finish {
        index: usize,
        result: Answer,
    },
    Forget(usize),
    Pass(u64),
    Expire,
    Clear,
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    Sound,
    Missing,
    Fault,
}

fn event() -> impl Strategy<Value = Event> {
    let answer = prop_oneof![3 => Just(Answer::Sound), 1 => Just(Answer::Missing), 2 => Just(Answer::Fault)];
    prop_oneof![
        6 => (0..5_usize, 1..120_u64).prop_map(|(name, limit_ms)| Event::Request { name, limit_ms }),
        5 => Just(Event::Begin),
        4 => (0..8_usize, answer).prop_map(|(index, result)| Event::Finish { index, result }),
        2 => (0..16_usize).prop_map(Event::Forget),
        4 => (0..60_u64).prop_map(Event::Pass),
        1 => Just(Event::Expire),
        1 => Just(Event::Clear),
    ]
}

/// What a ticket has shown so far.
struct Held {
    id: TicketId,
    blueprint: BlueprintId,
    deadline: Duration,
    shown: Option<String>,
}

#[derive(Default)]
struct World {
    now: Duration,
    held: Vec<Held>,
    running: Vec<Job>,
    /// Threads there are, inside the store or not.
    threads: usize,
    num_begun: usize,
    num_hits: u64,
    num_refused: u64,
    num_requests: u64,
    /// Digests of answers that somebody waited for when they came.
    wanted: Vec<Artifact>,
}

impl World {
    fn apply(&mut self, flights: &mut Flights, event: Event) -> Result<(), TestCaseError> {
        match event {
            Event::Request { name, limit_ms } => {
                let (blueprint, limit) = (blueprint(name), Duration::from_millis(limit_ms));
                self.num_requests += 1;
                match flights.request(&blueprint, limit, self.now) {
                    Ok(Accepted::Cached(found)) => {
                        prop_assert_eq!(found.blueprint(), &blueprint);
                        self.num_hits += 1;
                    }
                    Ok(Accepted::Joined(id) | Accepted::Queued(id)) => {
                        self.held.push(Held { id, blueprint, deadline: self.now + limit, shown: None });
                    }
                    Err(PrefetchError::StoreHangs { threads }) => {
                        prop_assert_eq!(
                            (threads, self.running.len()),
                            (self.threads, self.threads),
                            "a thread is free"
                        );
                        self.num_refused += 1;
                    }
                    Err(PrefetchError::QueueFull { .. } | PrefetchError::BreakerOpen { .. }) => self.num_refused += 1,
                    Err(error) => prop_assert!(false, "{error}"),
                }
            }
            Event::Begin => {
                if self.running.len() == self.threads {
                    return Ok(());
                }
                if let Some(job) = flights.begin(self.now) {
                    prop_assert!(!job.cancel.is_cancelled(), "an unwanted fetch was begun");
                    self.num_begun += 1;
                    self.running.push(job);
                }
            }
            Event::Finish { index, result } => {
                if self.running.is_empty() {
                    return Ok(());
                }
                let job = self.running.remove(index % self.running.len());
                // Deadlines that passed meanwhile count first, as they do inside.
                flights.expire(self.now);
                let is_wanted = !job.cancel.is_cancelled();
                let result = match result {
                    Answer::Sound => Ok(artifact(&job.blueprint, self.num_begun)),
                    Answer::Missing => Err(PrefetchError::Store(StoreError::Missing)),
                    Answer::Fault => Err(PrefetchError::StorePanicked { message: "planted".to_owned() }),
                };
                if let (true, Ok(artifact)) = (is_wanted, &result) {
                    self.wanted.push(artifact.clone());
                }
                self.finish(flights, &job, result);
                prop_assert!(job.cancel.is_cancelled(), "the flight is over");
            }
            Event::Forget(index) if !self.held.is_empty() => {
                let held = self.held.remove(index % self.held.len());
                flights.forget(held.id, self.now);
            }
            Event::Forget(_) => {}
            Event::Pass(ms) => self.now += Duration::from_millis(ms),
            Event::Expire => {
                flights.expire(self.now);
            }
            Event::Clear => {
                flights.clear(self.now);
            }
        }
        Ok(())
    }

    fn finish(&mut self, flights: &mut Flights, job: &Job, result: Result<Artifact, PrefetchError>) {
        let goes_on = flights.finish(job.flight, result, self.now);
        self.threads -= usize::from(!goes_on);
    }

    fn check(&mut self, flights: &mut Flights) -> Result<(), TestCaseError> {
        let mut undecided = 0;
        for held in &mut self.held {
            let shown = match flights.poll(held.id, self.now) {
                Poll::Pending => {
                    prop_assert!(self.now < held.deadline, "undecided after its deadline");
                    undecided += 1;
                    None
                }
                Poll::Ready(found) => {
                    prop_assert_eq!(found.blueprint(), &held.blueprint);
                    prop_assert!(self.wanted.contains(&found));
                    Some(format!("{found:?}"))
                }
                Poll::Failed(error) => Some(error.to_string()),
            };
            prop_assert!(held.shown.is_none() || held.shown == shown, "{:?} turned into {shown:?}", held.shown);
            held.shown = shown;
        }
        let stats = flights.stats(self.now);
        // Last, as behind the lock: a look may be what finds that a deadline passed and gives a thread up.
        self.threads += flights.take_missing();
        prop_assert_eq!(stats.inflight, undecided);
        prop_assert_eq!(stats.scheduled, stats.ready + stats.error + stats.timeout + stats.canceled + stats.inflight);
        prop_assert_eq!(stats.scheduled + self.num_refused, self.num_requests);
        prop_assert_eq!(stats.refused_queue_full + stats.refused_breaker_open, self.num_refused);
        prop_assert_eq!((stats.cache_hits, stats.fetching), (self.num_hits, self.running.len() as u64));
        prop_assert!(flights.cached().iter().all(|kept| self.wanted.contains(kept)), "an unwanted answer was kept");

        prop_assert!(flights.queue.len() <= flights.max_queued);
        let waiting = flights.flights.iter().filter(|(_, flight)| flight.phase == Phase::Queued).count();
        prop_assert_eq!(flights.queue.len(), waiting);
        let given_up = self.running.iter().filter(|job| job.cancel.is_cancelled()).count();
        prop_assert_eq!((flights.workers + flights.abandoned, flights.abandoned), (self.threads, given_up));
        prop_assert!(flights.workers <= flights.max_workers && self.threads <= flights.max_threads);
        let is_served = flights.workers > 0 || self.threads == flights.max_threads || waiting == 0;
        prop_assert!(is_served, "a fetch waits, and no thread is there for it");
        for (id, flight) in &flights.flights {
            prop_assert!(!flight.tickets.is_empty(), "{id:?} flies for nobody");
            prop_assert!(flight.tickets.iter().all(|ticket| flights.tickets[ticket].decision.is_none()));
        }
        for (blueprint, id) in &flights.boards {
            prop_assert_eq!(&flights.flights[id].blueprint, blueprint);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn tickets_are_decided_once_and_the_cache_has_only_what_was_waited_for(
        events in proptest::collection::vec(event(), 1..120),
    ) {
        let config = PrefetchConfig {
            concurrency: 3,
            abandoned: 2,
            deadline_ms: 60,
            queue: 3,
            cache_bytes: 250,
            cache_ttl_s: 1,
            breaker: BreakerConfig { open_ms: 100, max_open_ms: 100, ..BreakerConfig::default() },
        };
        let mut flights = Flights::new(&config);
        let mut world = World { threads: config.concurrency, ..World::default() };
        for event in events {
            world.apply(&mut flights, event)?;
            world.check(&mut flights)?;
        }
        // Whatever happened: once all is over, a healthy store is served again.
        world.now += Duration::from_secs(10);
        flights.clear(world.now);
        while let Some(job) = world.running.pop() {
            world.finish(&mut flights, &job, Err(PrefetchError::Store(StoreError::Missing)));
        }
        prop_assert_eq!((world.threads, flights.workers, flights.abandoned), (3, 3, 0));
        world.now += Duration::from_secs(10);
        for name in 0..2 {
            let accepted = flights.request(&blueprint(name), Duration::from_secs(1), world.now);
            prop_assert!(matches!(accepted, Ok(Accepted::Queued(_))), "{accepted:?}");
            let job = flights.begin(world.now);
            prop_assert!(job.is_some(), "the fetch did not begin");
            let Some(job) = job else { return Ok(()) };
            flights.finish(job.flight, Ok(artifact(&job.blueprint, 0)), world.now);
        }
        let stats = flights.stats(world.now);
        prop_assert_eq!((stats.breaker_state, stats.cache_entries), (BreakerState::Closed, 2));
        for held in world.held {
            flights.forget(held.id, world.now);
        }
        // The two of the end have no holder here.
        prop_assert_eq!(flights.tickets.len(), 2);
        prop_assert_eq!((flights.flights.len(), flights.boards.len(), flights.deadlines.len()), (0, 0, 0));
    }
}

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn flights() -> Flights {
    Flights::new(&PrefetchConfig { deadline_ms: 100, ..PrefetchConfig::default() })
}

/// A request at this time for the only blueprint; whether it needs a fetch of its own.
fn request(flights: &mut Flights, ms: u64) -> (TicketId, bool) {
    match flights.request(&blueprint(0), at(100), at(ms)).unwrap() {
        Accepted::Queued(id) => (id, true),
        Accepted::Joined(id) => (id, false),
        Accepted::Cached(found) => panic!("{found:?} was cached"),
    }
}

#[test]
fn an_answer_after_the_deadline_is_late_although_nobody_looked_in_between() {
    for (ms, is_late) in [(99, false), (100, true), (101, true)] {
        let mut flights = flights();
        let (id, _) = request(&mut flights, 0);
        let job = flights.begin(at(0)).unwrap();
        flights.finish(job.flight, Ok(artifact(&job.blueprint, 1)), at(ms));
        // Asked with a time from before: what counts is what the answer found.
        match flights.poll(id, at(0)) {
            Poll::Ready(_) => assert!(!is_late, "{ms} ms"),
            Poll::Failed(PrefetchError::TimedOut { deadline_ms: 100 }) => assert!(is_late, "{ms} ms"),
            poll => panic!("{ms} ms: {poll:?}"),
        }
        assert_eq!((flights.cached().len(), flights.breaker.failures()), if is_late { (0, 1) } else { (1, 0) });
    }
}

#[test]
fn the_end_of_an_old_flight_leaves_the_new_one_open_to_others() {
    let mut flights = flights();
    request(&mut flights, 0);
    let old = flights.begin(at(0)).unwrap();
    assert!(!request(&mut flights, 99).1);
    assert!(request(&mut flights, 100).1, "the old flight takes nobody any more");
    let new = flights.begin(at(100)).unwrap();
    flights.finish(old.flight, Err(PrefetchError::Store(StoreError::Missing)), at(150));
    assert!(!new.cancel.is_cancelled());
    assert!(!request(&mut flights, 150).1, "a third fetch was begun");
}

#[test]
fn whoever_waits_is_woken_by_the_decision() {
    use crossbeam::channel::TryRecvError;

    type Decide = fn(&mut Flights, Job);
    let decisions: [Decide; 3] = [
        |flights, job| assert!(flights.finish(job.flight, Ok(artifact(&job.blueprint, 1)), at(1))),
        |flights, _| assert_eq!(flights.expire(at(100)), 0),
        |flights, _| assert_eq!(flights.clear(at(1)), 0),
    ];
    for decide in decisions {
        let mut flights = flights();
        let (id, _) = request(&mut flights, 0);
        let (decided, deadline) = flights.watch(id, at(0)).unwrap();
        assert_eq!((decided.try_recv(), deadline), (Err(TryRecvError::Empty), at(100)));
        let job = flights.begin(at(0)).unwrap();
        decide(&mut flights, job);
        assert_eq!(decided.try_recv(), Err(TryRecvError::Disconnected));
        assert!(flights.watch(id, at(1)).is_none(), "there is nothing left to wait for");
    }
}

#[test]
fn a_trial_that_no_thread_begins_in_time_has_failed() {
    let mut flights = flights();
    for _ in 0..3 {
        request(&mut flights, 0);
        let job = flights.begin(at(0)).unwrap();
        let fault = PrefetchError::StorePanicked { message: "planted".to_owned() };
        assert!(flights.finish(job.flight, Err(fault), at(0)));
    }
    assert!(request(&mut flights, 30_000).1, "a trial");
    assert_eq!(flights.stats(at(30_099)).breaker_state, BreakerState::HalfOpen);
    assert_eq!(flights.stats(at(30_100)).breaker_state, BreakerState::Open);
}

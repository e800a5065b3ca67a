//! Who waits for what: tickets, flights, the queue and their decisions. Maps only: nothing here waits, reads or hashes.
//!
//! Every method is given the time of now and decides deadlines that have passed by then before it does anything else,
//! so that a ticket's fate does not depend on who looks first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, bounded};
use esper_safety::breaker::{Breaker, BreakerState, Permit, Refused, Verdict};
use leyline::id::BlueprintId;

use crate::artifact::Artifact;
use crate::cache::Cache;
use crate::cancel::{CancelSource, CancelToken};
use crate::config::PrefetchConfig;
use crate::error::PrefetchError;
use crate::stats::PrefetchStats;
use crate::ticket::{Poll, TicketId};

/// Number of a flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FlightId(u64);

/// A fetch for a worker.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) flight: FlightId,
    pub(crate) blueprint: BlueprintId,
    pub(crate) cancel: CancelToken,
}

/// How a request was accepted.
#[derive(Debug)]
pub(crate) enum Accepted {
    Cached(Artifact),
    /// Somebody asked before: that fetch is for both.
    Joined(TicketId),
    /// A worker has to be woken.
    Queued(TicketId),
}

/// Everything behind the lock.
#[derive(Debug)]
pub(crate) struct Flights {
    max_queued: usize,
    /// Workers that there should be, and threads that there may be with those that were given up.
    max_workers: usize,
    max_threads: usize,
    /// Threads that serve the queue, inside the store or not.
    workers: usize,
    /// Threads inside the store whose answer nobody wants any more: nothing says that they come back.
    abandoned: usize,
    /// Age up to which a flight takes more tickets.
    boarding: Duration,
    cache: Cache,
    breaker: Breaker,
    tickets: BTreeMap<TicketId, Waiting>,
    /// Of the undecided tickets, the next one first.
    deadlines: BTreeSet<(Duration, TicketId)>,
    flights: BTreeMap<FlightId, Flight>,
    /// The flight that a new ticket joins.
    boards: BTreeMap<BlueprintId, FlightId>,
    queue: VecDeque<FlightId>,
    next_id: u64,
    counts: Counts,
    /// Artifacts to be freed once the lock is released: unmapping large ones takes milliseconds.
    freed: Vec<Artifact>,
}

#[derive(Debug)]
struct Flight {
    blueprint: BlueprintId,
    boards_until: Duration,
    /// Undecided tickets.
    tickets: BTreeSet<TicketId>,
    permit: Permit,
    phase: Phase,
    token: CancelToken,
    /// Raises the token when the flight is dropped.
    _cancel: CancelSource,
}

/// Where the fetch of a flight is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It waits for a worker.
    Queued,
    /// A worker is inside the store.
    Fetching,
    /// The worker is back.
    Back,
}

#[derive(Debug)]
struct Waiting {
    flight: FlightId,
    requested_at: Duration,
    limit: Duration,
    deadline: Duration,
    decision: Option<Result<Artifact, PrefetchError>>,
    /// Dropped at the decision, which wakes who waits for it.
    wakers: Vec<Sender<Infallible>>,
}

#[derive(Debug, Default)]
struct Counts {
    scheduled: u64,
    ready: u64,
    error: u64,
    timeout: u64,
    canceled: u64,
    refused_queue_full: u64,
    refused_breaker_open: u64,
    fetching: usize,
    latencies: u64,
    latency_sum: Duration,
    latency_last: Duration,
    lock_wait_last: Duration,
    lock_wait_max: Duration,
}

impl Flights {
    pub(crate) fn new(config: &PrefetchConfig) -> Self {
        let ttl = (config.cache_ttl_s > 0).then(|| Duration::from_secs(config.cache_ttl_s));
        Self {
            max_queued: config.queue,
            max_workers: config.concurrency,
            max_threads: config.concurrency + config.abandoned,
            workers: config.concurrency,
            abandoned: 0,
            boarding: Duration::from_millis(config.deadline_ms),
            cache: Cache::new(config.cache_bytes, ttl),
            breaker: Breaker::new(config.breaker),
            tickets: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            flights: BTreeMap::new(),
            boards: BTreeMap::new(),
            queue: VecDeque::new(),
            next_id: 0,
            counts: Counts::default(),
            freed: Vec::new(),
        }
    }

    /// A ticket with `limit` to its deadline.
    pub(crate) fn request(
        &mut self,
        blueprint: &BlueprintId,
        limit: Duration,
        now: Duration,
    ) -> Result<Accepted, PrefetchError> {
        self.decide_deadlines(now);
        if let Some(artifact) = self.cache.get(blueprint, now, &mut self.freed) {
            self.counts.scheduled += 1;
            self.counts.ready += 1;
            return Ok(Accepted::Cached(artifact));
        }
        // A flight that is late already would only pass its lateness on, and joiners could keep a dead one alive.
        let joined = self.boards.get(blueprint).copied().filter(|id| now < self.flights[id].boards_until);
        if let Some(flight) = joined {
            return Ok(Accepted::Joined(self.board(flight, limit, now)));
        }
        if self.workers == 0 && self.abandoned >= self.max_threads {
            self.counts.refused_breaker_open += 1;
            return Err(PrefetchError::StoreHangs { threads: self.abandoned });
        }
        if self.queue.len() >= self.max_queued {
            self.counts.refused_queue_full += 1;
            return Err(PrefetchError::QueueFull { limit: self.max_queued });
        }
        let permit = self.breaker.allow(now).map_err(|refused| {
            self.counts.refused_breaker_open += 1;
            breaker_open(refused)
        })?;
        let flight = FlightId(self.fresh_id());
        let (cancel, token) = CancelToken::new();
        let created = Flight {
            blueprint: blueprint.clone(),
            boards_until: now.saturating_add(self.boarding.max(limit)),
            tickets: BTreeSet::new(),
            permit,
            phase: Phase::Queued,
            token,
            _cancel: cancel,
        };
        self.flights.insert(flight, created);
        self.boards.insert(blueprint.clone(), flight);
        self.queue.push_back(flight);
        Ok(Accepted::Queued(self.board(flight, limit, now)))
    }

    fn board(&mut self, flight: FlightId, limit: Duration, now: Duration) -> TicketId {
        let id = TicketId(self.fresh_id());
        let deadline = now.saturating_add(limit);
        let (decision, wakers) = (None, Vec::new());
        self.tickets.insert(id, Waiting { flight, requested_at: now, limit, deadline, decision, wakers });
        self.deadlines.insert((deadline, id));
        self.flights.get_mut(&flight).expect("the flight was just found or made").tickets.insert(id);
        self.counts.scheduled += 1;
        id
    }

    fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(crate) fn poll(&mut self, id: TicketId, now: Duration) -> Poll {
        self.decide_deadlines(now);
        match &self.tickets.get(&id).expect("a ticket is forgotten when it is dropped").decision {
            None => Poll::Pending,
            Some(Ok(artifact)) => Poll::Ready(artifact.clone()),
            Some(Err(error)) => Poll::Failed(error.clone()),
        }
    }

    /// A channel that ends at the ticket's decision, and its deadline; none when it is decided.
    pub(crate) fn watch(&mut self, id: TicketId, now: Duration) -> Option<(Receiver<Infallible>, Duration)> {
        self.decide_deadlines(now);
        let ticket = self.tickets.get_mut(&id).filter(|ticket| ticket.decision.is_none())?;
        let (waker, decided) = bounded(1);
        ticket.wakers.push(waker);
        Some((decided, ticket.deadline))
    }

    /// The holder of a ticket is gone.
    pub(crate) fn forget(&mut self, id: TicketId, now: Duration) {
        self.decide_deadlines(now);
        self.decide(id, Err(PrefetchError::Cancelled));
        let Some(ticket) = self.tickets.remove(&id) else { return };
        if let Some(Ok(artifact)) = ticket.decision {
            self.freed.push(artifact);
        }
        self.abandon_if_empty(ticket.flight, Verdict::Neither, now);
    }

    /// The next fetch, for a worker that is free now.
    pub(crate) fn begin(&mut self, now: Duration) -> Option<Job> {
        self.decide_deadlines(now);
        while let Some(id) = self.queue.pop_front() {
            let flight = self.flights.get_mut(&id).expect("a flight that ends leaves the queue");
            match self.breaker.confirm(flight.permit, now) {
                Ok(permit) => {
                    (flight.permit, flight.phase) = (permit, Phase::Fetching);
                    self.counts.fetching += 1;
                    return Some(Job { flight: id, blueprint: flight.blueprint.clone(), cancel: flight.token.clone() });
                }
                // It opened while this one was waiting.
                Err(refused) => self.land(id, &Err(breaker_open(refused)), now),
            }
        }
        None
    }

    /// A worker came back. Unless everybody who waited is gone, its result decides all tickets of the flight. Whether the
    /// thread is to go on: one that was given up may have been replaced.
    pub(crate) fn finish(&mut self, flight: FlightId, result: Result<Artifact, PrefetchError>, now: Duration) -> bool {
        self.counts.fetching -= 1;
        self.decide_deadlines(now);
        let is_wanted = self.flights.get_mut(&flight).map(|flight| flight.phase = Phase::Back).is_some();
        if is_wanted {
            self.land(flight, &result, now);
            if let Ok(artifact) = &result {
                self.cache.insert(artifact.clone(), now, &mut self.freed);
            }
        } else {
            self.abandoned -= 1;
        }
        self.freed.extend(result);
        let is_missing = self.workers < self.max_workers;
        self.workers += usize::from(!is_wanted && is_missing);
        is_wanted || is_missing
    }

    /// Workers to be started for fetches that no thread is free for, in the place of those that were given up.
    pub(crate) fn take_missing(&mut self) -> usize {
        let threads = self.workers + self.abandoned;
        let wanted = self.queue.len().saturating_sub(threads - self.counts.fetching);
        let missing = wanted.min(self.max_workers - self.workers).min(self.max_threads - threads);
        self.workers += missing;
        missing
    }

    /// A worker could not be started.
    pub(crate) fn not_started(&mut self) {
        self.workers -= 1;
    }

    fn land(&mut self, id: FlightId, result: &Result<Artifact, PrefetchError>, now: Duration) {
        let verdict = match result {
            Ok(_) => Verdict::Success,
            Err(error) if error.is_fault_of_store() => Verdict::Failure,
            Err(_) => Verdict::Neither,
        };
        let tickets = self.flights.get(&id).map(|flight| flight.tickets.clone()).unwrap_or_default();
        for ticket in tickets {
            if result.is_ok() {
                let latency = now.saturating_sub(self.tickets[&ticket].requested_at);
                self.counts.latencies += 1;
                self.counts.latency_sum = self.counts.latency_sum.saturating_add(latency);
                self.counts.latency_last = latency;
            }
            self.decide(ticket, result.clone());
        }
        self.abandon_if_empty(id, verdict, now);
    }

    /// Decides a ticket, once.
    fn decide(&mut self, id: TicketId, decision: Result<Artifact, PrefetchError>) {
        let Some(ticket) = self.tickets.get_mut(&id).filter(|ticket| ticket.decision.is_none()) else { return };
        let count = match &decision {
            Ok(_) => &mut self.counts.ready,
            Err(PrefetchError::TimedOut { .. }) => &mut self.counts.timeout,
            Err(PrefetchError::Cancelled) => &mut self.counts.canceled,
            Err(_) => &mut self.counts.error,
        };
        *count += 1;
        ticket.decision = Some(decision);
        ticket.wakers.clear();
        self.deadlines.remove(&(ticket.deadline, id));
        if let Some(flight) = self.flights.get_mut(&ticket.flight) {
            flight.tickets.remove(&id);
        }
    }

    /// Ends a flight that nobody waits for: its token is raised, and what it still brings is thrown away.
    fn abandon_if_empty(&mut self, id: FlightId, verdict: Verdict, now: Duration) {
        if self.flights.get(&id).is_none_or(|flight| !flight.tickets.is_empty()) {
            return;
        }
        let flight = self.flights.remove(&id).expect("it was there in the line above");
        if self.boards.get(&flight.blueprint) == Some(&id) {
            self.boards.remove(&flight.blueprint);
        }
        // A fetch that never began says nothing about the store, unless it was a trial: then no answer is an answer.
        let is_trial = self.breaker.state() == BreakerState::HalfOpen && verdict == Verdict::Failure;
        let verdict = match flight.phase {
            Phase::Queued => {
                self.queue.retain(|queued| *queued != id);
                if is_trial { verdict } else { Verdict::Neither }
            }
            Phase::Fetching => {
                self.workers -= 1;
                self.abandoned += 1;
                verdict
            }
            Phase::Back => verdict,
        };
        self.breaker.record(flight.permit, verdict, now);
    }

    /// Every ticket whose time is over by now has timed out.
    fn decide_deadlines(&mut self, now: Duration) {
        while let Some(&(deadline, id)) = self.deadlines.first() {
            if now < deadline {
                break;
            }
            let ticket = &self.tickets[&id];
            let (flight, limit) = (ticket.flight, ticket.limit);
            let deadline_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            self.decide(id, Err(PrefetchError::TimedOut { deadline_ms }));
            self.abandon_if_empty(flight, Verdict::Failure, now);
        }
    }

    /// Lets go of artifacts that are too old; how many.
    pub(crate) fn expire(&mut self, now: Duration) -> usize {
        self.decide_deadlines(now);
        self.cache.expire(now, &mut self.freed)
    }

    /// Cancels everything undecided and empties the cache; how many artifacts it had.
    pub(crate) fn clear(&mut self, now: Duration) -> usize {
        self.decide_deadlines(now);
        let undecided: Vec<TicketId> = self.deadlines.iter().map(|&(_, id)| id).collect();
        for id in undecided {
            let flight = self.tickets[&id].flight;
            self.decide(id, Err(PrefetchError::Cancelled));
            self.abandon_if_empty(flight, Verdict::Neither, now);
        }
        self.cache.clear(&mut self.freed)
    }

    pub(crate) fn cached(&self) -> Vec<Artifact> {
        self.cache.artifacts()
    }

    /// What the caller of the last method has to free without the lock.
    pub(crate) fn take_freed(&mut self) -> Vec<Artifact> {
        std::mem::take(&mut self.freed)
    }

    pub(crate) fn note_lock_wait(&mut self, wait: Duration) {
        self.counts.lock_wait_last = wait;
        self.counts.lock_wait_max = self.counts.lock_wait_max.max(wait);
    }

    pub(crate) fn stats(&mut self, now: Duration) -> PrefetchStats {
        self.decide_deadlines(now);
        let (counts, cache) = (&self.counts, self.cache.counts());
        let is_measured = counts.latencies > 0;
        PrefetchStats {
            scheduled: counts.scheduled,
            ready: counts.ready,
            error: counts.error,
            timeout: counts.timeout,
            canceled: counts.canceled,
            refused_queue_full: counts.refused_queue_full,
            refused_breaker_open: counts.refused_breaker_open,
            inflight: self.deadlines.len() as u64,
            queued: self.queue.len() as u64,
            fetching: counts.fetching as u64,
            abandoned: self.abandoned as u64,
            latency_mean_ms: is_measured.then(|| ms(counts.latency_sum) / counts.latencies as f64),
            latency_last_ms: is_measured.then(|| ms(counts.latency_last)),
            cache_entries: self.cache.len() as u64,
            cache_bytes: self.cache.num_bytes(),
            cache_hits: cache.hits,
            cache_misses: cache.misses,
            cache_evictions: cache.evictions,
            lock_wait_last_ms: ms(counts.lock_wait_last),
            lock_wait_max_ms: ms(counts.lock_wait_max),
            breaker_state: self.breaker.state(),
            breaker_failures: self.breaker.failures(),
        }
    }
}

fn breaker_open(refused: Refused) -> PrefetchError {
    // Rounded up: whoever comes back after so long is not refused again for a fraction of a millisecond.
    let retry_in_ms = refused.retry_in.as_nanos().div_ceil(1_000_000);
    PrefetchError::BreakerOpen { retry_in_ms: u64::try_from(retry_in_ms).unwrap_or(u64::MAX) }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests;

//! Clients with one request each at a time, and what became of every request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use esper_weights::{Artifact, Outcome, Poll, PrefetchError, Prefetcher};
use leyline::clock::Clock;

use super::store::blueprint;

/// No request takes so long: one that does hangs.
const HANG: Duration = Duration::from_secs(30);

/// One request.
#[derive(Debug)]
pub(super) struct Asked {
    /// Which blueprint.
    pub(super) index: usize,
    /// When, on the clock of the store.
    pub(super) started: Duration,
    /// From the request to its end, as the client sees it.
    pub(super) latency: Duration,
    pub(super) end: End,
    /// Of every call that must not block.
    pub(super) polls: Vec<Duration>,
}

/// How a request ended.
#[derive(Debug)]
pub(super) enum End {
    Ready(Artifact),
    Error(PrefetchError),
    Refused,
    TimedOut,
    Hung,
}

/// Asks for every blueprint once, from as many threads as clients, each with one request at a time.
pub(super) fn ask(
    prefetcher: &Prefetcher,
    num_requests: usize,
    num_clients: usize,
    clock: &Arc<dyn Clock>,
) -> Vec<Asked> {
    let next = AtomicUsize::new(0);
    let client = || {
        let mut asked = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::SeqCst);
            if index >= num_requests {
                return asked;
            }
            asked.push(one(prefetcher, index, clock.as_ref()));
        }
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..num_clients).map(|_| scope.spawn(client)).collect();
        let ends = clients.into_iter().map(|client| client.join().expect("a client has nothing to panic about"));
        ends.flatten().collect()
    })
}

fn one(prefetcher: &Prefetcher, index: usize, clock: &dyn Clock) -> Asked {
    let mut polls = Vec::new();
    let started = clock.now();
    let end = match prefetcher.request(&blueprint(index)) {
        Err(error) => end_of(error),
        Ok(ticket) => {
            let mut timed_poll = || {
                let before = clock.now();
                let poll = prefetcher.poll(&ticket);
                polls.push(clock.now() - before);
                poll
            };
            let first = timed_poll();
            if let Poll::Pending = first {
                // What it says is asked again below, as a step would do it.
                match prefetcher.wait(&ticket, HANG) {
                    Outcome::Ready(_) | Outcome::Failed(_) | Outcome::StillPending => {}
                }
            }
            match timed_poll() {
                Poll::Ready(artifact) => End::Ready(artifact),
                Poll::Failed(error) => end_of(error),
                Poll::Pending => End::Hung,
            }
        }
    };
    Asked { index, started, latency: clock.now() - started, end, polls }
}

fn end_of(error: PrefetchError) -> End {
    match error {
        PrefetchError::BreakerOpen { .. } => End::Refused,
        PrefetchError::TimedOut { .. } => End::TimedOut,
        error => End::Error(error),
    }
}

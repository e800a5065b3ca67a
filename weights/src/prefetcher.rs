//! The prefetcher: worker threads around the maps of `flights`.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Duration;

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use leyline::clock::Clock;
use leyline::id::BlueprintId;

use crate::artifact::Artifact;
use crate::config::PrefetchConfig;
use crate::error::PrefetchError;
use crate::flights::{Accepted, Flights, Job};
use crate::stats::PrefetchStats;
use crate::store::KernelStore;
use crate::ticket::{Outcome, Poll, Source, Ticket, TicketId};

/// Shortest sleep of [`Prefetcher::wait`]: a clock may stand still just before a deadline.
const MIN_SLEEP: Duration = Duration::from_millis(1);

/// Fetches artifacts on threads of its own and keeps those of late.
///
/// A thread inside a store that does not answer is given up when nobody waits for it any more: at the deadline of its
/// fetch, or when that is cancelled. Another one takes its place, as many times as [`PrefetchConfig::abandoned`] says.
///
/// Dropping it cancels every request and returns at once. Its threads are not joined: one may be inside a store that
/// never returns, and then the drop would not either. The others end as soon as they come back.
#[derive(Debug)]
pub struct Prefetcher {
    shared: Arc<Shared>,
    /// One message per fetch that was queued, which wakes a worker; its end sends the workers home.
    wake: Sender<()>,
    deadline: Duration,
}

/// What callers, tickets and workers have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    store: Arc<dyn KernelStore>,
    clock: Arc<dyn Clock>,
    flights: Mutex<Flights>,
    woken: Receiver<()>,
}

impl Prefetcher {
    /// Starts the workers. Deadlines, the breaker and the age of what is kept go by `clock`.
    ///
    /// # Errors
    /// [`PrefetchError::Config`] with every issue, [`PrefetchError::Spawn`].
    pub fn new(
        store: Arc<dyn KernelStore>,
        config: PrefetchConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, PrefetchError> {
        let issues = config.validate();
        if !issues.is_empty() {
            return Err(PrefetchError::Config { issues });
        }
        let (wake, woken) = bounded(config.queue);
        let shared = Arc::new(Shared { store, clock, flights: Mutex::new(Flights::new(&config)), woken });
        for _ in 0..config.concurrency {
            // Workers that did start end with `wake`, when this returns early.
            shared.start_worker().map_err(|source| PrefetchError::Spawn(Arc::new(source)))?;
        }
        Ok(Self { shared, wake, deadline: Duration::from_millis(config.deadline_ms) })
    }

    /// Asks for an artifact, with the configured time to its deadline. Never waits for the store.
    ///
    /// What is cached is handed out whatever the breaker says. A fetch of the same blueprint that is under way serves
    /// this request too, unless it is older than its own deadline.
    ///
    /// # Errors
    /// [`PrefetchError::QueueFull`], [`PrefetchError::BreakerOpen`], [`PrefetchError::StoreHangs`]; the request was not
    /// accepted then.
    pub fn request(&self, blueprint: &BlueprintId) -> Result<Ticket, PrefetchError> {
        self.request_within(blueprint, self.deadline)
    }

    /// As [`Self::request`], with another time to the deadline.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub fn request_within(&self, blueprint: &BlueprintId, limit: Duration) -> Result<Ticket, PrefetchError> {
        let flight = |id| Source::Flight { id, shared: Arc::downgrade(&self.shared) };
        let source = match self.shared.with(|flights, now| flights.request(blueprint, limit, now))? {
            Accepted::Cached(artifact) => Source::Cache(artifact),
            Accepted::Joined(id) => flight(id),
            Accepted::Queued(id) => {
                // Full means that as many messages as fetches may wait are unread: enough workers will look.
                self.wake.try_send(()).ok();
                flight(id)
            }
        };
        Ok(Ticket { blueprint: blueprint.clone(), source })
    }

    /// What has become of a request. Never waits for the store; once decided, the answer stays the same.
    pub fn poll(&self, ticket: &Ticket) -> Poll {
        match self.source(ticket) {
            Ok(Known::Cached(artifact)) => Poll::Ready(artifact),
            Ok(Known::Flight(id)) => self.shared.with(|flights, now| flights.poll(id, now)),
            Err(error) => Poll::Failed(error),
        }
    }

    /// Blocks until the request is decided, or for `timeout` of real time. For tools and tests: a training step polls.
    pub fn wait(&self, ticket: &Ticket, timeout: Duration) -> Outcome {
        let watched = match self.source(ticket) {
            Ok(Known::Flight(id)) => self.shared.with(|flights, now| flights.watch(id, now)),
            Ok(Known::Cached(_)) | Err(_) => None,
        };
        let mut left = timeout;
        if let Some((decided, deadline)) = watched {
            // The deadline is a time of the injected clock and the sleep is real: look again after each.
            while let Poll::Pending = self.poll(ticket)
                && !left.is_zero()
            {
                let to_deadline = deadline.saturating_sub(self.shared.clock.now());
                let sleep = left.min(to_deadline.max(MIN_SLEEP));
                match decided.recv_timeout(sleep) {
                    Err(RecvTimeoutError::Timeout) => left -= sleep,
                    Err(RecvTimeoutError::Disconnected) => break,
                    Ok(never) => match never {},
                }
            }
        }
        match self.poll(ticket) {
            Poll::Pending => Outcome::StillPending,
            Poll::Ready(artifact) => Outcome::Ready(artifact),
            Poll::Failed(error) => Outcome::Failed(error),
        }
    }

    /// Drops interest in a request. The store's token is raised when nobody else waits for that fetch.
    pub fn cancel(&self, ticket: Ticket) {
        drop(ticket);
    }

    /// What was done so far.
    #[must_use]
    pub fn stats(&self) -> PrefetchStats {
        self.shared.with(Flights::stats)
    }

    /// Lets go of artifacts that are older than they may be; how many.
    pub fn expire(&self) -> usize {
        self.shared.with(Flights::expire)
    }

    /// Empties the cache and cancels every request; how many artifacts the cache had. Answers to fetches that were
    /// begun before do not enter it any more.
    pub fn clear(&self) -> usize {
        self.shared.with(Flights::clear)
    }

    /// What the cache has, least recently used first. Counts as no use.
    #[must_use]
    pub fn cached(&self) -> Vec<Artifact> {
        self.shared.with(|flights, _| flights.cached())
    }

    fn source(&self, ticket: &Ticket) -> Result<Known, PrefetchError> {
        match &ticket.source {
            Source::Cache(artifact) => Ok(Known::Cached(artifact.clone())),
            Source::Flight { id, shared } if std::ptr::eq(shared.as_ptr(), Arc::as_ptr(&self.shared)) => {
                Ok(Known::Flight(*id))
            }
            Source::Flight { .. } => Err(PrefetchError::ForeignTicket),
        }
    }
}

/// Where a ticket of this prefetcher has its artifact from.
enum Known {
    Cached(Artifact),
    Flight(TicketId),
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        // A worker in a store that never returns keeps `shared` alive: it is to hold no artifacts.
        self.shared.with(Flights::clear);
    }
}

impl Shared {
    fn start_worker(self: &Arc<Self>) -> std::io::Result<()> {
        let shared = Arc::clone(self);
        std::thread::Builder::new().name("prefetch".to_owned()).spawn(move || work(&shared)).map(drop)
    }

    /// Runs `f` with the lock; without it, frees what `f` let go of and starts the workers that are missing.
    fn with<R>(self: &Arc<Self>, f: impl FnOnce(&mut Flights, Duration) -> R) -> R {
        let (mut flights, waited) = match self.flights.try_lock() {
            Ok(flights) => (flights, Duration::ZERO),
            Err(TryLockError::Poisoned(poisoned)) => (poisoned.into_inner(), Duration::ZERO),
            Err(TryLockError::WouldBlock) => {
                let since = self.clock.now();
                let flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
                (flights, self.clock.now().saturating_sub(since))
            }
        };
        flights.note_lock_wait(waited);
        // Read with the lock held, so that decisions are made in the order of their times.
        let now = self.clock.now();
        let result = f(&mut flights, now);
        let (freed, missing) = (flights.take_freed(), flights.take_missing());
        drop(flights);
        drop(freed);
        for _ in 0..missing {
            if self.start_worker().is_err() {
                // Tried again at the next call.
                self.flights.lock().unwrap_or_else(PoisonError::into_inner).not_started();
            }
        }
        result
    }

    pub(crate) fn forget(self: &Arc<Self>, ticket: TicketId) {
        self.with(|flights, now| flights.forget(ticket, now));
    }
}

fn work(shared: &Arc<Shared>) {
    while shared.woken.recv().is_ok() {
        if let Some(Job { flight, blueprint, cancel }) = shared.with(Flights::begin) {
            // Nothing of ours is touched inside; the store's own state after a panic is the store's business.
            let fetched = catch_unwind(AssertUnwindSafe(|| shared.store.fetch(&blueprint, &cancel)));
            let result = match fetched {
                Ok(Ok(artifact)) if *artifact.blueprint() != blueprint => {
                    Err(PrefetchError::WrongArtifact { expected: blueprint, found: artifact.blueprint().clone() })
                }
                Ok(answer) => answer.map_err(PrefetchError::Store),
                Err(panic) => Err(PrefetchError::StorePanicked { message: message(panic.as_ref()) }),
            };
            if !shared.with(|flights, now| flights.finish(flight, result, now)) {
                return;
            }
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("with no message").to_owned()
}

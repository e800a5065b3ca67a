//! A request from the side of whoever made it.

use std::sync::Weak;

use leyline::id::BlueprintId;

use crate::artifact::Artifact;
use crate::error::PrefetchError;
use crate::prefetcher::Shared;

/// Number of a ticket that waits for a flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TicketId(pub(crate) u64);

/// One request for one artifact. Dropping it is the same as [`Prefetcher::cancel`](super::Prefetcher::cancel).
#[derive(Debug)]
#[must_use = "a request whose ticket is dropped is cancelled"]
pub struct Ticket {
    pub(crate) blueprint: BlueprintId,
    pub(crate) source: Source,
}

#[derive(Debug)]
pub(crate) enum Source {
    /// It was in the cache.
    Cache(Artifact),
    /// Its flight decides. The link is weak, so that a forgotten ticket keeps no cache alive.
    Flight { id: TicketId, shared: Weak<Shared> },
}

impl Ticket {
    /// What was asked for.
    #[must_use]
    pub fn blueprint(&self) -> &BlueprintId {
        &self.blueprint
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Source::Flight { id, shared } = &self.source
            && let Some(shared) = shared.upgrade()
        {
            shared.forget(*id);
        }
    }
}

/// What has become of a request.
#[derive(Debug, Clone)]
#[must_use]
pub enum Poll {
    /// Not decided yet.
    Pending,
    /// Here it is.
    Ready(Artifact),
    /// There will be none.
    Failed(PrefetchError),
}

/// What has become of a request after waiting for it.
#[derive(Debug, Clone)]
#[must_use]
pub enum Outcome {
    /// Here it is.
    Ready(Artifact),
    /// There will be none.
    Failed(PrefetchError),
    /// The time given to the wait is over; the request is still pending.
    StillPending,
}

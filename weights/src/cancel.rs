//! Cancellation of a fetch: raised once, seen by whoever looks or sleeps.

use std::convert::Infallible;
use std::time::Duration;

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded, never};

/// Tells a store that nobody waits for its answer any more. Also raised once the fetch is over.
#[derive(Debug, Clone)]
pub struct CancelToken {
    // Nothing is ever sent: the end of the channel is the signal, so that a store can sleep on it without polling.
    raised: Receiver<Infallible>,
}

impl CancelToken {
    /// A token and what raises it.
    #[must_use]
    pub fn new() -> (CancelSource, Self) {
        let (sender, raised) = bounded(1);
        (CancelSource { _sender: sender }, Self { raised })
    }

    /// A token that is never raised, for fetches that nobody cancels.
    #[must_use]
    pub fn never() -> Self {
        Self { raised: never() }
    }

    /// Whether it was raised.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.raised.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// Sleeps for `timeout`, or until it is raised; whether it was.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        self.raised.recv_timeout(timeout) == Err(RecvTimeoutError::Disconnected)
    }
}

/// Raises its token when dropped.
#[derive(Debug)]
pub struct CancelSource {
    _sender: Sender<Infallible>,
}

impl CancelSource {
    /// Raises the token.
    pub fn cancel(self) {
        drop(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_copy_of_a_token_is_raised_at_once_and_stays_raised() {
        let (source, token) = CancelToken::new();
        let copy = token.clone();
        assert!(!token.is_cancelled() && !copy.is_cancelled());
        assert!(!token.wait(Duration::ZERO));
        source.cancel();
        assert!(token.is_cancelled() && copy.is_cancelled());
        assert!(copy.wait(Duration::MAX), "a sleeper is woken");
    }

    #[test]
    fn a_token_without_a_source_is_never_raised() {
        let token = CancelToken::never();
        assert!(!token.is_cancelled());
        assert!(!token.wait(Duration::from_nanos(1)));
    }
}

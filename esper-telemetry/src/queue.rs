//! The way from callers to the worker: two bounded channels, never waited for.
//!
//! Critical events go to a reserve of their own and to the common channel only when that is full, so that a flood of
//! ordinary events cannot displace them. Everything carries its order of emission, by which the worker merges the two.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crossbeam::channel::{Receiver, Select, Sender, TryRecvError, bounded};
use leyline::telemetry::{Boundary, Event, Level};
use serde::{Deserialize, Serialize};

use crate::ledger::Ticket;

/// How much may wait for the worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueueConfig {
    /// Events and packets of all levels (count).
    pub capacity: NonZeroUsize,
    /// Further critical events (count).
    pub critical_capacity: NonZeroUsize,
}

impl Default for QueueConfig {
    fn default() -> Self {
        let count = |n| NonZeroUsize::new(n).expect("a literal above 0");
        Self { capacity: count(1024), critical_capacity: count(64) }
    }
}

/// What travels to the worker.
#[derive(Debug)]
pub(crate) enum Item {
    Event(QueuedEvent),
    Snapshot(Snapshot),
}

#[derive(Debug)]
pub(crate) struct QueuedEvent {
    pub(crate) order: u64,
    pub(crate) event: Event,
    pub(crate) ticket: Ticket,
}

/// A boundary with the values read at it, in the order of the registry's series.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) order: u64,
    pub(crate) boundary: Boundary,
    pub(crate) created_unix_ms: u64,
    pub(crate) values: Vec<Option<f64>>,
    pub(crate) ticket: Ticket,
}

/// The callers' end.
#[derive(Debug)]
pub(crate) struct Intake {
    common: Sender<Item>,
    reserve: Sender<Item>,
    lines: Lines,
}

/// The worker's end.
#[derive(Debug)]
pub(crate) struct Outlet {
    lines: Lines,
    close: Receiver<()>,
}

/// Stops the intake when dropped, and with it, once both channels are empty, the worker.
#[derive(Debug)]
pub(crate) struct Closer {
    state: Arc<State>,
    /// Held for its drop, which wakes the worker.
    _wake: Sender<()>,
}

/// Both channels as a receiver sees them.
#[derive(Debug, Clone)]
struct Lines {
    common: Receiver<Item>,
    reserve: Receiver<Item>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Nothing is taken any more.
    closed: AtomicBool,
    /// There is no worker any more.
    ended: AtomicBool,
}

pub(crate) fn queue(config: &QueueConfig) -> (Intake, Outlet, Closer) {
    let (common_in, common) = bounded(config.capacity.get());
    let (reserve_in, reserve) = bounded(config.critical_capacity.get());
    let (wake, close) = bounded(0);
    let state = Arc::new(State::default());
    let lines = Lines { common, reserve, state: Arc::clone(&state) };
    (
        Intake { common: common_in, reserve: reserve_in, lines: lines.clone() },
        Outlet { lines, close },
        Closer { state, _wake: wake },
    )
}

impl Intake {
    /// Takes `item` when there is room; otherwise drops it, which its ticket counts. Never waits.
    pub(crate) fn offer(&self, item: Item) {
        let state = &self.lines.state;
        if state.closed.load(Ordering::Acquire) || state.ended.load(Ordering::Acquire) {
            return;
        }
        self.send(item);
        // The worker may have ended in between. Either it saw the item when it discarded what was left, or the flag
        // is seen here: both sides write, fence, then read.
        fence(Ordering::SeqCst);
        if state.ended.load(Ordering::Acquire) {
            self.lines.discard();
        }
    }

    fn send(&self, item: Item) {
        let critical = matches!(&item, Item::Event(queued) if queued.event.desc.level == Level::Critical);
        let item = match critical.then_some(&self.reserve) {
            None => item,
            Some(reserve) => match reserve.try_send(item) {
                Ok(()) => return,
                Err(refused) => refused.into_inner(),
            },
        };
        drop(self.common.try_send(item));
    }
}

impl Lines {
    /// Drops everything, which the tickets count.
    fn discard(&self) {
        self.common.try_iter().chain(self.reserve.try_iter()).for_each(drop);
    }
}

impl Outlet {
    /// The next item, from the reserve if it has one; waits for it. [`None`] when closed and empty.
    pub(crate) fn next(&self) -> Option<Item> {
        loop {
            // Looked at before the channels: what was sent before the close is found below.
            let closed = matches!(self.close.try_recv(), Err(TryRecvError::Disconnected));
            if let Some(item) = self.next_reserved() {
                return Some(item);
            }
            match self.lines.common.try_recv() {
                Ok(item) => return Some(item),
                // The recorder is gone; a last critical event may have come since the reserve was looked at.
                Err(TryRecvError::Disconnected) => return self.next_reserved(),
                Err(TryRecvError::Empty) if closed => return None,
                Err(TryRecvError::Empty) => self.wait(),
            }
        }
    }

    /// The next critical event of the reserve, if there is one now.
    pub(crate) fn next_reserved(&self) -> Option<Item> {
        self.lines.reserve.try_recv().ok()
    }

    fn wait(&self) {
        let mut select = Select::new();
        select.recv(&self.lines.common);
        select.recv(&self.lines.reserve);
        select.recv(&self.close);
        select.ready();
    }
}

impl Drop for Outlet {
    /// Whether the worker is done or panicked: what is left, and what comes later, is dropped and counted.
    fn drop(&mut self) {
        self.lines.state.ended.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.lines.discard();
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.state.closed.store(true, Ordering::Release);
    }
}

//! The way from callers to the worker: two channels, never waited for.
//!
//! To wake a thread takes a caller longer than all else that it does here, so most items wake nobody: the worker looks every [`POLL`]. What is
//! critical, the boundary after it, what fills half of the common channel, and the end wake it.
//!
//! Critical events have a channel of their own, the reserve, which takes them whatever waits already; the common one is bounded. Everything
//! carries its order of emission, by which the worker merges the two. Packets on their way to a remote sink wait in another such queue.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, TryRecvError, bounded, unbounded};
use leyline::telemetry::{Boundary, Event, Level};
use serde::{Deserialize, Serialize};

use crate::ledger::Ticket;
use crate::sync::{AtomicBool, Ordering, fence, switch};

/// Longest time for which an item that is not critical waits for a worker that has nothing else to do.
pub const POLL: Duration = Duration::from_millis(20);

/// How much may wait for the worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueueConfig {
    /// Packets, and events that are not critical (count); more are dropped and counted. Critical events always find room.
    pub capacity: NonZeroUsize,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self { capacity: const { NonZeroUsize::new(1024).expect("above 0") } }
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

/// What has a reserve.
pub(crate) trait Queued {
    /// Whether it goes to the reserve.
    fn is_critical(&self) -> bool;

    /// Whether the critical ones before it are delivered with it.
    fn is_boundary(&self) -> bool;
}

impl Queued for Item {
    fn is_critical(&self) -> bool {
        matches!(self, Self::Event(queued) if queued.event.desc.level == Level::Critical)
    }

    fn is_boundary(&self) -> bool {
        matches!(self, Self::Snapshot(_))
    }
}

/// The callers' end.
#[derive(Debug)]
pub(crate) struct Intake<T> {
    common: Sender<T>,
    reserve: Sender<T>,
    lines: Lines<T>,
    wake: Sender<()>,
    /// Whether something critical came after the last boundary.
    owes: AtomicBool,
}

/// The worker's end.
#[derive(Debug)]
pub(crate) struct Outlet<T> {
    lines: Lines<T>,
    woken: Receiver<()>,
}

/// Stops the intake when dropped, and with it, once both channels are empty, the worker.
#[derive(Debug)]
pub(crate) struct Closer {
    state: Arc<State>,
    wake: Sender<()>,
}

/// Both channels as a receiver sees them.
#[derive(Debug)]
struct Lines<T> {
    common: Receiver<T>,
    reserve: Receiver<T>,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    /// Nothing is taken any more.
    closed: AtomicBool,
    /// There is no worker any more.
    ended: AtomicBool,
}

pub(crate) fn queue<T: Queued>(config: &QueueConfig) -> (Intake<T>, Outlet<T>, Closer) {
    let (common_in, common) = bounded(config.capacity.get());
    let (reserve_in, reserve) = unbounded();
    // One that is not taken yet wakes as well as two.
    let (wake, woken) = bounded(1);
    let state = Arc::new(State { closed: AtomicBool::new(false), ended: AtomicBool::new(false) });
    let lines = Lines { common, reserve, state: Arc::clone(&state) };
    (
        Intake {
            common: common_in,
            reserve: reserve_in,
            lines: Lines {
                common: lines.common.clone(),
                reserve: lines.reserve.clone(),
                state: Arc::clone(&lines.state),
            },
            wake: wake.clone(),
            owes: AtomicBool::new(false),
        },
        Outlet { lines, woken },
        Closer { state, wake },
    )
}

impl<T: Queued> Intake<T> {
    /// Takes `item` when it is critical or there is room; otherwise drops it, which its ticket counts. Never waits.
    pub(crate) fn offer(&self, item: T) {
        let state = &self.lines.state;
        if state.closed.load(Ordering::Acquire) || state.ended.load(Ordering::Acquire) {
            return;
        }
        let is_urgent = item.is_critical() || item.is_boundary() && self.owes.load(Ordering::Relaxed);
        if is_urgent {
            self.owes.store(!item.is_boundary(), Ordering::Relaxed);
        }
        self.send(item);
        if is_urgent || 2 * self.common.len() >= self.common.capacity().unwrap_or_default() {
            self.wake.try_send(()).ok();
        }
        // The worker may have ended in between. Either it saw the item when it discarded what was left, or the flag
        // is seen here: both sides write, fence, then read.
        fence(Ordering::SeqCst);
        if state.ended.load(Ordering::Acquire) {
            self.lines.discard();
        }
    }

    fn send(&self, item: T) {
        switch();
        let channel = if item.is_critical() { &self.reserve } else { &self.common };
        drop(channel.try_send(item));
    }
}

impl<T> Lines<T> {
    /// Drops everything, which the tickets count.
    fn discard(&self) {
        switch();
        self.common.try_iter().chain(self.reserve.try_iter()).for_each(drop);
    }
}

impl<T> Outlet<T> {
    /// The next item, from the reserve if it has one; waits for it, and calls `idle` every [`POLL`] meanwhile. [`None`] when closed and empty.
    pub(crate) fn next(&self, mut idle: impl FnMut()) -> Option<T> {
        loop {
            // Looked at before the channels: what was sent before the close is found below.
            let closed = self.lines.state.closed.load(Ordering::Acquire);
            switch();
            if let Some(item) = self.next_reserved() {
                return Some(item);
            }
            switch();
            match self.lines.common.try_recv() {
                Ok(item) => return Some(item),
                // The recorder is gone; a last critical event may have come since the reserve was looked at.
                Err(TryRecvError::Disconnected) => return self.next_reserved(),
                Err(TryRecvError::Empty) if closed => return None,
                Err(TryRecvError::Empty) => {
                    idle();
                    self.wait();
                }
            }
        }
    }

    /// The next critical event of the reserve, if there is one now.
    pub(crate) fn next_reserved(&self) -> Option<T> {
        self.lines.reserve.try_recv().ok()
    }

    #[cfg(all(test, feature = "model-check"))]
    #[expect(clippy::unused_self, reason = "the scheduler decides who is next")]
    fn wait(&self) {
        switch();
    }

    #[cfg(not(all(test, feature = "model-check")))]
    fn wait(&self) {
        self.woken.recv_timeout(POLL).ok();
    }
}

impl<T> Drop for Outlet<T> {
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
        self.wake.try_send(()).ok();
    }
}

#[cfg(test)]
#[cfg(not(feature = "model-check"))]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Kind {
        Common,
        Critical,
        Boundary,
    }
    use Kind::{Boundary, Common, Critical};

    impl Queued for Kind {
        fn is_critical(&self) -> bool {
            *self == Critical
        }

        fn is_boundary(&self) -> bool {
            *self == Boundary
        }
    }

    #[test]
    fn what_is_critical_the_boundary_after_it_what_fills_half_of_the_queue_and_the_end_wake_the_worker() {
        let (intake, outlet, closer) = queue(&QueueConfig { capacity: NonZeroUsize::new(12).unwrap() });
        let is_woken = || outlet.woken.try_recv().is_ok();
        let items = [Common, Boundary, Critical, Common, Boundary, Boundary, Common, Boundary];
        let woken = items.map(|item| {
            intake.offer(item);
            is_woken()
        });
        assert_eq!(woken, [false, false, true, false, true, false, true, true]);
        drop(closer);
        assert!(is_woken());
    }

    #[test]
    fn an_item_that_wakes_nobody_is_found() {
        let (intake, outlet, closer) = queue(&QueueConfig::default());
        let found = std::thread::scope(|threads| {
            let worker = threads.spawn(|| (0..3).map_while(|_| outlet.next(|| ())).collect::<Vec<_>>());
            for _ in 0..3 {
                std::thread::sleep(POLL / 4);
                intake.offer(Common);
            }
            worker.join().unwrap()
        });
        drop(closer);
        assert_eq!(found, [Common; 3]);
        assert_eq!(outlet.next(|| ()), None);
    }
}

/// Every run takes the same schedules; a failure prints one that `shuttle::replay` repeats.
#[cfg(test)]
#[cfg(feature = "model-check")]
mod model {
    use leyline::telemetry::EventDesc;
    use shuttle::scheduler::{PctScheduler, RandomScheduler};
    use shuttle::{Config, Runner, thread};

    use super::*;
    use crate::catalogue::Catalogue;
    use crate::ledger::{Counts, Ledger};
    use crate::registry::Registry;

    const SEED: u64 = 24;
    const NUM_SCHEDULES: usize = 4_000;
    const NUM_CALLERS: u64 = 2;
    const NUM_EVENTS: u64 = 3;

    static COMMON: EventDesc = EventDesc { name: "common", level: Level::Info, help: "", attributes: &[] };
    static CRITICAL: EventDesc = EventDesc { name: "critical", level: Level::Critical, help: "", attributes: &[] };

    fn check(model: impl Fn() + Send + Sync + Clone + 'static) {
        let random = RandomScheduler::new_from_seed(SEED, NUM_SCHEDULES);
        Runner::new(random, Config::default()).run(model.clone());
        Runner::new(PctScheduler::new_from_seed(SEED, 3, NUM_SCHEDULES), Config::default()).run(model);
    }

    /// Callers offer events, and the worker takes `most` and goes; the queue is closed meanwhile, or after them. What became of the events, and
    /// how many critical ones were not taken.
    fn use_a_queue(most: usize, closes_early: bool) -> (Counts, u64) {
        let ledger = Arc::new(Ledger::new(&Registry::new(Catalogue::new(&[]).unwrap())));
        let (intake, outlet, closer) = queue(&QueueConfig { capacity: NonZeroUsize::new(2).unwrap() });
        let mut closer = Some(closer);
        let intake = Arc::new(intake);
        let callers: Vec<_> = (0..NUM_CALLERS)
            .map(|_| {
                let (intake, ledger) = (Arc::clone(&intake), Arc::clone(&ledger));
                thread::spawn(move || {
                    for index in 0..NUM_EVENTS {
                        let event = Event::new(if index == 1 { &CRITICAL } else { &COMMON });
                        let (order, ticket) = (ledger.next_order(), ledger.emit_event(event.desc));
                        intake.offer(Item::Event(QueuedEvent { order, event, ticket }));
                    }
                })
            })
            .collect();
        let worker = thread::spawn(move || {
            for _ in 0..most {
                let Some(Item::Event(mut taken)) = outlet.next(|| ()) else { return };
                taken.ticket.redeem();
            }
        });
        closer.take_if(|_| closes_early);
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        drop(closer);
        worker.join().unwrap();
        (ledger.stats().events, ledger.undelivered().iter().map(|(_, count)| count).sum())
    }

    #[test]
    fn whatever_the_order_every_event_is_delivered_or_counted_as_dropped() {
        for most in [0, 2, usize::MAX] {
            check(move || {
                let (counts, _) = use_a_queue(most, true);
                assert_eq!(counts.emitted, NUM_CALLERS * NUM_EVENTS);
                assert_eq!(counts.in_flight(), 0, "{counts:?}");
            });
        }
    }

    #[test]
    fn whatever_the_order_no_critical_event_is_dropped_before_the_queue_is_closed() {
        check(|| {
            let (counts, critical) = use_a_queue(usize::MAX, false);
            assert_eq!((counts.in_flight(), critical), (0, 0), "{counts:?}");
        });
    }
}

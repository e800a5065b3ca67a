//! Exact bookkeeping: everything emitted is delivered or dropped, by construction.
//!
//! What a caller emits carries a ticket. One that is not redeemed counts as dropped when it goes out of scope,
//! so a full queue, a closed queue, a stopped worker and a panicking sink need no code of their own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use leyline::telemetry::Counter;

use crate::registry::Registry;
use crate::telemetry;

/// How many things of one kind there were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Taken from callers, or made by the recorder itself.
    pub emitted: u64,
    /// Written into a packet that at least one sink accepted; with no sinks at all, into any packet.
    pub delivered: u64,
    /// Lost: no room in the queue, recorder closed, or no sink accepted the packet.
    pub dropped: u64,
}

impl Counts {
    /// Neither delivered nor dropped yet. 0 after a complete shutdown.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.emitted.saturating_sub(self.delivered).saturating_sub(self.dropped)
    }
}

/// What became of events and packets so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events, the recorder's own included.
    pub events: Counts,
    /// Packets: one per `publish`, and those that the recorder makes for events that no `publish` followed.
    pub packets: Counts,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    events: Arc<Account>,
    packets: Arc<Account>,
    order: AtomicU64,
}

impl Ledger {
    pub(crate) fn new(registry: &Registry) -> Self {
        let dropped = |kind| registry.counter(&telemetry::DROPPED_TOTAL, &[kind]);
        let events = Account {
            emitted: registry.counter(&telemetry::EVENTS_TOTAL, &[]),
            delivered: Counter::new(),
            dropped: dropped("event"),
        };
        let packets = Account {
            emitted: Counter::new(),
            delivered: registry.counter(&telemetry::PACKETS_TOTAL, &[]),
            dropped: dropped("packet"),
        };
        Self { events: Arc::new(events), packets: Arc::new(packets), order: AtomicU64::new(0) }
    }

    pub(crate) fn emit_event(&self) -> Ticket {
        Ticket::new(&self.events)
    }

    pub(crate) fn emit_packet(&self) -> Ticket {
        Ticket::new(&self.packets)
    }

    /// A number that grows with every call: the order in which things were emitted, over both queues.
    pub(crate) fn next_order(&self) -> u64 {
        self.order.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats { events: self.events.counts(), packets: self.packets.counts() }
    }
}

/// Proof that something was emitted and is neither delivered nor dropped yet.
#[derive(Debug)]
pub(crate) struct Ticket {
    account: Arc<Account>,
    redeemed: bool,
}

impl Ticket {
    fn new(account: &Arc<Account>) -> Self {
        account.emitted.add(1);
        Self { account: Arc::clone(account), redeemed: false }
    }

    /// Counts as delivered.
    pub(crate) fn redeem(mut self) {
        self.account.delivered.add(1);
        self.redeemed = true;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.redeemed {
            self.account.dropped.add(1);
        }
    }
}

/// The tickets of a packet: delivered when the first sink accepts it, dropped when nobody is left who could.
#[derive(Debug)]
pub(crate) struct Receipt(Mutex<Vec<Ticket>>);

impl Receipt {
    pub(crate) fn new(tickets: Vec<Ticket>) -> Self {
        Self(Mutex::new(tickets))
    }

    pub(crate) fn accept(&self) {
        let tickets = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        tickets.into_iter().for_each(Ticket::redeem);
    }
}

#[derive(Debug)]
struct Account {
    emitted: Counter,
    delivered: Counter,
    dropped: Counter,
}

impl Account {
    /// The outcomes are read first, so that a concurrent emission cannot make them exceed what was emitted.
    fn counts(&self) -> Counts {
        let (delivered, dropped) = (self.delivered.get(), self.dropped.get());
        Counts { emitted: self.emitted.get(), delivered, dropped }
    }
}

//! Exact bookkeeping: everything emitted is delivered or dropped, by construction.
//!
//! What a caller emits carries a ticket. One that is not redeemed counts as dropped when it goes out of scope,
//! so a full queue, a closed queue, a stopped worker and a panicking sink need no code of their own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use leyline::telemetry::{Counter, EventDesc, Gauge, Level};

use crate::registry::Registry;
use crate::telemetry;

/// How many things of one kind there were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Taken from callers, or made by the recorder itself.
    pub emitted: u64,
    /// Written into a packet that at least one sink accepted; with no sinks at all, into any packet.
    pub delivered: u64,
    /// Lost: no room in the queue, recorder closed, or no sink accepted the packet. Of critical events only the latter two, and no sink only
    /// where each refused the packet for good or the recorder ended.
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
    critical: BTreeMap<&'static str, Arc<Critical>>,
    waiting: Gauge,
    by_name: BTreeMap<&'static str, (&'static EventDesc, Counter)>,
    is_over: AtomicBool,
}

/// Name under which critical events outside of the catalogue are counted.
const UNLISTED: &str = "unlisted";

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
        let is_critical = |desc: &&EventDesc| desc.level == Level::Critical;
        let names = registry.catalogue().events().filter(is_critical).map(|desc| desc.name);
        let ledger = Self {
            events: Arc::new(events),
            packets: Arc::new(packets),
            order: AtomicU64::new(0),
            critical: names.chain([UNLISTED]).map(|name| (name, Arc::default())).collect(),
            waiting: registry.gauge(&telemetry::CRITICAL_WAITING, &[]),
            by_name: registry.catalogue().events().map(|desc| (desc.name, (desc, Counter::new()))).collect(),
            is_over: AtomicBool::new(false),
        };
        ledger.tell_waiting();
        ledger
    }

    pub(crate) fn emit_event(&self, desc: &EventDesc) -> Ticket {
        self.by_name.get(desc.name).into_iter().for_each(|(_, count)| count.add(1));
        let of_name = || self.critical.get(desc.name).or_else(|| self.critical.get(UNLISTED));
        Ticket::new(&self.events, (desc.level == Level::Critical).then(of_name).flatten())
    }

    pub(crate) fn emit_packet(&self) -> Ticket {
        Ticket::new(&self.packets, None)
    }

    /// Sets the gauge of critical events that wait. Called before it is read.
    pub(crate) fn tell_waiting(&self) {
        let waiting = self.critical.values().map(|critical| critical.waiting.load(Ordering::Relaxed));
        self.waiting.set(waiting.sum::<u64>() as f64);
    }

    /// Critical events by name that no sink has taken.
    pub(crate) fn undelivered(&self) -> Vec<(&'static str, u64)> {
        let count = |critical: &Critical| critical.undelivered.load(Ordering::Relaxed);
        let counts = self.critical.iter().map(|(name, critical)| (*name, count(critical)));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// How often each event of the catalogue happened.
    pub(crate) fn by_name(&self) -> impl Iterator<Item = &(&'static EventDesc, Counter)> {
        self.by_name.values()
    }

    /// What is emitted from now on is none of the run.
    pub(crate) fn end_run(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
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
    critical: Option<Arc<Critical>>,
}

/// Critical events of one name.
#[derive(Debug, Default)]
struct Critical {
    /// Those whose ticket exists: a sink may still take them.
    waiting: AtomicU64,
    undelivered: AtomicU64,
}

impl Ticket {
    fn new(account: &Arc<Account>, critical: Option<&Arc<Critical>>) -> Self {
        account.emitted.add(1);
        if let Some(critical) = critical {
            critical.waiting.fetch_add(1, Ordering::Relaxed);
            critical.undelivered.fetch_add(1, Ordering::Relaxed);
        }
        Self { account: Arc::clone(account), redeemed: false, critical: critical.cloned() }
    }

    /// Counts as delivered, once.
    pub(crate) fn redeem(&mut self) {
        if !std::mem::replace(&mut self.redeemed, true) {
            self.account.delivered.add(1);
            self.critical.iter().for_each(|critical| _ = critical.undelivered.fetch_sub(1, Ordering::Relaxed));
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.redeemed {
            self.account.dropped.add(1);
        }
        self.critical.iter().for_each(|critical| _ = critical.waiting.fetch_sub(1, Ordering::Relaxed));
    }
}

/// The tickets of a packet: delivered when the first sink accepts it, dropped when nobody is left who could. They exist until all sinks are done.
#[derive(Debug)]
pub(crate) struct Receipt(Mutex<Vec<Ticket>>);

impl Receipt {
    pub(crate) fn new(tickets: Vec<Ticket>) -> Self {
        Self(Mutex::new(tickets))
    }

    /// A sink has the packet, which has the first ticket, or that and its events.
    pub(crate) fn accept(&self, has_events: bool) {
        let mut tickets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = if has_events { tickets.len() } else { 1 };
        tickets.iter_mut().take(count).for_each(Ticket::redeem);
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

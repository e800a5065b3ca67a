//! Weights of new seeds from a library: asked for when a seed germinates, put in place when they arrive.
//!
//! A seed whose weights are under way is germinated and waits; the gate before training holds it back. No step waits:
//! arrivals are looked for at the ends of steps and epochs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use esper_weights::{
    Artifact, BreakerState, KernelStore, Poll, PrefetchConfig, PrefetchError, PrefetchStats, Prefetcher, Ticket,
};
use leyline::clock::Clock;
use leyline::id::{BlueprintId, SeedId};
use leyline::telemetry::{Counter, Event, Gauge, Recorder};
use serde::{Deserialize, Serialize};

use crate::blueprint::Registry;
use crate::config::{ConfigIssue, KasminaConfig};
use crate::error::Error;
use crate::telemetry::{Telemetry, events, metrics};

/// A wait for the lock of the cache that is reported, milliseconds.
const LONG_LOCK_WAIT_MS: f64 = 100.0;

/// What happens to a seed whose weights do not come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// It is removed, and its slot is embargoed.
    #[default]
    Remove,
    /// It starts from the weights that were drawn for it.
    Fresh,
}

/// Which seeds get their weights from a library, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LibraryConfig {
    /// Blueprints whose weights are fetched; all when absent.
    pub blueprints: Option<Vec<BlueprintId>>,
    /// What happens to a seed whose weights do not come: `remove` or `fresh`.
    pub on_failure: OnFailure,
    /// Fetched weights kept on the device (count); 0 keeps none.
    pub device_capacity: usize,
    /// How they are fetched and kept.
    pub prefetch: PrefetchConfig,
}

impl Default for LibraryConfig {
    fn default() -> Self {
        let (on_failure, prefetch) = (OnFailure::default(), PrefetchConfig::default());
        Self { blueprints: None, on_failure, device_capacity: 32, prefetch }
    }
}

impl LibraryConfig {
    /// Everything that is wrong with the values; empty when they can be used.
    #[must_use]
    pub fn validate(&self) -> Vec<ConfigIssue> {
        let mut issues = self.prefetch.validate();
        if self.blueprints.as_ref().is_some_and(Vec::is_empty) {
            issues.push(ConfigIssue::new("blueprints", "is empty: expected at least one name, or no such key for all"));
        }
        issues
    }

    /// As [`Self::validate`], with the names of blueprints, of which `seeds` has to offer every one.
    #[must_use]
    pub fn validate_for(&self, seeds: &KasminaConfig) -> Vec<ConfigIssue> {
        let mut registry = Registry::on_offer(seeds);
        match registry.configure(seeds) {
            Ok(()) => self.validate_with(&registry),
            // The other section has issues of its own, and nobody knows what it offers.
            Err(_) => self.validate(),
        }
    }

    /// As [`Self::validate`], with the names of blueprints: no germination could ask for one that nobody offers.
    pub(super) fn validate_with(&self, registry: &Registry) -> Vec<ConfigIssue> {
        let mut issues = self.validate();
        for (index, blueprint) in self.blueprints.iter().flatten().enumerate() {
            if let Err(Error::UnknownBlueprint { known, .. }) = registry.get(blueprint) {
                let message = format!("is `{blueprint}`: expected one of {known}");
                issues.push(ConfigIssue::new(format!("blueprints[{index}]"), message));
            }
        }
        issues
    }
}

/// What became of a seed's request.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) blueprint: BlueprintId,
    /// Since the request.
    pub(super) latency_ms: f64,
    /// Its weights, or why there will be none.
    pub(super) outcome: Result<Artifact, PrefetchError>,
}

/// What is known of a seed whose request was answered.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Fetched {
    /// From request to arrival, milliseconds.
    pub(super) latency_ms: Option<f64>,
    /// Whether it started from drawn weights instead.
    pub(super) is_fallback: bool,
}

#[derive(Debug)]
struct Pending {
    ticket: Ticket,
    since: Duration,
}

/// The library with the requests that are under way.
#[derive(Debug)]
pub(super) struct Library {
    config: LibraryConfig,
    prefetcher: Prefetcher,
    clock: Arc<dyn Clock>,
    pending: BTreeMap<SeedId, Pending>,
    fetched: BTreeMap<SeedId, Fetched>,
    gauges: Gauges,
}

impl Library {
    pub(super) fn new(
        store: Arc<dyn KernelStore>,
        config: LibraryConfig,
        clock: Arc<dyn Clock>,
        recorder: &dyn Recorder,
    ) -> Result<Self, PrefetchError> {
        let prefetcher = Prefetcher::new(store, config.prefetch.clone(), Arc::clone(&clock))?;
        let (pending, fetched) = (BTreeMap::new(), BTreeMap::new());
        let mut library = Self { config, prefetcher, clock, pending, fetched, gauges: Gauges::new(recorder) };
        library.report(None);
        Ok(library)
    }

    pub(super) fn config(&self) -> &LibraryConfig {
        &self.config
    }

    /// Asks for the weights of a seed to be; none when the library is not for its blueprint.
    pub(super) fn request(&self, blueprint: &BlueprintId) -> Result<Option<Ticket>, PrefetchError> {
        let serves = self.config.blueprints.as_ref().is_none_or(|list| list.contains(blueprint));
        serves.then(|| self.prefetcher.request(blueprint)).transpose()
    }

    /// The request belongs to this seed from now on.
    pub(super) fn accept(&mut self, seed: SeedId, ticket: Ticket, telemetry: &Telemetry) {
        let event = Event::new(&events::PREFETCH_REQUESTED);
        telemetry.event(event.with("seed_id", seed).with("blueprint_id", ticket.blueprint()));
        self.pending.insert(seed, Pending { ticket, since: self.clock.now() });
    }

    /// Seeds whose requests are not settled.
    pub(super) fn waiting(&self) -> Vec<SeedId> {
        self.pending.keys().copied().collect()
    }

    /// What became of the request of a seed; none while it is undecided. The answer stays until it is settled.
    pub(super) fn arrival(&self, seed: SeedId) -> Option<Arrival> {
        let Pending { ticket, since } = self.pending.get(&seed)?;
        let outcome = match self.prefetcher.poll(ticket) {
            Poll::Pending => return None,
            Poll::Ready(artifact) => Ok(artifact),
            Poll::Failed(error) => Err(error),
        };
        let latency_ms = self.clock.now().saturating_sub(*since).as_secs_f64() * 1e3;
        Some(Arrival { blueprint: ticket.blueprint().clone(), latency_ms, outcome })
    }

    /// The seed acted on the answer.
    pub(super) fn settled(&mut self, seed: SeedId) {
        self.pending.remove(&seed);
    }

    /// The seed is gone: nobody waits for its weights, also where an answer is there that it has not seen.
    pub(super) fn forget(&mut self, seed: SeedId, reason: &str, telemetry: &Telemetry) {
        self.fetched.remove(&seed);
        if let Some(Pending { ticket, .. }) = self.pending.remove(&seed) {
            let event = Event::new(&events::PREFETCH_CANCELED)
                .with("seed_id", seed)
                .with("blueprint_id", ticket.blueprint())
                .with("reason", reason);
            telemetry.event(event);
            self.prefetcher.cancel(ticket);
            self.report(Some(telemetry));
        }
    }

    pub(super) fn note(&mut self, seed: SeedId, fetched: Fetched) {
        if fetched.is_fallback {
            self.gauges.fallbacks.add(1);
        }
        if let Some(latency) = fetched.latency_ms {
            self.gauges.fetch_latency.set(latency);
        }
        self.fetched.insert(seed, fetched);
    }

    pub(super) fn fetched(&self, seed: SeedId) -> Fetched {
        self.fetched.get(&seed).copied().unwrap_or_default()
    }

    /// Drops what was kept for too long; how many.
    pub(super) fn expire(&self) -> usize {
        self.prefetcher.expire()
    }

    /// Drops everything that was fetched and cancels what is under way; how many were kept.
    pub(super) fn clear(&mut self) -> usize {
        self.prefetcher.clear()
    }

    /// Brings the metrics up to date and reports what began since the last call.
    pub(super) fn report(&mut self, telemetry: Option<&Telemetry>) {
        let stats = self.prefetcher.stats();
        self.gauges.update(&stats, telemetry);
    }
}

#[derive(Debug)]
struct Gauges {
    inflight: Gauge,
    requests: [(Counter, u64); 5],
    latency: Gauge,
    last_latency: Gauge,
    fetch_latency: Gauge,
    fallbacks: Counter,
    breaker_state: Gauge,
    breaker_failures: Gauge,
    seen_state: BreakerState,
    size: Gauge,
    bytes: Gauge,
    hit_rate: Gauge,
    evictions: (Counter, u64),
    lock_wait: Gauge,
    seen_lock_wait: f64,
}

impl Gauges {
    fn new(recorder: &dyn Recorder) -> Self {
        let (gauge, counter) = (|desc| recorder.gauge(desc, &[]), |desc| recorder.counter(desc, &[]));
        let status = |name| (recorder.counter(&metrics::PREFETCH_REQUESTS, &[name]), 0);
        Self {
            inflight: gauge(&metrics::PREFETCH_INFLIGHT),
            requests: ["scheduled", "ready", "error", "timeout", "canceled"].map(status),
            latency: gauge(&metrics::PREFETCH_LATENCY),
            last_latency: gauge(&metrics::PREFETCH_LAST_LATENCY),
            fetch_latency: gauge(&metrics::FETCH_LATENCY),
            fallbacks: counter(&metrics::FALLBACK_EVENTS),
            breaker_state: gauge(&metrics::BREAKER_STATE),
            breaker_failures: gauge(&metrics::BREAKER_FAILURES),
            seen_state: BreakerState::Closed,
            size: gauge(&metrics::CACHE_KERNEL_SIZE),
            bytes: gauge(&metrics::CACHE_KERNEL_BYTES),
            hit_rate: gauge(&metrics::CACHE_KERNEL_HIT_RATE),
            evictions: (counter(&metrics::CACHE_KERNEL_EVICTIONS), 0),
            lock_wait: gauge(&metrics::CACHE_LOCK_WAIT),
            seen_lock_wait: 0.0,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    fn update(&mut self, stats: &PrefetchStats, telemetry: Option<&Telemetry>) {
        let totals = [stats.scheduled, stats.ready, stats.error, stats.timeout, stats.canceled];
        for ((counter, seen), total) in self.requests.iter_mut().zip(totals) {
            counter.add(total - std::mem::replace(seen, total));
        }
        let (evictions, seen) = &mut self.evictions;
        evictions.add(stats.cache_evictions - std::mem::replace(seen, stats.cache_evictions));
        self.inflight.set(stats.inflight as f64);
        self.latency.set_or_clear(stats.latency_mean_ms);
        self.last_latency.set_or_clear(stats.latency_last_ms);
        self.breaker_state.set(f64::from(stats.breaker_state.number()));
        self.breaker_failures.set(f64::from(stats.breaker_failures));
        self.size.set(stats.cache_entries as f64);
        self.bytes.set(stats.cache_bytes as f64);
        self.hit_rate.set_or_clear(stats.cache_hit_rate());
        self.lock_wait.set(stats.lock_wait_max_ms);
        let Some(telemetry) = telemetry else { return };
        if self.seen_state != stats.breaker_state {
            self.seen_state = stats.breaker_state;
            let desc = match stats.breaker_state {
                BreakerState::Open => &events::BREAKER_EVENT,
                BreakerState::HalfOpen | BreakerState::Closed => &events::BREAKER_RECOVERED,
            };
            let event = Event::new(desc)
                .with("breaker_state", format_args!("{:?}", stats.breaker_state))
                .with("failures", stats.breaker_failures);
            telemetry.event(event);
        }
        if stats.lock_wait_max_ms > LONG_LOCK_WAIT_MS.max(self.seen_lock_wait) {
            let wait = format!("{:.1}", stats.lock_wait_max_ms);
            telemetry.event(Event::new(&events::CACHE_LOCK_CONTENTION).with("wait_ms", wait));
        }
        self.seen_lock_wait = stats.lock_wait_max_ms;
    }
}

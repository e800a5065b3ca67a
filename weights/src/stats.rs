//! What the prefetch has done so far, under the names that telemetry uses.

use esper_safety::BreakerState;

/// Counts since the start, and the state of now. Every scheduled request is at one time in exactly one of `ready`,
/// `error`, `timeout`, `canceled` and `inflight`. `None` is "not measured yet".
#[derive(Debug, Clone, PartialEq)]
pub struct PrefetchStats {
    /// Accepted requests: `kasmina.prefetch.requests_total`, status `scheduled`.
    pub scheduled: u64,
    /// Answered with an artifact, from the store or the cache: status `ready`.
    pub ready: u64,
    /// Failed, other than below: status `error`.
    pub error: u64,
    /// Undecided at their deadline: status `timeout`.
    pub timeout: u64,
    /// Cancelled before they were decided: status `canceled`.
    pub canceled: u64,
    /// Requests that were not accepted, because the queue was full.
    pub refused_queue_full: u64,
    /// Requests that were not accepted, because the breaker was open or every thread hangs.
    pub refused_breaker_open: u64,
    /// Undecided requests: `kasmina.prefetch.inflight`.
    pub inflight: u64,
    /// Fetches that wait for a worker.
    pub queued: u64,
    /// Workers inside the store, those included whose answer nobody wants any more.
    pub fetching: u64,
    /// Threads among these that were given up, because everybody who waited for their answer was gone.
    pub abandoned: u64,
    /// Mean time from request to artifact, of those the store answered: `kasmina.prefetch.latency_ms`.
    pub latency_mean_ms: Option<f64>,
    /// The same of the last one: `kasmina.prefetch.last_latency_ms`.
    pub latency_last_ms: Option<f64>,
    /// Artifacts in the cache: `kasmina.cache.kernel_size`.
    pub cache_entries: u64,
    /// Their bytes.
    pub cache_bytes: u64,
    /// Requests that the cache answered.
    pub cache_hits: u64,
    /// Requests that it did not answer.
    pub cache_misses: u64,
    /// Artifacts displaced or expired: `kasmina.cache.kernel_evictions`.
    pub cache_evictions: u64,
    /// How long the last caller waited for the lock: `kasmina.cache.lock_wait_ms`.
    pub lock_wait_last_ms: f64,
    /// The longest such wait.
    pub lock_wait_max_ms: f64,
    /// State of the breaker: `kasmina.breaker.state`.
    pub breaker_state: BreakerState,
    /// Failures in a row: `kasmina.breaker.failures`.
    pub breaker_failures: u32,
}

impl PrefetchStats {
    /// Share of requests that the cache answered: `kasmina.cache.kernel_hit_rate`.
    #[must_use]
    pub fn cache_hit_rate(&self) -> Option<f64> {
        let lookups = self.cache_hits + self.cache_misses;
        (lookups > 0).then(|| self.cache_hits as f64 / lookups as f64)
    }
}

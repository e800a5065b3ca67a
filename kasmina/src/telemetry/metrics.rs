//! Metrics of the seed manager.

leyline::declare_metrics! {
    /// Seeds from germination to holding.
    SEEDS_ACTIVE = Gauge "kasmina.seeds.active" Count [];
    /// Seeds that became part of the host.
    SEEDS_FOSSILIZED = Gauge "kasmina.seeds.fossilized" Count [];
    /// Wire number of the seed's stage; absent once its slot is free.
    SEED_STAGE = Gauge "kasmina.seed.stage" State ["seed_id"];
    /// Blend coefficient of the seed.
    SEED_ALPHA = Gauge "kasmina.seed.alpha" Ratio ["seed_id"];
    /// Optimizer steps done of the running alpha ramp; absent when none runs.
    SEED_ALPHA_STEPS = Gauge "kasmina.seed.alpha_steps" Count ["seed_id"];
    /// Trainable elements of the seed.
    SEED_PARAMETERS = Gauge "kasmina.seed.parameters" Count ["seed_id"];
    /// Whether the seed is in the network with all its weights: 0 while they are fetched and once it is removed.
    SEED_KERNEL_ATTACHED = Gauge "kasmina.seed.kernel_attached" Flag ["seed_id"];
    /// Whether the seed started from fresh weights because those of its blueprint could not be fetched.
    SEED_FALLBACK_USED = Gauge "kasmina.seed.fallback_used" Flag ["seed_id"];
    /// From the request of the seed's weights until they were in place, which is looked after at the ends of steps; absent when none were fetched in this process.
    SEED_KERNEL_LATENCY = Gauge "kasmina.seed.kernel_latency_ms" Milliseconds ["seed_id"];
    /// The older name of `kasmina.seed.kernel_latency_ms`, with the same value.
    SEED_LAST_KERNEL_LATENCY = Gauge "kasmina.seed.last_kernel_latency_ms" Milliseconds ["seed_id"];
    /// Leaks between this seed and the host found while it trained in the shadow.
    SEED_ISOLATION_VIOLATIONS = Gauge "kasmina.seed.isolation_violations" Count ["seed_id"];
    /// Leaks that the latest audit charged to the seed: 0 when it is isolated; absent outside the shadow and before an audit.
    SEED_ISOLATION_DOT = Gauge "kasmina.seed.isolation.dot" Count ["seed_id"];
    /// Root mean square norm of the host's gradient in the epoch in which the seed's was measured; absent until measured.
    SEED_HOST_NORM = Gauge "kasmina.seed.isolation.host_norm" GradientNorm ["seed_id"];
    /// Root mean square norm of the seed's gradient over the steps of an epoch; absent until measured.
    SEED_SEED_NORM = Gauge "kasmina.seed.isolation.seed_norm" GradientNorm ["seed_id"];
    /// Score of the latest verdict of a gate on the seed; absent before the first.
    SEED_GATE_SCORE = Gauge "kasmina.seed.gate_score" Ratio ["seed_id"];
    /// Whether the seed is paused.
    SEED_PAUSED = Gauge "kasmina.seed.paused" Flag ["seed_id"];

    /// Time the latest order took until it was answered, checks of its signature not included.
    APPLY_MS = Gauge "kasmina.apply_ms" Milliseconds [];
    /// Time the seed manager's end of the latest epoch took.
    FINALIZE_MS = Gauge "kasmina.finalize_ms" Milliseconds [];
    /// Time the latest restore of the seed manager's state took.
    ROLLBACK_LATENCY = Gauge "kasmina.rollback.latency_ms" Milliseconds [];

    /// Leaks between a seed in shadow training and the host, found by isolation audits.
    ISOLATION_VIOLATIONS = Counter "kasmina.isolation.violations" Count [];
    /// Isolation audits that ran.
    ISOLATION_AUDITS = Counter "kasmina.isolation.audits_total" Count [];
    /// Microbatches whose attribution could not be measured in the configured mode.
    ATTRIBUTION_FALLBACKS = Counter "kasmina.attribution.fallbacks_total" Count [];

    /// Least time of five forward passes of the latest new seed on two samples, the device synchronized.
    PREWARM_LATENCY = Gauge "kasmina.prewarm.latency_ms" Milliseconds [];
    /// From the request of the latest fetched weights until they were in place.
    FETCH_LATENCY = Gauge "kasmina.kernel.fetch_latency_ms" Milliseconds [];
    /// State of the breaker before the store of weights: 1 closed, 2 open, 3 half open.
    BREAKER_STATE = Gauge "kasmina.breaker.state" State [];
    /// Failures in a row that the breaker has counted.
    BREAKER_FAILURES = Gauge "kasmina.breaker.failures" Count [];
    /// Fetched weights kept in host memory.
    CACHE_KERNEL_SIZE = Gauge "kasmina.cache.kernel_size" Count [];
    /// Bytes of the fetched weights kept in host memory.
    CACHE_KERNEL_BYTES = Gauge "kasmina.cache.kernel_bytes" Bytes [];
    /// Share of requests that found their weights in host memory; absent before the first.
    CACHE_KERNEL_HIT_RATE = Gauge "kasmina.cache.kernel_hit_rate" Ratio [];
    /// Fetched weights dropped from host memory, for space or age.
    CACHE_KERNEL_EVICTIONS = Counter "kasmina.cache.kernel_evictions" Count [];
    /// Fetched weights kept on the device.
    CACHE_GPU_SIZE = Gauge "kasmina.cache.gpu_size" Count [];
    /// Fetched weights that may be kept on the device.
    CACHE_GPU_CAPACITY = Gauge "kasmina.cache.gpu_capacity" Count [];
    /// Share of attached weights that were on the device already; absent before the first.
    CACHE_GPU_HIT_RATE = Gauge "kasmina.cache.gpu_hit_rate" Ratio [];
    /// Fetched weights dropped from the device.
    CACHE_GPU_EVICTIONS = Counter "kasmina.cache.gpu_evictions" Count [];
    /// Entries in the histories of all seeds.
    CACHE_TELEMETRY_SIZE = Gauge "kasmina.cache.telemetry_size" Count [];
    /// Entries dropped from full histories.
    TELEMETRY_DROPPED = Counter "kasmina.telemetry.dropped_total" Count [];
    /// The longest time a request waited for the lock of the cache.
    CACHE_LOCK_WAIT = Gauge "kasmina.cache.lock_wait_ms" Milliseconds [];
    /// Seeds whose weights are being fetched.
    PREFETCH_INFLIGHT = Gauge "kasmina.prefetch.inflight" Count [];
    /// Accepted requests for weights by how they ended; `scheduled` counts all of them.
    PREFETCH_REQUESTS = Counter "kasmina.prefetch.requests_total" Count ["status"];
    /// Mean time from request to arrival of all fetched weights.
    PREFETCH_LATENCY = Gauge "kasmina.prefetch.latency_ms" Milliseconds [];
    /// Time from request to arrival of the latest fetched weights.
    PREFETCH_LAST_LATENCY = Gauge "kasmina.prefetch.last_latency_ms" Milliseconds [];
    /// Live seeds that started from fresh weights because a fetch failed.
    FALLBACK_ACTIVE = Gauge "kasmina.fallback.active" Count [];
    /// Seeds that started from fresh weights because a fetch failed.
    FALLBACK_EVENTS = Counter "kasmina.fallback.events_total" Count [];
}

//! Events of the seed manager, and the names of the older system that have no meaning here.

use leyline::telemetry::{EventDesc, Level};

/// One line per event: name, level, attributes, and what it means as the doc comment.
macro_rules! events {
    ($($(#[doc = $doc:literal])+ $ident:ident = $level:ident $name:literal [$($attribute:literal),*];)+) => {
        $($(#[doc = $doc])+
        pub static $ident: EventDesc = EventDesc {
            name: $name,
            level: Level::$level,
            help: ::core::concat!($($doc),+).trim_ascii(),
            attributes: &[$($attribute),*],
        };)+
        /// Every event of this crate.
        pub static EVENTS: &[&EventDesc] = &[$(&$ident),+];
    };
}

events! {
    /// An order was carried out
    SEED_OPERATION = Info "seed_operation" ["operation", "seed_id", "blueprint_id", "slot_id", "sequence", "reason"];
    /// An order was refused; nothing changed
    OPERATION_REFUSED = Warning "operation_refused" ["operation", "seed_id", "sequence", "error"];
    /// What the issuer of a command says about its inputs
    TAMIYO_ANNOTATIONS = Info "tamiyo_annotations" ["coverage", "sequence"];
    /// The issuer of a command had measured less than 0.3 of its inputs
    DEGRADED_INPUTS = Warning "degraded_inputs" ["coverage", "sequence"];
    /// How a new seed is mixed with the host's value
    BLEND_CONFIG = Info "blend_config" ["seed_id", "mode", "source", "alpha_vec_len"];
    /// A seed changed its stage
    SEED_STAGE_CHANGED = Info "seed_stage" ["seed_id", "from", "stage", "alpha", "reason"];
    /// A gate lets a seed pass: told once, at the end of the epoch in which it began to, else when the seed passes
    GATE_PASSED = Info "gate_event" ["seed_id", "gate", "target", "score", "met"];
    /// A gate refused a seed; without an id when it was to germinate
    GATE_FAILURE = Warning "gate_failure" ["seed_id", "gate", "target", "score", "failed"];
    /// The samples that confirm were read for a seed, and it helps
    GAIN_CONFIRMED = Info "gain_confirmed" ["seed_id", "loss_gain", "p_value", "level", "samples"];
    /// The samples that confirm were read for a seed, and do not show that it helps; they are not read for it again
    GAIN_NOT_CONFIRMED = Info "gain_not_confirmed" ["seed_id", "loss_gain", "p_value", "level", "samples"];
    /// A seed was removed, and nothing of it acts any more; the host keeps what it has learned meanwhile
    ROLLBACK_READY = Info "rollback_ready" ["seed_id", "stage", "reason"];
    /// A seed was taken out of the computation for a while
    SEED_PAUSED = Warning "seed_paused" ["seed_id", "stage"];
    /// A paused seed is back
    SEED_RESUMED = Info "seed_resumed" ["seed_id", "stage"];
    /// An alpha ramp reached its target
    RAMP_FINISHED = Info "ramp_finished" ["seed_id", "alpha", "step"];
    /// An isolation audit found leaks between a seed in shadow training and the host
    VIOLATION_RECORDED = Critical "violation_recorded" ["violations", "first"];
    /// Leaks were found in this run: the total at the end of an epoch in which it grew
    ISOLATION_TOTAL = Warning "isolation_violations" ["violations"];
    /// The configured attribution mode began to have no result
    ATTRIBUTION_FALLBACK = Warning "attribution_fallback" ["wanted", "used"];
    /// The breaker before the store of weights opened: nothing is asked of the store
    BREAKER_EVENT = Warning "breaker_event" ["breaker_state", "failures"];
    /// The breaker before the store of weights lets requests through again: one to try (half open), or all (closed)
    BREAKER_RECOVERED = Info "breaker_recovered" ["breaker_state", "failures"];
    /// The weights of a new seed were asked for
    PREFETCH_REQUESTED = Info "prefetch_requested" ["seed_id", "blueprint_id"];
    /// The weights of a seed arrived and are in place
    PREFETCH_READY = Info "prefetch_ready" ["seed_id", "blueprint_id", "latency_ms"];
    /// Weights arrived that do not fit their seed
    PREFETCH_ATTACH_FAILED = Warning "prefetch_attach_failed" ["seed_id", "blueprint_id", "reason"];
    /// The weights of a seed could not be fetched
    PREFETCH_ERROR = Warning "prefetch_error" ["seed_id", "blueprint_id", "reason"];
    /// The weights of a seed did not arrive in time
    PREFETCH_TIMEOUT = Critical "prefetch_timeout" ["seed_id", "blueprint_id"];
    /// Nobody waits for the weights any more
    PREFETCH_CANCELED = Warning "prefetch_canceled" ["seed_id", "blueprint_id", "reason"];
    /// A seed starts from fresh weights because those of its blueprint could not be fetched
    FALLBACK_APPLIED = Warning "fallback_applied" ["seed_id", "blueprint_id", "reason"];
    /// A request waited more than 100 ms for the lock of the cache
    CACHE_LOCK_CONTENTION = Warning "cache_lock_contention" ["wait_ms"];
    /// Weights that were kept too long were dropped
    MEMORY_GC = Info "memory_gc" ["kernel_cache_expired", "gc_epoch"];
    /// Everything that can be fetched again was dropped
    EMERGENCY_CLEANUP = Critical "emergency_cleanup" ["kernel_cache_cleared", "gpu_cache_cleared"];
    /// The host network stands, with this much memory in its parameters
    TEACHER_REGISTERED = Info "teacher_registered" ["memory_gb", "parameters"];
    /// The host's parameters were given up for restored ones
    TEACHER_DEREGISTERED = Warning "teacher_deregistered" [];
    /// Every live seed was removed by the operator
    REGISTRY_RESET = Warning "registry_reset" ["seeds_removed"];
}

/// Events of the older system without a counterpart, and why.
pub const RETIRED_EVENTS: &[(&str, &str)] = &[
    ("breaker_command_invalid", "no command sets a breaker"),
    (
        "confidence_gate_fallback",
        "the gate has no way to fail: a slot that it cannot work at is refused at germination",
    ),
    ("confidence_gate_missing_logits", "the gate reads the seed's own output"),
    ("fallback_status_rejected", "a gate looks at measurements, not at a reported status"),
    ("isolation_breaker", "violations fail the gates of their own seed, and nothing else is held up"),
    ("mesh_coverage_missing", "a seed needs its own slot only, and an unknown slot is a refusal"),
    ("optimizer_adjust", "optimizers belong to the trainer"),
    ("seed_blend_error", "a forward pass that fails is an error of the step, never swallowed"),
    ("seed_forward_error", "as `seed_blend_error`"),
    ("seed_queue_dropped", "there are no queues per seed; the recorder counts what it drops"),
    ("tamiyo_fallback_requested", "commands carry no flags"),
    ("unsupported_command", "commands have one type; operations that are not supported have their own event"),
];

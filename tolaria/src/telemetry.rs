//! Metrics and events of the trainer.

use leyline::telemetry::{EventDesc, Level};

leyline::declare_metrics! {
    /// Mean training loss of the last epoch, nats per sample.
    TRAINING_LOSS = Gauge "tolaria.training.loss" Nats [];
    /// Correct training predictions / samples in the last epoch.
    TRAINING_ACCURACY = Gauge "tolaria.training.accuracy" Ratio [];
    /// Duration of the last epoch with evaluation and decisions.
    TRAINING_LATENCY = Gauge "tolaria.training.latency_ms" Milliseconds [];
    /// Training samples per second of the last epoch.
    TRAINING_THROUGHPUT = Gauge "tolaria.training.samples_per_s" SamplesPerSecond [];
    /// Mean loss on held-out data, nats per sample.
    VALIDATION_LOSS = Gauge "tolaria.validation.loss" Nats [];
    /// Correct predictions / samples on held-out data.
    VALIDATION_ACCURACY = Gauge "tolaria.validation.accuracy" Ratio [];
    /// A further measure on held-out data, by its name.
    VALIDATION_MEASURE = Gauge "tolaria.validation.measure" Ratio ["measure"];
    /// Global gradient norm of the main loss before clipping, root mean square over the epoch.
    GRADIENT_NORM = Gauge "tolaria.grad.norm" GradientNorm [];
    /// Optimizer steps taken.
    STEPS_TOTAL = Counter "tolaria.steps.total" Count [];
    /// Optimizer steps that changed nothing, because their loss or gradient was not finite.
    STEPS_SKIPPED_TOTAL = Counter "tolaria.steps.skipped_total" Count [];
    /// Epochs completed.
    EPOCHS_TOTAL = Counter "tolaria.epochs.total" Count [];
    /// Epochs that ended with an error.
    EPOCHS_FAILED = Counter "tolaria.epochs.failed" Count [];
    /// Seeds that hold parameters, fossilized ones included.
    SEEDS_ACTIVE = Gauge "tolaria.seeds.active" Count [];
    /// Learning rate of the last optimizer step.
    LEARNING_RATE = Gauge "tolaria.lr_controller.current_lr" LearningRate [];
    /// Microbatches aggregated in the last epoch.
    MICROBATCHES = Gauge "tolaria.grad_agg.microbatches_total" Count [];
    /// Ordered pairs of owners whose gradients have a negative inner product, over the windows of the last epoch; absent when owners were not told apart.
    CONFLICTS = Gauge "tolaria.grad_agg.conflicts" Count [];
    /// Conflicting ordered pairs / all ordered pairs of owners in the last epoch.
    CONFLICT_RATIO = Gauge "tolaria.grad_agg.conflict_ratio" Ratio [];
    /// Mean weight that the method gave to an owner's gradient in the last epoch, over owners and windows; 1 leaves gradients as they are, other values may be above 1.
    WEIGHTS_MEAN = Gauge "tolaria.grad_agg.weights_mean" Ratio [];
    /// Whether owners conflicted in the last epoch and a method other than `mean` combined their gradients.
    PCGRAD_APPLIED = Gauge "tolaria.grad_agg.pcgrad_applied" Flag [];
    /// Mean share of the samples' attribution that stays with the host, over the windows of the last epoch.
    TEACHER_SHARE = Gauge "tolaria.grad_agg.teacher_share" Ratio [];
    /// Mean part of the samples that is attributed to the owner, over the windows of the last epoch in which it took part; here and below the host is `host`, and an owner that took no part is absent.
    OWNER_WEIGHT = Gauge "tolaria.grad_agg.seed.weight" Ratio ["seed_id"];
    /// L2 norm of the owner's gradient before it is weighed, root mean square over its windows.
    OWNER_NORM = Gauge "tolaria.grad_agg.seed.norm" GradientNorm ["seed_id"];
    /// Mean of the norm of the owner's gradient / the sum of all owners' norms; in one window the shares sum to 1.
    OWNER_SHARE = Gauge "tolaria.grad_agg.seed.share" Ratio ["seed_id"];
    /// The owner's share minus its share in the epoch before, in [-1, 1]; absent when that epoch has none.
    OWNER_SHARE_DELTA = Gauge "tolaria.grad_agg.seed.share_delta" Ratio ["seed_id"];
    /// Mean alpha of the seed over its windows; absent for the host.
    OWNER_ALPHA = Gauge "tolaria.grad_agg.seed.alpha" Ratio ["seed_id"];
    /// Other owners whose gradients have a negative inner product with the owner's, summed over its windows.
    OWNER_CONFLICTS = Gauge "tolaria.grad_agg.seed.conflicts" Count ["seed_id"];
    /// The owner's conflicts / the other owners in its windows.
    OWNER_CONFLICT_RATIO = Gauge "tolaria.grad_agg.seed.conflict_ratio" Ratio ["seed_id"];
    /// Trainable elements of the owner.
    OWNER_PARAMS = Gauge "tolaria.grad_agg.seed.params" Count ["seed_id"];
    /// Trainable elements of the owner / those of the whole network.
    OWNER_MASK_FRACTION = Gauge "tolaria.grad_agg.seed.mask_fraction" Ratio ["seed_id"];
    /// Mean part of what seeds took over from the host that went to this seed; absent for the host.
    OWNER_TEACHER_SHARE = Gauge "tolaria.grad_agg.seed.teacher_share" Ratio ["seed_id"];
    /// Mean cosine between the gradients of seed and host, in [-1, 1], over the windows in which both took part; absent for the host.
    OWNER_COSINE = Gauge "tolaria.grad_agg.seed.cosine" Ratio ["seed_id"];
    /// L2 norm of the owner's gradient in one parameter tensor, root mean square over its windows; of at most 8 tensors of an owner, and only while they are among its 8 largest.
    OWNER_LAYER_NORM = Gauge "tolaria.grad_agg.seed.layer_norm" GradientNorm ["seed_id", "layer"];
    /// Time that the steps of the last epoch waited for their samples; without workers, the time it took to gather them. Absent where data are on the device.
    INPUT_WAIT = Gauge "tolaria.input.wait_ms" Milliseconds [];
    /// Time that it took to read and change the samples of the last epoch, added up over workers and steps.
    INPUT_GATHER = Gauge "tolaria.input.gather_ms" Milliseconds [];
    /// Part of that time for which no step of the last epoch waited; absent without workers.
    INPUT_OVERLAP = Gauge "tolaria.input.overlap" Ratio [];
    /// Memory at the end of the last epoch, by what it is for: `parameters`, `gradients` (buffers of the pool), `moments` of the optimizer, `averages` of parameters, `copies` of weights in `bf16`.
    MEMORY_PART = Gauge "tolaria.memory.part_bytes" Bytes ["part"];
    /// Whether products of training steps are rounded to `bf16` or `f16`.
    AMP_ENABLED = Gauge "tolaria.train.amp_enabled" Flag [];
    /// Whether `train.precision` asks for products of TF32.
    TF32_ENABLED = Gauge "tolaria.train.tf32_enabled" Flag [];
    /// What the main loss is multiplied with on the way back, after the last step; absent where it is not.
    LOSS_SCALE = Gauge "tolaria.train.loss_scale" Count [];
    /// Whether the step is replayed as a graph.
    GRAPH_ENABLED = Gauge "tolaria.train.graph_enabled" Flag [];
    /// Time on the device of the last copy of a step's inputs that was measured; compiled graphs copy small ones themselves.
    GRAPH_STAGE_COPY = Gauge "tolaria.graph.stage_copy_ms" Milliseconds [];
    /// Host time of the last capture: recording, inspection, instantiation, upload.
    GRAPH_CAPTURE = Gauge "tolaria.graph.capture_ms" Milliseconds [];
    /// Time on the device of a step of the last replay of a captured graph that was measured.
    GRAPH_REPLAY = Gauge "tolaria.graph.replay_ms" Milliseconds [];
    /// Optimizer steps replayed as a graph, captured or compiled.
    GRAPH_REPLAYS_TOTAL = Counter "tolaria.graph.replays_total" Count [];
    /// Host time to make the static inputs of the last new shape of step.
    GRAPH_CAPTURE_CTOR = Gauge "tolaria.graph.capture_ctor_ms" Milliseconds [];
    /// Host time to switch the stream to recording in the last capture.
    GRAPH_CAPTURE_CTX = Gauge "tolaria.graph.capture_ctx_ms" Milliseconds [];
    /// Host time to zero gradients before a capture; absent where zeroing is part of the recorded step.
    GRAPH_CAPTURE_ZERO = Gauge "tolaria.graph.capture_zero_ms" Milliseconds [];
    /// Graphs captured.
    GRAPH_CAPTURES_TOTAL = Counter "tolaria.graph.captures_total" Count [];
    /// Graphs that went because a newer one needed their place.
    GRAPH_EVICTIONS_TOTAL = Counter "tolaria.graph.evictions_total" Count [];
    /// Optimizer steps that ran eagerly because their shape could not be captured.
    GRAPH_FALLBACKS_TOTAL = Counter "tolaria.graph.fallback_total" Count [];
    /// Captured steps that were recorded again and compared.
    GRAPH_TESTS_TOTAL = Counter "tolaria.graph.tests_total" Count [];
    /// Host time of all tests of captured steps so far.
    GRAPH_TEST = Gauge "tolaria.graph.test_ms" Milliseconds [];
    /// Evaluations on held-out data replayed as a graph.
    GRAPH_EVALUATIONS_TOTAL = Counter "tolaria.graph.evaluations_total" Count [];
    /// Lookups of a graph that found one.
    GRAPH_HITS = Gauge "tolaria.graph.hits" Count [];
    /// Lookups of a graph that found none.
    GRAPH_MISSES = Gauge "tolaria.graph.misses" Count [];
    /// Host time of the first step on a GPU until the device was done, with what the driver compiles for it.
    COLD_START = Gauge "tolaria.cold_start_ms" Milliseconds [];
    /// Graphs kept now.
    GRAPH_KEPT = Gauge "tolaria.graph.kept" Count [];
    /// Device memory that captures took, as far as measured, of the graphs kept now.
    GRAPH_BYTES = Gauge "tolaria.graph.memory_bytes" Bytes [];
    /// Whether the last step was a replay of a compiled graph.
    COMPILE_ENABLED = Gauge "tolaria.train.compile_enabled" Flag [];
    /// Replays of the captured graph before the last shape of step is compiled; absent where steps are not compiled.
    COMPILE_WARMUP_REMAINING = Gauge "tolaria.compile_warmup_remaining" Count [];
    /// Time that the last compile took, all phases; all but the verification in the background.
    COMPILE_TOTAL = Gauge "tolaria.compile_ms" Milliseconds [];
    /// Of the last compile: reading both recordings, comparing them, and finding out what each node does.
    COMPILE_LIFT = Gauge "tolaria.compile.lift_ms" Milliseconds [];
    /// Of the last compile: the passes, and a check of the program before and after them.
    COMPILE_PASSES = Gauge "tolaria.compile.passes_ms" Milliseconds [];
    /// Of the last compile: generated kernels, from source or from the cache.
    COMPILE_KERNELS = Gauge "tolaria.compile.kernels_ms" Milliseconds [];
    /// Of the last compile: building the new graph and making it executable.
    COMPILE_INSTANTIATE = Gauge "tolaria.compile.instantiate_ms" Milliseconds [];
    /// Of the last compile: steps taken by both graphs, with results compared.
    COMPILE_VERIFY = Gauge "tolaria.compile.verify_ms" Milliseconds [];
    /// Nodes that were recorded for the last compile.
    COMPILE_NODES_BEFORE = Gauge "tolaria.compile.nodes_before" Count [];
    /// Nodes of the last compiled graph.
    COMPILE_NODES_AFTER = Gauge "tolaria.compile.nodes_after" Count [];
    /// Device memory of the compiled graphs that are replayed now, beside that of the captured ones; absent where there is none.
    COMPILE_BYTES = Gauge "tolaria.compile.memory_bytes" Bytes [];
    /// Nodes on the longest chain of dependencies of the last compiled graph.
    COMPILE_CRITICAL_PATH = Gauge "tolaria.compile.critical_path" Count [];
    /// Time on the device of a step of the last replay of a compiled graph that was measured.
    COMPILE_REPLAY = Gauge "tolaria.compile.replay_ms" Milliseconds [];
    /// Optimizer steps replayed as a compiled graph.
    COMPILE_REPLAYS_TOTAL = Counter "tolaria.compile.replays_total" Count [];
    /// Epochs whose steps, after any eager ones at their start, were all replays of compiled graphs, at least one.
    COMPILED_EPOCHS = Counter "tolaria.compile.compiled_epochs" Count [];
    /// Duration of the last decision of the policy with the commands it led to.
    HOOK_LATENCY = Gauge "tolaria.hook.latency_ms" Milliseconds [];
    /// From the request of the last durable checkpoint until it was on the disk.
    CHECKPOINT_LATENCY = Gauge "tolaria.checkpoint.save_ms" Milliseconds [];
    /// Of the last checkpoint that was asked for, what training waited for: the copy of its state, and the write where that is not left to a thread.
    CHECKPOINT_STALL = Gauge "tolaria.checkpoint.stall_ms" Milliseconds [];
    /// Memory of the states that are copied and not yet on the disk, at most two.
    CHECKPOINT_IN_FLIGHT = Gauge "tolaria.checkpoint.in_flight_bytes" Bytes [];
    /// Bytes of the states that were written.
    CHECKPOINT_BYTES = Counter "tolaria.checkpoint.bytes_total" Bytes [];
    /// Optimizer steps that a loss of power would cost now: since the newest state on the disk.
    CHECKPOINT_STEPS_AT_RISK = Gauge "tolaria.checkpoint.steps_at_risk" Count [];
    /// Checkpoints due in the middle of an epoch while another one was being written. The first step that finds it on the disk makes up for all of them with one.
    CHECKPOINTS_SKIPPED = Counter "tolaria.checkpoint.skipped_total" Count [];
    /// Durable checkpoints written.
    CHECKPOINTS_TOTAL = Counter "tolaria.checkpoint.saves_total" Count [];
    /// Durable checkpoints that could not be written.
    CHECKPOINT_FAILURES = Counter "tolaria.checkpoint.save_failures_total" Count [];
    /// Memory that known-good states take now.
    ROLLBACK_FAST_SIZE = Gauge "tolaria.rollback.fast_size_bytes" Bytes [];
    /// States that were kept in memory.
    ROLLBACK_SNAPSHOTS_TOTAL = Counter "tolaria.rollback.snapshots_total" Count [];
    /// Times that the run went back to a state in memory.
    ROLLBACK_FAST_HITS_TOTAL = Counter "tolaria.rollback.fast_hits_total" Count [];
    /// Times that the run was to go back, and no state in memory could be restored.
    ROLLBACK_FAST_MISSES_TOTAL = Counter "tolaria.rollback.fast_misses_total" Count [];
    /// Of these misses, those that a checkpoint answered.
    ROLLBACK_FULL_TOTAL = Counter "tolaria.rollback.full_restores_total" Count [];
    /// Time that the last attempt to go back took, whatever it came to; 0 before the first.
    ROLLBACK_LATENCY = Gauge "tolaria.rollback.restore_latency_ms" Milliseconds [];
    /// States, in memory or on disk, that could not be restored.
    ROLLBACK_FAILURES_TOTAL = Counter "tolaria.rollback.failures_total" Count [];
    /// Restores that were discarded because they took longer than `recovery.deadline_ms`.
    ROLLBACK_DEADLINE_TOTAL = Counter "tolaria.rollback.deadline_exceeded_total" Count [];
    /// Calls of the policy that had no answer within `safety.policy_ms`.
    POLICY_TIMEOUTS_TOTAL = Counter "tolaria.timeout.tamiyo_total" Count [];
    /// How long the last boundary waited for the policy, queue included, with or without an answer; 0 before the first.
    POLICY_LAST = Gauge "tolaria.timeout.tamiyo_last_ms" Milliseconds [];
    /// Ends of epochs at which a call of the seed manager took longer than `safety.seeds_ms`.
    SEEDS_TIMEOUTS_TOTAL = Counter "tolaria.timeout.kasmina_total" Count [];
    /// The longest call of the seed manager at the last boundary; 0 before the first.
    SEEDS_LAST = Gauge "tolaria.timeout.kasmina_last_ms" Milliseconds [];
    /// Answers of the policy that came after their deadline and were dropped.
    LATE_ANSWERS_TOTAL = Counter "tolaria.timeout.late_answers_total" Count [];
    /// State of the breaker before the policy and before the seed manager: 1 closed, 2 open, 3 half open.
    BREAKER_STATE = Gauge "tolaria.breaker.state" State ["call"];
    /// Failures in a row that the breaker has counted.
    BREAKER_FAILURES = Gauge "tolaria.breaker.failures" Count ["call"];
    /// Times that the breaker opened.
    BREAKER_OPENED_TOTAL = Counter "tolaria.breaker.opened_total" Count ["call"];
    /// Emergency level: 0 normal, 1 notice, 2 conservative, 3 safe, 4 halt.
    EMERGENCY_LEVEL = Gauge "tolaria.emergency.level" State [];
    /// Changes of the emergency level.
    EMERGENCY_CHANGES_TOTAL = Counter "tolaria.emergency.changes_total" Count [];
    /// Of these, those that raised it, as far as they were told.
    EMERGENCY_ESCALATIONS_TOTAL = Counter "tolaria.emergency.escalations_total" Count [];
    /// Changes that were counted but not told, because more than 64 came between two looks.
    EMERGENCY_DROPPED_TOTAL = Counter "tolaria.emergency.bypass_dropped_total" Count [];
    /// Runs that were halted.
    EMERGENCY_HALTS_TOTAL = Counter "tolaria.emergency.halts_total" Count [];
    /// Whether the run was halted.
    EMERGENCY_HALT = Gauge "tolaria.emergency.halt" Flag [];
    /// Levels that were written for other processes.
    EMERGENCY_BROADCASTS_TOTAL = Counter "tolaria.emergency.broadcasts_total" Count [];
    /// Levels that could not be written for other processes.
    EMERGENCY_BROADCAST_FAILURES_TOTAL = Counter "tolaria.emergency.broadcast_failures_total" Count [];
    /// Time that it took to write the last level; 0 before the first.
    EMERGENCY_BROADCAST_LATENCY = Gauge "tolaria.emergency.last_broadcast_latency_ms" Milliseconds [];
    /// Whether levels are written for other processes.
    EMERGENCY_SHARED_SIGNAL = Gauge "tolaria.emergency.shared_signal_mode" Flag [];
    /// Whether the run is conservative: orders that let something grow are not carried out.
    CONSERVATIVE = Gauge "tolaria.mode.conservative" Flag [];
    /// Times that the run became conservative.
    CONSERVATIVE_TOTAL = Counter "tolaria.mode.conservative_entered_total" Count [];
    /// Orders that were not carried out, because the run was conservative or the seed manager was left alone.
    CONSERVATIVE_REFUSED_TOTAL = Counter "tolaria.mode.refused_total" Count [];
}

/// A seed's command was refused by the seed manager.
pub static COMMAND_REFUSED: EventDesc = EventDesc {
    name: "tolaria.command_refused",
    level: Level::Info,
    help: "the seed manager refused a command of the policy; nothing was changed",
    attributes: &["operation", "reason"],
};

/// The policy failed.
pub static POLICY_ERROR: EventDesc = EventDesc {
    name: "tolaria.tamiyo_error",
    level: Level::Warning,
    help: "the policy could not decide; the topology stays as it is",
    attributes: &["error"],
};

/// The policy was late.
pub static POLICY_TIMEOUT: EventDesc = EventDesc {
    name: "tolaria.tamiyo_timeout",
    level: Level::Warning,
    help: "the policy did not answer in time; training goes on, and its answer will be dropped. Told once for as long as it does not come back",
    attributes: &["error"],
};

/// The seed manager was late.
pub static SEEDS_TIMEOUT: EventDesc = EventDesc {
    name: "tolaria.kasmina_timeout",
    level: Level::Warning,
    help: "a call of the seed manager at the end of an epoch took longer than `safety.seeds_ms`; told once for as long as they do",
    attributes: &["took_ms"],
};

/// What fails is left alone.
pub static BREAKER_OPENED: EventDesc = EventDesc {
    name: "tolaria.breaker_opened",
    level: Level::Warning,
    help: "the policy or the seed manager (call) failed too often in a row, or in a trial, and is left alone for a while",
    attributes: &["call", "failures"],
};

/// What failed works again.
pub static BREAKER_CLOSED: EventDesc = EventDesc {
    name: "tolaria.breaker_closed",
    level: Level::Info,
    help: "the policy or the seed manager (call) passed its trials",
    attributes: &["call"],
};

/// Nothing grows.
pub static CONSERVATIVE_ENTERED: EventDesc = EventDesc {
    name: "tolaria.conservative_mode_entered",
    level: Level::Warning,
    help: "orders that let something grow are not carried out from now on; reason: policy, seed_manager, emergency",
    attributes: &["reason"],
};

/// Seeds may grow again.
pub static CONSERVATIVE_CLEARED: EventDesc = EventDesc {
    name: "tolaria.conservative_mode_cleared",
    level: Level::Info,
    help: "orders are carried out again",
    attributes: &[],
};

/// The emergency level rose.
pub static EMERGENCY_ESCALATED: EventDesc = EventDesc {
    name: "tolaria.emergency.escalated",
    level: Level::Warning,
    help: "the emergency level rose; origin: run (its limits), operator",
    attributes: &["level", "from", "origin", "reason"],
};

/// The emergency level fell.
pub static EMERGENCY_LOWERED: EventDesc = EventDesc {
    name: "tolaria.emergency.lowered",
    level: Level::Info,
    help: "the emergency level fell; origin: run (its limits), operator",
    attributes: &["level", "from", "origin", "reason"],
};

/// The run is halted.
pub static EMERGENCY_HALTED: EventDesc = EventDesc {
    name: "tolaria.emergency.halt",
    level: Level::Critical,
    help: "the run ends at once; a checkpoint is written where the state can be saved",
    attributes: &["reason"],
};

/// The gradients of the owners conflict often.
pub static CONFLICT_HIGH: EventDesc = EventDesc {
    name: "grad_conflict_high",
    level: Level::Warning,
    help: "conflicting ordered pairs / all ordered pairs reached the warning threshold in this epoch",
    attributes: &["conflict_ratio"],
};

/// A seed's share of the gradients changed a lot.
pub static SEED_SHARE_JUMP: EventDesc = EventDesc {
    name: "seed_share_jump",
    level: Level::Warning,
    help: "the seed's share of the owners' gradient norms changed by 0.3 or more from one epoch to the next",
    attributes: &["seed_id", "delta"],
};

/// The gradient of a seed conflicts often.
pub static SEED_CONFLICT_HIGH: EventDesc = EventDesc {
    name: "seed_conflict_high",
    level: Level::Warning,
    help: "conflicts of the seed / the other owners in its windows reached the warning threshold in this epoch",
    attributes: &["seed_id", "conflict_ratio"],
};

/// Steps of an epoch changed nothing.
pub static STEPS_SKIPPED: EventDesc = EventDesc {
    name: "tolaria.steps_skipped",
    level: Level::Warning,
    help: "the loss or the gradient of steps of this epoch was not finite; they left the owner's parameters and moments as they were",
    attributes: &["owner", "skipped", "steps"],
};

/// A checkpoint was not written.
pub static CHECKPOINT_FAILED: EventDesc = EventDesc {
    name: "tolaria.checkpoint_failed",
    level: Level::Error,
    help: "a durable checkpoint could not be written, after one that was; the previous one stays valid, and training goes on unless it was the last",
    attributes: &["error"],
};

/// Checkpoints are written again.
pub static CHECKPOINTS_RESUMED: EventDesc = EventDesc {
    name: "tolaria.checkpoints_resumed",
    level: Level::Info,
    help: "a durable checkpoint was written, after some that could not be",
    attributes: &["step"],
};

/// A state could not be restored.
pub static RESTORE_FAILED: EventDesc = EventDesc {
    name: "tolaria.rollback.restore_failed",
    level: Level::Critical,
    help: "a checkpoint did not verify, or a state (generation `memory`: one in memory, `pinned`: of the best evaluation) could not be restored; an earlier one is tried, and the trainer stays as it is where there is none",
    attributes: &["generation", "reason"],
};

/// Steps in a row could not be used.
pub static DIVERGED: EventDesc = EventDesc {
    name: "tolaria.diverged",
    level: Level::Warning,
    help: "the loss or the gradient of `recovery.max_skipped` steps in a row could not be used; culprit: what was found to be the cause; done: `left_out` (the steps), `removed` (the seed), `went_back`, `ended` (the run)",
    attributes: &["step", "culprit", "done"],
};

/// The run went back.
pub static ROLLED_BACK: EventDesc = EventDesc {
    name: "tolaria.rollback.restored",
    level: Level::Warning,
    help: "the run went back to a known-good state, in memory or on disk; rate_factor: that of the learning rate from here on",
    attributes: &["from", "to", "tier", "culprit", "rate_factor"],
};

/// A shape of step was captured.
pub static GRAPH_ENABLED_EVENT: EventDesc = EventDesc {
    name: "tolaria.graph_enabled",
    level: Level::Info,
    help: "a shape of step was captured and is replayed from now on",
    attributes: &["capture_ms"],
};

/// A shape of step could not be captured or replayed.
pub static GRAPH_FALLBACK: EventDesc = EventDesc {
    name: "tolaria.graph_fallback",
    level: Level::Warning,
    help: "a shape of step could not be captured or replayed; it runs eagerly and is not tried again",
    attributes: &["reason", "stage", "error", "message", "failures"],
};

/// A step has another shape than the one before.
pub static GRAPH_SHAPE_CHANGED: EventDesc = EventDesc {
    name: "tolaria.graph_shape_changed",
    level: Level::Info,
    help: "a step has a shape that was not seen before; it gets a graph of its own after its warm-up",
    attributes: &["expected", "actual"],
};

/// No further shape is captured.
pub static GRAPH_DISABLED: EventDesc = EventDesc {
    name: "tolaria.graph_disabled_after_failures",
    level: Level::Warning,
    help: "several shapes in a row could not be captured; no further one is tried, and those that were captured are still replayed",
    attributes: &["failures"],
};

/// A shape of step was compiled.
pub static COMPILE_ENABLED_EVENT: EventDesc = EventDesc {
    name: "tolaria.compile_enabled",
    level: Level::Info,
    help: "a shape of step was compiled and verified, and its compiled graph is replayed from now on; generated: its generated kernels, cached: those of them that came from the cache",
    attributes: &["compile_ms", "nodes_before", "nodes_after", "critical_path", "generated", "cached"],
};

/// A shape of step could not be compiled.
pub static COMPILE_FALLBACK: EventDesc = EventDesc {
    name: "tolaria.compile_fallback",
    level: Level::Warning,
    help: "a shape of step could not be compiled, or the compiled graph gave another result; the captured graph is replayed, and it is not tried again",
    attributes: &["reason", "stage", "message"],
};

/// The search for the rewrite that made a compiled step another one is over.
pub static COMPILE_BISECTED: EventDesc = EventDesc {
    name: "tolaria.compile_bisected",
    level: Level::Warning,
    help: "a compiled graph gave another result, and it was looked for the rewrite that makes it so; pass and rewrite: which, none and 0 where it was not found; reproducer: the file that shows it without the model",
    attributes: &["pass", "rewrite", "reproducer", "message"],
};

/// A compiled step could not be replayed.
pub static COMPILE_RUNTIME_FALLBACK: EventDesc = EventDesc {
    name: "tolaria.compile_runtime_fallback",
    level: Level::Warning,
    help: "a compiled graph could not be replayed; the captured one took the step, and is replayed from now on",
    attributes: &["reason", "stage", "message"],
};

/// Every event of this crate.
pub static EVENTS: &[&EventDesc] = &[
    &COMMAND_REFUSED,
    &POLICY_ERROR,
    &POLICY_TIMEOUT,
    &SEEDS_TIMEOUT,
    &BREAKER_OPENED,
    &BREAKER_CLOSED,
    &CONSERVATIVE_ENTERED,
    &CONSERVATIVE_CLEARED,
    &EMERGENCY_ESCALATED,
    &EMERGENCY_LOWERED,
    &EMERGENCY_HALTED,
    &CONFLICT_HIGH,
    &SEED_SHARE_JUMP,
    &SEED_CONFLICT_HIGH,
    &STEPS_SKIPPED,
    &CHECKPOINT_FAILED,
    &CHECKPOINTS_RESUMED,
    &RESTORE_FAILED,
    &DIVERGED,
    &ROLLED_BACK,
    &GRAPH_ENABLED_EVENT,
    &GRAPH_FALLBACK,
    &GRAPH_SHAPE_CHANGED,
    &GRAPH_DISABLED,
    &COMPILE_ENABLED_EVENT,
    &COMPILE_FALLBACK,
    &COMPILE_BISECTED,
    &COMPILE_RUNTIME_FALLBACK,
];

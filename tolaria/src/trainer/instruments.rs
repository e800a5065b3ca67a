//! The trainer's metric handles, obtained once.

use std::sync::Arc;
use std::time::Duration;

use leyline::layout::Owner;
use leyline::state::Score;
use leyline::task::Measure;
use leyline::telemetry::{Counter, Event, EventDesc, Gauge, Recorder};

use crate::telemetry as desc;
use crate::trainer::config::TrainConfig;
use crate::trainer::facts::MEMORY_PARTS;
use crate::trainer::precision::TrainPrecision;
use crate::trainer::report::EpochReport;
use crate::trainer::sums::EpochTotals;
use esper_graph::{CompileReport, Refusal};

#[derive(Debug)]
pub(super) struct Instruments {
    pub(super) steps_total: Counter,
    pub(super) steps_skipped: Counter,
    pub(super) learning_rate: Gauge,
    pub(super) hook_latency: Gauge,
    pub(super) checkpoints: CheckpointInstruments,
    pub(super) epochs_failed: Counter,
    pub(super) input: InputInstruments,
    pub(super) rollback: RollbackInstruments,
    epochs_total: Counter,
    training_loss: Gauge,
    training_accuracy: Gauge,
    training_latency: Gauge,
    training_throughput: Gauge,
    validation_loss: Gauge,
    validation_accuracy: Gauge,
    /// By the name of their measure.
    validation_measures: Vec<(&'static str, Gauge)>,
    gradient_norm: Gauge,
    seeds_active: Gauge,
    microbatches: Gauge,
    loss_scale: Gauge,
    /// Of parameters, gradients, moments, averages and copies.
    memory: [Gauge; MEMORY_PARTS.len()],
}

impl Instruments {
    pub(super) fn new(recorder: &Arc<dyn Recorder>, measures: &[Measure], config: &TrainConfig) -> Self {
        let of = |measure: &Measure| {
            let name = measure.about().name;
            (name, recorder.gauge(&desc::VALIDATION_MEASURE, &[name]))
        };
        let input = InputInstruments {
            wait_ms: recorder.gauge(&desc::INPUT_WAIT, &[]),
            gather_ms: recorder.gauge(&desc::INPUT_GATHER, &[]),
            overlap: recorder.gauge(&desc::INPUT_OVERLAP, &[]),
        };
        let flag = |desc, is_on: bool| recorder.gauge(desc, &[]).set(f64::from(u8::from(is_on)));
        flag(&desc::AMP_ENABLED, matches!(config.precision, TrainPrecision::Bf16 | TrainPrecision::F16));
        flag(&desc::TF32_ENABLED, config.precision == TrainPrecision::Tf32);
        let loss_scale = recorder.gauge(&desc::LOSS_SCALE, &[]);
        loss_scale.set_or_clear(config.scaling().map(|scaling| scaling.initial));
        Self {
            loss_scale,
            memory: MEMORY_PARTS.map(|part| recorder.gauge(&desc::MEMORY_PART, &[part])),
            input,
            rollback: RollbackInstruments::new(recorder),
            validation_measures: measures.iter().map(of).collect(),
            steps_skipped: recorder.counter(&desc::STEPS_SKIPPED_TOTAL, &[]),
            steps_total: recorder.counter(&desc::STEPS_TOTAL, &[]),
            learning_rate: recorder.gauge(&desc::LEARNING_RATE, &[]),
            hook_latency: recorder.gauge(&desc::HOOK_LATENCY, &[]),
            checkpoints: CheckpointInstruments::new(recorder),
            epochs_failed: recorder.counter(&desc::EPOCHS_FAILED, &[]),
            epochs_total: recorder.counter(&desc::EPOCHS_TOTAL, &[]),
            training_loss: recorder.gauge(&desc::TRAINING_LOSS, &[]),
            training_accuracy: recorder.gauge(&desc::TRAINING_ACCURACY, &[]),
            training_latency: recorder.gauge(&desc::TRAINING_LATENCY, &[]),
            training_throughput: recorder.gauge(&desc::TRAINING_THROUGHPUT, &[]),
            validation_loss: recorder.gauge(&desc::VALIDATION_LOSS, &[]),
            validation_accuracy: recorder.gauge(&desc::VALIDATION_ACCURACY, &[]),
            gradient_norm: recorder.gauge(&desc::GRADIENT_NORM, &[]),
            seeds_active: recorder.gauge(&desc::SEEDS_ACTIVE, &[]),
            microbatches: recorder.gauge(&desc::MICROBATCHES, &[]),
        }
    }

    /// Takes over the bytes of parameters, gradients, moments, averages and copies.
    pub(super) fn memory(&self, parts: [usize; MEMORY_PARTS.len()]) {
        self.memory.iter().zip(parts).for_each(|(gauge, bytes)| gauge.set(bytes as f64));
    }

    /// Takes over what an epoch came to; what was not measured becomes absent.
    pub(super) fn epoch(&self, report: &EpochReport, totals: &EpochTotals) {
        self.epochs_total.add(1);
        let train = report.train.as_ref();
        self.training_loss.set_or_clear(train.map(|score| score.loss));
        self.training_accuracy.set_or_clear(train.and_then(Score::accuracy));
        self.training_latency.set(report.wall_s * 1e3);
        self.training_throughput.set(report.samples_per_s);
        self.validation_loss.set(report.validation.loss);
        self.validation_accuracy.set_or_clear(report.validation.accuracy());
        for (name, gauge) in &self.validation_measures {
            gauge.set_or_clear(report.validation.measures.get(*name).copied());
        }
        self.gradient_norm.set_or_clear(report.gradient_norm);
        self.seeds_active.set(report.seeds.iter().filter(|seed| seed.num_parameters > 0).count() as f64);
        self.microbatches.set(totals.num_microbatches as f64);
        self.loss_scale.set_or_clear(totals.scale(Owner::Host).map(|scale| scale.now));
    }
}

/// What is recorded about the samples on their way to a step.
#[derive(Debug)]
pub(super) struct InputInstruments {
    pub(super) wait_ms: Gauge,
    pub(super) gather_ms: Gauge,
    pub(super) overlap: Gauge,
}

/// What is recorded about checkpoints.
#[derive(Debug)]
pub(super) struct CheckpointInstruments {
    pub(super) written: Counter,
    pub(super) skipped: Counter,
    pub(super) failures: Counter,
    pub(super) bytes: Counter,
    pub(super) in_flight_bytes: Gauge,
    pub(super) steps_at_risk: Gauge,
    pub(super) save_ms: Gauge,
    pub(super) stall_ms: Gauge,
}

impl CheckpointInstruments {
    fn new(recorder: &Arc<dyn Recorder>) -> Self {
        let in_flight_bytes = recorder.gauge(&desc::CHECKPOINT_IN_FLIGHT, &[]);
        in_flight_bytes.set(0.0);
        Self {
            written: recorder.counter(&desc::CHECKPOINTS_TOTAL, &[]),
            skipped: recorder.counter(&desc::CHECKPOINTS_SKIPPED, &[]),
            failures: recorder.counter(&desc::CHECKPOINT_FAILURES, &[]),
            bytes: recorder.counter(&desc::CHECKPOINT_BYTES, &[]),
            in_flight_bytes,
            steps_at_risk: recorder.gauge(&desc::CHECKPOINT_STEPS_AT_RISK, &[]),
            save_ms: recorder.gauge(&desc::CHECKPOINT_LATENCY, &[]),
            stall_ms: recorder.gauge(&desc::CHECKPOINT_STALL, &[]),
        }
    }
}

/// What is recorded about going back.
#[derive(Debug)]
pub(super) struct RollbackInstruments {
    pub(super) fast_size_bytes: Gauge,
    pub(super) restore_latency: Gauge,
    pub(super) snapshots_total: Counter,
    pub(super) fast_hits: Counter,
    pub(super) fast_misses: Counter,
    pub(super) full_restores: Counter,
    pub(super) failures: Counter,
    pub(super) deadline_exceeded: Counter,
}

impl RollbackInstruments {
    fn new(recorder: &Arc<dyn Recorder>) -> Self {
        let at_0 = |desc| {
            let gauge = recorder.gauge(desc, &[]);
            gauge.set(0.0);
            gauge
        };
        Self {
            fast_size_bytes: at_0(&desc::ROLLBACK_FAST_SIZE),
            restore_latency: at_0(&desc::ROLLBACK_LATENCY),
            snapshots_total: recorder.counter(&desc::ROLLBACK_SNAPSHOTS_TOTAL, &[]),
            fast_hits: recorder.counter(&desc::ROLLBACK_FAST_HITS_TOTAL, &[]),
            fast_misses: recorder.counter(&desc::ROLLBACK_FAST_MISSES_TOTAL, &[]),
            full_restores: recorder.counter(&desc::ROLLBACK_FULL_TOTAL, &[]),
            failures: recorder.counter(&desc::ROLLBACK_FAILURES_TOTAL, &[]),
            deadline_exceeded: recorder.counter(&desc::ROLLBACK_DEADLINE_TOTAL, &[]),
        }
    }
}

/// What is recorded about graphs.
#[derive(Debug)]
pub(super) struct GraphInstruments {
    pub(super) enabled: Gauge,
    pub(super) stage_copy_ms: Gauge,
    pub(super) capture_ms: Gauge,
    pub(super) replay_ms: Gauge,
    pub(super) capture_ctor_ms: Gauge,
    pub(super) capture_ctx_ms: Gauge,
    pub(super) kept: Gauge,
    pub(super) hits: Gauge,
    pub(super) misses: Gauge,
    pub(super) cold_start_ms: Gauge,
    pub(super) bytes: Gauge,
    pub(super) replays_total: Counter,
    pub(super) captures_total: Counter,
    pub(super) evictions_total: Counter,
    pub(super) fallbacks_total: Counter,
    pub(super) tests_total: Counter,
    pub(super) test_ms: Gauge,
    pub(super) evaluations_total: Counter,
}

impl GraphInstruments {
    pub(super) fn new(recorder: &Arc<dyn Recorder>) -> Self {
        let enabled = recorder.gauge(&desc::GRAPH_ENABLED, &[]);
        enabled.set(0.0);
        Self {
            enabled,
            stage_copy_ms: recorder.gauge(&desc::GRAPH_STAGE_COPY, &[]),
            capture_ms: recorder.gauge(&desc::GRAPH_CAPTURE, &[]),
            replay_ms: recorder.gauge(&desc::GRAPH_REPLAY, &[]),
            capture_ctor_ms: recorder.gauge(&desc::GRAPH_CAPTURE_CTOR, &[]),
            capture_ctx_ms: recorder.gauge(&desc::GRAPH_CAPTURE_CTX, &[]),
            kept: recorder.gauge(&desc::GRAPH_KEPT, &[]),
            hits: recorder.gauge(&desc::GRAPH_HITS, &[]),
            misses: recorder.gauge(&desc::GRAPH_MISSES, &[]),
            cold_start_ms: recorder.gauge(&desc::COLD_START, &[]),
            bytes: recorder.gauge(&desc::GRAPH_BYTES, &[]),
            replays_total: recorder.counter(&desc::GRAPH_REPLAYS_TOTAL, &[]),
            captures_total: recorder.counter(&desc::GRAPH_CAPTURES_TOTAL, &[]),
            evictions_total: recorder.counter(&desc::GRAPH_EVICTIONS_TOTAL, &[]),
            fallbacks_total: recorder.counter(&desc::GRAPH_FALLBACKS_TOTAL, &[]),
            tests_total: recorder.counter(&desc::GRAPH_TESTS_TOTAL, &[]),
            test_ms: recorder.gauge(&desc::GRAPH_TEST, &[]),
            evaluations_total: recorder.counter(&desc::GRAPH_EVALUATIONS_TOTAL, &[]),
        }
    }
}

/// What is recorded about compiled steps.
#[derive(Debug)]
pub(super) struct CompileInstruments {
    pub(super) enabled: Gauge,
    pub(super) warmup_remaining: Gauge,
    pub(super) replay_ms: Gauge,
    pub(super) replays_total: Counter,
    pub(super) compiled_epochs: Counter,
    pub(super) bytes: Gauge,
    phases: [Gauge; 6],
    nodes_before: Gauge,
    nodes_after: Gauge,
    critical_path: Gauge,
    recorder: Arc<dyn Recorder>,
}

impl CompileInstruments {
    pub(super) fn new(recorder: &Arc<dyn Recorder>) -> Self {
        let enabled = recorder.gauge(&desc::COMPILE_ENABLED, &[]);
        enabled.set(0.0);
        let phases = [
            &desc::COMPILE_TOTAL,
            &desc::COMPILE_LIFT,
            &desc::COMPILE_PASSES,
            &desc::COMPILE_KERNELS,
            &desc::COMPILE_INSTANTIATE,
            &desc::COMPILE_VERIFY,
        ];
        Self {
            enabled,
            warmup_remaining: recorder.gauge(&desc::COMPILE_WARMUP_REMAINING, &[]),
            replay_ms: recorder.gauge(&desc::COMPILE_REPLAY, &[]),
            bytes: recorder.gauge(&desc::COMPILE_BYTES, &[]),
            replays_total: recorder.counter(&desc::COMPILE_REPLAYS_TOTAL, &[]),
            compiled_epochs: recorder.counter(&desc::COMPILED_EPOCHS, &[]),
            phases: phases.map(|phase| recorder.gauge(phase, &[])),
            nodes_before: recorder.gauge(&desc::COMPILE_NODES_BEFORE, &[]),
            nodes_after: recorder.gauge(&desc::COMPILE_NODES_AFTER, &[]),
            critical_path: recorder.gauge(&desc::COMPILE_CRITICAL_PATH, &[]),
            recorder: Arc::clone(recorder),
        }
    }

    /// A shape of step is replayed as a compiled graph from now on.
    pub(super) fn compiled(&self, report: &CompileReport) {
        let times = &report.times;
        let phases = [times.total(), times.lift, times.passes, times.kernels, times.instantiate, times.verify];
        for (gauge, time) in self.phases.iter().zip(phases) {
            gauge.set(ms(time));
        }
        self.nodes_before.set(report.nodes_before as f64);
        self.nodes_after.set(report.nodes_after as f64);
        self.critical_path.set(report.critical_path as f64);
        let event = Event::new(&desc::COMPILE_ENABLED_EVENT)
            .with("compile_ms", format_args!("{:.3}", ms(times.total())))
            .with("nodes_before", report.nodes_before)
            .with("nodes_after", report.nodes_after)
            .with("critical_path", report.critical_path)
            .with("generated", report.num_generated)
            .with("cached", report.num_cached);
        self.recorder.event(event);
    }

    /// A shape of step goes on as a captured graph.
    pub(super) fn fell_back(&self, event: &'static EventDesc, refusal: &Refusal) {
        let event =
            Event::new(event).with("reason", refusal.name()).with("stage", refusal.stage()).with("message", refusal);
        self.recorder.event(event);
        tracing::warn!(%refusal, stage = %refusal.stage(), "steps of this shape are not compiled");
    }

    pub(super) fn searched(&self, refusal: &Refusal) {
        let event = Event::new(&desc::COMPILE_BISECTED);
        let event = match refusal {
            Refusal::WrongRewrite { pass, rewrite, reproducer, .. } => {
                let file = reproducer.as_ref().map_or_else(|| "none".to_owned(), |file| file.display().to_string());
                event.with("pass", pass.name()).with("rewrite", rewrite).with("reproducer", file)
            }
            _ => event.with("pass", "none").with("rewrite", 0).with("reproducer", "none"),
        };
        self.recorder.event(event.with("message", refusal));
        tracing::warn!(%refusal, "the search for a wrong rewrite is over");
    }
}

pub(super) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

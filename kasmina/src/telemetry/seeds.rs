//! Gauges of single seeds.

use std::collections::BTreeMap;
use std::sync::Arc;

use leyline::id::SeedId;
use leyline::seed::{SeedStage, SeedState};
use leyline::telemetry::{Gauge, MetricDesc, Recorder};

use super::metrics;

/// What the gauges of one seed show.
#[derive(Debug)]
pub(crate) struct SeedReading {
    pub(crate) state: SeedState,
    /// From the request of its weights to their arrival, milliseconds.
    pub(crate) fetch_ms: Option<f64>,
    /// Whether it started from fresh weights because a fetch failed.
    pub(crate) is_fallback: bool,
    /// Leaks that the latest audit charged to it.
    pub(crate) leaks: Option<u64>,
    /// Norm of the host's gradient when the seed's was measured.
    pub(crate) host_norm: Option<f64>,
}

/// The gauges of every seed that is listed.
#[derive(Debug)]
pub(super) struct SeedGauges {
    recorder: Arc<dyn Recorder>,
    seeds: BTreeMap<SeedId, Gauges>,
    active: Gauge,
    fossilized: Gauge,
    fallback_active: Gauge,
}

/// The metrics of one seed; [`Gauges::values`] is in the same order.
const DESCS: [&MetricDesc; 14] = [
    &metrics::SEED_STAGE,
    &metrics::SEED_ALPHA,
    &metrics::SEED_ALPHA_STEPS,
    &metrics::SEED_PARAMETERS,
    &metrics::SEED_KERNEL_ATTACHED,
    &metrics::SEED_FALLBACK_USED,
    &metrics::SEED_KERNEL_LATENCY,
    &metrics::SEED_LAST_KERNEL_LATENCY,
    &metrics::SEED_ISOLATION_VIOLATIONS,
    &metrics::SEED_ISOLATION_DOT,
    &metrics::SEED_HOST_NORM,
    &metrics::SEED_SEED_NORM,
    &metrics::SEED_GATE_SCORE,
    &metrics::SEED_PAUSED,
];
const ALPHA: usize = 1;
const ALPHA_STEPS: usize = 2;

#[derive(Debug)]
struct Gauges([Gauge; DESCS.len()]);

impl Gauges {
    fn values(reading: &SeedReading) -> [Option<f64>; DESCS.len()] {
        let state = &reading.state;
        let flag = |value: bool| Some(f64::from(u8::from(value)));
        // A blueprint may have no parameters: what counts is that the seed is in the network.
        let is_there = state.stage.is_live() || state.stage == SeedStage::Fossilized;
        let has_weights = is_there && !state.weights_pending;
        [
            Some(f64::from(state.stage.wire())),
            Some(state.alpha.get()),
            state.alpha_ramp.map(|ramp| count(ramp.steps_done)),
            Some(count(state.num_parameters)),
            flag(has_weights),
            flag(reading.is_fallback),
            reading.fetch_ms,
            reading.fetch_ms,
            Some(count(state.isolation_violations)),
            reading.leaks.map(count),
            reading.host_norm,
            state.gradient.map(|gradient| gradient.norm),
            state.last_gate.as_ref().map(|report| report.score),
            flag(state.paused),
        ]
    }
}

impl SeedGauges {
    pub(super) fn new(recorder: Arc<dyn Recorder>) -> Self {
        Self {
            active: recorder.gauge(&metrics::SEEDS_ACTIVE, &[]),
            fossilized: recorder.gauge(&metrics::SEEDS_FOSSILIZED, &[]),
            fallback_active: recorder.gauge(&metrics::FALLBACK_ACTIVE, &[]),
            seeds: BTreeMap::new(),
            recorder,
        }
    }

    /// Follows a ramp.
    pub(super) fn alpha(&self, seed: SeedId, alpha: f64, steps_done: Option<u64>) {
        if let Some(Gauges(gauges)) = self.seeds.get(&seed) {
            gauges[ALPHA].set(alpha);
            gauges[ALPHA_STEPS].set_or_clear(steps_done.map(count));
        }
    }

    /// Brings the gauges up to date; those of seeds that are gone become absent.
    pub(super) fn update(&mut self, readings: impl Iterator<Item = SeedReading>) {
        let (mut active, mut fossilized, mut fallbacks) = (0_u32, 0_u32, 0_u32);
        let mut seen = BTreeMap::new();
        for reading in readings {
            let seed = reading.state.seed_id;
            let gauges = self.seeds.remove(&seed).unwrap_or_else(|| {
                let label = seed.to_string();
                Gauges(DESCS.map(|desc| self.recorder.gauge(desc, &[&label])))
            });
            for (gauge, value) in gauges.0.iter().zip(Gauges::values(&reading)) {
                gauge.set_or_clear(value);
            }
            let is_live = reading.state.stage.is_live();
            active += u32::from(is_live);
            fossilized += u32::from(reading.state.stage == SeedStage::Fossilized);
            fallbacks += u32::from(is_live && reading.is_fallback);
            seen.insert(seed, gauges);
        }
        for gone in self.seeds.values() {
            gone.0.iter().for_each(|gauge| gauge.set_or_clear(None));
        }
        self.seeds = seen;
        self.active.set(f64::from(active));
        self.fossilized.set(f64::from(fossilized));
        self.fallback_active.set(f64::from(fallbacks));
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
pub(super) fn count(value: u64) -> f64 {
    value as f64
}

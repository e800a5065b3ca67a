//! The engine on both paths of the CPU, against exact arithmetic and the algorithms as their papers write them.

mod window;
mod exact;
mod examples;
mod agreement;
mod isolation;
mod clipping;
mod sums;
mod methods;
mod updates;
mod refusals;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::{AggregationConfig, ConflictResolution, Parameters};
use crate::aggregate::passes::Passes;

const PATHS: [Passes; 2] = [Passes::Kernel, Passes::Composed];
const METHODS: [ConflictResolution; 6] = ConflictResolution::ALL;
const MEAN: AggregationConfig = AggregationConfig {
    method: ConflictResolution::Mean,
    measure_conflicts: false,
    parameters: Parameters { cagrad_radius: 0.4 },
    clip_norm: None,
};
const MEASURED: AggregationConfig = AggregationConfig { measure_conflicts: true, ..MEAN };
const PCGRAD: AggregationConfig = AggregationConfig { method: ConflictResolution::PcGrad, ..MEAN };

/// The same cases in every run.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, rng_seed: RngSeed::Fixed(31), cases, ..ProptestConfig::default() }
}

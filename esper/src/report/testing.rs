//! What tests of several parts of the report begin with.

use leyline::id::{EpochIndex, StepIndex, TopologyRevision};
use leyline::state::{ACCURACY, Score};
use tolaria::trainer::report::EpochReport;

/// An epoch in which nothing happened.
pub(crate) fn epoch(number: u64) -> EpochReport {
    let score = Score::new(0.5, 100).with(ACCURACY, 0.75);
    EpochReport {
        epoch: EpochIndex(number),
        step: StepIndex(0),
        topology: TopologyRevision(0),
        num_parameters: 100,
        learning_rate: 0.1,
        train: Some(score.clone()),
        validation: score,
        gradient_norm: Some(1.0),
        conflict: None,
        seeds: Vec::new(),
        asked: None,
        commands: Vec::new(),
        waiting: Vec::new(),
        transitions: Vec::new(),
        wall_s: 1.0,
        samples_per_s: 100.0,
        skipped_steps: 0,
        evaluations: Vec::new(),
    }
}

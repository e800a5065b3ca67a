//! A network that exists on paper only: it turns the decisions of a policy into the next state the policy will see.
//!
//! Held-out loss falls for [`PLATEAU_FROM`] epochs and then stands still, so that a policy that grows networks has a
//! reason to. Seeds move as [`Lifecycle`] allows, illegal commands are ignored.

use leyline::command::Operation;
use leyline::id::{EpochIndex, RunId, StepIndex, TopologyRevision};
use leyline::policy::Decision;
use leyline::seed::{Counterfactual, Gate, GateReport, GradientHealth, SeedStage};
use leyline::state::{ACCURACY, Score, SystemState};

use crate::lifecycle::Lifecycle;
use crate::toy::{NUM_CLASSES, NUM_INPUTS};

/// The first epoch whose loss is no better than the one before.
pub const PLATEAU_FROM: u64 = 6;
const STEPS_PER_EPOCH: u64 = 8;

/// How a measurement comes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// As well as one could wish.
    Good,
    /// As badly as it can.
    Bad,
    /// Not measured.
    Absent,
}

/// How each kind of measurement comes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measurements {
    /// Scores, gradient norm and conflict ratio of the network.
    pub network: Outcome,
    /// Effect of each live seed on held-out data.
    pub counterfactual: Outcome,
    /// Gradient of each live seed.
    pub gradient: Outcome,
}

impl Measurements {
    /// Everything comes out like this.
    #[must_use]
    pub const fn all(outcome: Outcome) -> Self {
        Self { network: outcome, counterfactual: outcome, gradient: outcome }
    }
}

/// A run on paper.
#[derive(Debug, Clone)]
pub struct World {
    run_id: RunId,
    num_epochs: u64,
    measurements: Measurements,
    life: Lifecycle,
    epoch: u64,
    topology: u64,
}

impl World {
    /// A run of `num_epochs` epochs over two slots, after its first epoch.
    #[must_use]
    pub fn new(run_id: RunId, num_epochs: u64, measurements: Measurements) -> Self {
        Self { run_id, num_epochs, measurements, life: Lifecycle::new(2), epoch: 1, topology: 0 }
    }

    /// Whether the last epoch is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.epoch > self.num_epochs
    }

    /// What the policy sees now.
    #[must_use]
    pub fn state(&self) -> SystemState {
        let state = SystemState {
            run_id: self.run_id.clone(),
            epoch: EpochIndex(self.epoch),
            num_epochs: self.num_epochs,
            step: StepIndex(self.epoch * STEPS_PER_EPOCH),
            steps_per_epoch: STEPS_PER_EPOCH,
            topology: TopologyRevision(self.topology),
            host_parameters: (NUM_CLASSES * (NUM_INPUTS + 1)) as u64,
            samples_per_epoch: None,
            train: None,
            validation: None,
            gradient_norm: None,
            conflict_ratio: None,
            confirming: None,
            costs: None,
            seeds: self.life.seeds().to_vec(),
            slots: self.life.slots().to_vec(),
        };
        remeasured(state, self.measurements)
    }

    /// Applies `decision` and lets one epoch pass.
    pub fn advance(&mut self, decision: &Decision) {
        for order in &decision.orders {
            self.apply(&order.operation);
        }
        for _ in 0..STEPS_PER_EPOCH {
            self.life.finish_step();
        }
        self.life.finish_epoch();
        self.epoch += 1;
    }

    fn apply(&mut self, operation: &Operation) {
        if self.life.apply(operation).is_ok_and(|applied| applied.topology_changed) {
            self.topology += 1;
        }
    }
}

/// The same state, had its measurements come out like this.
#[must_use]
pub fn remeasured(mut state: SystemState, measurements: Measurements) -> SystemState {
    let good = Counterfactual { loss_gain: 0.5, std_error: 0.005, accuracy_gain_pp: Some(8.0), num_samples: 4_096 };
    let bad = Counterfactual { loss_gain: -0.5, accuracy_gain_pp: Some(-8.0), ..good };
    let healthy = GradientHealth { norm: 1.0, host_ratio: Some(1.0), health: 1.0 };
    let dead = GradientHealth { norm: 0.0, host_ratio: Some(0.0), health: 0.0 };
    for seed in state.seeds.iter_mut().filter(|seed| seed.stage.is_live()) {
        seed.counterfactual = pick(measurements.counterfactual, good, bad);
        seed.gradient = pick(measurements.gradient, healthy, dead);
        (seed.counterfactual_epoch, seed.gradient_epoch) = (Some(state.epoch), Some(state.epoch));
        // A gate lets nothing pass that was not measured, or came out badly.
        let passed =
            [measurements.counterfactual, measurements.gradient].iter().all(|one| matches!(one, Outcome::Good));
        seed.last_gate = verdict(seed.stage, passed).or(seed.last_gate.take());
    }
    state.train = score(measurements.network, state.epoch, 0.0);
    state.validation = score(measurements.network, state.epoch, 0.02);
    state.gradient_norm = pick(measurements.network, 1.0, 1e6);
    state.conflict_ratio = pick(measurements.network, 0.05, 1.0);
    state
}

/// Of the gate ahead of a stage.
fn verdict(from: SeedStage, passed: bool) -> Option<GateReport> {
    let onward = from.successors().iter().find_map(|&to| Gate::before(from, to).map(|gate| (gate, to)));
    onward.map(|(gate, target)| GateReport {
        gate,
        target,
        passed,
        score: f64::from(u8::from(passed)),
        met: Vec::new(),
        failed: if passed { Vec::new() } else { vec!["not measured, or bad".to_owned()] },
    })
}

#[expect(clippy::cast_precision_loss, reason = "epoch counts of tests are far below 2^52")]
fn score(outcome: Outcome, epoch: EpochIndex, gap: f64) -> Option<Score> {
    let falling = 0.5 + 0.2 * PLATEAU_FROM.saturating_sub(epoch.0) as f64;
    let rising = 0.5 + 0.2 * epoch.0 as f64;
    pick(
        outcome,
        Score::new(falling + gap, 4_096).with(ACCURACY, 0.8 - gap),
        Score::new(rising + gap, 4_096).with(ACCURACY, 0.25),
    )
}

fn pick<T>(outcome: Outcome, good: T, bad: T) -> Option<T> {
    match outcome {
        Outcome::Good => Some(good),
        Outcome::Bad => Some(bad),
        Outcome::Absent => None,
    }
}

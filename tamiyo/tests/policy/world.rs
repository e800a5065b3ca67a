//! A scripted seed manager with its measurements: seeds have a true gain, which is measured with noise.

use leyline::command::Operation;
use leyline::id::{EpochIndex, SeedId, StepIndex, TopologyRevision};
use leyline::policy::Decision;
use leyline::seed::{AlphaMode, Counterfactual, SeedStage, SeedState, SlotState};
use leyline::state::SystemState;
use leyline::unit::Alpha;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::support::{STEPS_PER_EPOCH, healthy, measured_in, run_id, score, seed, slot};

/// Standard error of every measurement, nats.
const STD_ERROR: f64 = 0.01;
/// Loss of the host alone, nats.
const HOST_LOSS: f64 = 1.0;
/// Epochs of training until a seed shows its full gain.
const LEARNING_EPOCHS: f64 = 4.0;
/// Epochs a removed seed still bars its slot.
const EMBARGO_EPOCHS: u64 = 3;

/// Blueprints on offer with the gain of a trained seed at full alpha, nats.
pub(crate) const GAINS: [(&str, f64); 3] = [("helpful", 0.06), ("noise", -0.05), ("useless", 0.0)];

/// How a seed's life ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fate {
    pub(crate) blueprint: String,
    pub(crate) fossilized: bool,
}

pub(crate) struct World {
    rng: ChaCha8Rng,
    epoch: u64,
    num_epochs: u64,
    seeds: Vec<Specimen>,
    slots: Vec<SlotState>,
    host_parameters: u64,
    num_germinated: u32,
    pub(crate) fates: Vec<Fate>,
    /// Commands that the lifecycle did not allow.
    pub(crate) num_refused: usize,
}

struct Specimen {
    state: SeedState,
    true_gain: f64,
    /// Error that all measurements of this seed share, because the held-out samples are always the same.
    sampling_error: f64,
    ramp_epochs: u64,
}

impl World {
    pub(crate) fn new(seed: u64, num_epochs: u64) -> Self {
        let offers = GAINS.map(|(blueprint, _)| (blueprint, 10));
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            epoch: 0,
            num_epochs,
            seeds: Vec::new(),
            slots: vec![slot("a", &offers), slot("b", &offers)],
            host_parameters: 1000,
            num_germinated: 0,
            fates: Vec::new(),
            num_refused: 0,
        }
    }

    /// Trains an epoch and measures; absent when the run is over.
    pub(crate) fn next_state(&mut self) -> Option<SystemState> {
        if self.epoch == self.num_epochs {
            return None;
        }
        self.epoch += 1;
        for index in 0..self.seeds.len() {
            let jitter = STD_ERROR * 0.2 * self.normal();
            self.seeds[index].train(jitter);
        }
        self.seeds.retain(|seed| seed.state.stage != SeedStage::Dormant);
        for slot in &mut self.slots {
            let occupies = |seed: &&Specimen| seed.state.slot == slot.slot && seed.state.stage != SeedStage::Fossilized;
            slot.occupant = self.seeds.iter().find(occupies).map(|seed| seed.state.seed_id);
        }
        let effect: f64 = self.seeds.iter().map(Specimen::effect).sum();
        Some(SystemState {
            run_id: run_id(),
            epoch: EpochIndex(self.epoch),
            num_epochs: self.num_epochs,
            step: StepIndex(self.epoch * STEPS_PER_EPOCH),
            steps_per_epoch: STEPS_PER_EPOCH,
            topology: TopologyRevision(u64::from(self.num_germinated)),
            host_parameters: self.host_parameters,
            samples_per_epoch: None,
            train: None,
            validation: Some(score(HOST_LOSS - effect)),
            gradient_norm: None,
            conflict_ratio: None,
            confirming: None,
            costs: None,
            seeds: self.seeds.iter().map(|seed| measured_in(self.epoch, seed.state.clone(), 1.645, 0.005)).collect(),
            slots: self.slots.clone(),
        })
    }

    /// Carries out a decision, refusing what the lifecycle does not allow.
    pub(crate) fn obey(&mut self, decision: &Decision) {
        for order in &decision.orders {
            if !self.apply(&order.operation) {
                self.num_refused += 1;
            }
        }
    }

    /// Loss that the acting seeds save, nats.
    pub(crate) fn saved_loss(&self) -> f64 {
        self.seeds.iter().map(Specimen::effect).sum()
    }

    pub(crate) fn num_live(&self) -> usize {
        self.seeds.iter().filter(|seed| seed.state.stage.is_live()).count()
    }

    fn apply(&mut self, operation: &Operation) -> bool {
        match operation {
            Operation::Germinate { slot, blueprint, .. } => {
                self.num_germinated += 1;
                let mut state = seed(self.num_germinated, slot.as_str(), SeedStage::Germinated, 0);
                state.blueprint = blueprint.clone();
                state.gradient = None;
                let (_, true_gain) =
                    GAINS.into_iter().find(|(name, _)| *name == blueprint.as_str()).expect("only these are offered");
                let sampling_error = STD_ERROR * self.normal();
                self.seeds.push(Specimen { state, true_gain, sampling_error, ramp_epochs: 1 });
                true
            }
            Operation::StartTraining { seed } => self.enter(*seed, SeedStage::Training),
            Operation::StartBlending { seed, ramp } => {
                let entered = self.enter(*seed, SeedStage::Blending);
                let specimen = self.specimen(*seed);
                specimen.ramp_epochs = ramp.steps / STEPS_PER_EPOCH;
                specimen.state.alpha_mode = AlphaMode::Up;
                specimen.state.alpha_target = ramp.target;
                entered
            }
            Operation::Hold { seed } => {
                self.specimen(*seed).state.alpha.is_one() && self.enter(*seed, SeedStage::Holding)
            }
            Operation::Fossilize { seed } => {
                let entered = self.enter(*seed, SeedStage::Fossilized);
                self.host_parameters += 10;
                entered
            }
            Operation::Cull { seed } | Operation::CullGradually { seed, .. } => self.enter(*seed, SeedStage::Pruned),
            Operation::Pause { seed } => !std::mem::replace(&mut self.specimen(*seed).state.paused, true),
            Operation::Resume { seed } => std::mem::take(&mut self.specimen(*seed).state.paused),
        }
    }

    fn enter(&mut self, seed: SeedId, stage: SeedStage) -> bool {
        let specimen = self.specimen(seed);
        if !specimen.state.stage.may_become(stage) {
            return false;
        }
        specimen.enter(stage);
        let fate = Fate { blueprint: specimen.state.blueprint.to_string(), fossilized: stage == SeedStage::Fossilized };
        if fate.fossilized || stage == SeedStage::Pruned {
            self.fates.push(fate);
        }
        true
    }

    fn specimen(&mut self, seed: SeedId) -> &mut Specimen {
        self.seeds.iter_mut().find(|s| s.state.seed_id == seed).expect("a command names a seed of the state")
    }

    /// Standard normal by the sum of twelve uniforms (Irwin–Hall).
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.rng.random::<f64>()).sum::<f64>() - 6.0
    }
}

impl Specimen {
    fn enter(&mut self, stage: SeedStage) {
        self.state.stage = stage;
        self.state.epochs_in_stage = 0;
        self.state.counterfactual = None;
        if !stage.acts_on_output() {
            self.state.alpha = Alpha::ZERO;
        }
    }

    fn train(&mut self, jitter: f64) {
        self.state.age_epochs += 1;
        if self.state.paused {
            return;
        }
        self.state.epochs_in_stage += 1;
        match self.state.stage {
            SeedStage::Training => self.state.gradient = healthy(),
            SeedStage::Blending => {
                let alpha = (self.state.epochs_in_stage as f64 / self.ramp_epochs as f64).min(1.0);
                self.state.alpha = Alpha::new(alpha).unwrap();
                if self.state.alpha.is_one() {
                    self.state.alpha_mode = AlphaMode::Hold;
                }
            }
            SeedStage::Pruned => self.enter(SeedStage::Embargoed),
            SeedStage::Embargoed if self.state.epochs_in_stage > EMBARGO_EPOCHS => self.enter(SeedStage::Resetting),
            SeedStage::Resetting => self.enter(SeedStage::Dormant),
            SeedStage::Dormant
            | SeedStage::Germinated
            | SeedStage::Embargoed
            | SeedStage::Holding
            | SeedStage::Fossilized => {}
        }
        self.state.counterfactual = self.measure(jitter);
    }

    /// In training the seed is measured at its target alpha, later at its present one.
    fn measure(&self, jitter: f64) -> Option<Counterfactual> {
        let alpha = match self.state.stage {
            SeedStage::Training => 1.0,
            SeedStage::Blending | SeedStage::Holding => self.state.alpha.get(),
            SeedStage::Dormant
            | SeedStage::Germinated
            | SeedStage::Fossilized
            | SeedStage::Pruned
            | SeedStage::Embargoed
            | SeedStage::Resetting => return None,
        };
        let loss_gain = alpha * (self.learned() + self.sampling_error + jitter);
        Some(Counterfactual {
            loss_gain,
            std_error: alpha * STD_ERROR,
            accuracy_gain_pp: Some(50.0 * loss_gain),
            num_samples: 400,
        })
    }

    fn learned(&self) -> f64 {
        self.true_gain * (self.state.age_epochs as f64 / LEARNING_EPOCHS).min(1.0)
    }

    /// What the seed takes off the loss now.
    fn effect(&self) -> f64 {
        if self.state.stage.acts_on_output() { self.state.alpha.get() * self.learned() } else { 0.0 }
    }
}

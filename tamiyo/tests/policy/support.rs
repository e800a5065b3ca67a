//! States to decide on, and a policy to ask.

use std::collections::BTreeMap;
use std::sync::Arc;

use leyline::command::{Operation, Order};
use leyline::durable::{Durable, SavedState};
use leyline::error::{BoxError, ErrorKind};
use leyline::id::{BlueprintId, EpochIndex, RunId, SeedId, SlotId, StepIndex, TopologyRevision};
use leyline::policy::{Decision, Policy};
use leyline::region::Eager;
use leyline::seed::{
    BlueprintOffer, Counterfactual, Gate, GateReport, GradientHealth, SeedStage, SeedState, SlotState,
};
use leyline::state::{ACCURACY, Score, SystemState};
use leyline::telemetry::{NullRecorder, Recorder};
use leyline::unit::Alpha;
use leyline_testkit::clock::ManualClock;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tamiyo::policy::learned::{Held, NUM_FEATURES, NUM_OUTPUTS, Network, Networks, Parts};
use tamiyo::{Error, PolicyKind, Tamiyo, TamiyoConfig};

pub(crate) const STEPS_PER_EPOCH: u64 = 10;

pub(crate) fn config(json: &str) -> TamiyoConfig {
    serde_json::from_str(json).unwrap()
}

pub(crate) fn run_id() -> RunId {
    RunId::new("run-1").unwrap()
}

pub(crate) fn tamiyo(config: TamiyoConfig) -> Tamiyo {
    try_tamiyo(config, Arc::new(NullRecorder)).unwrap()
}

/// Its clock stands still at the default of [`ManualClock`].
pub(crate) fn try_tamiyo(config: TamiyoConfig, recorder: Arc<dyn Recorder>) -> Result<Tamiyo, Error> {
    let (is_learned, seed) = (config.policy == PolicyKind::Learned, config.learned.seed);
    let policy = Tamiyo::new(config, Arc::new(ManualClock::default()), recorder)?;
    if !is_learned {
        return Ok(policy);
    }
    Ok(policy.with_networks(Box::new(Scripted::from([(1, Ok(random_network(seed, 1e3)))]))))
}

/// A network of eight units with weights within ±`size`, from a seed.
pub(crate) fn random_network(seed: u64, size: f32) -> Network {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut draw = |count: usize| (0..count).map(|_| rng.random_range(-size..=size)).collect::<Vec<f32>>();
    let parts = Parts {
        mean: vec![0.0; NUM_FEATURES],
        scale: vec![1.0; NUM_FEATURES],
        hidden_weight: draw(8 * NUM_FEATURES),
        hidden_bias: draw(8),
        output_weight: draw(NUM_OUTPUTS * 8),
        output_bias: draw(NUM_OUTPUTS),
    };
    Network::new(parts).unwrap()
}

/// A network that says the same whatever it is shown: these are the logits of its outputs.
pub(crate) fn stubborn_network(logits: [f32; NUM_OUTPUTS]) -> Network {
    let Parts { mean, scale, .. } = random_network(0, 1.0).parts().clone();
    let (hidden_weight, hidden_bias) = (vec![0.0; NUM_FEATURES], vec![0.0]);
    let (output_weight, output_bias) = (vec![0.0; NUM_OUTPUTS], logits.to_vec());
    Network::new(Parts { mean, scale, hidden_weight, hidden_bias, output_weight, output_bias }).unwrap()
}

/// What is found from an epoch on, once.
#[derive(Debug)]
pub(crate) struct Scripted(BTreeMap<u64, Result<Network, &'static str>>);

impl<const N: usize> From<[(u64, Result<Network, &'static str>); N]> for Scripted {
    fn from(script: [(u64, Result<Network, &'static str>); N]) -> Self {
        Self(BTreeMap::from(script))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unusable(&'static str);

impl leyline::error::Error for Unusable {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Corrupt
    }
}

impl Networks for Scripted {
    fn look(&mut self, epoch: EpochIndex, held: Option<&str>) -> Option<Result<Held, BoxError>> {
        let (from, found) = self.0.range(..=epoch.0).next_back()?;
        let digest = format!("network {from}");
        match found {
            Ok(_) if held == Some(&digest) => None,
            Ok(network) => Some(Ok(Held { digest, network: network.clone() })),
            Err(why) => (*from == epoch.0).then(|| Err(BoxError::new(Unusable(why)))),
        }
    }
}

pub(crate) fn slot_id(text: &str) -> SlotId {
    SlotId::new(text).unwrap()
}

pub(crate) fn blueprint_id(text: &str) -> BlueprintId {
    BlueprintId::new(text).unwrap()
}

pub(crate) fn score(loss: f64) -> Score {
    Score::new(loss, 100).with(ACCURACY, 0.5)
}

/// A mean gain and its standard error.
pub(crate) fn gain(loss_gain: f64, std_error: f64) -> Option<Counterfactual> {
    Some(Counterfactual { loss_gain, std_error, accuracy_gain_pp: Some(100.0 * loss_gain), num_samples: 100 })
}

pub(crate) fn healthy() -> Option<GradientHealth> {
    Some(GradientHealth { norm: 1.0, host_ratio: Some(1.0), health: 1.0 })
}

/// A measured seed of ten parameters; alpha as is usual for the stage, the ramp at its end.
pub(crate) fn seed(id: u32, slot: &str, stage: SeedStage, epochs_in_stage: u64) -> SeedState {
    let acts = stage.acts_on_output();
    SeedState {
        stage,
        age_epochs: epochs_in_stage,
        epochs_in_stage,
        alpha: if acts { Alpha::ONE } else { Alpha::ZERO },
        alpha_target: if acts { Alpha::ONE } else { Alpha::ZERO },
        gradient: healthy(),
        ..SeedState::germinated(SeedId(id), slot_id(slot), blueprint_id("mlp"), 10)
    }
}

/// A free slot.
pub(crate) fn slot(name: &str, offers: &[(&str, u64)]) -> SlotState {
    let offers = offers
        .iter()
        .map(|&(blueprint, num_parameters)| BlueprintOffer { blueprint: blueprint_id(blueprint), num_parameters })
        .collect();
    SlotState { slot: slot_id(name), occupant: None, num_fossilized: 0, offers }
}

/// The seed, measured in this epoch where it does not say another, and judged by gates that ask for a healthy gradient, a mean gain of
/// `min_gain` and `z` standard errors above 0, where it does not say a verdict.
pub(crate) fn measured_in(epoch: u64, mut seed: SeedState, z: f64, min_gain: f64) -> SeedState {
    let measured = *seed.counterfactual_epoch.get_or_insert(EpochIndex(epoch));
    seed.gradient_epoch.get_or_insert(EpochIndex(epoch));
    let gain = seed.counterfactual.filter(|_| measured == EpochIndex(epoch));
    let gains = gain.is_some_and(|gain| {
        let Counterfactual { loss_gain, std_error, .. } = gain;
        loss_gain.is_finite() && std_error >= 0.0 && loss_gain - z * std_error > 0.0 && loss_gain >= min_gain
    });
    let verdict = match seed.stage {
        SeedStage::Training => {
            Some((SeedStage::Blending, gains && seed.gradient.is_some_and(|gradient| gradient.health >= 0.7)))
        }
        SeedStage::Holding => Some((SeedStage::Fossilized, gains)),
        _ => None,
    };
    if let (None, Some((target, passed))) = (&seed.last_gate, verdict) {
        seed = judged(seed, target, passed);
    }
    seed
}

/// The seed after its gate to `target` spoke.
pub(crate) fn judged(seed: SeedState, target: SeedStage, passed: bool) -> SeedState {
    let gate = Gate::before(seed.stage, target).expect("a move that has a gate");
    let failed = if passed { vec![] } else { vec!["over budget".to_owned()] };
    let score = if passed { 1.0 } else { 0.5 };
    SeedState { last_gate: Some(GateReport { gate, target, passed, score, met: vec![], failed }), ..seed }
}

/// Epoch `epoch` of 100 with a host of 100 parameters; slots are occupied by the seeds that sit in them.
pub(crate) fn state(epoch: u64, mut seeds: Vec<SeedState>, mut slots: Vec<SlotState>) -> SystemState {
    seeds = seeds.into_iter().map(|seed| measured_in(epoch, seed, 2.0, 0.01)).collect();
    for slot in &mut slots {
        slot.occupant =
            seeds.iter().find(|s| s.slot == slot.slot && s.stage != SeedStage::Fossilized).map(|s| s.seed_id);
    }
    SystemState {
        run_id: run_id(),
        epoch: EpochIndex(epoch),
        num_epochs: 100,
        step: StepIndex(epoch * STEPS_PER_EPOCH),
        steps_per_epoch: STEPS_PER_EPOCH,
        topology: TopologyRevision(0),
        host_parameters: 100,
        samples_per_epoch: None,
        train: None,
        validation: Some(score(1.0)),
        gradient_norm: None,
        conflict_ratio: None,
        confirming: None,
        costs: None,
        seeds,
        slots,
    }
}

pub(crate) fn decide(policy: &mut Tamiyo, state: &SystemState) -> Decision {
    policy.decide(state).unwrap()
}

pub(crate) fn save(policy: &Tamiyo) -> SavedState {
    policy.save(&Eager::acquire().unwrap()).unwrap()
}

pub(crate) fn restore(policy: &mut Tamiyo, saved: &SavedState) -> Result<(), Error> {
    policy.restore(&mut Eager::acquire().unwrap(), saved)
}

pub(crate) fn operations(decision: &Decision) -> Vec<Operation> {
    decision.orders.iter().map(|order| order.operation.clone()).collect()
}

/// `rule: operation` of each command, then `rule` of each reason to wait.
pub(crate) fn told(decision: &Decision) -> Vec<String> {
    let rule = |order: &Order| order.reason.split_once(": ").expect("rule and values").0.to_owned();
    let orders = decision.orders.iter().map(|order| format!("{}: {}", rule(order), order.operation));
    orders.chain(decision.waiting.iter().map(|rationale| rationale.rule.clone())).collect()
}

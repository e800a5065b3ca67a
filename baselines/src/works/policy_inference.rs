//! What one decision of the policy `learned` takes, with a network of the usual width, many offers and seeds that act.

use std::sync::Arc;

use leyline::error::BoxError;
use leyline::id::{EpochIndex, RunId, SeedId, StepIndex, TopologyRevision};
use leyline::policy::Policy as _;
use leyline::seed::{BlueprintOffer, Counterfactual, GradientHealth, SeedStage, SeedState, SlotState};
use leyline::state::{Score, SystemState};
use leyline::telemetry::NullRecorder;
use leyline::unit::Alpha;
use tamiyo::policy::learned::{Held, NUM_FEATURES, NUM_OUTPUTS, Network, Networks, Parts};
use tamiyo::{PolicyKind, Tamiyo, TamiyoConfig};

use crate::error::Error;
use crate::samples::Samples;
use crate::work::{Needs, Outcome, Setting, Work, settings};

pub(super) const WORK: Work =
    Work::new("policy-inference", "One decision of the policy `learned`, on the CPU", Needs::Nothing, run);

const HIDDEN: usize = 32;
const NUM_SLOTS: usize = 4;
const NUM_OFFERS: usize = 8;
const NUM_SEEDS: u32 = 2;
/// Decisions before those that are measured, and those.
const TURNS: [usize; 2] = [2_000, 20_000];
const NOTES: &str = "decide: `Policy::decide` from the state to the orders: features, network, limits, check, texts of the reasons; telemetry is \
    thrown away. Each decision is about two seeds that hold, and germinates one of eight blueprints in one of four slots";

/// A network whose numbers follow from their places; it always germinates.
#[derive(Debug)]
struct Numbered;

impl Networks for Numbered {
    fn look(&mut self, _epoch: EpochIndex, held: Option<&str>) -> Option<Result<Held, BoxError>> {
        let spread = |count: usize| (0..count).map(|index| ((index * 37 % 101) as f32 - 50.0) / 100.0).collect();
        let mut output_bias = vec![0.0; NUM_OUTPUTS];
        // Of `germinate`: more than all others together.
        output_bias[4] = 1000.0;
        let parts = Parts {
            mean: vec![0.5; NUM_FEATURES],
            scale: vec![2.0; NUM_FEATURES],
            hidden_weight: spread(HIDDEN * NUM_FEATURES),
            hidden_bias: spread(HIDDEN),
            output_weight: spread(NUM_OUTPUTS * HIDDEN),
            output_bias,
        };
        let network = Network::new(parts).expect("numbers that fit each other");
        held.is_none().then(|| Ok(Held { digest: "numbered".to_owned(), network }))
    }
}

fn run(setting: &Setting) -> Result<Outcome, Error> {
    let mut config = TamiyoConfig { policy: PolicyKind::Learned, ..TamiyoConfig::default() };
    (config.heuristic.germination.max_live_seeds, config.heuristic.germination.max_parameter_ratio) = (3, 100.0);
    let policy = Tamiyo::new(config, Arc::clone(&setting.clock), Arc::new(NullRecorder))?;
    let mut policy = policy.with_networks(Box::new(Numbered));
    let mut state = state();
    let mut germinated = 0;
    let mut samples = Samples::default();
    samples.time("decide", "us", TURNS, &*setting.clock, || {
        state.epoch.0 += 1;
        germinated += policy.decide(&state)?.orders.iter().filter(|order| order.operation.seed().is_none()).count();
        Ok(())
    })?;
    if germinated != TURNS[0] + TURNS[1] {
        return Err(Error::BrokenPromises { table: format!("{germinated} of {TURNS:?} decisions germinated") });
    }
    let config = settings([
        ("hidden", HIDDEN.to_string()),
        ("features", NUM_FEATURES.to_string()),
        ("slots", NUM_SLOTS.to_string()),
        ("offers", NUM_OFFERS.to_string()),
        ("seeds", NUM_SEEDS.to_string()),
    ]);
    let clock = &*setting.clock;
    Ok(samples.into_result(WORK.name, WORK.name, NOTES, config, clock).into())
}

fn state() -> SystemState {
    let offers = |_| {
        let offer = |index: usize| BlueprintOffer {
            blueprint: format!("blueprint{index}").parse().expect("a name"),
            num_parameters: 100,
        };
        (0..NUM_OFFERS).map(offer).collect()
    };
    let slot = |index: usize| SlotState {
        slot: format!("slot{index}").parse().expect("a name"),
        occupant: None,
        num_fossilized: 0,
        offers: offers(index),
    };
    let seed = |id: u32| SeedState {
        stage: SeedStage::Holding,
        alpha: Alpha::ONE,
        counterfactual: Some(Counterfactual {
            loss_gain: 0.01,
            std_error: 0.01,
            accuracy_gain_pp: None,
            num_samples: 500,
        }),
        counterfactual_epoch: Some(EpochIndex(1)),
        gradient: Some(GradientHealth { norm: 1.0, host_ratio: Some(1.0), health: 1.0 }),
        ..SeedState::germinated(
            SeedId(id),
            format!("full{id}").parse().expect("a name"),
            "mlp".parse().expect("a name"),
            100,
        )
    };
    SystemState {
        run_id: RunId::new("bench").expect("a name"),
        epoch: EpochIndex(0),
        num_epochs: 1_000_000,
        step: StepIndex(0),
        steps_per_epoch: 10,
        topology: TopologyRevision(0),
        host_parameters: 1000,
        samples_per_epoch: None,
        train: Some(Score::new(0.9, 1000)),
        validation: Some(Score::new(1.0, 500)),
        gradient_norm: Some(1.0),
        conflict_ratio: None,
        confirming: None,
        costs: None,
        seeds: (1..=NUM_SEEDS).map(seed).collect(),
        slots: (0..NUM_SLOTS).map(slot).collect(),
    }
}

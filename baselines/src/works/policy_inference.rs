//! What one decision takes, of the rules and of a network of the usual width, in states of a run with and without seeds and with many
//! places to grow.

use std::sync::Arc;

use leyline::error::BoxError;
use leyline::id::{BlueprintId, EpochIndex, RunId, SeedId, SlotId, StepIndex, TopologyRevision};
use leyline::policy::Policy as _;
use leyline::seed::{
    BlueprintOffer, Confirming, Cost, Costs, Counterfactual, GradientHealth, SeedStage, SeedState, SlotState,
};
use leyline::state::{Score, SystemState};
use leyline::telemetry::NullRecorder;
use leyline::unit::Alpha;
use tamiyo::policy::learned::{Held, NUM_FEATURES, NUM_OUTPUTS, Network, Networks, Parts};
use tamiyo::{PolicyKind, Tamiyo, TamiyoConfig};

use crate::error::Error;
use crate::samples::Samples;
use crate::work::{Needs, Outcome, Setting, Work, settings};

pub(super) const WORK: Work = Work::new(
    "policy-inference",
    "One decision of the rules and of the policy `learned`, on the CPU",
    Needs::Nothing,
    run,
);

const HIDDEN: usize = 32;
const NUM_OFFERS: usize = 8;
/// Decisions before those that are measured, and those.
const TURNS: [usize; 2] = [2_000, 20_000];
const NOTES: &str = "POLICY.STATE: `Policy::decide` from the state to the orders: rules or features and network, limits, check, texts of the reasons; \
    telemetry is thrown away, and that there is no other network is known without a look at a folder. Every state is on a plateau, with costs, samples that confirm and measurements of its epoch; every decision germinates one of the \
    eight blueprints that each free slot offers. no_seeds: 4 free slots. live_seeds: 4 more with a seed each, one germinated, one in the shadow, one blending, one \
    that holds. many_slots: 16 free slots, and the two seeds that act";
const POLICIES: [PolicyKind; 2] = [PolicyKind::Heuristic, PolicyKind::Learned];
const STATES: [(&str, usize, &[SeedStage]); 3] = [
    ("no_seeds", 4, &[]),
    ("live_seeds", 4, &[SeedStage::Germinated, SeedStage::Training, SeedStage::Blending, SeedStage::Holding]),
    ("many_slots", 16, &[SeedStage::Blending, SeedStage::Holding]),
];

/// A network whose numbers follow from their places; it always germinates.
#[derive(Debug)]
struct Numbered;

impl Networks for Numbered {
    fn look(&mut self, _epoch: EpochIndex, held: Option<&str>) -> Option<Result<Held, BoxError>> {
        if held.is_some() {
            return None;
        }
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
        Some(Ok(Held { digest: "numbered".to_owned(), network }))
    }
}

fn run(setting: &Setting) -> Result<Outcome, Error> {
    let mut samples = Samples::default();
    for kind in POLICIES {
        for (name, num_free, stages) in STATES {
            let mut policy = policy(setting, kind)?;
            let mut state = state(num_free, stages);
            let mut germinated = 0;
            samples.time(format!("{kind}.{name}"), "us", TURNS, &*setting.clock, || {
                germinated += usize::from(decide(&mut policy, &mut state)?);
                Ok(())
            })?;
            // The first epochs are no plateau yet.
            if germinated < TURNS[1] {
                let table = format!("{germinated} of {TURNS:?} decisions of {kind} germinated in {name}");
                return Err(Error::BrokenPromises { table });
            }
        }
    }
    let config = settings([
        ("hidden", HIDDEN.to_string()),
        ("features", NUM_FEATURES.to_string()),
        ("offers", NUM_OFFERS.to_string()),
    ]);
    Ok(samples.into_result(WORK.name, WORK.name, NOTES, config, &*setting.clock).into())
}

fn policy(setting: &Setting, kind: PolicyKind) -> Result<Tamiyo, Error> {
    let mut config = TamiyoConfig { policy: kind, ..TamiyoConfig::default() };
    (config.heuristic.germination.max_live_seeds, config.heuristic.germination.max_parameter_ratio) = (5, 100.0);
    let policy = Tamiyo::new(config, Arc::clone(&setting.clock), Arc::new(NullRecorder))?;
    Ok(policy.with_networks(Box::new(Numbered)))
}

/// One decision in the next epoch; whether something germinates.
fn decide(policy: &mut Tamiyo, state: &mut SystemState) -> Result<bool, Error> {
    state.epoch.0 += 1;
    for seed in state.seeds.iter_mut().filter(|seed| seed.counterfactual.is_some()) {
        (seed.counterfactual_epoch, seed.gradient_epoch) = (Some(state.epoch), Some(state.epoch));
    }
    Ok(policy.decide(state)?.orders.iter().any(|order| order.operation.seed().is_none()))
}

/// So many free slots, and behind them one for a seed of each stage.
fn state(num_free: usize, stages: &[SeedStage]) -> SystemState {
    let cost = |training| Cost { training, evaluation: training / 3.0 };
    let slot_id = |index: usize| -> SlotId { format!("slot{index}").parse().expect("a name") };
    let blueprint = |index: usize| -> BlueprintId { format!("blueprint{index}").parse().expect("a name") };
    let seed_id = |index: usize| SeedId(u32::try_from(index).expect("few seeds") + 1);
    let offers = || (0..NUM_OFFERS).map(|index| BlueprintOffer { blueprint: blueprint(index), num_parameters: 100 });
    let slot = |index: usize| SlotState {
        slot: slot_id(index),
        occupant: index.checked_sub(num_free).map(seed_id),
        num_fossilized: 0,
        offers: offers().collect(),
    };
    let seed = |(index, stage): (usize, &SeedStage)| SeedState {
        stage: *stage,
        alpha: if stage.acts_on_output() { Alpha::ONE } else { Alpha::ZERO },
        age_epochs: 6,
        epochs_in_stage: 2,
        counterfactual: (*stage != SeedStage::Germinated).then_some(Counterfactual {
            loss_gain: 0.01,
            std_error: 0.01,
            accuracy_gain_pp: None,
            num_samples: 500,
        }),
        gradient: Some(GradientHealth { norm: 1.0, host_ratio: Some(1.0), health: 1.0 }),
        ..SeedState::germinated(seed_id(index), slot_id(num_free + index), blueprint(index), 100)
    };
    let num_slots = num_free + stages.len();
    let of_offers = |index: usize| (0..NUM_OFFERS).map(move |offer| (slot_id(index), blueprint(offer), cost(400.0)));
    SystemState {
        run_id: RunId::new("bench").expect("a name"),
        epoch: EpochIndex(0),
        num_epochs: 1_000_000,
        step: StepIndex(0),
        steps_per_epoch: 10,
        topology: TopologyRevision(0),
        host_parameters: 1000,
        samples_per_epoch: Some(1000),
        train: Some(Score::new(0.9, 1000)),
        validation: Some(Score::new(1.0, 500)),
        gradient_norm: Some(1.0),
        conflict_ratio: Some(0.1),
        confirming: Some(Confirming {
            num_samples: 250,
            needed_samples: 100,
            level: 0.01,
            min_gain: 0.005,
            num_read: 1,
            num_confirmed: 0,
        }),
        costs: Some(Costs {
            network: cost(6000.0),
            attribution: 100.0,
            germination: 1000.0,
            seeds: (0..stages.len()).map(|index| (seed_id(index), cost(400.0))).collect(),
            offers: (0..num_slots).flat_map(of_offers).collect(),
        }),
        seeds: stages.iter().enumerate().map(seed).collect(),
        slots: (0..num_slots).map(slot).collect(),
    }
}

#[cfg(test)]
mod tests {
    use leyline::clock::SystemClock;

    use super::*;

    #[test]
    fn both_policies_germinate_in_every_state_from_the_plateau_on() {
        let setting = Setting::alone(Arc::new(SystemClock::new()), None);
        for kind in POLICIES {
            for (name, num_free, stages) in STATES {
                let (mut policy, mut state) = (policy(&setting, kind).unwrap(), state(num_free, stages));
                let mut germinates = || decide(&mut policy, &mut state).unwrap();
                for _ in 0..TURNS[0] {
                    germinates();
                }
                assert!((0..100).all(|_| germinates()), "{kind} in {name}");
            }
        }
    }
}

//! The executable contract: PO-1 to PO-4, DU-1 to DU-3, for every policy that can be configured.
#![expect(clippy::unwrap_used, reason = "a test says by its panic what is wrong")]

use std::sync::Arc;

use leyline::error::BoxError;
use leyline::id::{EpochIndex, RunId};
use leyline::policy::{Decision, Policy};
use leyline::region::Eager;
use leyline::telemetry::NullRecorder;
use leyline_testkit::clock::ManualClock;
use leyline_testkit::durable::DurableHarness;
use leyline_testkit::policy::PolicyHarness;
use leyline_testkit::world::{Measurements, Outcome, World};
use tamiyo::policy::heuristic::TrainingConfig;
use tamiyo::policy::learned::{Choosing, Held, LearnedConfig, NUM_FEATURES, NUM_OUTPUTS, Network, Networks, Parts};
use tamiyo::policy::{FixedConfig, RandomConfig};
use tamiyo::{PolicyKind, Tamiyo, TamiyoConfig};

const NUM_EPOCHS: u64 = 60;

fn run_id() -> RunId {
    RunId::new("contract").unwrap()
}

/// Short stages; the network of the testkit is smaller than what grows on it.
fn tamiyo(policy: PolicyKind) -> Tamiyo {
    let mut config = TamiyoConfig {
        policy,
        fixed: FixedConfig { training_epochs: 3, ..FixedConfig::default() },
        learned: LearnedConfig { choose: Choosing::Drawn, ..LearnedConfig::default() },
        random: RandomConfig { rate: 0.5, ramp_epochs: 1, ..RandomConfig::default() },
        ..TamiyoConfig::default()
    };
    config.heuristic.germination.max_parameter_ratio = 100.0;
    config.heuristic.training = TrainingConfig { min_epochs: 3, ..TrainingConfig::default() };
    let clock = Arc::new(ManualClock::default());
    let tamiyo = Tamiyo::new(config, clock, Arc::new(NullRecorder)).unwrap();
    if policy == PolicyKind::Learned { tamiyo.with_networks(Box::new(Always)) } else { tamiyo }
}

/// One network that always moves on.
#[derive(Debug)]
struct Always;

impl Networks for Always {
    fn look(&mut self, _epoch: EpochIndex, held: Option<&str>) -> Option<Result<Held, BoxError>> {
        let network = || {
            Network::new(Parts {
                mean: vec![0.0; NUM_FEATURES],
                scale: vec![1.0; NUM_FEATURES],
                hidden_weight: vec![0.0; NUM_FEATURES],
                hidden_bias: vec![0.0],
                output_weight: vec![0.0; NUM_OUTPUTS],
                output_bias: vec![0.0, 2.0, -2.0, 0.0, 2.0, 0.0, 0.0],
            })
        };
        held.is_none().then(|| Ok(Held { digest: "always".to_owned(), network: network().unwrap() }))
    }
}

/// Advance `n` decides on the states of a run on paper, four epochs at a time; what is observed is every decision.
fn durable_harness(policy: PolicyKind) -> DurableHarness<Tamiyo> {
    const EPOCHS_PER_ADVANCE: u64 = 4;
    let mut reference = tamiyo(policy);
    let mut world = World::new(run_id(), NUM_EPOCHS, Measurements::all(Outcome::Good));
    let mut states = Vec::new();
    while !world.is_over() {
        states.push(world.state());
        world.advance(&reference.decide(&world.state()).unwrap());
    }
    let decide = move |policy: &mut Tamiyo, n: u64| -> Vec<Decision> {
        let epochs = n * EPOCHS_PER_ADVANCE..(n + 1) * EPOCHS_PER_ADVANCE;
        epochs.map(|epoch| policy.decide(&states[usize::try_from(epoch).unwrap()]).unwrap()).collect()
    };
    DurableHarness {
        component: tamiyo(policy),
        advance: Box::new(move |policy, n| {
            decide(policy, n);
        }),
        // Deciding changes what is remembered, so the memory is the observation; that equal memories decide equally
        // is a property test of its own.
        observe: Box::new(|policy| leyline::durable::Durable::save(policy, &Eager::acquire().unwrap()).unwrap().json),
    }
}

mod heuristic {
    use super::*;

    leyline_testkit::policy_conformance!(|| PolicyHarness::new(tamiyo(PolicyKind::Heuristic), run_id()));
    leyline_testkit::durable_conformance!(|| durable_harness(PolicyKind::Heuristic));
}

mod learned {
    use super::*;

    leyline_testkit::policy_conformance!(|| PolicyHarness::new(tamiyo(PolicyKind::Learned), run_id()));
    leyline_testkit::durable_conformance!(|| durable_harness(PolicyKind::Learned));
}

mod random {
    use super::*;

    leyline_testkit::policy_conformance!(|| PolicyHarness::new(tamiyo(PolicyKind::Random), run_id()));
    leyline_testkit::durable_conformance!(|| durable_harness(PolicyKind::Random));
}

mod fixed {
    use super::*;

    leyline_testkit::policy_conformance!(|| PolicyHarness::new(tamiyo(PolicyKind::Fixed), run_id()));
    leyline_testkit::durable_conformance!(|| durable_harness(PolicyKind::Fixed));
}

mod off {
    use super::*;

    leyline_testkit::policy_conformance!(|| PolicyHarness {
        must_act: false,
        ..PolicyHarness::new(tamiyo(PolicyKind::Off), run_id())
    });
}

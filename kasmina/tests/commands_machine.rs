//! Random lives: a small model of the lifecycle and the real manager go through the same operations, steps and epochs,
//! and agree on every outcome and on everything that can be seen.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod machine;
mod support;

use candle_core::{Device, Tensor};
use kasmina::KasminaConfig;
use kasmina::graft::Role;
use kasmina::host::HostConfig;
use kasmina::isolation::IsolationConfig;
use kasmina::lifecycle::GateConfig;
use kasmina::lifecycle::table::{Condition, MOVES, Trigger};
use leyline::batch::Batch;
use leyline::command::{AlphaCurve, AlphaRamp, Operation};
use leyline::error::Error as _;
use leyline::id::{BlueprintId, SeedId, TopologyRevision};
use leyline::layout::Owner;
use leyline::model::{Pass, TrainableModel};
use leyline::seed::{SeedManager, SeedStage, SeedState, SlotState, Transition};
use machine::{Action, Life, Lives, Order, Outcome, SLOTS};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngSeed, TestRunner};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use support::{Rig, alpha, bits, slot};

/// Sequences of the committed test.
const NUM_SEQUENCES: u32 = 10_000;

fn tiny() -> KasminaConfig {
    let gates =
        GateConfig { training_min_epochs: 1, holding_min_epochs: 1, min_stability: 0.5, ..GateConfig::default() };
    let host = HostConfig::Mlp { inputs: 3, hidden: vec![2], classes: 2 };
    // Each seed once, before it is first measured.
    let isolation = IsolationConfig { check_every_epochs: u64::MAX, strict: true };
    KasminaConfig { gates, isolation, seed_width: 1, embargo_epochs: 1, init_seed: 3, ..KasminaConfig::new(host) }
}

/// The manager with what the host was before any seed.
struct System {
    rig: Rig,
    inputs: Tensor,
    host_logits: Vec<u32>,
    host_parameters: Vec<(String, Vec<u32>)>,
    /// Structure and revision at the last look.
    last: (Vec<(SeedId, Role)>, TopologyRevision),
}

type Seen = (Vec<SeedState>, Vec<SlotState>, TopologyRevision, usize, Vec<u32>);

impl System {
    fn new() -> Self {
        let rig = Rig::new(tiny());
        let inputs = Tensor::new(&[[0.5_f32, -1.0, 2.0], [1.5, 0.25, -0.5]], &Device::Cpu).unwrap();
        let last = (Vec::new(), rig.model().layout().revision());
        let host_parameters = rig.parameter_bits();
        let mut system = Self { rig, inputs, host_logits: Vec::new(), host_parameters, last };
        system.host_logits = system.logits();
        system
    }

    fn logits(&self) -> Vec<u32> {
        bits(&self.rig.model().forward(&self.inputs, Pass::Evaluate { overrides: &[] }).unwrap().logits)
    }

    fn seen(&self) -> Seen {
        let layout = self.rig.model().layout();
        let slots = self.rig.manager.export_slot_states(&self.rig.eager).unwrap();
        (self.rig.states(), slots, layout.revision(), layout.num_elements(), self.logits())
    }

    fn act(&mut self, action: &Action) -> Outcome {
        let operation = match *action {
            Action::EndStep => {
                self.rig.end_step();
                return Outcome::Moved(Vec::new());
            }
            Action::EndEpoch => return Outcome::Moved(moves(&self.rig.end_epoch())),
            Action::Measure { seed, useful } => {
                if self.rig.manager.wants_batch(&self.rig.eager) {
                    let targets = Tensor::new(&[0_u32, 1], &Device::Cpu).unwrap();
                    let batch = Batch { inputs: self.inputs.clone(), targets };
                    self.rig.manager.inspect_batch(&self.rig.eager, &batch).unwrap();
                }
                if self.rig.state(SeedId(seed)).is_some() {
                    self.rig.evidence(SeedId(seed), if useful { 0.2 } else { -0.2 });
                }
                return Outcome::Moved(Vec::new());
            }
            Action::Germinate { slot: index } => {
                Operation::germinate(slot(SLOTS[index]), BlueprintId::new("mlp").unwrap())
            }
            Action::Send { seed, order } => operation(SeedId(seed), order),
        };
        match self.rig.send(operation) {
            Ok(applied) => {
                if matches!(action, Action::Germinate { .. }) {
                    // A newborn seed does nothing: these weights make it show when it acts.
                    self.rig.fill(applied.seed, 0.5);
                }
                Outcome::Moved(moves(&applied.transitions))
            }
            Err(error) => Outcome::Refused(error.kind()),
        }
    }
}

fn moves(transitions: &[Transition]) -> Vec<machine::Moved> {
    transitions.iter().map(|moved| (moved.seed.0, moved.from, moved.to)).collect()
}

fn operation(seed: SeedId, order: Order) -> Operation {
    let curve = AlphaCurve::Linear;
    match order {
        Order::StartTraining => Operation::StartTraining { seed },
        Order::StartBlending { target, steps } => {
            Operation::StartBlending { seed, ramp: AlphaRamp { target: alpha(target), steps, curve } }
        }
        Order::Hold => Operation::Hold { seed },
        Order::Fossilize => Operation::Fossilize { seed },
        Order::Cull => Operation::Cull { seed },
        Order::CullGradually { steps } => Operation::CullGradually { seed, steps, curve },
        Order::Pause => Operation::Pause { seed },
        Order::Resume => Operation::Resume { seed },
    }
}

fn check_seed(state: &SeedState, life: &Life) {
    assert_eq!((state.stage, state.paused), (life.stage, life.paused), "{state:?}");
    assert_eq!((state.age_epochs, state.epochs_in_stage), (life.age, life.epochs), "{state:?}");
    let (found, expected) = (state.alpha.get(), life.alpha());
    assert!((0.0..=1.0).contains(&found) && (found - expected).abs() < 1e-12, "{found} is not {expected}");
    assert_eq!((state.alpha.is_zero(), state.alpha.is_one()), (expected <= 0.0, expected >= 1.0), "{expected}");
    assert_eq!(state.stability, life.stability(), "{state:?}");
    assert_eq!(state.num_parameters > 0, life.role().is_some(), "{state:?}");
    assert_eq!(state.previous_stage, life.previous, "{state:?}");
}

impl StateMachineTest for System {
    type SystemUnderTest = Self;
    type Reference = Lives;

    fn init_test(_: &Lives) -> Self {
        Self::new()
    }

    fn apply(mut system: Self, lives: &Lives, action: Action) -> Self {
        let before = matches!(lives.outcome, Outcome::Refused(_)).then(|| system.seen());
        let outcome = system.act(&action);
        assert_eq!(outcome, lives.outcome, "{action:?}");
        if let Some(before) = before {
            assert_eq!(system.seen(), before, "{action:?} was refused and changed something");
        }
        // The revision grows exactly when somebody's part in a training step changes.
        let structure = lives.structure();
        let revision = system.rig.model().layout().revision();
        let (old_structure, old_revision) = std::mem::replace(&mut system.last, (structure, revision));
        assert_eq!(revision > old_revision, system.last.0 != old_structure, "{action:?}");
        assert!(revision >= old_revision);
        system
    }

    fn check_invariants(system: &Self, lives: &Lives) {
        let states = system.rig.states();
        let ids: Vec<u32> = states.iter().map(|state| state.seed_id.0).collect();
        assert_eq!(ids, lives.seeds.keys().copied().collect::<Vec<_>>());
        for (state, life) in states.iter().zip(lives.seeds.values()) {
            check_seed(state, life);
        }
        let model = system.rig.model();
        // What is in the network is what the model of the test expects, and nothing else.
        for seed in (1..lives.next_seed).map(SeedId) {
            let role = lives.seeds.get(&seed.0).and_then(Life::role);
            assert_eq!(model.role(seed), role, "{seed}");
            assert_eq!(system.rig.manager.seed_parameters(seed).is_some(), role.is_some(), "{seed}");
        }
        let learning: Vec<SeedId> = lives.learning();
        let mut owners: Vec<SeedId> = Vec::new();
        for segment in model.layout().segments() {
            if let Owner::Seed(seed) = segment.spec.owner {
                owners.push(seed);
            }
        }
        owners.sort();
        owners.dedup();
        assert_eq!(owners, learning);
        let host: Vec<_> =
            system.rig.parameter_bits().into_iter().filter(|(name, _)| name.starts_with("host.")).collect();
        assert_eq!(host, system.host_parameters);
        if lives.seeds.values().all(|life| !life.acts()) {
            assert_eq!(system.logits(), system.host_logits, "nobody acts");
        }
    }
}

/// A test whose sequences never get far would pass whatever the manager did.
#[test]
fn the_random_lives_come_through_every_row_of_the_table() {
    let config = Config { rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let strategy = Lives::sequential_strategy(1..41);
    let mut followed = vec![0_u32; MOVES.len()];
    for _ in 0..2_000 {
        let (mut lives, actions, _) = strategy.new_tree(&mut runner).unwrap().current();
        for action in actions {
            let before = lives.clone();
            lives = Lives::apply(lives, &action);
            let Outcome::Moved(moved) = &lives.outcome else { continue };
            let mut used: Vec<_> = match action {
                Action::Send { seed, order } => {
                    let life = &before.seeds[&seed];
                    vec![(life.stage, life.condition(), life.trigger(order))]
                }
                _ => Vec::new(),
            };
            for (_, from, to) in moved {
                used.extend(match (from, to) {
                    (SeedStage::Dormant, _) => Some((*from, Condition::Active, Trigger::Germinate)),
                    (SeedStage::Blending, SeedStage::Pruned) if matches!(action, Action::EndEpoch) => {
                        Some((*from, Condition::Fading, Trigger::FadeEnd))
                    }
                    (SeedStage::Pruned | SeedStage::Embargoed | SeedStage::Resetting, _) => {
                        Some((*from, Condition::Active, Trigger::EpochEnd))
                    }
                    _ => None,
                });
            }
            for (index, row) in MOVES.iter().enumerate() {
                followed[index] += u32::from(used.contains(&(row.from, row.when, row.trigger)));
            }
        }
    }
    let rare = MOVES.iter().zip(followed).filter(|(_, count)| *count == 0);
    let rare: Vec<_> = rare.map(|(row, count)| (row.from, row.when, row.trigger, count)).collect();
    assert!(rare.is_empty(), "never followed: {rare:?}");
}

prop_state_machine! {
    #![proptest_config(Config {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(NUM_SEQUENCES),
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(20_240_601),
        max_shrink_iters: 2_000,
        ..Config::default()
    })]

    #[test]
    fn the_manager_lives_as_the_table_says(sequential 1..41 => System);
}

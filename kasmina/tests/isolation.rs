//! Shadow training leaves the host alone bit for bit, and the audit that says so finds planted leaks.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use candle_core::backprop::GradStore;
use candle_core::{Tensor, Var};
use kasmina::blueprint::{Blueprint, Mlp, Registry};
use kasmina::host::SlotShape;
use kasmina::isolation::{Audited, IsolationConfig, Violation, audit};
use kasmina::weight::WeightSpec;
use kasmina::{Error, GraftedModel, KasminaConfig};
use leyline::batch::Batch;
use leyline::command::{AlphaCurve, Operation};
use leyline::error::{Error as _, ErrorKind, ErrorType};
use leyline::id::SeedId;
use leyline::layout::{Owner, ParameterLayout};
use leyline::model::{Outputs, Parameter, Pass, TrainableModel};
use leyline::region::Eager;
use leyline::seed::{SeedManager, SeedStage};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use support::{Rig, batch, batch_for, bits, config, configurations, cross_entropy, exact_bits, hosts, mlp, ramp, task};

/// A blueprint at a slot of a host.
#[derive(Debug, Clone)]
struct Case {
    config: KasminaConfig,
    slot: String,
    blueprint: String,
}

/// All that can be on offer, what is offered on request included.
const BLUEPRINTS: [&str; 9] =
    ["attention", "conv", "depthwise", "low_rank", "mlp", "noise", "norm", "norm_mlp", "widen"];

/// Every blueprint at every slot that it fits, for every host and dtype.
fn cases() -> Vec<Case> {
    let offers = |config: KasminaConfig| {
        let blueprints = Some(BLUEPRINTS.map(str::to_owned).to_vec());
        let config = KasminaConfig { blueprints, ..config };
        let rig = Rig::new(config.clone());
        let slots = rig.manager.export_slot_states(&rig.eager).unwrap();
        let case = move |slot: &str, blueprint: &str| Case {
            config: config.clone(),
            slot: slot.to_owned(),
            blueprint: blueprint.to_owned(),
        };
        let of_slot = |slot: &leyline::seed::SlotState| -> Vec<Case> {
            slot.offers.iter().map(|offer| case(slot.slot.as_str(), offer.blueprint.as_str())).collect()
        };
        slots.iter().flat_map(of_slot).collect::<Vec<Case>>()
    };
    configurations().into_iter().flat_map(offers).collect()
}

/// The same cases in every run.
fn repeatable(cases: u32) -> ProptestConfig {
    ProptestConfig { rng_seed: RngSeed::Fixed(20), failure_persistence: None, ..ProptestConfig::with_cases(cases) }
}

fn backward(logits: &Tensor, batch: &Batch) -> GradStore {
    cross_entropy(logits, &batch.targets).unwrap().backward().unwrap()
}

/// Isolation by its definition, with bits compared on the host: the audit is not asked. Returns whether every seed in
/// the shadow has a gradient other than zero.
#[track_caller]
fn check_isolated(rig: &Rig, batch: &Batch) -> bool {
    let (with, without) = (rig.model(), rig.model().without_shadows().unwrap());
    let (outputs, reference) = (with.forward(&batch.inputs, Pass::Train), without.forward(&batch.inputs, Pass::Train));
    let (outputs, reference) = (outputs.unwrap(), reference.unwrap());
    assert_eq!(exact_bits(&outputs.logits), exact_bits(&reference.logits));
    let (gradients, expected) = (backward(&outputs.logits, batch), backward(&reference.logits, batch));
    for Parameter { name, var } in without.parameters() {
        assert_eq!(gradients.get(var).map(exact_bits), expected.get(var).map(exact_bits), "{name}");
        assert!(expected.get(var).is_some(), "the main loss does not reach {name}");
    }
    let shadow_seeds: Vec<SeedId> = outputs.shadows.iter().map(|shadow| shadow.seed).collect();
    for (parameter, segment) in with.parameters().iter().zip(with.layout().segments()) {
        let Owner::Seed(owner) = segment.spec.owner else { continue };
        assert_eq!(segment.spec.isolated, shadow_seeds.contains(&owner), "{}", parameter.name);
    }
    let mut all_move = true;
    for shadow in &outputs.shadows {
        let gradients = backward(&shadow.logits, batch);
        let own = rig.manager.seed_parameters(shadow.seed).unwrap();
        let mut moves = false;
        for Parameter { name, var } in with.parameters() {
            let gradient = gradients.get(var).map(bits);
            assert_eq!(gradient.is_some(), own.iter().any(|own| own.name == *name), "{name} of {}", shadow.seed);
            let gradient = gradient.unwrap_or_default();
            assert!(gradient.iter().all(|bits| f32::from_bits(*bits).is_finite()), "{name}");
            moves |= gradient.iter().any(|bits| bits << 1 != 0);
        }
        all_move &= moves;
    }
    all_move
}

#[test]
fn host_output_and_gradients_are_the_same_bits_with_and_without_a_seed_in_training() {
    let cases = cases();
    let tried: BTreeSet<&str> = cases.iter().map(|case| case.blueprint.as_str()).collect();
    assert_eq!(tried, BTreeSet::from(BLUEPRINTS), "each of them fits somewhere");
    let (num_checked, num_learning) = (Cell::new(0), Cell::new(0));
    for case in &cases {
        let strategy = (any::<u64>(), 1_u32..6, any::<u32>());
        proptest!(repeatable(12), |((init_seed, num_steps, variant) in strategy)| {
            let mut rig = Rig::new(KasminaConfig { init_seed, ..case.config.clone() });
            let seed = rig.germinate(&case.slot, &case.blueprint);
            rig.bring_to(seed, SeedStage::Training);
            for step in 0..num_steps {
                rig.descend(variant.wrapping_add(step));
            }
            let learns = check_isolated(&rig, &batch_for(&case.config.host, variant));
            num_checked.set(num_checked.get() + 1);
            num_learning.set(num_learning.get() + u32::from(learns));
        });
    }
    // A small host drawn at random may be dead behind the slot.
    let (num_checked, num_learning) = (num_checked.get(), num_learning.get());
    assert!(num_learning * 10 >= num_checked * 9, "{num_learning} of {num_checked} seeds learn");
}

#[test]
fn every_parameter_of_a_seed_learns_after_its_first_update() {
    for case in cases() {
        let mut rig = Rig::new(case.config.clone());
        let seed = rig.germinate(&case.slot, &case.blueprint);
        rig.bring_to(seed, SeedStage::Training);
        // The first update moves the last layer off zero; from the second on every parameter has a gradient.
        for variant in 0..3 {
            rig.descend(variant);
        }
        let batch = batch_for(&case.config.host, 9);
        let outputs = rig.model().forward(&batch.inputs, Pass::Train).unwrap();
        let gradients = backward(&outputs.shadows[0].logits, &batch);
        for parameter in rig.manager.seed_parameters(seed).unwrap() {
            let bits = bits(gradients.get(&parameter.var).unwrap());
            assert!(bits.iter().any(|bits| bits << 1 != 0), "{case:?}: {} is stuck", parameter.name);
        }
    }
}

/// What is done with a slot: nothing, or a seed of the blueprint with this number brought to a stage.
fn occupant() -> impl Strategy<Value = Option<(usize, SeedStage)>> {
    let stage = prop_oneof![
        4 => Just(SeedStage::Training),
        1 => Just(SeedStage::Blending),
        1 => Just(SeedStage::Holding),
        1 => Just(SeedStage::Fossilized),
    ];
    proptest::option::weighted(0.7, (0_usize..8, stage))
}

#[test]
fn a_healthy_network_is_never_flagged() {
    let configurations = configurations();
    let which = 0..configurations.len();
    let strategy = (which, any::<u64>(), proptest::collection::vec(occupant(), 8), 0_u32..4, any::<u32>());
    let num_shadows = Cell::new(0);
    proptest!(repeatable(1_000), |((which, init_seed, occupants, num_steps, variant) in strategy)| {
        let config = KasminaConfig { init_seed, ..configurations[which].clone() };
        let host = config.host.clone();
        let mut rig = Rig::new(config);
        let slots = rig.manager.export_slot_states(&rig.eager).unwrap();
        for (slot, occupant) in slots.iter().zip(occupants) {
            if let Some((blueprint, stage)) = occupant {
                let offer = &slot.offers[blueprint % slot.offers.len()];
                let seed = rig.germinate(slot.slot.as_str(), offer.blueprint.as_str());
                rig.bring_to(seed, stage);
                num_shadows.set(num_shadows.get() + u32::from(stage == SeedStage::Training));
            }
        }
        for step in 0..num_steps {
            rig.descend(variant.wrapping_add(step));
        }
        let violations = rig.manager.audit_isolation(&rig.eager, &batch_for(&host, variant)).unwrap();
        prop_assert_eq!(violations, []);
        prop_assert_eq!(rig.manager.total_isolation_violations(), 0);
    });
    assert!(num_shadows.get() > 500, "only {} seeds were in the shadow", num_shadows.get());
}

#[test]
fn training_a_seed_leaves_the_path_of_the_host_unchanged() {
    for host in hosts() {
        let mut alone = Rig::new(config(host.clone()));
        for variant in 0..6 {
            alone.descend(variant);
        }
        let expected = alone.parameter_bits();
        let mut rig = Rig::beside(config(host), alone.eager);
        for slot in rig.model().host().slots().iter().map(|slot| slot.id.to_string()).collect::<Vec<_>>() {
            let seed = rig.germinate(&slot, "mlp");
            rig.bring_to(seed, SeedStage::Training);
        }
        for variant in 0..6 {
            rig.descend(variant);
        }
        let host: Vec<_> = rig.parameter_bits().into_iter().filter(|(name, _)| name.starts_with("host.")).collect();
        assert_eq!(host, expected);
    }
}

#[test]
fn a_seed_in_training_sees_what_acts_before_it_and_does_not_move_it() {
    let mut rig = Rig::new(config(mlp()));
    let acting = rig.germinate("input", "mlp");
    rig.bring_to(acting, SeedStage::Holding);
    let later = rig.germinate("hidden1", "mlp");
    rig.bring_to(later, SeedStage::Holding);
    let learner = rig.germinate("hidden0", "norm_mlp");
    rig.bring_to(learner, SeedStage::Training);
    for variant in 0..3 {
        rig.descend(variant);
        assert_eq!(rig.manager.audit_isolation(&rig.eager, &batch(variant)).unwrap(), []);
    }
}

#[derive(Debug, Clone, Copy)]
enum Leak {
    /// The seed acts a little.
    Answer,
    /// The seed acts a hardly visible little.
    TinyAnswer,
    /// The answer is right, but the main loss trains the seed.
    MainToSeed,
    /// The side loss trains the host: what the seed sees is not detached.
    SideToHost,
    /// The main loss has another gradient for the host.
    Gradient,
    /// The side loss is lost.
    NoSideLoss,
    /// The seed and the host have one variable.
    SharedVariable,
    /// The main loss trains a seed that does not train.
    MainToIdle,
    /// The same, and without the seeds in the shadow as well.
    MainToIdleAlways,
    /// The side loss trains a seed that does not train.
    SideToIdle,
    /// The seed and one that does not train have one variable.
    SharedWithIdle,
    /// The host and a seed that does not train have one variable.
    HostSharesIdle,
    /// A pass writes a tensor of a seed that does not train.
    WritesIdle,
}

/// A network with a planted leak. Seed 1 is in the shadow; seed 2 has no place in the layout where there is one.
struct Leaky<'a> {
    model: &'a GraftedModel,
    leak: Leak,
    parameters: Vec<Parameter>,
    seed_tensors: Vec<(SeedId, Parameter)>,
}

impl<'a> Leaky<'a> {
    fn new(model: &'a GraftedModel, leak: Leak) -> Self {
        let mut parameters = model.parameters().to_vec();
        let seed_tensors = model.seed_tensors();
        let idle = || seed_tensors.iter().find(|(seed, _)| *seed == SeedId(2)).unwrap().1.var.clone();
        match leak {
            Leak::SharedVariable => parameters.last_mut().unwrap().var = parameters[0].var.clone(),
            Leak::SharedWithIdle => parameters.last_mut().unwrap().var = idle(),
            Leak::HostSharesIdle => parameters[0].var = idle(),
            _ => {}
        }
        Self { model, leak, parameters, seed_tensors }
    }

    fn idle(&self) -> &Var {
        &self.seed_tensors.iter().find(|(seed, _)| *seed == SeedId(2)).unwrap().1.var
    }
}

impl ErrorType for Leaky<'_> {
    type Error = Error;
}

impl Audited for Leaky<'_> {
    fn seed_tensors(&self) -> Vec<(SeedId, Parameter)> {
        self.seed_tensors.clone()
    }
}

impl TrainableModel for Leaky<'_> {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn layout(&self) -> &ParameterLayout {
        self.model.layout()
    }

    fn forward(&self, inputs: &Tensor, pass: Pass<'_>) -> Result<Outputs, Error> {
        // Value zero, gradient that of `tensor`.
        let ghost = |tensor: &Tensor| tensor - tensor.detach();
        let Outputs { mut logits, mut shadows } = self.model.forward(inputs, pass)?;
        match self.leak {
            Leak::Answer => logits = (&logits + (shadows[0].logits.detach() * 1e-3)?)?,
            Leak::TinyAnswer => logits = (&logits + ((&shadows[0].logits - &logits)?.detach() * 1e-7)?)?,
            Leak::MainToSeed => logits = (&logits + ghost(&shadows[0].logits)?)?,
            Leak::SideToHost => shadows[0].logits = (&shadows[0].logits + ghost(&logits)?)?,
            Leak::Gradient => logits = (&logits + ghost(&(&logits * 1e-3)?)?)?,
            Leak::NoSideLoss => shadows.clear(),
            Leak::MainToIdle | Leak::MainToIdleAlways => {
                logits = logits.broadcast_add(&ghost(&self.idle().as_tensor().mean_all()?)?)?;
            }
            Leak::SideToIdle => {
                shadows[0].logits = shadows[0].logits.broadcast_add(&ghost(&self.idle().as_tensor().mean_all()?)?)?;
            }
            Leak::WritesIdle => self.idle().set(&(self.idle().as_detached_tensor() * 1.001)?)?,
            Leak::SharedVariable | Leak::SharedWithIdle | Leak::HostSharesIdle => {}
        }
        Ok(Outputs { logits, shadows })
    }
}

/// The name of a violation with its parameter.
fn describe(violation: &Violation) -> String {
    match violation {
        Violation::OutputDiffers { .. } => "output differs".to_owned(),
        Violation::GradientDiffers { parameter, .. } => format!("gradient of {parameter} differs"),
        Violation::ParameterWritten { parameter, .. } => format!("{parameter} written"),
        Violation::MainLossReachesSeed { parameter, .. } => format!("main loss reaches {parameter}"),
        Violation::SideLossReachesOther { parameter, .. } => format!("side loss reaches {parameter}"),
        Violation::SideLossMissesSeed { parameter, .. } => format!("side loss misses {parameter}"),
        Violation::SharedStorage { parameter, other, .. } => format!("{parameter} shares {other}"),
    }
}

#[track_caller]
fn check_leak(rig: &Rig, leak: Leak, expected: &str) {
    let reference = rig.model().without_shadows().unwrap();
    let leaky = Leaky::new(rig.model(), leak);
    let violations = match leak {
        Leak::MainToIdleAlways => audit(&leaky, &Leaky::new(&reference, leak), &batch(2), &*task()),
        _ => audit(&leaky, &reference, &batch(2), &*task()),
    };
    let violations = violations.unwrap();
    let names: Vec<String> = violations.iter().map(describe).collect();
    assert!(names.iter().any(|name| name == expected), "{leak:?}: `{expected}` is not among {names:?}");
    let counts = violations.iter().filter_map(|violation| match violation {
        Violation::OutputDiffers { num_differing } | Violation::GradientDiffers { num_differing, .. } => {
            Some(*num_differing)
        }
        _ => None,
    });
    assert!(counts.into_iter().all(|count| count > 0));
}

#[test]
fn every_leak_planted_in_a_network_is_found_by_its_name() {
    let mut rig = Rig::new(config(mlp()));
    let seed = rig.germinate("hidden0", "mlp");
    rig.bring_to(seed, SeedStage::Training);
    rig.descend(0);
    check_leak(&rig, Leak::Answer, "output differs");
    check_leak(&rig, Leak::Answer, "gradient of host.layer0.weight differs");
    check_leak(&rig, Leak::Gradient, "gradient of host.layer0.weight differs");
    check_leak(&rig, Leak::MainToSeed, "main loss reaches seed.0001.up.weight");
    check_leak(&rig, Leak::SideToHost, "side loss reaches host.layer0.weight");
    check_leak(&rig, Leak::NoSideLoss, "side loss misses seed.0001.up.weight");
    check_leak(&rig, Leak::SharedVariable, "seed.0001.up.weight shares host.head.bias");
    check_leak(&rig, Leak::SharedVariable, "main loss reaches seed.0001.up.weight");
    rig.fill(seed, 1.0);
    check_leak(&rig, Leak::TinyAnswer, "output differs");
}

#[test]
fn every_leak_to_a_seed_outside_the_layout_is_found_by_its_name() {
    let mut eager = Eager::acquire().unwrap();
    for how in HIDDEN {
        let mut rig = Rig::beside(config(mlp()), eager);
        let seed = rig.germinate("hidden0", "mlp");
        rig.bring_to(seed, SeedStage::Training);
        let hidden = rig.germinate("input", "mlp");
        hide(&mut rig, hidden, how);
        rig.descend(0);
        check_leak(&rig, Leak::MainToIdle, "gradient of seed.0002.down.weight differs");
        check_leak(&rig, Leak::MainToIdleAlways, "main loss reaches seed.0002.down.weight");
        check_leak(&rig, Leak::SideToIdle, "side loss reaches seed.0002.down.weight");
        check_leak(&rig, Leak::SharedWithIdle, "seed.0001.up.weight shares seed.0002.down.weight");
        check_leak(&rig, Leak::SharedWithIdle, "seed.0002.down.weight shares seed.0001.up.weight");
        check_leak(&rig, Leak::HostSharesIdle, "seed.0002.down.weight shares host.head.bias");
        check_leak(&rig, Leak::WritesIdle, "seed.0002.down.weight written");
        eager = rig.eager;
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// It computes with a parameter of somebody else and passes gradient on to it.
    UsesAnother,
    /// It writes a parameter of somebody else.
    WritesAnother,
    /// It holds one of its own parameters fixed.
    HoldsItsOwn,
}

/// The `mlp` blueprint with a fault; it begins when there is somebody else to harm.
#[derive(Debug)]
struct Faulty {
    fault: Fault,
    other: Arc<Mutex<Option<Var>>>,
}

impl Blueprint for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn fits(&self, slot: SlotShape) -> bool {
        Mlp.fits(slot)
    }

    fn weights(&self, slot: SlotShape, width: usize) -> Vec<WeightSpec> {
        Mlp.weights(slot, width)
    }

    fn delta(&self, weights: &[Tensor], h: &Tensor) -> candle_core::Result<Tensor> {
        let mut weights = weights.to_vec();
        if self.fault == Fault::HoldsItsOwn {
            weights[3] = weights[3].detach();
        }
        let delta = Mlp.delta(&weights, h)?;
        match (self.fault, &*self.other.lock().unwrap()) {
            (Fault::UsesAnother, Some(other)) => delta.broadcast_add(&(other.as_tensor().mean_all()? * 1e-3)?),
            (Fault::WritesAnother, Some(other)) => {
                other.set(&(other.as_detached_tensor() * 1.001)?)?;
                Ok(delta)
            }
            (Fault::HoldsItsOwn, _) | (_, None) => Ok(delta),
        }
    }
}

/// A faulty seed (2) in the shadow at `hidden0`, beside a sound one (1) at `hidden1`, `input` having one that acts (3).
fn faulty_rig(fault: Fault, other: &str, isolation: IsolationConfig) -> Rig {
    let mut registry = Registry::standard();
    let target = Arc::new(Mutex::new(None));
    registry.register(Arc::new(Faulty { fault, other: Arc::clone(&target) })).unwrap();
    let config = KasminaConfig { isolation, ..config(mlp()) };
    let mut rig = Rig::with_registry(config, registry, Eager::acquire().unwrap());
    let seeds = [("hidden1", "mlp"), ("hidden0", "faulty"), ("input", "mlp")];
    let [sound, faulty, acting] = seeds.map(|(slot, blueprint)| rig.germinate(slot, blueprint));
    rig.bring_to(acting, SeedStage::Holding);
    // Last, and without an epoch: nothing has been audited with them.
    for seed in [sound, faulty] {
        rig.send(Operation::StartTraining { seed }).unwrap();
    }
    rig.descend(0);
    let parameter = rig.model().parameters().iter().find(|parameter| parameter.name == other).unwrap();
    *target.lock().unwrap() = Some(parameter.var.clone());
    rig
}

#[track_caller]
fn check_fault(fault: Fault, other: &str, expected: &[&str]) {
    let mut rig = faulty_rig(fault, other, IsolationConfig::default());
    let violations = rig.manager.audit_isolation(&rig.eager, &batch(2)).unwrap();
    let names: Vec<String> = violations.iter().map(describe).collect();
    for expected in expected {
        assert!(names.iter().any(|name| name == expected), "{fault:?}: `{expected}` is not among {names:?}");
    }
    let charged = [1, 2, 3].map(|seed| rig.manager.num_isolation_violations(SeedId(seed)));
    assert_eq!((charged[0], charged[2]), (0, 0), "{fault:?}: others are charged");
    assert!(charged[1] > 0, "{fault:?}: the seed is not charged");
    assert_eq!(rig.manager.total_isolation_violations(), violations.len() as u64);
    assert_eq!(rig.recorder.counter_value("kasmina.isolation.violations", &[]), Some(violations.len() as u64));
    assert_eq!(rig.recorder.events_named("violation_recorded").len(), 1);
}

#[test]
fn every_fault_planted_in_a_blueprint_is_found_and_charged_to_its_seed_alone() {
    check_fault(Fault::UsesAnother, "host.layer0.weight", &["side loss reaches host.layer0.weight"]);
    check_fault(Fault::UsesAnother, "host.head.weight", &["side loss reaches host.head.weight"]);
    check_fault(Fault::UsesAnother, "seed.0003.up.weight", &["side loss reaches seed.0003.up.weight"]);
    check_fault(Fault::WritesAnother, "host.layer0.weight", &["host.layer0.weight written"]);
    check_fault(Fault::WritesAnother, "host.layer1.weight", &["host.layer1.weight written", "output differs"]);
    check_fault(Fault::WritesAnother, "seed.0003.down.weight", &["seed.0003.down.weight written"]);
    // Another seed in the shadow, which is in the layout and not in the computation that is compared.
    check_fault(Fault::UsesAnother, "seed.0001.up.weight", &["side loss reaches seed.0001.up.weight"]);
    check_fault(Fault::WritesAnother, "seed.0001.down.weight", &["seed.0001.down.weight written"]);
    check_fault(Fault::WritesAnother, "seed.0002.down.bias", &["seed.0002.down.bias written"]);
    check_fault(Fault::HoldsItsOwn, "host.layer0.weight", &["side loss misses seed.0002.up.bias"]);
}

/// How a seed has tensors and no place in the layout.
const HIDDEN: [&str; 3] = ["germinated", "paused", "fading"];

/// Brings a germinated seed to where it has tensors and no place in the layout.
fn hide(rig: &mut Rig, seed: SeedId, how: &str) {
    if how == "germinated" {
        return;
    }
    rig.bring_to(seed, SeedStage::Blending);
    rig.send(match how {
        "paused" => Operation::Pause { seed },
        _ => Operation::CullGradually { seed, steps: 9, curve: AlphaCurve::Linear },
    })
    .unwrap();
}

#[test]
fn seeds_outside_the_layout_are_watched_as_well() {
    let mut eager = Eager::acquire().unwrap();
    for how in HIDDEN {
        for fault in [Fault::UsesAnother, Fault::WritesAnother] {
            let mut registry = Registry::standard();
            let target = Arc::new(Mutex::new(None));
            registry.register(Arc::new(Faulty { fault, other: Arc::clone(&target) })).unwrap();
            let mut rig = Rig::with_registry(config(mlp()), registry, eager);
            let [hidden, learner] =
                [("input", "mlp"), ("hidden0", "faulty")].map(|(slot, blueprint)| rig.germinate(slot, blueprint));
            rig.bring_to(learner, SeedStage::Training);
            hide(&mut rig, hidden, how);
            assert_eq!(rig.manager.audit_isolation(&rig.eager, &batch(2)).unwrap(), [], "{how}");
            assert!(rig.model().parameters().iter().all(|parameter| !parameter.name.starts_with("seed.0001.")));
            let parameter = rig.manager.seed_parameters(hidden).unwrap().swap_remove(0);
            *target.lock().unwrap() = Some(parameter.var);
            let violations = rig.manager.audit_isolation(&rig.eager, &batch(2)).unwrap();
            let names: Vec<String> = violations.iter().map(describe).collect();
            let expected = match fault {
                Fault::WritesAnother => format!("{} written", parameter.name),
                _ => format!("side loss reaches {}", parameter.name),
            };
            assert!(names.contains(&expected), "{how}, {fault:?}: `{expected}` is not among {names:?}");
            assert_eq!(rig.manager.num_isolation_violations(hidden), 0, "{how}, {fault:?}");
            assert_eq!(rig.manager.num_isolation_violations(learner), violations.len() as u64, "{how}, {fault:?}");
            eager = rig.eager;
        }
    }
}

#[test]
fn the_monitor_audits_the_first_batch_of_every_nth_epoch_and_goes_on() {
    for (check_every_epochs, expected) in [(1, [1, 2, 3, 4, 5]), (2, [1, 1, 2, 2, 3])] {
        let isolation = IsolationConfig { check_every_epochs, strict: false };
        let mut rig = faulty_rig(Fault::UsesAnother, "host.layer0.weight", isolation);
        for audits in expected {
            for variant in 0..3 {
                rig.manager.attribute_batch(&rig.eager, &batch(variant)).unwrap();
                assert_eq!(rig.recorder.events_named("violation_recorded").len(), audits);
            }
            rig.end_epoch();
        }
    }
}

#[test]
fn without_audits_no_seed_trains_and_the_refusal_says_why() {
    let isolation = IsolationConfig { check_every_epochs: 0, strict: false };
    let mut rig = Rig::new(KasminaConfig { isolation, ..config(mlp()) });
    let seed = rig.germinate("hidden0", "mlp");
    for _ in 0..3 {
        let error = rig.send(Operation::StartTraining { seed }).unwrap_err().to_string();
        assert!(error.ends_with("isolation not measured: `isolation.check_every_epochs` is 0, needs 1"), "{error}");
        rig.show_batch();
        rig.good_evidence(seed);
        rig.end_epoch();
    }
}

#[test]
fn a_seed_that_begins_to_train_between_two_audits_is_audited_at_once() {
    let isolation = IsolationConfig { check_every_epochs: 100, strict: false };
    let mut rig = Rig::new(KasminaConfig { isolation, ..config(mlp()) });
    for (slot, audits) in [("hidden0", 1), ("hidden1", 2)] {
        let seed = rig.germinate(slot, "mlp");
        rig.bring_to(seed, SeedStage::Training);
        assert_eq!(rig.recorder.counter_value("kasmina.isolation.audits_total", &[]), Some(audits));
        rig.send(Operation::StartBlending { seed, ramp: ramp(1.0, 0) }).unwrap();
    }
}

#[test]
fn a_strict_monitor_fails_with_every_violation_after_counting_them() {
    let isolation = IsolationConfig { strict: true, ..IsolationConfig::default() };
    let mut rig = faulty_rig(Fault::UsesAnother, "host.layer0.weight", isolation.clone());
    let error = rig.manager.attribute_batch(&rig.eager, &batch(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Other);
    assert_eq!(error.to_string(), "isolation is violated: the side loss of seed-2 reaches host.layer0.weight");
    let Error::IsolationViolated { violations } = error else { panic!("{error}") };
    let parameter = "host.layer0.weight".to_owned();
    assert_eq!(violations, [Violation::SideLossReachesOther { seed: SeedId(2), parameter }]);
    assert_eq!(rig.manager.num_isolation_violations(SeedId(2)), 1);

    let mut sound = Rig::beside(KasminaConfig { isolation, ..config(mlp()) }, rig.eager);
    let seed = sound.germinate("hidden0", "mlp");
    sound.bring_to(seed, SeedStage::Training);
    sound.manager.attribute_batch(&sound.eager, &batch(1)).unwrap();
}

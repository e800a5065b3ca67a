//! Shadow training leaves the host alone bit for bit, and the audit that says so finds planted leaks.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use candle_core::Tensor;
use candle_nn::loss::cross_entropy;
use kasmina::isolation::{Violation, audit};
use kasmina::{Error, GraftedModel};
use leyline::error::ErrorType;
use leyline::layout::ParameterLayout;
use leyline::model::{Outputs, Parameter, Pass, TrainableModel};
use leyline::seed::{SeedManager, SeedStage};
use support::{Rig, batch, config, hosts, mlp};

/// Every blueprint at every slot where it is on offer.
fn for_every_offer(mut f: impl FnMut(&mut Rig, &str, &str)) {
    let mut eager = None;
    for host in hosts() {
        let rig = match eager.take() {
            None => Rig::new(config(host.clone())),
            Some(eager) => Rig::beside(config(host.clone()), eager),
        };
        let slots = rig.manager.export_slot_states(&rig.eager).unwrap();
        eager = Some(rig.eager);
        for slot in slots {
            for offer in slot.offers {
                let mut rig = Rig::beside(config(host.clone()), eager.take().unwrap());
                f(&mut rig, slot.slot.as_str(), offer.blueprint.as_str());
                eager = Some(rig.eager);
            }
        }
    }
}

#[test]
fn host_output_and_gradients_are_the_same_bits_with_and_without_a_seed_in_training() {
    let mut num_checked = 0;
    for_every_offer(|rig, slot, blueprint| {
        let seed = rig.germinate(slot, blueprint);
        rig.bring_to(seed, SeedStage::Training);
        // The first update moves the last layer off zero; from the second on every parameter has a gradient.
        for variant in 0..3 {
            rig.descend(variant);
            let violations = rig.manager.audit_isolation(&rig.eager, &batch(variant)).unwrap();
            assert_eq!(violations, [], "{blueprint} at {slot}");
        }
        let outputs = rig.model().forward(&batch(9).inputs, Pass::Train).unwrap();
        let gradients = cross_entropy(&outputs.shadows[0].logits, &batch(9).targets).unwrap().backward().unwrap();
        for (var, parameter) in rig.seed_vars(seed).iter().zip(rig.manager.seed_parameters(seed).unwrap()) {
            let bits = support::bits(gradients.get(var).unwrap());
            assert!(bits.iter().any(|bits| bits << 1 != 0), "{blueprint} at {slot}: {} is stuck", parameter.name);
        }
        num_checked += 1;
    });
    assert_eq!(num_checked, 3 * 3 + (3 + 4 + 4), "vectors: mlp, noise, norm_mlp; signals also conv");
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

#[derive(Clone, Copy)]
enum Leak {
    /// The seed acts a little.
    Answer,
    /// The answer is right, but the main loss trains the seed.
    MainToSeed,
    /// The side loss trains the host.
    SideToHost,
    /// The main loss has another gradient for the host.
    Gradient,
    /// The side loss is lost.
    NoSideLoss,
}

/// A network with a planted leak.
struct Leaky<'a>(&'a GraftedModel, Leak);

impl ErrorType for Leaky<'_> {
    type Error = Error;
}

impl TrainableModel for Leaky<'_> {
    fn parameters(&self) -> &[Parameter] {
        self.0.parameters()
    }

    fn layout(&self) -> &ParameterLayout {
        self.0.layout()
    }

    fn forward(&self, inputs: &Tensor, pass: Pass<'_>) -> Result<Outputs, Error> {
        // Value zero, gradient that of `tensor`.
        let ghost = |tensor: &Tensor| tensor - tensor.detach();
        let Outputs { mut logits, mut shadows } = self.0.forward(inputs, pass)?;
        match self.1 {
            Leak::Answer => logits = (&logits + (shadows[0].logits.detach() * 1e-3)?)?,
            Leak::MainToSeed => logits = (&logits + ghost(&shadows[0].logits)?)?,
            Leak::SideToHost => shadows[0].logits = (&shadows[0].logits + ghost(&logits)?)?,
            Leak::Gradient => logits = (&logits + ghost(&(&logits * 1e-3)?)?)?,
            Leak::NoSideLoss => shadows.clear(),
        }
        Ok(Outputs { logits, shadows })
    }
}

#[track_caller]
fn check_leak(rig: &Rig, leak: Leak, expected: &Violation) {
    let reference = rig.model().without_shadows().unwrap();
    let violations = audit(&Leaky(rig.model(), leak), &reference, &batch(2)).unwrap();
    assert!(violations.contains(expected), "{expected:?} is not among {violations:?}");
}

#[test]
fn every_planted_leak_is_found() {
    let mut rig = Rig::new(config(mlp()));
    let seed = rig.germinate("hidden0", "mlp");
    rig.bring_to(seed, SeedStage::Training);
    rig.descend(0);
    let (host, own) = ("host.layer0.weight".to_owned(), "seed.0001.up.weight".to_owned());
    check_leak(&rig, Leak::Answer, &Violation::OutputDiffers);
    check_leak(&rig, Leak::Answer, &Violation::GradientDiffers { parameter: host.clone() });
    check_leak(&rig, Leak::Gradient, &Violation::GradientDiffers { parameter: host.clone() });
    check_leak(&rig, Leak::MainToSeed, &Violation::MainLossReachesSeed { parameter: own.clone() });
    check_leak(&rig, Leak::SideToHost, &Violation::SideLossReachesOther { seed, parameter: host });
    check_leak(&rig, Leak::NoSideLoss, &Violation::SideLossMissesSeed { seed, parameter: own });
}

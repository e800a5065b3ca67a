//! Seeds that start from a batch: they change nothing, come back after a restore, and without a batch start as drawn.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use candle_core::{DType, Device, Tensor};
use kasmina::host::HostConfig;
use kasmina::init::InitMode;
use kasmina::weight::ElementType;
use kasmina::{Error, Kasmina, KasminaConfig};
use leyline::batch::Batch;
use leyline::command::Operation;
use leyline::durable::Durable;
use leyline::id::SeedId;
use leyline::model::{AlphaOverride, Pass, TrainableModel};
use leyline::region::Eager;
use leyline::seed::{SeedManager, SeedStage};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use support::{Rig, alpha, batch, bits, config, cross_entropy, hosts, mlp};

fn started(host: HostConfig, seed_init: InitMode) -> KasminaConfig {
    KasminaConfig { seed_init, ..config(host) }
}

/// Every weight of a seed.
fn weights(rig: &Rig, seed: SeedId) -> Vec<Vec<u32>> {
    rig.seed_vars(seed).iter().map(|var| bits(&var.as_detached_tensor().to_dtype(DType::F32).unwrap())).collect()
}

#[test]
fn a_seed_that_starts_from_a_batch_changes_nothing_and_is_not_as_drawn() {
    let mut eager = Eager::acquire().unwrap();
    for host in hosts() {
        for dtype in [ElementType::F32, ElementType::F64, ElementType::Bf16] {
            for blueprint in ["mlp", "norm_mlp", "conv"] {
                let mut born = Vec::new();
                for seed_init in [InitMode::Zero, InitMode::GradMax] {
                    let mut rig = Rig::beside(KasminaConfig { dtype, ..started(host.clone(), seed_init) }, eager);
                    rig.manager.keep_batch(&rig.eager, &batch(7)).unwrap();
                    let slot = rig.model().host().slots()[1].clone();
                    let fits = rig.manager.export_slot_states(&rig.eager).unwrap()[1]
                        .offers
                        .iter()
                        .any(|offer| offer.blueprint.as_str() == blueprint);
                    if fits {
                        let before = answer(&rig, &[]);
                        let seed = rig.germinate(slot.id.as_str(), blueprint);
                        rig.bring_to(seed, SeedStage::Training);
                        assert_eq!(answer(&rig, &[]), before);
                        assert_eq!(answer(&rig, &[AlphaOverride { seed, alpha: alpha(1.0) }]), before);
                        born.push(weights(&rig, seed));
                    }
                    eager = rig.eager;
                }
                if let [drawn, chosen] = &born[..] {
                    assert_ne!(drawn[..2], chosen[..2], "{blueprint} as {dtype:?}");
                    assert_eq!(drawn[2..], chosen[2..]);
                }
            }
        }
    }
}

/// Logits as bits, whatever their type.
fn answer(rig: &Rig, overrides: &[AlphaOverride]) -> Vec<u32> {
    let logits = rig.model().forward(&batch(1).inputs, Pass::Evaluate { overrides }).unwrap().logits;
    bits(&logits.to_dtype(DType::F32).unwrap())
}

#[test]
fn without_a_batch_or_without_the_mode_a_seed_starts_as_drawn() {
    let born = |seed_init, seen: bool, eager| {
        let mut rig = Rig::beside(started(mlp(), seed_init), eager);
        if seen {
            rig.manager.keep_batch(&rig.eager, &batch(7)).unwrap();
        }
        let seed = rig.germinate("hidden0", "mlp");
        (weights(&rig, seed), rig.eager)
    };
    let (drawn, eager) = born(InitMode::Zero, false, Eager::acquire().unwrap());
    let (unused, eager) = born(InitMode::Zero, true, eager);
    let (unseen, eager) = born(InitMode::GradMax, false, eager);
    let (chosen, eager) = born(InitMode::GradMax, true, eager);
    let (again, _) = born(InitMode::GradMax, true, eager);
    assert_eq!(drawn, unused);
    assert_eq!(drawn, unseen);
    assert_ne!(drawn, chosen);
    assert_eq!(chosen, again);
}

#[test]
fn the_batch_is_part_of_the_state() {
    let mut rig = Rig::new(started(mlp(), InitMode::GradMax));
    rig.manager.keep_batch(&rig.eager, &batch(7)).unwrap();
    let saved = rig.manager.save(&rig.eager).unwrap();
    // Later batches do not reach into the saved state.
    rig.end_epoch();
    rig.manager.keep_batch(&rig.eager, &batch(8)).unwrap();
    let other = rig.germinate("hidden0", "mlp");
    let other = weights(&rig, other);
    rig.manager.restore(&mut rig.eager, &saved).unwrap();
    let expected = rig.germinate("hidden0", "mlp");
    let expected = weights(&rig, expected);
    assert_ne!(expected, other);
    let mut restored = Rig::beside(started(mlp(), InitMode::GradMax), rig.eager);
    restored.manager.restore(&mut restored.eager, &saved).unwrap();
    let seed = restored.germinate("hidden0", "mlp");
    assert_eq!(weights(&restored, seed), expected);
    // A manager that keeps none ignores it.
    let mut plain = Rig::beside(started(mlp(), InitMode::Zero), restored.eager);
    plain.manager.restore(&mut plain.eager, &saved).unwrap();
    let kept = |manager: &Kasmina| {
        manager.save(&plain.eager).unwrap().tensors.keys().filter(|name| name.starts_with("latest_batch.")).count()
    };
    assert_eq!((kept(&restored.manager), kept(&plain.manager)), (2, 0), "what it ignores it does not hand on");
}

#[test]
fn an_epoch_that_is_taken_up_in_its_middle_keeps_the_samples_that_it_had() {
    let mut rig = Rig::new(started(mlp(), InitMode::GradMax));
    rig.manager.keep_batch(&rig.eager, &batch(7)).unwrap();
    let saved = rig.manager.save(&rig.eager).unwrap();
    let mut other = Rig::beside(started(mlp(), InitMode::GradMax), rig.eager);
    other.manager.restore(&mut other.eager, &saved).unwrap();
    let num_kept =
        |manager: &Kasmina, eager: &Eager| manager.save(eager).unwrap().tensors["latest_batch.inputs"].dim(0).unwrap();
    let one = num_kept(&other.manager, &other.eager);
    for manager in [&mut rig.manager, &mut other.manager] {
        manager.keep_batch(&other.eager, &batch(8)).unwrap();
        assert_eq!(num_kept(manager, &other.eager), 2 * one);
    }
}

#[test]
fn half_a_batch_in_a_saved_state_is_refused_by_name() {
    let mut rig = Rig::new(started(mlp(), InitMode::GradMax));
    rig.manager.keep_batch(&rig.eager, &batch(7)).unwrap();
    let saved = rig.manager.save(&rig.eager).unwrap();
    for name in ["latest_batch.inputs", "latest_batch.targets"] {
        let mut half = saved.clone();
        half.tensors.remove(name).unwrap();
        let error = rig.manager.restore(&mut rig.eager, &half).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn a_batch_that_is_refused_changes_nothing_that_is_kept() {
    let mut rig = Rig::new(started(mlp(), InitMode::GradMax));
    let seed = rig.germinate("hidden0", "mlp");
    rig.send(Operation::StartTraining { seed }).unwrap();
    rig.manager.keep_batch(&rig.eager, &batch(7)).unwrap();
    let saved = rig.manager.save(&rig.eager).unwrap();
    let num_kept =
        |manager: &Kasmina, eager: &Eager| manager.save(eager).unwrap().tensors["latest_batch.inputs"].dim(0).unwrap();
    let one = num_kept(&rig.manager, &rig.eager);
    let other = Batch { targets: batch(8).targets.unsqueeze(1).unwrap(), ..batch(8) };
    rig.manager.keep_batch(&rig.eager, &other).unwrap_err();
    assert_eq!(num_kept(&rig.manager, &rig.eager), one);

    // Without a task nothing can be audited.
    let (clock, recorder) = (rig.clock.clone(), rig.recorder.clone());
    let mut taskless = Kasmina::new(started(mlp(), InitMode::GradMax), &Device::Cpu, clock, recorder).unwrap();
    taskless.restore(&mut rig.eager, &saved).unwrap();
    let error = taskless.inspect_batch(&rig.eager, &batch(8)).unwrap_err();
    assert!(matches!(error, Error::NoTask { .. }), "{error}");
    assert_eq!(num_kept(&taskless, &rig.eager), one);
}

/// A problem that a linear map defines, and its host.
fn problem(number: u64) -> (KasminaConfig, Batch) {
    let mut rng = ChaCha8Rng::seed_from_u64(500 + number);
    let mut uniform = |count: usize| -> Vec<f32> { (0..count).map(|_| rng.random_range(-1.0..1.0)).collect() };
    let (inputs, teacher) = (uniform(128 * 12), uniform(12 * 5));
    let inputs = Tensor::from_vec(inputs, (128, 12), &Device::Cpu).unwrap();
    let scores = inputs.matmul(&Tensor::from_vec(teacher, (12, 5), &Device::Cpu).unwrap()).unwrap();
    let config = KasminaConfig { init_seed: number, ..KasminaConfig::new(mlp()) };
    (config, Batch { inputs, targets: scores.argmax(1).unwrap() })
}

/// The side loss of a newborn seed at its first steps of gradient descent.
fn first_losses(config: KasminaConfig, batch: &Batch, rate: f64, eager: Eager) -> (Vec<f64>, Eager) {
    let mut rig = Rig::beside(config, eager);
    rig.manager.keep_batch(&rig.eager, batch).unwrap();
    let seed = rig.germinate("hidden0", "mlp");
    rig.bring_to(seed, SeedStage::Training);
    let vars = rig.seed_vars(seed);
    let losses = (0..=10).map(|_| {
        let outputs = rig.model().forward(&batch.inputs, Pass::Train).unwrap();
        let shadow = &outputs.shadows[0];
        let loss = cross_entropy(&shadow.logits, &shadow.targets(&batch.targets).unwrap()).unwrap();
        let gradients = loss.backward().unwrap();
        for var in &vars {
            let step = (gradients.get(var).unwrap() * rate).unwrap();
            var.set(&(var.as_detached_tensor() - step).unwrap()).unwrap();
        }
        f64::from(f32::from_bits(bits(&loss)[0]))
    });
    (losses.collect(), rig.eager)
}

#[test]
fn a_seed_that_starts_from_the_batch_gains_more_at_its_first_steps() {
    let mut eager = Eager::acquire().unwrap();
    for rate in [0.1, 0.3] {
        let (mut wins, mut gains) = (0, [0.0, 0.0]);
        for number in 0..30 {
            let (config, batch) = problem(number);
            let mut last = Vec::new();
            for (at, seed_init) in [InitMode::Zero, InitMode::GradMax].into_iter().enumerate() {
                let losses;
                (losses, eager) = first_losses(KasminaConfig { seed_init, ..config.clone() }, &batch, rate, eager);
                gains[at] += (losses[0] - losses[10]) / 30.0;
                last.push(losses[10]);
            }
            wins += usize::from(last[1] < last[0]);
        }
        // Measured: 26 and 27, and a mean gain of 0.0058 against 0.0053 and of 0.0127 against 0.0118 nats. Of 32 units 8 are
        // chosen, because the slot has four channels.
        assert!(wins >= 24 && gains[1] > gains[0], "{wins} of 30 at rate {rate}, {gains:?}");
    }
}

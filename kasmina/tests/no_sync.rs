//! Device-to-host reads are counted, and there are none where the trainer must not wait. Alone in its process, because
//! the count is the process's.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use kasmina::attribution::AttributionScope;
use kasmina::init::InitMode;
use kasmina::isolation::IsolationConfig;
use kasmina::{KasminaConfig, num_host_reads};
use leyline::command::Operation;
use leyline::model::{Pass, TrainableModel};
use leyline::region::Eager;
use leyline::seed::{AttributionMode, SeedManager, SeedStage};
use support::{Rig, batch, config, mlp, ramp};

fn rig_in(config: KasminaConfig, eager: &mut Option<Eager>) -> Rig {
    match eager.take() {
        None => Rig::new(config),
        Some(eager) => Rig::beside(config, eager),
    }
}

/// Reads of one attribution.
fn attribution_reads(rig: &mut Rig) -> u64 {
    let before = num_host_reads();
    rig.manager.attribute_batch(&rig.eager, &batch(1)).unwrap();
    num_host_reads() - before
}

// One test: tests of one process share the count.
#[test]
fn reads_are_none_in_training_one_per_measurement_and_one_per_audit() {
    let mut eager = None;
    a_training_step_reads_nothing_and_a_measuring_attribution_reads_once(&mut eager);
    an_audit_reads_once_in_an_epoch_with_a_seed_in_the_shadow(&mut eager);
    a_seed_that_starts_from_a_batch_reads_once(&mut eager);
}

fn a_training_step_reads_nothing_and_a_measuring_attribution_reads_once(eager: &mut Option<Eager>) {
    let modes = [
        (AttributionMode::HostOnly, 0),
        (AttributionMode::Stage, 0),
        (AttributionMode::Alpha, 0),
        (AttributionMode::Contribution, 1),
        (AttributionMode::Probe, 1),
    ];
    let scopes = [AttributionScope::Batch, AttributionScope::Sample];
    for ((mode, reads), scope) in modes.into_iter().flat_map(|mode| scopes.map(|scope| (mode, scope))) {
        let config = KasminaConfig { attribution: mode, attribution_scope: scope, ..config(mlp()) };
        let mut rig = rig_in(config, eager);
        let before = num_host_reads();
        let seed = rig.germinate("hidden0", "mlp");
        rig.bring_to(seed, SeedStage::Training);
        rig.model().forward(&batch(1).inputs, Pass::Train).unwrap();
        rig.send(Operation::StartBlending { seed, ramp: ramp(1.0, 3) }).unwrap();
        for _ in 0..3 {
            rig.model().forward(&batch(1).inputs, Pass::Train).unwrap();
            rig.end_step();
        }
        rig.end_epoch();
        assert_eq!(
            num_host_reads(),
            before + 1,
            "commands, steps and epochs read nothing, the audit of the shadow once"
        );
        assert_eq!(attribution_reads(&mut rig), reads, "{mode:?} {scope:?}");
        let before = num_host_reads();
        rig.manager.attribute_samples(&rig.eager, &batch(1)).unwrap();
        assert_eq!(num_host_reads() - before, reads, "{mode:?} per sample");
        *eager = Some(rig.eager);
    }
}

fn an_audit_reads_once_in_an_epoch_with_a_seed_in_the_shadow(eager: &mut Option<Eager>) {
    for (check_every_epochs, reads) in [(1, [1, 1, 1]), (2, [1, 0, 1])] {
        let isolation = IsolationConfig { check_every_epochs, strict: true };
        let mut rig = rig_in(KasminaConfig { isolation, ..config(mlp()) }, eager);
        assert_eq!(attribution_reads(&mut rig), 0, "without a seed");
        let seeds = ["input", "hidden0", "hidden1"].map(|slot| rig.germinate(slot, "mlp"));
        assert_eq!(attribution_reads(&mut rig), 0, "with idle seeds");
        for seed in seeds {
            rig.send(Operation::StartTraining { seed }).unwrap();
        }
        for expected in reads {
            assert_eq!(attribution_reads(&mut rig), expected, "every {check_every_epochs}: first batch");
            assert_eq!(attribution_reads(&mut rig), 0, "every {check_every_epochs}: second batch");
            rig.end_epoch();
        }
        let before = num_host_reads();
        rig.manager.audit_isolation(&rig.eager, &batch(1)).unwrap();
        assert_eq!(num_host_reads() - before, 1, "an audit on demand");
        *eager = Some(rig.eager);
    }
}

fn a_seed_that_starts_from_a_batch_reads_once(eager: &mut Option<Eager>) {
    let config = KasminaConfig { seed_init: InitMode::GradMax, ..config(mlp()) };
    let mut rig = rig_in(config, eager);
    rig.manager.keep_batch(&rig.eager, &batch(1)).unwrap();
    let before = num_host_reads();
    rig.germinate("hidden0", "mlp");
    assert_eq!(num_host_reads() - before, 1, "a seed that starts from a batch");
}

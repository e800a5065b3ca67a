//! Device-to-host reads are counted, and there are none where the trainer must not wait. Alone in its process, because
//! the count is the process's.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use kasmina::{KasminaConfig, num_host_reads};
use leyline::command::Operation;
use leyline::model::{Pass, TrainableModel};
use leyline::seed::{AttributionMode, SeedManager, SeedStage};
use support::{Rig, batch, config, mlp, ramp};

#[test]
fn a_training_step_reads_nothing_and_a_measuring_attribution_reads_once() {
    let mut eager = None;
    for (mode, reads) in [
        (AttributionMode::HostOnly, 0),
        (AttributionMode::Stage, 0),
        (AttributionMode::Alpha, 0),
        (AttributionMode::Contribution, 1),
        (AttributionMode::Probe, 1),
    ] {
        let config = KasminaConfig { attribution: mode, ..config(mlp()) };
        let mut rig = match eager.take() {
            None => Rig::new(config),
            Some(eager) => Rig::beside(config, eager),
        };
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
        assert_eq!(num_host_reads(), before, "commands, steps and epochs read nothing");
        rig.manager.attribute_batch(&rig.eager, &batch(1)).unwrap();
        assert_eq!(num_host_reads() - before, reads, "{mode:?}");
        eager = Some(rig.eager);
    }
}

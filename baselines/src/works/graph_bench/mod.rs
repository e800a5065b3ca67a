//! Whole training steps, eager against replayed: the shared works written out by hand, and the real trainer.

mod step;
mod candle;
mod trained;

use leyline::region::Eager;

use crate::error::Error;
use crate::gpu::open::Gpu;
use crate::models::NAMES;
use crate::samples::Samples;
use crate::work::{Settings, Work, settings};

pub(super) const WORK: Work = Work::on_gpu("graph-bench", "Whole training steps: eager against replayed", NOTES, run);

const NOTES: &str = "WORK.eager and WORK.replay: one step with its inputs and optimizer constants brought to the device, \
    each synchronised (us); ref is an epoch of 4 steps, as in the PyTorch peer. WORK.replay.device: the graph alone, by \
    device events. WORK.replay.enqueued: host time to enqueue one step, without synchronisation. WORK.capture: begin, \
    record, end, inspect; WORK.instantiate with upload. WORK.nodes.KIND: the graph. WORK.speedup: ratio of the medians \
    eager / replay. WORK.eager.candle: the same step as candle offers it, with the loss and the optimizer of candle-nn; \
    WORK.speedup_over_candle: its ratio to the replay. trainer.WORK.*: a whole epoch of the trainer with evaluation, decision and report (us). Parameters \
    after the eager steps and after the replays were compared bit for bit before any time was taken.";

fn run(gpu: &Gpu, eager: &mut Eager, samples: &mut Samples) -> Result<Settings, Error> {
    let mut config = Vec::new();
    for name in NAMES {
        config.push((name, step::measure(gpu, eager, name, samples)?));
        candle::measure(gpu, name, samples)?;
    }
    for name in ["ref", "mlp"] {
        trained::measure(gpu, eager, name, samples)?;
    }
    Ok(settings(config))
}

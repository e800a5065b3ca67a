//! Whole training steps, eager against replayed: the shared works written out by hand, and the real trainer.

pub(super) mod step;
mod candle;
mod trained;

use leyline::region::Eager;

use super::open::Gpu;
use super::samples::Samples;
use crate::error::Error;
use crate::works::models::NAMES;
use crate::works::{Outcome, Setting};

const NOTES: &str = "WORK.eager and WORK.replay: one step with its inputs and optimizer constants brought to the device, \
    each synchronised (us); ref is an epoch of 4 steps, as in the PyTorch peer. WORK.replay.device: the graph alone, by \
    device events. WORK.replay.enqueued: host time to enqueue one step, without synchronisation. WORK.capture: begin, \
    record, end, inspect; WORK.instantiate with upload. WORK.nodes.KIND: the graph. WORK.speedup: ratio of the medians \
    eager / replay. WORK.eager.candle: the same step as candle offers it, with the loss and the optimizer of candle-nn; \
    WORK.speedup_over_candle: its ratio to the replay. trainer.WORK.*: a whole epoch of the trainer with evaluation, decision and report (us). Parameters \
    after the eager steps and after the replays were compared bit for bit before any time was taken.";

/// Measures every work.
///
/// # Errors
/// [`Error::NeedsGpu`]; [`Error::WrongResult`] when replays do not give the bits of eager steps.
pub fn run(setting: &Setting) -> Result<Outcome, Error> {
    let gpu = Gpu::open(setting)?;
    let mut eager = Eager::acquire()?;
    let mut samples = Samples::default();
    let mut config = Vec::new();
    for name in NAMES {
        config.push((name, step::measure(&gpu, &mut eager, name, &mut samples)?));
        candle::measure(&gpu, name, &mut samples)?;
    }
    for name in ["ref", "mlp"] {
        trained::measure(&gpu, &mut eager, name, &mut samples)?;
    }
    Ok(gpu.result("graph-bench", NOTES, &config, samples).into())
}

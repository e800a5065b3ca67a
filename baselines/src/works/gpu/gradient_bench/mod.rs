//! The gradient engine on a GPU: windows of many sizes against the memory of the device, and whole steps.

mod bandwidth;
mod windows;
mod accumulation;

use leyline::region::Eager;

use super::open::Gpu;
use super::samples::Samples;
use crate::error::Error;
use crate::works::{Outcome, Setting};

const NOTES: &str = "kK.pP.gram_solve_combine: K gradients of P elements, each of an owner of its own, PCGrad, to one in \
    memory; kK.pP.fused_adamw: to new parameters. .eager and .captured: each repetition synchronized (us); .device: the \
    graph alone, by device events. .floor: (2K+1)4P or (2K+6)4P bytes at the fastest bandwidth of this run; .over_floor: \
    .device over .floor, medians. bandwidth.KIND: GB/s by device events; read: row sums of a matrix. The bits of the eager \
    and of the captured result were compared before any time was taken; the rows are brought back before every \
    repetition, untimed. method.NAME: 8 gradients of 1 M elements by every \
    method. step.FORM: a training step of the 784-512-512-10 perceptron with AdamW on 1024 samples: in 8 \
    microbatches combined by their mean or by PCGrad between the layers' owners (accumulation_on.mean, .pcgrad), or as \
    one batch (accumulation_off); step.over_big_batch.FORM: ratio of the medians of the captured steps";

/// Measures the grid and whole steps.
///
/// # Errors
/// [`Error::NeedsGpu`]; [`Error::WrongResult`] when a captured combination does not give the bits of an eager one.
pub fn run(setting: &Setting) -> Result<Outcome, Error> {
    let gpu = Gpu::open(setting)?;
    let mut eager = Eager::acquire()?;
    let mut samples = Samples::default();
    let bandwidth = bandwidth::measure(&gpu, &mut samples)?;
    let mut config = vec![("grid", windows::grid_text())];
    let skipped = windows::measure(&gpu, &mut eager, bandwidth, &mut samples)?;
    if !skipped.is_empty() {
        config.push(("skipped", skipped.join("; ")));
    }
    accumulation::measure(&gpu, &mut eager, &mut samples)?;
    Ok(gpu.result("gradient-bench", NOTES, &config, samples).into())
}

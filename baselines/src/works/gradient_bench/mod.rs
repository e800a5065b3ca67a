//! The gradient engine on a GPU: windows of many sizes against the memory of the device, and whole steps.

mod bandwidth;
mod windows;
mod accumulation;

use leyline::region::Eager;

use crate::error::Error;
use crate::gpu::open::Gpu;
use crate::samples::Samples;
use crate::work::{Settings, Work, settings};

pub(super) const WORK: Work = Work::on_gpu(
    "gradient-bench",
    "Combinations of gradients and whole steps on a GPU, eager and captured",
    NOTES,
    run,
);

const NOTES: &str = "kK.pP.gram_solve_combine: K gradients of P elements, each of an owner of its own, PCGrad, to one in \
    memory; kK.pP.fused_adamw: to new parameters. .eager and .captured: each repetition synchronized (us); .device: the \
    graph alone, by device events. .floor: (2K+1)4P or (2K+6)4P bytes at the fastest bandwidth of this run; .over_floor: \
    .device over .floor, medians. bandwidth.KIND: GB/s by device events; read: row sums of a matrix. The bits of the eager \
    and of the captured result were compared before any time was taken; the rows are brought back before every \
    repetition, untimed. method.NAME: 8 gradients of 1 M elements by every \
    method. step.FORM: a training step of the 784-512-512-10 perceptron with AdamW on 1024 samples: in 8 \
    microbatches combined by their mean or by PCGrad between the layers' owners (accumulation_on.mean, .pcgrad), or as \
    one batch (accumulation_off); step.over_big_batch.FORM: ratio of the medians of the captured steps";

fn run(gpu: &Gpu, eager: &mut Eager, samples: &mut Samples) -> Result<Settings, Error> {
    let bandwidth = bandwidth::measure(gpu, samples)?;
    let mut config = vec![("grid", windows::grid_text())];
    let skipped = windows::measure(gpu, eager, bandwidth, samples)?;
    if !skipped.is_empty() {
        config.push(("skipped", skipped.join("; ")));
    }
    accumulation::measure(gpu, eager, samples)?;
    Ok(settings(config))
}

//! What compiled steps promise, checked on a GPU: the bits of captured steps in every kind of training, layers that
//! compute what they say, and faults that are found before they can do harm.

mod networks;
mod grafts;
mod layers;
mod faults;

use leyline::region::Eager;

use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpu::report::Report;
use crate::samples::Samples;
use crate::work::{Settings, Work};

pub(super) const WORK: Work = Work::on_gpu(
    "compile-check",
    "What compiled steps promise: the bits of captured steps, layers, faults that are found",
    NOTES,
    run,
);

/// Steps of a run at least.
const MIN_STEPS: u64 = 1000;

const NOTES: &str = "check.NAME is 1 when the promise was kept, and config says what was seen; a work with a broken \
    promise writes no result. compiled.*: the trainer with captured steps and with compiled ones, from the same seed; \
    parameters, and per epoch losses, measures and the gradient norm, compared bit for bit. layers.*: largest error of an \
    output or a gradient against f64 on the CPU, relative to its largest value. fault.*: a fault that was planted in \
    the compiler.";

fn run(gpu: &Gpu, eager: &mut Eager, samples: &mut Samples) -> Result<Settings, Error> {
    let mut report = Report::default();
    layers::run(gpu, &mut report);
    networks::run(gpu, eager, &mut report);
    grafts::run(gpu, eager, &mut report);
    faults::run(gpu, eager, &mut report);
    report.finish(samples)
}

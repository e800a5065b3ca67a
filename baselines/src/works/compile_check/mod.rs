//! What compiled steps promise, checked on a GPU: the bits of captured steps in every kind of training, layers that
//! compute what they say, and faults that are found before they can do harm.

mod networks;
mod grafts;
mod layers;
mod faults;
mod feeds;

pub(super) use networks::MUON;

use clap::Args;
use leyline::region::Eager;

use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpu::report::{Chosen, Report};
use crate::work::{Flags, Needs, Outcome, Setting, Work};

pub(super) const WORK: Work = Work::with_flags::<CompileCheckFlags>(
    "compile-check",
    "What compiled steps promise: the bits of captured steps, layers, faults that are found",
    Needs::Gpu,
);

/// Steps of a run at least.
const MIN_STEPS: u64 = 1000;

const NOTES: &str = "check.NAME is 1 when the promise was kept, and config says what was seen; a work with a broken \
    promise writes no result. compiled.*: the trainer with captured steps and with compiled ones, from the same seed; \
    parameters, and per epoch losses, measures and the gradient norm, compared bit for bit. layers.*: largest error of an \
    output or a gradient against f64 on the CPU, relative to its largest value. fault.*: a fault that was planted in \
    the compiler. feed.*: steps whose values the graph copies itself.";

#[derive(Debug, Args)]
struct CompileCheckFlags {
    #[command(flatten)]
    chosen: Chosen,
}

impl Flags for CompileCheckFlags {
    fn measure(&self, setting: &Setting) -> Result<Outcome, Error> {
        self.chosen.measure(setting, (WORK.name, NOTES, &[]), run)
    }
}

fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    layers::run(gpu, report);
    networks::run(gpu, eager, report);
    grafts::run(gpu, eager, report);
    faults::run(gpu, eager, report);
    feeds::run(gpu, eager, report);
}

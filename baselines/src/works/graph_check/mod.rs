//! What graphs promise, checked on a GPU: same bits as eager steps, every refusal with training going on, memory
//! returned. One program, one table; a promise that is not kept fails the work.

mod plain;
mod kernels;
mod equality;
mod tasks;
mod refusals;
mod frozen;
mod finite;
mod precision;
mod retest;
mod function;
mod memory;
mod activations;
mod threads;
mod graft;
pub(super) mod ramp;
mod rollback;
mod gradients;

use clap::Args;
use leyline::region::Eager;

use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpu::report::{Chosen, Report};
use crate::work::{Flags, Needs, Outcome, Setting, Work};

pub(super) const WORK: Work = Work::with_flags::<GraphCheckFlags>(
    "graph-check",
    "What graphs promise: the bits of eager steps, typed refusals, memory that comes back",
    Needs::Gpu,
);

const NOTES: &str = "check.NAME is 1 when the promise was kept, and config says what was seen; a work with a broken \
                     promise writes no result. graft.* are host times of the captures of a network of about 5 million \
                     parameters that grows. retest.*: host time of tests of captured steps over the rest of the time of \
                     their epochs.";

/// They measure times, or what is free on the device.
const ALONE: &[&str] = &["graft.", "memory.", "off.", "retest.", "threads."];

#[derive(Debug, Args)]
struct GraphCheckFlags {
    #[command(flatten)]
    chosen: Chosen,
}

impl Flags for GraphCheckFlags {
    fn measure(&self, setting: &Setting) -> Result<Outcome, Error> {
        self.chosen.measure(setting, (WORK.name, NOTES, ALONE), run)
    }
}

fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    kernels::run(gpu, report);
    equality::run(gpu, eager, report);
    tasks::run(gpu, eager, report);
    function::run(gpu, eager, report);
    refusals::run(gpu, eager, report);
    frozen::run(gpu, eager, report);
    finite::run(gpu, eager, report);
    precision::run(gpu, eager, report);
    retest::run(gpu, eager, report);
    memory::run(gpu, eager, report);
    activations::run(gpu, eager, report);
    threads::run(gpu, eager, report);
    graft::run(gpu, eager, report);
    ramp::run(gpu, eager, report);
    rollback::run(gpu, eager, report);
    gradients::run(gpu, eager, report);
}

//! What graphs promise, checked on a GPU: same bits as eager steps, every refusal with training going on, memory
//! returned. One program, one table; a promise that is not kept fails the work.

mod plain;
mod kernels;
mod equality;
mod refusals;
mod frozen;
mod finite;
mod retest;
mod function;
mod memory;
mod threads;
mod graft;
mod ramp;
mod gradients;

use leyline::region::Eager;

use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpu::report::Report;
use crate::samples::Samples;
use crate::work::{Settings, Work};

pub(super) const WORK: Work = Work::on_gpu(
    "graph-check",
    "What graphs promise: the bits of eager steps, typed refusals, memory that comes back",
    NOTES,
    run,
);

const NOTES: &str = "check.NAME is 1 when the promise was kept, and config says what was seen; a work with a broken \
                     promise writes no result. graft.* are host times of the captures of a network of about 5 million \
                     parameters that grows. retest.*: host time of tests of captured steps over the rest of the time of \
                     their epochs.";

fn run(gpu: &Gpu, eager: &mut Eager, samples: &mut Samples) -> Result<Settings, Error> {
    let mut report = Report::default();
    kernels::run(gpu, &mut report);
    equality::run(gpu, eager, &mut report);
    function::run(gpu, eager, &mut report);
    refusals::run(gpu, eager, &mut report);
    frozen::run(gpu, eager, &mut report);
    finite::run(gpu, eager, &mut report);
    retest::run(gpu, eager, &mut report);
    memory::run(gpu, eager, &mut report);
    threads::run(gpu, eager, &mut report);
    graft::run(gpu, eager, &mut report);
    ramp::run(gpu, eager, &mut report);
    gradients::run(gpu, eager, &mut report);
    report.finish(samples)
}

//! What graphs promise, checked on a GPU: same bits as eager steps, every refusal with training going on, memory
//! returned. One program, one table; a promise that is not kept fails the work.

pub(super) mod report;
pub(super) mod grown;
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

use super::open::Gpu;
use crate::error::Error;
use crate::works::{Outcome, Setting};
use report::Report;

const NOTES: &str = "check.NAME is 1 when the promise was kept, and config says what was seen; a work with a broken \
                     promise writes no result. graft.* are host times of the captures of a network of about 5 million \
                     parameters that grows. retest.*: host time of tests of captured steps over the rest of the time of \
                     their epochs.";

/// Runs every check.
///
/// # Errors
/// [`Error::NeedsGpu`]; [`Error::BrokenPromises`] with every check that failed.
pub fn run(setting: &Setting) -> Result<Outcome, Error> {
    let gpu = Gpu::open(setting)?;
    let mut eager = Eager::acquire()?;
    let mut report = Report::default();
    kernels::run(&gpu, &mut report);
    equality::run(&gpu, &mut eager, &mut report);
    function::run(&gpu, &mut eager, &mut report);
    refusals::run(&gpu, &mut eager, &mut report);
    frozen::run(&gpu, &mut eager, &mut report);
    finite::run(&gpu, &mut eager, &mut report);
    retest::run(&gpu, &mut eager, &mut report);
    memory::run(&gpu, &mut eager, &mut report);
    threads::run(&gpu, &mut eager, &mut report);
    graft::run(&gpu, &mut eager, &mut report);
    ramp::run(&gpu, &mut eager, &mut report);
    gradients::run(&gpu, &mut eager, &mut report);
    report.finish(&gpu, "graph-check", NOTES)
}

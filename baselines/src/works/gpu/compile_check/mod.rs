//! What compiled steps promise, checked on a GPU: the bits of captured steps in every kind of training, layers that
//! compute what they say, and faults that are found before they can do harm.

mod case;
mod networks;
mod grafts;
mod layers;
mod faults;

use leyline::region::Eager;

use super::graph_check::report::Report;
use super::open::Gpu;
use crate::error::Error;
use crate::works::{Outcome, Setting};

const NOTES: &str = "check.NAME is 1 when the promise was kept, and config says what was seen; a work with a broken \
    promise writes no result. compiled.*: the trainer with captured steps and with compiled ones, from the same seed; \
    parameters, and per epoch both losses and the gradient norm, compared bit for bit. layers.*: largest error of an \
    output or a gradient against f64 on the CPU, relative to its largest value. fault.*: a fault that was planted in \
    the compiler.";

/// Runs every check.
///
/// # Errors
/// [`Error::NeedsGpu`]; [`Error::BrokenPromises`] with every check that failed.
pub fn run(setting: &Setting) -> Result<Outcome, Error> {
    let gpu = Gpu::open(setting)?;
    let mut eager = Eager::acquire()?;
    let mut report = Report::default();
    layers::run(&gpu, &mut report);
    networks::run(&gpu, &mut eager, &mut report);
    grafts::run(&gpu, &mut eager, &mut report);
    faults::run(&gpu, &mut eager, &mut report);
    report.finish(&gpu, "compile-check", NOTES)
}

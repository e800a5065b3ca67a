//! A training step that is captured, compiled in the background while it goes on, verified, and replayed: what the
//! trainer does, with every part in the hand of who measures it.

use esper_graph::{Captured, Compilation, CompileOptions, Draft};
use leyline::region::Eager;
use tolaria::optim::UpdatePlan;

use super::open::{Gpu, capture, refused};
use super::optimizer_step::OptimizerStep;
use crate::error::Error;
use crate::models::Workload;

/// The steps of a launch after two eager runs, with their graph.
pub(crate) fn captured(
    gpu: &Gpu,
    eager: &mut Eager,
    work: Workload,
) -> Result<(OptimizerStep, Vec<UpdatePlan>, Captured), Error> {
    let mut step = OptimizerStep::new(gpu, work)?.copying()?;
    step.eagerly(gpu)?;
    // The plans of the second run serve the recording too: what changes is read from the tables.
    let plans = step.load()?;
    gpu.session.warm(|| step.region(&plans))?;
    let mut captured = capture(&gpu.session, eager, step.work.name, || step.region(&plans))?;
    step.held().try_for_each(|(name, tensor)| captured.hold(name, tensor))?;
    Ok((step, plans, captured))
}

/// Records the steps of a launch and runs nothing.
pub(crate) fn draft(gpu: &Gpu, eager: &mut Eager, step: &OptimizerStep, plans: &[UpdatePlan]) -> Result<Draft, Error> {
    let region = || step.region(plans).map_err(|error| error.chain());
    let draft = eager.record(|recording| gpu.session.draft(recording, |_| region()));
    draft.map_err(|refusal| refused(&format!("a recording of {}", step.work.name), refusal))
}

/// The two recordings that the compiler compares.
pub(crate) fn drafts(
    gpu: &Gpu,
    eager: &mut Eager,
    step: &OptimizerStep,
    plans: &[UpdatePlan],
) -> Result<Vec<Draft>, Error> {
    (0..2).map(|_| draft(gpu, eager, step, plans)).collect()
}

/// Starts the compiler in the background, with two recordings.
pub(crate) fn start(gpu: &Gpu, drafts: Vec<Draft>, options: CompileOptions) -> Result<Compilation, Error> {
    // In one expression: without GPU support the types have no values, and what follows one could not be reached.
    <[Draft; 2]>::try_from(drafts).map(|drafts| Compilation::start(&gpu.session, drafts, options)).map_err(|drafts| {
        Error::WrongResult { what: "recording a step twice".to_owned(), expected: 2.0, found: drafts.len() as f64 }
    })
}

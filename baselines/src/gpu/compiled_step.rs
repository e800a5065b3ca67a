//! A training step that is captured, compiled in the background while it goes on, verified, and replayed: what the
//! trainer does, with every part in the hand of who measures it.

use esper_graph::{Captured, Compilation, CompileOptions, Draft};
use leyline::region::Eager;
use tolaria::optim::UpdatePlan;

use super::open::{Gpu, capture, refused};
use super::optimizer_step::OptimizerStep;
use crate::error::Error;
use crate::models::Workload;

/// A step after two eager runs, with its graph.
pub(crate) fn captured(
    gpu: &Gpu,
    eager: &mut Eager,
    work: Workload,
) -> Result<(OptimizerStep, UpdatePlan, Captured), Error> {
    let mut step = OptimizerStep::new(gpu, work)?.copying()?;
    step.eagerly(gpu)?;
    // The plan of the second step serves the recording too: what changes is read from the table.
    let plan = step.load()?;
    gpu.session.warm(|| step.region(&plan))?;
    let mut captured = capture(&gpu.session, eager, step.work.name, || step.region(&plan))?;
    step.held().try_for_each(|(name, tensor)| captured.hold(name, tensor))?;
    Ok((step, plan, captured))
}

/// Records a step and runs nothing.
pub(crate) fn draft(gpu: &Gpu, eager: &mut Eager, step: &OptimizerStep, plan: &UpdatePlan) -> Result<Draft, Error> {
    let region = || step.region(plan).map_err(|error| error.chain());
    let draft = eager.record(|recording| gpu.session.draft(recording, |_| region()));
    draft.map_err(|refusal| refused(&format!("a recording of {}", step.work.name), refusal))
}

/// The two recordings that the compiler compares.
pub(crate) fn drafts(
    gpu: &Gpu,
    eager: &mut Eager,
    step: &OptimizerStep,
    plan: &UpdatePlan,
) -> Result<Vec<Draft>, Error> {
    (0..2).map(|_| draft(gpu, eager, step, plan)).collect()
}

/// Starts the compiler in the background, with two recordings.
pub(crate) fn start(gpu: &Gpu, drafts: Vec<Draft>, options: CompileOptions) -> Result<Compilation, Error> {
    // In one expression: without GPU support the types have no values, and what follows one could not be reached.
    <[Draft; 2]>::try_from(drafts).map(|drafts| Compilation::start(&gpu.session, drafts, options)).map_err(|drafts| {
        Error::WrongResult { what: "recording a step twice".to_owned(), expected: 2.0, found: drafts.len() as f64 }
    })
}

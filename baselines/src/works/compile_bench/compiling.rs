//! Compiling while training goes on, with the time that each step takes meanwhile.

use std::path::Path;

use esper_graph::compile::PassSet;
use esper_graph::{CompileOptions, CompiledGraph};
use leyline::region::Eager;

use super::phases;
use crate::error::Error;
use crate::gpu::compiled_step::{captured, draft, drafts, start};
use crate::gpu::open::{Gpu, refused};
use crate::gpu::optimizer_step::OptimizerStep;
use crate::models::Workload;
use crate::samples::{Samples, us};

/// Replays of the captured step before it is compiled.
const WARM_UP: usize = 8;
/// What the memory of the compiled graph is filled with before it is verified, in turn.
const POISONS: [u8; 2] = [0xCB, 0xFF];

/// Compiles a step as the trainer does it, with the kernels that are in `folder`, and again with what that left there.
pub(super) fn compile_meanwhile(
    gpu: &Gpu,
    eager: &mut Eager,
    work: Workload,
    case: &str,
    folder: &Path,
    samples: &mut Samples,
) -> Result<(OptimizerStep, CompiledGraph), Error> {
    let options = || CompileOptions {
        kernel_cache: Some(folder.to_owned()),
        is_fed: true,
        ..CompileOptions::new(PassSet::all())
    };
    let (mut step, plans, graph) = captured(gpu, eager, work)?;
    for _ in 0..WARM_UP {
        step.replayed(&graph)?;
    }
    gpu.wait()?;

    let mut stalls = Stalls { gpu, case, samples };
    // One recording in each of two steps, each before the replay that is the step.
    let mut recordings = Vec::new();
    for _ in 0..2 {
        let recording = stalls.around("draft", || {
            let recording = draft(gpu, eager, &step, &plans)?;
            step.replayed(&graph)?;
            Ok(recording)
        })?;
        recordings.push(recording);
    }
    let mut compilation = start(gpu, recordings, options())?;
    let outcome = loop {
        let done = stalls.around("background", || {
            step.replayed(&graph)?;
            Ok(compilation.poll())
        })?;
        if let Some(outcome) = done {
            break outcome;
        }
    };
    let mut compiled = outcome.map_err(|refusal| refused(&format!("compiling {case}"), refusal))?;
    for poison in POISONS {
        stalls.around("verify", || {
            step.load()?;
            compiled.verify(&graph, poison).map_err(|refusal| refused(&format!("verifying {case}"), refusal))
        })?;
    }
    compiled.end_verification();
    phases::push_times(samples, &format!("{case}.compile.cold"), compiled.report());

    let again = start(gpu, drafts(gpu, eager, &step, &plans)?, options())?;
    let again = again.wait().map_err(|refusal| refused(&format!("compiling {case} again"), refusal))?;
    phases::push_times(samples, &format!("{case}.compile.warm"), again.report());
    Ok((step, compiled))
}

/// Takes the time of steps that have something else to do as well.
struct Stalls<'a> {
    gpu: &'a Gpu,
    case: &'a str,
    samples: &'a mut Samples,
}

impl Stalls<'_> {
    fn around<R>(&mut self, phase: &str, step: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
        let began = self.gpu.now();
        let result = step()?;
        self.gpu.wait()?;
        let time = us(self.gpu.now() - began);
        self.samples.push(format!("{}.stall.{phase}", self.case), "us", time);
        self.samples.keep_largest(format!("{}.stall.longest", self.case), "us", time);
        Ok(result)
    }
}

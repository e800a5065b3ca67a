//! A device of the tests that records and replays on the CPU, and refuses what its script says.

use std::cell::RefCell;
use std::thread::{self, ThreadId};

use candle_core::{Device, Tensor};
use leyline::region::{Eager, Recording};

use super::affine;
use crate::Searched;
use crate::compile_report::{CompileOptions, CompileReport};
use crate::execute::{Backend, Compiler};
use crate::reason::Refusal;
use crate::report::CaptureReport;

/// Of every compiled step.
pub(crate) const ARENA_BYTES: usize = 4096;

thread_local! {
    static SCRIPT: RefCell<Script> = const { RefCell::new(Script::new()) };
}

type Program = fn(&[Tensor]) -> candle_core::Result<Vec<Tensor>>;

/// What the device of this thread refuses, and what it was asked to do.
struct Script {
    refused: Option<Step>,
    program: Program,
    steps: Vec<Step>,
    /// Of the last compile.
    fuel: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Step {
    Open,
    /// Also when a device is opened.
    Enter,
    Warm,
    Capture,
    Test,
    Hold,
    Replay,
    /// Values are copied by a launch of their own.
    Feed,
    /// Values are copied by the compiled graph.
    FedByGraph,
    Compile,
    Verify,
    ReplayCompiled,
    /// Two captures are compared.
    Same,
    /// Compiles that were dropped are waited for.
    Join,
}

impl Script {
    const fn new() -> Self {
        Self { refused: None, program: affine, steps: Vec::new(), fuel: None }
    }

    /// Notes a step and tells whether it is to be refused.
    fn take(step: Step) -> bool {
        SCRIPT.with_borrow_mut(|script| {
            script.steps.push(step);
            script.refused == Some(step)
        })
    }
}

/// The steps since the last look, without those that every call has and without tests.
pub(crate) fn steps() -> Vec<Step> {
    steps_and_tests().into_iter().filter(|step| *step != Step::Test).collect()
}

/// The same with tests.
pub(crate) fn steps_and_tests() -> Vec<Step> {
    steps_and_copies().into_iter().filter(|step| !matches!(step, Step::Feed | Step::FedByGraph)).collect()
}

/// With copies of inputs too, which those leave out.
pub(crate) fn steps_and_copies() -> Vec<Step> {
    let steps = SCRIPT.with_borrow_mut(|script| std::mem::take(&mut script.steps));
    let is_every = |step: &Step| matches!(step, Step::Hold | Step::Open | Step::Enter | Step::Join);
    steps.into_iter().filter(|step| !is_every(step)).collect()
}

/// How often compiles were waited for since the last look at steps.
pub(crate) fn num_joins() -> usize {
    SCRIPT.with_borrow(|script| script.steps.iter().filter(|step| **step == Step::Join).count())
}

pub(crate) fn refuse(step: impl Into<Option<Step>>) {
    SCRIPT.with_borrow_mut(|script| script.refused = step.into());
}

/// How many rewrites the last compile might do.
pub(crate) fn fuel() -> Option<usize> {
    SCRIPT.with_borrow(|script| script.fuel)
}

/// What graphs that are captured from now on run in a replay.
pub(crate) fn replay_with(program: Program) {
    SCRIPT.with_borrow_mut(|script| script.program = program);
}

/// Makes the copies that were not made yet.
fn copy(feed: &mut Vec<[Tensor; 2]>) {
    for [from, to] in feed.drain(..) {
        to.slice_set(&from, 0, 0).unwrap();
    }
}

/// What a test finds that the script refuses.
pub(crate) fn frozen() -> Refusal {
    let message = "argument 3 of affine_f32".to_owned();
    Refusal::FrozenValue { kernel: Some("affine_f32".to_owned()), argument: Some(3), message }
}

/// Replays by running the script's program on what it holds.
#[derive(Debug, Clone)]
pub(crate) struct Fake;

#[derive(Debug)]
pub(crate) struct FakeGraph {
    program: Program,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    thread: ThreadId,
    report: CaptureReport,
}

impl Fake {
    /// The stand-in records nothing: what the region would do is done, to buffers that a replay writes again.
    fn record(eager: &mut Eager, region: impl FnOnce(&Recording) -> Result<(), String>) -> Result<(), Refusal> {
        eager.record(region).map_err(|text| Refusal::of_region(&text, || None))
    }

    fn run(graph: &FakeGraph) {
        let arguments: Vec<Tensor> = graph.inputs.iter().map(Tensor::detach).collect();
        for (output, result) in graph.outputs.iter().zip((graph.program)(&arguments).unwrap()) {
            let result = result.force_contiguous().unwrap().flatten_all().unwrap();
            output.flatten_all().unwrap().slice_set(&result, 0, 0).unwrap();
        }
    }
}

impl Compiler for Fake {
    type Captured = FakeGraph;
    type Draft = ();
    type Job = ();
    /// What is compiled runs what was captured when it was verified.
    type Compiled = FakeCompiled;
    type Search = ();
    /// Sources and targets.
    type Feed<'a> = Vec<[Tensor; 2]>;

    fn feed(&mut self, feed: &mut Vec<[Tensor; 2]>) -> Result<(), Refusal> {
        if Script::take(Step::Feed) {
            return Err(Refusal::Moved { what: "scripted".to_owned() });
        }
        copy(feed);
        Ok(())
    }

    fn start(&mut self, _drafts: [(); 2], fuel: Option<usize>) {
        SCRIPT.with_borrow_mut(|script| script.fuel = fuel);
        Script::take(Step::Compile);
    }

    fn poll(&mut self, _job: &mut ()) -> Option<Result<FakeCompiled, Refusal>> {
        let refusal = || Refusal::NotCompiled { why: "scripted", message: String::new() };
        let is_refused = SCRIPT.with_borrow(|script| script.refused == Some(Step::Compile));
        let compiled = || {
            let report = CompileReport { arena_bytes: ARENA_BYTES, ..CompileReport::default() };
            FakeCompiled { report, ..FakeCompiled::default() }
        };
        Some(if is_refused { Err(refusal()) } else { Ok(compiled()) })
    }

    fn verify(&mut self, compiled: &mut FakeCompiled, captured: &FakeGraph, _poison: u8) -> Result<(), Refusal> {
        Self::run(captured);
        (compiled.program, compiled.inputs, compiled.outputs) =
            (Some(captured.program), captured.inputs.clone(), captured.outputs.clone());
        let differs = || Refusal::NotCompiled { why: "differs", message: String::new() };
        if Script::take(Step::Verify) { Err(differs()) } else { Ok(()) }
    }

    fn search(&mut self, _compiled: FakeCompiled, _refusal: &Refusal) -> Option<()> {
        None
    }

    fn search_step(&mut self, (): &mut (), captured: &FakeGraph) -> Result<Searched, Refusal> {
        self.replay_captured(captured).map(|()| Searched::GoesOn)
    }

    fn accept(&mut self, _compiled: &mut FakeCompiled) {}

    fn replay_captured(&mut self, captured: &FakeGraph) -> Result<(), Refusal> {
        if Script::take(Step::Replay) {
            return Err(Refusal::Moved { what: "scripted".to_owned() });
        }
        Self::run(captured);
        Ok(())
    }

    fn replay(&mut self, compiled: &FakeCompiled, feed: Option<&mut Vec<[Tensor; 2]>>) -> Result<(), Refusal> {
        if Script::take(Step::ReplayCompiled) {
            return Err(Refusal::Moved { what: "scripted".to_owned() });
        }
        if let Some(feed) = feed {
            Script::take(Step::FedByGraph);
            copy(feed);
        }
        let (inputs, outputs) = (compiled.inputs.clone(), compiled.outputs.clone());
        let program = compiled.program.expect("verified before");
        let (thread, report) = (thread::current().id(), CaptureReport::default());
        Self::run(&FakeGraph { program, inputs, outputs, thread, report });
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct FakeCompiled {
    program: Option<Program>,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    report: CompileReport,
}

impl Backend for Fake {
    type Recorded = ();

    fn open(_device: &Device, _options: CompileOptions) -> Result<Self, Refusal> {
        if Script::take(Step::Open) {
            Err(Refusal::Unsupported { why: "scripted" })
        } else {
            Self.enter().map(|()| Self)
        }
    }

    fn enter(&self) -> Result<(), Refusal> {
        if Script::take(Step::Enter) { Err(Refusal::SharedDevice) } else { Ok(()) }
    }

    /// Only of tensors that lie in memory as they are read, as on a device.
    fn copies(&self, copies: &[(&Tensor, &Tensor)]) -> Option<Vec<[Tensor; 2]>> {
        let copy = |(from, to): &(&Tensor, &Tensor)| {
            (from.is_contiguous() && from.rank() > 0).then(|| [(*from).clone(), (*to).clone()])
        };
        copies.iter().map(copy).collect()
    }

    fn warm<R>(&self, work: impl FnOnce() -> R) -> R {
        Script::take(Step::Warm);
        work()
    }

    fn capture(
        &self,
        eager: &mut Eager,
        region: impl FnOnce(&Recording) -> Result<(), String>,
    ) -> Result<FakeGraph, Refusal> {
        let is_refused = Script::take(Step::Capture);
        Self::record(eager, region)?;
        if is_refused {
            return Err(Refusal::OutOfMemory { needed: 2, available: 1 });
        }
        let program = SCRIPT.with_borrow(|script| script.program);
        let report = CaptureReport { reserved_bytes: Some(8), ..CaptureReport::default() };
        Ok(FakeGraph { program, inputs: Vec::new(), outputs: Vec::new(), thread: thread::current().id(), report })
    }

    fn draft(&self, eager: &mut Eager, region: impl FnOnce(&Recording) -> Result<(), String>) -> Result<(), Refusal> {
        let is_refused = Script::take(Step::Test);
        Self::record(eager, region)?;
        if is_refused { Err(frozen()) } else { Ok(()) }
    }

    fn recorded(_captured: &FakeGraph) {}

    fn agrees((): &(), (): &()) -> Result<(), Refusal> {
        Ok(())
    }

    fn same((): &(), (): &()) -> Result<(), Refusal> {
        if Script::take(Step::Same) { Err(frozen()) } else { Ok(()) }
    }

    fn hold(captured: &mut FakeGraph, name: &str, tensor: &Tensor) -> candle_core::Result<()> {
        let side = if name.starts_with("input ") { &mut captured.inputs } else { &mut captured.outputs };
        side.push(tensor.clone());
        if Script::take(Step::Hold) { candle_core::bail!("no address of {name}") } else { Ok(()) }
    }

    fn is_of_this_thread(captured: &FakeGraph) -> bool {
        captured.thread == thread::current().id()
    }

    fn report(captured: &FakeGraph) -> &CaptureReport {
        &captured.report
    }

    fn compile_report(compiled: &FakeCompiled) -> &CompileReport {
        &compiled.report
    }

    fn join_abandoned() {
        Script::take(Step::Join);
    }
}

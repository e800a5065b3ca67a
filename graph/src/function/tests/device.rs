//! A device of the tests that records and replays on the CPU, and refuses what its script says.

use std::cell::RefCell;

use candle_core::{Device, Result, Tensor};
use leyline::region::Eager;

use super::affine;
use crate::function::backend::Backend;
use crate::reason::Refusal;
use crate::stats::CaptureCost;

thread_local! {
    static SCRIPT: RefCell<Script> = const { RefCell::new(Script::new()) };
}

type Program = fn(&[Tensor]) -> Result<Vec<Tensor>>;

/// What the device of this thread refuses, and what it was asked to do.
struct Script {
    refused: Option<Step>,
    program: Program,
    steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Step {
    Open,
    /// Also when a device is opened.
    Enter,
    Warm,
    Capture,
    Test,
    Hold,
    Replay,
}

impl Script {
    const fn new() -> Self {
        Self { refused: None, program: affine, steps: Vec::new() }
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
pub(super) fn steps() -> Vec<Step> {
    steps_and_tests().into_iter().filter(|step| *step != Step::Test).collect()
}

/// The same with tests.
pub(super) fn steps_and_tests() -> Vec<Step> {
    let steps = SCRIPT.with_borrow_mut(|script| std::mem::take(&mut script.steps));
    steps.into_iter().filter(|step| !matches!(step, Step::Hold | Step::Open | Step::Enter)).collect()
}

pub(super) fn refuse(step: impl Into<Option<Step>>) {
    SCRIPT.with_borrow_mut(|script| script.refused = step.into());
}

/// What graphs that are captured from now on run in a replay.
pub(super) fn replay_with(program: Program) {
    SCRIPT.with_borrow_mut(|script| script.program = program);
}

/// What a test finds that the script refuses.
pub(super) fn frozen() -> Refusal {
    let message = "argument 3 of affine_f32".to_owned();
    Refusal::FrozenValue { kernel: Some("affine_f32".to_owned()), argument: Some(3), message }
}

/// Replays by running the script's program on what it holds.
#[derive(Debug, Clone)]
pub(super) struct Fake;

#[derive(Debug)]
pub(super) struct FakeGraph {
    program: Program,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

impl Backend for Fake {
    type Graph = FakeGraph;

    fn open(_device: &Device) -> std::result::Result<Self, Refusal> {
        if Script::take(Step::Open) {
            Err(Refusal::Unsupported { why: "scripted" })
        } else {
            Self.enter().map(|()| Self)
        }
    }

    fn enter(&self) -> std::result::Result<(), Refusal> {
        if Script::take(Step::Enter) { Err(Refusal::SharedDevice) } else { Ok(()) }
    }

    fn warm<R>(&self, work: impl FnOnce() -> R) -> R {
        Script::take(Step::Warm);
        work()
    }

    fn capture(
        &self,
        eager: &mut Eager,
        region: impl FnOnce() -> Result<()>,
    ) -> std::result::Result<FakeGraph, Refusal> {
        let is_refused = Script::take(Step::Capture);
        eager.record(|_| region()).map_err(|error| Refusal::of_region(&error.to_string()))?;
        if is_refused {
            return Err(Refusal::Empty);
        }
        let program = SCRIPT.with_borrow(|script| script.program);
        Ok(FakeGraph { program, inputs: Vec::new(), outputs: Vec::new() })
    }

    fn test(
        _graph: &FakeGraph,
        eager: &mut Eager,
        region: impl FnOnce() -> Result<()>,
    ) -> std::result::Result<(), Refusal> {
        let is_refused = Script::take(Step::Test);
        // The stand-in records nothing: what the region would do is done, to buffers that the replay writes again.
        eager.record(|_| region()).map_err(|error| Refusal::of_region(&error.to_string()))?;
        if is_refused { Err(frozen()) } else { Ok(()) }
    }

    fn hold(graph: &mut FakeGraph, name: String, tensor: &Tensor) -> Result<()> {
        let side = if name.starts_with("input ") { &mut graph.inputs } else { &mut graph.outputs };
        side.push(tensor.clone());
        if Script::take(Step::Hold) { candle_core::bail!("no address of {name}") } else { Ok(()) }
    }

    fn replay(graph: &FakeGraph) -> std::result::Result<(), Refusal> {
        if Script::take(Step::Replay) {
            return Err(Refusal::Moved { what: "scripted".to_owned() });
        }
        let arguments: Vec<Tensor> = graph.inputs.iter().map(Tensor::detach).collect();
        for (output, result) in graph.outputs.iter().zip((graph.program)(&arguments).unwrap()) {
            let result = result.force_contiguous().unwrap().flatten_all().unwrap();
            output.flatten_all().unwrap().slice_set(&result, 0, 0).unwrap();
        }
        Ok(())
    }

    fn cost(_graph: &FakeGraph) -> CaptureCost {
        CaptureCost { capture_ms: 1.0, instantiate_ms: 1.0, bytes: Some(8) }
    }
}

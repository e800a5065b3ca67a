//! The device of a trainer that records its steps: what launches graphs, copies inputs and measures.

use std::sync::Arc;

use candle_core::{Device, Tensor, TensorId};

use crate::error::Error;
use crate::trainer::compile::{Compiler, Compiling};
use crate::trainer::config::ExecutionConfig;
use esper_graph::{
    Captured, Compilation, CompileOptions, CompiledGraph, DeviceClaim, DeviceTimer, Draft, Refusal, Search, Searched,
    Session, StagingLane, StagingRing,
};

/// Replays from one that is measured to the next: events are not free.
const SAMPLE_EVERY: u64 = 16;

#[derive(Debug)]
pub(super) struct Gpu {
    pub(super) session: Session,
    pub(super) ring: StagingRing,
    options: CompileOptions,
    captured: Stopwatch,
    compiled: Stopwatch,
}

/// Times of some of the replays of one kind.
#[derive(Debug)]
struct Stopwatch {
    timer: DeviceTimer,
    num_replays: u64,
}

/// What is kept of a shape: the recorded graph, and what the compiler made of it. They come and go together.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) compiling: Compiling<Gpu>,
    pub(super) captured: Captured,
    /// The tensors that are held, parameters first.
    pub(super) ids: Vec<TensorId>,
}

impl Kept {
    /// Confirms that every parameter is the tensor that it was at capture.
    pub(super) fn confirm<'a>(&self, parameters: impl Iterator<Item = (&'a str, &'a Tensor)>) -> Result<(), Refusal> {
        match first_other(&self.ids, parameters) {
            Some(name) => Err(Refusal::Moved { what: name.to_owned() }),
            None => Ok(()),
        }
    }
}

/// The first parameter that is another tensor than the one in its place.
fn first_other<'a>(ids: &[TensorId], parameters: impl Iterator<Item = (&'a str, &'a Tensor)>) -> Option<&'a str> {
    let mut ids = ids.iter();
    parameters.filter_map(|(name, tensor)| (ids.next() != Some(&tensor.id())).then_some(name)).next()
}

impl Gpu {
    /// The session of `device` with what the steps of `config` need; the inner error says why there is none.
    pub(super) fn open(
        config: &ExecutionConfig,
        options: CompileOptions,
        device: &Device,
        claim: Option<Arc<DeviceClaim>>,
    ) -> Result<Result<Self, Refusal>, Error> {
        let opened = Session::claimed(device, claim).and_then(|session| {
            let stopwatch = || Ok(Stopwatch { timer: session.timer()?, num_replays: 0 });
            Ok((stopwatch()?, stopwatch()?, session))
        });
        let (captured, compiled, session) = match opened {
            Ok(parts) => parts,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let lane = if config.prefetch { StagingLane::Own } else { StagingLane::Compute };
        let ring = StagingRing::new(&session, config.staging_buffers, lane)?;
        Ok(Ok(Self { session, ring, options, captured, compiled }))
    }

    /// Time on the device of the last replay of a captured graph that was measured, ms.
    pub(super) fn captured_ms(&mut self) -> Option<f64> {
        self.captured.timer.last_ms()
    }

    /// The same of a compiled graph.
    pub(super) fn compiled_ms(&mut self) -> Option<f64> {
        self.compiled.timer.last_ms()
    }
}

impl Stopwatch {
    fn around(&mut self, session: &Session, replay: impl FnOnce() -> Result<(), Refusal>) -> Result<(), Refusal> {
        let sampled = self.num_replays.is_multiple_of(SAMPLE_EVERY);
        self.num_replays += 1;
        if sampled { session.time(&mut self.timer, replay) } else { replay() }
    }
}

impl Compiler for Gpu {
    type Captured = Captured;
    type Draft = Draft;
    type Job = Compilation;
    type Compiled = CompiledGraph;
    type Search = Search;

    fn start(&mut self, drafts: [Draft; 2]) -> Compilation {
        Compilation::start(&self.session, drafts, self.options.clone())
    }

    fn poll(&mut self, job: &mut Compilation) -> Option<Result<CompiledGraph, Refusal>> {
        job.poll()
    }

    fn verify(&mut self, compiled: &mut CompiledGraph, captured: &Captured, poison: u8) -> Result<(), Refusal> {
        compiled.verify(captured, poison)
    }

    fn search(&mut self, compiled: CompiledGraph, refusal: &Refusal) -> Option<Search> {
        compiled.search(refusal, true)
    }

    fn search_step(&mut self, search: &mut Search, captured: &Captured) -> Result<Searched, Refusal> {
        search.step(captured)
    }

    fn accept(&mut self, compiled: &mut CompiledGraph) {
        compiled.end_verification();
    }

    fn replay_captured(&mut self, captured: &Captured) -> Result<(), Refusal> {
        self.captured.around(&self.session, || captured.replay())
    }

    fn replay(&mut self, compiled: &CompiledGraph) -> Result<(), Refusal> {
        self.compiled.around(&self.session, || compiled.replay())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Var;

    use super::*;

    #[test]
    fn a_parameter_that_was_written_is_the_same_and_one_that_was_replaced_is_found() {
        let var = || Var::new(&[1.0_f32, 2.0], &Device::Cpu).unwrap();
        let parameters = [("a", var()), ("b", var())];
        let ids: Vec<TensorId> = parameters.iter().map(|(_, var)| var.as_tensor().id()).collect();
        let other = |now: &[(&'static str, Var)]| {
            first_other(&ids, now.iter().map(|(name, var)| (*name, var.as_tensor()))).map(str::to_owned)
        };
        parameters[1].1.set(&Tensor::new(&[3.0_f32, 4.0], &Device::Cpu).unwrap()).unwrap();
        assert_eq!(other(&parameters), None);
        let [a, _] = parameters.clone();
        assert_eq!(other(&[a.clone(), ("b", var())]).as_deref(), Some("b"));
        assert_eq!(other(&[a.clone(), parameters[1].clone(), ("c", var())]).as_deref(), Some("c"));
    }
}

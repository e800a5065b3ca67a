//! What an executor runs, what it tells, and how a step can end.

use std::time::Duration;

use candle_core::Tensor;
use leyline::model::HostNumbers;
use leyline::region::{Eager, Recording};

use super::backend::Backend;
use super::compiling::{Notice, Taken};
use crate::compile_report::CompileReport;
use crate::reason::Refusal;
use crate::report::CaptureReport;
use crate::retest::Stale;

/// One step over static inputs `I`, ready to run or to be recorded.
///
/// # For implementers
/// [`run`](Self::run) must do the same for every step of one shape, but for what it reads from `I` and from tensors that it
/// or its owner keeps; what differs otherwise belongs into the shape. It makes no tensor that outlives it.
pub trait Region<I> {
    /// Why a step can fail.
    type Error;

    /// The step itself.
    ///
    /// # Errors
    /// Its own.
    fn run(&mut self, recording: &Recording, inputs: &I) -> Result<(), Self::Error>;

    /// Runs it, as a warm-up of a device where one is given. Returns why it is not to be captured, if that shows.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    fn run_eagerly<B: Backend>(
        &mut self,
        eager: &mut Eager,
        warm_up: Option<&B>,
        inputs: &mut I,
    ) -> Result<Option<Refusal>, Self::Error> {
        eager.record(|recording| match warm_up {
            Some(device) => device.warm(|| self.run(recording, inputs)),
            None => self.run(recording, inputs),
        })?;
        Ok(None)
    }

    /// The text of an error, and the refusal that it stands for, if there is one of its own.
    fn told(error: &Self::Error) -> (String, Option<Refusal>);

    /// Tensors by name that have to be the very same ones in every replay.
    fn parameters(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        std::iter::empty()
    }

    /// What a graph of it points at, by name.
    fn held(&self, inputs: &I) -> Vec<(String, Tensor)>;

    /// What follows where one of these tensors has no address to check: why there is no graph, or nothing where its owner
    /// keeps it anyway.
    fn not_held(&self, name: &str, error: &candle_core::Error) -> Option<Refusal> {
        Some(Refusal::RegionFailed { message: format!("{name} cannot be held: {error}") })
    }

    /// What it promises of the numbers that it takes from the host.
    fn promise(&self) -> HostNumbers {
        HostNumbers::MayMove
    }
}

/// Hears what becomes of the steps of an executor. Everything is optional.
pub trait Watch {
    /// The time, for how long tests take.
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    /// An eager step begins.
    fn eager_begins(&mut self) {}

    /// It is enqueued.
    fn eager_ended(&mut self) {}

    /// A shape was captured; so many graphs went for it.
    fn captured(&mut self, _report: &CaptureReport, _num_evicted: usize) {}

    /// What was captured was tested.
    fn tested(&mut self) {}

    /// A graph took a step. `remaining`: its replays before it is compiled; absent where nothing is compiled.
    fn replayed(&mut self, _taken: Taken, _remaining: Option<u32>) {}

    /// A step is going to run eagerly; `fell_back` where its shape was refused. `remaining` as for replays.
    fn not_replayed(&mut self, _fell_back: bool, _remaining: Option<u32>) {}

    /// A shape runs eagerly from now on; so many in a row now.
    fn refused(&mut self, _refusal: &Refusal, _num_failures: u32) {}

    /// No further shape is captured, after so many that were refused.
    fn gave_up(&mut self, _num_failures: u32) {}

    /// A compiled graph takes over, or there is none.
    fn noticed(&mut self, _notice: &Notice, _report: Option<&CompileReport>) {}
}

/// Hears nothing.
impl Watch for () {}

/// How a step was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ran {
    /// By a graph.
    Replayed(Taken),
    /// Eagerly.
    Eagerly,
}

/// Steps that a later recording did not confirm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unconfirmed {
    /// The first of them.
    pub first: u64,
    /// The step in which that showed.
    pub found: u64,
    /// What the recording showed.
    pub stale: Stale,
}

/// Why a step failed.
#[derive(Debug)]
pub enum Failure<E> {
    /// The region did.
    Region(E),
    /// Its values could not be copied to its inputs.
    Feed(Refusal),
    /// Earlier steps may be wrong. Nothing has run now.
    Unconfirmed(Unconfirmed),
}

impl<E> From<Unconfirmed> for Failure<E> {
    fn from(unconfirmed: Unconfirmed) -> Self {
        Self::Unconfirmed(unconfirmed)
    }
}

/// Records a region; an error that stands for a refusal of its own becomes that.
pub(super) fn record<I, R: Region<I>, G>(
    region: &mut R,
    inputs: &I,
    record: impl FnOnce(&mut dyn FnMut(&Recording) -> Result<(), String>) -> Result<G, Refusal>,
) -> Result<G, Refusal> {
    let mut cause = None;
    let outcome = record(&mut |recording| {
        region.run(recording, inputs).map_err(|error| {
            let (text, refusal) = R::told(&error);
            cause = refusal;
            text
        })
    });
    match cause {
        Some(refusal) => outcome.map_err(|_| refusal),
        None => outcome,
    }
}

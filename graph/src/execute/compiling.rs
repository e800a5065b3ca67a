//! How a captured region becomes a compiled one while it is replayed.
//!
//! ```text
//!   replays of the captured graph ─► two drafts, one per step ─► compiled in the background ─► verified ─► replayed
//!     (as many as are asked for)        (nothing runs)             (captured graph replayed)   (the captured graph
//!                                                                                               takes the step)
//! ```
//!
//! Every step is taken exactly once, by the captured graph or by the compiled one. A refusal anywhere ends the attempt
//! for this shape, and the captured graph goes on in the same step. Where the results differ, the rewrite that makes them so
//! is looked for beside the steps that follow. Nothing here knows a device: [`Compiler`] does.

use std::fmt::Debug;
use std::num::NonZeroU32;

use crate::Searched;
use crate::reason::{Refusal, Stage};

/// What the compiled graph's memory is filled with before it is verified, in turn: an old value that counts as a
/// number, and one that is none.
const POISONS: [u8; 2] = [0xCB, 0xFF];

/// The device as a compiled step needs it; [`Executor`](super::Executor) is generic over it. Tests put one in its place that runs on the CPU.
pub trait Compiler {
    /// A recorded step that can be replayed.
    type Captured: Debug;
    /// A recorded step that cannot.
    type Draft: Debug;
    /// A step that is compiled in the background.
    type Job: Debug;
    /// A compiled step.
    type Compiled: Debug;
    /// A search for the rewrite that makes a compiled step another one.
    type Search: Debug;

    /// Values of a step on their way to its inputs.
    type Feed<'a>;

    /// Enqueues the values of the next step, unless that was done.
    ///
    /// # Errors
    /// When the device fails.
    fn feed(&mut self, feed: &mut Self::Feed<'_>) -> Result<(), Refusal>;

    /// Compiles in the background, with so many rewrites at most. Dropping the job must not wait for it.
    fn start(&mut self, drafts: [Self::Draft; 2], fuel: Option<usize>) -> Self::Job;

    /// What became of the job; absent while it goes on.
    fn poll(&mut self, job: &mut Self::Job) -> Option<Result<Self::Compiled, Refusal>>;

    /// Takes a step with the captured graph, and compares what the compiled one makes of the same state.
    ///
    /// # Errors
    /// Of [`Stage::Compile`]: the captured graph has taken the step. Any other: nothing has run.
    fn verify(&mut self, compiled: &mut Self::Compiled, captured: &Self::Captured, poison: u8) -> Result<(), Refusal>;

    /// Starts to look for the rewrite that makes the compiled step another one; absent where the refusal is another.
    fn search(&mut self, compiled: Self::Compiled, refusal: &Refusal) -> Option<Self::Search>;

    /// Takes a step with the captured graph, and goes on with the search.
    ///
    /// # Errors
    /// Nothing has run then.
    fn search_step(&mut self, search: &mut Self::Search, captured: &Self::Captured) -> Result<Searched, Refusal>;

    /// The compiled step takes over, and is compared no more.
    fn accept(&mut self, compiled: &mut Self::Compiled);

    /// Takes a step with the captured graph.
    ///
    /// # Errors
    /// Nothing has run then.
    fn replay_captured(&mut self, captured: &Self::Captured) -> Result<(), Refusal>;

    /// Takes a step with the compiled graph, after its values were copied where some are given.
    ///
    /// # Errors
    /// Nothing has run then, but for copies of the values.
    fn replay(&mut self, compiled: &Self::Compiled, feed: Option<&mut Self::Feed<'_>>) -> Result<(), Refusal>;
}

/// When a captured step is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompileSchedule {
    /// Replays of the captured graph before.
    pub warmup_steps: u32,
    /// Verified steps before the compiled graph is replayed.
    pub verify_steps: NonZeroU32,
}

/// What took a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The captured graph.
    Captured,
    /// The captured graph, with the compiled one beside it.
    Verified,
    /// The compiled graph.
    Compiled,
}

/// Something to tell about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The compiled graph is replayed from the next step on.
    Enabled,
    /// The step was not compiled.
    FellBack(Refusal),
    /// The compiled graph could not be replayed.
    FellBackAtReplay(Refusal),
    /// The search for a wrong rewrite is over.
    Searched(Refusal),
}

/// What lies beside a captured step: nothing, a compile under way, or the compiled step.
#[derive(Debug)]
pub(super) struct Compiling<C: Compiler> {
    schedule: CompileSchedule,
    state: State<C>,
}

#[derive(Debug)]
enum State<C: Compiler> {
    /// The captured graph, for good.
    Off,
    /// Replays of the captured graph that are still to come.
    Warming(u32),
    /// The next step records a draft; the first one is here when it was recorded.
    Drafting(Option<C::Draft>),
    Running(C::Job),
    /// Steps verified so far.
    Verifying {
        compiled: C::Compiled,
        verified: u32,
    },
    Ready(C::Compiled),
    /// The captured graph, for good, while it is looked for what went wrong.
    Searching(C::Search),
}

impl<C: Compiler> Compiling<C> {
    /// Beside a new captured graph; `None` never compiles it.
    pub(super) fn new(schedule: Option<CompileSchedule>) -> Self {
        match schedule {
            Some(schedule) => Self { schedule, state: first(schedule) },
            None => {
                Self { schedule: CompileSchedule { warmup_steps: 0, verify_steps: NonZeroU32::MIN }, state: State::Off }
            }
        }
    }

    /// Whether this step should be recorded once more before it is taken.
    pub(super) fn needs_draft(&self) -> bool {
        matches!(self.state, State::Drafting(_))
    }

    /// Replays of the captured graph until the step is compiled.
    pub(super) fn warmup_remaining(&self) -> u32 {
        if let State::Warming(remaining) = self.state { remaining } else { 0 }
    }

    /// The compiled graph, once it is replayed.
    pub(super) fn compiled(&self) -> Option<&C::Compiled> {
        if let State::Ready(compiled) = &self.state { Some(compiled) } else { None }
    }

    /// Takes a recording that [`Self::needs_draft`] asked for; the second one starts the compile. The captured graph holds
    /// what it points at. `fuel`: how many rewrites a compile may do.
    pub(super) fn drafted(&mut self, compiler: &mut C, draft: C::Draft, fuel: Option<usize>) {
        self.state = match std::mem::replace(&mut self.state, State::Off) {
            State::Drafting(None) => State::Drafting(Some(draft)),
            State::Drafting(Some(first)) => State::Running(compiler.start([first, draft], fuel)),
            other => other,
        };
    }

    /// Takes one step, whose values are in place or are those of `feed`.
    ///
    /// # Errors
    /// The refusal of the captured graph, or [`Refusal::OtherThread`] of either. Nothing has run then, but for copies of the values.
    pub(super) fn step(
        &mut self,
        compiler: &mut C,
        captured: &C::Captured,
        mut feed: Option<&mut C::Feed<'_>>,
    ) -> Result<(Taken, Option<Notice>), Refusal> {
        if !matches!(self.state, State::Ready(_)) {
            feed.as_deref_mut().map_or(Ok(()), |feed| compiler.feed(feed))?;
        }
        // Whatever goes wrong below leaves the captured graph alone.
        match std::mem::replace(&mut self.state, State::Off) {
            State::Off => Ok((replay(compiler, captured)?, None)),
            State::Warming(remaining) => {
                let taken = replay(compiler, captured)?;
                self.state = warming(remaining.saturating_sub(1));
                Ok((taken, None))
            }
            State::Drafting(first) => {
                self.state = State::Drafting(first);
                Ok((replay(compiler, captured)?, None))
            }
            State::Running(mut job) => match compiler.poll(&mut job) {
                None => {
                    self.state = State::Running(job);
                    Ok((replay(compiler, captured)?, None))
                }
                Some(Err(refusal)) => Self::fall_back(compiler, captured, refusal, Notice::FellBack),
                Some(Ok(compiled)) => self.verify(compiler, captured, compiled, 0),
            },
            State::Verifying { compiled, verified } => self.verify(compiler, captured, compiled, verified),
            State::Searching(mut search) => match compiler.search_step(&mut search, captured)? {
                Searched::GoesOn => {
                    self.state = State::Searching(search);
                    Ok((Taken::Captured, None))
                }
                Searched::Over(refusal) => Ok((Taken::Captured, Some(Notice::Searched(refusal)))),
            },
            State::Ready(compiled) => match compiler.replay(&compiled, feed.as_deref_mut()) {
                Ok(()) => {
                    self.state = State::Ready(compiled);
                    Ok((Taken::Compiled, None))
                }
                Err(refusal) => {
                    feed.map_or(Ok(()), |feed| compiler.feed(feed))?;
                    Self::fall_back(compiler, captured, refusal, Notice::FellBackAtReplay)
                }
            },
        }
    }

    /// Lets go of a compile that is under way: the network has changed. It starts over should this shape come back. A
    /// search ends.
    pub(super) fn abandon(&mut self) {
        if matches!(self.state, State::Searching(_)) {
            self.state = State::Off;
        }
        if matches!(self.state, State::Warming(_) | State::Drafting(_) | State::Running(_)) {
            self.state = first(self.schedule);
        }
    }

    fn verify(
        &mut self,
        compiler: &mut C,
        captured: &C::Captured,
        mut compiled: C::Compiled,
        verified: u32,
    ) -> Result<(Taken, Option<Notice>), Refusal> {
        let poison = POISONS[usize::from(!verified.is_multiple_of(2))];
        match compiler.verify(&mut compiled, captured, poison) {
            Ok(()) if verified + 1 >= self.schedule.verify_steps.get() => {
                compiler.accept(&mut compiled);
                self.state = State::Ready(compiled);
                Ok((Taken::Verified, Some(Notice::Enabled)))
            }
            Ok(()) => {
                self.state = State::Verifying { compiled, verified: verified + 1 };
                Ok((Taken::Verified, None))
            }
            Err(refusal) if refusal.stage() == Stage::Compile => {
                self.state = compiler.search(compiled, &refusal).map_or(State::Off, State::Searching);
                Ok((Taken::Captured, Some(Notice::FellBack(refusal))))
            }
            Err(refusal) => Self::fall_back(compiler, captured, refusal, Notice::FellBack),
        }
    }

    /// Takes the step with the captured graph, after something refused that ran nothing.
    fn fall_back(
        compiler: &mut C,
        captured: &C::Captured,
        refusal: Refusal,
        notice: fn(Refusal) -> Notice,
    ) -> Result<(Taken, Option<Notice>), Refusal> {
        // The captured graph belongs to the same thread, and goes the same way.
        if refusal == Refusal::OtherThread {
            return Err(refusal);
        }
        Ok((replay(compiler, captured)?, Some(notice(refusal))))
    }
}

fn first<C: Compiler>(schedule: CompileSchedule) -> State<C> {
    warming(schedule.warmup_steps)
}

fn warming<C: Compiler>(remaining: u32) -> State<C> {
    if remaining == 0 { State::Drafting(None) } else { State::Warming(remaining) }
}

fn replay<C: Compiler>(compiler: &mut C, captured: &C::Captured) -> Result<Taken, Refusal> {
    compiler.replay_captured(captured)?;
    Ok(Taken::Captured)
}

#[cfg(test)]
mod tests;

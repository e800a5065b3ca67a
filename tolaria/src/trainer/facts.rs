//! What a trainer tells about itself.

use std::collections::BTreeMap;

use esper_graph::{CompileReport, GraphStats, GraphTests, Refusal};
use leyline::id::{EpochIndex, StepIndex};
use leyline::policy::Policy;
use leyline::seed::SeedManager;
use leyline::task::Task;

use crate::optim::Optimizer;
use crate::trainer::evaluations::Evaluations;
use crate::trainer::run::Trainer;
use crate::trainer::stop::Best;

/// What the memory of a step is for.
pub(super) const MEMORY_PARTS: [&str; 5] = ["parameters", "gradients", "moments", "averages", "copies"];

impl<S: SeedManager, P: Policy> Trainer<S, P> {
    /// The evaluation on validation data with the lowest loss; absent before the first.
    pub fn best(&self) -> Option<Best> {
        self.track.best
    }

    /// Epochs that the run will begin at most: with [`Parts::max_steps`](super::Parts::max_steps) perhaps fewer than
    /// [`Parts::num_epochs`](super::Parts::num_epochs).
    pub fn num_epochs(&self) -> u64 {
        let per_epoch = self.steps_per_epoch().max(1);
        let most = self.parts.max_steps.map(|max_steps| max_steps.get().div_ceil(per_epoch));
        most.map_or(self.parts.num_epochs, |most| most.min(self.parts.num_epochs))
    }

    /// What the network is trained for.
    pub fn task(&self) -> &dyn Task {
        &*self.parts.task
    }

    /// The seed manager.
    pub fn seeds(&self) -> &S {
        &self.parts.seeds
    }

    /// Epochs completed and optimizer steps taken.
    pub fn progress(&self) -> (EpochIndex, StepIndex) {
        (self.cursor.epoch, self.cursor.step)
    }

    /// Device-to-host reads so far, by name.
    pub fn host_reads(&self) -> &BTreeMap<&'static str, u64> {
        self.reads.counts()
    }

    /// The largest bytes that each part of the memory had since this trainer was made; absent is what was not measured, or is not
    /// there. At the ends of epochs: `parameters`, `gradients`, `moments`, `averages`, `copies` (weights in `bf16` beside their
    /// `f32`), `graphs` (what captures took, activations among it), `known-good states`. When they were copied: `checkpoints under
    /// way`.
    pub fn memory(&self) -> &BTreeMap<&'static str, u64> {
        &self.memory
    }

    pub(super) fn note_memory(&mut self, part: &'static str, bytes: u64) {
        if bytes > 0 {
            let largest = self.memory.entry(part).or_default();
            *largest = bytes.max(*largest);
        }
    }

    /// What became of the graphs of this trainer.
    pub fn graph_stats(&self) -> GraphStats {
        self.executor.graphs().stats()
    }

    /// Evaluations on held-out data that were replays of a graph.
    pub fn num_replayed_evaluations(&self) -> u64 {
        self.executor.evaluations().map_or(0, Evaluations::num_replays)
    }

    /// Why the last evaluation that could not be recorded could not; absent when every one could.
    pub fn last_evaluation_refusal(&self) -> Option<&Refusal> {
        self.executor.evaluations().and_then(Evaluations::last_refusal)
    }

    /// How often captured steps were recorded again to be tested, and what that took.
    pub fn graph_tests(&self) -> GraphTests {
        self.executor.graphs().tests()
    }

    /// Why the last shape that could not be recorded could not; absent when every one could.
    pub fn last_refusal(&self) -> Option<&Refusal> {
        self.executor.last_refusal()
    }

    /// What the compiler did to the last shape of step that it compiled; absent before.
    pub fn compile_report(&self) -> Option<&CompileReport> {
        self.executor.graphs().compile_report()
    }

    /// Why the last shape of step that could not be compiled could not; absent when every one could.
    pub fn last_compile_refusal(&self) -> Option<&Refusal> {
        self.executor.graphs().compile_refusal()
    }

    /// Optimizer steps that were replays of a compiled graph.
    pub fn num_compiled_replays(&self) -> u64 {
        self.executor.graphs().stats().total.compiled
    }

    /// The optimizer, for inspection.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }
}

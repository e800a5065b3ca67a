//! Which rewrite made a compiled step another one: looked for while training goes on.
//!
//! ```text
//!   results differ ─► interpreter ─┬─ sees it ────────────────────────────────────────────┬─► pass, rewrite, reproducer
//!                                  └─ does not ─► graphs with half the fuel, a step each ─┘
//! ```
//!
//! The captured graph takes every step. All else goes on in a thread of its own, but the comparison of a graph with the
//! captured one, of which there are about as many as the number of rewrites has binary digits. Whatever fails ends the
//! search.

use std::fs;
use std::path::{Path, PathBuf};

use super::compile::{Bisection, Reproducer, Unseen};
use super::compile_report::Searched;
use super::reason::{Refusal, Stage};

/// Folder for reproducers, in that of generated kernels.
const FOLDER: &str = "reproducers";

/// What is done in the background.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Task {
    /// Interpret programs.
    Interpret,
    /// Build the graph that so much fuel gives.
    Build(usize),
    /// Name the rewrite that a search ended at, with what differed.
    Name(Bisection, String),
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The rewrite.
    Named(Refusal),
    /// None was found, and why.
    Unseen(Unseen),
    /// The graph is there.
    Built,
    Failed(Refusal),
}

/// The device as a search needs it.
pub(crate) trait Probes {
    type Captured;

    /// Starts a task.
    fn begin(&mut self, task: &Task);

    /// What became of the task; absent while it goes on.
    fn poll(&mut self) -> Option<Outcome>;

    /// Takes a step with the captured graph, and compares what the graph that was built makes of the same state.
    ///
    /// # Errors
    /// Of [`Stage::Compile`]: the captured graph has taken the step. Any other: nothing has run.
    fn compare(&mut self, captured: &Self::Captured) -> Result<(), Refusal>;

    /// Takes a step with the captured graph.
    ///
    /// # Errors
    /// Nothing has run then.
    fn replay(&mut self, captured: &Self::Captured) -> Result<(), Refusal>;
}

/// A search under way.
#[derive(Debug)]
pub(crate) struct Steps<P> {
    probes: P,
    bisection: Bisection,
    task: Task,
    /// What differed.
    message: String,
    /// Why the interpreter does not show it.
    unseen: String,
}

impl<P: Probes> Steps<P> {
    /// For a graph that `num_rewrites` rewrites made another one. Without the interpreter it begins with steps.
    pub(crate) fn new(mut probes: P, num_rewrites: usize, message: String, interprets: bool) -> Self {
        let bisection = Bisection::new(num_rewrites);
        let unseen = "the interpreter was not asked".to_owned();
        let task = if interprets { Task::Interpret } else { next(&bisection, &message, &unseen) };
        probes.begin(&task);
        Self { probes, bisection, task, message, unseen }
    }

    /// Takes one step, and goes on with the search.
    ///
    /// # Errors
    /// The refusal of the captured graph; nothing has run then.
    pub(crate) fn step(&mut self, captured: &P::Captured) -> Result<Searched, Refusal> {
        let outcome = self.probes.poll();
        if let (Some(Outcome::Built), &Task::Build(fuel)) = (&outcome, &self.task) {
            let is_different = match self.probes.compare(captured) {
                Ok(()) => false,
                Err(refusal) if refusal.name() == "differs" => true,
                Err(refusal) if refusal.stage() == Stage::Compile => return Ok(self.given_up(&refusal.to_string())),
                Err(refusal) => return Err(refusal),
            };
            self.bisection.note(fuel, is_different);
            self.begin_next();
            return Ok(Searched::GoesOn);
        }
        self.probes.replay(captured)?;
        Ok(match outcome {
            None => Searched::GoesOn,
            Some(Outcome::Named(refusal)) => Searched::Over(refusal),
            Some(Outcome::Unseen(why)) if self.task == Task::Interpret => {
                self.unseen = why.to_string();
                self.begin_next();
                Searched::GoesOn
            }
            Some(Outcome::Unseen(why)) => self.given_up(&why.to_string()),
            Some(Outcome::Failed(refusal)) => self.given_up(&refusal.to_string()),
            Some(Outcome::Built) => self.given_up("a graph that nobody asked for"),
        })
    }

    fn begin_next(&mut self) {
        self.task = next(&self.bisection, &self.message, &self.unseen);
        self.probes.begin(&self.task);
    }

    fn given_up(&self, why: &str) -> Searched {
        let Self { message, unseen, .. } = self;
        let message = format!("{message}; no rewrite was found that makes it so: {why}; without a device: {unseen}");
        Searched::Over(Refusal::NotCompiled { why: "differs", message })
    }
}

fn next(bisection: &Bisection, message: &str, unseen: &str) -> Task {
    let difference = || format!("{message}\nnot shown without a device: {unseen}");
    bisection.next().map_or_else(|| Task::Name(bisection.clone(), difference()), Task::Build)
}

/// What is told of a rewrite that was found. Its reproducer is written to a folder in `folder`, where there is one.
pub(crate) fn told(reproducer: &Reproducer, folder: Option<&Path>) -> Refusal {
    let (pass, rewrite) = (reproducer.culprit.pass, reproducer.culprit.rewrite);
    let file = folder.and_then(|folder| match write(reproducer, &folder.join(FOLDER)) {
        Ok(file) => Some(file),
        Err(error) => {
            tracing::warn!(folder = %folder.display(), %error, "the reproducer of a wrong rewrite was not written");
            None
        }
    });
    Refusal::WrongRewrite { pass, rewrite, message: reproducer.difference.clone(), reproducer: file }
}

/// Writes a file with a name of its own; the same reproducer has the same.
fn write(reproducer: &Reproducer, folder: &Path) -> std::io::Result<PathBuf> {
    let text = reproducer.to_string();
    let digest = blake3::hash(text.as_bytes()).to_hex();
    let name = format!("{}-{}-{}.program", reproducer.culprit.pass.name(), reproducer.culprit.rewrite, &digest[..8]);
    fs::create_dir_all(folder)?;
    let file = folder.join(name);
    fs::write(&file, text)?;
    Ok(file)
}

#[cfg(test)]
mod tests;

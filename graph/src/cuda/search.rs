//! The search for a wrong rewrite, on the device.

use std::fmt;
use std::time::Duration;

use leyline::clock::{Clock as _, SystemClock};

use super::background::{Background, Unwanted, not_compiled};
use super::compilation::{Compilation, Source, guarded};
use super::compiled::CompiledGraph;
use super::executable::Captured;
use crate::compile::{Reproducer, Unseen, bisect};
use crate::compile_report::{CompileOptions, Searched};
use crate::reason::Refusal;
use crate::search::{Outcome, Probes, Steps, Task, told};

/// What the interpreter may take.
const INTERPRETER_TIME: Duration = Duration::from_secs(60);
/// What the memory of a graph is filled with before it is compared.
const POISON: u8 = 0xFF;

/// Looks for the rewrite that makes a compiled graph another one than the captured one, while training goes on. All that it
/// needs but memory for one graph is done in a thread of its own.
pub struct Search(Steps<Device>);

impl CompiledGraph {
    /// Starts to look for the rewrite that makes this graph leave other results, which `refusal` says that it does; absent
    /// for another refusal. `interprets`: whether the interpreter is asked before steps are.
    ///
    /// # Sync
    /// none
    #[must_use]
    pub fn search(mut self, refusal: &Refusal, interprets: bool) -> Option<Search> {
        let Refusal::NotCompiled { why: "differs", message } = refusal else { return None };
        let source = self.source.take()?;
        let num_rewrites = self.report().passes.iter().map(|report| report.num_rewrites).sum();
        let device = Device { options: source.options().clone(), work: Work::None, source: Some(source), graph: None };
        Some(Search(Steps::new(device, num_rewrites, message.clone(), interprets)))
    }
}

impl Search {
    /// Takes a step, which the captured graph does, and goes on with the search.
    ///
    /// # Errors
    /// The refusal of the captured graph. Nothing has run then.
    /// # Sync
    /// waits for the device where a graph was built that is compared
    pub fn step(&mut self, captured: &Captured) -> Result<Searched, Refusal> {
        self.0.step(captured)
    }
}

impl fmt::Debug for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Search").finish_non_exhaustive()
    }
}

struct Device {
    options: CompileOptions,
    work: Work,
    /// What graphs are made from, while nothing is done with it.
    source: Option<Box<Source>>,
    /// The graph that was built.
    graph: Option<CompiledGraph>,
}

enum Work {
    None,
    /// What was found, and what graphs are made from.
    Host(Background<(Result<Refusal, Unseen>, Box<Source>)>),
    Build(Compilation),
}

impl Device {
    /// Looks at programs in the background.
    fn on_host(
        &self,
        source: Box<Source>,
        look: impl FnOnce(&Source, &Unwanted) -> Result<Reproducer, Unseen> + Send + 'static,
    ) -> Work {
        let folder = self.options.kernel_cache.clone();
        let work = move |unwanted: &Unwanted| {
            let found = look(&source, unwanted).map(|reproducer| told(&reproducer, folder.as_deref()));
            Ok((found, source))
        };
        Work::Host(Background::start(|unwanted| guarded(|| work(unwanted))))
    }
}

impl Probes for Device {
    type Captured = Captured;

    fn begin(&mut self, task: &Task) {
        let Some(source) = self.source.take() else {
            self.work = Work::Host(Background::refused(not_compiled("no_source", "the recordings are gone")));
            return;
        };
        let passes = self.options.passes.clone();
        self.work = match task {
            Task::Interpret => self.on_host(source, move |source, unwanted| {
                let clock = SystemClock::new();
                bisect(&source.lifted.program, &passes, || unwanted.check().is_ok() && clock.now() < INTERPRETER_TIME)
            }),
            Task::Build(fuel) => Work::Build(Compilation::again(source, passes.with_fuel(*fuel))),
            Task::Name(bisection, difference) => {
                let (bisection, difference) = (bisection.clone(), difference.clone());
                self.on_host(source, move |source, _| bisection.reproducer(&source.lifted.program, &passes, difference))
            }
        };
    }

    fn poll(&mut self) -> Option<Outcome> {
        let outcome = match &mut self.work {
            Work::None => return None,
            Work::Host(work) => work.poll()?.map(|(found, source)| {
                self.source = Some(source);
                found.map_or_else(Outcome::Unseen, Outcome::Named)
            }),
            Work::Build(compilation) => compilation.poll()?.map(|graph| {
                self.graph = Some(graph);
                Outcome::Built
            }),
        };
        self.work = Work::None;
        Some(outcome.unwrap_or_else(Outcome::Failed))
    }

    fn compare(&mut self, captured: &Captured) -> Result<(), Refusal> {
        let Some(mut graph) = self.graph.take() else { return self.replay(captured) };
        let compared = graph.verify(captured, POISON);
        self.source = graph.source.take();
        compared
    }

    fn replay(&mut self, captured: &Captured) -> Result<(), Refusal> {
        captured.replay()
    }
}

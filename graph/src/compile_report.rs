//! How a recorded region is compiled, and what that did.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::compile::{PassReport, PassSet};
use super::manager::GraphManager;
use super::planted_fault::PlantedFault;
use super::reason::Refusal;

/// How a recorded region is compiled.
#[derive(Debug, Clone)]
pub struct CompileOptions {
    /// The passes that run.
    pub passes: PassSet,
    /// Folder that keeps generated kernels from run to run; absent compiles them each time.
    pub kernel_cache: Option<PathBuf>,
    /// Whether kernels may start early: take their place on the device while what they wait for is not over.
    pub overlap: bool,
    /// Whether the graph begins with the copies of what [`CompiledGraph::replay_fed`](crate::CompiledGraph::replay_fed) is given: a launch
    /// less for each step, and a kernel that does nothing in a replay without.
    pub is_fed: bool,
    /// A fault for the checks to find; for tests of the checks only.
    #[doc(hidden)]
    pub fault: Option<PlantedFault>,
}

impl CompileOptions {
    /// The passes of a set, no folder for generated kernels, no copies, and kernels that start early unless
    /// [`GraphManager::set_overlap`] switched that off for the process.
    #[must_use]
    pub fn new(passes: PassSet) -> Self {
        Self { passes, kernel_cache: None, overlap: GraphManager::global().overlap(), is_fed: false, fault: None }
    }
}

/// What compiling took, by phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompileTimes {
    /// Reading both recordings, comparing them, and finding out what each node does.
    pub lift: Duration,
    /// The passes, with a check after each.
    pub passes: Duration,
    /// Generated kernels: source to machine code, or from the cache.
    pub kernels: Duration,
    /// Building the new graph and making it executable.
    pub instantiate: Duration,
    /// Running both graphs on real inputs and comparing results.
    pub verify: Duration,
}

impl CompileTimes {
    /// All phases.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.lift + self.passes + self.kernels + self.instantiate + self.verify
    }
}

/// What the compiler did to a recorded region.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompileReport {
    /// One per pass, in order.
    pub passes: Vec<PassReport>,
    /// Nodes that were recorded.
    pub nodes_before: usize,
    /// Nodes of the new graph.
    pub nodes_after: usize,
    /// Nodes on the longest chain of dependencies that the data ask for.
    pub critical_path: usize,
    /// Dependencies of the new graph, with those that keep the nodes few that come after nothing.
    pub num_dependencies: usize,
    /// Those of them that let a kernel start early.
    pub num_early: usize,
    /// Launches of the new graph by kernel.
    pub kernels: BTreeMap<String, usize>,
    /// Recorded kernels of which nothing is known, by name.
    pub unknown_kernels: BTreeMap<String, usize>,
    /// Addresses that moved from one recording to the other as they should.
    pub num_moved_addresses: usize,
    /// Generated kernels.
    pub num_generated: usize,
    /// Generated kernels that came from the cache.
    pub num_cached: usize,
    /// Bytes of the arena that replaces the allocations.
    pub arena_bytes: usize,
    /// What it took.
    pub times: CompileTimes,
}

/// How a search for a wrong rewrite stands after a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Searched {
    /// It goes on.
    GoesOn,
    /// It is over: [`Refusal::WrongRewrite`] with what was found, or why nothing was.
    Over(Refusal),
}

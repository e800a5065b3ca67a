//! Runs passes one after the other, and checks what they make.

use leyline::clock::{Clock as _, SystemClock};

use super::block::Lifetime;
use super::codegen::generate;
use super::constants::inline_constants;
use super::copies::forward_copies;
use super::dead::drop_dead;
use super::dependencies::recover_dependencies;
use super::error::ProgramError;
use super::fuel::Fuel;
use super::fuse::fuse;
use super::gates::take_gates;
use super::hoist::hoist_constants;
use super::kernelize::kernelize;
use super::memory::plan_memory;
use super::node::NodeKind;
use super::pass::{Measures, Pass, PassReport, PassSet};
use super::place::place_at_destinations;
use super::program::Program;
use super::reductions::rewrite_reductions;
use super::zeros::{copy_zero_sums, drop_overwritten_zeros};

/// A rewritten program and what each pass did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compiled {
    /// What runs in every replay.
    pub program: Program,
    /// What runs once, before the first replay, over the same blocks. It writes arenas of its own, whose bytes stay
    /// from one replay to the next; who overwrites them runs it again. Without such nodes there is nothing to run.
    pub once: Program,
    /// One report per pass that ran, in order.
    pub reports: Vec<PassReport>,
}

/// Operations of the longest program that is rewritten. Time and memory grow with their number.
pub const MAX_NODES: usize = 1 << 18;

/// Why a program could not be rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The program given has more than [`MAX_NODES`] operations.
    #[error(
        "the captured program has {nodes} operations, and programs of up to {MAX_NODES} are rewritten: capture a part of it"
    )]
    TooLong {
        /// Its operations.
        nodes: usize,
    },
    /// The program given breaks a rule.
    #[error("the captured program is not valid")]
    Input(#[source] ProgramError),
    /// What a pass made breaks a rule.
    #[error("the program is not valid after pass {}", pass.name())]
    Pass {
        /// The pass.
        pass: Pass,
        /// The rule.
        #[source]
        source: ProgramError,
    },
    /// What all passes together made breaks a rule.
    #[error("the program is not valid after all passes")]
    Output(#[source] ProgramError),
}

/// Runs the passes of a set over a program, and writes the code of the kernels that they made.
///
/// The result is checked; in a build with debug assertions, so is what each pass makes.
///
/// # Errors
/// [`CompileError::TooLong`]; [`CompileError::Input`] if `program` breaks a rule; [`CompileError::Pass`] and [`CompileError::Output`] if a pass
/// made one that does, so that the captured graph is to be used instead.
///
/// # Examples
/// ```
/// use esper_graph::compile::{Block, BlockId, Lifetime, Node, NodeKind, PassSet, Pattern, Program, Region, compile};
///
/// let [result, scratch] = [BlockId(0), BlockId(1)];
/// let program = Program {
///     blocks: vec![
///         Block { size_bytes: 8, lifetime: Lifetime::External },
///         Block { size_bytes: 8, lifetime: Lifetime::Graph },
///     ],
///     nodes: vec![
///         Node::new(NodeKind::Alloc(scratch), []),
///         Node::new(NodeKind::Memset { region: Region::new(scratch, 0, 8), pattern: Pattern::ZERO }, [0]),
///         Node::new(NodeKind::Memset { region: Region::new(result, 0, 8), pattern: Pattern::ZERO }, [1]),
///         Node::new(NodeKind::Free(scratch), [2]),
///     ],
/// };
/// let compiled = compile(&program, &PassSet::all())?;
/// assert_eq!(compiled.program.nodes.len(), 1);
/// # Ok::<(), esper_graph::compile::CompileError>(())
/// ```
pub fn compile(program: &Program, passes: &PassSet) -> Result<Compiled, CompileError> {
    if program.nodes.len() > MAX_NODES {
        return Err(CompileError::TooLong { nodes: program.nodes.len() });
    }
    program.validate().map_err(CompileError::Input)?;
    let clock = SystemClock::new();
    let mut fuel = Fuel::new(passes.fuel());
    let mut compiled = Compiled { program: program.clone(), once: Program::default(), reports: Vec::new() };
    let mut measures = Measures::of(program);
    for pass in passes.iter() {
        let (began, num_so_far) = (clock.now(), fuel.burnt());
        if !fuel.is_out() {
            pass.rewrite(&mut compiled, &mut fuel);
        }
        let (time, num_rewrites) = (clock.now() - began, fuel.burnt() - num_so_far);
        if passes.wrong_rewrite().is_some_and(|(wrong, rewrite)| wrong == pass && rewrite <= num_rewrites) {
            drop_a_result(&mut compiled.program);
        }
        if cfg!(debug_assertions) {
            compiled.program.validate().map_err(|source| CompileError::Pass { pass, source })?;
        }
        let before = std::mem::replace(&mut measures, Measures::of(&compiled.program));
        compiled.reports.push(PassReport::new(pass, [&before, &measures], num_rewrites, time));
    }
    let Compiled { program, once, .. } = &mut compiled;
    once.blocks.clone_from(&program.blocks);
    for program in [program, once] {
        for node in &mut program.nodes {
            if let NodeKind::Kernel(kernel) = &mut node.kind {
                generate(kernel);
            }
        }
        program.validate().map_err(CompileError::Output)?;
    }
    Ok(compiled)
}

impl Pass {
    /// Rewrites a valid program.
    fn rewrite(self, compiled: &mut Compiled, fuel: &mut Fuel) {
        let program = std::mem::take(&mut compiled.program);
        compiled.program = match self {
            Self::ZeroSums => copy_zero_sums(program, fuel),
            Self::Copies => forward_copies(program, fuel),
            Self::Placement => place_at_destinations(program, fuel),
            Self::Constants => inline_constants(program, fuel),
            Self::OverwrittenZeros => drop_overwritten_zeros(program, fuel),
            Self::Dead => drop_dead(program, fuel),
            Self::Gates => take_gates(program, fuel),
            Self::Kernelize => kernelize(program, fuel),
            Self::Reductions => rewrite_reductions(program, fuel),
            Self::Fuse => fuse(program, fuel),
            Self::Hoist => {
                let (program, once) = hoist_constants(program, fuel);
                compiled.once = once;
                program
            }
            Self::Dependencies => recover_dependencies(program, fuel),
            Self::Memory => plan_memory(program, fuel),
        };
    }

    /// Runs it alone. What [`Pass::Hoist`] moves out is lost here.
    #[cfg(test)]
    pub(super) fn run(self, program: &Program) -> (Program, PassReport) {
        let before = Measures::of(program);
        let mut compiled = Compiled { program: program.clone(), once: Program::default(), reports: Vec::new() };
        let mut fuel = Fuel::new(None);
        self.rewrite(&mut compiled, &mut fuel);
        let after = Measures::of(&compiled.program);
        let report = PassReport::new(self, [&before, &after], fuel.burnt(), std::time::Duration::ZERO);
        (compiled.program, report)
    }
}

/// The planted fault: the last node that writes a result writes it no more.
fn drop_a_result(program: &mut Program) {
    let is_kept = |kind: &NodeKind| {
        let is_result = |block: super::block::BlockId| program.blocks[block.0].lifetime == Lifetime::External;
        matches!(kind, NodeKind::Kernel(_) | NodeKind::Copy { .. })
            && kind.each_write().any(|write| write.is_full && is_result(write.region.block))
    };
    if let Some(last) = program.nodes.iter().rposition(|node| is_kept(&node.kind)) {
        program.nodes[last].kind = NodeKind::Empty;
    }
}

//! Runs passes one after the other, and checks what they make.

use super::codegen::generate;
use super::constants::inline_constants;
use super::copies::forward_copies;
use super::dead::drop_dead;
use super::dependencies::recover_dependencies;
use super::error::ProgramError;
use super::fuse::fuse;
use super::hoist::hoist_constants;
use super::kernelize::kernelize;
use super::memory::plan_memory;
use super::node::NodeKind;
use super::pass::{Pass, PassReport, PassSet};
use super::place::place_at_destinations;
use super::program::Program;
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

/// Why a program could not be rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
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
/// [`CompileError::Input`] if `program` breaks a rule; [`CompileError::Pass`] and [`CompileError::Output`] if a pass
/// made one that does, so that the captured graph is to be used instead.
///
/// # Examples
/// ```
/// use tolaria::graph::compile::{Block, BlockId, Lifetime, Node, NodeKind, PassSet, Pattern, Program, Region, compile};
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
/// # Ok::<(), tolaria::graph::compile::CompileError>(())
/// ```
pub fn compile(program: &Program, passes: &PassSet) -> Result<Compiled, CompileError> {
    program.validate().map_err(CompileError::Input)?;
    let once = Program { blocks: program.blocks.clone(), nodes: Vec::new() };
    let mut compiled = Compiled { program: program.clone(), once, reports: Vec::new() };
    for pass in passes.iter() {
        let report = if pass == Pass::Hoist {
            let (hoisted, report) = hoist_constants(&compiled.program);
            (compiled.program, compiled.once) = (hoisted.program, hoisted.once);
            report
        } else {
            let (rewritten, report) = pass.run(&compiled.program);
            compiled.program = rewritten;
            report
        };
        if cfg!(debug_assertions) {
            compiled.program.validate().map_err(|source| CompileError::Pass { pass, source })?;
        }
        compiled.reports.push(report);
    }
    compiled.once.blocks.clone_from(&compiled.program.blocks);
    for program in [&mut compiled.program, &mut compiled.once] {
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
    /// Runs it over a valid program. What [`Pass::Hoist`] moves out is lost here: [`hoist_constants`] returns it.
    #[must_use]
    pub fn run(self, program: &Program) -> (Program, PassReport) {
        match self {
            Self::ZeroSums => copy_zero_sums(program),
            Self::Copies => forward_copies(program),
            Self::Placement => place_at_destinations(program),
            Self::Constants => inline_constants(program),
            Self::OverwrittenZeros => drop_overwritten_zeros(program),
            Self::Dead => drop_dead(program),
            Self::Kernelize => kernelize(program),
            Self::Fuse => fuse(program),
            Self::Hoist => {
                let (hoisted, report) = hoist_constants(program);
                (hoisted.program, report)
            }
            Self::Dependencies => recover_dependencies(program),
            Self::Memory => plan_memory(program),
        }
    }
}

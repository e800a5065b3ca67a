//! Runs passes one after the other, and checks what they make.

use super::codegen::generate;
use super::constants::with_inlined_constants;
use super::copies::with_forwarded_copies;
use super::dead::without_dead;
use super::dependencies::with_recovered_dependencies;
use super::error::ProgramError;
use super::fuse::with_fused_kernels;
use super::hoist::with_hoisted_constants;
use super::kernelize::with_kernels;
use super::memory::with_planned_memory;
use super::node::NodeKind;
use super::pass::{Measures, Pass, PassReport, PassSet};
use super::place::with_placed_results;
use super::program::Program;
use super::zeros::{with_copied_zero_sums, without_overwritten_zeros};

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
    let mut program = program.clone();
    let mut once = Program::default();
    let mut reports = Vec::new();
    let mut measures = Measures::of(&program);
    for pass in passes.iter() {
        let num_rewrites;
        (program, once, num_rewrites) = match pass {
            Pass::Hoist => {
                let (hoisted, num_moved) = with_hoisted_constants(program);
                (hoisted.program, hoisted.once, num_moved)
            }
            pass => {
                let (rewritten, num_rewrites) = pass.rewrite(program);
                (rewritten, once, num_rewrites)
            }
        };
        if cfg!(debug_assertions) {
            program.validate().map_err(|source| CompileError::Pass { pass, source })?;
        }
        let before = std::mem::replace(&mut measures, Measures::of(&program));
        reports.push(PassReport::new(pass, &before, &measures, num_rewrites));
    }
    once.blocks.clone_from(&program.blocks);
    for program in [&mut program, &mut once] {
        for node in &mut program.nodes {
            if let NodeKind::Kernel(kernel) = &mut node.kind {
                generate(kernel);
            }
        }
        program.validate().map_err(CompileError::Output)?;
    }
    Ok(Compiled { program, once, reports })
}

impl Pass {
    /// Runs it over a valid program. What [`Pass::Hoist`] moves out is lost here: [`hoist_constants`] returns it.
    ///
    /// [`hoist_constants`]: super::hoist_constants
    #[must_use]
    pub fn run(self, program: &Program) -> (Program, PassReport) {
        let before = Measures::of(program);
        let (rewritten, num_rewrites) = self.rewrite(program.clone());
        let report = PassReport::new(self, &before, &Measures::of(&rewritten), num_rewrites);
        (rewritten, report)
    }

    /// The program that it makes, and the number of rewrites.
    fn rewrite(self, program: Program) -> (Program, usize) {
        match self {
            Self::ZeroSums => with_copied_zero_sums(program),
            Self::Copies => with_forwarded_copies(program),
            Self::Placement => with_placed_results(program),
            Self::Constants => with_inlined_constants(program),
            Self::OverwrittenZeros => without_overwritten_zeros(program),
            Self::Dead => without_dead(program),
            Self::Kernelize => with_kernels(program),
            Self::Fuse => with_fused_kernels(program),
            Self::Hoist => {
                let (hoisted, num_moved) = with_hoisted_constants(program);
                (hoisted.program, num_moved)
            }
            Self::Dependencies => with_recovered_dependencies(program),
            Self::Memory => with_planned_memory(program),
        }
    }
}

//! Runs passes one after the other, with a check after each.

use super::dead::drop_dead;
use super::dependencies::recover_dependencies;
use super::error::ProgramError;
use super::memory::plan_memory;
use super::pass::{Pass, PassReport, PassSet};
use super::program::Program;
use super::zeros::{copy_zero_sums, drop_overwritten_zeros};

/// A rewritten program and what each pass did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compiled {
    /// The program.
    pub program: Program,
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
}

/// Runs the passes of a set over a program.
///
/// # Errors
/// [`CompileError::Input`] if `program` breaks a rule; [`CompileError::Pass`] if a pass made one that does, so that
/// the captured graph is to be used instead.
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
    let mut compiled = Compiled { program: program.clone(), reports: Vec::new() };
    for pass in passes.iter() {
        let (rewritten, report) = pass.run(&compiled.program);
        rewritten.validate().map_err(|source| CompileError::Pass { pass, source })?;
        compiled.program = rewritten;
        compiled.reports.push(report);
    }
    Ok(compiled)
}

impl Pass {
    /// Runs it over a valid program.
    #[must_use]
    pub fn run(self, program: &Program) -> (Program, PassReport) {
        match self {
            Self::ZeroSums => copy_zero_sums(program),
            Self::OverwrittenZeros => drop_overwritten_zeros(program),
            Self::Dead => drop_dead(program),
            Self::Dependencies => recover_dependencies(program),
            Self::Memory => plan_memory(program),
        }
    }
}

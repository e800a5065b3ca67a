//! Passes by name, sets of them, and what they report.

use std::collections::BTreeSet;

use super::program::Program;

/// A pass, in the order in which [`compile`](super::compile) runs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Pass {
    /// [`copy_zero_sums`](super::copy_zero_sums): the one pass after which `-0.0` may stand where `+0.0` stood.
    ZeroSums,
    /// [`forward_copies`](super::forward_copies).
    Copies,
    /// [`place_at_destinations`](super::place_at_destinations).
    Placement,
    /// [`inline_constants`](super::inline_constants).
    Constants,
    /// [`drop_overwritten_zeros`](super::drop_overwritten_zeros).
    OverwrittenZeros,
    /// [`drop_dead`](super::drop_dead).
    Dead,
    /// [`kernelize`](super::kernelize()).
    Kernelize,
    /// [`fuse`](super::fuse()).
    Fuse,
    /// [`hoist_constants`](super::hoist_constants).
    Hoist,
    /// [`recover_dependencies`](super::recover_dependencies).
    Dependencies,
    /// [`plan_memory`](super::plan_memory).
    Memory,
}

impl Pass {
    /// All passes, in order.
    pub const ALL: [Self; 11] = [
        Self::ZeroSums,
        Self::Copies,
        Self::Placement,
        Self::Constants,
        Self::OverwrittenZeros,
        Self::Dead,
        Self::Kernelize,
        Self::Fuse,
        Self::Hoist,
        Self::Dependencies,
        Self::Memory,
    ];

    /// Name in logs and settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ZeroSums => "zero_sums",
            Self::Copies => "copies",
            Self::Placement => "placement",
            Self::Constants => "constants",
            Self::OverwrittenZeros => "overwritten_zeros",
            Self::Dead => "dead",
            Self::Kernelize => "kernelize",
            Self::Fuse => "fuse",
            Self::Hoist => "hoist",
            Self::Dependencies => "dependencies",
            Self::Memory => "memory",
        }
    }
}

/// The passes that are switched on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PassSet(BTreeSet<Pass>);

impl PassSet {
    /// No pass.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Every pass.
    #[must_use]
    pub fn all() -> Self {
        Self(BTreeSet::from(Pass::ALL))
    }

    /// Every pass that keeps each bit of every result.
    #[must_use]
    pub fn exact() -> Self {
        Self::all().without(Pass::ZeroSums)
    }

    /// The set with a pass switched on.
    #[must_use]
    pub fn with(mut self, pass: Pass) -> Self {
        self.0.insert(pass);
        self
    }

    /// The set with a pass switched off.
    #[must_use]
    pub fn without(mut self, pass: Pass) -> Self {
        self.0.remove(&pass);
        self
    }

    /// The passes, in the order in which they run.
    pub fn iter(&self) -> impl Iterator<Item = Pass> {
        self.0.iter().copied()
    }
}

/// A number before and after a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Before.
    pub before: usize,
    /// After.
    pub after: usize,
}

/// What a pass did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PassReport {
    /// The pass.
    pub pass: Pass,
    /// Rewrites: nodes dropped or changed, or blocks placed.
    pub num_rewrites: usize,
    /// Nodes.
    pub nodes: Change,
    /// Dependencies.
    pub dependencies: Change,
    /// Nodes on the longest chain of dependencies.
    pub critical_path: Change,
    /// Most memory held at one time, [`Program::peak_bytes`].
    pub peak_bytes: Change,
}

/// What reports tell of a program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measures {
    nodes: usize,
    dependencies: usize,
    critical_path: usize,
    peak_bytes: usize,
}

impl Measures {
    pub(super) fn of(program: &Program) -> Self {
        Self {
            nodes: program.nodes.len(),
            dependencies: program.num_dependencies(),
            critical_path: program.critical_path(),
            peak_bytes: program.peak_bytes(),
        }
    }
}

impl PassReport {
    pub(super) fn new(pass: Pass, before: &Measures, after: &Measures, num_rewrites: usize) -> Self {
        let change = |count: fn(&Measures) -> usize| Change { before: count(before), after: count(after) };
        Self {
            pass,
            num_rewrites,
            nodes: change(|measures| measures.nodes),
            dependencies: change(|measures| measures.dependencies),
            critical_path: change(|measures| measures.critical_path),
            peak_bytes: change(|measures| measures.peak_bytes),
        }
    }
}

//! Passes by name, sets of them, and what they report.

use std::collections::BTreeSet;
use std::time::Duration;

use super::program::Program;

/// A pass, in the order in which [`compile`](super::compile()) runs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Pass {
    /// Sums of a product with zeros become copies: the one pass after which `-0.0` may stand where `+0.0` stood.
    ZeroSums,
    /// Readers of a copy read what was copied.
    Copies,
    /// What is computed to be copied is computed where it is copied to.
    Placement,
    /// Operands that hold one known number become part of the computation.
    Constants,
    /// Zeros that are overwritten before they are read are not filled in.
    OverwrittenZeros,
    /// Nodes whose results nobody reads go.
    Dead,
    /// Kernels with a place for the gradient of a rectifier take it.
    Gates,
    /// Small memsets and copies become kernels, and long element-wise kernels ones that take four elements at a time.
    Kernelize,
    /// Recorded reductions of rows and columns become ones that read memory as it lies.
    Reductions,
    /// Element-wise kernels and reductions that share data become one, and what a kernel stores for a single later one is computed there.
    Fuse,
    /// What is the same in every replay runs once.
    Hoist,
    /// The recorded order gives way to the dependencies that the data ask for.
    Dependencies,
    /// One arena instead of allocations.
    Memory,
}

impl Pass {
    /// All passes, in order.
    pub const ALL: [Self; 13] = [
        Self::ZeroSums,
        Self::Copies,
        Self::Placement,
        Self::Constants,
        Self::OverwrittenZeros,
        Self::Dead,
        Self::Gates,
        Self::Kernelize,
        Self::Reductions,
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
            Self::Gates => "gates",
            Self::Kernelize => "kernelize",
            Self::Reductions => "reductions",
            Self::Fuse => "fuse",
            Self::Hoist => "hoist",
            Self::Dependencies => "dependencies",
            Self::Memory => "memory",
        }
    }

    /// The pass of a name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pass| pass.name() == name)
    }
}

/// The passes that are switched on, and how many rewrites they may do.
///
/// # Examples
/// ```
/// use esper_graph::compile::{Pass, PassSet};
///
/// let passes = PassSet::exact().without(Pass::Hoist).with_fuel(17);
/// assert!(passes.iter().all(|pass| pass != Pass::ZeroSums && pass != Pass::Hoist));
/// assert_eq!(passes.to_string().parse(), Ok(passes));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PassSet {
    passes: BTreeSet<Pass>,
    fuel: Option<usize>,
    wrong: Option<(Pass, usize)>,
}

impl PassSet {
    /// No pass.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Every pass.
    #[must_use]
    pub fn all() -> Self {
        Self { passes: BTreeSet::from(Pass::ALL), ..Self::default() }
    }

    /// Every pass that keeps each bit of every result.
    #[must_use]
    pub fn exact() -> Self {
        Self::all().without(Pass::ZeroSums)
    }

    /// The set with a pass switched on.
    #[must_use]
    pub fn with(mut self, pass: Pass) -> Self {
        self.passes.insert(pass);
        self
    }

    /// The set with a pass switched off.
    #[must_use]
    pub fn without(mut self, pass: Pass) -> Self {
        self.passes.remove(&pass);
        self
    }

    /// The set with so many rewrites, all passes together; then they stop. Any number gives a program that is right.
    #[must_use]
    pub fn with_fuel(mut self, num_rewrites: usize) -> Self {
        self.fuel = Some(num_rewrites);
        self
    }

    /// How many rewrites there may be; absent where there is no limit.
    #[must_use]
    pub fn fuel(&self) -> Option<usize> {
        self.fuel
    }

    /// The set with a fault for the checks to find: the rewrite of a pass, counted from 1, also drops a result.
    #[doc(hidden)]
    #[must_use]
    pub fn with_wrong_rewrite(mut self, pass: Pass, rewrite: usize) -> Self {
        self.wrong = Some((pass, rewrite));
        self
    }

    /// The set without the planted fault.
    #[doc(hidden)]
    #[must_use]
    pub fn without_wrong_rewrite(mut self) -> Self {
        self.wrong = None;
        self
    }

    /// The fault that was planted.
    pub(super) fn wrong_rewrite(&self) -> Option<(Pass, usize)> {
        self.wrong
    }

    /// The passes, in the order in which they run.
    pub fn iter(&self) -> impl Iterator<Item = Pass> {
        self.passes.iter().copied()
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
    /// Rewrites, as fuel counts them: nodes dropped, changed or merged, blocks placed or moved out.
    pub num_rewrites: usize,
    /// What it took.
    pub time: Duration,
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
    pub(super) fn new(pass: Pass, [before, after]: [&Measures; 2], num_rewrites: usize, time: Duration) -> Self {
        let change = |count: fn(&Measures) -> usize| Change { before: count(before), after: count(after) };
        Self {
            pass,
            num_rewrites,
            time,
            nodes: change(|measures| measures.nodes),
            dependencies: change(|measures| measures.dependencies),
            critical_path: change(|measures| measures.critical_path),
            peak_bytes: change(|measures| measures.peak_bytes),
        }
    }
}

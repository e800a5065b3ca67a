//! Which rewrite makes a result another one.
//!
//! ```text
//!   fuel  0 ─────────── agrees ─────────── n-1 │ n ─────────── differs ─────────── all
//!                                              └─ the rewrite: the last one of the last pass that did any
//! ```

use std::collections::BTreeMap;

use super::block::{BlockId, Lifetime};
use super::interpret::{InterpretError, interpret, interpret_compiled};
use super::pass::{Pass, PassSet};
use super::pipeline::{CompileError, Compiled, compile};
use super::program::Program;

/// Most bytes that a program may hold, read and write to be interpreted: some seconds for all that a search tries.
const MAX_INTERPRETED_BYTES: usize = 1 << 28;

/// A rewrite of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Culprit {
    /// The pass.
    pub pass: Pass,
    /// Its number among the rewrites of the pass, from 1.
    pub rewrite: usize,
    /// Its number among the rewrites of all passes: with so much fuel it is the last.
    pub fuel: usize,
}

/// All that shows again that a rewrite is wrong, without the model and, where the interpreter sees it, without a device.
/// It prints as a text that [`str::parse`] takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reproducer {
    /// The passes, with fuel up to the rewrite.
    pub passes: PassSet,
    /// The rewrite.
    pub culprit: Culprit,
    /// What differed, and where.
    pub difference: String,
    /// The program before the passes.
    pub program: Program,
}

/// A search for the least fuel with which something differs, half by half.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bisection {
    /// Most fuel with which nothing differed.
    agrees: Option<usize>,
    /// Least fuel with which something did.
    differs: usize,
}

impl Bisection {
    /// With `num_rewrites` something differs.
    #[must_use]
    pub fn new(num_rewrites: usize) -> Self {
        Self { agrees: None, differs: num_rewrites }
    }

    /// The fuel to try next; none when the search is over. The first is 0: a program that differs before any rewrite was
    /// not made wrong by one.
    #[must_use]
    pub fn next(&self) -> Option<usize> {
        match self.agrees {
            None => (self.differs > 0).then_some(0),
            Some(agrees) => (self.differs - agrees > 1).then(|| agrees.midpoint(self.differs)),
        }
    }

    /// Notes what was found with some fuel.
    pub fn note(&mut self, fuel: usize, is_different: bool) {
        if is_different {
            self.differs = self.differs.min(fuel);
        } else {
            self.agrees = self.agrees.max(Some(fuel));
        }
    }

    /// What shows the rewrite that was found, of which `difference` is told: none before the search is over, and where
    /// something differs without any rewrite.
    ///
    /// # Errors
    /// As [`compile`].
    pub fn reproducer(
        &self,
        program: &Program,
        passes: &PassSet,
        difference: String,
    ) -> Result<Option<Reproducer>, CompileError> {
        let fuel = self.differs;
        if fuel == 0 || self.next().is_some() {
            return Ok(None);
        }
        let passes = passes.clone().with_fuel(fuel);
        let compiled = compile(program, &passes)?;
        let last = compiled.reports.iter().rfind(|report| report.num_rewrites > 0);
        Ok(last.map(|report| {
            let culprit = Culprit { pass: report.pass, rewrite: report.num_rewrites, fuel };
            Reproducer { passes, culprit, difference, program: program.clone() }
        }))
    }
}

/// Looks for the first rewrite after which the interpreter finds another result than before all of them, from bytes of
/// its own. `goes_on` is asked before each run; none where it says no, where the interpreter finds no difference, cannot
/// run the program, or would take too long.
///
/// # Errors
/// As [`compile`].
///
/// # Examples
/// ```
/// use esper_graph::compile::{PassSet, Pass, Program, bisect};
///
/// let program: Program = "blocks x0=8 x1=8 x2=8
///     %0 copy x0[0..8] to x1[0..8]
///     %1 copy x0[0..8] to x2[0..8]".parse()?;
/// assert_eq!(bisect(&program, &PassSet::all(), || true)?, None);
///
/// let wrong = PassSet::all().with_wrong_rewrite(Pass::Kernelize, 2);
/// let found = bisect(&program, &wrong, || true)?.expect("a planted fault");
/// assert_eq!((found.culprit.pass, found.culprit.rewrite), (Pass::Kernelize, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn bisect(
    program: &Program,
    passes: &PassSet,
    goes_on: impl Fn() -> bool,
) -> Result<Option<Reproducer>, CompileError> {
    let inputs = inputs(program);
    if interpreted_bytes(program) > MAX_INTERPRETED_BYTES || !goes_on() {
        return Ok(None);
    }
    let Ok(expected) = interpret(program, None, &inputs) else { return Ok(None) };
    let all = compile(program, passes)?;
    let mut bisection = Bisection::new(all.reports.iter().map(|report| report.num_rewrites).sum());
    let found = |compiled: &Compiled| difference(&expected, interpret_compiled(compiled, None, &inputs, 1));
    let Some(mut message) = found(&all) else { return Ok(None) };
    while let Some(fuel) = bisection.next() {
        if !goes_on() {
            return Ok(None);
        }
        let difference = found(&compile(program, &passes.clone().with_fuel(fuel))?);
        bisection.note(fuel, difference.is_some());
        message = difference.unwrap_or(message);
    }
    bisection.reproducer(program, passes, message)
}

/// Whether the interpreter finds another result than that of the program.
#[cfg(test)]
pub(crate) fn is_different(program: &Program, compiled: &Compiled) -> bool {
    let inputs = inputs(program);
    let expected = interpret(program, None, &inputs).expect("a result");
    difference(&expected, interpret_compiled(compiled, None, &inputs, 1)).is_some()
}

/// Bytes for external blocks, the same for the same blocks.
fn inputs(program: &Program) -> BTreeMap<BlockId, Vec<u8>> {
    let external = program.blocks.iter().enumerate().filter(|(_, block)| block.lifetime == Lifetime::External);
    let bytes =
        |id: usize, size: usize| (0..size).map(move |at| tame(id.wrapping_mul(37) ^ (at.wrapping_mul(101) >> 2)));
    external.map(|(id, block)| (BlockId(id), bytes(id, block.size_bytes).collect())).collect()
}

/// A byte of which any number of them in a row is a positive finite float.
fn tame(number: usize) -> u8 {
    let [lowest, ..] = number.to_le_bytes();
    lowest & 0x3F
}

/// Bytes of the blocks, and all that nodes read and write.
fn interpreted_bytes(program: &Program) -> usize {
    let blocks: usize = program.blocks.iter().map(|block| block.size_bytes).sum();
    let used = |kind: &super::node::NodeKind| {
        let written = kind.each_write().map(|write| write.region.len());
        kind.each_read().map(|region| region.len()).chain(written).sum::<usize>()
    };
    blocks + program.nodes.iter().map(|node| used(&node.kind)).sum::<usize>()
}

/// The first external block that is another one, and where; or why there is no result.
fn difference(
    expected: &BTreeMap<BlockId, Vec<u8>>,
    found: Result<BTreeMap<BlockId, Vec<u8>>, InterpretError>,
) -> Option<String> {
    let found = match found {
        Ok(found) => found,
        Err(error) => return Some(format!("the program cannot be run: {error}")),
    };
    expected.iter().zip(found).find_map(|((block, bytes), (_, found))| {
        let differing = || bytes.iter().zip(&found).enumerate().filter(|(_, (one, other))| one != other);
        let (first, _) = differing().next()?;
        Some(format!("{} of {} bytes of {block} differ, the first at {first}", differing().count(), bytes.len()))
    })
}

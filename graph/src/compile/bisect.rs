//! Which rewrite makes a result another one.
//!
//! ```text
//!   fuel  0 ─────────── agrees ─────────── n-1 │ n ─────────── differs ─────────── all
//!                                              └─ the rewrite: the last one of the last pass that did any
//! ```

use super::interpret::{InterpretError, Results, observe, run_assuming};
use super::pass::{Pass, PassSet};
use super::pipeline::{CompileError, Compiled, compile};
use super::program::Program;

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

/// Why no rewrite is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unseen {
    /// The program of the passes, or before them, breaks a rule.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The interpreter did not get to the end of the program before the passes, or was stopped.
    #[error("the program was not interpreted: {0}")]
    Interpret(#[from] InterpretError),
    /// The interpreter finds the same results before and after the passes: what is wrong is not in the program, but in the
    /// code of a kernel or in what is said of one.
    #[error("the interpreter finds the same results before and after the passes")]
    NoDifference,
    /// Something differs where no rewrite was done.
    #[error("it differs before any rewrite")]
    NoRewrite,
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

    /// What shows the rewrite that was found, of which `difference` is told.
    ///
    /// # Errors
    /// [`Unseen::NoRewrite`] where something differs without any rewrite; [`Unseen::Compile`].
    pub fn reproducer(&self, program: &Program, passes: &PassSet, difference: String) -> Result<Reproducer, Unseen> {
        let fuel = self.differs;
        let passes = passes.clone().with_fuel(fuel);
        let compiled = compile(program, &passes)?;
        let report = compiled.reports.iter().rfind(|report| report.num_rewrites > 0).ok_or(Unseen::NoRewrite)?;
        let culprit = Culprit { pass: report.pass, rewrite: report.num_rewrites, fuel };
        Ok(Reproducer { passes, culprit, difference, program: program.clone() })
    }
}

/// Looks for the first rewrite after which the interpreter finds another result than before all of them, from bytes of
/// its own. `goes_on` is asked before each node; where it says no, the search ends.
///
/// # Errors
/// [`Unseen`].
///
/// # Examples
/// ```
/// use esper_graph::compile::{PassSet, Pass, Program, Unseen, bisect};
///
/// let program: Program = "blocks x0=8 x1=8 x2=8
///     %0 copy x0[0..8] to x1[0..8]
///     %1 copy x0[0..8] to x2[0..8]".parse()?;
/// assert_eq!(bisect(&program, &PassSet::all(), || true), Err(Unseen::NoDifference));
///
/// let wrong = PassSet::all().with_wrong_rewrite(Pass::Kernelize, 2);
/// let found = bisect(&program, &wrong, || true)?;
/// assert_eq!((found.culprit.pass, found.culprit.rewrite), (Pass::Kernelize, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn bisect(program: &Program, passes: &PassSet, goes_on: impl Fn() -> bool) -> Result<Reproducer, Unseen> {
    let all = compile(program, passes)?;
    let (expected, mut assumed) = observe(program, &goes_on)?;
    let mut difference = |compiled: &Compiled| match run_assuming(compiled, &mut assumed, &goes_on) {
        Ok(found) => Ok(difference(&expected, &found)),
        Err(error @ InterpretError::Undefined { .. }) => Ok(Some(format!("the program cannot be run: {error}"))),
        Err(error) => Err(error),
    };
    let mut bisection = Bisection::new(all.reports.iter().map(|report| report.num_rewrites).sum());
    let mut message = difference(&all)?.ok_or(Unseen::NoDifference)?;
    while let Some(fuel) = bisection.next() {
        let difference = difference(&compile(program, &passes.clone().with_fuel(fuel))?)?;
        bisection.note(fuel, difference.is_some());
        message = difference.unwrap_or(message);
    }
    bisection.reproducer(program, passes, message)
}

/// Whether the interpreter finds another result than that of the program.
#[cfg(test)]
pub(crate) fn is_different(program: &Program, compiled: &Compiled) -> bool {
    let (expected, mut assumed) = observe(program, &|| true).expect("a result");
    run_assuming(compiled, &mut assumed, &|| true) != Ok(expected)
}

/// The first external block that is another one, and where.
fn difference(expected: &Results, found: &Results) -> Option<String> {
    expected.iter().zip(found).find_map(|((block, bytes), (_, found))| {
        let differing = || bytes.iter().zip(found).enumerate().filter(|(_, (one, other))| one != other);
        let (first, _) = differing().next()?;
        Some(format!("{} of {} bytes of {block} differ, the first at {first}", differing().count(), bytes.len()))
    })
}

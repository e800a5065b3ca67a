//! Searches on a device that interprets: every step is taken once, and the planted rewrite is found.

use super::*;
use crate::compile::{Pass, PassSet, Program, bisect, compile, is_different};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    /// The interpreter sees nothing.
    Unseen,
    /// It sees nothing, and the program differs before any rewrite.
    Lifting,
    /// A graph cannot be built.
    Build,
    /// The captured graph cannot be replayed.
    Captured,
}

/// A device whose graphs are programs.
struct Interpreting {
    program: Program,
    passes: PassSet,
    folder: PathBuf,
    trouble: Trouble,
    pending: u32,
    task: Option<Task>,
    num_steps: u32,
    num_compared: u32,
}

impl Interpreting {
    fn told(&self, found: Result<Reproducer, Unseen>) -> Outcome {
        found.map_or_else(Outcome::Unseen, |reproducer| Outcome::Named(told(&reproducer, Some(&self.folder))))
    }
}

impl Probes for Interpreting {
    type Captured = ();

    fn begin(&mut self, task: &Task) {
        assert!(self.task.is_none(), "one task at a time");
        (self.task, self.pending) = (Some(task.clone()), 2);
    }

    fn poll(&mut self) -> Option<Outcome> {
        if self.pending > 0 {
            self.pending -= 1;
            return None;
        }
        Some(match self.task.clone().expect("a task") {
            Task::Interpret => {
                self.task = None;
                let sees = !matches!(self.trouble, Trouble::Unseen | Trouble::Lifting | Trouble::Build);
                self.told(bisect(&self.program, &self.passes, || sees))
            }
            Task::Build(_) if self.trouble == Trouble::Build => {
                Outcome::Failed(Refusal::NotCompiled { why: "nvrtc", message: "no".to_owned() })
            }
            Task::Build(_) => Outcome::Built,
            Task::Name(bisection, difference) => {
                self.task = None;
                self.told(bisection.reproducer(&self.program, &self.passes, difference))
            }
        })
    }

    fn compare(&mut self, (): &()) -> Result<(), Refusal> {
        let Some(Task::Build(fuel)) = self.task.take() else { panic!("nothing was built") };
        self.num_steps += 1;
        self.num_compared += 1;
        let compiled = compile(&self.program, &self.passes.clone().with_fuel(fuel)).expect("valid");
        if self.trouble == Trouble::Lifting || is_different(&self.program, &compiled) {
            return Err(Refusal::NotCompiled { why: "differs", message: "2 words".to_owned() });
        }
        Ok(())
    }

    fn replay(&mut self, (): &()) -> Result<(), Refusal> {
        if self.trouble == Trouble::Captured {
            return Err(Refusal::OtherThread);
        }
        self.num_steps += 1;
        Ok(())
    }
}

/// The refusal at the end, the steps and the comparisons, of a search for a fault in a training step.
fn searched(trouble: Trouble) -> (Result<Refusal, Refusal>, u32, u32, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let text = include_str!("../../filetests/reproducers/planted_in_fuse.program");
    let Reproducer { program, .. } = text.parse().expect("a reproducer");
    let passes = PassSet::all().with_wrong_rewrite(Pass::Fuse, 3);
    let total = compile(&program, &passes).expect("valid").reports.iter().map(|report| report.num_rewrites).sum();
    let probes = Interpreting {
        program,
        passes,
        folder: folder.path().to_owned(),
        trouble,
        pending: 0,
        task: None,
        num_steps: 0,
        num_compared: 0,
    };
    let mut search = Steps::new(probes, total, "2 words".to_owned(), true);
    for step in 1..=100 {
        match search.step(&()) {
            Ok(Searched::GoesOn) => assert_eq!(search.probes.num_steps, step, "every step is taken once"),
            Ok(Searched::Over(refusal)) => {
                assert_eq!(search.probes.num_steps, step);
                return (Ok(refusal), step, search.probes.num_compared, folder);
            }
            Err(refusal) => return (Err(refusal), step, search.probes.num_compared, folder),
        }
    }
    panic!("the search has no end");
}

#[test]
fn a_planted_rewrite_is_found_by_the_interpreter_or_step_by_step_and_its_reproducer_replays() {
    for (trouble, most_compared) in [(Trouble::None, 0), (Trouble::Unseen, 7)] {
        let (found, _, num_compared, _folder) = searched(trouble);
        let refusal = found.expect("the captured graph takes every step");
        let Refusal::WrongRewrite { pass: Pass::Fuse, rewrite: 3, reproducer: Some(file), .. } = &refusal else {
            panic!("{trouble:?}: {refusal}");
        };
        assert!(num_compared <= most_compared, "{num_compared}");
        assert_eq!((refusal.name(), refusal.stage()), ("wrong_rewrite", Stage::Compile));
        let reproducer: Reproducer = fs::read_to_string(file).unwrap().parse().expect("a reproducer");
        let again = bisect(&reproducer.program, &reproducer.passes, || true).expect("a difference");
        assert_eq!(again.culprit, reproducer.culprit);
        let why =
            "2 words\nnot shown without a device: the program was not interpreted: it was stopped, or took too long";
        let told = if trouble == Trouble::Unseen { why } else { &again.difference };
        assert_eq!(reproducer.difference, told);
        assert!(refusal.to_string().contains(told), "{refusal}");
    }
}

#[test]
fn a_search_that_finds_nothing_says_why_and_ends() {
    for (trouble, why) in
        [(Trouble::Lifting, "it differs before any rewrite"), (Trouble::Build, "the region was not compiled: no")]
    {
        let (found, ..) = searched(trouble);
        let unseen = "the program was not interpreted: it was stopped, or took too long";
        let message = format!("2 words; no rewrite was found that makes it so: {why}; without a device: {unseen}");
        assert_eq!(found, Ok(Refusal::NotCompiled { why: "differs", message }), "{trouble:?}");
    }
    assert_eq!(searched(Trouble::Captured).0, Err(Refusal::OtherThread));
}

#[test]
fn a_reproducer_that_cannot_be_written_is_left_out() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = include_str!("../../filetests/reproducers/planted_in_fuse.program");
    let refusal = told(&text.parse().expect("a reproducer"), Some(file.path()));
    assert!(matches!(refusal, Refusal::WrongRewrite { reproducer: None, .. }), "{refusal}");
}

//! Steps that are compiled on a device that only counts: every step is taken once, whatever is refused and when.

use std::rc::Rc;

use proptest::prelude::*;

use super::*;
use crate::compile::Pass;

/// What goes wrong, and when.
#[derive(Debug, Clone, Default)]
struct Script {
    /// Polls that find the job still going on.
    num_pending: u32,
    /// Why the job ends without a graph.
    job_refused: Option<Refusal>,
    /// Verification that fails, and with what.
    verify_refused: Option<(u32, Refusal)>,
    /// Steps that a search for the wrong rewrite takes; absent where none is begun.
    search_steps: Option<u32>,
    /// Replay of the compiled graph that fails, and with what.
    replay_refused: Option<(u32, Refusal)>,
    /// Replay of the captured graph that fails, verified steps not counted.
    captured_refused: Option<u32>,
}

/// A device that counts what it is asked to do.
#[derive(Debug, Default)]
struct Counting {
    script: Script,
    /// Held by every draft, job and compiled graph that is alive.
    alive: Rc<()>,
    num_drafts: u32,
    num_started: u32,
    num_polls: u32,
    num_captured: u32,
    poisons: Vec<u8>,
    num_accepted: u32,
    num_compiled: u32,
    /// Steps that changed the state.
    state: u32,
    /// What was copied to the inputs last, and what the step under way is to find there.
    value: u32,
    expected: u32,
}

fn differs() -> Refusal {
    Refusal::NotCompiled { why: "differs", message: "2 words of block 3".to_owned() }
}

fn found() -> Refusal {
    Refusal::WrongRewrite { pass: Pass::Fuse, rewrite: 3, message: "2 words of block 3".to_owned(), reproducer: None }
}

fn broken() -> Refusal {
    Refusal::Driver { call: "cuGraphLaunch", stage: Stage::Launch, message: "no".to_owned() }
}

impl Counting {
    fn num_alive(&self) -> usize {
        Rc::strong_count(&self.alive) - 1
    }

    fn take_step(&mut self) {
        assert_eq!(self.value, self.expected, "a step finds its own values");
        self.state += 1;
    }
}

impl Compiler for Counting {
    type Captured = ();
    type Draft = Rc<()>;
    type Job = [Rc<()>; 2];
    type Compiled = Rc<()>;
    type Search = (Rc<()>, u32);
    type Feed<'a> = Option<u32>;

    fn feed(&mut self, feed: &mut Option<u32>) -> Result<(), Refusal> {
        self.value = feed.take().unwrap_or(self.value);
        Ok(())
    }

    fn start(&mut self, drafts: [Rc<()>; 2], _fuel: Option<usize>) -> [Rc<()>; 2] {
        self.num_started += 1;
        self.num_polls = 0;
        drafts
    }

    fn poll(&mut self, job: &mut [Rc<()>; 2]) -> Option<Result<Rc<()>, Refusal>> {
        self.num_polls += 1;
        if self.num_polls <= self.script.num_pending {
            return None;
        }
        Some(match &self.script.job_refused {
            Some(refusal) => Err(refusal.clone()),
            None => Ok(Rc::clone(&job[0])),
        })
    }

    fn verify(&mut self, _compiled: &mut Rc<()>, _captured: &(), poison: u8) -> Result<(), Refusal> {
        let index = u32::try_from(self.poisons.len()).unwrap();
        self.poisons.push(poison);
        let refusal = self.script.verify_refused.clone().filter(|(at, _)| *at == index).map(|(_, refusal)| refusal);
        if refusal.as_ref().is_none_or(|refusal| refusal.stage() == Stage::Compile) {
            self.take_step();
        }
        refusal.map_or(Ok(()), Err)
    }

    fn search(&mut self, compiled: Rc<()>, refusal: &Refusal) -> Option<(Rc<()>, u32)> {
        self.script.search_steps.filter(|_| refusal.name() == "differs").map(|steps| (compiled, steps))
    }

    fn search_step(&mut self, search: &mut (Rc<()>, u32), (): &()) -> Result<Searched, Refusal> {
        self.replay_captured(&())?;
        search.1 -= 1;
        Ok(if search.1 == 0 { Searched::Over(found()) } else { Searched::GoesOn })
    }

    fn accept(&mut self, _compiled: &mut Rc<()>) {
        self.num_accepted += 1;
    }

    fn replay_captured(&mut self, _captured: &()) -> Result<(), Refusal> {
        if self.script.captured_refused == Some(self.num_captured) {
            return Err(broken());
        }
        self.num_captured += 1;
        self.take_step();
        Ok(())
    }

    fn replay(&mut self, _compiled: &Rc<()>, feed: Option<&mut Option<u32>>) -> Result<(), Refusal> {
        if let Some((at, refusal)) = &self.script.replay_refused
            && *at == self.num_compiled
        {
            return Err(refusal.clone());
        }
        self.value = feed.and_then(Option::take).unwrap_or(self.value);
        self.num_compiled += 1;
        self.take_step();
        Ok(())
    }
}

/// A shape of step that was just captured.
struct Shape {
    device: Counting,
    compiling: Compiling<Counting>,
    notices: Vec<Notice>,
}

impl Shape {
    fn new(warmup_steps: u32, verify_steps: u32, script: Script) -> Self {
        let verify_steps = NonZeroU32::new(verify_steps).unwrap();
        let compiling = Compiling::new(Some(CompileSchedule { warmup_steps, verify_steps }));
        Self { device: Counting { script, ..Counting::default() }, compiling, notices: Vec::new() }
    }

    /// One step, as the runner takes it.
    fn step(&mut self) -> Result<Taken, Refusal> {
        if self.compiling.needs_draft() {
            self.device.num_drafts += 1;
            let draft = Rc::clone(&self.device.alive);
            self.compiling.drafted(&mut self.device, draft, None);
        }
        self.device.expected += 1;
        let mut feed = Some(self.device.expected);
        let (taken, notice) = self.compiling.step(&mut self.device, &(), Some(&mut feed))?;
        assert_eq!(feed, None, "the values were copied");
        self.notices.extend(notice);
        Ok(taken)
    }

    /// So many steps, one letter each: captured, verified, compiled.
    fn steps(&mut self, num_steps: usize) -> String {
        let letter = |taken| match taken {
            Taken::Captured => 'c',
            Taken::Verified => 'v',
            Taken::Compiled => 'X',
        };
        (0..num_steps).map(|_| letter(self.step().unwrap())).collect()
    }
}

#[test]
fn a_difference_is_searched_for_beside_the_steps_and_told_when_it_is_found() {
    let script = Script { verify_refused: Some((0, differs())), search_steps: Some(4), ..Script::default() };
    let mut shape = Shape::new(1, 2, script.clone());
    assert_eq!(shape.steps(12), "cccccccccccc");
    assert_eq!(shape.notices, [Notice::FellBack(differs()), Notice::Searched(found())]);
    assert_eq!((shape.device.state, shape.device.num_alive()), (12, 0));
    // A network that has changed ends the search, and what cannot be replayed is told to the caller.
    let mut shape = Shape::new(1, 2, script.clone());
    shape.steps(5);
    shape.compiling.abandon();
    shape.steps(9);
    assert_eq!((shape.notices.len(), shape.device.num_alive()), (1, 0));
    let mut shape = Shape::new(1, 2, Script { captured_refused: Some(5), ..script });
    shape.steps(6);
    assert_eq!(shape.step(), Err(broken()));
}

#[test]
fn a_step_is_warm_then_drafted_twice_then_compiled_then_verified_then_replayed() {
    // (warm-up, pending polls, verified steps, what takes each step)
    for (warmup_steps, num_pending, verify_steps, expected) in [
        (0, 0, 1, "cvXXXXXXXX"),
        (1, 0, 1, "ccvXXXXXXX"),
        (2, 0, 2, "cccvvXXXXX"),
        (0, 3, 2, "ccccvvXXXX"),
        (4, 2, 3, "cccccccvvv"),
        (20, 0, 1, "cccccccccc"),
        (0, 20, 1, "cccccccccc"),
    ] {
        let mut shape = Shape::new(warmup_steps, verify_steps, Script { num_pending, ..Script::default() });
        let found = shape.steps(expected.len());
        assert_eq!(found, expected, "{warmup_steps} warm, {num_pending} pending, {verify_steps} verified");
        let is_compiled = expected.contains('X') || expected.ends_with(&"v".repeat(verify_steps as usize));
        assert_eq!(shape.notices, if is_compiled { vec![Notice::Enabled] } else { Vec::new() }, "{expected}");
        assert_eq!(shape.compiling.compiled().is_some(), is_compiled, "{expected}");
        assert_eq!(shape.device.num_started, u32::from(shape.device.num_drafts == 2), "{expected}");
        assert_eq!(shape.device.num_accepted, u32::from(is_compiled), "{expected}");
    }
}

#[test]
fn the_replays_that_remain_are_counted_down() {
    let mut shape = Shape::new(3, 1, Script::default());
    let mut found = vec![shape.compiling.warmup_remaining()];
    for _ in 0..5 {
        shape.step().unwrap();
        found.push(shape.compiling.warmup_remaining());
    }
    assert_eq!(found, [3, 2, 1, 0, 0, 0]);
}

#[test]
fn memory_is_poisoned_with_both_patterns_in_turn() {
    let mut shape = Shape::new(0, 5, Script::default());
    shape.steps(8);
    assert_eq!(shape.device.poisons, [0xCB, 0xFF, 0xCB, 0xFF, 0xCB]);
}

#[test]
fn a_refusal_leaves_the_captured_graph_and_is_told_once() {
    let not_compiled = Refusal::NotCompiled { why: "unknown_copy", message: "node 3".to_owned() };
    let script = Script::default;
    // (what goes wrong, what takes each step, what is told)
    for (script, expected, notice) in [
        (
            Script { job_refused: Some(not_compiled.clone()), num_pending: 2, ..script() },
            "cccccccc",
            Notice::FellBack(not_compiled),
        ),
        (Script { verify_refused: Some((0, differs())), ..script() }, "cccccccc", Notice::FellBack(differs())),
        (Script { verify_refused: Some((1, differs())), ..script() }, "ccvccccc", Notice::FellBack(differs())),
        (Script { verify_refused: Some((1, broken())), ..script() }, "ccvccccc", Notice::FellBack(broken())),
    ] {
        let mut shape = Shape::new(1, 2, script.clone());
        assert_eq!(shape.steps(expected.len()), expected, "{script:?}");
        assert_eq!(shape.notices, [notice], "{script:?}");
        assert_eq!(shape.device.state, 8, "every step is taken once: {script:?}");
        assert_eq!(shape.device.num_alive(), 0, "nothing is kept of the attempt: {script:?}");
    }
}

#[test]
fn a_compiled_graph_that_fails_later_is_replaced_in_the_same_step() {
    let mut shape = Shape::new(0, 1, Script { replay_refused: Some((2, broken())), ..Script::default() });
    assert_eq!(shape.steps(8), "cvXXcccc");
    assert_eq!(shape.notices, [Notice::Enabled, Notice::FellBackAtReplay(broken())]);
    assert_eq!((shape.device.state, shape.device.num_alive()), (8, 0));
}

#[test]
fn another_thread_is_left_to_the_runner_and_nothing_has_run() {
    let other = Refusal::OtherThread;
    for script in [
        Script { verify_refused: Some((0, other.clone())), ..Script::default() },
        Script { replay_refused: Some((0, other.clone())), ..Script::default() },
    ] {
        let mut shape = Shape::new(0, 1, script.clone());
        let refusal = (0..5).find_map(|_| shape.step().err());
        assert_eq!(refusal, Some(Refusal::OtherThread), "{script:?}");
        let num_taken = shape.device.num_captured + shape.device.num_compiled;
        let num_verified = u32::from(script.verify_refused.is_none());
        assert_eq!(shape.device.state, num_taken + num_verified, "{script:?}");
        assert!(shape.notices.iter().all(|notice| *notice == Notice::Enabled), "{:?}", shape.notices);
    }
}

#[test]
fn what_the_captured_graph_refuses_is_the_refusal_of_the_step() {
    for (captured_refused, num_good) in [(0, 0), (1, 1), (2, 2)] {
        let mut shape =
            Shape::new(1, 1, Script { captured_refused: Some(captured_refused), num_pending: 5, ..Script::default() });
        let good = (0..num_good).filter(|_| shape.step().is_ok()).count();
        assert_eq!((good, shape.step()), (num_good, Err(broken())));
        assert!(shape.notices.is_empty());
    }
}

#[test]
fn a_change_of_the_topology_drops_what_is_under_way_and_keeps_what_is_done() {
    // (steps before the change, drafts alive before and after it, what takes the steps after it)
    for (num_before, alive, kept, after) in [
        (0, 0, 0, "ccccvvXX"),
        (1, 0, 0, "ccccvvXX"),
        (2, 0, 0, "ccccvvXX"),
        (3, 1, 0, "ccccvvXX"),
        (4, 2, 0, "ccccvvXX"),
        (5, 1, 1, "vXXXXXXX"),
        (6, 1, 1, "XXXXXXXX"),
    ] {
        let mut shape = Shape::new(2, 2, Script { num_pending: 1, ..Script::default() });
        shape.steps(num_before);
        assert_eq!(shape.device.num_alive(), alive, "after {num_before} steps");
        shape.compiling.abandon();
        assert_eq!(shape.device.num_alive(), kept, "after {num_before} steps");
        assert_eq!(shape.steps(after.len()), after, "after {num_before} steps");
    }
}

#[test]
fn a_mode_without_compiling_replays_the_captured_graph() {
    let mut shape = Shape { compiling: Compiling::new(None), ..Shape::new(0, 1, Script::default()) };
    assert_eq!(shape.steps(6), "cccccc");
    assert_eq!((shape.device.num_drafts, shape.notices.len()), (0, 0));
    shape.compiling.abandon();
    assert_eq!(shape.steps(3), "ccc");
}

fn refusal() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        Just(differs()),
        Just(broken()),
        Just(Refusal::OtherThread),
        Just(Refusal::Moved { what: "w".to_owned() })
    ]
}

fn script() -> impl Strategy<Value = Script> {
    let at = || proptest::option::of((0..4_u32, refusal()));
    let search_steps = proptest::option::of(1..4_u32);
    (0..4_u32, proptest::option::weighted(0.2, refusal()), at(), search_steps, at()).prop_map(
        |(num_pending, job_refused, verify_refused, search_steps, replay_refused)| Script {
            num_pending,
            job_refused,
            verify_refused,
            search_steps,
            replay_refused,
            captured_refused: None,
        },
    )
}

proptest! {
    #[test]
    fn every_step_is_taken_once_and_none_by_a_graph_that_was_not_verified(
        script in script(),
        warmup_steps in 0..4_u32,
        verify_steps in 1..4_u32,
        changes in proptest::collection::btree_set(0..30_u32, 0..4),
    ) {
        let mut shape = Shape::new(warmup_steps, verify_steps, script);
        let (mut num_taken, mut num_verified) = (0, 0);
        for step in 0..30 {
            if changes.contains(&step) {
                shape.compiling.abandon();
            }
            match shape.step() {
                Ok(taken) => {
                    num_taken += 1;
                    num_verified += u32::from(taken == Taken::Verified);
                    prop_assert!(taken != Taken::Compiled || num_verified >= verify_steps);
                }
                Err(refusal) => prop_assert_eq!(refusal, Refusal::OtherThread),
            }
            prop_assert_eq!(shape.device.state, num_taken, "step {}", step);
        }
        let is_fallback = |notice: &&Notice| matches!(notice, Notice::FellBack(_) | Notice::FellBackAtReplay(_));
        let num_fallbacks = shape.notices.iter().filter(is_fallback).count();
        prop_assert!(num_fallbacks <= 1, "a refusal is final: {:?}", shape.notices);
        prop_assert!(shape.notices.len() <= 2);
        prop_assert!(shape.device.num_alive() <= 2);
    }
}

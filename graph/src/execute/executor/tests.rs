//! What an executor knows, tells and lets go of, step by step, with a device of the tests that records what it is asked.
// Under the model checker, caches only work inside of a model: see `manager/tests.rs`.
#![cfg(not(feature = "model-check"))]

use std::cell::Cell;
use std::num::NonZeroUsize;

use candle_core::{Device, Tensor};
use leyline::model::HostNumbers;
use leyline::region::Recording;

use super::*;
use crate::function::tests::device::{
    ARENA_BYTES, Fake, Step, frozen, num_joins, refuse, replay_with, steps_and_copies,
};
use crate::key::ExecutionMode;
use crate::manager::GraphMode;
use crate::report::CaptureReport;

/// A region without tensors.
struct Nothing {
    promise: HostNumbers,
}

impl Region<()> for Nothing {
    type Error = String;

    fn run(&mut self, _recording: &Recording, (): &()) -> Result<(), String> {
        Ok(())
    }

    fn told(error: &String) -> (String, Option<Refusal>) {
        (error.clone(), None)
    }

    fn held(&self, (): &()) -> Vec<(String, Tensor)> {
        Vec::new()
    }

    fn promise(&self) -> HostNumbers {
        self.promise
    }
}

/// Writes down what it hears; each look at its clock takes a millisecond.
#[derive(Default)]
struct Heard {
    told: Vec<String>,
    looks: Cell<u32>,
}

impl Watch for Heard {
    fn now(&self) -> Duration {
        self.looks.set(self.looks.get() + 1);
        Duration::from_millis(1) * self.looks.get()
    }

    fn captured(&mut self, _report: &CaptureReport, num_evicted: usize) {
        self.told.push(format!("captured, {num_evicted} went"));
    }

    fn replayed(&mut self, taken: Taken, remaining: Option<u32>) {
        self.told.push(format!("{taken:?}, {remaining:?} left"));
    }

    fn not_replayed(&mut self, fell_back: bool, remaining: Option<u32>) {
        self.told.push(format!("eager, fell back: {fell_back}, {remaining:?} left"));
    }

    fn refused(&mut self, refusal: &Refusal, num_failures: u32) {
        self.told.push(format!("refused {}: {num_failures}", refusal.name()));
    }

    fn gave_up(&mut self, num_failures: u32) {
        self.told.push(format!("gave up: {num_failures}"));
    }
}

struct Owner {
    executor: Executor<u32, (), Fake>,
    manager: GraphManager,
    eager: Eager,
    region: Nothing,
    heard: Heard,
    num_steps: u64,
}

/// One step of warm-up, four graphs, no compiles.
const PLAIN: ExecutorConfig = ExecutorConfig {
    is_on: true,
    warm_up: NonZeroU32::MIN,
    compile: None,
    limit: NonZeroUsize::new(4).unwrap(),
    max_failures: None,
    keeps_shapes: false,
};
/// Compiled as soon as there are two drafts, and verified once.
const COMPILED: ExecutorConfig =
    ExecutorConfig { compile: Some(CompileSchedule { warmup_steps: 0, verify_steps: NonZeroU32::MIN }), ..PLAIN };

impl Owner {
    fn new(config: ExecutorConfig) -> Self {
        replay_with(|_| Ok(Vec::new()));
        refuse(None);
        let manager = GraphManager::new();
        Self {
            executor: Executor::new(config, &manager),
            manager,
            eager: Eager::acquire().unwrap(),
            region: Nothing { promise: HostNumbers::MayMove },
            heard: Heard::default(),
            num_steps: 0,
        }
    }

    fn key(shape: u32) -> GraphKey {
        GraphKey::new(ExecutionMode::Infer, &Device::Cpu).tag("shape", shape.to_string())
    }

    fn inputs(&mut self, shape: u32) {
        self.executor.inputs(&shape, || Ok::<_, String>((Self::key(shape), ()))).unwrap();
    }

    /// Takes a step, counted from 1; what the device was asked to do.
    fn try_step(&mut self, shape: u32) -> Result<Vec<Step>, Unconfirmed> {
        match self.try_fed(shape, None) {
            Ok(steps) => Ok(steps),
            Err(Failure::Unconfirmed(found)) => Err(found),
            Err(failure) => panic!("{failure:?}"),
        }
    }

    fn try_fed(&mut self, shape: u32, feed: Option<Vec<[Tensor; 2]>>) -> Result<Vec<Step>, Failure<String>> {
        self.inputs(shape);
        self.num_steps += 1;
        steps_and_copies();
        let (at, region) = ((&shape, self.num_steps), &mut self.region);
        self.executor.step(&mut Fake, &mut self.eager, at, (region, feed), &mut self.heard)?;
        Ok(steps_and_copies())
    }

    fn step(&mut self, shape: u32) -> Vec<Step> {
        self.try_step(shape).unwrap()
    }

    fn test(&mut self, shape: u32) -> Result<(), Unconfirmed> {
        let at = (&shape, self.num_steps + 1);
        self.executor.test(&Fake, &mut self.eager, at, &mut self.region, &mut self.heard)
    }

    fn told(&mut self) -> Vec<String> {
        std::mem::take(&mut self.heard.told)
    }
}

const CAPTURED: [Step; 2] = [Step::Warm, Step::Capture];
const TESTED: [Step; 2] = [Step::Test, Step::Replay];

#[test]
fn while_it_is_off_here_or_for_all_nothing_is_warmed_up_and_what_was_captured_is_kept() {
    let switches: [fn(&mut Owner, bool); 2] = [
        |owner, on| owner.executor.set_on(on),
        |owner, on| owner.manager.set_mode(if on { GraphMode::Auto } else { GraphMode::Off }),
    ];
    for switch in switches {
        let mut owner = Owner::new(PLAIN);
        assert!(owner.executor.is_enabled());
        assert_eq!((owner.step(1), owner.step(1)), (CAPTURED.to_vec(), TESTED.to_vec()));
        switch(&mut owner, false);
        assert!(!owner.executor.is_enabled());
        owner.told();
        assert_eq!((owner.step(1), owner.step(2)), (vec![], vec![]));
        assert_eq!(owner.told(), ["eager, fell back: false, None left"; 2]);
        switch(&mut owner, true);
        assert_eq!(owner.step(1), TESTED, "the test after the first replay");
    }
}

#[test]
fn the_shape_in_warm_up_that_was_used_longest_ago_makes_room_whatever_its_order() {
    let two = NonZeroUsize::new(2).unwrap();
    let mut owner = Owner::new(ExecutorConfig { limit: two, ..PLAIN });
    for shape in [5, 3, 4] {
        owner.inputs(shape);
    }
    assert_eq!([3, 4, 5].map(|shape| owner.executor.knows(&shape)), [true, true, false]);
    assert_eq!([3, 5].map(|shape| owner.executor.key(&shape).cloned()), [Some(Owner::key(3)), None]);
}

#[test]
fn replays_are_open_until_a_test_confirms_them_and_the_tests_are_counted_and_timed() {
    let mut owner = Owner::new(PLAIN);
    owner.step(1);
    let steps: Vec<_> = (0..3).map(|_| owner.step(1)).collect();
    assert_eq!(steps, [&TESTED[..], &TESTED, &[Step::Replay]]);
    assert_eq!(owner.executor.open_shapes(), [1]);
    owner.test(1).unwrap();
    assert!(owner.executor.open_shapes().is_empty());
    // Of each test the clock was looked at when it began and when it ended.
    assert_eq!(owner.executor.tests(), GraphTests { num_tests: 3, time: Duration::from_millis(3) });
    assert_eq!(owner.step(1), [Step::Replay]);
    owner.executor.doubt();
    assert_eq!(owner.step(1), TESTED, "others had their turn");
}

#[test]
fn what_a_test_does_not_confirm_is_told_with_the_steps_since_the_capture_and_never_replayed_again() {
    // A promise is tested by the compiler's recordings first, and here they are far away.
    let compile = Some(CompileSchedule { warmup_steps: 9, verify_steps: NonZeroU32::MIN });
    let mut owner = Owner::new(ExecutorConfig { compile, ..PLAIN });
    owner.region.promise = HostNumbers::Fixed;
    (0..2).for_each(|_| drop(owner.step(7)));
    for _ in 0..3 {
        assert!(!owner.step(1).contains(&Step::Test));
    }
    refuse(Step::Test);
    let found = owner.test(1).unwrap_err();
    // Captured in step 3, replayed in 4 and 5; one replay is what the next test would be made for.
    assert_eq!((found.first, found.found), (4, 6));
    assert_eq!((found.stale.num_replays, &found.stale.refusal), (1, &frozen()));
    refuse(None);
    owner.told();
    assert_eq!(owner.step(1), []);
    assert_eq!(owner.told(), ["eager, fell back: true, Some(9) left"]);
    assert_eq!((owner.executor.stats().total.fallbacks, owner.executor.last_refusal()), (1, Some(&frozen())));
}

#[test]
fn shapes_that_are_refused_are_counted_in_a_row_until_no_further_one_is_tried() {
    let mut owner = Owner::new(ExecutorConfig { max_failures: NonZeroU32::new(2), ..PLAIN });
    refuse(Step::Capture);
    owner.step(1);
    refuse(None);
    owner.step(2);
    refuse(Step::Capture);
    (3..6).for_each(|shape| drop(owner.step(shape)));
    refuse(None);
    let told: Vec<String> = owner.told().into_iter().filter(|told| !told.starts_with("eager")).collect();
    let expected = [
        "refused out_of_memory: 1",
        "captured, 0 went",
        "refused out_of_memory: 1",
        "refused out_of_memory: 2",
        "gave up: 2",
    ];
    assert_eq!(told, expected);
    assert_eq!(owner.executor.last_refusal(), Some(&Refusal::OutOfMemory { needed: 2, available: 1 }));
    assert_eq!(owner.step(6), [], "no warm-up of what is not captured");
    refuse(Step::Replay);
    assert_eq!(owner.step(2), TESTED);
    assert_eq!(owner.told()[1..], ["refused moved: 3", "eager, fell back: true, None left"], "given up once");
    refuse(None);
}

#[test]
fn a_shape_whose_graph_made_room_goes_with_it_unless_shapes_are_kept() {
    for keeps_shapes in [false, true] {
        let mut owner = Owner::new(ExecutorConfig { limit: NonZeroUsize::MIN, keeps_shapes, ..PLAIN });
        (1..3).for_each(|shape| drop(owner.step(shape)));
        assert_eq!(owner.told().last().unwrap(), "captured, 1 went");
        assert_eq!([1, 2].map(|shape| owner.executor.knows(&shape)), [keeps_shapes, true]);
    }
}

#[test]
fn shapes_whose_graphs_somebody_dropped_go_where_shapes_are_not_kept() {
    for keeps_shapes in [false, true] {
        let mut owner = Owner::new(ExecutorConfig { keeps_shapes, ..PLAIN });
        (1..3).for_each(|shape| drop(owner.step(shape)));
        owner.manager.invalidate_all();
        owner.step(3);
        assert_eq!([1, 2, 3].map(|shape| owner.executor.knows(&shape)), [keeps_shapes, keeps_shapes, true]);
    }
}

#[test]
fn replays_of_a_graph_that_made_room_are_confirmed_by_the_next_capture_of_their_shape() {
    // (replays before another shape takes the place, whether one of them waits for a test)
    for (num_replays, is_open) in [(1, false), (2, false), (3, true)] {
        let mut owner = Owner::new(ExecutorConfig { limit: NonZeroUsize::MIN, keeps_shapes: true, ..PLAIN });
        (0..=num_replays).for_each(|_| drop(owner.step(1)));
        owner.step(2);
        refuse(Step::Same);
        let again = owner.try_step(1);
        refuse(None);
        if is_open {
            assert_eq!(again.unwrap_err().stale.num_replays, 1, "{num_replays}");
        } else {
            assert_eq!(again.unwrap(), CAPTURED, "{num_replays}: nothing is compared");
        }
    }
}

#[test]
fn a_lack_of_memory_says_nothing_of_replays_before_it() {
    let mut owner = Owner::new(ExecutorConfig { limit: NonZeroUsize::MIN, keeps_shapes: true, ..PLAIN });
    (0..4).for_each(|_| drop(owner.step(1)));
    owner.step(2);
    refuse(Step::Capture);
    owner.try_step(1).unwrap();
    refuse(None);
    assert!(owner.executor.last_refusal().is_some_and(|refusal| refusal.name() == "out_of_memory"));
    assert_eq!(owner.executor.open_shapes(), [1], "they are still to be confirmed");
}

#[test]
fn a_shape_that_was_not_compiled_once_is_not_compiled_after_its_next_capture_either() {
    let compiles = |steps: Vec<Vec<Step>>| steps.concat().contains(&Step::Compile);
    for (refused, again) in [(Some(Step::Compile), false), (None, true)] {
        let mut owner = Owner::new(ExecutorConfig { limit: NonZeroUsize::MIN, keeps_shapes: true, ..COMPILED });
        refuse(refused);
        assert!(compiles((0..4).map(|_| owner.step(1)).collect()));
        refuse(None);
        owner.step(2);
        assert_eq!(compiles((0..4).map(|_| owner.step(1)).collect()), again, "{refused:?}");
    }
}

#[test]
fn memory_of_compiled_graphs_is_that_of_those_that_are_kept_and_absent_without_one() {
    let mut owner = Owner::new(ExecutorConfig { limit: NonZeroUsize::new(2).unwrap(), ..COMPILED });
    let mut compiled = |shape: u32| {
        let bytes = owner.executor.compiled_bytes();
        (0..8).for_each(|_| drop(owner.step(shape)));
        (bytes, owner.executor.compiled_bytes())
    };
    let of = |num_graphs: u64| Some(num_graphs * ARENA_BYTES as u64);
    assert_eq!(compiled(1), (None, of(1)));
    assert_eq!(compiled(2), (of(1), of(2)));
    assert_eq!(compiled(3), (of(2), of(2)), "the first one made room");
    owner.executor.clear();
    assert_eq!(owner.executor.compiled_bytes(), None);
    drop(owner);
    let mut plain = Owner::new(PLAIN);
    (0..8).for_each(|_| drop(plain.step(1)));
    assert_eq!(plain.executor.compiled_bytes(), None);
}

#[test]
fn a_compile_that_is_abandoned_begins_with_its_first_recording() {
    for (is_over, compiled_in) in [(false, 2), (true, 3)] {
        let mut owner = Owner::new(COMPILED);
        (0..2).for_each(|_| drop(owner.step(1)));
        owner.executor.abandon(|shape| is_over && *shape == 1);
        assert_eq!(owner.executor.compile_report(), None, "nothing was compiled");
        let steps: Vec<_> = (0..3).map(|_| owner.step(1)).collect();
        let found = steps.iter().position(|steps| steps.contains(&Step::Compile));
        assert_eq!(found.map(|index| index + 2), Some(compiled_in), "{steps:?}");
    }
}

#[test]
fn values_are_copied_before_the_step_by_the_compiled_graph_or_by_a_launch_of_their_own() {
    use Step::{Capture, Compile, FedByGraph, Feed, Replay, ReplayCompiled, Verify, Warm};
    let mut owner = Owner::new(COMPILED);
    let mut fed = |refused: Option<Step>| {
        refuse(refused);
        let fed = owner.try_fed(1, Some(Vec::new()));
        refuse(None);
        fed.map(|steps| steps.into_iter().filter(|step| *step != Step::Test).collect::<Vec<_>>())
    };
    let steps: Vec<_> = (0..5).map(|_| fed(None).unwrap()).collect();
    let expected: [&[Step]; 5] = [
        &[Feed, Warm, Capture],
        &[Feed, Replay],
        &[Compile, Feed, Verify],
        &[ReplayCompiled, FedByGraph],
        &[ReplayCompiled, FedByGraph],
    ];
    assert_eq!(steps, expected);
    assert_eq!(fed(Some(ReplayCompiled)).unwrap(), [ReplayCompiled, Feed, Replay]);
    // Those that are copied already are not copied again: that is the feed's to know.
    assert_eq!(fed(Some(Replay)).unwrap(), [Feed, Replay, Feed]);
    assert!(matches!(fed(Some(Feed)), Err(Failure::Feed(Refusal::Moved { .. }))), "nothing runs without its values");
    assert_eq!(steps_and_copies(), [Feed]);
}

#[test]
fn an_executor_that_goes_waits_for_the_compiles_that_use_its_graphs() {
    let mut owner = Owner::new(PLAIN);
    owner.step(1);
    let joins = num_joins();
    drop(owner);
    assert_eq!(num_joins(), joins + 1);
}

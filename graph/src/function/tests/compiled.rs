//! A captured function is compiled while it is replayed, and goes on as it was captured where that fails.

use std::num::NonZeroU32;

use candle_core::Tensor;
use leyline::region::Eager;

use super::device::{Fake, Step, fuel, refuse, steps, steps_and_copies};
use super::{affine, config, contents, expected, matrix};
use crate::function::{GraphFunctionConfig, Graphs};
use crate::manager::{GraphManager, GraphMode};
use crate::reason::Refusal;

/// Compiled after two replays, two drafts and two verified calls.
fn graphs(manager: &GraphManager) -> Graphs<Fake> {
    let compile_verify_calls = NonZeroU32::new(2).unwrap();
    let compiled =
        GraphFunctionConfig { compile: GraphMode::Auto, compile_warmup_calls: 2, compile_verify_calls, ..config(1, 8) };
    Graphs::new(compiled, manager)
}

/// What takes each call, whose results are those of the function.
#[track_caller]
fn check(graphs: &mut Graphs<Fake>, expected_steps: &[(&[Step], u32)]) {
    let mut eager = Eager::acquire().unwrap();
    let wanted = expected_steps.iter().flat_map(|(steps, times)| std::iter::repeat_n(*steps, *times as usize));
    for (call, wanted) in wanted.enumerate() {
        let x = matrix(2, call as u64);
        steps();
        assert_eq!(contents(&graphs.call(&mut eager, &[&x], &mut affine).unwrap()), expected(&[&x]), "call {call}");
        assert_eq!(steps(), wanted, "call {call}");
    }
}

const CAPTURED: (&[Step], u32) = (&[Step::Warm, Step::Capture], 1);
const REPLAYED: &[Step] = &[Step::Replay];
/// The call after the second draft, and the one after it.
const COMPILED: (&[Step], u32) = (&[Step::Compile, Step::Verify], 1);
const VERIFIED: (&[Step], u32) = (&[Step::Verify], 1);

#[test]
fn a_function_is_compiled_while_it_is_replayed_and_counted_as_such() {
    let manager = GraphManager::new();
    let mut graphs = graphs(&manager);
    check(&mut graphs, &[CAPTURED, (REPLAYED, 3), COMPILED, VERIFIED, (&[Step::ReplayCompiled], 6)]);
    let total = graphs.stats().total;
    assert_eq!((total.captures, total.replays, total.compiled, total.fallbacks), (1, 11, 6, 0));
    assert_eq!((manager.totals().replays, manager.totals().compiled), (11, 6));
    assert!(graphs.compile_report().is_some() && graphs.compile_refusal().is_none());
}

#[test]
fn inputs_are_copied_by_the_compiled_graph_and_where_that_fails_the_function_runs() {
    let mut graphs = graphs(&GraphManager::new());
    check(&mut graphs, &[CAPTURED, (REPLAYED, 3), COMPILED, VERIFIED, (&[Step::ReplayCompiled], 1)]);
    let mut eager = Eager::acquire().unwrap();
    let mut call = |x: &Tensor| {
        steps_and_copies();
        assert_eq!(contents(&graphs.call(&mut eager, &[x], &mut affine).unwrap()), expected(&[x]));
        let is_test = |step: &Step| *step == Step::Test;
        steps_and_copies().into_iter().filter(|step| !is_test(step)).collect::<Vec<_>>()
    };
    assert_eq!(call(&matrix(2, 71)), [Step::ReplayCompiled, Step::FedByGraph]);
    let across = matrix(2, 72).t().unwrap().contiguous().unwrap().t().unwrap();
    assert_eq!(call(&across), [Step::ReplayCompiled]);
    refuse(Step::Feed);
    assert_eq!(call(&matrix(5, 73)), [Step::Feed]);
    refuse(None);
    assert_eq!(call(&matrix(5, 74)), [], "it is not tried again");
    assert_eq!(graphs.last_refusal(&[&matrix(5, 0)]).map(Refusal::name), Some("moved"));
    assert_eq!(graphs.stats().total.fallbacks, 2);
}

#[test]
fn a_copy_that_fails_before_a_replay_is_counted_once() {
    let mut graphs = graphs(&GraphManager::new());
    check(&mut graphs, &[CAPTURED, (REPLAYED, 1)]);
    refuse(Step::Feed);
    check(&mut graphs, &[(&[], 1)]);
    refuse(None);
    assert_eq!(graphs.stats().total.fallbacks, 1);
}

#[test]
fn each_compile_of_a_function_has_the_fuel_of_its_time() {
    let manager = GraphManager::new();
    let mut graphs = graphs(&manager);
    for limit in [Some(3), None] {
        check(&mut graphs, &[CAPTURED]);
        manager.set_fuel(limit);
        check(&mut graphs, &[(REPLAYED, 3), COMPILED]);
        assert_eq!(fuel(), limit.map(|limit| limit as usize));
        graphs.clear();
    }
}

#[test]
fn a_function_that_is_not_compiled_is_replayed_as_it_was_captured() {
    // (what is refused, what takes the call in which that shows, why)
    for (refused, refusing, why) in
        [(Step::Compile, (&[Step::Compile, Step::Replay][..], 1), "scripted"), (Step::Verify, COMPILED, "differs")]
    {
        let mut graphs = graphs(&GraphManager::new());
        refuse(refused);
        check(&mut graphs, &[CAPTURED, (REPLAYED, 3), refusing, (REPLAYED, 6)]);
        refuse(None);
        let total = graphs.stats().total;
        assert_eq!((total.captures, total.replays, total.compiled), (1, 10, 0), "{refused:?}");
        let refusal = Refusal::NotCompiled { why, message: String::new() };
        assert_eq!(graphs.compile_refusal(), Some(&refusal));
        assert_eq!(graphs.last_refusal(&[&matrix(2, 0)]), None, "the captured graph is as good as before");
    }
}

#[test]
fn a_compiled_function_that_cannot_be_replayed_falls_back_in_the_same_call() {
    let mut graphs = graphs(&GraphManager::new());
    check(&mut graphs, &[CAPTURED, (REPLAYED, 3), COMPILED, VERIFIED, (&[Step::ReplayCompiled], 1)]);
    refuse(Step::ReplayCompiled);
    check(&mut graphs, &[(&[Step::ReplayCompiled, Step::Replay], 1), (REPLAYED, 3)]);
    refuse(None);
    assert_eq!(graphs.compile_refusal().map(Refusal::name), Some("moved"));
    assert_eq!(graphs.stats().total.compiled, 1);
}

//! Calls that capture or replay nothing, or fail.

use std::cell::Cell;

use candle_core::Tensor;
use leyline::region::Eager;

use super::device::{Fake, Step, refuse, steps};
use super::{affine, config, contents, expected, fake, matrix};
use crate::function::{GraphFunction, GraphFunctionConfig, Graphs};
use crate::manager::{GraphManager, GraphMode};
use crate::reason::Refusal;
use crate::testing::vector;

#[test]
fn a_refusal_is_met_by_an_eager_result_in_the_same_call_and_never_tried_again() {
    // (what is refused, calls before it, its name)
    for (step, call_of_refusal, name) in
        [(Step::Open, 1, "unsupported"), (Step::Capture, 2, "out_of_memory"), (Step::Replay, 3, "moved")]
    {
        refuse(step);
        let mut eager = Eager::acquire().unwrap();
        let manager = GraphManager::new();
        let mut graphs = Graphs::<Fake>::new(config(2, 8), &manager);
        for call in 1..=6 {
            let x = matrix(2, call);
            steps();
            let found = graphs.call(&mut eager, &[&x], &mut affine).unwrap();
            assert_eq!(contents(&found), expected(&[&x]), "{step:?}, call {call}");
            let refusal = graphs.last_refusal(&[&x]).map(Refusal::name);
            assert_eq!(refusal, (call >= call_of_refusal).then_some(name), "{step:?}, call {call}");
            if call > call_of_refusal {
                assert_eq!(steps(), [], "{step:?}, call {call}");
            }
        }
        assert_eq!(manager.totals().fallbacks, 7 - call_of_refusal, "{step:?}");
        assert_eq!((graphs.stats().entries, graphs.executor.num_warming()), (0, 0), "{step:?}");

        refuse(None);
        let x = matrix(2, 0);
        assert!(!graphs.invalidate(&[&x]));
        assert_eq!(graphs.last_refusal(&[&x]), None);
        for _ in 0..3 {
            graphs.call(&mut eager, &[&x], &mut affine).unwrap();
        }
        assert_eq!(steps(), [Step::Warm, Step::Warm, Step::Capture, Step::Replay], "{step:?}");
    }
}

#[test]
fn a_function_on_the_device_of_another_thread_fails_and_does_not_run() {
    let mut eager = Eager::acquire().unwrap();
    for calls_before in 0..4 {
        let mut graphs = fake(2);
        for call in 0..calls_before {
            graphs.call(&mut eager, &[&matrix(2, call)], &mut affine).unwrap();
        }
        refuse(Step::Enter);
        steps();
        let mut never = |_: &[Tensor]| -> candle_core::Result<Vec<Tensor>> { panic!("it ran") };
        let error = graphs.call(&mut eager, &[&matrix(2, 9)], &mut never).unwrap_err();
        assert!(error.to_string().contains("Device::new_cuda_with_stream(ordinal)"), "{error}");
        assert_eq!(steps(), [], "after {calls_before} calls");
        refuse(None);
        let x = matrix(2, 9);
        let found = graphs.call(&mut eager, &[&x], &mut affine).unwrap();
        assert_eq!(contents(&found), expected(&[&x]), "it is no refusal to remember");
    }
}

#[test]
fn a_refused_shape_leaves_the_others_alone() {
    let mut eager = Eager::acquire().unwrap();
    let mut graphs = fake(1);
    refuse(Step::Capture);
    graphs.call(&mut eager, &[&matrix(2, 0)], &mut affine).unwrap();
    refuse(None);
    graphs.call(&mut eager, &[&matrix(3, 0)], &mut affine).unwrap();
    assert_eq!(graphs.stats().total.captures, 1);
    assert_eq!(graphs.last_refusal(&[&matrix(2, 1)]), Some(&Refusal::OutOfMemory { needed: 2, available: 1 }));
    assert_eq!(graphs.last_refusal(&[&matrix(3, 1)]), None);
}

#[test]
fn without_an_address_to_check_a_graph_is_replayed_all_the_same() {
    refuse(Step::Hold);
    let mut eager = Eager::acquire().unwrap();
    let mut graphs = fake(1);
    for seed in 0..2 {
        let x = matrix(2, seed);
        assert_eq!(contents(&graphs.call(&mut eager, &[&x], &mut affine).unwrap()), expected(&[&x]));
    }
    assert_eq!(graphs.stats().total.replays, 1);
}

#[test]
fn while_switched_off_nothing_is_captured_or_counted_or_buffered() {
    let mut eager = Eager::acquire().unwrap();
    let manager = GraphManager::new();
    let off = GraphFunctionConfig { mode: GraphMode::Off, ..config(1, 8) };
    let mut graphs = [Graphs::<Fake>::new(off, &manager), Graphs::new(config(1, 8), &manager)];
    manager.set_mode(GraphMode::Off);
    let x = matrix(2, 0);
    for graphs in &mut graphs {
        for _ in 0..3 {
            assert_eq!(contents(&graphs.call(&mut eager, &[&x], &mut affine).unwrap()), expected(&[&x]));
        }
        assert_eq!(graphs.last_refusal(&[&x]), Some(&Refusal::SwitchedOff));
        assert_eq!(graphs.executor.num_warming(), 0);
    }
    assert_eq!(steps(), []);
    assert_eq!(manager.totals(), Default::default());

    manager.set_mode(GraphMode::Auto);
    for graphs in &mut graphs {
        graphs.call(&mut eager, &[&x], &mut affine).unwrap();
    }
    assert_eq!(steps(), [Step::Warm, Step::Capture]);
    assert_eq!(graphs[1].last_refusal(&[&x]), None);
}

#[test]
fn an_error_of_the_function_is_returned_and_ends_no_warm_up() {
    let mut eager = Eager::acquire().unwrap();
    let mut graphs = fake(2);
    let x = matrix(2, 0);
    graphs.call(&mut eager, &[&x], &mut affine).unwrap();
    let mut failing = |_: &[Tensor]| candle_core::bail!("planted");
    assert!(graphs.call(&mut eager, &[&x], &mut failing).unwrap_err().to_string().starts_with("planted"));
    assert_eq!(steps(), [Step::Warm, Step::Warm]);
    graphs.call(&mut eager, &[&x], &mut affine).unwrap();
    assert_eq!(steps(), [Step::Warm, Step::Capture]);

    let mut function = GraphFunction::new(failing, GraphFunctionConfig::default(), &GraphManager::new());
    for _ in 0..2 {
        assert!(function.call(&mut eager, &[&x]).unwrap_err().to_string().starts_with("planted"));
        assert!(function.call_in_place(&mut eager, &[&x]).unwrap_err().to_string().starts_with("planted"));
    }
}

#[test]
fn a_function_that_fails_only_when_it_is_recorded_is_refused() {
    let mut eager = Eager::acquire().unwrap();
    let (mut graphs, num_runs) = (fake(2), Cell::new(0));
    let mut moody = |inputs: &[Tensor]| {
        num_runs.set(num_runs.get() + 1);
        if num_runs.get() == 3 { candle_core::bail!("not now") } else { affine(inputs) }
    };
    for seed in 0..4 {
        let x = matrix(2, seed);
        assert_eq!(contents(&graphs.call(&mut eager, &[&x], &mut moody).unwrap()), expected(&[&x]));
    }
    assert_eq!(graphs.last_refusal(&[&matrix(2, 0)]).map(Refusal::name), Some("region_failed"));
    assert_eq!(graphs.stats().total.fallbacks, 3);
}

#[test]
fn results_whose_number_or_shape_changes_are_right_and_refuse_the_capture() {
    let longer = |run: usize| vec![vector(&[run as f32]); run];
    let wider = |run: usize| vec![vector(&vec![run as f32; run])];
    let functions: [fn(usize) -> Vec<Tensor>; 2] = [longer, wider];
    for make in functions {
        let mut eager = Eager::acquire().unwrap();
        let (mut graphs, run) = (fake(2), Cell::new(0));
        let mut changing = |_: &[Tensor]| {
            run.set(run.get() + 1);
            Ok(make(run.get()))
        };
        let x = matrix(2, 0);
        // The third run is the refused recording.
        for wanted in [1, 2, 4, 5] {
            let found = graphs.call(&mut eager, &[&x], &mut changing).unwrap();
            assert_eq!(contents(&found), contents(&make(wanted)));
        }
        assert_eq!(graphs.last_refusal(&[&x]).map(Refusal::name), Some("region_failed"));
    }
}

#[test]
fn without_inputs_there_is_nothing_to_capture_on() {
    let mut eager = Eager::acquire().unwrap();
    let mut graphs = fake(1);
    let mut constant = |_: &[Tensor]| Ok(vec![vector(&[1.0])]);
    for _ in 0..2 {
        assert_eq!(contents(&graphs.call(&mut eager, &[], &mut constant).unwrap()), contents(&[vector(&[1.0])]));
    }
    assert_eq!(steps(), []);
    assert_eq!(graphs.last_refusal(&[]).map(Refusal::name), Some("unsupported"));
}

#[test]
fn a_call_under_a_foreign_capture_fails() {
    let mut eager = Eager::acquire().unwrap();
    let mut graphs = fake(1);
    let declared = leyline::region::declare_recording();
    assert!(graphs.call(&mut eager, &[&matrix(1, 0)], &mut affine).is_err());
    drop(declared);
    assert!(graphs.call(&mut eager, &[&matrix(1, 0)], &mut affine).is_ok());
}

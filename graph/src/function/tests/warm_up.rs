//! When a shape is warmed up, captured and replayed, and when it is forgotten.

use std::cell::Cell;

use candle_core::{DType, Tensor};
use leyline::region::Eager;

use super::device::{Fake, Step, steps};
use super::{affine, config, contents, expected, fake, matrix};
use crate::function::Graphs;
use crate::key::Precision;
use crate::manager::GraphManager;
use crate::precision::{half, rounded_once, with_precision};

#[test]
fn a_shape_is_captured_in_the_last_call_of_its_warm_up_and_replayed_from_then_on() {
    for warmup_calls in 1..4 {
        let mut eager = Eager::acquire().unwrap();
        let (mut graphs, num_runs) = (fake(warmup_calls), Cell::new(0));
        let mut counted = |inputs: &[Tensor]| {
            num_runs.set(num_runs.get() + 1);
            affine(inputs)
        };
        for call in 1..=warmup_calls + 3 {
            let x = matrix(2, u64::from(call));
            let found = graphs.call(&mut eager, &[&x], &mut counted).unwrap();
            assert_eq!(contents(&found), expected(&[&x]), "call {call} with {warmup_calls} for warm-up");
            let wanted: &[Step] = match call {
                _ if call < warmup_calls => &[Step::Warm],
                _ if call == warmup_calls => &[Step::Warm, Step::Capture],
                _ => &[Step::Replay],
            };
            assert_eq!(steps(), wanted, "call {call} with {warmup_calls} for warm-up");
        }
        // Once per eager call, once for the recording, and once for each of two tests.
        assert_eq!(num_runs.get(), warmup_calls + 3);
        let total = graphs.stats().total;
        assert_eq!((total.captures, total.replays, total.fallbacks), (1, 3, 0));
    }
}

#[test]
fn each_shape_and_type_has_a_warm_up_and_a_graph_of_its_own() {
    let mut eager = Eager::acquire().unwrap();
    let mut graphs = fake(2);
    let inputs = [matrix(1, 0), matrix(2, 0), matrix(1, 0).to_dtype(DType::F64).unwrap()];
    for _ in 0..2 {
        for x in &inputs {
            graphs.call(&mut eager, &[x], &mut affine).unwrap();
        }
    }
    let captured = [Step::Warm, Step::Capture];
    assert_eq!(steps(), [&[Step::Warm; 3][..], &captured, &captured, &captured].concat());
    assert_eq!(graphs.stats().entries, 3);
}

#[test]
fn a_graph_of_another_thread_is_captured_anew() {
    let x = matrix(2, 0);
    let mut graphs = std::thread::scope(|scope| {
        let captured = || {
            let mut graphs = fake(2);
            let mut eager = Eager::acquire().unwrap();
            for _ in 0..3 {
                graphs.call(&mut eager, &[&x], &mut affine).unwrap();
            }
            assert_eq!(steps().last(), Some(&Step::Replay));
            graphs
        };
        scope.spawn(captured).join().unwrap()
    });
    let mut eager = Eager::acquire().unwrap();
    for _ in 0..3 {
        assert_eq!(contents(&graphs.call(&mut eager, &[&x], &mut affine).unwrap()), expected(&[&x]));
    }
    assert_eq!(steps(), [Step::Warm, Step::Warm, Step::Capture, Step::Replay]);
}

#[test]
fn a_warm_up_may_begin_on_one_thread_and_end_on_another() {
    let x = matrix(2, 0);
    let mut graphs = std::thread::scope(|scope| {
        let begun = || {
            let mut graphs = fake(2);
            graphs.call(&mut Eager::acquire().unwrap(), &[&x], &mut affine).unwrap();
            graphs
        };
        scope.spawn(begun).join().unwrap()
    });
    graphs.call(&mut Eager::acquire().unwrap(), &[&x], &mut affine).unwrap();
    assert_eq!(steps(), [Step::Warm, Step::Capture]);
}

#[test]
fn what_is_forgotten_is_warmed_up_again() {
    let forget: [fn(&mut Graphs<Fake>, &Tensor); 3] = [
        |graphs, x| assert!(graphs.invalidate(&[x])),
        |graphs, _| assert_eq!(graphs.clear(), 1),
        |graphs, _| graphs.manager.invalidate_all(),
    ];
    for forget in forget {
        let mut eager = Eager::acquire().unwrap();
        let mut graphs = fake(2);
        let x = matrix(2, 0);
        for _ in 0..2 {
            steps();
            for _ in 0..3 {
                graphs.call(&mut eager, &[&x], &mut affine).unwrap();
            }
            assert_eq!(steps(), [Step::Warm, Step::Warm, Step::Capture, Step::Replay]);
            forget(&mut graphs, &x);
        }
        assert_eq!(graphs.stats().total.captures, 2);
    }
}

#[test]
fn a_warm_up_that_is_forgotten_begins_again() {
    let forget: [fn(&mut Graphs<Fake>, &Tensor); 2] =
        [|graphs, x| assert!(!graphs.invalidate(&[x])), |graphs, _| assert_eq!(graphs.clear(), 0)];
    for forget in forget {
        let mut eager = Eager::acquire().unwrap();
        let mut graphs = fake(2);
        let x = matrix(2, 0);
        graphs.call(&mut eager, &[&x], &mut affine).unwrap();
        forget(&mut graphs, &x);
        steps();
        graphs.call(&mut eager, &[&x], &mut affine).unwrap();
        assert_eq!(steps(), [Step::Warm]);
    }
}

#[test]
fn the_shape_that_was_warmed_up_longest_ago_makes_room() {
    let mut eager = Eager::acquire().unwrap();
    let mut graphs = Graphs::<Fake>::new(config(2, 2), &GraphManager::new());
    // 1, 2, 1 captured; 2, 3 in warm-up; 4 takes the place of 2.
    for rows in [1, 2, 1, 3, 4] {
        graphs.call(&mut eager, &[&matrix(rows, 0)], &mut affine).unwrap();
    }
    assert_eq!(graphs.stats().entries, 1);
    steps();
    for rows in [3, 2] {
        graphs.call(&mut eager, &[&matrix(rows, 0)], &mut affine).unwrap();
    }
    assert_eq!(steps(), [Step::Warm, Step::Capture, Step::Warm]);
}

#[test]
fn a_scope_of_another_precision_has_a_graph_of_its_own_in_which_weights_are_rounded() {
    let mut eager = Eager::acquire().unwrap();
    let (mut graphs, num_rounded) = (fake(1), Cell::new(0));
    let (x, weight) = (matrix(2, 0), matrix(3, 1));
    let mut product = |inputs: &[Tensor]| {
        let round = |weight: &Tensor| {
            num_rounded.set(num_rounded.get() + 1);
            weight.to_dtype(DType::F16)
        };
        let weight = if half().is_some() { rounded_once(&weight, DType::F16, round)? } else { weight.clone() };
        Ok(vec![inputs[0].matmul(&weight.to_dtype(DType::F32)?)?])
    };
    let mut call = || graphs.call(&mut eager, &[&x], &mut product).unwrap();
    call();
    assert_eq!(steps(), [Step::Warm, Step::Capture]);
    // What a graph reads outlives the scope.
    with_precision(Precision::F16, &mut call);
    assert_eq!((steps(), num_rounded.get()), (vec![Step::Warm, Step::Capture], 2));
    call();
    assert_eq!(steps(), [Step::Replay]);
}

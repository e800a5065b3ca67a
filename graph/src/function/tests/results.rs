//! What a call returns, whether it ran or was replayed.

use candle_core::{DType, Device, IndexOp as _, Result, Tensor, Var};
use leyline::region::Eager;
use proptest::prelude::*;

use super::device::{Fake, replay_with};
use super::{affine, calls, cases, config, contents, expected, fake, identity, matrix};
use crate::function::{GraphFunctionConfig, Graphs};
use crate::manager::{GraphManager, GraphMode};

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn with_any_order_of_shapes_every_call_is_that_of_the_function(
        calls in calls(),
        warmup_calls in 1_u32..4,
        limit in 1_usize..4,
    ) {
        let mut eager = Eager::acquire().unwrap();
        let mut graphs = Graphs::<Fake>::new(config(warmup_calls, limit), &GraphManager::new());
        let mut kept: Vec<(Tensor, Vec<Tensor>)> = Vec::new();
        for (rows, seed, in_place) in calls {
            let x = matrix(rows, seed);
            if in_place {
                let found = contents(graphs.call_in_place(&mut eager, &[&x], &mut affine).unwrap());
                prop_assert_eq!(found, expected(&[&x]));
            } else {
                let results = graphs.call(&mut eager, &[&x], &mut affine).unwrap();
                kept.push((x, results));
            }
            prop_assert!(graphs.stats().entries <= limit && graphs.executor.num_warming() <= limit);
        }
        for (x, results) in kept {
            prop_assert_eq!(contents(&results), expected(&[&x]));
        }
    }
}

#[test]
fn a_later_call_changes_results_in_place_and_no_others() {
    replay_with(identity);
    let mut eager = Eager::acquire().unwrap();
    let mut graphs = fake(2);
    let inputs: Vec<Tensor> = (0..5).map(|seed| matrix(2, seed)).collect();
    let fresh: Vec<Tensor> =
        inputs.iter().map(|x| graphs.call(&mut eager, &[x], &mut identity).unwrap().remove(0)).collect();
    assert_eq!(contents(&fresh), contents(&inputs));

    let shared = graphs.call_in_place(&mut eager, &[&inputs[0]], &mut identity).unwrap()[0].clone();
    assert_eq!(contents(std::slice::from_ref(&shared)), contents(&inputs[..1]));
    graphs.call(&mut eager, &[&inputs[1]], &mut identity).unwrap();
    assert_eq!(contents(std::slice::from_ref(&shared)), contents(&inputs[1..2]));
    // A static output is an input like any other.
    let found = graphs.call(&mut eager, &[&shared], &mut identity).unwrap();
    assert_eq!(contents(&found), contents(&inputs[1..2]));
}

#[test]
fn inputs_of_any_strides_rank_and_type_are_copied_right() {
    replay_with(identity);
    let grid = Tensor::arange(0_u32, 24, &Device::Cpu).unwrap().reshape((4, 6)).unwrap();
    let layouts: [fn(&Tensor) -> Result<Tensor>; 6] = [
        |grid| Ok(grid.clone()),
        Tensor::t,
        |grid| grid.i((1..3, 2..5)),
        |grid| grid.i((2, 3)),
        |grid| grid.i(1)?.broadcast_as((3, 6)),
        |grid| grid.i((0..0, ..)),
    ];
    for dtype in [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64, DType::F16, DType::BF16, DType::F64] {
        for (index, layout) in layouts.iter().enumerate() {
            let mut eager = Eager::acquire().unwrap();
            let mut graphs = fake(1);
            for offset in 0..3 {
                // No multiplication: not every type has one.
                let shifted = (&grid + f64::from(offset)).unwrap();
                let x = layout(&shifted.to_dtype(dtype).unwrap()).unwrap();
                let found = graphs.call(&mut eager, &[&x, &x], &mut identity).unwrap();
                assert_eq!(contents(&found), contents(&[x.clone(), x]), "{dtype:?}, layout {index}, offset {offset}");
            }
            assert_eq!(graphs.stats().total.replays, 2, "{dtype:?}, layout {index}");
        }
    }
}

#[test]
fn no_gradient_flows_through_a_result() {
    let mut eager = Eager::acquire().unwrap();
    let mut graphs = fake(2);
    let weight = Var::from_tensor(&matrix(3, 0)).unwrap();
    let mut product = |inputs: &[Tensor]| Ok(vec![inputs[0].matmul(&weight)?]);
    replay_with(identity);
    let x = Var::from_tensor(&matrix(3, 1)).unwrap();
    let off = GraphFunctionConfig { mode: GraphMode::Off, ..GraphFunctionConfig::default() };
    let mut eager_only = Graphs::<Fake>::new(off, &GraphManager::new());
    for _ in 0..3 {
        assert!(!graphs.call(&mut eager, &[&x], &mut product).unwrap()[0].track_op());
        assert!(!eager_only.call(&mut eager, &[&x], &mut product).unwrap()[0].track_op());
    }
}

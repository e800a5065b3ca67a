//! Parameters of `bf16` that are rounded at random: on average they go where those of `f32` go, and the same way wherever they are.

use candle_core::{DType, Device, Tensor};
use leyline::durable::Durable;
use leyline::layout::ParameterLayout;
use leyline::region::Eager;

use super::super::{Optimizer, OptimizerConfig, Rounding};
use super::halves::halved;
use super::{ALL, LION, PLAIN, RATE, Setup, setup};
use crate::testing::{HOST, bits, flat, layout, parameters, random, saved_state, seed, values, vector};

/// Enough for threads.
const MANY: usize = 100_003;

fn drawn(config: OptimizerConfig, layout: ParameterLayout, start: &[f32]) -> Setup {
    let parameters = halved(&parameters(&layout, start));
    Setup { parameters, layout, optimizer: Optimizer::new(config).rounding(Rounding::Stochastic) }
}

fn of_many(config: OptimizerConfig) -> Setup {
    let single = setup(config, &[("b", MANY)]);
    drawn(config, single.layout.clone(), &flat(&single.parameters))
}

#[test]
fn on_average_numbers_go_where_those_of_single_precision_go() {
    for config in ALL {
        let mut half = of_many(config);
        let mut single = Setup { optimizer: Optimizer::new(config), ..setup(config, &[("b", MANY)]) };
        single.parameters = parameters(&half.layout, &flat(&half.parameters));
        let start = flat(&single.parameters);
        for step in 0..10 {
            let gradient: Vec<f32> = single.gradient(step).iter().map(|g| g * 0.01).collect();
            half.step(&gradient);
            single.step(&gradient);
        }
        let (found, expected) = (flat(&half.parameters), flat(&single.parameters));
        assert_eq!(half.optimizer.states["b"].steps, 10);
        // In units of the last of 8 bits of a number near 1.
        let off: Vec<f64> = found.iter().zip(&expected).map(|(a, b)| f64::from(a - b) * 128.0).collect();
        let mean = off.iter().sum::<f64>() / off.len() as f64;
        let astray = off.iter().filter(|off| off.abs() > 11.0).count();
        // Ten roundings of a deviation of at most half a place each, over so many numbers. Lion takes the sign of a momentum, which rounding
        // can change where it is next to 0: a step of eight places.
        assert!(mean.abs() < 6.0 * 1.6 / (MANY as f64).sqrt(), "{config:?}: {mean}");
        assert!(astray <= off.len() / if config == LION { 10_000 } else { usize::MAX }, "{config:?}: {astray}");
        assert_ne!(bits(&found), bits(&start), "{config:?}");
    }
}

#[test]
fn updates_far_below_the_last_place_move_a_part_of_the_numbers() {
    let layout = layout(&[("w", 4096, HOST, false)]);
    let mut setup = drawn(PLAIN, layout, &[1.0; 4096]);
    // A hundred updates of a thousandth of the last place.
    for _ in 0..100 {
        let gradient = vector(&[-1e-3 / 128.0; 4096]);
        setup.optimizer.step(&setup.parameters, &setup.layout, &gradient, 1.0).unwrap();
    }
    let moved =
        values(&setup.parameters[0].var).iter().map(|value| f64::from(value - 1.0) * 128.0).sum::<f64>() / 4096.0;
    // A tenth of a place; the deviation of a mean of 4096 of them is 0.005.
    assert!((moved - 0.1).abs() < 0.03, "{moved}");
}

#[test]
fn draws_are_of_a_name_and_a_place_in_it_and_of_nothing_else() {
    for config in ALL {
        let one = of_many(config);
        let number = |of: &Setup| of.layout.segments().iter().position(|segment| segment.spec.name == "b").unwrap();
        let b = flat(&one.parameters[number(&one)..=number(&one)]);
        // Elsewhere among others, where no four numbers stand together as before.
        let segments = [("a", 2, HOST, false), ("b", MANY, seed(1), false)];
        let alone = drawn(config, layout(&segments), &[&random(2, 3), &b[..]].concat());
        let mut all = [one, alone];
        for step in 0..3 {
            for setup in &mut all {
                let (at, gradient) = (number(setup), random(MANY, 900 + step));
                let mut whole = vec![0.5; setup.layout.num_elements()];
                let offset = setup.layout.segments()[at].offset;
                whole[offset..offset + MANY].copy_from_slice(&gradient);
                setup.step(&whole);
            }
            let [found, expected] = all.each_ref().map(|of| bits(&flat(&of.parameters[number(of)..=number(of)])));
            assert_eq!(found, expected, "{config:?}");
        }
    }
}

#[test]
fn a_restored_optimizer_continues_bit_for_bit_and_keeps_nothing_of_rounding() {
    for config in ALL {
        let small = |rounding| {
            let single = setup(config, &[("b", 2100)]);
            let setup = drawn(config, single.layout.clone(), &flat(&single.parameters));
            Setup { optimizer: Optimizer::new(config).rounding(rounding), ..setup }
        };
        let [mut straight, mut kept] = [Rounding::Stochastic, Rounding::Compensated].map(small);
        let gradient = straight.gradient(0);
        straight.step(&gradient);
        kept.step(&gradient);
        let saved = saved_state(&straight.optimizer);
        assert!(saved.tensors.values().all(|tensor| tensor.dtype() == DType::BF16), "{config:?}");
        let halfway = flat(&straight.parameters);
        straight.step(&gradient);
        let mut resumed = drawn(config, straight.layout.clone(), &halfway);
        resumed.optimizer.restore(&mut Eager::acquire().unwrap(), &saved).unwrap();
        resumed.step(&gradient);
        assert_eq!(bits(&flat(&resumed.parameters)), bits(&flat(&straight.parameters)), "{config:?}");

        // What one has learned is refused by the other, before anything moves.
        for (of, saved) in [(&mut kept, saved), (&mut straight, saved_state(&small_step(config)))] {
            of.optimizer.restore(&mut Eager::acquire().unwrap(), &saved).unwrap();
            let before = flat(&of.parameters);
            let error =
                of.optimizer.step(&of.parameters, &of.layout, &vector(&gradient), RATE).unwrap_err().to_string();
            assert!(error.contains("optimizer state of `a`") && error.contains("I16 [3]"), "{error}");
            assert_eq!(bits(&flat(&of.parameters)), bits(&before));
        }
    }
}

/// One that keeps what rounding leaves over, after a step.
fn small_step(config: OptimizerConfig) -> Optimizer {
    let single = setup(config, &[("b", 2100)]);
    let mut half = Setup { parameters: halved(&single.parameters), ..single };
    let gradient = half.gradient(0);
    half.step(&gradient);
    half.optimizer
}

#[test]
fn numbers_that_need_no_rounding_stay() {
    let layout = layout(&[("w", 4, HOST, false)]);
    let start = [1.0_f32, -0.0, 0.75, -3.0];
    let setup = drawn(PLAIN, layout, &start);
    let mut optimizer = setup.optimizer;
    let zeros = Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap();
    for _ in 0..64 {
        optimizer.step(&setup.parameters, &setup.layout, &zeros, 1.0).unwrap();
    }
    assert_eq!(bits(&values(&setup.parameters[0].var)), bits(&start));
}

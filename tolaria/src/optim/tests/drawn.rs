//! Parameters of `bf16` that are rounded at random: on average they go where those of `f32` go, and the same way wherever they are.

use candle_core::{DType, Device, Tensor};
use half::bf16;
use leyline::durable::Durable;
use leyline::layout::{ParameterLayout, SegmentSpec};
use leyline::region::Eager;

use super::super::rounding::DrawKey;
use super::super::{Optimizer, OptimizerConfig, Rounding};
use super::halves::halved;
use super::{ADAM_W, ALL, LION, MUON, PLAIN, RATE, Setup, setup};
use crate::cpu::with_threads;
use crate::testing::{HOST, bits, flat, layout, parameters, random, saved_state, seed, values, vector};

/// Enough for threads.
const MANY: usize = 180_001;

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
        assert!(astray <= if config == LION { 10 } else { 0 }, "{config:?}: {astray}");
        assert_ne!(bits(&found), bits(&start), "{config:?}");
    }
}

/// The parameter, and each moment, by a stream of its own, from its first number to its last.
#[test]
fn every_number_is_rounded_by_what_is_drawn_for_its_place() {
    for config in ALL {
        for num_threads in [1, 3] {
            let mut half = of_many(config);
            let mut single = Setup { optimizer: Optimizer::new(config), ..setup(config, &[("b", MANY)]) };
            single.parameters = parameters(&half.layout, &flat(&half.parameters));
            let gradient = half.gradient(0);
            with_threads(num_threads, || [&mut half, &mut single].into_iter().for_each(|of| of.step(&gradient)));
            let at = half.layout.segments().iter().position(|segment| segment.spec.name == "b").unwrap();
            let of = |setup: &Setup| {
                let moments = setup.optimizer.moments_of("b").map_or_else(Vec::new, values);
                [vec![values(&setup.parameters[at].var)], moments.chunks(MANY).map(<[f32]>::to_vec).collect()].concat()
            };
            for (stream, (found, exact)) in (0..).zip(of(&half).iter().zip(of(&single))) {
                let mut expected = vec![bf16::ZERO; MANY];
                DrawKey::of("b").draw(1).round(stream, 0, &exact, &mut expected);
                let expected: Vec<f32> = expected.into_iter().map(bf16::to_f32).collect();
                assert_eq!(bits(found), bits(&expected), "{config:?}, {num_threads} threads, {stream}");
            }
        }
    }
}

/// Rounded to the nearest, each of so small steps would leave it where it is.
#[test]
fn moments_that_decay_slowly_decay() {
    let OptimizerConfig::AdamW { beta1, eps, .. } = ADAM_W else { unreachable!("it is one of AdamW") };
    let config = OptimizerConfig::AdamW { beta1, beta2: 0.999, eps, weight_decay: 0.0 };
    let mut setup = drawn(config, layout(&[("w", 4096, HOST, false)]), &[1.0; 4096]);
    // Mean and deviation.
    let second = |setup: &Setup| {
        let moments = values(setup.optimizer.states["w"].moments.as_ref().unwrap());
        let mean = |of: &dyn Fn(f64) -> f64| moments[4096..].iter().map(|x| of(f64::from(*x))).sum::<f64>() / 4096.0;
        let center = mean(&|x| x);
        (center, mean(&|x| (x - center).powi(2)).sqrt())
    };
    setup.step(&[32.0; 4096]);
    let (first, _) = second(&setup);
    (0..300).for_each(|_| setup.step(&[0.0; 4096]));
    let (decayed, noise) = second(&setup);
    assert!((decayed / first - 0.999_f64.powi(300)).abs() < 0.005, "{decayed}");
    // What `docs/training.md` calls some percent.
    assert!((0.02..0.08).contains(&(noise / decayed)), "{noise} of {decayed}");
}

#[test]
fn matrices_are_made_orthogonal_and_go_on_from_a_state_bit_for_bit() {
    let shape = |layout: &ParameterLayout| {
        let specs = layout.segments().iter().map(|of| SegmentSpec { shape: vec![24, 40], ..of.spec.clone() });
        ParameterLayout::new(layout.revision(), specs.collect()).unwrap()
    };
    let new = |start: &[f32]| {
        let mut setup = drawn(MUON, layout(&[("w", 960, HOST, false)]), start);
        setup.layout = shape(&setup.layout);
        setup
    };
    let mut straight = new(&random(960, 5));
    let gradient = random(960, 6);
    straight.step(&gradient);
    let moments = straight.optimizer.states["w"].moments.clone().unwrap();
    assert_eq!(moments.dtype(), DType::BF16);
    let squares: f32 = values(&moments)[960..].iter().map(|x| x * x).sum();
    // 24 singular values near 1.
    assert!((12.0..36.0).contains(&squares), "{squares}");
    let (saved, halfway) = (saved_state(&straight.optimizer), flat(&straight.parameters));
    let mut resumed = new(&halfway);
    resumed.optimizer.restore(&mut Eager::acquire().unwrap(), &saved).unwrap();
    [&mut straight, &mut resumed].into_iter().for_each(|of| of.step(&gradient));
    assert_eq!(bits(&flat(&resumed.parameters)), bits(&flat(&straight.parameters)));
    assert_ne!(bits(&flat(&resumed.parameters)), bits(&halfway));
    straight.optimizer.step(&straight.parameters, &straight.layout, &vector(&gradient), 0.0).unwrap();
    assert_eq!(bits(&flat(&resumed.parameters)), bits(&flat(&straight.parameters)), "at rate 0 nothing moves");
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
            assert!(error.contains("optimizer state of `a`") && error.contains("I16 [3] (`bf16_pure`)"), "{error}");
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

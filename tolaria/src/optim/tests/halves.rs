//! Parameters of `bf16`: no update is too small for them, and nothing but their upper half is rounded.

use candle_core::{DType, Device, Tensor, Var};
use leyline::durable::Durable;
use leyline::model::Parameter;
use leyline::region::Eager;

use super::super::Optimizer;
use super::super::halves::halves;
use super::{ADAM_W, ALL, PLAIN, RATE, Setup, setup};
use crate::testing::{HOST, bits, flat, layout, parameters, saved_state, values, vector};

/// The same numbers as far as `bf16` holds them.
pub(super) fn halved(of: &[Parameter]) -> Vec<Parameter> {
    let half = |parameter: &Parameter| {
        Var::from_tensor(&parameter.var.as_detached_tensor().to_dtype(DType::BF16).unwrap()).unwrap()
    };
    of.iter().map(|parameter| Parameter { var: half(parameter), ..parameter.clone() }).collect()
}

/// Two optimizers of one configuration, of parameters that start with the same numbers: of `bf16`, and of `f32`.
fn pair(config: super::OptimizerConfig) -> [Setup; 2] {
    let [mut half, mut single] = [setup(config, &[("b", 2100)]), setup(config, &[("b", 2100)])];
    half.parameters = halved(&half.parameters);
    let start: Vec<f32> = half.parameters.iter().flat_map(|parameter| values(&parameter.var)).collect();
    single.parameters = parameters(&single.layout, &start);
    [half, single].map(|setup| Setup { optimizer: Optimizer::new(config).averaging(Some(0.99)), ..setup })
}

#[test]
fn both_halves_are_the_single_precision_that_the_same_gradients_make() {
    for config in ALL {
        let [mut half, mut single] = pair(config);
        for step in 0..20 {
            let gradient = single.gradient(step);
            half.step(&gradient);
            single.step(&gradient);
            for (upper, number) in half.parameters.iter().zip(&single.parameters) {
                let (found, exact) = (values(&upper.var), values(&number.var));
                let (high, low): (Vec<_>, Vec<_>) = exact.into_iter().map(halves).unzip();
                assert_eq!(
                    bits(&found),
                    bits(&high.iter().map(|high| high.to_f32()).collect::<Vec<_>>()),
                    "{config:?}"
                );
                let rest = half.optimizer.states[&upper.name].rest.as_ref().unwrap();
                assert_eq!(values(rest), low.into_iter().map(f32::from).collect::<Vec<_>>(), "{config:?}");
            }
        }
    }
}

#[test]
fn a_thousand_updates_of_a_thousandth_of_the_last_place_move_it_by_one_and_without_a_rest_by_none() {
    let layout = layout(&[("w", 4, HOST, false)]);
    let start = [1.0_f32, -1.5, 0.75, 100.0];
    // The last place of eight bits.
    let places = [1.0_f32 / 128.0, 1.0 / 128.0, 1.0 / 256.0, 0.5];
    let half = halved(&parameters(&layout, &start));
    let gradient: Vec<f32> = places.iter().map(|place| place * -1e-3).collect();
    let mut optimizer = Optimizer::new(PLAIN);
    let plain = Tensor::new(&start, &Device::Cpu).unwrap().to_dtype(DType::BF16).unwrap();
    let mut stalled = plain.clone();
    for _ in 0..1000 {
        optimizer.step(&half, &layout, &vector(&gradient), 1.0).unwrap();
        stalled = (&stalled - vector(&gradient).to_dtype(DType::BF16).unwrap()).unwrap();
    }
    assert_eq!(values(&stalled), start, "without what is left over nothing changes");
    let moved = values(&half[0].var);
    for ((start, place), moved) in start.iter().zip(places).zip(moved) {
        // Of `f32` a thousand additions, each rounded to 2^-17 of the place: within a hundredth of it; seen in whole places.
        assert!((moved - start - place).abs() < 0.01 * place, "{start} became {moved}");
    }
}

#[test]
fn averages_move_by_less_than_the_last_place_and_are_exchanged_without_losing_a_bit() {
    let [mut half, mut single] = pair(ADAM_W);
    for step in 0..200 {
        let gradient = single.gradient(step % 3);
        half.step(&gradient);
        single.step(&gradient);
    }
    let of = |setup: &Setup| {
        let before: Vec<f32> = setup.parameters.iter().flat_map(|parameter| values(&parameter.var)).collect();
        let saved = saved_state(&setup.optimizer);
        setup.optimizer.exchange_averages(&setup.parameters).unwrap();
        let averages: Vec<f32> = setup.parameters.iter().flat_map(|parameter| values(&parameter.var)).collect();
        setup.optimizer.exchange_averages(&setup.parameters).unwrap();
        let after: Vec<f32> = setup.parameters.iter().flat_map(|parameter| values(&parameter.var)).collect();
        assert_eq!((bits(&after), saved_state(&setup.optimizer).json), (bits(&before), saved.json));
        averages
    };
    for (found, expected) in of(&half).into_iter().zip(of(&single)) {
        // The average is of upper halves, each within 2^-9 of its number, and is rounded once itself.
        assert!((found - expected).abs() <= 0.01 * expected.abs().max(0.1), "{found} against {expected}");
    }
}

#[test]
fn a_restored_optimizer_continues_bit_for_bit_and_one_of_another_type_is_refused() {
    for config in ALL {
        let [mut straight, mut single] = pair(config);
        let gradient = straight.gradient(0);
        straight.step(&gradient);
        let (saved, kept) = (saved_state(&straight.optimizer), halved(&straight.parameters));
        straight.step(&gradient);
        let mut resumed = Setup { parameters: kept, ..setup(config, &[("b", 2100)]) };
        resumed.optimizer = Optimizer::new(config).averaging(Some(0.99));
        resumed.optimizer.restore(&mut Eager::acquire().unwrap(), &saved).unwrap();
        resumed.step(&gradient);
        let [found, expected] = [&resumed, &straight].map(|setup| saved_state(&setup.optimizer));
        assert_eq!(found.json, expected.json);
        for (name, tensor) in &expected.tensors {
            assert_eq!(bits(&values(&found.tensors[name])), bits(&values(tensor)), "{config:?}: {name}");
        }
        single.optimizer.restore(&mut Eager::acquire().unwrap(), &saved).unwrap();
        let before = flat(&single.parameters);
        let error = single.optimizer.step(&single.parameters, &single.layout, &vector(&gradient), RATE).unwrap_err();
        assert!(error.to_string().contains("I16"), "{error}");
        assert_eq!(bits(&flat(&single.parameters)), bits(&before));
    }
}

#[test]
fn a_rest_that_does_not_fit_is_refused() {
    let [mut half, _] = pair(PLAIN);
    let gradient = half.gradient(0);
    half.step(&gradient);
    let mut saved = saved_state(&half.optimizer);
    let wrong = Tensor::zeros((1, 3), DType::I16, &Device::Cpu).unwrap();
    saved.tensors.insert("rest of a".to_owned(), wrong);
    let error = half.optimizer.restore(&mut Eager::acquire().unwrap(), &saved).unwrap_err();
    assert!(error.to_string().contains("rest of `a`: expected I16 of shape (elements), found I16 [1, 3]"), "{error}");

    let [mut half, _] = pair(PLAIN);
    half.step(&gradient);
    let mut saved = saved_state(&half.optimizer);
    let wrong = Tensor::zeros(3, DType::I16, &Device::Cpu).unwrap();
    assert!(saved.tensors.insert("rest of average of b".to_owned(), wrong).is_some());
    half.optimizer.restore(&mut Eager::acquire().unwrap(), &saved).unwrap();
    let error = half.optimizer.step(&half.parameters, &half.layout, &vector(&gradient), RATE).unwrap_err();
    assert!(error.to_string().contains("average of `b`"), "{error}");
}

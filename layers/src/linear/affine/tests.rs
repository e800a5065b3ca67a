//! Tests of the linear layer on the CPU.

use candle_core::{Device, Tensor, Var};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::linear::{Activation, Precision};

const ACTIVATIONS: [Activation; 4] = [Activation::None, Activation::Relu, Activation::Gelu, Activation::GeluErf];
const ORDERS: [WeightOrder; 2] = [WeightOrder::InOut, WeightOrder::OutIn];

/// Candle's derivatives of both forms of `gelu` have constants of six digits.
const GRADIENT_ERROR: f64 = 5e-6;

fn random(shape: &[usize], rng: &mut ChaCha8Rng) -> Var {
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
    Var::from_vec(values, shape, &Device::Cpu).unwrap()
}

#[expect(clippy::disallowed_methods, reason = "a test reads what it compares")]
fn read(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn weight_shape(inputs: usize, outputs: usize, order: WeightOrder) -> [usize; 2] {
    match order {
        WeightOrder::InOut => [inputs, outputs],
        WeightOrder::OutIn => [outputs, inputs],
    }
}

fn activate(z: f64, activation: Activation) -> f64 {
    match activation {
        Activation::None => z,
        Activation::Relu => z.max(0.0),
        Activation::Gelu => {
            0.5 * z * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (z + 0.044_715 * z.powi(3))).tanh())
        }
        Activation::GeluErf => z * normal_distribution(z),
    }
}

/// Φ by Simpson's rule.
fn normal_distribution(z: f64) -> f64 {
    let density = |t: f64| (-0.5 * t * t).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let steps = 2000;
    let width = z / f64::from(steps);
    let weight = |step: i32| {
        if step == 0 || step == steps {
            1.0
        } else if step % 2 == 1 {
            4.0
        } else {
            2.0
        }
    };
    0.5 + (0..=steps).map(|step| weight(step) * density(f64::from(step) * width)).sum::<f64>() * width / 3.0
}

/// Outputs against the definition, gradients against differences.
#[track_caller]
fn check(leading: &[usize], inputs: usize, outputs: usize, has_bias: bool, options: LinearOptions) {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let x = random(&[leading, &[inputs]].concat(), &mut rng);
    let weight = random(&weight_shape(inputs, outputs, options.order), &mut rng);
    let bias = has_bias.then(|| random(&[outputs], &mut rng));
    let evaluate = || linear(&x, &weight, bias.as_deref(), &options).unwrap();
    let output = evaluate();
    assert_eq!(output.dims(), [leading, &[outputs]].concat());

    let (xs, ws) = (read(&x), read(&weight));
    let biases = bias.as_ref().map_or(vec![0.0; outputs], |bias| read(bias));
    for (at, found) in read(&output).into_iter().enumerate() {
        let (row, column) = (at / outputs, at % outputs);
        let weight_at = |input: usize| match options.order {
            WeightOrder::InOut => ws[input * outputs + column],
            WeightOrder::OutIn => ws[column * inputs + input],
        };
        let z: f64 = (0..inputs).map(|input| xs[row * inputs + input] * weight_at(input)).sum::<f64>() + biases[column];
        let expected = activate(z, options.activation);
        assert!((found - expected).abs() < 1e-9, "{options:?}: {found} against {expected}");
    }

    let mix = random(output.dims(), &mut rng);
    let objective = || (evaluate() * mix.as_detached_tensor()).unwrap().sum_all().unwrap();
    let gradients = objective().backward().unwrap();
    for variable in [Some(&x), Some(&weight), bias.as_ref()].into_iter().flatten() {
        let gradient = gradients.get(variable).unwrap();
        assert_eq!(gradient.shape(), variable.shape());
        assert!(gradient.is_contiguous());
        let (values, found) = (read(variable), read(gradient));
        for index in 0..values.len() {
            let at = |offset: f64| {
                let mut moved = values.clone();
                moved[index] += offset;
                variable.set(&Tensor::from_vec(moved, variable.shape(), &Device::Cpu).unwrap()).unwrap();
                read(&objective())[0]
            };
            let expected = (at(1e-5) - at(-1e-5)) / 2e-5;
            at(0.0);
            assert!(
                (found[index] - expected).abs() < GRADIENT_ERROR,
                "{options:?}: {} against {expected}",
                found[index]
            );
        }
    }
}

#[test]
fn outputs_follow_the_definition_and_gradients_follow_differences() {
    for order in ORDERS {
        for activation in ACTIVATIONS {
            for has_bias in [false, true] {
                let options = LinearOptions { order, activation, precision: Precision::AsIs };
                check(&[7], 13, 5, has_bias, options);
                check(&[4], 4, 4, has_bias, options);
                check(&[1], 1, 1, has_bias, options);
                check(&[2, 3], 2, 3, has_bias, options);
                check(&[], 3, 2, has_bias, options);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn both_orders_give_the_same_outputs(rows in 1_usize..9, inputs in 1_usize..9, outputs in 1_usize..9, seed: u64) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (x, weight) = (random(&[rows, inputs], &mut rng), random(&[inputs, outputs], &mut rng));
        let options = LinearOptions::default();
        let turned = LinearOptions { order: WeightOrder::OutIn, ..options };
        let transposed = weight.t().unwrap().contiguous().unwrap();
        let (first, second) = (linear(&x, &weight, None, &options), linear(&x, &transposed, None, &turned));
        for (a, b) in read(&first.unwrap()).iter().zip(read(&second.unwrap())) {
            prop_assert!((a - b).abs() < 1e-14);
        }
    }
}

#[test]
fn without_an_activation_it_is_the_product_and_the_sum_bit_for_bit() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let single = |shape: &[usize], rng: &mut ChaCha8Rng| random(shape, rng).to_dtype(DType::F32).unwrap();
    let (x, weight) = (single(&[9, 17], &mut rng), single(&[17, 6], &mut rng));
    let bias = single(&[6], &mut rng);
    let expected = x.matmul(&weight).unwrap().broadcast_add(&bias).unwrap();
    let bits = |tensor: &Tensor| read(tensor).into_iter().map(f64::to_bits).collect::<Vec<_>>();
    let options = LinearOptions::default();
    assert_eq!(bits(&linear(&x, &weight, Some(&bias), &options).unwrap()), bits(&expected));
    let rectified = LinearOptions { activation: Activation::Relu, ..options };
    assert_eq!(bits(&linear(&x, &weight, Some(&bias), &rectified).unwrap()), bits(&expected.relu().unwrap()));
}

const HALVES: [(Precision, DType); 2] = [(Precision::Bf16, DType::BF16), (Precision::F16, DType::F16)];

fn round(tensor: &Tensor, half: DType) -> Tensor {
    tensor.to_dtype(half).unwrap().to_dtype(DType::F32).unwrap()
}

#[test]
fn rounded_products_are_those_of_rounded_operands_both_ways() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let single = |shape: &[usize], rng: &mut ChaCha8Rng| {
        Var::from_tensor(&random(shape, rng).to_dtype(DType::F32).unwrap()).unwrap()
    };
    let (x, weight, bias) = (single(&[3, 40], &mut rng), single(&[40, 2], &mut rng), single(&[2], &mut rng));
    let mix = single(&[3, 2], &mut rng).as_detached_tensor();
    for (precision, half) in HALVES {
        let options = LinearOptions { precision, ..LinearOptions::default() };
        let found = linear(&x, &weight, Some(&bias), &options).unwrap();
        assert_eq!(found.dtype(), DType::F32);
        let (round_x, round_weight) = (round(&x, half), round(&weight, half));
        let expected = linear(&round_x, &round_weight, Some(&bias), &LinearOptions::default()).unwrap();
        assert_eq!(read(&found), read(&expected));
        let exact = linear(&x, &weight, Some(&bias), &LinearOptions::default()).unwrap();
        assert_ne!(read(&found), read(&exact));

        let gradients = (found * &mix).unwrap().sum_all().unwrap().backward().unwrap();
        let dz = round(&mix, half);
        for (variable, expected) in [
            (&x, dz.matmul(&round_weight.t().unwrap()).unwrap()),
            (&weight, round_x.t().unwrap().matmul(&dz).unwrap()),
            (&bias, dz.sum(0).unwrap()),
        ] {
            assert_eq!(read(gradients.get(variable).unwrap()), read(&expected), "{half:?}");
        }
    }
}

#[test]
fn a_scope_says_what_is_multiplied_and_a_weight_is_rounded_once_in_it() {
    use esper_graph::precision::with_precision;
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let single = |shape: &[usize], rng: &mut ChaCha8Rng| {
        Var::from_tensor(&random(shape, rng).to_dtype(DType::F32).unwrap()).unwrap()
    };
    let (x, weight) = (single(&[3, 8], &mut rng), single(&[8, 2], &mut rng));
    let of =
        |precision| read(&linear(&x, &weight, None, &LinearOptions { precision, ..LinearOptions::default() }).unwrap());
    let scopes = [esper_graph::Precision::Bf16, esper_graph::Precision::F16];
    for ((asked, _), scope) in HALVES.into_iter().zip(scopes) {
        let (found, num_products) = with_precision(scope, || [of(Precision::AsIs), of(Precision::AsIs)]);
        let expected = of(asked);
        assert_eq!((found, num_products), ([expected.clone(), expected], 2));
        // A layer may ask for another type than the scope.
        for (other, _) in HALVES {
            assert_eq!(with_precision(scope, || [of(Precision::AsIs), of(other)]).0[1], of(other), "{scope:?}");
        }
    }
    // What moves in the middle of a scope is not seen: a step updates its weights after it.
    let (moved, _) = with_precision(scopes[0], || {
        let before = of(Precision::AsIs);
        weight.set(&weight.as_detached_tensor().zeros_like().unwrap()).unwrap();
        (before, of(Precision::AsIs))
    });
    assert_eq!(moved.0, moved.1);
    assert_eq!(of(Precision::Bf16), [0.0; 6]);
}

#[test]
fn gradients_of_single_weights_are_single_where_inputs_are_half() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let variable = |shape: &[usize], dtype, rng: &mut ChaCha8Rng| {
        Var::from_tensor(&random(shape, rng).to_dtype(dtype).unwrap()).unwrap()
    };
    let x = variable(&[3, 4], DType::BF16, &mut rng);
    let (weight, bias) = (variable(&[4, 2], DType::F32, &mut rng), variable(&[2], DType::F32, &mut rng));
    let output = linear(&x, &weight, Some(&bias), &LinearOptions::default()).unwrap();
    assert_eq!(output.dtype(), DType::BF16);
    let gradients = output.sum_all().unwrap().backward().unwrap();
    for variable in [&x, &weight, &bias] {
        assert_eq!(gradients.get(variable).unwrap().dtype(), variable.dtype());
    }
    assert_eq!(read(gradients.get(&bias).unwrap()), [3.0, 3.0]);
}

/// A step that is computed again may find its inputs in another layout.
#[test]
fn gelu_has_the_same_bits_in_every_layout() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let (x, weight, bias) = (random(&[6, 5], &mut rng), random(&[5, 7], &mut rng), random(&[7], &mut rng));
    let [x, weight, bias] = [x, weight, bias].map(|tensor| tensor.to_dtype(DType::F32).unwrap());
    let options = LinearOptions { activation: Activation::Gelu, ..LinearOptions::default() };
    let across = |tensor: &Tensor| tensor.t().unwrap().contiguous().unwrap().t().unwrap();
    let expected = read(&linear(&x, &weight, Some(&bias), &options).unwrap());
    for (x, weight) in [(across(&x), weight.clone()), (x.clone(), across(&weight)), (across(&x), across(&weight))] {
        assert_eq!(read(&linear(&x, &weight, Some(&bias), &options).unwrap()), expected);
    }
}

#[test]
fn empty_batches_pass() {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
    let output = linear(&zeros(&[0, 4]), &zeros(&[4, 3]), Some(&zeros(&[3])), &LinearOptions::default()).unwrap();
    assert_eq!(output.dims(), [0, 3]);
}

#[test]
fn arguments_that_do_not_fit_are_named() {
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &Device::Cpu).unwrap();
    let single = |shape: &[usize]| zeros(shape, DType::F32);
    let turned = LinearOptions { order: WeightOrder::OutIn, ..LinearOptions::default() };
    let plain = LinearOptions::default();
    for (x, weight, bias, options, expected) in [
        (single(&[5, 4]), single(&[3, 2]), None, plain, "a linear layer with 3 inputs was given [5, 4]"),
        (single(&[5, 4]), single(&[4, 2]), None, turned, "a linear layer with 2 inputs was given [5, 4]"),
        (single(&[]), single(&[4, 2]), None, plain, "a linear layer with 4 inputs was given []"),
        (single(&[5, 4]), single(&[4]), None, plain, "a weight of two dimensions, not [4]"),
        (single(&[5, 4]), single(&[4, 2]), Some(single(&[4])), plain, "with 2 outputs has a bias of shape [4]"),
        (single(&[5, 4]), zeros(&[4, 2], DType::BF16), None, plain, "with weights of BF16 was given F32"),
        (
            zeros(&[5, 4], DType::BF16),
            single(&[4, 2]),
            Some(zeros(&[2], DType::BF16)),
            plain,
            "with weights of F32 has a bias of BF16",
        ),
    ] {
        let error = linear(&x, &weight, bias.as_ref(), &options).unwrap_err().to_string();
        assert!(error.contains(expected), "`{error}` does not contain `{expected}`");
    }
}

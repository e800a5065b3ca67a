//! The operation of the CPU against the composition and against differences.

use candle_core::{Device, Var};
use esper_graph::backward::backward;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::linear::compose::compose;

const ACTIVATIONS: [Activation; 4] = [Activation::None, Activation::Relu, Activation::Gelu, Activation::GeluErf];
const ORDERS: [WeightOrder; 2] = [WeightOrder::InOut, WeightOrder::OutIn];

/// Of a sum of at most 256 products of numbers below 2, formed in another order, in `f32`.
const OTHER_ORDER: f32 = 1e-3;

/// Of a sum of at most 97 products with slopes of `gelu`, which differ by 10⁻⁶ and rounding.
const GELU: f32 = 2e-5;

/// Where a weight of (out, in) gets its gradient, additions may come in another order.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Bound {
    Bits,
    Rounding,
    Gelu,
}

fn random(shape: &[usize], rng: &mut ChaCha8Rng) -> Tensor {
    let mut value = || rng.random_range(-2.0_f32..2.0);
    // Zeros too: a rectifier passes their gradients on.
    let values: Vec<f32> =
        (0..shape.iter().product()).map(|index: usize| if index.is_multiple_of(5) { 0.0 } else { value() }).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

#[expect(clippy::disallowed_methods, reason = "a test reads what it compares")]
fn read(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

#[track_caller]
fn assert_same(found: &Tensor, expected: &Tensor, bound: Bound, what: &str) {
    assert_eq!(found.dims(), expected.dims(), "{what}");
    for (index, (a, b)) in read(found).into_iter().zip(read(expected)).enumerate() {
        let is_same = match bound {
            // The maximum of -0 and 0 is either of them: the language leaves it open.
            Bound::Bits => (a + 0.0).to_bits() == (b + 0.0).to_bits(),
            Bound::Rounding => (a - b).abs() <= OTHER_ORDER,
            Bound::Gelu => (a - b).abs() <= GELU * b.abs().max(4.0),
        };
        assert!(is_same, "{what}: element {index} is {a}, expected {b}");
    }
}

fn weight_shape(inputs: usize, outputs: usize, order: WeightOrder) -> [usize; 2] {
    match order {
        WeightOrder::InOut => [inputs, outputs],
        WeightOrder::OutIn => [outputs, inputs],
    }
}

/// Outputs and gradients of one operation against those of the composition.
#[track_caller]
fn check([rows, inputs, outputs]: [usize; 3], has_bias: bool, options: LinearOptions, seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let variable = |shape: &[usize], rng: &mut ChaCha8Rng| Var::from_tensor(&random(shape, rng)).unwrap();
    let x = variable(&[rows, inputs], &mut rng);
    let weight = variable(&weight_shape(inputs, outputs, options.order), &mut rng);
    let bias = has_bias.then(|| variable(&[outputs], &mut rng));
    let mix = random(&[rows, outputs], &mut rng);
    assert!(is_fused(&x, &weight, bias.as_deref()));

    let gradients = |output: &Tensor| backward(&(output * &mix).unwrap().sum_all().unwrap()).unwrap();
    let found = fused(&x, &weight, bias.as_deref(), &options).unwrap();
    let expected = compose(&x, &weight, bias.as_deref(), &options).unwrap();
    let what = format!("{rows}x{inputs}x{outputs} {options:?}");
    // Another form of the same, whose derivative candle has to six digits.
    let bound = if options.activation == Activation::Gelu { Bound::Gelu } else { Bound::Bits };
    assert_same(&found, &expected, bound, &what);
    let (found, expected) = (gradients(&found), gradients(&expected));
    let of_weight = if options.order == WeightOrder::OutIn && bound == Bound::Bits { Bound::Rounding } else { bound };
    let variables = [Some((&x, bound)), Some((&weight, of_weight)), bias.as_ref().map(|bias| (bias, bound))];
    for (index, (variable, bound)) in variables.into_iter().flatten().enumerate() {
        let what = format!("{what}, gradient of argument {index}");
        assert_same(found.get(variable).unwrap(), expected.get(variable).unwrap(), bound, &what);
    }
}

#[test]
fn outputs_and_gradients_have_the_bits_of_the_composition_but_for_gelu() {
    for size in [[1, 1, 1], [4, 4, 4], [4, 16, 4], [24, 40, 7], [1, 9, 5], [13, 1, 6], [8, 2, 1], [33, 65, 97]] {
        for order in ORDERS {
            for activation in ACTIVATIONS {
                for has_bias in [false, true] {
                    check(size, has_bias, LinearOptions { order, activation, ..LinearOptions::default() }, 1);
                }
            }
        }
    }
}

#[test]
fn large_products_have_the_bits_of_the_composition() {
    let options = LinearOptions { activation: Activation::Relu, ..LinearOptions::default() };
    for size in [[160, 170, 160], [150, 1100, 30], [256, 300, 256]] {
        check(size, true, options, 2);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_size_has_the_bits_of_the_composition(
        size in [1_usize..80, 1_usize..160, 1_usize..80], has_bias: bool, rectifies: bool, is_out_in: bool, seed: u64,
    ) {
        let options = LinearOptions {
            order: ORDERS[usize::from(is_out_in)],
            activation: ACTIVATIONS[usize::from(rectifies)],
            ..LinearOptions::default()
        };
        check(size, has_bias, options, seed);
    }
}

/// The sum of weighted outputs is linear in each argument between the corners of the rectifier, so that differences are exact
/// up to rounding where no output is near a corner.
#[test]
fn gradients_follow_differences() {
    for order in ORDERS {
        for activation in [Activation::None, Activation::Relu] {
            let mut rng = ChaCha8Rng::seed_from_u64(11);
            let variable = |shape: &[usize], rng: &mut ChaCha8Rng| Var::from_tensor(&random(shape, rng)).unwrap();
            let (x, weight) = (variable(&[3, 5], &mut rng), variable(&weight_shape(5, 4, order), &mut rng));
            let (bias, mix) = (variable(&[4], &mut rng), random(&[3, 4], &mut rng));
            let options = LinearOptions { order, activation, ..LinearOptions::default() };
            let evaluate = || fused(&x, &weight, Some(&bias), &options).unwrap();
            let plain = LinearOptions { activation: Activation::None, ..options };
            let before = read(&fused(&x, &weight, Some(&bias), &plain).unwrap());
            assert!(before.iter().all(|z| z.abs() > 0.03), "an output is near the corner: take another seed");
            let objective = || (evaluate() * &mix).unwrap().sum_all().unwrap();
            let gradients = objective().backward().unwrap();
            for variable in [&x, &weight, &bias] {
                let (values, found) = (read(variable), read(gradients.get(variable).unwrap()));
                for index in 0..values.len() {
                    let at = |offset: f32| {
                        let mut moved = values.clone();
                        moved[index] += offset;
                        variable.set(&Tensor::from_vec(moved, variable.shape(), &Device::Cpu).unwrap()).unwrap();
                        read(&objective())[0]
                    };
                    let expected = (at(0.0078125) - at(-0.0078125)) / 0.015625;
                    at(0.0);
                    assert!((found[index] - expected).abs() < 1e-3, "{options:?}: {} against {expected}", found[index]);
                }
            }
        }
    }
}

#[test]
fn only_gradients_that_are_asked_for_are_formed() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let [x, weight, bias] = [[4, 3], [3, 2], [2, 1]].map(|shape| random(&shape, &mut rng));
    let bias = bias.flatten_all().unwrap();
    let upstream = random(&[4, 2], &mut rng);
    for asked in 0..8_u8 {
        let argument = |index: u8, tensor: &Tensor| match asked >> index & 1 {
            0 => tensor.detach(),
            _ => Var::from_tensor(tensor).unwrap().into_inner(),
        };
        let (x, weight, bias) = (argument(0, &x), argument(1, &weight), argument(2, &bias));
        let layer = Layer { order: WeightOrder::InOut, rectifies: false, rounded: None };
        let (of_x, of_weight, of_bias) = layer.backward((&x, &weight, Some(&bias)), &upstream, &upstream).unwrap();
        let found = [of_x, of_weight, of_bias].map(|gradient| gradient.is_some());
        assert_eq!(found, [0, 1, 2].map(|index| asked >> index & 1 == 1));
    }
}

#[test]
fn a_graph_gives_its_gradients_more_than_once() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let weight = Var::from_tensor(&random(&[3, 2], &mut rng)).unwrap();
    let options = LinearOptions { activation: Activation::Relu, ..LinearOptions::default() };
    let loss = fused(&random(&[4, 3], &mut rng), &weight, None, &options).unwrap().sum_all().unwrap();
    let [first, second] = [(), ()].map(|()| read(loss.backward().unwrap().get(&weight).unwrap()));
    assert_eq!(first, second);
}

#[test]
fn what_is_not_finite_shows_in_outputs_and_gradients_as_in_the_composition() {
    let options = LinearOptions { activation: Activation::Relu, ..LinearOptions::default() };
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let x = Tensor::new(&[[odd, 1.0], [1.0, -1.0]], &Device::Cpu).unwrap();
        let weight = Var::new(&[[1.0_f32, -1.0], [0.5, 2.0]], &Device::Cpu).unwrap();
        let mix = Tensor::new(&[[1.0_f32, f32::INFINITY], [2.0, 3.0]], &Device::Cpu).unwrap();
        let [found, expected] = [fused, compose].map(|layer| {
            let output = layer(&x, &weight, None, &options).unwrap();
            let gradients = (&output * &mix).unwrap().sum_all().unwrap().backward().unwrap();
            let kind = |value: f32| (value.is_nan(), if value.is_nan() { 0 } else { value.to_bits() });
            let gradient = read(gradients.get(&weight).unwrap());
            [read(&output), gradient].map(|values| values.into_iter().map(kind).collect::<Vec<_>>())
        });
        assert_eq!(found, expected, "with {odd}");
    }
}

#[test]
fn operands_of_other_types_and_layouts_are_composed() {
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    let (x, weight, bias) = (random(&[4, 3], &mut rng), random(&[3, 2], &mut rng), random(&[2], &mut rng));
    let plain = LinearOptions::default();
    assert!(is_fused(&x, &weight, Some(&bias)));
    let turned_x = random(&[3, 4], &mut rng).t().unwrap();
    let turned_weight = random(&[2, 3], &mut rng).t().unwrap();
    let wide = |tensor: &Tensor| tensor.to_dtype(DType::F64).unwrap();
    let spread = Tensor::new(1.0_f32, &Device::Cpu).unwrap().broadcast_as(2).unwrap();
    for (x, weight, bias) in [
        (&turned_x, &weight, &bias),
        (&x, &turned_weight, &bias),
        (&x, &weight, &spread),
        (&wide(&x), &wide(&weight), &wide(&bias)),
    ] {
        assert!(!is_fused(x, weight, Some(bias)), "{:?} {:?}", x.layout(), weight.layout());
        let found = crate::linear(x, weight, Some(bias), &plain).unwrap();
        assert_same_wide(&found, &compose(x, weight, Some(bias), &plain).unwrap());
    }
}

fn assert_same_wide(found: &Tensor, expected: &Tensor) {
    let values = |tensor: &Tensor| read(&tensor.to_dtype(DType::F32).unwrap());
    assert_eq!(values(found), values(expected));
}

#[test]
fn a_view_into_a_larger_tensor_is_read_where_it_is() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let (all, weight) = (random(&[9, 3], &mut rng), random(&[3, 2], &mut rng));
    let view = all.narrow(0, 2, 4).unwrap();
    let options = LinearOptions::default();
    assert!(is_fused(&view, &weight, None));
    let found = fused(&view, &weight, None, &options).unwrap();
    assert_same(&found, &compose(&view, &weight, None, &options).unwrap(), Bound::Bits, "a view");
}

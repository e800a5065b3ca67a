//! Tests of the transformer.

use candle_core::Device;
use tolaria::host_read::{HostReads, read_scalar, read_vec_f64};

use super::*;

const TINY: TransformerConfig =
    TransformerConfig { num_blocks: 2, width: 8, num_heads: 2, vocab_size: 7, context_len: 5, is_tied: false };
const BATCH: usize = 2;

fn tiny() -> Transformer {
    tiny_of(Form::Primitive)
}

fn tiny_of(form: Form) -> Transformer {
    let mut draw = Draw::new(7, &Device::Cpu).with_dtype(DType::F64);
    let transformer = Transformer::new(TINY, Variant::of(form), &mut draw).unwrap();
    // Embeddings of the usual size leave so little for attention that its gradients would be lost in rounding.
    for var in [&transformer.tokens, &transformer.positions] {
        var.set(&(var.as_tensor() * 30.0).unwrap()).unwrap();
    }
    transformer
}

fn ids(shift: u32) -> Tensor {
    let ids: Vec<f32> = (0..10_u32).map(|i| ((i * 3 + shift * u32::from(i == 9)) % 7) as f32).collect();
    Tensor::from_vec(ids, (BATCH, 5), &Device::Cpu).unwrap()
}

fn targets() -> Tensor {
    Tensor::from_vec((0..10_u32).map(|i| (i * 5 + 1) % 7).collect::<Vec<_>>(), 10, &Device::Cpu).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f64> {
    read_vec_f64(&tensor.flatten_all().unwrap(), "test", &mut HostReads::default()).unwrap()
}

fn loss(transformer: &Transformer) -> Tensor {
    candle_nn::loss::cross_entropy(&transformer.forward(&ids(0)).unwrap(), &targets()).unwrap()
}

/// The loss with one element of a variable moved by `by`.
fn loss_moved(transformer: &Transformer, var: &Var, index: usize, by: f64) -> f64 {
    let before = var.as_tensor().copy().unwrap();
    let mut moved = values(&before);
    moved[index] += by;
    var.set(&Tensor::from_vec(moved, var.dims(), &Device::Cpu).unwrap()).unwrap();
    let loss = read_scalar(&loss(transformer), "test", &mut HostReads::default()).unwrap();
    var.set(&before).unwrap();
    loss
}

#[test]
fn gradients_agree_with_central_differences() {
    for (form, at_least) in [(Form::Primitive, 150), (Form::Layers, 130)] {
        check_gradients(form, at_least);
    }
}

fn check_gradients(form: Form, at_least: usize) {
    const STEP: f64 = 1e-5;
    // candle's derivative of GELU has its constants to six digits; the differences are good to 1e-9.
    const TOLERANCE: f64 = 2e-6;
    let transformer = tiny_of(form);
    let gradients = loss(&transformer).backward().unwrap();
    let mut checked = 0;
    for (name, var) in &transformer.variables {
        let gradient = values(gradients.get(var).unwrap());
        for index in (0..gradient.len()).step_by(gradient.len().div_ceil(5)) {
            let [up, down] = [STEP, -STEP].map(|by| loss_moved(&transformer, var, index, by));
            let expected = (up - down) / (2.0 * STEP);
            let found = gradient[index];
            assert!(
                (found - expected).abs() < TOLERANCE * (1.0 + expected.abs()),
                "{name}[{index}]: {found} {expected}"
            );
            checked += 1;
        }
    }
    assert!(checked >= at_least, "{form:?}: {checked}");
}

#[test]
fn a_token_changes_no_logit_before_it_and_none_of_another_sequence() {
    let transformer = tiny();
    let [first, second] = [0, 1].map(|shift| values(&transformer.forward(&ids(shift)).unwrap()));
    let (rows, last) = first.split_at(9 * 7);
    let equal = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-14);
    assert!(equal(rows, &second[..63]));
    assert!(!equal(last, &second[63..]));
}

#[test]
fn an_earlier_token_changes_later_logits() {
    let transformer = tiny();
    let mut moved: Vec<f32> = (0..10_u32).map(|i| ((i * 3) % 7) as f32).collect();
    moved[0] = 6.0;
    let moved = Tensor::from_vec(moved, (BATCH, 5), &Device::Cpu).unwrap();
    let [first, second] = [ids(0), moved].map(|ids| values(&transformer.forward(&ids).unwrap()));
    let differs = |row: usize| (first[row * 7] - second[row * 7]).abs() > 1e-9;
    assert_eq!((0..10).map(differs).collect::<Vec<_>>(), [[true; 5], [false; 5]].concat());
}

#[test]
fn ids_in_a_variable_get_no_gradient() {
    let transformer = tiny();
    let ids = Var::from_tensor(&ids(0)).unwrap();
    let logits = transformer.forward(&ids).unwrap();
    let gradients = candle_nn::loss::cross_entropy(&logits, &targets()).unwrap().backward().unwrap();
    assert!(gradients.get(&ids).is_none());
    assert!(gradients.get(&transformer.tokens).is_some());
}

#[test]
fn unfit_sizes_are_refused() {
    let ids = Tensor::zeros((1, 4), DType::F32, &Device::Cpu).unwrap();
    let error = tiny().forward(&ids).unwrap_err().to_string();
    assert!(error.contains("expected sequences of 5 tokens, found 4"), "{error}");
    let mut draw = Draw::new(0, &Device::Cpu);
    let error = Transformer::new(TransformerConfig { num_heads: 3, ..TINY }, Variant::default(), &mut draw);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("expected a width that 3 heads divide, found 8"), "{error}");
}

#[test]
fn rows_of_a_softmax_sum_to_1_whatever_their_size() {
    let mut draw = Draw::new(1, &Device::Cpu).with_dtype(DType::F64);
    let x = (draw.uniform((4, 6), 1.0).unwrap() * 1e4).unwrap();
    let sums = softmax(&x).unwrap().sum(D::Minus1).unwrap();
    assert!(values(&sums).iter().all(|sum| (sum - 1.0).abs() < 1e-12));
}

#[test]
fn both_forms_compute_the_same_logits() {
    let [a, b] = Form::ALL.map(tiny_of);
    let num_parameters = |of: &Transformer| of.variables.iter().map(|(_, var)| var.elem_count()).sum::<usize>();
    assert_eq!(num_parameters(&a), num_parameters(&b));
    let [a, b] = [a, b].map(|transformer| values(&transformer.forward(&ids(1)).unwrap()));
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-12));
}

#[test]
fn the_last_token_has_the_logits_of_its_row() {
    let transformer = tiny();
    let [all, last] =
        [transformer.forward(&ids(0)), transformer.forward_last(&ids(0))].map(|logits| values(&logits.unwrap()));
    let expected: Vec<f64> = all.chunks(7).skip(4).step_by(5).flatten().copied().collect();
    assert_eq!(last.len(), expected.len());
    assert!(last.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-12));
}

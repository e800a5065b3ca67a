//! Attention against its definition.

use candle_core::{DType, Device, Tensor};
use proptest::prelude::*;

use super::{AttentionOptions, attention};
use crate::testing::{assert_close, assert_gradients, numbers, read, tensor};

/// The definition, row by row.
fn expected(qkv: &[f64], [batches, length, heads, width]: [usize; 4], causal: bool) -> Vec<f64> {
    let columns = heads * width;
    let part = |batch: usize, position: usize, part: usize, head: usize| {
        let start = ((batch * length + position) * 3 + part) * columns + head * width;
        &qkv[start..start + width]
    };
    let mut result = vec![0.0; batches * length * columns];
    for batch in 0..batches {
        for head in 0..heads {
            for row in 0..length {
                let seen = if causal { row + 1 } else { length };
                let weight = |column: usize| -> f64 {
                    let (q, k) = (part(batch, row, 0, head), part(batch, column, 1, head));
                    (q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>() / (width as f64).sqrt()).exp()
                };
                let weights: Vec<f64> = (0..seen).map(weight).collect();
                let sum: f64 = weights.iter().sum();
                let start = (batch * length + row) * columns + head * width;
                for (column, weight) in weights.iter().enumerate() {
                    for (target, value) in result[start..start + width].iter_mut().zip(part(batch, column, 2, head)) {
                        *target += weight / sum * value;
                    }
                }
            }
        }
    }
    result
}

fn packed([batches, length, heads, width]: [usize; 4]) -> Vec<usize> {
    vec![batches, length, 3 * heads * width]
}

#[test]
fn rows_are_weighted_as_the_definition_says() {
    for causal in [false, true] {
        for shape in [[1, 1, 1, 1], [2, 5, 3, 4], [1, 17, 2, 7], [2, 33, 1, 64], [1, 3, 2, 130]] {
            let dims = packed(shape);
            let qkv = numbers(1, dims.iter().product());
            let options = AttentionOptions { num_heads: shape[2], causal };
            let found = attention(&tensor(&qkv, &dims), &options).unwrap();
            assert_eq!(found.dims(), [shape[0], shape[1], shape[2] * shape[3]]);
            assert_close(&read(&found), &expected(&qkv, shape, causal), 1e-11, &format!("{shape:?} {causal}"));
        }
    }
}

#[test]
fn gradients_agree_with_differences() {
    for causal in [false, true] {
        for shape in [[1, 1, 1, 2], [2, 5, 2, 3], [1, 7, 1, 4]] {
            let dims = packed(shape);
            let input = tensor(&numbers(2, dims.iter().product()), &dims);
            let options = AttentionOptions { num_heads: shape[2], causal };
            assert_gradients(&[input], |at| attention(&at[0], &options), &format!("{shape:?} {causal}"));
        }
    }
}

#[test]
fn large_scores_neither_overflow_nor_lose_the_sum() {
    let qkv: Vec<f64> = numbers(3, 2 * 9 * 3 * 8).iter().map(|value| value * 60.0).collect();
    let input = tensor(&qkv, &[2, 9, 24]).to_dtype(DType::F32).unwrap();
    let found = read(&attention(&input, &AttentionOptions { num_heads: 2, causal: true }).unwrap());
    assert!(found.iter().all(|value| value.is_finite() && value.abs() <= 120.001));
}

#[test]
fn half_precision_is_computed_in_single_and_given_back_in_half() {
    for dtype in [DType::BF16, DType::F16] {
        let qkv = tensor(&numbers(4, 2 * 6 * 24), &[2, 6, 24]).to_dtype(dtype).unwrap();
        let options = AttentionOptions { num_heads: 2, causal: true };
        let found = attention(&qkv, &options).unwrap();
        let expected = attention(&qkv.to_dtype(DType::F32).unwrap(), &options).unwrap();
        assert_eq!(found.dtype(), dtype);
        assert_close(&read(&found), &read(&expected.to_dtype(dtype).unwrap()), 0.0, "half");
    }
}

#[test]
fn no_positions_give_no_rows() {
    let found = attention(&tensor(&[], &[2, 0, 12]), &AttentionOptions { num_heads: 2, causal: false }).unwrap();
    assert_eq!(found.dims(), [2, 0, 4]);
}

#[test]
fn wrong_inputs_are_named() {
    for (shape, num_heads, dtype, words) in [
        (vec![2, 3], 1, DType::F32, "found [2, 3]"),
        (vec![2, 3, 13], 2, DType::F32, "H = 2 heads, found [2, 3, 13]"),
        (vec![2, 3, 12], 0, DType::F32, "H = 0 heads"),
        (vec![2, 3, 0], 1, DType::F32, "found [2, 3, 0]"),
        (vec![2, 3, 12], 2, DType::U32, "U32"),
    ] {
        let qkv = Tensor::zeros(shape, dtype, &Device::Cpu).unwrap();
        let error = attention(&qkv, &AttentionOptions { num_heads, causal: false }).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_comes_later_changes_nothing_before_it(
        seed in any::<u64>(), length in 2_usize..90, heads in 1_usize..3, width in 1_usize..6, cut in 1_usize..89,
        dtype in prop_oneof![Just(DType::F32), Just(DType::F64)],
    ) {
        prop_assume!(cut < length);
        let columns = 3 * heads * width;
        let first = numbers(seed, length * columns);
        let mut second = numbers(seed ^ 1, length * columns);
        second[..cut * columns].copy_from_slice(&first[..cut * columns]);
        let options = AttentionOptions { num_heads: heads, causal: true };
        let run = |qkv: &[f64]| {
            read(&attention(&tensor(qkv, &[1, length, columns]).to_dtype(dtype).unwrap(), &options).unwrap())
        };
        let (seen, error) = (cut * heads * width, if dtype == DType::F32 { 1e-6 } else { 1e-12 });
        assert_close(&run(&first)[..seen], &run(&second)[..seen], error, "before the cut");
    }

    #[test]
    fn results_lie_between_the_values(
        seed in any::<u64>(), length in 1_usize..12, heads in 1_usize..3, width in 1_usize..6, causal in any::<bool>(),
    ) {
        let shape = [1, length, heads, width];
        let qkv = numbers(seed, length * 3 * heads * width);
        let options = AttentionOptions { num_heads: heads, causal };
        let found = read(&attention(&tensor(&qkv, &packed(shape)), &options).unwrap());
        for column in 0..heads * width {
            let values: Vec<f64> =
                (0..length).map(|row| qkv[(row * 3 + 2) * heads * width + column]).collect();
            let low = values.iter().copied().fold(f64::INFINITY, f64::min);
            let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            for row in 0..length {
                let value = found[row * heads * width + column];
                prop_assert!(value >= low - 1e-12 && value <= high + 1e-12);
            }
        }
    }
}

//! Layer normalization against its definition.

use candle_core::{DType, Device, Tensor};
use proptest::prelude::*;

use super::layer_norm;
use crate::testing::{assert_close, assert_gradients, numbers, read, tensor};

fn expected(x: &[f64], scale: &[f64], shift: &[f64], epsilon: f64) -> Vec<f64> {
    let mut result = Vec::new();
    for row in x.chunks(scale.len()) {
        let count = row.len() as f64;
        let mean = row.iter().sum::<f64>() / count;
        let variance = row.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        let normal = row.iter().map(|value| (value - mean) / (variance + epsilon).sqrt());
        result.extend(normal.zip(scale.iter().zip(shift)).map(|(normal, (scale, shift))| normal * scale + shift));
    }
    result
}

#[test]
fn rows_are_normalized_as_the_definition_says() {
    for (shape, epsilon) in
        [(vec![1], 1e-5), (vec![4, 1], 1e-5), (vec![2, 3], 1e-5), (vec![3, 2, 7], 0.1), (vec![2, 256], 1e-12)]
    {
        let (count, width) = (shape.iter().product(), *shape.last().unwrap());
        let (x, scale, shift) = (numbers(1, count), numbers(2, width), numbers(3, width));
        let found =
            layer_norm(&tensor(&x, &shape), &tensor(&scale, &[width]), &tensor(&shift, &[width]), epsilon).unwrap();
        assert_eq!(found.dims(), shape);
        assert_close(&read(&found), &expected(&x, &scale, &shift, epsilon), 1e-11, &format!("{shape:?}"));
    }
}

#[test]
fn gradients_agree_with_differences() {
    for shape in [vec![1, 1], vec![2, 3], vec![2, 3, 8]] {
        let (count, width) = (shape.iter().product(), *shape.last().unwrap());
        let inputs = [
            tensor(&numbers(4, count), &shape),
            tensor(&numbers(5, width), &[width]),
            tensor(&numbers(6, width), &[width]),
        ];
        assert_gradients(&inputs, |at| layer_norm(&at[0], &at[1], &at[2], 1e-3), &format!("{shape:?}"));
    }
}

#[test]
fn half_precision_is_computed_in_single_and_given_back_in_half() {
    for dtype in [DType::BF16, DType::F16] {
        let half =
            |seed, shape: &[usize]| tensor(&numbers(seed, shape.iter().product()), shape).to_dtype(dtype).unwrap();
        let (x, scale, shift) = (half(7, &[3, 16]), half(8, &[16]), half(9, &[16]));
        let found = layer_norm(&x, &scale, &shift, 1e-5).unwrap();
        let single = |t: &Tensor| t.to_dtype(DType::F32).unwrap();
        let expected = layer_norm(&single(&x), &single(&scale), &single(&shift), 1e-5).unwrap();
        assert_eq!(found.dtype(), dtype);
        assert_close(&read(&found), &read(&expected.to_dtype(dtype).unwrap()), 0.0, "half");
    }
}

#[test]
fn no_rows_and_no_columns_stay_as_they_are() {
    for shape in [[0, 4], [3, 0]] {
        let width = shape[1];
        let x = tensor(&[], &shape);
        let ones = tensor(&vec![1.0; width], &[width]);
        assert_eq!(layer_norm(&x, &ones, &ones, 1e-5).unwrap().dims(), shape);
    }
}

#[test]
fn wrong_operands_are_named() {
    let new = |shape: &[usize], dtype| Tensor::ones(shape, dtype, &Device::Cpu).unwrap();
    let float = DType::F32;
    for (x, scale, shift, words) in [
        (new(&[2, 3], float), new(&[4], float), new(&[3], float), "found [2, 3], [4] and [3]"),
        (new(&[2, 3], float), new(&[3], float), new(&[1, 3], float), "found [2, 3], [3] and [1, 3]"),
        (new(&[], float), new(&[1], float), new(&[1], float), "found [], [1] and [1]"),
        (new(&[2, 3], float), new(&[3], DType::F64), new(&[3], float), "F64"),
        (new(&[2, 3], DType::U32), new(&[3], DType::U32), new(&[3], DType::U32), "U32"),
    ] {
        let error = layer_norm(&x, &scale, &shift, 1e-5).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn shifted_and_stretched_rows_have_the_same_normal_form(
        seed in any::<u64>(), rows in 1_usize..5, width in 2_usize..40, offset in -50.0..50.0_f64, factor in 0.1..10.0_f64,
    ) {
        let x = numbers(seed, rows * width);
        let moved: Vec<f64> = x.iter().map(|value| value * factor + offset).collect();
        let (scale, shift) = (tensor(&numbers(1, width), &[width]), tensor(&numbers(2, width), &[width]));
        let form = |x: &[f64]| read(&layer_norm(&tensor(x, &[rows, width]), &scale, &shift, 0.0).unwrap());
        assert_close(&form(&moved), &form(&x), 1e-6, "moved");
    }
}

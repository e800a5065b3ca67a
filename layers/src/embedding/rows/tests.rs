//! Embedding against its definition.

use candle_core::{DType, Device, Tensor, Var};
use proptest::prelude::*;

use super::embedding;
use crate::testing::{assert_close, assert_gradients, numbers, read, tensor};

fn ids(values: &[u32]) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap()
}

#[test]
fn each_position_has_its_row() {
    let table = tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2]);
    let found = embedding(&table, &ids(&[2, 0, 2, 1])).unwrap();
    assert_eq!(found.dims(), [4, 2]);
    assert_close(&read(&found), &[5.0, 6.0, 1.0, 2.0, 5.0, 6.0, 3.0, 4.0], 0.0, "rows");
}

#[test]
fn the_largest_number_is_no_row_and_gives_zeros_without_a_gradient() {
    for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
        let table = Var::from_tensor(&tensor(&[1.0, 2.0, 3.0, 4.0], &[2, 2]).to_dtype(dtype).unwrap()).unwrap();
        let found = embedding(&table, &ids(&[1, u32::MAX, u32::MAX, 0])).unwrap();
        assert_close(&read(&found), &[3.0, 4.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0], 0.0, "rows");
        let gradients = found.sum_all().unwrap().backward().unwrap();
        assert_close(&read(gradients.get(&table).unwrap()), &[1.0; 4], 0.0, "gradients");
    }
}

#[test]
fn gradients_agree_with_differences() {
    let table = tensor(&numbers(1, 15), &[5, 3]);
    assert_gradients(&[table], |at| embedding(&at[0], &ids(&[4, 1, 1, 0, 4, 4])), "table");
}

#[test]
fn half_precision_keeps_its_type() {
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        let table = tensor(&numbers(2, 8), &[4, 2]).to_dtype(dtype).unwrap();
        let found = embedding(&table, &ids(&[3, 3])).unwrap();
        assert_eq!(found.dtype(), dtype);
        let row = read(&table)[6..].to_vec();
        assert_close(&read(&found), &[row.clone(), row].concat(), 0.0, "row");
    }
}

#[test]
fn no_positions_give_no_rows() {
    assert_eq!(embedding(&tensor(&[1.0, 2.0], &[1, 2]), &ids(&[])).unwrap().dims(), [0, 2]);
}

#[test]
fn wrong_operands_are_named() {
    let new = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &Device::Cpu).unwrap();
    let (float, int) = (DType::F32, DType::U32);
    for (table, ids, words) in [
        (new(&[4], float), new(&[2], int), "found [4] and [2]"),
        (new(&[4, 2], float), new(&[2, 1], int), "found [4, 2] and [2, 1]"),
        (new(&[4, 2], float), new(&[2], DType::I64), "I64"),
        (new(&[4, 2], int), new(&[2], int), "U32"),
    ] {
        let error = embedding(&table, &ids).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    assert!(embedding(&new(&[4, 2], float), &Tensor::new(&[4_u32], &Device::Cpu).unwrap()).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_gradient_of_a_row_is_the_sum_over_its_positions(
        seed in any::<u64>(), rows in 1_u32..20, width in 1_usize..5,
        positions in proptest::collection::vec(any::<u32>(), 1..40),
    ) {
        let positions: Vec<u32> = positions.iter().map(|id| id % rows).collect();
        let table = Var::from_tensor(&tensor(&numbers(seed, rows as usize * width), &[rows as usize, width])).unwrap();
        let weights = numbers(seed ^ 1, positions.len() * width);
        let result = embedding(table.as_tensor(), &ids(&positions)).unwrap();
        let loss = (result * tensor(&weights, &[positions.len(), width])).unwrap().sum_all().unwrap();
        let mut expected = vec![0.0; rows as usize * width];
        for (id, weights) in positions.iter().zip(weights.chunks(width)) {
            for (sum, weight) in expected[*id as usize * width..].iter_mut().zip(weights) {
                *sum += weight;
            }
        }
        assert_close(&read(loss.backward().unwrap().get(&table).unwrap()), &expected, 1e-12, "sums");
    }
}

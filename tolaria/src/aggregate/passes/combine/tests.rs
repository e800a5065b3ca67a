//! Combinations against the sum written down element by element.

use proptest::prelude::*;

use super::*;
use crate::testing::{HOST, bits, layout, random, seed};

fn geometry(lens: [usize; 3]) -> Geometry {
    let [a, b, c] = lens;
    Geometry::of(&layout(&[("a", a, HOST, false), ("b", b, seed(1), true), ("c", c, seed(2), false)])).unwrap()
}

fn rows(count: usize, num_elements: usize) -> Vec<Vec<f32>> {
    (0..count as u64).map(|row| random(num_elements, 40 + row)).collect()
}

fn others(rows: &[Vec<f32>]) -> Vec<&[f32]> {
    rows[1..].iter().map(Vec::as_slice).collect()
}

fn expected(rows: &[Vec<f32>], geometry: &Geometry, coefficients: &[f32], factors: &[f32]) -> Vec<f32> {
    let mut sums = Vec::new();
    for (part, factor) in geometry.parts().iter().zip(factors) {
        let coefficients = &coefficients[usize::from(part.isolated) * rows.len()..];
        for index in part.range.clone() {
            let mut sum = rows[0][index] * coefficients[0];
            for (row, coefficient) in rows.iter().zip(coefficients).skip(1) {
                sum += row[index] * coefficient;
            }
            sums.push(sum * factor);
        }
    }
    sums
}

/// Per part, chunk by chunk.
fn expected_squares(sums: &[f32], geometry: &Geometry) -> Vec<f64> {
    let mut squares = vec![0.0; geometry.parts().len()];
    for chunk in geometry.chunks() {
        squares[chunk.part] += cpu::dot(&sums[chunk.range.clone()], &sums[chunk.range.clone()]);
    }
    squares
}

fn bits_f64(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn elements_are_summed_from_the_first_row_to_the_last(
        count in 1_usize..14,
        lens in prop::array::uniform3(0_usize..5000),
        unscaled in any::<bool>(),
    ) {
        let geometry = geometry(lens);
        let rows = rows(count, geometry.num_elements());
        let mut coefficients = random(2 * count, 7);
        coefficients[0] = if unscaled { 1.0 } else { coefficients[0] };
        let factors = vec![if unscaled { 1.0 } else { 0.3 }; geometry.parts().len()];
        let mut first = rows[0].clone();
        combine(&mut first, &others(&rows), &geometry, &coefficients, Some(&factors));
        prop_assert_eq!(bits(&first), bits(&expected(&rows, &geometry, &coefficients, &factors)));

        let plain = expected(&rows, &geometry, &coefficients, &vec![1.0; factors.len()]);
        first.copy_from_slice(&rows[0]);
        combine(&mut first, &others(&rows), &geometry, &coefficients, None);
        prop_assert_eq!(bits(&first), bits(&plain));

        first.copy_from_slice(&rows[0]);
        let mut squares = vec![f64::NAN; geometry.parts().len()];
        combine_and_square(&mut first, &others(&rows), &geometry, &coefficients, &mut squares);
        prop_assert_eq!(bits(&first), bits(&plain));
        prop_assert_eq!(bits_f64(&squares), bits_f64(&expected_squares(&plain, &geometry)));
    }
}

#[test]
fn threads_change_no_bit() {
    let geometry = geometry([200_000, 150_003, 1]);
    let rows = rows(3, geometry.num_elements());
    let coefficients = random(6, 3);
    let factors = [0.5, 1.0, 0.25];
    let with = |threads: usize| {
        crate::cpu::with_threads(threads, || {
            let (mut measured, mut scaled) = (rows[0].clone(), rows[0].clone());
            let mut squares = vec![0.0; 3];
            combine_and_square(&mut measured, &others(&rows), &geometry, &coefficients, &mut squares);
            combine(&mut scaled, &others(&rows), &geometry, &coefficients, Some(&factors));
            (bits(&measured), bits(&scaled), bits_f64(&squares))
        })
    };
    let expected = expected(&rows, &geometry, &coefficients, &factors);
    assert_eq!(with(1).1, bits(&expected));
    for threads in [2, 3] {
        assert!(with(threads) == with(1), "{threads} threads");
    }
}

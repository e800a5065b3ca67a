//! Weighted sums of slices, rounded after every operation in a fixed order.
//!
//! Rows are taken four at a time, so that the sum is loaded and stored less often; the order of operations on an
//! element stays that of the rows.

use std::ops::Range;

/// Replaces `sum`, which holds the first row, by `(c_0 sum + c_1 r_1) + …`; `others` at `range`.
///
/// # Shapes
/// `sum` as long as `range`; one coefficient for `sum` and for each of `others`
#[inline(always)]
pub(crate) fn weigh(sum: &mut [f32], others: &[&[f32]], range: Range<usize>, coefficients: &[f32]) {
    let (c, rest) = coefficients.split_first().expect("there is a first row");
    if let ([a, others @ ..], [ca, rest @ ..]) = (others, rest) {
        for (sum, a) in sum.iter_mut().zip(&a[range.clone()]) {
            *sum = *sum * c + a * ca;
        }
        add(sum, others, range, rest);
    } else {
        scale(sum, *c);
    }
}

/// Writes `(c_0 r_0 + c_1 r_1) + …` of the rows at `range` to `sum`.
///
/// # Shapes
/// `sum` as long as `range`; one coefficient per row, of which there is at least one
#[inline(always)]
pub(crate) fn weigh_into(sum: &mut [f32], rows: &[&[f32]], range: Range<usize>, coefficients: &[f32]) {
    match (rows, coefficients) {
        ([a, b, c, d, others @ ..], [ca, cb, cc, cd, rest @ ..]) => {
            let [a, b, c, d] = [a, b, c, d].map(|row| &row[range.clone()]);
            for ((((sum, a), b), c), d) in sum.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                *sum = a * ca + b * cb + c * cc + d * cd;
            }
            add(sum, others, range, rest);
        }
        ([a, b, others @ ..], [ca, cb, rest @ ..]) => {
            for ((sum, a), b) in sum.iter_mut().zip(&a[range.clone()]).zip(&b[range.clone()]) {
                *sum = a * ca + b * cb;
            }
            add(sum, others, range, rest);
        }
        ([a, ..], [ca, ..]) => {
            for (sum, a) in sum.iter_mut().zip(&a[range]) {
                *sum = a * ca;
            }
        }
        _ => unreachable!("there is a row"),
    }
}

/// Adds `c_0 r_0`, then `c_1 r_1`, …
#[inline(always)]
fn add(sum: &mut [f32], rows: &[&[f32]], range: Range<usize>, coefficients: &[f32]) {
    let (fours, single) = rows.as_chunks::<4>();
    let (fours_of, single_of) = coefficients.as_chunks::<4>();
    for ([a, b, c, d], [ca, cb, cc, cd]) in fours.iter().zip(fours_of) {
        let [a, b, c, d] = [a, b, c, d].map(|row| &row[range.clone()]);
        for ((((sum, a), b), c), d) in sum.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *sum = *sum + a * ca + b * cb + c * cc + d * cd;
        }
    }
    for (row, coefficient) in single.iter().zip(single_of) {
        for (sum, value) in sum.iter_mut().zip(&row[range.clone()]) {
            *sum += value * coefficient;
        }
    }
}

/// Multiplies every element by `factor`; 1 changes no bit, and is left out.
#[inline(always)]
pub(crate) fn scale(values: &mut [f32], factor: f32) {
    if is_one(factor) {
        return;
    }
    values.iter_mut().for_each(|value| *value *= factor);
}

/// Whether a product with `factor` is the other factor.
#[inline(always)]
pub(crate) fn is_one(factor: f32) -> bool {
    factor.to_bits() == 1.0_f32.to_bits()
}

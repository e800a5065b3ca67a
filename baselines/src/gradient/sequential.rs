//! Projections vector by vector over slices: what an engine without a Gram matrix does.
//!
//! # Source
//! Yu et al. 2020, arXiv 2001.06782, algorithm 1, for [`Against::Original`].

/// Lanes of a sum, so that the additions need not wait for each other.
const LANES: usize = 8;

/// What a gradient is projected against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Against {
    /// The others as they came, as in the paper.
    Original,
    /// The others as they are by then: those before it already projected.
    Adjusted,
}

/// How the products of two vectors are summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sums {
    /// In `f32`.
    Single,
    /// In `f64`.
    Double,
}

impl Sums {
    /// The inner product of two vectors of one length.
    pub(crate) fn dot(self, a: &[f32], b: &[f32]) -> f64 {
        match self {
            Self::Single => f64::from(dot_single(a, b)),
            Self::Double => dot_double(a, b),
        }
    }
}

/// `Σ_i` of the gradients after their projections; `orders[i]` names the others in the order in which row i is
/// projected.
///
/// # Shapes
/// `rows` (P,) each; one order per row
/// # Panics
/// When there is no row, or an order names a row that is not there.
pub(crate) fn combine(rows: &[&[f32]], orders: &[Vec<usize>], against: Against, sums: Sums) -> Vec<f32> {
    assert!(!rows.is_empty(), "a window has at least one row");
    match against {
        Against::Original => originals(rows, orders, sums),
        Against::Adjusted => adjusted(rows, orders, sums),
    }
}

fn originals(rows: &[&[f32]], orders: &[Vec<usize>], sums: Sums) -> Vec<f32> {
    let squares: Vec<f64> = rows.iter().map(|row| sums.dot(row, row)).collect();
    let mut total: Option<Vec<f32>> = None;
    for (row, order) in rows.iter().zip(orders) {
        let mut projected = row.to_vec();
        for &other in order {
            project(&mut projected, rows[other], squares[other], sums);
        }
        total = Some(match total {
            Some(mut total) => {
                axpy(&mut total, 1.0, &projected);
                total
            }
            None => projected,
        });
    }
    total.expect("there is at least one row")
}

fn adjusted(rows: &[&[f32]], orders: &[Vec<usize>], sums: Sums) -> Vec<f32> {
    let mut copies: Vec<Vec<f32>> = rows.iter().map(|row| row.to_vec()).collect();
    for (row, order) in orders.iter().enumerate().take(rows.len()) {
        let mut projected = std::mem::take(&mut copies[row]);
        for &other in order {
            let square = sums.dot(&copies[other], &copies[other]);
            project(&mut projected, &copies[other], square, sums);
        }
        copies[row] = projected;
    }
    let mut copies = copies.into_iter();
    let mut total = copies.next().expect("there is at least one row");
    for row in copies {
        axpy(&mut total, 1.0, &row);
    }
    total
}

fn project(vector: &mut [f32], other: &[f32], square: f64, sums: Sums) {
    let inner = sums.dot(vector, other);
    if inner < 0.0 && square > 0.0 {
        axpy(vector, to_f32(-inner / square), other);
    }
}

/// `sum += factor * row`.
fn axpy(sum: &mut [f32], factor: f32, row: &[f32]) {
    for (sum, value) in sum.iter_mut().zip(row) {
        *sum += factor * value;
    }
}

fn dot_double(a: &[f32], b: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; LANES];
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..LANES {
            lanes[lane] += f64::from(a[lane]) * f64::from(b[lane]);
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    lanes.iter().sum::<f64>() + rest
}

fn dot_single(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 2 * LANES];
    let (a_chunks, a_rest) = a.as_chunks::<{ 2 * LANES }>();
    let (b_chunks, b_rest) = b.as_chunks::<{ 2 * LANES }>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..2 * LANES {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + rest
}

#[expect(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
fn to_f32(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOTH: [Sums; 2] = [Sums::Single, Sums::Double];

    #[track_caller]
    fn check(rows: &[&[f32]], orders: &[Vec<usize>], against: Against, expected: &[f32]) {
        for sums in BOTH {
            let found = combine(rows, orders, against, sums);
            let close = found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-6);
            assert!(close && found.len() == expected.len(), "{against:?} {sums:?}: {found:?}, not {expected:?}");
        }
    }

    #[test]
    fn two_rows_against_each_other_lose_what_is_opposed() {
        let rows: [&[f32]; 2] = [&[1.0, 0.0], &[-1.0, 1.0]];
        let orders = [vec![1], vec![0]];
        // (1, 0) + 1/2 (−1, 1) = (1/2, 1/2), and (−1, 1) + (1, 0) = (0, 1).
        check(&rows, &orders, Against::Original, &[0.5, 1.5]);
        // (−1, 1) · (1/2, 1/2) = 0: nothing is left to remove.
        check(&rows, &orders, Against::Adjusted, &[-0.5, 1.5]);
    }

    #[test]
    fn the_order_decides_among_three() {
        let rows: [&[f32]; 3] = [&[1.0, 0.0], &[-1.0, 1.0], &[-1.0, -2.0]];
        let by = |first: Vec<usize>| combine(&rows, &[first, vec![], vec![]], Against::Original, Sums::Double);
        let (found, other) = (by(vec![1, 2]), by(vec![2, 1]));
        assert!(found.iter().zip(&other).any(|(a, b)| (a - b).abs() > 0.1), "{found:?} {other:?}");
    }

    #[test]
    fn rows_that_agree_are_added_and_a_zero_row_projects_nothing() {
        check(&[&[1.0, 2.0, 3.0]], &[vec![]], Against::Original, &[1.0, 2.0, 3.0]);
        let orders = [vec![1, 2], vec![2, 0], vec![0, 1]];
        for against in [Against::Original, Against::Adjusted] {
            check(&[&[1.0, 0.5], &[0.5, 1.0], &[0.0, 0.0]], &orders, against, &[1.5, 1.5]);
        }
    }

    proptest! {
        /// Two rows: the paper's result points against neither, and in the other one the second row has nothing left to
        /// lose.
        #[test]
        fn two_projected_rows_conflict_with_neither(
            a in prop::collection::vec(-1.0_f32..1.0, 21),
            b in prop::collection::vec(-1.0_f32..1.0, 21),
        ) {
            let dot = |a: &[f32], b: &[f32]| Sums::Double.dot(a, b);
            let combine = |against| combine(&[&a, &b], &[vec![1], vec![0]], against, Sums::Double);
            let original = combine(Against::Original);
            prop_assert!(dot(&original, &a) >= -1e-4 && dot(&original, &b) >= -1e-4);
            let adjusted = combine(Against::Adjusted);
            let rest: Vec<f32> = adjusted.iter().zip(&b).map(|(sum, b)| sum - b).collect();
            prop_assert!(dot(&a, &b) >= 0.0 || dot(&rest, &b).abs() <= 1e-4);
        }

        #[test]
        fn both_sums_give_the_product(values in prop::collection::vec((-1.0_f32..1.0, -1.0_f32..1.0), 0..70)) {
            let (a, b): (Vec<f32>, Vec<f32>) = values.iter().copied().unzip();
            let expected: f64 = values.iter().map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            for (sums, bound) in [(Sums::Single, 1e-4), (Sums::Double, 1e-12)] {
                prop_assert!((sums.dot(&a, &b) - expected).abs() <= bound);
            }
        }
    }
}

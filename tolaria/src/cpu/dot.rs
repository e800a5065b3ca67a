//! Inner products with `f64` accumulators.
//!
//! Several accumulators ("lanes"), so that additions need not wait for each other: lane l sums the elements whose index
//! leaves the rest l. Their number belongs to the result, and is the same on every processor. The product of two `f32`
//! is exact in `f64`, so that fusing it with the addition changes no bit.

/// Accumulators of a sum over elements.
pub(crate) const LANES: usize = 8;

/// Inner product, for tests: the lanes in their order, then the elements that fill no row of lanes.
#[cfg(test)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; LANES];
    add_products(&mut lanes, a, b);
    sum_of_lanes(&lanes, a.as_chunks::<LANES>().1, b.as_chunks::<LANES>().1)
}

/// Adds the products of the elements that fill rows of lanes.
#[inline(always)]
pub(crate) fn add_products(lanes: &mut [f64; LANES], a: &[f32], b: &[f32]) {
    let mut sums = *lanes;
    for (a, b) in a.as_chunks::<LANES>().0.iter().zip(b.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            sums[lane] += f64::from(a[lane]) * f64::from(b[lane]);
        }
    }
    *lanes = sums;
}

/// The end of an inner product: all lanes, and the elements after them.
#[inline(always)]
pub(crate) fn sum_of_lanes(lanes: &[f64; LANES], a_rest: &[f32], b_rest: &[f32]) -> f64 {
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    lanes.iter().sum::<f64>() + rest
}

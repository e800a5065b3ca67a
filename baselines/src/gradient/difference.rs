//! How far two results are apart.

/// Infinite when lengths differ or a value is no number.
pub(crate) fn largest_difference(a: &[f32], b: &[f32]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs()).fold(0.0, worse)
}

/// The larger one, and infinite when the next is no number.
pub(crate) fn worse(largest: f64, next: f64) -> f64 {
    if next.is_nan() { f64::INFINITY } else { largest.max(next) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_that_is_no_number_is_infinite() {
        assert!(largest_difference(&[1.0], &[f32::NAN]).is_infinite());
        assert!(largest_difference(&[1.0], &[]).is_infinite());
        assert!((largest_difference(&[1.0, 2.0], &[1.5, 2.25]) - 0.5).abs() < 1e-12);
    }
}

//! A straight line through points.

/// `y = intercept + slope x`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Line {
    /// Value at 0.
    pub(crate) intercept: f64,
    /// Growth per unit.
    pub(crate) slope: f64,
    /// Share of the variance of `y` that the line explains, 1 for points on a line.
    pub(crate) r_squared: f64,
}

impl Line {
    /// The place at which the line has the value `y`.
    pub(crate) fn place_of(&self, y: f64) -> f64 {
        (y - self.intercept) / self.slope
    }
}

/// The line with the least sum of squared differences in `y`; none for fewer than two different `x`, or for values that
/// are not finite.
pub(crate) fn least_squares(points: &[(f64, f64)]) -> Option<Line> {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x_mean, y_mean) = (mean(|point| point.0), mean(|point| point.1));
    // Deviations from the means first: sums of squares of the values themselves cancel badly.
    let sum = |of: &dyn Fn(f64, f64) -> f64| points.iter().map(|(x, y)| of(x - x_mean, y - y_mean)).sum::<f64>();
    let (xx, xy, yy) = (sum(&|x, _| x * x), sum(&|x, y| x * y), sum(&|_, y| y * y));
    let slope = xy / xx;
    // Points on a level line are explained in full.
    let r_squared = if yy > 0.0 { xy * xy / (xx * yy) } else { 1.0 };
    let line = Line { intercept: y_mean - slope * x_mean, slope, r_squared };
    let finite = [line.intercept, line.slope, line.r_squared].iter().all(|value| value.is_finite());
    finite.then_some(line)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(found: f64, expected: f64, scale: f64) -> bool {
        (found - expected).abs() <= 1e-9 * scale.max(1.0)
    }

    #[test]
    fn a_known_example_is_reproduced() {
        // By hand: means 2 and 3, xx = 2, xy = 3, yy = 14/3.
        let line = least_squares(&[(1.0, 2.0), (2.0, 2.0), (3.0, 5.0)]).unwrap();
        let expected = [0.0, 1.5, 27.0 / 36.0];
        for (found, expected) in [line.intercept, line.slope, line.r_squared].into_iter().zip(expected) {
            assert!(close(found, expected, 1.0), "{found} {expected}");
        }
    }

    #[test]
    fn too_little_gives_no_line() {
        for points in [&[][..], &[(1.0, 2.0)], &[(1.0, 2.0), (1.0, 3.0)], &[(1.0, f64::NAN), (2.0, 1.0)]] {
            assert_eq!(least_squares(points), None, "{points:?}");
        }
    }

    #[test]
    fn a_level_line_is_explained_in_full() {
        let line = least_squares(&[(1.0, 4.0), (9.0, 4.0)]).unwrap();
        assert!(close(line.slope, 0.0, 1.0) && close(line.r_squared, 1.0, 1.0), "{line:?}");
    }

    proptest! {
        #[test]
        fn points_on_a_line_give_that_line(intercept in -100.0..100.0_f64, slope in 0.01..50.0_f64) {
            let points: Vec<(f64, f64)> =
                [1.0, 2.0, 5.0, 10.0, 300.0].iter().map(|x| (*x, intercept + slope * x)).collect();
            let line = least_squares(&points).unwrap();
            prop_assert!(close(line.intercept, intercept, 1e3) && close(line.slope, slope, slope));
            prop_assert!(line.r_squared > 0.999_999);
            prop_assert!(close(line.place_of(intercept + 7.0 * slope), 7.0, 1e4));
        }

        #[test]
        fn no_other_line_is_nearer(ys in prop::collection::vec(-10.0..10.0_f64, 4), by in -1.0..1.0_f64) {
            let points: Vec<(f64, f64)> = ys.iter().enumerate().map(|(x, y)| (x as f64, *y)).collect();
            let line = least_squares(&points).unwrap();
            let error = |intercept: f64, slope: f64| -> f64 {
                points.iter().map(|(x, y)| (y - intercept - slope * x).powi(2)).sum()
            };
            let best = error(line.intercept, line.slope);
            prop_assert!(best <= error(line.intercept + by, line.slope) + 1e-9);
            prop_assert!(best <= error(line.intercept, line.slope + by) + 1e-9);
        }
    }
}

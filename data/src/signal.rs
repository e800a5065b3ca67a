//! The one-dimensional signal operations of MNIST-1D.

/// Linear interpolation onto `length` evenly spaced points; the first and the last point stay.
///
/// Both lengths are 2 or more.
pub(super) fn resample(signal: &[f64], length: usize) -> Vec<f64> {
    let (intervals, wanted) = (signal.len() - 1, length - 1);
    (0..length)
        .map(|index| {
            // Whole and fractional part by integer arithmetic: a point that falls on a sample is that sample exactly.
            let (left, rest) = (index * intervals / wanted, index * intervals % wanted);
            let right = signal[(left + 1).min(intervals)];
            signal[left] + (right - signal[left]) * (rest as f64 / wanted as f64)
        })
        .collect()
}

/// Convolution with a Gaussian of standard deviation 2 samples, cut at 4 standard deviations, the signal mirrored at
/// its ends with the end sample repeated (`d c b a | a b c d | d c b a`).
pub(super) fn smooth(signal: &[f64]) -> Vec<f64> {
    const SIGMA: f64 = 2.0;
    const RADIUS: usize = 8;
    let weights: Vec<f64> = (0..=RADIUS).map(|k| libm::exp(-0.5 * (k as f64 / SIGMA).powi(2))).collect();
    let total = weights[0] + 2.0 * weights[1..].iter().sum::<f64>();
    let length = signal.len();
    let mirrored = |position: usize| {
        // `position` counts from RADIUS samples before the start; one period of the mirrored signal is 2 × length.
        let phase = (position + 2 * length * RADIUS - RADIUS) % (2 * length);
        signal[if phase < length { phase } else { 2 * length - 1 - phase }]
    };
    (0..length)
        .map(|index| {
            let center = index + RADIUS;
            let sides: f64 = (1..=RADIUS).map(|k| weights[k] * (mirrored(center - k) + mirrored(center + k))).sum();
            (weights[0] * mirrored(center) + sides) / total
        })
        .collect()
}

/// Mean and population standard deviation.
pub(super) fn mean_and_std(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (index, (a, b)) in found.iter().zip(expected).enumerate() {
            assert!((a - b).abs() < 1e-12, "{a} is not {b} at {index}");
        }
    }

    #[test]
    fn resampling_is_exact_on_straight_lines_and_keeps_both_ends() {
        let line: Vec<f64> = (0..12).map(|x| 2.0 * f64::from(x) - 3.0).collect();
        for length in [2_usize, 7, 12, 40, 72] {
            let expected: Vec<f64> = (0..length).map(|i| -3.0 + 22.0 * i as f64 / (length - 1) as f64).collect();
            check_close(&resample(&line, length), &expected);
        }
    }

    #[test]
    fn resampling_to_the_same_length_changes_no_bit() {
        let signal = [0.1, -7.3, 1e-8, 0.0];
        assert_eq!(resample(&signal, 4).map_bits(), signal.to_vec().map_bits());
    }

    /// `scipy.ndimage.gaussian_filter(np.eye(1, 9, 1)[0], 2)` of scipy 1.16.3.
    #[test]
    fn smoothing_mirrors_at_the_ends() {
        let impulse = [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let expected = [
            0.2970232486501394,
            0.26423458446947246,
            0.20303171685208918,
            0.1297517941281349,
            0.06697589977732399,
            0.027432306987805636,
            0.008831220652358505,
            0.002215963172596555,
            0.0005032653100794239,
        ];
        check_close(&smooth(&impulse), &expected);
    }

    #[test]
    fn smoothing_keeps_a_constant_and_the_sum() {
        check_close(&smooth(&[3.0; 5]), &[3.0; 5]);
        let signal: Vec<f64> = (0..30).map(|x| f64::from(x * x % 7)).collect();
        let (before, after): (f64, f64) = (signal.iter().sum(), smooth(&signal).iter().sum());
        assert!((before - after).abs() < 1e-10, "{before} became {after}");
    }

    trait Bits {
        fn map_bits(self) -> Vec<u64>;
    }

    impl Bits for Vec<f64> {
        fn map_bits(self) -> Vec<u64> {
            self.into_iter().map(f64::to_bits).collect()
        }
    }
}

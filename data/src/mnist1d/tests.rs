//! The generator against the published one: the same numbers from the same draws, and the same distribution.
//!
//! `tests/golden/mnist1d_reference.json` and the script that made it, `tests/scripts/mnist1d_reference.py`.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
struct Reference {
    cases: Vec<Case>,
    statistics: Statistics,
}

#[derive(Deserialize)]
struct Case {
    label: usize,
    pad: f64,
    scale: f64,
    shear: f64,
    shift: usize,
    phase: f64,
    output: Vec<f64>,
}

#[derive(Deserialize)]
struct Statistics {
    samples_per_class: usize,
    class_mean: Vec<Vec<f64>>,
    class_std: Vec<Vec<f64>>,
    lags: Vec<usize>,
    lag_product: Vec<Vec<f64>>,
    quantile_levels: Vec<f64>,
    quantiles: Vec<f64>,
}

fn reference() -> Reference {
    serde_json::from_str(include_str!("../../tests/golden/mnist1d_reference.json")).unwrap()
}

fn config(train: usize, test: usize, seed: u64) -> Mnist1dConfig {
    let count = |count| NonZeroUsize::new(count).unwrap();
    Mnist1dConfig { train_samples: count(train), test_samples: count(test), seed }
}

/// Samples of each class over several sets of the published size.
fn classes(num_sets: u64) -> Vec<Vec<Vec<f64>>> {
    let mut classes = vec![Vec::new(); NUM_CLASSES];
    for seed in 0..num_sets {
        let table = generate(&config(4_000, 1_000, seed)).unwrap().table;
        for (row, &label) in table.targets().labels().unwrap().iter().enumerate() {
            let sample = table.sample(row).iter().map(|&value| f64::from(value)).collect();
            classes[usize::try_from(label).unwrap()].push(sample);
        }
    }
    classes
}

fn scripted_noise(phase: f64) -> Vec<f64> {
    (0..FULL_LENGTH).map(|index| (1.7 * index as f64 + phase).sin()).collect()
}

#[test]
fn equal_draws_give_the_published_signal() {
    for case in reference().cases {
        // The published generator draws its padding as `low + int(unit * (high - low + 1))`.
        let padding =
            PADDING.zip(1_u32..).take_while(|(_, n)| f64::from(*n) <= case.pad * 25.0 + 1.0).last().unwrap().0;
        let distortion = Distortion {
            padding,
            scale: case.scale,
            shift: case.shift,
            correlated: scripted_noise(case.phase),
            independent: scripted_noise(case.phase + 1.0),
            shear: case.shear,
        };
        let output = distort(&templates()[case.label], &distortion);
        assert_eq!(output.len(), case.output.len());
        for (index, (found, expected)) in output.iter().zip(&case.output).enumerate() {
            assert!((found - expected).abs() < 1e-12, "label {} point {index}: {found} is not {expected}", case.label);
        }
    }
}

#[test]
fn the_distribution_is_the_published_one() {
    let published = reference().statistics;
    let classes = classes(4);
    let count = classes[0].len() as f64;
    // Both sides are estimates. Standard error of a mean in units of the deviation; of a deviation at most about the
    // same, since the signals have lighter tails than an exponential distribution.
    let error = (1.0 / count + 1.0 / published.samples_per_class as f64).sqrt();
    for (label, samples) in classes.iter().enumerate() {
        for index in 0..SAMPLE_LENGTH {
            let values: Vec<f64> = samples.iter().map(|sample| sample[index]).collect();
            let (mean, std) = signal::mean_and_std(&values);
            let (expected_mean, expected_std) = (published.class_mean[label][index], published.class_std[label][index]);
            let tolerance = 5.0 * error * expected_std;
            assert!((mean - expected_mean).abs() < tolerance, "mean of {label} at {index}: {mean}, {expected_mean}");
            assert!((std - expected_std).abs() < tolerance, "std of {label} at {index}: {std}, {expected_std}");
        }
        for (lag, expected) in published.lags.iter().zip(&published.lag_product[label]) {
            let products = samples.iter().flat_map(|sample| sample[*lag..].iter().zip(sample).map(|(a, b)| a * b));
            let product = products.sum::<f64>() / (count * (SAMPLE_LENGTH - lag) as f64);
            assert!((product - expected).abs() < 5.0 * error, "lag {lag} of {label}: {product}, {expected}");
        }
    }
    let mut values: Vec<f64> = classes.into_iter().flatten().flatten().collect();
    values.sort_unstable_by(f64::total_cmp);
    for (level, expected) in published.quantile_levels.iter().zip(&published.quantiles) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank within the samples")]
        let value = values[(level * (values.len() - 1) as f64) as usize];
        assert!((value - expected).abs() < 0.05, "quantile {level}: {value}, {expected}");
    }
}

/// As published: padding from 36 to 60 zeros, a shift from 0 to 47 points.
#[test]
fn draws_cover_their_ranges_and_nothing_else() {
    let mut rng = draw::generator("test", 1);
    let draws: Vec<Distortion> = (0..2_000).map(|_| Distortion::draw(&mut rng)).collect();
    let paddings: BTreeSet<usize> = draws.iter().map(|draw| draw.padding).collect();
    let shifts: BTreeSet<usize> = draws.iter().map(|draw| draw.shift).collect();
    assert_eq!(paddings, (36..=60).collect());
    assert_eq!(shifts, (0..=47).collect());
    assert!(draws.iter().all(|draw| draw.correlated.len() == 72 && draw.independent.len() == 72));
}

#[test]
fn a_seed_determines_every_bit_and_another_seed_changes_them() {
    let bits = |seed| {
        let table = generate(&config(80, 20, seed)).unwrap().table;
        (
            table.values().iter().map(|value| value.to_bits()).collect::<Vec<u32>>(),
            table.targets().labels().unwrap().to_vec(),
        )
    };
    assert_eq!(bits(42), bits(42));
    assert_ne!(bits(42), bits(43));
}

#[test]
fn sizes_are_the_configured_ones_and_classes_are_even() {
    let source = generate(&config(130, 70, 1)).unwrap();
    assert_eq!(source.num_training, Some(130));
    assert_eq!(source.table.class_counts(), [20; NUM_CLASSES]);
    assert_eq!(source.table.sample_shape(), [1, SAMPLE_LENGTH]);
    let values: Vec<f64> = source.table.values().iter().map(|&value| f64::from(value)).collect();
    let (mean, std) = signal::mean_and_std(&values);
    assert!(mean.abs() < 1e-6 && (std - 1.0).abs() < 1e-6, "mean {mean}, deviation {std}");
}

#[test]
fn a_size_that_cannot_be_even_is_refused() {
    let error = generate(&config(4_000, 1_001, 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "data.mnist1d: train_samples + test_samples is 5001, expected a multiple of 10, at most 10000000"
    );
}

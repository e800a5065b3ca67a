//! MNIST-1D: ten digit templates of 12 points, distorted into signals of 40 points.
//!
//! The recipe and its constants are those of the published generator (Greydanus and Kobak, *Scaling down deep learning
//! with MNIST-1D*, arXiv:2011.14439; package `mnist1d` 0.0.2.post1, Apache-2.0); the draws are ChaCha8, so a seed gives
//! the same distribution but not the same samples. A logistic regression reaches 32 %, an MLP 68 %, a convolutional
//! network 94 % (the paper): small networks have far to grow.
//!
//! As in the publication, mean and standard deviation are removed over all samples, the test part included (two
//! numbers), and the parts are cut after a shuffle, so they are not exactly balanced.

use rand_chacha::ChaCha8Rng;

use super::source::Known;
use super::{Error, Mnist1dConfig, Table, Targets, draw, signal};

/// Points of one sample; its shape is (1, 40).
pub(super) const SAMPLE_LENGTH: usize = 40;
/// Classes of the set.
pub(super) const NUM_CLASSES: usize = 10;

const TEMPLATE_LENGTH: usize = 12;
const PADDING: std::ops::RangeInclusive<usize> = 36..=60;
/// Every padded template is brought to this length before it is shifted.
const FULL_LENGTH: usize = TEMPLATE_LENGTH + *PADDING.end();
const SCALE_RANGE: f64 = 0.4;
const MAX_SHIFT: usize = 48;
const CORRELATED_NOISE: f64 = 0.25;
const INDEPENDENT_NOISE: f64 = 0.02;
const SHEAR_RANGE: f64 = 0.75;
/// Lifts the template off zero: exact zeros mark the padding, which receives the correlated noise.
const PADDING_MARK: f64 = 1e-8;

const TEMPLATES: [[f64; TEMPLATE_LENGTH]; NUM_CLASSES] = [
    [5.0, 6.0, 6.5, 6.75, 7.0, 7.0, 7.0, 7.0, 6.75, 6.5, 6.0, 5.0],
    [5.0, 3.0, 3.0, 3.4, 3.8, 4.2, 4.6, 5.0, 5.4, 5.8, 5.0, 5.0],
    [5.0, 6.0, 6.5, 6.5, 6.0, 5.25, 4.75, 4.0, 3.5, 3.5, 4.0, 5.0],
    [5.0, 6.0, 6.5, 6.5, 6.0, 5.0, 5.0, 6.0, 6.5, 6.5, 6.0, 5.0],
    [5.0, 4.4, 3.8, 3.2, 2.6, 2.6, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0],
    [5.0, 3.0, 3.0, 3.0, 3.0, 5.0, 6.0, 6.5, 6.5, 6.0, 4.5, 5.0],
    [5.0, 4.0, 3.5, 3.25, 3.0, 3.0, 3.0, 3.0, 3.25, 3.5, 4.0, 5.0],
    [5.0, 7.0, 7.0, 6.6, 6.2, 5.8, 5.4, 5.0, 4.6, 4.2, 5.0, 5.0],
    [5.0, 4.0, 3.5, 3.5, 4.0, 5.0, 5.0, 4.0, 3.5, 3.5, 4.0, 5.0],
    [5.0, 4.0, 3.5, 3.5, 4.0, 5.0, 5.0, 5.0, 5.0, 4.7, 4.3, 5.0],
];

/// Draws the set: the training part first, then the test part.
///
/// # Errors
/// [`Error::Config`] when the number of samples is not a multiple of the number of classes.
pub(super) fn generate(config: &Mnist1dConfig) -> Result<Known, Error> {
    let num_samples = config.num_samples()?;
    let mut rng = draw::generator("esper data 2026 mnist1d samples", config.seed);
    let mut samples = Vec::with_capacity(num_samples);
    for (label, template) in (0_u32..).zip(templates()) {
        for _ in 0..num_samples / NUM_CLASSES {
            samples.push((label, distort(&template, &Distortion::draw(&mut rng))));
        }
    }
    draw::shuffle(&mut rng, &mut samples);
    let targets = samples.iter().map(|(label, _)| *label).collect();
    let values: Vec<f64> = samples.into_iter().flat_map(|(_, sample)| sample).collect();
    let (mean, std) = signal::mean_and_std(&values);
    #[expect(clippy::cast_possible_truncation, reason = "samples are single precision")]
    let inputs: Vec<f32> = values.into_iter().map(|value| ((value - mean) / std) as f32).collect();
    let table = Table::new(inputs, vec![1, SAMPLE_LENGTH], Targets::numbered(targets, NUM_CLASSES))?;
    Ok(Known { table, num_training: Some(config.train_samples.get()), divisor: 1.0 })
}

/// Templates with mean 0 and deviation 1/6 that start at 0.
fn templates() -> [[f64; TEMPLATE_LENGTH]; NUM_CLASSES] {
    TEMPLATES.map(|template| {
        let (mean, std) = signal::mean_and_std(&template);
        let whitened = template.map(|value| (value - mean) / std);
        whitened.map(|value| (value - whitened[0]) / 6.0)
    })
}

/// Everything random about one sample.
#[derive(Debug)]
struct Distortion {
    /// Zeros after the template.
    padding: usize,
    /// Position in the range of scales, in [0, 1).
    scale: f64,
    /// Points by which the signal is rotated to the right.
    shift: usize,
    /// Noise of unit deviation for the padding, before smoothing.
    correlated: Vec<f64>,
    /// Noise of unit deviation for every point.
    independent: Vec<f64>,
    /// Position in the range of slopes, in [0, 1).
    shear: f64,
}

impl Distortion {
    fn draw(rng: &mut ChaCha8Rng) -> Self {
        let noise = |rng: &mut ChaCha8Rng| (0..FULL_LENGTH).map(|_| draw::standard_normal(rng)).collect();
        Self {
            padding: PADDING.start() + draw::below(rng, PADDING.count()),
            scale: draw::unit(rng),
            shift: draw::below(rng, MAX_SHIFT),
            correlated: noise(rng),
            independent: noise(rng),
            shear: draw::unit(rng),
        }
    }
}

/// Pads, dilates, scales, shifts, adds both noises, shears, and samples 40 points.
fn distort(template: &[f64; TEMPLATE_LENGTH], distortion: &Distortion) -> Vec<f64> {
    let mut padded: Vec<f64> = template.iter().map(|value| value + PADDING_MARK).collect();
    padded.resize(TEMPLATE_LENGTH + distortion.padding, 0.0);
    let mut full = signal::resample(&padded, FULL_LENGTH);
    let factor = 1.0 + SCALE_RANGE * (distortion.scale - 0.5);
    full.iter_mut().for_each(|value| *value *= factor);
    full.rotate_right(distortion.shift);

    let background: Vec<f64> = distortion.correlated.iter().map(|value| CORRELATED_NOISE * value).collect();
    let slope = SHEAR_RANGE * (distortion.shear - 0.5);
    for (index, (value, background)) in full.iter_mut().zip(signal::smooth(&background)).enumerate() {
        if *value == 0.0 {
            *value = background;
        }
        let position = index as f64 / (FULL_LENGTH - 1) as f64 - 0.5;
        *value += INDEPENDENT_NOISE * distortion.independent[index] - slope * position;
    }
    signal::resample(&full, SAMPLE_LENGTH)
}

#[cfg(test)]
mod tests;

//! Crop, flip and noise, and their section of the configuration.

use std::sync::Arc;

use candle_core::DType;
use leyline::source::{SampleSpec, SamplesMut, SourceError};
use serde::{Deserialize, Serialize};

use super::{SampleRandom, Transform};

/// What is done to training samples in every epoch; nothing by default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AugmentConfig {
    /// Moves pictures by up to so many pixels up, down, left and right; what comes in is 0. 0 is off.
    pub crop: usize,
    /// Probability of a picture to be mirrored left to right, in `[0, 1]`. 0 is off.
    pub flip: f64,
    /// Standard deviation of the noise that is added to each input. 0 is off.
    pub noise: f64,
    /// Channels, height and width of a sample, for crop and flip; absent where samples have these three dimensions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub picture: Option<[usize; 3]>,
}

impl AugmentConfig {
    /// Whether nothing is set: what is not written down, so that runs of earlier builds can be resumed.
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether samples stay as they are.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.transforms().is_empty()
    }

    /// What it asks for, in this order: crop, flip, noise.
    #[must_use]
    pub fn transforms(&self) -> Vec<Arc<dyn Transform>> {
        let picture = self.picture;
        let mut transforms: Vec<Arc<dyn Transform>> = Vec::new();
        if self.crop > 0 {
            transforms.push(Arc::new(Crop { pixels: self.crop, picture }));
        }
        if self.flip > 0.0 {
            transforms.push(Arc::new(Flip { probability: self.flip, picture }));
        }
        if self.noise > 0.0 {
            transforms.push(Arc::new(Noise { deviation: self.noise }));
        }
        transforms
    }

    /// Every setting that cannot work, as (key, what is accepted).
    #[must_use]
    pub fn validate(&self) -> Vec<(String, String)> {
        let mut issues = Vec::new();
        if !(0.0..=1.0).contains(&self.flip) {
            issues.push(("flip".to_owned(), "a number from 0 to 1".to_owned()));
        }
        if !(0.0..f64::INFINITY).contains(&self.noise) {
            issues.push(("noise".to_owned(), "a number from 0 on".to_owned()));
        }
        if self.picture.is_some_and(|dims| dims.contains(&0)) {
            issues.push(("picture".to_owned(), "channels, height and width of at least 1".to_owned()));
        }
        issues
    }
}

/// Channels, height and width of a sample that is a picture.
fn picture_of(given: Option<[usize; 3]>, spec: &SampleSpec) -> Result<[usize; 3], String> {
    let inputs = &spec.inputs;
    let found = given.or_else(|| inputs.dims().try_into().ok());
    match found.filter(|dims| dims.iter().product::<usize>() == inputs.num_elements()) {
        Some(dims) if inputs.dtype() == DType::F32 && inputs.num_elements() > 0 => Ok(dims),
        _ => {
            let named = given.map_or_else(String::new, |dims| format!(", which are no picture {dims:?}"));
            Err(format!("f32 of shape [channels, height, width], or `picture` to say it; samples are {inputs}{named}"))
        }
    }
}

fn rejected(what: &str, expected: String) -> SourceError {
    SourceError::rejected(format!("{what} expects {expected}"))
}

/// Moves a picture by -n to n pixels in both directions, each equally likely: a crop of the picture with n zeros around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crop {
    /// The largest move (n).
    pub pixels: usize,
    /// Channels, height and width; absent where the sample's own shape is that.
    pub picture: Option<[usize; 3]>,
}

impl Transform for Crop {
    fn describe(&self) -> String {
        format!("crop {} {:?}", self.pixels, self.picture)
    }

    fn apply(
        &self,
        sample: &mut SamplesMut<'_>,
        spec: &SampleSpec,
        random: &mut SampleRandom,
    ) -> Result<(), SourceError> {
        let [_, height, width] = picture_of(self.picture, spec).map_err(|expected| rejected("crop", expected))?;
        let choices = u32::try_from(2 * self.pixels + 1).unwrap_or(u32::MAX);
        let (down, right) = (random.below(choices) as usize, random.below(choices) as usize);
        for channel in sample.inputs.as_f32()?.chunks_exact_mut(height * width) {
            crop(channel, width, (down, right), self.pixels);
        }
        Ok(())
    }

    fn fits(&self, spec: &SampleSpec) -> Result<(), String> {
        let [_, height, width] = picture_of(self.picture, spec)?;
        let smallest = height.min(width);
        if self.pixels < smallest {
            Ok(())
        } else {
            Err(format!("a crop below {smallest} pixels, found {}", self.pixels))
        }
    }
}

/// The `(down, right)`-th crop of a channel with `pad` zeros on each side, in place.
fn crop(channel: &mut [f32], width: usize, (down, right): (usize, usize), pad: usize) {
    let height = channel.len() / width;
    // Column x of the result is column x + right - pad of the channel.
    let (from, to) = (right.saturating_sub(pad), pad.saturating_sub(right));
    let kept = width.saturating_sub(from.max(to));
    let mut row = |y: usize| {
        let start = y * width;
        match (y + down).checked_sub(pad).filter(|source| *source < height) {
            None => channel[start..start + width].fill(0.0),
            Some(source) => {
                let source = source * width + from;
                channel.copy_within(source..source + kept, start + to);
                channel[start..start + to].fill(0.0);
                channel[start + to + kept..start + width].fill(0.0);
            }
        }
    };
    // A row is read before it is written.
    if down >= pad { (0..height).for_each(&mut row) } else { (0..height).rev().for_each(&mut row) }
}

/// Mirrors a picture left to right.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flip {
    /// In `[0, 1]`.
    pub probability: f64,
    /// Channels, height and width; absent where the sample's own shape is that.
    pub picture: Option<[usize; 3]>,
}

impl Transform for Flip {
    fn describe(&self) -> String {
        format!("flip {} {:?}", self.probability, self.picture)
    }

    fn apply(
        &self,
        sample: &mut SamplesMut<'_>,
        spec: &SampleSpec,
        random: &mut SampleRandom,
    ) -> Result<(), SourceError> {
        let [.., width] = picture_of(self.picture, spec).map_err(|expected| rejected("flip", expected))?;
        if f64::from(random.uniform()) < self.probability {
            sample.inputs.as_f32()?.chunks_exact_mut(width).for_each(<[f32]>::reverse);
        }
        Ok(())
    }

    fn fits(&self, spec: &SampleSpec) -> Result<(), String> {
        picture_of(self.picture, spec).map(drop)
    }
}

/// Adds a normal number to each input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Noise {
    /// Its standard deviation.
    pub deviation: f64,
}

impl Transform for Noise {
    fn describe(&self) -> String {
        format!("noise {}", self.deviation)
    }

    #[expect(clippy::cast_possible_truncation, reason = "inputs are f32")]
    fn apply(&self, sample: &mut SamplesMut<'_>, _: &SampleSpec, random: &mut SampleRandom) -> Result<(), SourceError> {
        let deviation = self.deviation as f32;
        for input in sample.inputs.as_f32()? {
            *input += deviation * random.normal();
        }
        Ok(())
    }

    fn fits(&self, spec: &SampleSpec) -> Result<(), String> {
        let is_real = spec.inputs.dtype() == DType::F32;
        if is_real { Ok(()) } else { Err(format!("inputs of f32, found {}", spec.inputs)) }
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "pixels are moved, not computed")]
mod tests {
    use leyline::source::Field;

    use super::super::Place;
    use super::*;

    const PICTURE: [f32; 6] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];

    #[track_caller]
    fn cropped(down: usize, right: usize, expected: [f32; 6]) {
        let mut channel = PICTURE;
        crop(&mut channel, 3, (down, right), 1);
        assert_eq!(channel, expected, "{down} {right}");
    }

    #[test]
    fn a_crop_moves_a_picture_and_fills_with_zeros() {
        cropped(1, 1, PICTURE);
        cropped(0, 1, [0.0, 0.0, 0.0, 1.0, 2.0, 3.0]);
        cropped(2, 1, [4.0, 5.0, 6.0, 0.0, 0.0, 0.0]);
        cropped(1, 0, [0.0, 1.0, 2.0, 0.0, 4.0, 5.0]);
        cropped(1, 2, [2.0, 3.0, 0.0, 5.0, 6.0, 0.0]);
        cropped(0, 0, [0.0, 0.0, 0.0, 0.0, 1.0, 2.0]);
        cropped(2, 2, [5.0, 6.0, 0.0, 0.0, 0.0, 0.0]);
    }

    fn spec(dims: &[usize]) -> SampleSpec {
        SampleSpec { inputs: Field::f32(dims), targets: Field::u32([]) }
    }

    /// How often each result occurs among samples.
    fn results(transform: &dyn Transform, num_samples: u32) -> Vec<([f32; 6], u32)> {
        let mut counts: Vec<([f32; 6], u32)> = Vec::new();
        for sample in 0..num_samples {
            let (mut inputs, mut targets) = (PICTURE, [0_u32]);
            let mut random = SampleRandom::new(5, Place { epoch: 0, position: sample, sample }, 0);
            let mut view = SamplesMut::new(&mut inputs, &mut targets);
            transform.apply(&mut view, &spec(&[1, 2, 3]), &mut random).unwrap();
            match counts.iter_mut().find(|(result, _)| *result == inputs) {
                Some((_, count)) => *count += 1,
                None => counts.push((inputs, 1)),
            }
        }
        counts
    }

    #[test]
    fn every_move_of_a_crop_is_equally_likely_and_a_flip_has_its_probability() {
        let crops = results(&Crop { pixels: 1, picture: None }, 9000);
        // Five standard deviations of a count of 9000 draws with probability 1/9.
        assert!(crops.len() == 9 && crops.iter().all(|(_, count)| count.abs_diff(1000) < 150), "{crops:?}");
        let flips = results(&Flip { probability: 0.25, picture: Some([1, 2, 3]) }, 9000);
        let (_, turned) = flips.iter().find(|(result, _)| *result == [3.0, 2.0, 1.0, 6.0, 5.0, 4.0]).unwrap();
        assert!(flips.len() == 2 && turned.abs_diff(2250) < 206, "{flips:?}");
    }

    #[test]
    fn what_a_transform_does_not_fit_is_refused_by_name() {
        let message = |transform: &dyn Transform, spec: &SampleSpec| transform.fits(spec).unwrap_err();
        let crop = Crop { pixels: 2, picture: None };
        assert!(message(&crop, &spec(&[6])).contains("samples are f32 [6]"));
        assert!(message(&crop, &spec(&[1, 2, 3])).contains("below 2 pixels, found 2"));
        assert!(
            message(&Flip { probability: 0.5, picture: Some([1, 2, 4]) }, &spec(&[6])).contains("no picture [1, 2, 4]")
        );
        let tokens = SampleSpec { inputs: Field::u32([1, 2, 3]), targets: Field::u32([]) };
        assert!(message(&Noise { deviation: 1.0 }, &tokens).contains("found u32"));
        assert!(message(&crop, &tokens).contains("samples are u32"));
    }

    #[test]
    fn a_section_names_what_cannot_work_and_is_off_by_default() {
        assert!(AugmentConfig::default().is_off());
        let config: AugmentConfig =
            serde_json::from_str(r#"{"flip": 2.0, "noise": -1.0, "picture": [1, 0, 2]}"#).unwrap();
        let keys: Vec<String> = config.validate().into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["flip", "noise", "picture"]);
        let config: AugmentConfig = serde_json::from_str(r#"{"flip": 0.5, "crop": 4, "noise": 0.1}"#).unwrap();
        let names: Vec<String> = config.transforms().iter().map(|transform| transform.describe()).collect();
        assert_eq!(
            (config.validate(), names),
            (vec![], vec!["crop 4 None".into(), "flip 0.5 None".into(), "noise 0.1".into()])
        );
    }
}

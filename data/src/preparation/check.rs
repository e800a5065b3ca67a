//! What must hold of a preparation that comes from a file.

use super::{FeaturePlan, MAX_VALUES, Preparation};
use crate::TargetKind;

impl Preparation {
    /// The first thing in it that cannot be: the field, what it is, and what is accepted. None of what [`super::super::load`]
    /// learned.
    #[must_use]
    pub fn contradiction(&self) -> Option<(&'static str, String, String)> {
        let wrong = |field, found: &dyn ToString, expected: String| Some((field, found.to_string(), expected));
        if self.version != Self::VERSION {
            return wrong("version", &self.version, Self::VERSION.to_string());
        }
        let width = self.sample_shape.iter().try_fold(1_usize, |width, &side| width.checked_mul(side));
        let Some(width) = width.filter(|&width| (1..=MAX_VALUES).contains(&width) && !self.sample_shape.is_empty())
        else {
            let found = format!("{:?}", self.sample_shape);
            return wrong("sample_shape", &found, format!("sizes above 0 with a product of at most {MAX_VALUES}"));
        };
        if let Some(plan) = &self.columns {
            let inputs = plan.features.iter().fold(0_usize, |sum, feature| sum.saturating_add(feature.num_inputs()));
            if inputs != width {
                return wrong(
                    "columns",
                    &format!("{inputs} inputs"),
                    format!("{width}, as many as `sample_shape` has"),
                );
            }
            let positions = || plan.features.iter().map(|FeaturePlan { position, .. }| position);
            let beyond = positions().chain(plan.targets.iter().map(|(_, position)| position)).max();
            if beyond.is_some_and(|&position| position >= plan.num_columns) {
                let expected = format!("places below {}, the number of columns", plan.num_columns);
                return wrong("columns", &format!("a column at {}", beyond.copied().unwrap_or_default()), expected);
            }
        }
        let (means, scales) = (&self.scaling.means, &self.scaling.scales);
        if means.len() != scales.len() || ![0, 1, width].contains(&means.len()) {
            let found = format!("{} means and {} scales", means.len(), scales.len());
            return wrong("scaling", &found, format!("as many of both: none, 1 or {width}"));
        }
        let target = &self.target;
        let of_values = if target.kind == TargetKind::Values { target.names.len() } else { 0 };
        if [&target.means, &target.scales].iter().any(|found| found.len() != of_values && !found.is_empty()) {
            let found = format!("{} means and {} scales", target.means.len(), target.scales.len());
            return wrong("target", &found, format!("{of_values} of both, or none"));
        }
        let all_means = means.iter().chain(&target.means);
        let mut all_scales = scales.iter().chain(&target.scales);
        if let Some(mean) = all_means.into_iter().find(|mean| !mean.is_finite()) {
            return wrong("scaling", &format!("a mean of {mean}"), "finite numbers".to_owned());
        }
        if let Some(scale) = all_scales.find(|scale| !(scale.is_finite() && **scale > 0.0)) {
            return wrong("scaling", &format!("a scale of {scale}"), "finite numbers above 0".to_owned());
        }
        None
    }
}

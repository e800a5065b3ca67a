//! What must hold of a preparation that comes from a file.

use std::collections::BTreeSet;

use super::{ColumnPlan, FeatureKind, MAX_VALUES, Preparation, quoted};
use crate::{Error, TargetKind, TargetPlan, format};

/// A field, what it is, and what is accepted.
type Contradiction = (&'static str, String, String);

fn wrong(field: &'static str, found: impl ToString, expected: impl Into<String>) -> Option<Contradiction> {
    Some((field, found.to_string(), expected.into()))
}

impl Preparation {
    /// The first thing in it that cannot be: the field, what it is, and what is accepted. None of what [`super::super::load`]
    /// learned.
    #[must_use]
    pub fn contradiction(&self) -> Option<(&'static str, String, String)> {
        if self.version != Self::VERSION {
            return wrong("version", self.version, Self::VERSION.to_string());
        }
        let width = self.sample_shape.iter().try_fold(1_usize, |width, &side| width.checked_mul(side));
        let Some(width) = width.filter(|&width| (1..=MAX_VALUES).contains(&width) && !self.sample_shape.is_empty())
        else {
            let found = format!("{:?}", self.sample_shape);
            return wrong("sample_shape", found, format!("sizes above 0 with a product of at most {MAX_VALUES}"));
        };
        if let Some(plan) = &self.columns {
            let inputs = plan.features.iter().fold(0_usize, |sum, feature| sum.saturating_add(feature.num_inputs()));
            if inputs != width {
                let expected = format!("{width}, as many as `sample_shape` has");
                return wrong("columns", format!("{inputs} inputs"), expected);
            }
            if let Some(contradiction) = plan.contradiction(&self.target) {
                return Some(contradiction);
            }
        }
        if let Some(format) = self.format.as_ref().filter(|&given| format::names().all(|name| name != given)) {
            return wrong("format", quoted(format), format::names().collect::<Vec<_>>().join(", "));
        }
        let (means, scales) = (&self.scaling.means, &self.scaling.scales);
        if means.len() != scales.len() || ![0, 1, width].contains(&means.len()) {
            let found = format!("{} means and {} scales", means.len(), scales.len());
            return wrong("scaling", found, format!("as many of both: none, 1 or {width}"));
        }
        let target = &self.target;
        if let Some(contradiction) = target.contradiction() {
            return Some(contradiction);
        }
        if let Some(file) = &self.tokenizer {
            let is_known = target.kind == TargetKind::Tokens && !target.is_text;
            let expected = target.vocabulary.filter(|_| is_known);
            match file.open("tokenizer").map(|tokenizer| tokenizer.vocabulary()) {
                Err(Error::Content { found, expected, .. }) => return wrong("tokenizer", found, expected),
                Err(other) => return wrong("tokenizer", other.to_string(), "what was learned with"),
                Ok(found) if Some(found) != expected => {
                    let expected = expected.map_or_else(|| "none".to_owned(), |expected| expected.to_string());
                    return wrong(
                        "tokenizer",
                        format!("one of {found} tokens"),
                        format!("{expected}, as `target` says"),
                    );
                }
                Ok(_) => {}
            }
        }
        if let Some(bytes) = target.bytes_per_token.filter(|bytes| !(bytes.is_finite() && *bytes > 0.0)) {
            return wrong("target", format!("{bytes} bytes per token"), "a finite number above 0");
        }
        let all_means = means.iter().chain(&target.means);
        let mut all_scales = scales.iter().chain(&target.scales);
        if let Some(mean) = all_means.into_iter().find(|mean| !mean.is_finite()) {
            return wrong("scaling", format!("a mean of {mean}"), "finite numbers");
        }
        if let Some(scale) = all_scales.find(|scale| !(scale.is_finite() && **scale > 0.0)) {
            return wrong("scaling", format!("a scale of {scale}"), "finite numbers above 0");
        }
        None
    }
}

impl ColumnPlan {
    fn contradiction(&self, target: &TargetPlan) -> Option<Contradiction> {
        let positions = || {
            let features = self.features.iter().map(|feature| feature.position);
            features.chain(self.targets.iter().map(|(_, position)| *position))
        };
        if let Some(beyond) = positions().find(|&position| position >= self.num_columns) {
            let expected = format!("places below {}, the number of columns", self.num_columns);
            return wrong("columns", format!("a column at {beyond}"), expected);
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = positions().find(|&position| !seen.insert(position)) {
            return wrong("columns", format!("two columns at {twice}"), "a place for each");
        }
        if self.targets.len() != target.num_columns() || target.kind == TargetKind::Tokens {
            let found = format!("{} columns of a target of {}", self.targets.len(), target.kind);
            return wrong("columns", found, "1 for classes, and one for each of the values or flags");
        }
        let unordered = self.features.iter().find(|feature| match &feature.kind {
            FeatureKind::Words { values } => !values.is_sorted_by(|one, next| one < next),
            FeatureKind::Number { .. } => false,
        });
        unordered.and_then(|feature| {
            let found = format!("words of {} in another order, or twice", quoted(&feature.name));
            wrong("columns", found, "each word once, in the order of their bytes")
        })
    }
}

impl TargetPlan {
    fn contradiction(&self) -> Option<Contradiction> {
        let (means, scales, names) = (self.means.len(), self.scales.len(), self.names.len());
        let of_values = if self.kind == TargetKind::Values { names } else { 0 };
        if means != scales || means != of_values && means != 0 {
            return wrong(
                "target",
                format!("{means} means and {scales} scales"),
                format!("{of_values} of both, or none"),
            );
        }
        match (self.kind, self.vocabulary) {
            (TargetKind::Tokens, Some(256)) => return None,
            (TargetKind::Tokens, Some(1..)) if !self.is_text => return None,
            (TargetKind::Tokens, Some(number @ 1..)) => {
                return wrong("target", format!("a text of {number} different bytes"), "256");
            }
            (TargetKind::Tokens, _) => return wrong("target", "tokens without a vocabulary", "their number"),
            (kind, Some(_)) => return wrong("target", format!("a vocabulary beside {kind}"), "one for tokens alone"),
            (kind, None) if self.is_text => {
                return wrong("target", format!("a text beside {kind}"), "one for tokens alone");
            }
            (_, None) => {}
        }
        let (counts, of_classes) = (self.class_counts.len(), if self.kind == TargetKind::Classes { names } else { 0 });
        if counts != of_classes && counts != 0 {
            return wrong("target", format!("counts of {counts} classes"), format!("{of_classes}, or none"));
        }
        let mut seen = BTreeSet::new();
        match self.names.iter().find(|name| !seen.insert(*name)) {
            _ if names == 0 => wrong("target", "no names", "one for each output"),
            Some(name) if self.kind == TargetKind::Classes => {
                wrong("target", format!("two classes called {}", quoted(name)), "a name for each")
            }
            _ => None,
        }
    }
}

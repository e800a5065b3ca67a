//! What is found of a model: numbers, and what is said of them.

use std::collections::BTreeMap;

use baselines::measure::Measurement;

/// Numbers and texts by name, without the name of the model.
#[derive(Debug, Default)]
pub struct Found {
    /// Quantities.
    pub measurements: BTreeMap<String, Measurement>,
    /// What was compared, refused, or failed.
    pub texts: BTreeMap<String, String>,
    /// Whether a promise was broken: other bits, a gradient that is wrong or missing, a failure.
    pub is_broken: bool,
}

impl Found {
    /// Values of a quantity; nothing where there are none.
    pub(crate) fn values(&mut self, name: impl Into<String>, unit: &str, values: Vec<f64>) {
        if let Some(measured) = Measurement::of(unit, values) {
            self.measurements.insert(name.into(), Measurement { samples: Vec::new(), ..measured });
        }
    }

    /// One value.
    pub(crate) fn value(&mut self, name: &str, unit: &str, value: f64) {
        self.values(name, unit, vec![value]);
    }

    /// A sentence. One with `BROKEN` says that a promise was not kept.
    pub(crate) fn say(&mut self, name: impl Into<String>, text: String) {
        self.is_broken |= text.contains("BROKEN");
        self.texts.insert(name.into(), text);
    }

    /// What failed, with the first lines of its error: after them candle lists the calls.
    pub(crate) fn fails(&mut self, name: &str, error: &dyn std::error::Error) {
        self.is_broken = true;
        let mut texts = vec![error.to_string()];
        let mut source = error.source();
        while let Some(error) = source {
            texts.push(error.to_string());
            source = error.source();
        }
        let lines = texts.iter().flat_map(|text| text.lines()).filter(|line| !line.trim_start().starts_with("at "));
        let lines = lines.filter(|line| !line.trim_start().split(':').next().is_some_and(|n| n.parse::<u32>().is_ok()));
        let told: String = lines.take(4).collect::<Vec<_>>().join(": ").chars().take(600).collect();
        self.texts.insert(name.to_owned(), format!("fails: {told}"));
    }

    /// Half of the values are at most this.
    #[must_use]
    pub fn median(&self, name: &str) -> Option<f64> {
        self.measurements.get(name).map(|measured| measured.median)
    }
}

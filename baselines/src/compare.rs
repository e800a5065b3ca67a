//! Two results beside each other: ratios with their intervals, what became worse, and what was lost.

mod interval;
mod rules;

use std::cmp::Ordering;
use std::fmt;

pub use rules::{Better, Rule, rule_of};

use crate::measure::Measurement;
use crate::result::BenchResult;

/// A quantity in both results.
#[derive(Debug, Clone, PartialEq)]
pub struct Ratio {
    /// Name of the quantity.
    pub name: String,
    /// Median now / median before.
    pub median: f64,
    /// 95 % bootstrap interval of that ratio; where a result has fewer than five samples, the least and the largest ratio of
    /// one to another; absent where it has a single one.
    pub interval: Option<[f64; 2]>,
    /// Whether the interval, where there is one, is of all samples, not of medians.
    pub is_of_all: bool,
    /// 95th percentile now / before.
    pub p95: f64,
    /// Which direction is worse, and how far is too far.
    pub rule: Rule,
}

impl Ratio {
    fn of(name: &str, old: &Measurement, new: &Measurement) -> Self {
        let of_medians = interval::of_medians(&old.samples, &new.samples);
        Self {
            name: name.to_owned(),
            median: quotient(new.median, old.median),
            interval: of_medians.or_else(|| interval::of_all(old, new)),
            is_of_all: of_medians.is_none(),
            p95: quotient(new.p95, old.p95),
            rule: rule_of(name, &new.unit),
        }
    }

    /// Whether it became worse by more than the threshold: the whole interval lies beyond, or, without one (a single
    /// sample), the ratio of the medians.
    #[must_use]
    pub fn is_worse(&self) -> bool {
        let [low, high] = self.interval.unwrap_or([self.median; 2]);
        let limit = 1.0 + self.rule.threshold;
        // A ratio that is no number came from something that was 0 or less, and is no improvement.
        match self.rule.better {
            Better::Lower => low.is_nan() || low > limit,
            Better::Higher => high.is_nan() || high < limit.recip(),
            Better::Neither => false,
        }
    }

    /// Whether it became better by more than the threshold, as [`is_worse`](Self::is_worse) in the other direction.
    #[must_use]
    pub fn is_better(&self) -> bool {
        let [low, high] = self.interval.unwrap_or([self.median; 2]);
        let limit = 1.0 + self.rule.threshold;
        match self.rule.better {
            Better::Lower => high < limit.recip(),
            Better::Higher => low > limit,
            Better::Neither => false,
        }
    }

    /// How much worse the median is, as a factor; below 1 where it is better. Absent where no direction is.
    fn worsening(&self) -> Option<f64> {
        match self.rule.better {
            Better::Lower => Some(self.median),
            Better::Higher => Some(self.median.recip()),
            Better::Neither => None,
        }
    }

    fn interval_text(&self) -> String {
        let of_all = if self.is_of_all { " all samples" } else { "" };
        self.interval.map_or_else(|| "medians only".to_owned(), |[low, high]| format!("[{low:.3}, {high:.3}]{of_all}"))
    }
}

/// 1 of two zeros.
fn quotient(new: f64, old: f64) -> f64 {
    if new.to_bits() == old.to_bits() { 1.0 } else { new / old }
}

/// The difference between two results.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Comparison {
    /// Quantities in both.
    pub ratios: Vec<Ratio>,
    /// Quantities and telemetry metrics that only the first result has.
    pub lost: Vec<String>,
    /// Differences that make the ratios doubtful.
    pub warnings: Vec<String>,
}

impl Comparison {
    /// Whether everything that was there still is, and nothing is worse by more than its threshold.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.lost.is_empty() && !self.ratios.iter().any(Ratio::is_worse)
    }
}

/// Compares `after` with `before`.
#[must_use]
pub fn compare(before: &BenchResult, after: &BenchResult) -> Comparison {
    let mut comparison = Comparison::default();
    for (name, old) in &before.measurements {
        match after.measurements.get(name) {
            Some(new) if new.unit == old.unit => comparison.ratios.push(Ratio::of(name, old, new)),
            Some(new) => comparison.lost.push(format!("measurement {name} in {}: it is in {} now", old.unit, new.unit)),
            None => comparison.lost.push(format!("measurement {name}")),
        }
    }
    let lost = before.metrics.iter().filter(|name| !after.metrics.contains(name));
    comparison.lost.extend(lost.map(|name| format!("metric {name}")));
    let mut differs = |what: &str, old: &dyn fmt::Debug, new: &dyn fmt::Debug| {
        let (old, new) = (format!("{old:?}"), format!("{new:?}"));
        if old != new {
            comparison.warnings.push(format!("{what} differs: {old}, {new}"));
        }
    };
    differs("work", &before.name, &after.name);
    differs("processor", &before.environment.cpu, &after.environment.cpu);
    differs("GPU", &before.environment.gpu, &after.environment.gpu);
    differs("profile", &before.environment.profile, &after.environment.profile);
    differs("config", &before.config, &after.config);
    comparison
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for warning in &self.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        let width = self.ratios.iter().map(|ratio| ratio.name.len()).max().unwrap_or(0);
        for ratio in &self.ratios {
            let interval = ratio.interval_text();
            writeln!(f, "{:<width$}  median ×{:.3} {interval:<16}  p95 ×{:.3}", ratio.name, ratio.median, ratio.p95)?;
        }
        for lost in &self.lost {
            writeln!(f, "lost: {lost}")?;
        }
        let worse: Vec<&Ratio> = self.ratios.iter().filter(|ratio| ratio.is_worse()).collect();
        if !worse.is_empty() {
            writeln!(f, "\n{:<width$}  {:>7}  {:<16}  threshold", "worse", "ratio", "95 % interval")?;
        }
        for ratio in worse {
            let sign = if ratio.rule.better == Better::Lower { '+' } else { '-' };
            let (interval, percent) = (ratio.interval_text(), 100.0 * ratio.rule.threshold);
            writeln!(f, "{:<width$}  {:>7.3}  {interval:<16}  {sign}{percent:.0} %", ratio.name, ratio.median)?;
        }
        let count = |is: fn(&Ratio) -> bool| self.ratios.iter().filter(|&ratio| is(ratio)).count();
        let (better, worse) = (count(Ratio::is_better), count(Ratio::is_worse));
        let not_judged = count(|ratio| ratio.rule.better == Better::Neither);
        let same = self.ratios.len() - better - worse - not_judged;
        let lost = self.lost.len();
        write!(f, "\nsummary: {better} better, {worse} worse, {same} the same, {not_judged} not judged, {lost} lost")?;
        let by_worsening =
            |a: &&Ratio, b: &&Ratio| a.worsening().partial_cmp(&b.worsening()).unwrap_or(Ordering::Equal);
        match self.ratios.iter().filter(|ratio| ratio.worsening().is_some()).max_by(by_worsening) {
            Some(worst) => writeln!(f, "; the worst is {} with ×{:.3}", worst.name, worst.median),
            None => writeln!(f),
        }
    }
}

#[cfg(test)]
mod tests;

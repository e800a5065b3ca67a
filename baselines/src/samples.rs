//! Values collected under names until they are summarized.

use std::collections::BTreeMap;
use std::time::Duration;

use leyline::clock::Clock;

use crate::error::Error;
use crate::measure::Measurement;
use crate::result::BenchResult;
use crate::work::Settings;

/// Values with their unit, by name.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    values: BTreeMap<String, (&'static str, Vec<f64>)>,
}

impl Samples {
    /// One more value. All values of a name have one unit.
    pub(crate) fn push(&mut self, name: impl Into<String>, unit: &'static str, value: f64) {
        self.values.entry(name.into()).or_insert_with(|| (unit, Vec::new())).1.push(value);
    }

    /// One more value where there is one.
    pub(crate) fn extend_from(&mut self, name: impl Into<String>, unit: &'static str, value: Option<f64>) {
        if let Some(value) = value {
            self.push(name, unit, value);
        }
    }

    /// The value alone when it is larger than the one there is.
    pub(crate) fn keep_largest(&mut self, name: impl Into<String>, unit: &'static str, value: f64) {
        let (_, values) = self.values.entry(name.into()).or_insert_with(|| (unit, Vec::new()));
        let largest = values.iter().copied().fold(value, f64::max);
        *values = vec![largest];
    }

    /// Half of the values of `name` are at most this; absent when there are none.
    pub(crate) fn median(&self, name: &str) -> Option<f64> {
        let (unit, values) = self.values.get(name)?;
        Some(Measurement::of(unit, values.clone())?.median)
    }

    /// The largest value over the median; absent when there are none.
    pub(crate) fn slowest_over_median(&self, name: &str) -> Option<f64> {
        let (unit, values) = self.values.get(name)?;
        let measured = Measurement::of(unit, values.clone())?;
        Some(measured.max / measured.median)
    }

    /// The values of a name at once; returns their median.
    pub(crate) fn extend(&mut self, name: impl Into<String>, unit: &'static str, values: Vec<f64>) -> f64 {
        let name = name.into();
        for value in values {
            self.push(&name, unit, value);
        }
        self.median(&name).unwrap_or(f64::NAN)
    }

    /// Times of `work` in `us` or `ms`, after a warm-up of so many turns; returns their median.
    pub(crate) fn time(
        &mut self,
        name: impl Into<String>,
        unit: &'static str,
        [warm_up, repetitions]: [usize; 2],
        clock: &dyn Clock,
        mut work: impl FnMut() -> Result<(), Error>,
    ) -> Result<f64, Error> {
        let of = if unit == "us" { us } else { ms };
        let mut times = Vec::with_capacity(repetitions);
        for turn in 0..warm_up + repetitions {
            let started = clock.now();
            work()?;
            let took = clock.now() - started;
            if turn >= warm_up {
                times.push(of(took));
            }
        }
        Ok(self.extend(name, unit, times))
    }

    /// The result of a work of the CPU, which `esper bench ARGUMENTS` repeats.
    pub(crate) fn into_result(
        self,
        name: &str,
        arguments: &str,
        notes: &str,
        config: Settings,
        clock: &dyn Clock,
    ) -> BenchResult {
        let command = format!("cargo run --release -p esper -- bench {arguments} --out DIR");
        let measurements = self.into_measurements();
        BenchResult { command, config, measurements, ..BenchResult::new(name, notes, clock) }
    }

    /// What was measured; a name with a value that is no number is left out.
    pub(crate) fn into_measurements(self) -> BTreeMap<String, Measurement> {
        let measured = |(name, (unit, values))| Some((name, Measurement::of(unit, values)?));
        self.values.into_iter().filter_map(measured).collect()
    }
}

/// Milliseconds.
pub(crate) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Microseconds.
pub(crate) fn us(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_name_are_summarized_together() {
        let mut samples = Samples::default();
        for value in [4.0, 1.0, 2.0] {
            samples.push("capture", "ms", value);
        }
        samples.push("broken", "ms", f64::NAN);
        for value in [4.0, 9.0, 2.0] {
            samples.keep_largest("stall", "ms", value);
        }
        samples.extend_from("stall", "ms", None);
        assert_eq!(samples.median("stall"), Some(9.0));
        assert_eq!((samples.median("capture"), samples.median("upload")), (Some(2.0), None));
        assert_eq!(samples.slowest_over_median("capture"), Some(2.0));
        let measured = samples.into_measurements();
        assert_eq!(
            measured.into_iter().map(|(name, m)| (name, m.n)).collect::<Vec<_>>(),
            [("capture".to_owned(), 3), ("stall".to_owned(), 1)]
        );
    }
}

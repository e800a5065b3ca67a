//! Axes: where a value stands, and which values are labeled.

use super::length::{Percent, Px};
use crate::report::format;

/// Height of the drawing area of a plot, in pixels.
pub(super) const PLOT_HEIGHT: f64 = 180.0;

/// Beyond this ratio of largest to smallest, a quantity that is never 0 is drawn by orders of magnitude.
const LOG_RATIO: f64 = 100.0;

/// What the numbers on an axis are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quantity {
    /// Any number; by orders of magnitude when they differ much.
    Number,
    /// A number from 0 on, always drawn from 0.
    FromZero,
    /// A fraction, labeled in percent; the axis stays within 0 and 100%.
    Fraction,
    /// A fraction whose axis is 0 to 100%.
    WholeFraction,
    /// A number in `[0, 1]` whose axis is that.
    Unit,
    /// A count.
    Count,
    /// A price above 0, always by orders of magnitude.
    Price,
}

/// A vertical axis.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ValueAxis {
    low: f64,
    high: f64,
    log: bool,
    ticks: Vec<(f64, String)>,
}

impl ValueAxis {
    /// An axis that holds all `values`; with none, 0 to 1.
    pub(super) fn over(quantity: Quantity, values: impl Iterator<Item = f64> + Clone) -> Self {
        let (mut low, mut high) = values
            .clone()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        match quantity {
            Quantity::Number if low > 0.0 && high / low > LOG_RATIO => return Self::log(low, high),
            Quantity::Price if low > 0.0 => return Self::log(low, high),
            Quantity::FromZero => low = low.min(0.0),
            Quantity::WholeFraction | Quantity::Unit => (low, high) = (0.0, 1.0),
            Quantity::Number | Quantity::Fraction | Quantity::Count | Quantity::Price => {}
        }
        if high - low <= 1e-9 * high.abs().max(low.abs()) {
            let margin = if high == 0.0 { 1.0 } else { 0.1 * high.abs() };
            (low, high) = (low - margin, high + margin);
            if quantity == Quantity::FromZero {
                low = 0.0;
            }
        }
        if matches!(quantity, Quantity::Fraction) {
            (low, high) = (low.max(0.0), high.min(1.0));
        }
        let step = nice_step((high - low) / 4.0);
        // Outward to whole steps, so that no curve touches the frame where there is no label.
        (low, high) = ((low / step).floor() * step, (high / step).ceil() * step);
        let num_steps = ((high - low) / step).round().clamp(1.0, 12.0);
        let ticks = (0..=12)
            .map(f64::from)
            .take_while(|index| *index <= num_steps)
            .map(|index| low + index * step)
            .map(|value| (value, label(quantity, value, step)))
            .collect();
        Self { low, high, log: false, ticks }
    }

    /// Whole decades.
    fn log(low: f64, high: f64) -> Self {
        let (low, high) = (low.log10().floor(), high.log10().ceil());
        let stride = ((high - low) / 5.0).ceil().max(1.0);
        let ticks = (0..=650)
            .map(|index| low + f64::from(index) * stride)
            .take_while(|exponent| *exponent <= high)
            .map(|exponent| (10f64.powf(exponent), power_of_ten(exponent)))
            .collect();
        Self { low, high, log: true, ticks }
    }

    /// Whether it goes by orders of magnitude.
    pub(super) fn is_log(&self) -> bool {
        self.log
    }

    /// Where a value stands; the top is 0. Always within the drawing area.
    pub(super) fn place(&self, value: f64) -> Px {
        let value = if self.log { value.log10() } else { value };
        // Halved, so that the span of the largest numbers is one still.
        let share = (value / 2.0 - self.low / 2.0) / (self.high / 2.0 - self.low / 2.0);
        Px(if share.is_nan() { PLOT_HEIGHT } else { PLOT_HEIGHT * (1.0 - share.clamp(0.0, 1.0)) })
    }

    /// Labeled values from low to high.
    pub(super) fn ticks(&self) -> impl Iterator<Item = (Px, &str)> {
        self.ticks.iter().map(|(value, label)| (self.place(*value), label.as_str()))
    }

    /// Where a value stands when the axis lies: low is left.
    pub(super) fn across(&self, value: f64) -> Percent {
        Percent(100.0 * (1.0 - self.place(value).0 / PLOT_HEIGHT))
    }

    /// Labeled values when the axis lies.
    pub(super) fn ticks_across(&self) -> Vec<(Percent, String)> {
        self.ticks.iter().map(|(value, label)| (self.across(*value), label.clone())).collect()
    }
}

/// The horizontal axis, shared by all charts of a page: epochs, with room at the end for what the last one led to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct EpochAxis {
    first: u64,
    last: u64,
}

impl EpochAxis {
    /// From the first epoch to the last.
    pub(super) fn new(first: u64, last: u64) -> Self {
        Self { first, last: last.max(first) }
    }

    /// The end of the axis in epochs: a little after the last.
    fn end(&self) -> f64 {
        self.last as f64 + ((self.last - self.first) as f64 / 40.0).max(1.0)
    }

    /// Where the end of an epoch stands.
    pub(super) fn place(&self, epoch: f64) -> Percent {
        let first = self.first as f64;
        Percent(((epoch - first) / (self.end() - first) * 100.0).clamp(0.0, 100.0))
    }

    /// Where a band ends that lasts until the end of `epoch`: one past the last reaches the end of the axis.
    pub(super) fn place_end(&self, epoch: u64) -> Percent {
        if epoch > self.last { Percent(100.0) } else { self.place(epoch as f64) }
    }

    /// Labeled epochs.
    pub(super) fn ticks(&self) -> Vec<(Percent, String)> {
        let step = whole_step(self.last - self.first);
        let from = self.first.div_ceil(step) * step;
        let mut epochs: Vec<u64> =
            (0..=12).map(|index| from + index * step).take_while(|at| *at <= self.last).collect();
        // The first epoch is 1, which no step hits; labeled when the next label leaves room.
        if epochs.first().is_none_or(|at| (at - self.first) * 2 > step) {
            epochs.insert(0, self.first);
        }
        epochs.into_iter().map(|epoch| (self.place(epoch as f64), format::count(epoch))).collect()
    }
}

/// The smallest of 1, 2, 5 × 10ⁿ that is at least `rough`; 1 when that is no positive number.
fn nice_step(rough: f64) -> f64 {
    if !(rough > 0.0 && rough.is_finite()) {
        return if rough > 0.0 { f64::MAX / 8.0 } else { 1.0 };
    }
    let decade = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|factor| factor * decade).find(|step| *step >= rough).unwrap_or(10.0 * decade)
}

/// The smallest of 1, 2, 5 × 10ⁿ that divides `span` into at most 8 parts.
fn whole_step(span: u64) -> u64 {
    let mut decade = 1;
    loop {
        for factor in [1, 2, 5] {
            if span / (factor * decade) <= 8 {
                return factor * decade;
            }
        }
        decade *= 10;
    }
}

fn label(quantity: Quantity, value: f64, step: f64) -> String {
    let decimals =
        |step: f64| (0..8).find(|n| step * 10f64.powi(*n) >= 1.0 - 1e-9).map_or(8, |n| n.unsigned_abs() as usize);
    // Rounding may leave -0.
    let value = if value.abs() < step / 1e3 { 0.0 } else { value };
    match quantity {
        Quantity::Fraction | Quantity::WholeFraction => format!("{:.*}%", decimals(step * 100.0), value * 100.0),
        Quantity::Count if value >= 1e6 => format!("{:.*}M", decimals(step / 1e6), value / 1e6),
        Quantity::Count if value >= 1e4 => format!("{:.*}k", decimals(step / 1e3), value / 1e3),
        Quantity::Number | Quantity::FromZero | Quantity::Price if !(1e-3..1e5).contains(&step) => match value {
            0.0 => "0".to_owned(),
            _ => format!("{value:.1e}"),
        },
        Quantity::Number | Quantity::FromZero | Quantity::Unit | Quantity::Count | Quantity::Price => {
            format!("{value:.*}", decimals(step))
        }
    }
}

fn power_of_ten(exponent: f64) -> String {
    if (-3.0..=4.0).contains(&exponent) { format!("{}", 10f64.powf(exponent)) } else { format!("1e{exponent}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(quantity: Quantity, values: &[f64], labels: &[&str]) {
        let axis = ValueAxis::over(quantity, values.iter().copied());
        let found: Vec<&str> = axis.ticks().map(|(_, label)| label).collect();
        assert_eq!(found, labels, "{values:?}");
        for value in values {
            assert!((0.0..=PLOT_HEIGHT).contains(&axis.place(*value).0), "{value} is outside of the plot");
        }
    }

    #[test]
    fn labels_are_round_and_enclose_the_values() {
        check(Quantity::Number, &[0.31, 2.3], &["0.0", "0.5", "1.0", "1.5", "2.0", "2.5"]);
        check(Quantity::Number, &[-1.0, 1.0], &["-1.0", "-0.5", "0.0", "0.5", "1.0"]);
        check(Quantity::FromZero, &[0.000_5, 0.001], &["0", "5.0e-4", "1.0e-3"]);
        check(Quantity::Fraction, &[0.913, 0.99], &["90%", "92%", "94%", "96%", "98%", "100%"]);
        check(Quantity::WholeFraction, &[0.4], &["0%", "50%", "100%"]);
        check(Quantity::Unit, &[0.0], &["0.0", "0.5", "1.0"]);
        check(Quantity::FromZero, &[0.0], &["0.0", "0.5", "1.0"]);
        check(Quantity::Count, &[9_610.0, 11_274.0], &["9500", "10.0k", "10.5k", "11.0k", "11.5k"]);
        check(Quantity::Count, &[1.2e6, 3.4e6], &["1M", "2M", "3M", "4M"]);
    }

    #[test]
    fn orders_of_magnitude_get_one_label_each() {
        check(Quantity::Number, &[0.002, 2.3], &["0.001", "0.01", "0.1", "1", "10"]);
        check(Quantity::Number, &[1e-7, 1.0], &["1e-7", "1e-5", "0.001", "0.1"]);
    }

    #[test]
    fn one_value_or_none_still_makes_an_axis() {
        for values in [&[][..], &[0.0], &[5.0], &[-3.0, -3.0], &[1.0, 1.0 + 1e-15]] {
            let axis = ValueAxis::over(Quantity::Number, values.iter().copied());
            assert!(axis.ticks().count() >= 2, "{values:?}");
        }
    }

    #[test]
    fn extreme_values_stay_in_the_plot() {
        for values in [[f64::MIN, f64::MAX], [5e-324, f64::MAX], [-5e-324, 5e-324], [0.0, f64::MAX]] {
            for quantity in [Quantity::Number, Quantity::FromZero, Quantity::Count] {
                let axis = ValueAxis::over(quantity, values.iter().copied());
                assert!(axis.ticks().count() <= 14, "{values:?}");
                for value in values {
                    assert!((0.0..=PLOT_HEIGHT).contains(&axis.place(value).0), "{value} of {values:?}");
                }
            }
        }
    }

    #[track_caller]
    fn check_epochs(first: u64, last: u64, labels: &[&str]) {
        let found: Vec<String> = EpochAxis::new(first, last).ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(found, labels, "{first} to {last}");
    }

    #[test]
    fn epochs_are_labeled_with_whole_numbers() {
        check_epochs(1, 1, &["1"]);
        check_epochs(1, 3, &["1", "2", "3"]);
        check_epochs(1, 24, &["1", "5", "10", "15", "20"]);
        check_epochs(1, 10_000, &["1", "2,000", "4,000", "6,000", "8,000", "10,000"]);
        check_epochs(7, 9, &["7", "8", "9"]);
    }

    #[test]
    fn the_axis_leaves_room_after_the_last_epoch() {
        let axis = EpochAxis::new(1, 41);
        assert!(axis.place(41.0) < Percent(100.0));
        assert_eq!(axis.place_end(42), Percent(100.0));
        assert_eq!(axis.place(1.0), Percent(0.0));
    }
}

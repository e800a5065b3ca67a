//! Steps of one run in blocks, with a fault beside every other one: what the fault does to their slowest.
//!
//! ```text
//!   epoch      0     1      2     3      4     5          a block is an epoch, but for its first step
//!   fault      –     on     on    –      –     on         what drifts comes to both
//!              └ pair ┘     └ pair ┘     └ pair ┘         one ratio each; their median, with its interval
//! ```
//! Both blocks of a pair have the same network at the same addresses, a moment apart.

use std::time::Duration;

use candle_core::Device;
use leyline::clock::Clock;
use leyline::error::BoxError;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Flow, Observer, StepReport};

use crate::samples::{Samples, us};

/// Pairs at the start of a run that are not counted: warm-up, capture, compile.
const WARM_UP: usize = 2;

/// Epochs of a run with so many pairs that count.
pub(crate) const fn num_epochs(pairs: u64) -> u64 {
    2 * (pairs + WARM_UP as u64)
}

/// Whether there is a fault beside the steps of an epoch, from 0.
const fn is_faulty(epoch: u64) -> bool {
    matches!(epoch % 4, 1 | 2)
}

/// Takes the time between steps, and says before each block whether it has the fault.
pub(crate) struct Blocks<'a> {
    clock: &'a dyn Clock,
    /// Waited for at the end of every step.
    device: Device,
    /// Told after the last step of an epoch whether there is a fault beside the next one.
    switch: Box<dyn Fn(bool)>,
    num_epochs: u64,
    /// By the clock: the pair that is under way then is the last.
    deadline: Option<Duration>,
    last: Option<Duration>,
    /// Of each epoch, µs.
    steps: Vec<Vec<f64>>,
    /// Before each epoch, from the last step to the end of the first one, µs.
    boundaries: Vec<Option<f64>>,
}

impl<'a> Blocks<'a> {
    pub(crate) fn new(clock: &'a dyn Clock, device: &Device, switch: Box<dyn Fn(bool)>, num_epochs: u64) -> Self {
        let device = device.clone();
        let (deadline, last) = (None, None);
        Self { clock, device, switch, num_epochs, deadline, last, steps: Vec::new(), boundaries: Vec::new() }
    }

    /// With an end at that time of the clock, after a pair that counts: fewer pairs and a wider interval, or none, chosen by no result.
    pub(crate) fn until(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Whether enough is measured once the block that has ended is the last of its pair.
    fn is_over(&self, now: Duration) -> bool {
        let num_blocks = self.steps.len();
        num_blocks.is_multiple_of(2)
            && num_blocks > 2 * WARM_UP
            && self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// `NAME.p50`, `.p99` of the steps beside the fault and of those without; `.p50_over`, `.p99_over`, `.boundary_over`: one over the other, a
    /// pair each; `.p99_over.low`, `.high`: between them is the median of all such pairs, but in one of twenty results.
    pub(crate) fn record(&self, name: &str, samples: &mut Samples) {
        let mut over = Vec::new();
        for pair in WARM_UP..self.steps.len() / 2 {
            let (first, second) = (2 * pair, 2 * pair + 1);
            let (without, with) = if is_faulty(first as u64) { (second, first) } else { (first, second) };
            let [quiet, faulty] =
                [without, with].map(|epoch| [50, 99].map(|part| percentile(&self.steps[epoch], part)));
            for (index, part) in ["p50", "p99"].into_iter().enumerate() {
                samples.push(format!("{name}.{part}"), "us", faulty[index]);
                samples.push(format!("{name}.{part}_without"), "us", quiet[index]);
                samples.push(format!("{name}.{part}_over"), "ratio", faulty[index] / quiet[index]);
            }
            over.push(faulty[1] / quiet[1]);
            let boundaries = self.boundaries[with].zip(self.boundaries[without]);
            samples.extend_from(format!("{name}.boundary_over"), "ratio", boundaries.map(|(on, off)| on / off));
        }
        if let Some([low, high]) = interval_of_median(over) {
            samples.push(format!("{name}.p99_over.low"), "ratio", low);
            samples.push(format!("{name}.p99_over.high"), "ratio", high);
        }
    }

    /// Blocks beside the fault, those of the warm-up too.
    pub(crate) fn num_faulty(&self) -> u64 {
        (0..self.num_epochs).filter(|&epoch| is_faulty(epoch)).count() as u64
    }
}

impl Observer for Blocks<'_> {
    fn step(&mut self, report: &StepReport<'_>) -> Flow {
        // A device that is broken fails the next step.
        self.device.synchronize().ok();
        let now = self.clock.now();
        let took = self.last.map(|last| us(now - last));
        if report.step_of_epoch == 1 {
            self.steps.push(Vec::new());
            self.boundaries.push(took);
        } else if let (Some(block), Some(took)) = (self.steps.last_mut(), took) {
            block.push(took);
        }
        self.last = Some(now);
        if report.step_of_epoch == report.steps_per_epoch {
            let next = self.steps.len() as u64;
            let is_over = self.is_over(now);
            (self.switch)(!is_over && next < self.num_epochs && is_faulty(next));
            self.last = Some(self.clock.now());
            if is_over {
                return Flow::Stop;
            }
        }
        Flow::Continue
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

/// Nearest rank; no number of no values.
pub(crate) fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Two of the values between which the median of their distribution is with 95 % or more, whatever that is: so many values may
/// well be below the median, and as many above, as heads in as many throws. Absent for fewer than six.
fn interval_of_median(mut values: Vec<f64>) -> Option<[f64; 2]> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    let (mut exactly, mut at_most) = (0.5_f64.powi(i32::try_from(n).ok()?), 0.0);
    let mut rank = 0;
    while rank < n && at_most + exactly <= 0.025 {
        at_most += exactly;
        exactly *= (n - rank) as f64 / (rank + 1) as f64;
        rank += 1;
    }
    (rank > 0).then(|| [values[rank - 1], values[n - rank]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_has_one_block_of_each_and_what_drifts_comes_to_both() {
        let faulty: Vec<u64> = (0..8).filter(|&epoch| is_faulty(epoch)).collect();
        assert_eq!(faulty, [1, 2, 5, 6]);
    }

    #[test]
    fn after_the_deadline_the_first_whole_pair_that_counts_is_the_last() {
        let clock = leyline::clock::SystemClock::new();
        let blocks = || Blocks::new(&clock, &Device::Cpu, Box::new(|_| ()), num_epochs(10));
        let over_after = |mut blocks: Blocks<'_>, now: Duration| -> Vec<usize> {
            let is_over = |number: &usize| {
                blocks.steps.resize(*number, Vec::new());
                blocks.is_over(now)
            };
            (0..=8).filter(is_over).collect()
        };
        let second = Duration::from_secs(1);
        assert_eq!(over_after(blocks().until(second), second), [6, 8]);
        assert_eq!(over_after(blocks().until(second), second / 2), [0; 0]);
        assert_eq!(over_after(blocks(), second), [0; 0]);
    }

    #[test]
    fn the_interval_of_a_median_is_that_of_the_tables() {
        // Ranks for 95 %: W. J. Conover, Practical Nonparametric Statistics, table A3 of the binomial distribution at p = 0.5.
        let of = |n: u32| interval_of_median((1..=n).map(f64::from).collect());
        assert_eq!(of(5), None);
        for (n, low, high) in [(6, 1.0, 6.0), (9, 2.0, 8.0), (20, 6.0, 15.0), (40, 14.0, 27.0)] {
            assert_eq!(of(n), Some([low, high]), "{n}");
        }
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!([50, 99].map(|part| percentile(&values, part).to_string()), ["100", "198"]);
        assert!(percentile(&[], 99).is_nan());
    }
}

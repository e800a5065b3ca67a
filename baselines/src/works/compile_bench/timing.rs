//! Times of several ways to take a step.

use std::time::Duration;

use crate::error::Error;
use crate::gpu::open::Gpu;
use crate::samples::{Samples, us};

const WARM_UP: usize = 10;
/// Repetitions that are not waited for one by one.
const PIPELINED: usize = 100;
/// Turns of all ways, so that a device that slows down slows down all of them.
const ROUNDS: usize = 5;
/// Synchronized repetitions of a way in one round.
const REPETITIONS: usize = 60;
const MIN_REPETITIONS: usize = 10;
/// Of a way in one round, of either kind of repetition.
const BUDGET: Duration = Duration::from_millis(200);

type Take<'a> = Box<dyn FnMut(&Gpu) -> Result<(), Error> + 'a>;

/// One way to take a step.
pub(super) struct Way<'a> {
    name: &'static str,
    step: Take<'a>,
}

impl<'a> Way<'a> {
    pub(super) fn new(name: &'static str, step: impl FnMut(&Gpu) -> Result<(), Error> + 'a) -> Self {
        Self { name, step: Box::new(step) }
    }
}

/// Measures all ways in turns; a repetition is `unit` steps.
pub(super) fn measure_ways(
    gpu: &Gpu,
    case: &str,
    unit: usize,
    ways: &mut [Way<'_>],
    samples: &mut Samples,
) -> Result<(), Error> {
    for _ in 0..ROUNDS {
        for way in &mut *ways {
            let name = format!("{case}.{}", way.name);
            let mut repeat = |count: usize| (0..count * unit).try_for_each(|_| (way.step)(gpu));
            repeat(WARM_UP)?;
            gpu.wait()?;
            let started = gpu.now();
            for index in 0..REPETITIONS {
                let began = gpu.now();
                if index >= MIN_REPETITIONS && began - started > BUDGET {
                    break;
                }
                repeat(1)?;
                let enqueued = gpu.now();
                gpu.wait()?;
                let over = gpu.now();
                samples.push(format!("{name}.host"), "us", us(enqueued - began));
                samples.push(&name, "us", us(over - began));
            }
            let one = samples.median(&name).unwrap_or(f64::NAN);
            let count = num_pipelined(one);
            let began = gpu.now();
            repeat(count)?;
            gpu.wait()?;
            samples.push(format!("{name}.pipelined"), "us", us(gpu.now() - began) / count as f64);
        }
    }
    Ok(())
}

/// As many as are asked for, and fewer where they would take too long.
fn num_pipelined(one_us: f64) -> usize {
    let mut count = PIPELINED;
    while count > MIN_REPETITIONS && count as f64 * one_us > us(BUDGET) {
        count -= 10;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_steps_are_repeated_less_often() {
        let counts = [50.0, 4_000.0, 5_000.0, 100_000.0, f64::NAN].map(num_pipelined);
        assert_eq!(counts, [100, 50, 40, 10, 100]);
    }
}

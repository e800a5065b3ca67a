//! Steps whose parts are each waited for, so that an error shows in the one that made it.

use std::fmt;

use super::batch::Batch;
use super::lab::Lab;
use super::network::{Network, Plant};

/// Where an error showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Surfaced {
    step: usize,
    part: String,
    message: String,
}

impl fmt::Display for Surfaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}, `{}`: {}", self.step, self.part, self.message)
    }
}

/// Runs so many steps, fewer but one where the time is over, with a `wait` after each part. Returns how many, and how often it waited.
fn steps(
    network: &Network,
    batches: &[Batch],
    num_steps: usize,
    is_over: &dyn Fn() -> bool,
    wait: &mut dyn FnMut() -> candle_core::Result<()>,
) -> Result<[usize; 2], Surfaced> {
    let mut num_waits = 0;
    for step in 0..num_steps {
        if step > 0 && is_over() {
            return Ok([step, num_waits]);
        }
        let batch = &batches[step % batches.len()];
        let outcome = network.step(&batch.tensors, &mut || {
            num_waits += 1;
            wait()
        });
        outcome.map_err(|error| {
            let message = error.to_string().lines().next().unwrap_or_default().to_owned();
            Surfaced { step, part: network.at.get().name(), message }
        })?;
    }
    Ok([num_steps, num_waits])
}

/// The section of a report.
pub(super) fn section(lab: &mut Lab, plant: Option<Plant>) -> anyhow::Result<String> {
    let (network, batches) = (lab.network(plant)?, lab.batches()?);
    let began = lab.now();
    let outcome = steps(&network, &batches, lab.num_steps, &|| lab.is_over(), &mut || lab.wait());
    let took = lab.now() - began;
    Ok(match outcome {
        Ok([num_steps, num_waits]) => {
            let per_step = took.as_secs_f64() * 1e3 / num_steps as f64;
            lab.keep("checked.step", "ms", vec![per_step]);
            lab.keep("checked.waits", "waits", vec![num_waits as f64]);
            format!("checked steps: {num_steps} steps, {num_waits} waits, no error; {per_step:.2} ms a step\n")
        }
        Err(surfaced) => {
            lab.told.insert("checked".to_owned(), surfaced.to_string());
            lab.failures.push(surfaced.to_string());
            format!("checked steps: an error at {surfaced}\n")
        }
    })
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, bail};

    use super::super::sizes::Sizes;
    use super::*;

    fn run(plant: Option<Plant>, wait: &mut dyn FnMut() -> candle_core::Result<()>) -> Result<[usize; 2], Surfaced> {
        let network = Network::new(Sizes::QUICK, plant, &Device::Cpu).unwrap();
        let batch = Batch::drawn(&Sizes::QUICK, [1, 8], 0, &Device::Cpu).unwrap();
        steps(&network, &[batch], 4, &|| false, wait)
    }

    fn surfaced(step: usize, part: &str) -> Surfaced {
        Surfaced { step, part: part.to_owned(), message: "planted".to_owned() }
    }

    #[test]
    fn an_operation_that_fails_is_named_with_its_step_and_part() {
        for (step, part) in [(0, "vision.embed"), (2, "language.1"), (3, "vision.0"), (1, "merge"), (3, "loss")] {
            let plant = Plant::Failure(part.to_owned(), step as u64);
            assert_eq!(run(Some(plant), &mut || Ok(())), Err(surfaced(step, part)));
        }
        // vision.embed, two blocks, merge, two blocks, loss, backward, update.
        assert_eq!(run(None, &mut || Ok(())), Ok([4, 4 * 9]));
    }

    /// A device that tells of an error when it is waited for, as a GPU does: a stand-in whose waits are counted.
    #[test]
    fn an_error_that_shows_when_the_device_is_waited_for_is_that_of_the_part_before() {
        for (num_before, step, part) in
            [(0, 0, "vision.embed"), (9 + 5, 1, "language.1"), (2 * 9 + 7, 2, "backward"), (35, 3, "update")]
        {
            let mut num_waits = 0;
            let found = run(None, &mut || {
                num_waits += 1;
                if num_waits > num_before {
                    bail!("planted")
                }
                Ok(())
            });
            assert_eq!(found, Err(surfaced(step, part)));
        }
    }
}

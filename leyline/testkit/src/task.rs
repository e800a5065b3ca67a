//! Rules TK-1 to TK-6 of [`leyline::task`] as functions, and the harness they run on.

use std::fmt;
use std::sync::Arc;

use candle_core::{DType, Result, Tensor, Var};
use leyline::task::Task;

use crate::rule::must;

/// What rounding may change, against the size of the numbers.
const ROUNDING: f64 = 1e-5;
/// Steps of differences against gradients: large against rounding, small against the curves.
const STEP: f64 = 1e-2;
/// How far differences may be from gradients, against the length of the gradient.
const OF_DIFFERENCES: f64 = 2e-2;

/// A task with outputs and targets that it takes.
pub struct TaskHarness {
    /// The task.
    pub task: Arc<dyn Task>,
    /// Outputs (B, …) of at least two samples, of `f32`, away from kinks of the loss.
    pub outputs: Tensor,
    /// Their targets (B, …).
    pub targets: Tensor,
    /// Targets that it must refuse, each with a part of the message.
    pub refused: Vec<(Tensor, &'static str)>,
}

impl fmt::Debug for TaskHarness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskHarness").field("task", &self.task).finish_non_exhaustive()
    }
}

/// One `#[test]` per rule TK-1 to TK-6. The argument is a function or closure without arguments that builds a fresh
/// [`TaskHarness`](crate::task::TaskHarness).
#[macro_export]
macro_rules! task_conformance {
    ($make:expr) => {
        $crate::__one_test_per_rule!(
            task,
            $make,
            tk_1_the_loss_of_a_sample_is_its_own,
            tk_2_the_mean_is_that_of_the_losses_and_has_their_gradient,
            tk_3_equal_arguments_give_equal_bits,
            tk_4_hits_are_parts_and_add_up,
            tk_5_counts_add_up,
            tk_6_targets_are_accepted_or_refused_before,
        );
    };
}

impl TaskHarness {
    fn num_samples(&self) -> usize {
        self.targets.dims()[0]
    }

    fn losses(&self, rule: &str) -> Vec<f32> {
        let losses = must_have(rule, "losses", self.task.losses(&self.outputs, &self.targets));
        let (found, expected) = ((losses.dtype(), losses.dims().to_vec()), (DType::F32, vec![self.num_samples()]));
        must!(rule, found == expected, "losses are {found:?}, expected {expected:?}");
        numbers(rule, &losses)
    }

    fn part(&self, rule: &str, start: usize, count: usize) -> (Tensor, Tensor) {
        let part = |of: &Tensor| {
            must_have(rule, "a part of the batch", of.narrow(0, start, count).and_then(|part| part.contiguous()))
        };
        (part(&self.outputs), part(&self.targets))
    }
}

/// TK-1: one loss of `f32` per sample, the same as when the sample is alone.
pub fn tk_1_the_loss_of_a_sample_is_its_own(make: &impl Fn() -> TaskHarness) {
    const RULE: &str = "TK-1";
    let harness = make();
    must!(RULE, harness.num_samples() >= 2, "the harness needs two samples");
    for (sample, together) in harness.losses(RULE).into_iter().enumerate() {
        let (outputs, targets) = harness.part(RULE, sample, 1);
        let alone = TaskHarness { outputs, targets, ..make() }.losses(RULE)[0];
        must!(RULE, are_close(alone, together), "sample {sample} has the loss {together}, and alone {alone}");
    }
}

/// TK-2: the mean loss is the mean of the losses, with a gradient that differences show.
pub fn tk_2_the_mean_is_that_of_the_losses_and_has_their_gradient(make: &impl Fn() -> TaskHarness) {
    const RULE: &str = "TK-2";
    let harness = make();
    let mean_at = |outputs: &Tensor| -> f64 {
        let mean = must_have(RULE, "mean_loss", harness.task.mean_loss(outputs, &harness.targets));
        must!(RULE, mean.rank() == 0 && mean.dtype() == DType::F32, "the mean is {:?} {:?}", mean.dtype(), mean.dims());
        f64::from(numbers(RULE, &mean)[0])
    };
    let losses = harness.losses(RULE);
    let expected = losses.iter().map(|loss| f64::from(*loss)).sum::<f64>() / f64::from(count(losses.len()));
    let found = mean_at(&harness.outputs);
    must!(RULE, (found - expected).abs() <= ROUNDING * expected.abs().max(1.0), "the mean is {found}, not {expected}");

    let var = must_have(RULE, "a variable", Var::from_tensor(&harness.outputs));
    let mean = must_have(RULE, "mean_loss", harness.task.mean_loss(&var, &harness.targets));
    let gradients = must_have(RULE, "the gradient of the mean", mean.backward());
    must!(RULE, gradients.get(&var).is_some(), "the mean has no gradient for the outputs");
    let gradient = numbers(RULE, gradients.get(&var).unwrap_or(&var));
    let values = numbers(RULE, &harness.outputs);
    let length = gradient.iter().map(|slope| f64::from(*slope).powi(2)).sum::<f64>().sqrt();
    for (place, slope) in gradient.into_iter().enumerate() {
        let moved = |by: f64| {
            let mut values = values.clone();
            #[expect(clippy::cast_possible_truncation, reason = "a step needs no more digits")]
            let by = by as f32;
            values[place] += by;
            mean_at(&must_have(RULE, "outputs", Tensor::from_vec(values, harness.outputs.shape(), var.device())))
        };
        let difference = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
        let is_close = (difference - f64::from(slope)).abs() <= OF_DIFFERENCES * length.max(ROUNDING);
        must!(RULE, is_close, "the slope of output {place} is {difference}, its gradient {slope}");
    }
}

/// TK-3: what is asked twice is answered with the same bits.
pub fn tk_3_equal_arguments_give_equal_bits(make: &impl Fn() -> TaskHarness) {
    const RULE: &str = "TK-3";
    let harness = make();
    let bits = || -> Vec<u32> { harness.losses(RULE).into_iter().map(f32::to_bits).collect() };
    let first = bits();
    let (outputs, targets) = harness.part(RULE, 0, 1);
    must_have(RULE, "losses of another batch", harness.task.losses(&outputs, &targets));
    must!(RULE, bits() == first, "the same batch has other losses the second time");
    for measure in harness.task.measures() {
        let name = measure.about().name;
        let bits = |outputs: &Tensor, targets: &Tensor| -> Vec<u64> {
            let counts = must_have(RULE, name, measure.counts(outputs, targets));
            must_have(RULE, name, crate::host_read::values_f64(&counts)).into_iter().map(f64::to_bits).collect()
        };
        let first = bits(&harness.outputs, &harness.targets);
        bits(&outputs, &targets);
        let again = bits(&harness.outputs, &harness.targets);
        must!(RULE, again == first, "the same batch has other counts of {name} the second time");
    }
}

/// TK-4: hits are between 0 and 1, of all batches or of none, and their number is their sum.
pub fn tk_4_hits_are_parts_and_add_up(make: &impl Fn() -> TaskHarness) {
    const RULE: &str = "TK-4";
    let harness = make();
    let hits = must_have(RULE, "hits", harness.task.hits(&harness.outputs, &harness.targets));
    let num_hits = must_have(RULE, "num_hits", harness.task.num_hits(&harness.outputs, &harness.targets));
    must!(RULE, hits.is_some() == num_hits.is_some(), "hits and their number are not both there");
    let (outputs, targets) = harness.part(RULE, 0, 1);
    let of_one = must_have(RULE, "hits", harness.task.hits(&outputs, &targets));
    must!(RULE, hits.is_some() == of_one.is_some(), "one sample alone has hits, or all together, but not both");
    let (Some(hits), Some(num_hits)) = (hits, num_hits) else { return };
    let (hits, num_hits) = (numbers(RULE, &hits), numbers(RULE, &num_hits));
    must!(RULE, hits.len() == harness.num_samples(), "{} hits of {} samples", hits.len(), harness.num_samples());
    must!(RULE, hits.iter().all(|hit| (0.0..=1.0).contains(hit)), "hits are not between 0 and 1: {hits:?}");
    let sum: f32 = hits.iter().sum();
    must!(RULE, num_hits.len() == 1 && are_close(num_hits[0], sum), "the number is {num_hits:?}, the sum {sum}");
}

/// TK-5: every measure of the whole is that of the sums over its parts, however it is cut.
pub fn tk_5_counts_add_up(make: &impl Fn() -> TaskHarness) {
    const RULE: &str = "TK-5";
    let harness = make();
    let num_samples = harness.num_samples();
    for measure in harness.task.measures() {
        let name = measure.about().name;
        let value = |sizes: &[usize]| {
            let (mut sums, mut start) = (Vec::new(), 0);
            for &size in sizes {
                let (outputs, targets) = harness.part(RULE, start, size);
                let counts = must_have(RULE, name, measure.counts(&outputs, &targets));
                must!(RULE, counts.rank() == 2, "counts of {name} are {:?}, expected (rows, counts)", counts.dims());
                let width = counts.dims()[1];
                sums.resize(width, 0.0);
                let counts = must_have(RULE, name, crate::host_read::values_f64(&counts));
                for (place, count) in counts.into_iter().enumerate() {
                    sums[place % width] += count;
                }
                start += size;
            }
            measure.value(&sums, f64::from(count(num_samples)))
        };
        let (whole, parts) = (value(&[num_samples]), value(&[1, num_samples - 1]));
        let agree = match (whole, parts) {
            (Some(whole), Some(parts)) => (whole - parts).abs() <= ROUNDING * whole.abs().max(1.0),
            (whole, parts) => whole == parts,
        };
        must!(RULE, agree, "{name} is {whole:?} of the whole and {parts:?} of its parts");
    }
}

/// TK-6: the targets of the harness are accepted, and those to be refused are, with the message of the harness.
pub fn tk_6_targets_are_accepted_or_refused_before(make: &impl Fn() -> TaskHarness) {
    const RULE: &str = "TK-6";
    let harness = make();
    must_have(RULE, "check_targets", harness.task.check_targets(&harness.targets));
    must!(RULE, !harness.refused.is_empty(), "the harness names no targets that are refused");
    for (targets, part) in &harness.refused {
        match harness.task.check_targets(targets) {
            Ok(()) => panic!("{RULE}: targets {:?} {:?} were accepted", targets.dtype(), targets.dims()),
            Err(error) => {
                must!(RULE, error.to_string().contains(part), "refused without `{part}`: {error}");
            }
        }
    }
}

#[track_caller]
fn must_have<T>(rule: &str, what: &str, result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{rule}: {what} failed: {error}"),
    }
}

fn numbers(rule: &str, tensor: &Tensor) -> Vec<f32> {
    must_have(rule, "reading a tensor", crate::values(tensor))
}

fn count(number: usize) -> u32 {
    u32::try_from(number).expect("a harness has few samples")
}

fn are_close(a: f32, b: f32) -> bool {
    let (a, b) = (f64::from(a), f64::from(b));
    (a - b).abs() <= ROUNDING * b.abs().max(1.0)
}

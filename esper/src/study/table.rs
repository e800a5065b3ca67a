//! The table that a study prints, and what it shares with the result that is kept.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::command::StudyArgs;
use super::file::{Counted, Run};
use super::paired::{PairedDifference, mean_and_deviation, upper_bound};

/// Runs that could not have confirmed a gain, with why: `2 runs: …`; empty where all could, or it is not known.
pub(super) fn unconfirmable_runs(runs: &[&Run]) -> String {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for why in runs.iter().filter_map(|run| run.unconfirmable.as_deref()) {
        *reasons.entry(why).or_default() += 1;
    }
    let told = reasons.iter().map(|(why, n)| format!("{n} {}: {why}", if *n == 1 { "run" } else { "runs" }));
    told.collect::<Vec<_>>().join("; ")
}

/// The sum over the runs, where it is known of all of them.
pub(super) fn total(runs: &[&Run], of: fn(&Run) -> Option<u64>) -> Option<u64> {
    runs.iter().map(|run| of(run)).sum()
}

/// Mean time of training, where it is known of all runs.
pub(super) fn mean_seconds(runs: &[&Run]) -> Option<f64> {
    let seconds: Option<Vec<f64>> = runs.iter().map(|run| run.seconds).collect();
    seconds.filter(|seconds| !seconds.is_empty()).map(|seconds| mean_and_deviation(&seconds).0)
}

/// The pairs of policies that are compared: every other one with the last, and the first with those between.
pub(super) fn compared(args: &StudyArgs) -> Vec<(&str, &str)> {
    let policies: Vec<&str> = args.policies.iter().map(String::as_str).collect();
    let [first, .., last] = policies[..] else { return Vec::new() };
    let (all, between) = (&policies[..policies.len() - 1], &policies[1..policies.len() - 1]);
    all.iter().map(|policy| (*policy, last)).chain(between.iter().map(|policy| (first, *policy))).collect()
}

/// Differences of one outcome that a call looks at.
pub(super) fn num_comparisons(args: &StudyArgs) -> usize {
    args.data.len() * compared(args).len()
}

/// Mean operations, where they are known of all runs.
pub(super) fn mean_operations(runs: &[&Run], of: fn(Counted) -> u64) -> Option<f64> {
    let found: Option<Vec<f64>> = runs.iter().map(|run| run.operations.map(|counted| of(counted) as f64)).collect();
    found.filter(|found| !found.is_empty()).map(|found| mean_and_deviation(&found).0)
}

/// How many of the runs have a permanent seed.
pub(super) fn num_that_keep(runs: &[&Run]) -> usize {
    runs.iter().filter(|run| run.num_fossilized > 0).count()
}

/// The runs of two arms with the seeds that both have.
fn pairs<'a>(runs: &[&'a Run], beside: &[&'a Run]) -> (Vec<&'a Run>, Vec<&'a Run>) {
    let partner = |run: &&'a Run| beside.iter().find(|other| other.seed == run.seed).map(|other| (*run, *other));
    runs.iter().filter_map(partner).unzip()
}

/// The difference of two arms over the seeds that both have.
pub(super) fn paired(treated: &[&Run], control: &[&Run], of: fn(&Run) -> f64) -> Option<PairedDifference> {
    let (treated, control) = pairs(treated, control);
    let values = |runs: Vec<&Run>| runs.into_iter().map(of).collect::<Vec<f64>>();
    PairedDifference::of(&values(treated), &values(control))
}

/// The runs as a Markdown table: accuracy per arm, and the paired difference to the last policy.
pub(super) fn table(args: &StudyArgs, runs: &[Run]) -> String {
    let comparisons = num_comparisons(args);
    let intervals = if comparisons > 1 {
        format!("95 % interval of each, of all {comparisons} together")
    } else {
        "95 % interval".to_owned()
    };
    let mut text = format!(
        "| data | policy | runs | steps | seconds | operations, of them to look | parameters | seeds germinated, in all | confirmations read, in all | seeds kept | runs that keep a seed, bound | test accuracy, mean ± s.d. | difference, {intervals} | difference of the loss, {intervals} |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut notes = String::new();
    let control = args.policies.last().map_or("", String::as_str);
    for data in &args.data {
        let arm = |policy: &str| -> Vec<&Run> {
            runs.iter().filter(|run| run.data == *data && run.policy == policy).collect()
        };
        let accuracies = |policy: &str| arm(policy).iter().map(|run| 100.0 * run.test_accuracy).collect::<Vec<f64>>();
        for policy in args.policies.iter().filter(|policy| !arm(policy).is_empty()) {
            let (mean, deviation) = mean_and_deviation(&accuracies(policy));
            let deviation = deviation.map_or_else(String::new, |deviation| format!(" ± {deviation:.2}"));
            let count = |of: fn(&Run) -> f64| {
                let (mean, _) = mean_and_deviation(&arm(policy).into_iter().map(of).collect::<Vec<f64>>());
                mean
            };
            let against = |of: fn(&Run) -> f64, digits: usize| {
                let difference = paired(&arm(policy), &arm(control), of).filter(|_| policy != control);
                difference.map_or_else(|| "–".to_owned(), |difference| interval(&difference, comparisons, digits))
            };
            let difference = against(|run| 100.0 * run.test_accuracy, 2);
            let loss = against(|run| run.test_loss, 4);
            let (num_runs, num_keep) = (arm(policy).len(), num_that_keep(&arm(policy)));
            let (share, bound) = (num_keep as f64 / num_runs as f64, upper_bound(num_keep, num_runs));
            let (steps, parameters) = (count(|run| run.steps as f64), count(|run| run.parameters as f64));
            let kept = count(|run| run.num_fossilized as f64);
            let seconds = mean_seconds(&arm(policy)).map_or_else(|| "–".to_owned(), |mean| format!("{mean:.1}"));
            let operations = |of| mean_operations(&arm(policy), of);
            let operations = operations(|counted| counted.total()).zip(operations(|counted| counted.looking));
            let operations = operations
                .map_or_else(|| "–".to_owned(), |(all, looking)| format!("{all:.3e}, {:.1} %", 100.0 * looking / all));
            let known = |of| total(&arm(policy), of).map_or_else(|| "–".to_owned(), |sum| sum.to_string());
            let (germinated, read) = (known(|run| run.num_germinated), known(|run| run.num_confirmations));
            let unconfirmable = unconfirmable_runs(&arm(policy));
            if !unconfirmable.is_empty() {
                writeln!(notes, "{data}, {policy}: no gain could be confirmed in {unconfirmable}")
                    .expect("a string takes any text");
            }
            writeln!(
                text,
                "| {data} | {policy} | {num_runs} | {steps:.0} | {seconds} | {operations} | {parameters:.0} | {germinated} | {read} | {kept:.1} | {:.1} %, < {:.1} % | {mean:.2}{deviation} % | {difference} | {loss} |",
                100.0 * share,
                100.0 * bound
            )
            .expect("a string takes any text");
        }
    }
    text += &of_the_first(args, runs, &intervals);
    text + if notes.is_empty() { "" } else { "\n" } + &notes
}

fn interval(difference: &PairedDifference, comparisons: usize, digits: usize) -> String {
    let PairedDifference { mean, low, high, .. } = difference;
    let of_each = format!("{mean:+.digits$} [{low:+.digits$}, {high:+.digits$}]");
    let (low, high) = difference.of_all(comparisons);
    if comparisons > 1 { format!("{of_each} [{low:+.digits$}, {high:+.digits$}]") } else { of_each }
}

/// The first policy beside each but the last, with which the table before compares it; empty where there is none.
fn of_the_first(args: &StudyArgs, runs: &[Run], intervals: &str) -> String {
    let mut text = String::new();
    for data in &args.data {
        let arm =
            |policy: &str| runs.iter().filter(|run| run.data == *data && run.policy == policy).collect::<Vec<_>>();
        for (first, other) in compared(args).into_iter().skip(args.policies.len() - 1) {
            let (first, beside) = (arm(first), arm(other));
            let against = |of: fn(&Run) -> f64, digits| {
                paired(&first, &beside, of).map(|found| interval(&found, num_comparisons(args), digits))
            };
            let (accuracy, loss) = (against(|run| 100.0 * run.test_accuracy, 2), against(|run| run.test_loss, 4));
            let [operations, seconds] = costs(&first, &beside);
            let share = |of: Option<f64>| of.map_or_else(|| "–".to_owned(), |share| format!("{share:.1} %"));
            let (operations, seconds, [accuracy, loss]) = (
                share(operations),
                share(seconds),
                [accuracy, loss].map(|told| told.unwrap_or_else(|| "–".to_owned())),
            );
            writeln!(text, "| {data} | {other} | {operations} | {seconds} | {accuracy} | {loss} |")
                .expect("a string takes any text");
        }
    }
    if text.is_empty() {
        return text;
    }
    let first = args.policies.first().map_or("", String::as_str);
    format!(
        "\n| data | `{first}` beside | its operations | its seconds | difference, {intervals} | difference of the loss, {intervals} |\n\
         |---|---|---|---|---|---|\n{text}"
    )
}

/// Operations and seconds of runs in those of others with the same seeds, %, where they are known.
pub(super) fn costs(runs: &[&Run], beside: &[&Run]) -> [Option<f64>; 2] {
    let (runs, beside) = pairs(runs, beside);
    let operations = |runs: &[&Run]| mean_operations(runs, |counted| counted.total());
    let share = |of: &dyn Fn(&[&Run]) -> Option<f64>| Some(100.0 * of(&runs)? / of(&beside)?);
    [share(&operations), share(&mean_seconds)]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(seed: u64, operations: u64) -> Run {
        let run = json!({
            "data": "digits", "policy": "off", "seed": seed, "test_accuracy": 0.5, "test_loss": 1.0, "steps": 1, "seconds": operations as f64,
            "operations": {"training": operations, "evaluation": 0, "looking": 0}, "parameters": 1, "num_fossilized": 0,
        });
        serde_json::from_value(run).unwrap()
    }

    #[test]
    fn shares_of_costs_are_over_the_seeds_that_both_arms_have() {
        let (first, second) = (run(1, 10), run(2, 30));
        assert_eq!(costs(&[&first, &second], &[&first]), [Some(100.0); 2]);
        assert_eq!(costs(&[&second], &[&first, &second]), [Some(100.0); 2]);
        assert_eq!(costs(&[&first], &[&second]), [None; 2]);
    }
}

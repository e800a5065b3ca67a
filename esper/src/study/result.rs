//! A study as a result that is kept, from which the table of the README is made.

use std::collections::BTreeMap;

use baselines::environment::Environment;
use baselines::measure::Measurement;
use baselines::result::{BenchResult, SCHEMA};
use leyline::clock::SystemClock;

use super::command::StudyArgs;
use super::file::Run;
use super::paired::{PairedDifference, mean_and_deviation, upper_bound};
use super::table::{
    compared, costs, mean_operations, mean_seconds, num_comparisons, num_that_keep, paired, total, unconfirmable_runs,
};
use crate::bench::BUILD;

const NOTES: &str = "DATA.POLICY.test_accuracy: accuracy on the test part after the last epoch (%), one value per random seed, which fixes \
                     weights, division and order of the data; .mean and .deviation of them; .difference: mean of the paired \
                     differences to the last policy, .low and .high: its 95 % interval (Student's t), .low_of_all and .high_of_all: so wide that those of all \
                     `comparisons` of this outcome hold together (Bonferroni) (points); .germinated: seeds that germinated, in all runs; \
                     .confirmations: seeds for which the samples that confirm were read, in all runs, .p: what they found, as p-values of \"the mean gain is at most \
                     the least that matters\", .at_most_5 and .at_most_50: how many of those are at most 5 and 50 %; config DATA.POLICY.unconfirmable: runs \
                     in which no gain could be confirmed, and why; .steps, .seconds (of training, where several runs train at the same time each beside the others), .parameters \
                     and .seeds_kept: means over the random seeds; POLICY scratch: the host with wider layers, of the size that the first policy came to with the same random seed, for as many steps; scratch-flops, \
                     scratch-seconds: for as many operations, as long; sweep: the host in 1, 2, 4, 8 and 16 times its width, the one that is best on validation data at the cost of all; noise: the first policy with nothing on offer but seeds that add noise; untold: the first policy, told nothing of earlier runs; random-equal: as many permanent seeds as the first policy kept with the same random seed, with slot, blueprint and time drawn by dice and no evidence asked; \
                     .operations: mean floating-point operations of products, by their shapes, of training and of all that is measured before the test; .looking: those of seeds in the shadow and of \
                     evaluations with a seed on or off (%); FIRST.over.POLICY: as .difference, of the first policy to this one; .operations_share, .seconds_share: operations and seconds in those of the other, over the random seeds that both have (%); .keep: runs with a permanent seed, .keep.share and .keep.bound: their share and its \
                     one-sided 95 % bound (Clopper-Pearson) (%); .loss_difference: as .difference, of the loss on the test part.";

/// Of the result; its file has this name and `.json`.
pub(super) fn name(args: &StudyArgs) -> String {
    format!("study-{}", args.first_seed)
}

/// Everything that the table shows, as `study-FIRST`, where FIRST is the first random seed.
pub(super) fn result(args: &StudyArgs, runs: &[Run]) -> BenchResult {
    let mut measurements = BTreeMap::new();
    let mut config = BTreeMap::from([
        ("random_seeds".to_owned(), args.seeds.to_string()),
        ("comparisons".to_owned(), num_comparisons(args).to_string()),
    ]);
    let arm = |data: &str, policy: &str| -> Vec<&Run> {
        runs.iter().filter(|run| run.data == data && run.policy == policy).collect()
    };
    let accuracies = |runs: &[&Run]| runs.iter().map(|run| 100.0 * run.test_accuracy).collect::<Vec<f64>>();
    let control = args.policies.last().map_or("", String::as_str);
    for (data, policy) in args.data.iter().flat_map(|data| args.policies.iter().map(move |policy| (data, policy))) {
        let runs = arm(data, policy);
        let mut add = |what: &str, unit: &str, values: Vec<f64>| {
            measurements.extend(Measurement::of(unit, values).map(|one| (format!("{data}.{policy}.{what}"), one)));
        };
        let mean =
            |of: fn(&Run) -> f64| vec![mean_and_deviation(&runs.iter().map(|run| of(run)).collect::<Vec<f64>>()).0];
        let found = accuracies(&runs);
        let (average, deviation) = mean_and_deviation(&found);
        add("test_accuracy", "%", found);
        add("test_accuracy.mean", "%", vec![average]);
        add("test_accuracy.deviation", "points", deviation.into_iter().collect());
        add("steps", "count", mean(|run| run.steps as f64));
        add("seconds", "s", mean_seconds(&runs).into_iter().collect());
        let operations = |of| mean_operations(&runs, of);
        let (all, looking) = (operations(|counted| counted.total()), operations(|counted| counted.looking));
        add("operations", "count", all.into_iter().collect());
        add("looking", "%", looking.zip(all).map(|(looking, all)| 100.0 * looking / all).into_iter().collect());
        add("parameters", "count", mean(|run| run.parameters as f64));
        add("seeds_kept", "count", mean(|run| run.num_fossilized as f64));
        for (what, sum) in [
            ("germinated", total(&runs, |run| run.num_germinated)),
            ("confirmations", total(&runs, |run| run.num_confirmations)),
        ] {
            add(what, "count", sum.map(|sum| sum as f64).into_iter().collect());
        }
        let found: Vec<f64> = runs.iter().flat_map(|run| run.p_values.iter().copied()).collect();
        let num_read = total(&runs, |run| run.num_confirmations);
        if num_read.map_or(!found.is_empty(), |read| read != found.len() as u64) {
            let of = num_read.map_or("an unknown number".to_owned(), |read| read.to_string());
            let text = format!("absent: known of {} of {of} that were read", found.len());
            config.insert(format!("{data}.{policy}.confirmations.p"), text);
        } else if !found.is_empty() {
            for (what, most) in [("at_most_5", 0.05), ("at_most_50", 0.5)] {
                let count = found.iter().filter(|p| **p <= most).count();
                add(&format!("confirmations.{what}"), "count", vec![count as f64]);
            }
            add("confirmations.p", "ratio", found);
        }
        let unconfirmable = unconfirmable_runs(&runs);
        if !unconfirmable.is_empty() {
            config.insert(format!("{data}.{policy}.unconfirmable"), unconfirmable);
        }
        let (keep, of) = (num_that_keep(&runs), runs.len());
        add("keep", "count", vec![keep as f64]);
        add("keep.share", "%", vec![100.0 * keep as f64 / of.max(1) as f64]);
        add("keep.bound", "%", vec![100.0 * upper_bound(keep, of)]);
    }
    for (data, (policy, other)) in
        args.data.iter().flat_map(|data| compared(args).into_iter().map(move |of| (data, of)))
    {
        let (runs, beside) = (arm(data, policy), arm(data, other));
        let over = if other == control { String::new() } else { format!("over.{other}.") };
        let mut add = |what: &str, unit: &str, value: f64| {
            let one = Measurement::of(unit, vec![value]);
            measurements.extend(one.map(|one| (format!("{data}.{policy}.{over}{what}"), one)));
        };
        for (what, share) in ["operations_share", "seconds_share"].into_iter().zip(costs(&runs, &beside)) {
            share.into_iter().for_each(|share| add(what, "%", share));
        }
        for (what, unit, difference) in [
            ("difference", "points", paired(&runs, &beside, |run| 100.0 * run.test_accuracy)),
            ("loss_difference", "loss", paired(&runs, &beside, |run| run.test_loss)),
        ] {
            let Some(difference) = difference else { continue };
            let PairedDifference { mean, low, high, .. } = difference;
            let (low_of_all, high_of_all) = difference.of_all(num_comparisons(args));
            let ends = [(".low", low), (".high", high), (".low_of_all", low_of_all), (".high_of_all", high_of_all)];
            for (end, value) in [("", mean)].into_iter().chain(ends) {
                add(&format!("{what}{end}"), unit, value);
            }
        }
    }
    let (data, policies) = (args.data.join(","), args.policies.join(","));
    let settings: String = args.set.iter().map(|setting| format!(" --set {setting}")).collect();
    BenchResult {
        schema: SCHEMA,
        name: name(args),
        command: format!(
            "cargo run --release -p esper -- study --data {data} --policies {policies} --seeds {} --first-seed {}{settings} --result DIR",
            args.seeds, args.first_seed
        ),
        notes: NOTES.to_owned(),
        environment: Environment::detect(&SystemClock::new()).built_from(BUILD),
        config,
        measurements,
        metrics: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::super::file::Counted;
    use super::*;

    #[test]
    fn every_column_of_the_table_is_a_quantity() {
        let args = StudyArgs {
            data: vec!["digits".to_owned()],
            policies: vec!["heuristic".to_owned(), "off".to_owned()],
            seeds: 2,
            first_seed: 7,
            set: Vec::new(),
            jobs: NonZeroUsize::MIN,
            out: None,
            result: None,
            page: None,
        };
        let run = |policy: &str, seed, test_accuracy| Run {
            data: "digits".to_owned(),
            policy: policy.to_owned(),
            seed,
            test_accuracy,
            test_loss: 0.0,
            steps: 10,
            seconds: (policy != "off" || seed == 7).then_some(1.5),
            operations: (policy != "off").then_some(Counted { training: 60, evaluation: 20, looking: 20 }),
            validation: None,
            parameters: 20,
            num_fossilized: 1,
            // Of the second run of `off` it is not known.
            num_germinated: (policy != "off" || seed == 7).then_some(2),
            num_confirmations: (policy != "off" || seed == 7).then_some(1),
            p_values: vec![if seed == 7 { 0.01 } else { 0.2 }],
            unconfirmable: None,
            set: Vec::new(),
            origin: None,
        };
        let runs = [run("heuristic", 7, 0.9), run("off", 7, 0.5), run("heuristic", 8, 0.7), run("off", 8, 0.6)];
        let result = result(&args, &runs);
        let value = |name: &str| result.measurements.get(&format!("digits.{name}")).map(|m| (10.0 * m.median).round());
        assert_eq!(result.name, "study-7");
        for (name, expected) in [
            ("heuristic.test_accuracy.mean", Some(800.0)),
            ("heuristic.test_accuracy.deviation", Some(141.0)),
            ("heuristic.difference", Some(250.0)),
            ("heuristic.difference.low", Some(-1656.0)),
            ("heuristic.steps", Some(100.0)),
            ("off.seeds_kept", Some(10.0)),
            ("heuristic.keep.share", Some(1000.0)),
            ("heuristic.loss_difference", Some(0.0)),
            ("heuristic.germinated", Some(40.0)),
            ("heuristic.confirmations", Some(20.0)),
            ("off.confirmations", None),
            ("heuristic.confirmations.at_most_5", Some(10.0)),
            ("heuristic.confirmations.at_most_50", Some(20.0)),
            ("off.confirmations.at_most_5", None),
            ("heuristic.seconds", Some(15.0)),
            ("off.seconds", None),
            ("off.difference", None),
            ("heuristic.difference.low_of_all", Some(-1656.0)),
            ("heuristic.operations", Some(1000.0)),
            ("heuristic.looking", Some(200.0)),
            ("off.operations", None),
            ("heuristic.operations_share", None),
        ] {
            assert_eq!(value(name), expected, "{name}");
        }
        assert_eq!(result.measurements["digits.off.test_accuracy"].samples, [50.0, 60.0]);
        assert_eq!(result.measurements["digits.heuristic.confirmations.p"].samples, [0.01, 0.2]);
        assert_eq!(result.config.get("digits.heuristic.confirmations.p"), None);
        let mut runs = runs;
        runs[0].p_values.clear();
        let result = super::result(&args, &runs);
        assert!(!result.measurements.contains_key("digits.heuristic.confirmations.p"));
        let text = |policy: &str| result.config[&format!("digits.{policy}.confirmations.p")].as_str();
        assert_eq!(text("heuristic"), "absent: known of 1 of 2 that were read");
        assert_eq!(text("off"), "absent: known of 2 of an unknown number that were read");
    }
}

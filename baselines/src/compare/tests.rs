//! Comparisons of results that were made up.

use std::collections::BTreeMap;

use leyline::clock::SystemClock;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::environment::Environment;

fn of(measurements: Vec<(&str, Measurement)>, metrics: &[&str]) -> BenchResult {
    BenchResult {
        schema: crate::result::SCHEMA,
        name: "reference".to_owned(),
        command: String::new(),
        notes: String::new(),
        environment: Environment::detect(&SystemClock::new()),
        config: BTreeMap::new(),
        measurements: measurements.into_iter().map(|(name, measured)| (name.to_owned(), measured)).collect(),
        metrics: metrics.iter().map(|&name| name.to_owned()).collect(),
    }
}

fn result(values: &[(&str, f64)], metrics: &[&str]) -> BenchResult {
    let measure = |value| Measurement::of("ms", vec![value]).unwrap();
    of(values.iter().map(|&(name, value)| (name, measure(value))).collect(), metrics)
}

/// Times around `scale`, with a spread of 4 % and, every 20th, one of twice the size, as other work gives them.
fn times(count: usize, scale: f64, seed: u64) -> Vec<f64> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut one = || {
        let uniform = |random: &mut ChaCha8Rng| f64::from(random.next_u32()) / f64::from(u32::MAX);
        // A sum of twelve uniform numbers has the variance 1.
        let normal = (0..12).map(|_| uniform(&mut random)).sum::<f64>() - 6.0;
        let outlier = if uniform(&mut random) < 0.05 { 2.0 } else { 1.0 };
        scale * outlier * (1.0 + 0.04 * normal)
    };
    (0..count).map(|_| one()).collect()
}

fn noisy(unit: &str, scale: f64, seed: u64) -> BenchResult {
    of(vec![("step", Measurement::of(unit, times(60, scale, seed)).unwrap())], &[])
}

/// How many of `tries` comparisons of noisy results fail, when the second is `slower` times the first.
fn failures(unit: &str, slower: f64, tries: u64) -> usize {
    let fails = |seed| !compare(&noisy(unit, 50.0, 2 * seed), &noisy(unit, 50.0 * slower, 2 * seed + 1)).passed();
    (0..tries).filter(|seed| fails(*seed)).count()
}

#[test]
fn ratios_are_new_over_old() {
    let found = compare(&result(&[("epoch", 2.0)], &["a"]), &result(&[("epoch", 3.0)], &["a", "b"]));
    assert!((found.ratios[0].median - 1.5).abs() < 1e-12);
    assert_eq!(found.ratios[0].interval, None);
}

#[test]
fn a_lost_metric_or_measurement_fails() {
    let found = compare(&result(&[("epoch", 2.0), ("step", 1.0)], &["a"]), &result(&[("epoch", 2.0)], &[]));
    assert!(!found.passed());
    assert_eq!(found.lost, ["measurement step", "metric a"]);
    let found = compare(&noisy("us", 50.0, 1), &noisy("ms", 50.0, 1));
    assert_eq!(found.lost, ["measurement step in us: it is in ms now"]);
}

#[test]
fn noise_alone_fails_in_none_of_200_comparisons() {
    assert_eq!(failures("us", 1.0, 200), 0);
}

#[test]
fn a_tenth_slower_fails_in_nearly_all_comparisons_and_a_tenth_faster_in_none() {
    assert!(failures("us", 1.1, 40) >= 38 && failures("GB/s", 0.9, 40) >= 38);
    assert_eq!((failures("GB/s", 1.1, 40), failures("us", 0.9, 40)), (0, 0));
}

#[test]
fn without_samples_medians_are_compared_and_it_is_said() {
    for (after, passes) in [(1.04, true), (1.06, false), (0.5, true), (f64::NAN, false), (f64::INFINITY, false)] {
        let mut new = result(&[("step", 1.0)], &[]);
        new.measurements.get_mut("step").unwrap().median = after;
        let found = compare(&result(&[("step", 1.0)], &[]), &new);
        assert_eq!(found.passed(), passes, "{after}");
        assert!(found.to_string().contains("medians only"), "{found}");
    }
}

#[test]
fn an_interval_has_the_true_ratio_in_it_95_times_of_100_or_there_is_none() {
    for count in 2..=6 {
        let found = |seed: u64| interval::of_medians(&times(count, 50.0, 2 * seed), &times(count, 50.0, 2 * seed + 1));
        let intervals: Vec<_> = (0..300).filter_map(found).collect();
        let num_right = intervals.iter().filter(|[low, high]| (*low..=*high).contains(&1.0)).count();
        assert_eq!(intervals.len(), if count < 5 { 0 } else { 300 }, "{count} samples: {num_right} right");
        // Of 300 tries two deviations of chance are 2.5 %.
        assert!(num_right * 1000 >= intervals.len() * 925, "{count} samples: {num_right} right");
    }
}

#[test]
fn of_too_few_samples_all_are_compared_and_it_is_said() {
    let of_few = |values: &[f64]| of(vec![("step", Measurement::of("us", values.to_vec()).unwrap())], &[]);
    let compare = |before, after| compare(&of_few(before), &of_few(after));
    for (after, passes) in [(&[1.0, 1.1, 1.1, 1.1][..], true), (&[1.15, 1.2], true), (&[1.16, 1.2, 1.3], false)] {
        let found = compare(&[1.0, 1.0, 1.0, 1.1], after);
        assert!(found.passed() == passes && found.to_string().contains("] all samples"), "{found}");
    }
    let found = compare(&[1.0, 1.1], &[0.8, 0.9]);
    assert_eq!(found.ratios[0].interval.map(|ends| ends.map(|end| (end * 1e3).round())), Some([727.0, 900.0]));
    assert!(found.ratios[0].is_better() && found.to_string().contains("[0.727, 0.900] all samples"), "{found}");
    // One has no spread.
    let found = compare(&[1.0, 1.1], &[1.2]);
    assert!(!found.passed() && found.to_string().contains("medians only"), "{found}");
}

#[test]
fn what_is_worse_is_told_with_ratio_interval_and_threshold() {
    let text = compare(&noisy("us", 50.0, 1), &noisy("us", 60.0, 2)).to_string();
    let (_, table) = text.split_once("worse").unwrap();
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!((row[0], row[4], row[5]), ("step", "+5", "%"), "{text}");
    let numbers: Vec<f64> = row[1..4].iter().map(|word| word.trim_matches(['[', ',', ']']).parse().unwrap()).collect();
    assert!(numbers[1] > 1.05 && numbers[1] <= numbers[0] && numbers[0] <= numbers[2] && numbers[2] < 1.3, "{text}");
}

#[test]
fn a_summary_counts_what_is_better_worse_the_same_and_lost_and_names_the_worst() {
    let of = |values: [f64; 5]| {
        let names = ["a.replay", "b.replay", "c.replay", "d.speedup", "torch.replay"];
        let unit = |name: &str| if name == "d.speedup" { "ratio" } else { "us" };
        let measured = names.into_iter().zip(values);
        of(measured.map(|(name, value)| (name, Measurement::of(unit(name), vec![value]).unwrap())).collect(), &[])
    };
    let (before, mut after) = (of([10.0; 5]), of([8.0, 12.0, 10.1, 5.0, 40.0]));
    let last = |after: &BenchResult| compare(&before, after).to_string().lines().last().unwrap().to_owned();
    assert_eq!(
        last(&after),
        "summary: 1 better, 2 worse, 1 the same, 1 not judged, 0 lost; the worst is d.speedup with ×0.500"
    );
    after.measurements.retain(|name, _| name == "torch.replay");
    assert_eq!(last(&after), "summary: 0 better, 0 worse, 0 the same, 1 not judged, 4 lost");
}

#[test]
fn each_quantity_is_judged_in_its_direction() {
    for (name, unit, better, threshold) in [
        ("check.equal.sgd", "kept", Better::Higher, 0.0),
        ("torch.mlp.graph", "us", Better::Neither, 0.0),
        ("mlp.replay", "us", Better::Lower, 0.05),
        ("mlp.speedup", "ratio", Better::Higher, 0.05),
        ("ratio.mlp.tf32.layers", "ratio", Better::Lower, 0.05),
        ("mlp.f32.layers.stall.over_eager", "ratio", Better::Lower, 0.3),
        ("errors", "count", Better::Lower, 0.0),
        ("k8.p1000000.sequential.original", "us", Better::Neither, 0.0),
        ("no.such.thing", "?", Better::Neither, 0.0),
    ] {
        assert_eq!(rule_of(name, unit), Rule { better, threshold }, "{name}");
    }
}

#[test]
fn zero_errors_stay_zero_errors() {
    let count = |errors| of(vec![("errors", Measurement::of("count", vec![errors]).unwrap())], &[]);
    assert!(compare(&count(0.0), &count(0.0)).passed());
    assert!(!compare(&count(0.0), &count(2.0)).passed());
}

#[test]
fn a_series_of_zeros_is_as_good_as_itself_and_better_than_others() {
    let bytes = |value| of(vec![("arena", Measurement::of("bytes", vec![value; 10]).unwrap())], &[]);
    assert!(compare(&bytes(0.0), &bytes(0.0)).passed());
    assert!(!compare(&bytes(0.0), &bytes(8.0)).passed());
}

#[test]
fn a_result_survives_its_file_with_each_list_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let original = noisy("us", 0.123_456_789, 7);
    let path = original.write(dir.path()).unwrap();
    assert_eq!(BenchResult::read(&path).unwrap(), original);
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.lines().any(|line| line.starts_with("      \"samples\": [0.") && line.ends_with(']')), "{text}");
    assert!(text.starts_with("{\n  \"schema\": 1,\n") && text.ends_with("\n}\n"), "{text}");
}

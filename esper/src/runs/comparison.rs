//! Runs in arms: those of one arm differ in nothing but random seeds, and runs of two arms with the same seed are a pair.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Serialize;

use super::row::{Row, measures, show};
use super::settings::Settings;
use crate::report::{Run, Versions, decimal, printable};
use crate::study::PairedDifference;

/// A run with its settings.
#[derive(Debug)]
pub(crate) struct Compared {
    pub(crate) run: Run,
    pub(crate) row: Row,
    /// Which arm it belongs to.
    pub(crate) arm: usize,
}

/// Runs beside each other.
#[derive(Debug)]
pub(crate) struct Comparison {
    /// In the order in which they were given.
    pub(crate) runs: Vec<Compared>,
    pub(crate) arms: Vec<Arm>,
    /// Of every arm but the last to the last.
    pub(crate) differences: Vec<Difference>,
    /// What a reader must know.
    pub(crate) notes: Vec<String>,
}

/// Runs that differ in nothing but random seeds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Arm {
    /// What sets it apart: `policy.policy = "off"`.
    pub(crate) label: String,
    pub(crate) runs: usize,
}

/// What one arm has more than another on average, over pairs of the same random seed.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Difference {
    pub(crate) arm: String,
    pub(crate) to: String,
    /// `test loss` or a measure.
    pub(crate) of: String,
    pub(crate) mean: f64,
    /// Of the 95 % interval (Student's t).
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) pairs: usize,
}

impl Comparison {
    /// Puts runs into arms and pairs.
    pub(crate) fn of(runs: Vec<(Run, Row, Settings)>) -> Self {
        let mut distinct: Vec<Settings> = Vec::new();
        let mut compared = Vec::with_capacity(runs.len());
        for (run, row, settings) in runs {
            let settings = settings.without_chance();
            let arm = distinct.iter().position(|known| *known == settings).unwrap_or(distinct.len());
            if arm == distinct.len() {
                distinct.push(settings);
            }
            compared.push(Compared { run, row, arm });
        }
        let different = Settings::different(&distinct.iter().collect::<Vec<_>>());
        let arms: Vec<Arm> = distinct
            .iter()
            .enumerate()
            .map(|(index, settings)| {
                let one = |key: &&str| printable(&format!("{key} = {}", settings.get(key).unwrap_or("not set")));
                let label = different.iter().map(one).collect::<Vec<_>>().join(", ");
                let label = if label.is_empty() { "the same settings".to_owned() } else { label };
                Arm { label, runs: compared.iter().filter(|one| one.arm == index).count() }
            })
            .collect();
        let mut notes: Vec<String> = builds(&compared).into_iter().collect();
        let differences = differences(&compared, &arms, &distinct, &mut notes);
        Self { runs: compared, arms, differences, notes }
    }

    /// Arms and differences for a terminal.
    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        for (index, arm) in self.arms.iter().enumerate() {
            writeln!(text, "arm {}: {} runs, {}", index + 1, arm.runs, arm.label).expect("a string takes any text");
        }
        for difference in &self.differences {
            let index = |label: &String| self.arms.iter().position(|arm| arm.label == *label).map_or(0, |at| at + 1);
            let (arm, to) = (index(&difference.arm), index(&difference.to));
            let Difference { of, pairs, .. } = difference;
            writeln!(text, "arm {arm} less arm {to}: {of} {} over {pairs} pairs", difference.interval())
                .expect("a string takes any text");
        }
        self.notes.iter().for_each(|note| text += &format!("note: {note}\n"));
        text
    }
}

impl Difference {
    /// `+0.01 [-0.02, +0.04]`, of ratios in points.
    pub(crate) fn interval(&self) -> String {
        let sign = |value: f64| {
            let shown = if self.of == "test loss" { decimal(value) } else { show(&self.of, value) };
            if value > 0.0 { format!("+{shown}") } else { shown }
        };
        format!("{} [{}, {}]", sign(self.mean), sign(self.low), sign(self.high))
    }
}

/// Which builds trained the runs, where it was not one: they may differ in more than their settings.
fn builds(runs: &[Compared]) -> Option<String> {
    let mut builds: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for one in runs {
        let Versions { esper, rustc, target, git_commit } = &one.run.record.versions;
        let commit = git_commit.as_ref().map(|commit| format!(", commit {commit}"));
        let compiler = rustc.as_ref().map(|rustc| format!(", {rustc}"));
        let parts = [Some(format!("esper {esper} for {target}")), commit, compiler];
        builds.entry(parts.into_iter().flatten().collect()).or_default().push(one.run.record.run_id.as_str());
    }
    let named: Vec<String> = builds.iter().map(|(build, runs)| format!("{} of {build}", runs.join(", "))).collect();
    (named.len() > 1).then(|| printable(&format!("the runs are of different builds: {}", named.join("; "))))
}

/// Which runs are a pair: those of the same random seed and the same data.
type Pairing = (u64, String);

fn pairing(one: &Compared) -> Pairing {
    (one.run.record.seed, one.run.record.data.digest.clone())
}

/// Values of an arm; of several runs that would be of one pair the one that was given last.
fn values(runs: &[Compared], arm: usize, value: impl Fn(&Row) -> Option<f64>) -> BTreeMap<Pairing, f64> {
    let of_arm = runs.iter().filter(|one| one.arm == arm);
    of_arm.filter_map(|one| Some((pairing(one), value(&one.row)?))).collect()
}

fn differences(runs: &[Compared], arms: &[Arm], settings: &[Settings], notes: &mut Vec<String>) -> Vec<Difference> {
    let Some((last, others)) = arms.split_last() else { return Vec::new() };
    let all: Vec<&Row> = runs.iter().map(|one| &one.row).collect();
    let pairings =
        |arm: usize| -> BTreeSet<Pairing> { runs.iter().filter(|one| one.arm == arm).map(pairing).collect() };
    for (index, arm) in arms.iter().enumerate() {
        let again = arm.runs - pairings(index).len();
        if again > 0 {
            notes.push(format!(
                "{again} runs of arm {} have the random seed and the data of another one there: the one that was given last counts",
                index + 1
            ));
        }
    }
    let mut differences = Vec::new();
    for (index, arm) in others.iter().enumerate() {
        let (one, other, before) = (index + 1, arms.len(), differences.len());
        let tasks = Settings::different(&[&settings[index], &settings[others.len()]]);
        let tasks: Vec<&str> = tasks.into_iter().filter(|key| *key == "task" || key.starts_with("task.")).collect();
        if !tasks.is_empty() {
            let keys = printable(&tasks.join(", "));
            notes.push(format!(
                "the test losses of arms {one} and {other} are not compared: they are of different tasks ({keys})"
            ));
        }
        let losses = tasks.is_empty().then_some("test loss");
        let mut most_pairs = 0;
        for of in losses.into_iter().chain(measures(all.iter().copied())) {
            let value = |row: &Row| if of == "test loss" { row.test_loss } else { row.test_measures.get(of).copied() };
            let (treated, control) = (values(runs, index, value), values(runs, others.len(), value));
            let pairs: Vec<(f64, f64)> =
                treated.iter().filter_map(|(pairing, value)| Some((*value, *control.get(pairing)?))).collect();
            most_pairs = most_pairs.max(pairs.len());
            let (treated, control): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
            if let Some(PairedDifference { mean, low, high, n }) = PairedDifference::of(&treated, &control) {
                let (arm, to, of) = (arm.label.clone(), last.label.clone(), of.to_owned());
                differences.push(Difference { arm, to, of, mean, low, high, pairs: n });
            }
        }
        let unpaired = pairings(index).len() + pairings(others.len()).len() - 2 * most_pairs;
        if differences.len() == before {
            notes.push(format!(
                "there are fewer than two pairs of arms {one} and {other}: an interval needs two runs of each with the same \
                 random seeds and the same data, done to their end"
            ));
        } else if unpaired > 0 {
            notes.push(format!(
                "{unpaired} runs of arms {one} and {other} are of no pair: the other arm has none with their random seed and \
                 data, or one of both was not done to its end"
            ));
        }
    }
    differences
}

//! The result of a run in a handful of facts, the same on the page and in the terminal.

use leyline::seed::SeedStage;

use super::Run;
use super::format::{count, counted, decimal, duration, percent, rounded, size};
use super::history::SeedLife;
use super::printable::printable;
use super::waiting::{Waiting, waiting};
use super::{Tested, Which};

/// A number that matters, with what puts it in proportion.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fact {
    pub(super) label: &'static str,
    pub(super) value: String,
    pub(super) detail: String,
}

/// How the run ended, in a word.
pub(super) fn outcome(run: &Run) -> &'static str {
    run.summary.as_ref().map_or("unfinished", |summary| summary.outcome.name())
}

/// The facts, most important first.
pub(super) fn facts(run: &Run, lives: &[SeedLife<'_>]) -> Vec<Fact> {
    vec![test(run), validation(run), parameters(run), seeds(run, lives), epochs(run), time(run)]
}

const NOT_MEASURED: &str = "not measured";

fn test(run: &Run) -> Fact {
    let summary = run.summary.as_ref();
    let accuracy = summary.and_then(|summary| summary.test_accuracy);
    let loss = summary.and_then(|summary| summary.test_loss);
    Fact {
        label: "Test accuracy",
        value: accuracy.map_or_else(|| NOT_MEASURED.to_owned(), percent),
        detail: match (loss, accuracy) {
            (Some(loss), _) => {
                let tested = summary.and_then(|summary| summary.tested).map_or_else(String::new, of_network);
                format!("loss {}; {}{tested}", decimal(loss), samples(run.record.data.num_test))
            }
            (None, Some(_)) => samples(run.record.data.num_test),
            (None, None) => "done once, when a run completes".to_owned(),
        },
    }
}

/// Whose measures they are.
fn of_network(tested: Tested) -> String {
    match tested.network {
        Which::Best => format!("; the best network, of epoch {}", tested.epoch),
        Which::Last => "; the last network".to_owned(),
    }
}

fn validation(run: &Run) -> Fact {
    let last = run.epochs.last().and_then(|report| report.validation.accuracy());
    let measured = run.epochs.iter().filter_map(|report| Some((report.validation.accuracy()?, report.epoch)));
    let best = measured.reduce(|best, epoch| if epoch.0 > best.0 { epoch } else { best });
    let value = run.summary.as_ref().and_then(|summary| summary.validation_accuracy).or(last);
    Fact {
        label: "Validation accuracy",
        value: value.map_or_else(|| NOT_MEASURED.to_owned(), percent),
        detail: best
            .map_or_else(String::new, |(accuracy, epoch)| format!("best {} at epoch {epoch}", percent(accuracy))),
    }
}

fn parameters(run: &Run) -> Fact {
    let last = run.epochs.last().map(|report| report.num_parameters);
    let summary = run.summary.as_ref();
    let value = summary.map(|summary| summary.parameters).or(last);
    let growth = summary.filter(|summary| summary.host_parameters > 0).map(|summary| {
        let growth = (summary.parameters as f64 / summary.host_parameters as f64 - 1.0) * 100.0;
        format!("{growth:+.1}% over the host's {}", count(summary.host_parameters))
    });
    // The test measures are of that network, not of the last one.
    let tested = summary
        .filter(|summary| summary.tested_parameters() != summary.parameters)
        .map(|summary| format!("the tested network has {}", count(summary.tested_parameters())));
    Fact {
        label: "Parameters",
        value: value.map_or_else(|| "unknown".to_owned(), count),
        detail: growth.into_iter().chain(tested).collect::<Vec<_>>().join("; "),
    }
}

fn seeds(run: &Run, lives: &[SeedLife<'_>]) -> Fact {
    let num = |wanted: fn(SeedStage) -> bool| lives.iter().filter(|life| wanted(life.fate())).count();
    let (fossilized, live) = (num(|stage| stage == SeedStage::Fossilized), num(SeedStage::is_live));
    let parts = [(fossilized, "fossilized"), (live, "live"), (lives.len() - fossilized - live, "pruned")];
    let detail: Vec<String> =
        parts.iter().filter(|(num, _)| *num > 0).map(|(num, what)| format!("{num} {what}")).collect();
    Fact {
        label: "Seeds",
        value: count(lives.len() as u64),
        detail: if lives.is_empty() { none_germinated(run) } else { detail.join(", ") },
    }
}

/// What the policy waited for.
fn none_germinated(run: &Run) -> String {
    let reasons: Vec<String> = waiting(&run.epochs).iter().map(Waiting::short).collect();
    let reasons = if reasons.is_empty() { "the policy gave no reason".to_owned() } else { reasons.join(", ") };
    format!("none germinated: {reasons}")
}

fn epochs(run: &Run) -> Fact {
    let last = run.epochs.last();
    let epochs = run.summary.as_ref().map_or_else(|| last.map_or(0, |report| report.epoch.0), |summary| summary.epochs);
    let steps = run.summary.as_ref().map_or_else(|| last.map_or(0, |report| report.step.0), |summary| summary.steps);
    Fact { label: "Epochs", value: count(epochs), detail: counted(steps, "optimizer step") }
}

fn time(run: &Run) -> Fact {
    let trained = run.epochs.iter().map(|report| report.wall_s).sum::<f64>();
    // Not of whole epochs: of one that was taken up in the middle only the time since is known.
    let num_samples: f64 = run
        .epochs
        .iter()
        .map(|report| report.samples_per_s * report.wall_s)
        .filter(|samples| samples.is_finite())
        .sum();
    let rate = num_samples / trained;
    Fact {
        label: "Wall time",
        value: duration(run.summary.as_ref().map_or(trained, |summary| summary.wall_s)),
        detail: if rate.is_finite() { format!("{} samples/s", count(rounded(rate))) } else { String::new() },
    }
}

/// What memory was for, the largest part first, with its size.
pub(super) fn memory(run: &Run) -> Vec<(String, String)> {
    let parts = run.summary.iter().flat_map(|summary| &summary.memory);
    let mut parts: Vec<(&str, u64)> = parts.map(|(part, bytes)| (part.as_str(), *bytes)).collect();
    parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    parts.into_iter().map(|(part, bytes)| (printable(part), size(bytes))).collect()
}

fn samples(number: u64) -> String {
    counted(number, "sample")
}

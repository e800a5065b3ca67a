//! A study as a page: what each arm came to, and what that cost; one file that needs no other.

use askama::Template;

use super::command::StudyArgs;
use super::file::Run;
use super::paired::{PairedDifference, mean_and_deviation};
use super::table::{costs, mean_operations, mean_seconds, paired};
use crate::report::{Across, Chart, Dot, ReportError, decimal, dots, percent};

#[derive(Template)]
#[template(path = "report/study.html", whitespace = "minimize")]
struct Page {
    title: String,
    sets: Vec<Set>,
}

/// A data set.
struct Set {
    name: String,
    rows: Vec<Row>,
    charts: Vec<Chart>,
}

/// An arm; what is not known is absent.
struct Row {
    policy: String,
    runs: usize,
    cells: [Option<String>; 7],
}

/// Lays out the page of all runs.
///
/// # Errors
/// [`ReportError::Layout`] when the template engine fails.
pub(super) fn page(args: &StudyArgs, runs: &[Run]) -> Result<String, ReportError> {
    let sets: Vec<Set> = args.data.iter().enumerate().map(|(index, data)| Set::of(args, index, data, runs)).collect();
    let title = format!("{} on {}", args.policies.join(", "), args.data.join(", "));
    Page { title, sets }.render().map_err(ReportError::Layout)
}

impl Set {
    fn of(args: &StudyArgs, index: usize, data: &str, runs: &[Run]) -> Self {
        let arm = |policy: &str| -> Vec<&Run> {
            runs.iter().filter(|run| run.data == data && run.policy == policy).collect()
        };
        let control = arm(args.policies.last().map_or("", String::as_str));
        let arms: Vec<(&String, Vec<&Run>)> =
            args.policies.iter().map(|policy| (policy, arm(policy))).filter(|(_, runs)| !runs.is_empty()).collect();
        let points = |price: fn(&[&Run]) -> Option<f64>| -> Vec<Dot> {
            let point = |(policy, runs): &(&String, Vec<&Run>)| {
                let (mean, interval) = accuracy(runs);
                Dot { name: (*policy).clone(), mean, interval, price: price(runs) }
            };
            arms.iter().map(point).collect()
        };
        let chart = |id: &str, title: &str, across, price| {
            let unit = "accuracy on test data, mean over random seeds and its 95 % interval (Student's t)";
            dots(format!("set{index}-{id}"), format!("{data}: {title}"), unit.to_owned(), across, &points(price))
        };
        Self {
            name: data.to_owned(),
            rows: arms.iter().map(|(policy, runs)| Row::of(policy, runs, &control)).collect(),
            charts: vec![
                chart("accuracy", "accuracy", Across::Arms, |_| None),
                chart("operations", "accuracy over operations", Across::Price("operations"), operations),
                chart("seconds", "accuracy over seconds", Across::Price("seconds"), mean_seconds),
            ],
        }
    }
}

fn operations(runs: &[&Run]) -> Option<f64> {
    mean_operations(runs, |counted| counted.total())
}

/// Mean, and its interval where there are two runs.
fn accuracy(runs: &[&Run]) -> (f64, Option<(f64, f64)>) {
    let found: Vec<f64> = runs.iter().map(|run| run.test_accuracy).collect();
    let interval = PairedDifference::of(&found, &vec![0.0; found.len()]).map(|of| (of.low, of.high));
    (mean_and_deviation(&found).0, interval)
}

impl Row {
    fn of(policy: &str, runs: &[&Run], control: &[&Run]) -> Self {
        let (mean, interval) = accuracy(runs);
        let between = |(low, high): (f64, f64)| format!("{} to {}", percent(low), percent(high));
        let is_control = control.first().is_some_and(|run| run.policy == policy);
        let difference = paired(runs, control, |run| 100.0 * run.test_accuracy).filter(|_| !is_control);
        let difference = difference.map(|of| format!("{:+.2} [{:+.2}, {:+.2}] points", of.mean, of.low, of.high));
        let [operations_share, seconds_share] =
            costs(runs, control).map(|share| share.filter(|_| !is_control).map(|share| format!(" ({share:.0} %)")));
        let cost = |value: Option<f64>, share: Option<String>| {
            value.map(|value| decimal(value) + share.as_deref().unwrap_or_default())
        };
        let parameters = mean_and_deviation(&runs.iter().map(|run| run.parameters as f64).collect::<Vec<_>>()).0;
        Self {
            policy: policy.to_owned(),
            runs: runs.len(),
            cells: [
                Some(percent(mean)),
                interval.map(between),
                difference,
                Some(decimal(mean_and_deviation(&runs.iter().map(|run| run.test_loss).collect::<Vec<_>>()).0)),
                Some(format!("{parameters:.0}")),
                cost(operations(runs), operations_share),
                cost(mean_seconds(runs), seconds_share),
            ],
        }
    }
}

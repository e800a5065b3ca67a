//! The page of a comparison: a table, intervals, and curves over each other; one file that needs no other.

use askama::Template;

use super::comparison::{Arm, Comparison, Difference};
use super::row::{head, measures};
use crate::report::{Chart, Overlay, ReportError, overlays};

/// With more runs than this, lines have the color of their arm.
const MAX_TOLD_APART: usize = 18;

#[derive(Template)]
#[template(path = "report/compare.html", whitespace = "minimize")]
struct Page<'a> {
    title: String,
    notes: Vec<&'a str>,
    head: Vec<&'a str>,
    rows: Vec<Vec<Option<String>>>,
    arms: &'a [Arm],
    differences: &'a [Difference],
    charts: Vec<Chart>,
}

/// Lays out the page.
///
/// # Errors
/// [`ReportError::Layout`] when the template engine fails.
pub(crate) fn render_page(comparison: &Comparison) -> Result<String, ReportError> {
    let rows: Vec<_> = comparison.runs.iter().map(|one| &one.row).collect();
    let measures = measures(rows.iter().copied());
    let by_arm = rows.len() > MAX_TOLD_APART;
    let lines: Vec<Overlay<'_>> = comparison
        .runs
        .iter()
        .enumerate()
        .map(|(index, one)| Overlay {
            name: one.run.record.run_id.as_str(),
            color: if by_arm { one.arm } else { index },
            run: &one.run,
        })
        .collect();
    let of_runs = comparison.runs.iter().flat_map(|one| &one.run.notes);
    let page = Page {
        title: format!("{} runs", rows.len()),
        notes: comparison.notes.iter().chain(of_runs).map(String::as_str).collect(),
        head: head(&measures),
        rows: rows.iter().map(|row| row.cells(&measures)).collect(),
        arms: &comparison.arms,
        differences: &comparison.differences,
        charts: overlays(&lines),
    };
    page.render().map_err(ReportError::Layout)
}

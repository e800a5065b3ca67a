//! The charts of a run: which quantities are drawn, how, and what each picture says in words.

use std::borrow::Cow;

use leyline::state::Score;
use leyline::task::{About, Scale};
use tolaria::measure::{self, ACCURACY};
use tolaria::trainer::report::EpochReport;

use super::axis::Quantity;
use super::plot::{Plot, Reference, Series, plot};
use crate::report::format::{count, decimal, percent, rounded};
use crate::report::history::{SeedEvent, SeedLife, Told};
use crate::report::{Run, Summary};

/// Colors and dashes of lines in the style sheet.
pub(super) const NUM_COLORS: usize = 6;
const NUM_DASHES: usize = 3;
/// The first color, dashed: told apart from the second without seeing colors.
const DASHED: usize = NUM_COLORS;

/// A picture with its words.
#[derive(Debug)]
pub(crate) struct Chart {
    /// Unique in the page.
    pub(crate) id: Cow<'static, str>,
    pub(crate) title: Cow<'static, str>,
    pub(crate) unit: Cow<'static, str>,
    /// The picture in a sentence, for those who do not see it.
    pub(crate) description: String,
    /// Class and name of each line.
    pub(crate) legend: Vec<(String, String)>,
    /// Absent when there is nothing to draw; [`Self::note`] says why.
    pub(crate) plot: Option<Plot>,
    /// What is missing from the picture.
    pub(crate) note: Option<String>,
}

/// What a chart shows, before it is laid out.
pub(super) struct Sketch {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) unit: &'static str,
    pub(super) quantity: Quantity,
    pub(super) show: fn(f64) -> String,
    pub(super) series: Vec<Series>,
    pub(super) references: Vec<Reference>,
    pub(super) note: Option<String>,
}

/// The curves of the whole network, in the order of the page.
pub(crate) fn curves(run: &Run, events: &[SeedEvent]) -> Vec<Chart> {
    let summary = run.summary.as_ref();
    let reports = run.epochs.as_slice();
    let is_measured = |about: &&About| {
        let is_in = |report: &EpochReport| report.validation.measures.contains_key(about.name);
        about.name == ACCURACY.name && reports.is_empty() || reports.iter().any(is_in)
    };
    let qualities = measure::ALL.into_iter().filter(is_measured).map(|about| quality(about, reports, summary));
    let of_training = [gradient_norm(reports), parameters(reports, summary), learning_rate(reports)];
    let sketches = [loss(reports, summary)].into_iter().chain(qualities).chain(of_training);
    sketches.map(|sketch| sketch.finish(&epochs(run), events)).collect()
}

/// Alpha of every seed; nothing without seeds.
pub(crate) fn alphas(run: &Run, lives: &[SeedLife<'_>], events: &[SeedEvent]) -> Option<Chart> {
    (!lives.is_empty()).then(|| alpha(lives).finish(&epochs(run), events))
}

fn loss(reports: &[EpochReport], summary: Option<&Summary>) -> Sketch {
    let series = vec![
        line("train", DASHED, reports, |report| Some(report.train.as_ref()?.loss)),
        line("validation", 1, reports, |report| Some(report.validation.loss)),
    ];
    let references = test_value(summary.and_then(|summary| summary.test_loss), decimal);
    Sketch {
        id: "loss",
        title: "Loss",
        unit: "per sample",
        quantity: Quantity::Number,
        show: decimal,
        series,
        references,
        note: None,
    }
}

fn quality(measure: &About, reports: &[EpochReport], summary: Option<&Summary>) -> Sketch {
    let of = |score: &Score| score.measures.get(measure.name).copied();
    let mut series = vec![
        line("train", DASHED, reports, |report| report.train.as_ref().and_then(of)),
        line("validation", 1, reports, |report| of(&report.validation)),
    ];
    series.retain(|series| !series.points.is_empty() || reports.is_empty());
    let test = summary.and_then(|summary| summary.test_measure(measure.name));
    let (quantity, show) = shown(measure.scale);
    let note = (test.is_none() && !reports.is_empty())
        .then(|| "The test data were not measured: that is done once, when a run completes.".to_owned());
    Sketch {
        id: measure.name,
        title: measure.title,
        unit: measure.formula,
        quantity,
        show,
        series,
        references: test_value(test, show),
        note,
    }
}

fn alpha(lives: &[SeedLife<'_>]) -> Sketch {
    let told = Told::of(lives);
    let alone = told.alone.iter().map(|(index, life)| Series {
        name: life.last.seed_id.to_string(),
        class: class(*index),
        points: life.alpha.clone(),
        is_stepped: false,
    });
    let together = told.together.iter().map(|(slot, lives)| Series {
        name: format!("{} pruned in {slot}", lives.len()),
        class: "gone".to_owned(),
        points: lives.iter().flat_map(|life| life.alpha.iter().copied()).collect(),
        is_stepped: false,
    });
    // Below the others.
    let series = together.chain(alone).collect();
    Sketch {
        id: "alpha",
        title: "Alpha per seed",
        unit: "blend coefficient, 0 is the host alone",
        quantity: Quantity::Unit,
        show: decimal,
        series,
        references: Vec::new(),
        note: None,
    }
}

fn gradient_norm(reports: &[EpochReport]) -> Sketch {
    Sketch {
        id: "gradient-norm",
        title: "Gradient norm",
        unit: "global, before clipping, root mean square over steps",
        quantity: Quantity::Number,
        show: decimal,
        series: vec![line("gradient norm", 0, reports, |report| report.gradient_norm)],
        references: Vec::new(),
        note: None,
    }
}

fn parameters(reports: &[EpochReport], summary: Option<&Summary>) -> Sketch {
    let host = summary.map(|summary| Reference {
        label: format!("host {}", count(summary.host_parameters)),
        value: summary.host_parameters as f64,
        at_end: false,
    });
    Sketch {
        id: "parameters",
        title: "Parameters",
        unit: "trainable elements, live seeds included",
        quantity: Quantity::Count,
        show: |value| count(rounded(value)),
        series: vec![line("parameters", 2, reports, |report| Some(report.num_parameters as f64)).stepped()],
        references: host.into_iter().collect(),
        note: None,
    }
}

fn learning_rate(reports: &[EpochReport]) -> Sketch {
    Sketch {
        id: "learning-rate",
        title: "Learning rate",
        unit: "at the last step of the epoch",
        quantity: Quantity::FromZero,
        show: decimal,
        series: vec![line("learning rate", 3, reports, |report| Some(report.learning_rate))],
        references: Vec::new(),
        note: None,
    }
}

pub(super) fn line(
    name: &str,
    color: usize,
    reports: &[EpochReport],
    value: impl Fn(&EpochReport) -> Option<f64>,
) -> Series {
    let points = reports.iter().filter_map(|report| value(report).map(|value| (report.epoch.0, value))).collect();
    Series { name: name.to_owned(), class: class(color), points, is_stepped: false }
}

pub(super) fn epochs(run: &Run) -> Vec<u64> {
    run.epochs.iter().map(|report| report.epoch.0).collect()
}

/// How values of this unit are drawn and written.
pub(super) fn shown(scale: Scale) -> (Quantity, fn(f64) -> String) {
    match scale {
        Scale::Ratio => (Quantity::Fraction, percent),
        Scale::Number => (Quantity::Number, decimal),
    }
}

/// Colors first, then dashes: two lines differ in at least one.
pub(super) fn class(index: usize) -> String {
    format!("s{} d{}", index % NUM_COLORS + 1, index / NUM_COLORS % NUM_DASHES)
}

fn test_value(value: Option<f64>, show: fn(f64) -> String) -> Vec<Reference> {
    let reference = |value| Reference { label: format!("test {}", show(value)), value, at_end: true };
    value.map(reference).into_iter().collect()
}

impl Sketch {
    pub(super) fn finish(self, epochs: &[u64], events: &[SeedEvent]) -> Chart {
        let is_empty = self.series.iter().all(|series| series.points.is_empty());
        let note = self.note.clone().or_else(|| is_empty.then(|| "No epoch was completed.".to_owned()));
        let description = self.describe();
        let plot = (!is_empty).then(|| plot(epochs, self.quantity, &self.series, &self.references, events, self.show));
        Chart {
            id: self.id.into(),
            title: self.title.into(),
            unit: self.unit.into(),
            description,
            legend: self.series.into_iter().map(|series| (series.class, series.name)).collect(),
            plot,
            note,
        }
    }

    fn describe(&self) -> String {
        let show = self.show;
        let lines = self.series.iter().filter_map(|series| {
            let ((first, from), (last, to)) = (series.points.first()?, series.points.last()?);
            Some(format!("{}: {} at epoch {first}, {} at epoch {last}.", series.name, show(*from), show(*to)))
        });
        let references = self.references.iter().map(|reference| format!("{}.", reference.label));
        lines.chain(references).collect::<Vec<_>>().join(" ")
    }
}

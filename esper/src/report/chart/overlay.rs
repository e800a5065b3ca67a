//! The same quantity of several runs in one picture.

use leyline::task::About;
use tolaria::measure::ALL;
use tolaria::trainer::report::EpochReport;

use super::axis::Quantity;
use super::curves::{Chart, Sketch, line, shown};
use crate::report::Run;
use crate::report::format::{count, decimal, rounded};

/// A run as a line of each picture.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Overlay<'a> {
    /// In the legend.
    pub(crate) name: &'a str,
    /// Which color and dash.
    pub(crate) color: usize,
    pub(crate) run: &'a Run,
}

/// Losses, measures and sizes, over epochs.
pub(crate) fn overlays(runs: &[Overlay<'_>]) -> Vec<Chart> {
    let sketch = |id, title, unit, quantity, show, value: &dyn Fn(&EpochReport) -> Option<f64>| Sketch {
        id,
        title,
        unit,
        quantity,
        show,
        series: runs.iter().map(|one| line(one.name, one.color, &one.run.epochs, value)).collect(),
        references: Vec::new(),
        note: None,
    };
    let is_measured = |measure: &&About| {
        let mut reports = runs.iter().flat_map(|one| &one.run.epochs);
        reports.any(|report| report.validation.measures.contains_key(measure.name))
    };
    let quality = |measure: &About| {
        let (quantity, show) = shown(measure.scale);
        let name = measure.name;
        let value = move |report: &EpochReport| report.validation.measures.get(name).copied();
        sketch(measure.name, measure.title, "on validation data", quantity, show, &value)
    };
    let loss = |id, title, unit, value: &dyn Fn(&EpochReport) -> Option<f64>| {
        sketch(id, title, unit, Quantity::Number, decimal, value)
    };
    let mut sketches = vec![
        loss("validation-loss", "Validation loss", "per sample", &|report| Some(report.validation.loss)),
        loss("train-loss", "Training loss", "per sample", &|report| Some(report.train.as_ref()?.loss)),
    ];
    sketches.extend(ALL.into_iter().filter(is_measured).map(quality));
    let parameters: &dyn Fn(&EpochReport) -> Option<f64> = &|report| Some(report.num_parameters as f64);
    let unit = "trainable elements, live seeds included";
    sketches.push(sketch("parameters", "Parameters", unit, Quantity::Count, |value| count(rounded(value)), parameters));
    let rate: &dyn Fn(&EpochReport) -> Option<f64> = &|report| Some(report.learning_rate);
    let unit = "at the last step of the epoch";
    sketches.push(sketch("learning-rate", "Learning rate", unit, Quantity::FromZero, decimal, rate));
    let mut epochs: Vec<u64> = runs.iter().flat_map(|one| &one.run.epochs).map(|report| report.epoch.0).collect();
    epochs.sort_unstable();
    epochs.dedup();
    sketches.into_iter().map(|sketch| sketch.finish(&epochs, &[])).collect()
}

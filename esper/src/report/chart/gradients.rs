//! The charts about the gradients of host and seeds.

use tolaria::trainer::report::{ConflictRecord, EpochReport, owner_name};

use super::axis::Quantity;
use super::curves::{Chart, NUM_COLORS, Sketch, class, epochs, line};
use super::plot::Series;
use crate::report::Run;
use crate::report::format::{count, percent};
use crate::report::gradients::owners;
use crate::report::history::{SeedEvent, SeedLife, Told};

/// The first color with the last dash: seeds have the first colors, as in the chart of their alphas.
const HOST: usize = 2 * NUM_COLORS;

/// Conflicts and host share, and how the owners' norms compare.
pub(in crate::report) fn gradients(run: &Run, lives: &[SeedLife<'_>], events: &[SeedEvent]) -> Vec<Chart> {
    let sketches = [conflicts(&run.epochs), norm_shares(&run.epochs, lives)];
    sketches.into_iter().map(|sketch| sketch.finish(&epochs(run), events)).collect()
}

fn conflicts(reports: &[EpochReport]) -> Sketch {
    let of = |value: fn(&ConflictRecord) -> f64| move |report: &EpochReport| report.conflict.as_ref().map(value);
    Sketch {
        id: "conflicts",
        title: "Gradient conflicts and host share",
        unit: "share of ordered pairs of owners; share of the samples' attribution",
        quantity: Quantity::WholeFraction,
        show: percent,
        series: vec![
            line("conflicts", 4, reports, of(|conflict| conflict.ratio)),
            line("host share", 2, reports, of(|conflict| conflict.host_share)),
        ],
        references: Vec::new(),
        note: gaps(reports, |_| true),
    }
}

fn norm_shares(reports: &[EpochReport], lives: &[SeedLife<'_>]) -> Sketch {
    let told = Told::of(lives);
    let is_told_alone = |name: &str| {
        let mut together = told.together.values().flatten();
        !together.any(|life| life.last.seed_id.to_string() == name)
    };
    let owners = owners(reports).into_iter().map(|owner| (owner, owner_name(owner)));
    let series = owners.filter(|(_, name)| is_told_alone(name)).map(|(owner, name)| {
        let seed = lives.iter().position(|life| life.last.seed_id.to_string() == name);
        let points = reports.iter().filter_map(|report| {
            let found = report.conflict.as_ref()?.owners.iter().find(|record| record.owner == owner)?;
            Some((report.epoch.0, found.share))
        });
        Series { class: class(seed.unwrap_or(HOST)), points: points.collect(), name, is_stepped: false }
    });
    Sketch {
        id: "norm-shares",
        title: "Gradient norm per owner",
        unit: "share of the sum of all owners' norms, mean over windows",
        quantity: Quantity::WholeFraction,
        show: percent,
        series: series.collect(),
        references: Vec::new(),
        note: match told.num_together() {
            0 => gaps(reports, |conflict| !conflict.owners.is_empty()),
            num => Some(format!("Without {num} pruned seeds.")),
        },
    }
}

/// A sentence about epochs without the measurement.
fn gaps(reports: &[EpochReport], has: fn(&ConflictRecord) -> bool) -> Option<String> {
    let num_measured = reports.iter().filter_map(|report| report.conflict.as_ref()).filter(|c| has(c)).count();
    match reports.len() - num_measured {
        0 => None,
        _ if num_measured == 0 => Some("Not measured in this run.".to_owned()),
        gaps => Some(format!("Not measured in {gaps} of {} epochs: those are gaps.", count(reports.len() as u64))),
    }
}

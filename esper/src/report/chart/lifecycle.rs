//! The lives of all seeds: a row each, a colored band per stage.

use leyline::id::SeedId;
use leyline::seed::SeedStage;

use super::axis::EpochAxis;
use super::length::Percent;
use crate::report::format::counted;
use crate::report::history::{Band, SeedLife, Told};

/// Height of a row with its label line, in pixels.
const ROW_HEIGHT: usize = 46;
/// A band at least this wide has room for its name on a large screen, in percent.
const WIDE: f64 = 9.0;
/// A band at least this wide has room for its name on a phone, in percent.
const VERY_WIDE: f64 = 26.0;

/// The chart, laid out.
#[derive(Debug)]
pub(in crate::report) struct Lifecycle {
    /// Height of all rows, in pixels.
    pub(in crate::report) height: usize,
    pub(in crate::report) rows: Vec<Row>,
    pub(in crate::report) x_ticks: Vec<(Percent, String)>,
    /// Stages that occur.
    pub(in crate::report) legend: Vec<SeedStage>,
    /// The picture in sentences, for those who do not see it.
    pub(in crate::report) description: String,
}

/// One seed.
#[derive(Debug)]
pub(in crate::report) struct Row {
    /// Top of the row, in pixels.
    pub(in crate::report) y: usize,
    pub(in crate::report) seed: String,
    pub(in crate::report) place: String,
    pub(in crate::report) stage: SeedStage,
    pub(in crate::report) bands: Vec<PlacedBand>,
}

/// One stage of one seed.
#[derive(Debug)]
pub(in crate::report) struct PlacedBand {
    pub(in crate::report) x: Percent,
    pub(in crate::report) width: Percent,
    pub(in crate::report) stage: SeedStage,
    pub(in crate::report) title: String,
    /// Class of the name: where there is room for it.
    pub(in crate::report) room: &'static str,
}

/// Lays out the lives; nothing without seeds.
pub(in crate::report) fn lifecycle(first: u64, last: u64, lives: &[SeedLife<'_>]) -> Option<Lifecycle> {
    if lives.is_empty() {
        return None;
    }
    let x = EpochAxis::new(first, last);
    let told = Told::of(lives);
    let bands = |life: &&SeedLife<'_>| {
        let seed = life.last.seed_id;
        life.bands.iter().map(|band| place(seed, *band, last, x)).collect::<Vec<_>>()
    };
    let alone = told.alone.iter().map(|(_, life)| Row {
        y: 0,
        seed: life.last.seed_id.to_string(),
        place: format!("{} in {}", life.last.blueprint, life.last.slot),
        stage: life.fate(),
        bands: bands(life),
    });
    let together = told.together.iter().map(|(slot, lives)| Row {
        y: 0,
        seed: counted(lives.len() as u64, "seed"),
        place: format!("one after the other in {slot}"),
        stage: SeedStage::Pruned,
        bands: lives.iter().flat_map(bands).collect(),
    });
    let mut rows: Vec<Row> = alone.chain(together).collect();
    for (index, row) in rows.iter_mut().enumerate() {
        row.y = index * ROW_HEIGHT;
    }
    let legend = SeedStage::ALL
        .into_iter()
        .filter(|stage| lives.iter().any(|life| life.bands.iter().any(|band| band.stage == *stage)))
        .collect();
    let alone = told.alone.iter().map(|(_, life)| describe(life));
    let together = told.together.iter().map(|(slot, lives)| format!("{} pruned in {slot}.", lives.len()));
    let description = alone.chain(together).collect::<Vec<_>>().join(" ");
    Some(Lifecycle { height: rows.len() * ROW_HEIGHT, rows, x_ticks: x.ticks(), legend, description })
}

fn place(seed: SeedId, band: Band, last: u64, x: EpochAxis) -> PlacedBand {
    let from = x.place(band.from as f64);
    let width = Percent(x.place_end(band.to).0 - from.0);
    let span = if band.to > last {
        format!("from the end of epoch {} on", band.from)
    } else {
        format!("from the end of epoch {} to the end of epoch {}", band.from, band.to)
    };
    let room = match width.0 {
        share if share >= VERY_WIDE => "name",
        share if share >= WIDE => "name wide",
        _ => "name none",
    };
    PlacedBand { x: from, width, stage: band.stage, title: format!("{seed}: {} {span}", band.stage), room }
}

fn describe(life: &SeedLife<'_>) -> String {
    let stages: Vec<String> =
        life.bands.iter().map(|band| format!("{} for {}", band.stage, counted(band.to - band.from, "epoch"))).collect();
    format!("{} from epoch {}: {}.", life.last.seed_id, life.germinated, stages.join(", "))
}

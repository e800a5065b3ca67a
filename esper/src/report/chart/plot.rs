//! Lines over epochs: paths with gaps where nothing was measured, markers, references, and columns that tell values.

use std::fmt::Write as _;

use super::axis::{EpochAxis, PLOT_HEIGHT, Quantity, ValueAxis};
use super::length::{Percent, Px};
use crate::report::history::{EventKind, SeedEvent};

/// Units of the path's own coordinates across the width.
pub(super) const PATH_WIDTH: f64 = 1000.0;

/// A line of more points than this is drawn by the lowest and highest point of as many pieces as half of it.
const MAX_POINTS: usize = 1200;

/// Most markers: more would stand on each other.
const MAX_MARKERS: usize = 24;

/// Most seeds that a marker names.
const MAX_NAMED: usize = 8;

/// Most columns that tell their values.
const MAX_COLUMNS: usize = 240;

/// One line of a plot.
#[derive(Debug, Clone)]
pub(super) struct Series {
    /// Name in the legend and in the columns.
    pub(super) name: String,
    /// Class that gives color and dash.
    pub(super) class: String,
    /// Values at the ends of epochs, ascending; an epoch without a value is a gap.
    pub(super) points: Vec<(u64, f64)>,
    /// Whether a value holds until the next one, as a count does, and does not lead to it.
    pub(super) is_stepped: bool,
}

impl Series {
    /// The same with values that hold until the next one.
    pub(super) fn stepped(mut self) -> Self {
        self.is_stepped = true;
        self
    }
}

/// A value to compare with: a horizontal line.
#[derive(Debug, Clone)]
pub(super) struct Reference {
    pub(super) label: String,
    pub(super) value: f64,
    /// Whether it was measured at the end of the run, and is marked there.
    pub(super) at_end: bool,
}

/// A plot, laid out.
#[derive(Debug)]
pub(crate) struct Plot {
    pub(crate) height: Px,
    pub(crate) y_ticks: Vec<(Px, String)>,
    pub(crate) x_ticks: Vec<(Percent, String)>,
    pub(crate) lines: Vec<Line>,
    pub(crate) references: Vec<PlacedReference>,
    pub(crate) markers: Vec<Marker>,
    pub(crate) columns: Vec<Column>,
    pub(crate) is_log: bool,
    /// What the horizontal axis is, and the same of many.
    pub(crate) across: [&'static str; 2],
    /// Texts beside points.
    pub(crate) labels: Vec<(Percent, Px, String)>,
}

/// A line, laid out.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) class: String,
    /// Path in a box of 1000 × the height.
    pub(crate) path: String,
    /// Points without a neighbor to connect to.
    pub(crate) dots: Vec<(Percent, Px)>,
}

/// A reference, laid out.
#[derive(Debug)]
pub(crate) struct PlacedReference {
    pub(crate) label: String,
    pub(crate) y: Px,
    /// Where the label stands: above the line, below it at the top.
    pub(crate) label_y: Px,
    pub(crate) mark: Option<Percent>,
}

/// What happened to seeds at the end of one epoch.
#[derive(Debug)]
pub(crate) struct Marker {
    pub(crate) x: Percent,
    pub(crate) title: String,
    /// Name of each kind, with its offset to the right in pixels.
    pub(crate) glyphs: Vec<(&'static str, usize)>,
}

/// A strip over the plot that tells the values of one epoch.
#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) x: Percent,
    pub(crate) width: Percent,
    pub(crate) title: String,
}

/// Lays out a plot; `show` turns a value into text.
pub(super) fn plot(
    epochs: &[u64],
    quantity: Quantity,
    series: &[Series],
    references: &[Reference],
    events: &[SeedEvent],
    show: fn(f64) -> String,
) -> Plot {
    let x = EpochAxis::new(epochs.first().copied().unwrap_or(1), epochs.last().copied().unwrap_or(1));
    let values = series.iter().flat_map(|one| one.points.iter().map(|(_, value)| *value));
    let y = ValueAxis::over(quantity, values.chain(references.iter().map(|reference| reference.value)));
    Plot {
        height: Px(PLOT_HEIGHT),
        y_ticks: y.ticks().map(|(at, label)| (at, label.to_owned())).collect(),
        x_ticks: x.ticks(),
        lines: series.iter().map(|one| line(one, x, &y)).collect(),
        references: references.iter().map(|reference| place(reference, epochs, x, &y)).collect(),
        markers: markers(events, x),
        columns: columns(epochs, series, x, show),
        is_log: y.is_log(),
        across: ["epoch", "epochs"],
        labels: Vec::new(),
    }
}

fn line(series: &Series, x: EpochAxis, y: &ValueAxis) -> Line {
    let (mut path, mut dots) = (String::new(), Vec::new());
    for piece in series.points.chunk_by(|before, after| after.0 == before.0 + 1) {
        if let [(epoch, value)] = piece {
            dots.push((x.place(*epoch as f64), y.place(*value)));
        } else {
            for (index, (epoch, value)) in thinned(piece).iter().enumerate() {
                let (across, down) = (x.place(*epoch as f64).0 / 100.0 * PATH_WIDTH, y.place(*value));
                match (index, series.is_stepped) {
                    (0, _) => write!(path, "M{across:.1} {down}"),
                    (_, false) => write!(path, "L{across:.1} {down}"),
                    (_, true) => write!(path, "H{across:.1}V{down}"),
                }
                .expect("writing to a string does not fail");
            }
        }
    }
    Line { class: series.class.clone(), path, dots }
}

/// The points, or of each piece of many the lowest and the highest: no peak is lost.
fn thinned(points: &[(u64, f64)]) -> Vec<(u64, f64)> {
    if points.len() <= MAX_POINTS {
        return points.to_vec();
    }
    let mut kept = Vec::with_capacity(MAX_POINTS + 2);
    for piece in points.chunks(points.len().div_ceil(MAX_POINTS / 2)) {
        let extreme = |better: fn(f64, f64) -> bool| {
            piece.iter().copied().reduce(|best, point| if better(point.1, best.1) { point } else { best })
        };
        let mut ends: Vec<(u64, f64)> = [extreme(|a, b| a < b), extreme(|a, b| a > b)].into_iter().flatten().collect();
        ends.sort_by_key(|point| point.0);
        ends.dedup_by_key(|point| point.0);
        kept.extend(ends);
    }
    kept
}

fn place(reference: &Reference, epochs: &[u64], x: EpochAxis, y: &ValueAxis) -> PlacedReference {
    let at = y.place(reference.value);
    PlacedReference {
        label: reference.label.clone(),
        y: at,
        label_y: if at.0 < 16.0 { Px(at.0 + 14.0) } else { Px(at.0 - 6.0) },
        mark: epochs.last().filter(|_| reference.at_end).map(|last| x.place(*last as f64)),
    }
}

fn markers(events: &[SeedEvent], x: EpochAxis) -> Vec<Marker> {
    let first = events.first().map_or(0, |event| event.epoch);
    let span = events.last().map_or(0, |event| event.epoch) - first + 1;
    let num_epochs = events.chunk_by(|before, after| before.epoch == after.epoch).count();
    // As many epochs share a marker as it takes for the markers to be few.
    let stride = if num_epochs > MAX_MARKERS { span.div_ceil(MAX_MARKERS as u64) } else { 1 };
    let part = |event: &SeedEvent| (event.epoch - first) / stride;
    let together = events.chunk_by(|before, after| part(before) == part(after));
    together
        .map(|events| {
            let mut glyphs = Vec::new();
            let (from, to) = (events[0].epoch, events[events.len() - 1].epoch);
            let mut title =
                if from == to { format!("end of epoch {from}") } else { format!("ends of epochs {from} to {to}") };
            for kind in EventKind::ALL {
                let seeds: Vec<String> =
                    events.iter().filter(|event| event.kind == kind).map(|event| event.seed.to_string()).collect();
                if !seeds.is_empty() {
                    glyphs.push((kind.name(), glyphs.len() * 11));
                    let seeds =
                        if seeds.len() > MAX_NAMED { format!("{} seeds", seeds.len()) } else { seeds.join(", ") };
                    write!(title, "\n{}: {seeds}", kind.name()).expect("writing to a string does not fail");
                }
            }
            if stride > 1 {
                // No room for several: a seed that stays says more than those that come and go.
                let stays = EventKind::Fossilization.name();
                glyphs = glyphs
                    .iter()
                    .find(|(kind, _)| *kind == stays)
                    .or(glyphs.first())
                    .map(|(kind, _)| (*kind, 0))
                    .into_iter()
                    .collect();
            }
            Marker { x: x.place((from + to) as f64 / 2.0), title, glyphs }
        })
        .collect()
}

fn columns(epochs: &[u64], series: &[Series], x: EpochAxis, show: fn(f64) -> String) -> Vec<Column> {
    let stride = epochs.len().div_ceil(MAX_COLUMNS).max(1);
    let shown: Vec<u64> = epochs.iter().copied().step_by(stride).collect();
    let half = stride as f64 / 2.0;
    shown
        .iter()
        .map(|&epoch| {
            let (from, to) = (x.place(epoch as f64 - half), x.place(epoch as f64 + half));
            let mut title = format!("epoch {epoch}");
            for one in series {
                // Points ascend by epoch.
                let value = one.points.binary_search_by_key(&epoch, |point| point.0).ok().map(|at| one.points[at].1);
                let value = value.map_or_else(|| "not measured".to_owned(), show);
                write!(title, "\n{}: {value}", one.name).expect("writing to a string does not fail");
            }
            Column { x: from, width: Percent(to.0 - from.0), title }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use leyline::id::SeedId;

    use super::*;

    fn draw(points: &[(u64, f64)]) -> Plot {
        let series =
            Series { name: "value".to_owned(), class: "s1".to_owned(), points: points.to_vec(), is_stepped: false };
        let epochs: Vec<u64> = (1..=points.last().map_or(1, |point| point.0)).collect();
        plot(&epochs, Quantity::Number, &[series], &[], &[], |value| value.to_string())
    }

    #[track_caller]
    fn check(points: &[(u64, f64)], num_pieces: usize, num_dots: usize) {
        let line = &draw(points).lines[0];
        assert_eq!(line.path.matches('M').count(), num_pieces, "{}", line.path);
        assert_eq!(line.dots.len(), num_dots, "{:?}", line.dots);
    }

    #[test]
    fn what_was_not_measured_is_a_gap() {
        check(&[], 0, 0);
        check(&[(1, 0.5)], 0, 1);
        check(&[(1, 0.5), (2, 0.6), (3, 0.7)], 1, 0);
        check(&[(1, 0.5), (2, 0.6), (4, 0.7), (5, 0.8)], 2, 0);
        check(&[(1, 0.5), (3, 0.6), (4, 0.7), (9, 0.8)], 1, 2);
    }

    #[test]
    fn a_column_says_when_its_epoch_has_no_value() {
        let columns = draw(&[(1, 0.5), (3, 0.25)]).columns;
        let titles: Vec<&str> = columns.iter().map(|column| column.title.as_str()).collect();
        assert_eq!(titles, ["epoch 1\nvalue: 0.5", "epoch 2\nvalue: not measured", "epoch 3\nvalue: 0.25"]);
    }

    #[test]
    fn a_long_run_stays_small_and_keeps_its_peaks() {
        let mut points: Vec<(u64, f64)> = (1..=100_000).map(|epoch| (epoch, 1.0)).collect();
        points[77_777].1 = 9.0;
        let plot = draw(&points);
        let path = &plot.lines[0].path;
        assert!(path.matches('L').count() <= MAX_POINTS, "{} points", path.matches('L').count());
        assert!(plot.columns.len() <= MAX_COLUMNS);
        assert!(thinned(&points).iter().any(|(_, value)| *value > 8.0), "the peak is gone");
    }

    #[test]
    fn events_of_many_epochs_share_few_markers_and_what_stays_is_seen() {
        let event = |epoch: u32| {
            let kind = match epoch {
                500 => EventKind::Fossilization,
                _ if epoch.is_multiple_of(2) => EventKind::Prune,
                _ => EventKind::Germination,
            };
            SeedEvent { epoch: u64::from(epoch), kind, seed: SeedId(epoch) }
        };
        let events: Vec<SeedEvent> = (1..=600).map(event).collect();
        let found = markers(&events, EpochAxis::new(1, 600));
        assert_eq!(found.len(), MAX_MARKERS);
        assert!(found.iter().all(|marker| marker.glyphs.len() == 1));
        let kept: Vec<&str> =
            found.iter().map(|marker| marker.glyphs[0].0).filter(|kind| *kind == "fossilization").collect();
        assert_eq!(kept.len(), 1);
        assert_eq!(found[0].title, "ends of epochs 1 to 25\ngermination: 13 seeds\nprune: 12 seeds");
    }

    #[test]
    fn events_of_one_epoch_share_a_marker() {
        let event = |epoch, kind, seed| SeedEvent { epoch, kind, seed: SeedId(seed) };
        let events = [
            event(2, EventKind::Germination, 1),
            event(5, EventKind::Prune, 1),
            event(5, EventKind::Germination, 2),
            event(5, EventKind::Germination, 3),
        ];
        let found: Vec<(String, usize)> =
            markers(&events, EpochAxis::new(1, 9)).into_iter().map(|m| (m.title, m.glyphs.len())).collect();
        assert_eq!(
            found,
            [
                ("end of epoch 2\ngermination: seed-1".to_owned(), 1),
                ("end of epoch 5\ngermination: seed-2, seed-3\nprune: seed-1".to_owned(), 2),
            ]
        );
    }
}

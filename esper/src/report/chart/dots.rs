//! Points with intervals, over places or over what they cost.

use std::borrow::Cow;

use super::axis::{PLOT_HEIGHT, Quantity, ValueAxis};
use super::curves::{Chart, class};
use super::length::{Percent, Px};
use super::plot::{Column, Line, PATH_WIDTH, Plot};
use crate::report::format::{decimal, percent};

/// What is measured several times.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Dot {
    /// In the legend, after its number.
    pub(crate) name: String,
    /// Fractions: the mean, and an interval where there is one.
    pub(crate) mean: f64,
    pub(crate) interval: Option<(f64, f64)>,
    /// What it costs, above 0, in the unit of the picture; absent where that is not known, and the point is left out.
    pub(crate) price: Option<f64>,
}

/// What the horizontal axis is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Across {
    /// A place for each.
    Arms,
    /// By orders of magnitude, with the name of its unit.
    Price(&'static str),
}

/// Width of what tells the values of a point, percent.
const COLUMN: f64 = 6.0;

/// Draws each point with its number; the legend has the names.
pub(crate) fn dots(id: String, title: String, unit: String, across: Across, points: &[Dot]) -> Chart {
    let place = |index: usize| 100.0 * (index as f64 + 0.5) / points.len() as f64;
    let price = ValueAxis::over(Quantity::Price, points.iter().filter_map(|dot| dot.price));
    let shown: Vec<(usize, &Dot, Percent)> = points
        .iter()
        .enumerate()
        .filter_map(|(index, dot)| match across {
            Across::Arms => Some((index, dot, Percent(place(index)))),
            Across::Price(_) => dot.price.filter(|price| *price > 0.0).map(|at| (index, dot, price.across(at))),
        })
        .collect();
    let ends =
        |dot: &Dot| [dot.mean, dot.interval.map_or(dot.mean, |of| of.0), dot.interval.map_or(dot.mean, |of| of.1)];
    let values: Vec<f64> = shown.iter().flat_map(|(_, dot, _)| ends(dot)).collect();
    let y = ValueAxis::over(Quantity::Fraction, values.iter().copied());
    let told = |dot: &Dot| {
        let interval =
            dot.interval.map_or_else(String::new, |(low, high)| format!(" [{}, {}]", percent(low), percent(high)));
        let price = match (across, dot.price) {
            (Across::Price(unit), Some(price)) => format!(" at {} {unit}", decimal(price)),
            _ => String::new(),
        };
        format!("{}: {}{interval}{price}", dot.name, percent(dot.mean))
    };
    let line = |(index, dot, x): &(usize, &Dot, Percent)| Line {
        class: class(*index),
        path: dot.interval.map_or_else(String::new, |(low, high)| {
            let across = x.0 / 100.0 * PATH_WIDTH;
            format!("M{across:.1} {}L{across:.1} {}", y.place(low), y.place(high))
        }),
        dots: vec![(*x, y.place(dot.mean))],
    };
    let number = |index: usize| (index + 1).to_string();
    let left_out: Vec<&str> =
        points.iter().filter(|dot| !shown.iter().any(|of| of.1 == *dot)).map(|dot| dot.name.as_str()).collect();
    let plot = Plot {
        height: Px(PLOT_HEIGHT),
        y_ticks: y.ticks().map(|(at, label)| (at, label.to_owned())).collect(),
        x_ticks: match across {
            Across::Arms => shown.iter().map(|(index, _, x)| (*x, number(*index))).collect(),
            Across::Price(_) => price.ticks_across(),
        },
        lines: shown.iter().map(line).collect(),
        references: Vec::new(),
        markers: Vec::new(),
        columns: shown
            .iter()
            .map(|(_, dot, x)| Column {
                x: Percent((x.0 - COLUMN / 2.0).max(0.0)),
                width: Percent(COLUMN),
                title: told(dot),
            })
            .collect(),
        is_log: false,
        across: match across {
            Across::Arms => ["arm", "arms"],
            Across::Price(unit) => [unit, unit],
        },
        labels: match across {
            Across::Arms => Vec::new(),
            Across::Price(_) => {
                shown.iter().map(|(index, dot, x)| (*x, y.place(ends(dot)[2]), number(*index))).collect()
            }
        },
    };
    Chart {
        id: Cow::Owned(id),
        title: Cow::Owned(title),
        unit: Cow::Owned(unit),
        description: shown.iter().map(|(_, dot, _)| told(dot)).collect::<Vec<_>>().join(". "),
        legend: shown
            .iter()
            .map(|(index, dot, _)| (class(*index), format!("{} {}", number(*index), dot.name)))
            .collect(),
        note: (!left_out.is_empty()).then(|| format!("Not known of {}.", left_out.join(", "))),
        plot: (!shown.is_empty()).then_some(plot),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dot(name: &str, mean: f64, price: Option<f64>) -> Dot {
        Dot { name: name.to_owned(), mean, interval: Some((mean - 0.125, mean + 0.125)), price }
    }

    fn draw(across: Across, points: &[Dot]) -> Chart {
        dots("a".to_owned(), "A".to_owned(), "of it".to_owned(), across, points)
    }

    #[test]
    fn each_point_has_its_interval_and_its_number() {
        let chart = draw(Across::Arms, &[dot("off", 0.25, None), dot("on", 0.5, Some(2.0))]);
        let plot = chart.plot.unwrap();
        assert_eq!(plot.x_ticks, [(Percent(25.0), "1".to_owned()), (Percent(75.0), "2".to_owned())]);
        // The axis goes from 0 to 80 % over 180 pixels.
        assert_eq!(plot.lines[0].path, "M250.0 151.9L250.0 95.6");
        assert_eq!(plot.lines[1].dots, [(Percent(75.0), Px(67.5))]);
        assert_eq!(plot.columns[1].title, "on: 50.00% [37.50%, 62.50%]");
        assert_eq!(chart.legend[1].1, "2 on");
    }

    #[test]
    fn what_has_no_price_is_named_and_left_out_of_the_picture() {
        let points = [dot("off", 0.25, None), dot("on", 0.5, Some(10.0)), dot("wide", 0.5, Some(1000.0))];
        let chart = draw(Across::Price("seconds"), &points);
        assert_eq!(chart.note.as_deref(), Some("Not known of off."));
        let plot = chart.plot.unwrap();
        assert_eq!(plot.lines.iter().map(|line| line.dots[0].0).collect::<Vec<_>>(), [Percent(0.0), Percent(100.0)]);
        assert_eq!(plot.labels.iter().map(|label| label.2.as_str()).collect::<Vec<_>>(), ["2", "3"]);
        assert_eq!(plot.columns[0].title, "on: 50.00% [37.50%, 62.50%] at 10.00 seconds");
        assert!(draw(Across::Price("seconds"), &points[..1]).plot.is_none());
    }
}

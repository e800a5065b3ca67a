//! Which class was taken for which.

use std::fmt::Write as _;

use serde::Serialize;

use crate::report::{count, percent, printable};

/// With more classes than this, a matrix has no place on a screen.
const MAX_SHOWN: usize = 20;

/// Which class was taken for which, and what follows for each class.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Confusion {
    /// Samples of a class, by row, that were taken for a class, by column.
    pub(crate) matrix: Vec<Vec<u64>>,
    pub(crate) classes: Vec<ClassQuality>,
}

/// How well one class is told from the others; what nothing was divided by is absent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ClassQuality {
    pub(crate) name: String,
    /// Samples of the class.
    pub(crate) samples: u64,
    /// Of those taken for the class the part that is of it.
    pub(crate) precision: Option<f64>,
    /// Of those of the class the part that was taken for it.
    pub(crate) recall: Option<f64>,
    /// The harmonic mean of both.
    pub(crate) f1: Option<f64>,
}

impl Confusion {
    /// Counts pairs of a class and what it was taken for.
    pub(crate) fn of(names: &[String], pairs: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let mut matrix = vec![vec![0_u64; names.len()]; names.len()];
        for (class, taken_for) in pairs {
            matrix[class][taken_for] += 1;
        }
        let classes = names.iter().enumerate().map(|(class, name)| {
            let (hits, samples) = (matrix[class][class], matrix[class].iter().sum());
            let taken: u64 = matrix.iter().map(|row| row[class]).sum();
            let part = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
            ClassQuality {
                name: name.clone(),
                samples,
                precision: part(hits, taken),
                recall: part(hits, samples),
                f1: part(2 * hits, taken + samples),
            }
        });
        let classes = classes.collect();
        Self { matrix, classes }
    }

    /// As a table for a terminal.
    pub(crate) fn render(&self) -> String {
        let name = |class: &ClassQuality| printable(&class.name).chars().take(24).collect::<String>();
        let width = self.classes.iter().map(|class| name(class).chars().count()).max().unwrap_or(0).clamp(5, 24);
        let part = |part: Option<f64>| part.map_or_else(|| "–".to_owned(), percent);
        let mut text =
            format!("  {:<width$}  {:>8}  {:>9}  {:>8}  {:>8}\n", "class", "samples", "precision", "recall", "F1");
        for class in &self.classes {
            let (precision, recall, f1) = (part(class.precision), part(class.recall), part(class.f1));
            let (name, samples) = (name(class), count(class.samples));
            writeln!(text, "  {name:<width$}  {samples:>8}  {precision:>9}  {recall:>8}  {f1:>8}")
                .expect("writing to a string does not fail");
        }
        if self.classes.len() > MAX_SHOWN {
            return text + &format!("  the matrix of {} classes is told with --json\n", self.classes.len());
        }
        let largest = self.matrix.iter().flatten().copied().max().unwrap_or(0);
        let cell = count(largest).len().max(width.min(8)) + 2;
        text += "\n  samples of a class (row) that were taken for a class (column)\n";
        let short = |class: &ClassQuality| name(class).chars().take(cell - 2).collect::<String>();
        let head: String = self.classes.iter().map(|class| format!("{:>cell$}", short(class))).collect();
        text += &format!("  {:<width$}{head}\n", "");
        for (class, row) in self.classes.iter().zip(&self.matrix) {
            let row: String = row.iter().map(|&number| format!("{:>cell$}", count(number))).collect();
            text += &format!("  {:<width$}{row}\n", name(class));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nothing_was_divided_by_is_absent() {
        let names = ["cat", "dog", "emu\u{1b}[2J", "gnu"].map(str::to_owned);
        let found = Confusion::of(&names, [(0, 0), (0, 0), (0, 1), (1, 1), (2, 0)]);
        assert_eq!(found.matrix, [[2, 1, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]);
        let all: Vec<_> =
            found.classes.iter().map(|class| (class.samples, class.precision, class.recall, class.f1)).collect();
        let third = Some(2.0 / 3.0);
        assert_eq!(
            all,
            [
                (3, third, third, third),
                (1, Some(0.5), Some(1.0), third),
                (1, None, Some(0.0), Some(0.0)),
                (0, None, None, None)
            ]
        );
        let text = found.render();
        assert!(text.contains("gnu") && text.contains('–') && text.contains("66.67%"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}

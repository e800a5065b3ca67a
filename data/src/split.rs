//! The three-way split: training, validation and test never share a sample.

use serde::Serialize;

use super::error::quoted;
use super::{Error, Table, TargetKind, Targets, draw};

/// How a data set is divided. Its seed is its own: a training seed changes nothing here.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SplitPlan {
    /// Seed of the division and of the label permutation.
    pub seed: u64,
    /// Share of the rows for validation, in (0, 1): of all rows, or of the training part where a test part was
    /// published.
    pub validation_fraction: f64,
    /// Share of the rows for the test, in (0, 1); not used where a test part was published.
    pub test_fraction: f64,
    /// Whether the labels of all samples are permuted first. A control: what a network then reaches on the test part
    /// is chance, and anything above it is a leak.
    pub permute_labels: bool,
}

/// The parts of a data set.
#[derive(Debug, Clone, PartialEq)]
pub struct Splits {
    /// Samples to learn from.
    pub train: Table,
    /// Samples to decide by.
    pub validation: Table,
    /// Samples looked at once, at the end.
    pub test: Table,
    /// Which row of the source went where.
    pub assignment: Assignment,
}

/// Row numbers of the source, from 0, ascending within each part. Rows that were left out for missing values have none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Assignment {
    /// Rows of the training part.
    pub train: Vec<usize>,
    /// Rows of the validation part.
    pub validation: Vec<usize>,
    /// Rows of the test part.
    pub test: Vec<usize>,
}

impl Splits {
    /// The parts of `table`.
    pub(super) fn of(table: &Table, assignment: Assignment) -> Self {
        Self {
            train: table.select(&assignment.train),
            validation: table.select(&assignment.validation),
            test: table.select(&assignment.test),
            assignment,
        }
    }
}

/// Targets in another order, as a control: they belong to other samples then.
pub(super) fn permuted(targets: &Targets, seed: u64) -> Vec<usize> {
    let mut rng = draw::generator("esper data 2026 label permutation", seed);
    draw::permutation(&mut rng, targets.num_samples())
}

/// Divides samples by a seeded permutation: within each class, so that each part holds each class in the same proportion, to
/// within one row; of all rows where there are no classes. Windows of tokens are divided in order, so that no part is
/// in the middle of another.
///
/// # Errors
/// [`Error::ClassTooSmall`] or [`Error::TooFewRows`] when not every part that is cut gets at least one row.
pub(super) fn assign(targets: &Targets, num_training: Option<usize>, plan: &SplitPlan) -> Result<Assignment, Error> {
    let num_samples = targets.num_samples();
    let first_test_row = num_training.unwrap_or(num_samples);
    let mut rng = draw::generator("esper data 2026 split", plan.seed);
    let mut assignment = Assignment { test: (first_test_row..num_samples).collect(), ..Assignment::default() };
    let groups =
        if targets.kind() == TargetKind::Classes { targets.rows_by_class() } else { vec![(0..num_samples).collect()] };
    for (class, mut rows) in groups.into_iter().enumerate() {
        rows.retain(|&row| row < first_test_row);
        if targets.kind() != TargetKind::Tokens {
            draw::shuffle(&mut rng, &mut rows);
        }
        let num_validation = share(rows.len(), plan.validation_fraction);
        let num_test = if num_training.is_none() { share(rows.len(), plan.test_fraction) } else { 0 };
        let needed = num_validation + num_test + 1;
        if rows.len() < needed {
            let rows = rows.len();
            return Err(match targets.names().get(class) {
                Some(class) if targets.kind() == TargetKind::Classes => {
                    Error::ClassTooSmall { class: quoted(class), rows, needed }
                }
                _ => Error::TooFewRows { rows, needed },
            });
        }
        if targets.kind() == TargetKind::Tokens {
            rows.rotate_right(num_validation + num_test);
        }
        let (validation, rest) = rows.split_at(num_validation);
        let (test, train) = rest.split_at(num_test);
        assignment.validation.extend(validation);
        assignment.test.extend(test);
        assignment.train.extend(train);
    }
    for rows in [&mut assignment.train, &mut assignment.validation, &mut assignment.test] {
        rows.sort_unstable();
    }
    Ok(assignment)
}

/// The nearest whole number of rows, at least 1.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a fraction of a count is a count")]
fn share(num_rows: usize, fraction: f64) -> usize {
    ((num_rows as f64 * fraction).round() as usize).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::digits;

    const PLAN: SplitPlan = SplitPlan { seed: 1, validation_fraction: 0.2, test_fraction: 0.2, permute_labels: false };

    fn cut(table: Table, num_training: Option<usize>, plan: &SplitPlan) -> Result<Splits, Error> {
        let mut targets = table.targets().clone();
        if plan.permute_labels {
            targets = targets.reordered(&permuted(&targets, plan.seed));
        }
        let assignment = assign(&targets, num_training, plan)?;
        let table = Table::new(table.values().to_vec(), table.sample_shape().to_vec(), targets)?;
        Ok(Splits::of(&table, assignment))
    }

    /// Sample `i` has the one feature `i`, so samples are told apart by their value.
    fn source(labels: &[u32], num_classes: usize) -> Table {
        let inputs: Vec<f32> = (0_u16..).map(f32::from).take(labels.len()).collect();
        Table::new(inputs, vec![1], Targets::numbered(labels.to_vec(), num_classes)).unwrap()
    }

    fn labels_of(table: &Table) -> &[u32] {
        table.targets().labels().unwrap()
    }

    #[test]
    fn digits_are_divided_60_20_20_in_every_class() {
        let splits = cut(digits::read().unwrap(), None, &PLAN).unwrap();
        let sizes = [&splits.train, &splits.validation, &splits.test].map(Table::num_samples);
        assert_eq!(sizes, [1079, 359, 359]);
        let totals = digits::read().unwrap().class_counts();
        for (part, share) in [(&splits.train, 0.6), (&splits.validation, 0.2), (&splits.test, 0.2)] {
            for (count, total) in part.class_counts().into_iter().zip(&totals) {
                assert!((count as f64 - *total as f64 * share).abs() <= 1.0, "{count} of {total} for {share}");
            }
        }
    }

    #[test]
    fn values_are_divided_as_a_whole_and_windows_in_order() {
        let values =
            |count: u16| Targets::Values { values: (0..count).map(f32::from).collect(), names: vec!["y".into()] };
        let Assignment { train, validation, test } = assign(&values(50), None, &PLAN).unwrap();
        assert_eq!([train.len(), validation.len(), test.len()], [30, 10, 10]);
        assert!(validation.iter().any(|row| *row < 25) && validation.iter().any(|row| *row >= 25), "{validation:?}");
        assert_eq!(
            assign(&values(2), None, &PLAN).unwrap_err().to_string(),
            "2 rows are to be split, expected at least 3 for parts of at least one row each"
        );
        let windows = Targets::Tokens { tokens: vec![0; 20], window: 2, vocabulary: 1 };
        let Assignment { train, validation, test } = assign(&windows, None, &PLAN).unwrap();
        assert_eq!([train, validation, test], [(0..6).collect::<Vec<_>>(), vec![6, 7], vec![8, 9]]);
    }

    proptest! {
        #[test]
        fn each_row_is_in_exactly_one_part(
            labels in prop::collection::vec(0_u32..3, 30..200),
            seed in any::<u64>(),
            training_percent in prop::option::of(60_usize..90),
            permute_labels in any::<bool>(),
        ) {
            let num_training = training_percent.map(|percent| labels.len() * percent / 100);
            let plan = SplitPlan { seed, permute_labels, ..PLAN };
            if let Ok(splits) = cut(source(&labels, 3), num_training, &plan) {
                let Assignment { train, validation, test } = &splits.assignment;
                let mut rows = [train.as_slice(), validation, test].concat();
                rows.sort_unstable();
                prop_assert_eq!(rows, (0..labels.len()).collect::<Vec<_>>());
                if let Some(first) = num_training {
                    prop_assert!(test.iter().all(|&row| row >= first) && test.len() == labels.len() - first);
                }
                for (table, rows) in [(&splits.train, train), (&splits.validation, validation), (&splits.test, test)] {
                    let values: Vec<f32> = rows.iter().map(|&row| f32::from(u16::try_from(row).unwrap())).collect();
                    prop_assert_eq!(table.values(), values);
                    if !permute_labels {
                        prop_assert!(rows.iter().zip(labels_of(table)).all(|(&row, &target)| labels[row] == target));
                    }
                }
            }
        }
    }

    #[test]
    fn the_seed_alone_decides_the_division() {
        let cut = |seed| cut(digits::read().unwrap(), None, &SplitPlan { seed, ..PLAN }).unwrap().assignment;
        assert_eq!(cut(1), cut(1));
        assert_ne!(cut(1), cut(2));
    }

    #[test]
    fn permuted_labels_keep_their_counts_and_lose_their_samples() {
        let table = digits::read().unwrap();
        let splits = cut(digits::read().unwrap(), None, &SplitPlan { permute_labels: true, ..PLAN }).unwrap();
        let Assignment { train, validation, test } = &splits.assignment;
        let mut counts = [0; 10];
        let (mut kept, mut inputs_kept) = (0, true);
        for (part, rows) in [(&splits.train, train), (&splits.validation, validation), (&splits.test, test)] {
            for (index, &row) in rows.iter().enumerate() {
                counts[usize::try_from(labels_of(part)[index]).unwrap()] += 1;
                kept += usize::from(labels_of(part)[index] == labels_of(&table)[row]);
                inputs_kept &= part.sample(index) == table.sample(row);
            }
        }
        assert!(inputs_kept, "only labels move");
        assert_eq!(counts.to_vec(), table.class_counts());
        // One in ten stays by chance; the deviation of that count is about 13.
        assert!((115..=245).contains(&kept), "{kept} of 1797 labels stayed");
    }

    #[test]
    fn a_class_without_a_row_for_each_part_is_refused() {
        let error = cut(source(&[0, 0, 0, 1, 1], 2), None, &PLAN).unwrap_err();
        assert_eq!(
            error.to_string(),
            "class `1` has 2 of the rows to be split, expected at least 3 for parts of at least one row each"
        );
        let unused_class = cut(source(&[0, 0, 0, 2, 2, 2], 3), None, &PLAN).unwrap_err();
        assert!(matches!(unused_class, Error::ClassTooSmall { rows: 0, .. }));
    }
}

//! Tests of what is learned from the training part, through files.

use std::fs;

use super::*;
use crate::config::{ColumnRef, ColumnRefs, DataName, TargetChoice};
use crate::{Prepared, TargetKind, load};

/// A file of this text, loaded; a second one read by what was learned.
struct Case {
    folder: tempfile::TempDir,
}

impl Case {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn load(&self, text: &str, change: impl FnOnce(&mut DataConfig)) -> Result<Prepared, String> {
        let path = self.folder.path().join("train.csv");
        fs::write(&path, text).unwrap();
        let mut config = DataConfig::new(DataName::File(path));
        change(&mut config);
        load(&config).map_err(|error| self.shown(&error))
    }

    fn apply(&self, preparation: &Preparation, text: &str) -> Result<Applied, String> {
        let path = self.folder.path().join("more.csv");
        fs::write(&path, text).unwrap();
        preparation.apply(&path).map_err(|error| self.shown(&error))
    }

    fn shown(&self, error: &Error) -> String {
        error.to_string().replace(&format!("{}/", self.folder.path().display()), "")
    }
}

/// 30 rows: a number, a word, a target.
fn rows(target: impl Fn(usize) -> String) -> String {
    let row = |i: usize| format!("{},{},{}\n", i % 10, ["red", "green", "blue"][i % 3], target(i));
    "width,color,y\n".to_owned() + &(0..30).map(row).collect::<String>()
}

#[test]
fn numbers_are_standardized_by_the_training_rows_alone_and_words_become_flags() {
    let case = Case::new();
    let Prepared { splits, preparation, notes, .. } = case.load(&rows(|i| (i % 2).to_string()), |_| {}).unwrap();
    assert_eq!(preparation.sample_shape, [4]);
    let column: Vec<f64> = (0..splits.train.num_samples()).map(|row| f64::from(splits.train.sample(row)[0])).collect();
    let mean = column.iter().sum::<f64>() / column.len() as f64;
    let deviation = (column.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / column.len() as f64).sqrt();
    assert!(mean.abs() < 1e-6 && (deviation - 1.0).abs() < 1e-6, "{mean} ± {deviation}");
    for (index, &row) in splits.assignment.test.iter().enumerate() {
        let width = (row % 10) as f64;
        #[expect(clippy::cast_possible_truncation, reason = "inputs are single precision")]
        let expected = ((width - preparation.scaling.means[0]) / preparation.scaling.scales[0]) as f32;
        let mut flags = [0.0; 3];
        flags[[2, 1, 0][row % 3]] = 1.0; // blue, green, red
        assert_eq!(splits.test.sample(index), [&[expected], flags.as_slice()].concat());
    }
    assert_eq!(
        notes[1..],
        [
            "target: `y`: 2 classes (`0`, `1`), since it holds 2 different whole numbers",
            "samples of [4], numbers standardized by mean and deviation of 18 training rows (data.standardize); one input \
             per word of `color`: `blue`, `green`, `red`"
        ]
    );
}

#[test]
fn a_preparation_survives_its_document_and_does_the_same_to_the_same_rows() {
    let case = Case::new();
    let text = rows(|i| ["no", "yes"][i % 2].to_owned());
    let Prepared { splits, preparation, .. } = case.load(&text, |_| {}).unwrap();
    let again: Preparation = serde_json::from_str(&serde_json::to_string(&preparation).unwrap()).unwrap();
    assert_eq!(again, preparation);
    let applied = case.apply(&again, &text).unwrap();
    let table = crate::Table::new(applied.inputs, applied.sample_shape, applied.targets.unwrap()).unwrap();
    assert_eq!(table.select(&splits.assignment.test), splits.test);
    assert_eq!(table.select(&splits.assignment.train), splits.train);
}

#[test]
fn another_file_is_read_by_the_names_of_its_columns() {
    let case = Case::new();
    let preparation = case.load(&rows(|i| ["no", "yes"][i % 2].to_owned()), |_| {}).unwrap().preparation;
    let applied = case.apply(&preparation, "more;color;width\nx;blue;3\nx;pink;4\n").unwrap();
    assert_eq!((applied.num_samples(), &applied.targets), (2, &None));
    let Inputs::Values(values) = &applied.inputs else { panic!("values") };
    assert_eq!(values[1..4], [1.0, 0.0, 0.0]);
    assert_eq!(values[5..], [0.0; 3]);
    assert!(applied.notes.iter().any(|note| note.starts_with("`color`: 1 rows have a word that no training row has")));
    for (text, message) in [
        (
            "color,height\nred,1\n",
            "more.csv:1:1: found no column `width`, expected the columns that were learned from, among `color`, `height`, \
             or a number from 1 to 2",
        ),
        ("color,width,y\nred,1,maybe\n", "more.csv: found the label `maybe` in sample 0, expected one of `no`, `yes`"),
        (
            "color,width\nred,\n",
            "more.csv:2:2: found nothing, expected a value: the run has learned from none that are missing",
        ),
        ("color,width\nred,blue\n", "more.csv:2:2: found `blue`, expected a finite number, with `.` before decimals"),
    ] {
        assert_eq!(case.apply(&preparation, text).unwrap_err(), message);
    }
}

#[test]
fn another_file_without_names_is_read_by_place() {
    let case = Case::new();
    let text: String = (0..30).map(|i| format!("{},{},{}\n", i % 2, i % 7, i % 5)).collect();
    let target = Some(ColumnRefs::One(ColumnRef::Number(1)));
    let preparation = case.load(&text, |config| config.target = target).unwrap().preparation;
    let with = case.apply(&preparation, "1,3,4\n").unwrap();
    let without = case.apply(&preparation, "3,4\n").unwrap();
    assert_eq!(with.inputs, without.inputs);
    assert_eq!((with.targets.unwrap().labels(), without.targets), (Some([1].as_slice()), None));
    let message = "more.csv:1:1: found 4 columns, expected 3 columns, or 2 without the target";
    assert_eq!(case.apply(&preparation, "1,3,4,5\n").unwrap_err(), message);
}

#[test]
fn values_are_learned_in_deviations_and_given_back_in_units() {
    let case = Case::new();
    let text: String = (0..50).map(|i| format!("{},{}\n", i, 100.5 + 10.0 * f64::from(i))).collect();
    let Prepared { splits, preparation, notes, .. } = case.load(&text, |_| {}).unwrap();
    assert_eq!(preparation.target.kind, TargetKind::Values);
    assert_eq!(notes[1], "target: `column 2`: values, since 100.5 is no whole number (data.target_kind)");
    let crate::Targets::Values { values, .. } = splits.test.targets() else { panic!("values") };
    let mut outputs = values.clone();
    assert!(outputs.iter().all(|output| output.abs() < 3.0), "{outputs:?}");
    preparation.target.restore(&mut outputs);
    for (output, row) in outputs.iter().zip(&splits.assignment.test) {
        let expected = 100.5 + 10.0 * *row as f32;
        assert!((output - expected).abs() < 1e-3, "{output} is not {expected}");
    }
}

#[track_caller]
fn check_kind(target: impl Fn(usize) -> String, choice: TargetChoice, expected: Result<(TargetKind, usize), &str>) {
    let found = Case::new().load(&rows(target), |config| config.target_kind = choice);
    let found = found.map(|prepared| (prepared.preparation.target.kind, prepared.splits.train.num_outputs()));
    assert_eq!(found, expected.map_err(str::to_owned));
}

#[test]
fn what_a_target_is_follows_from_what_stands_there_unless_it_is_said() {
    use TargetChoice::{Auto, Classes, Flags, Values};

    check_kind(|i| ["a", "b", "c"][i % 3].into(), Auto, Ok((TargetKind::Classes, 3)));
    check_kind(|i| (i % 3 + 3).to_string(), Auto, Ok((TargetKind::Classes, 3)));
    check_kind(|i| (i % 3 * 100).to_string(), Values, Ok((TargetKind::Values, 1)));
    check_kind(|i| (i * i).to_string(), Auto, Ok((TargetKind::Values, 1)));
    check_kind(|i| format!("{}.5", i % 3), Auto, Ok((TargetKind::Values, 1)));
    check_kind(|i| format!("{}.5", i % 3), Classes, Ok((TargetKind::Classes, 3)));
    check_kind(|i| (i % 2).to_string(), Flags, Ok((TargetKind::Flags, 1)));
    check_kind(
        |_| "7".into(),
        Auto,
        Err("train.csv: found the label `7` in every row of `y`, expected at least two classes"),
    );
    check_kind(
        |i| ["a", "b"][i % 2].into(),
        Values,
        Err("train.csv: found words in `y`, expected numbers for values or flags, or `data.target_kind` = \"classes\""),
    );
    check_kind(
        |i| (i % 3).to_string(),
        Flags,
        Err("train.csv: found numbers other than 0 and 1, expected 0 or 1 in columns of flags"),
    );
}

#[test]
fn several_columns_are_flags_or_values() {
    let text: String =
        "x,a,b\n".to_owned() + &(0..30).map(|i| format!("{i},{},{}\n", i % 2, i / 2 % 2)).collect::<String>();
    let target = ["a", "b"].map(|name| ColumnRef::Name(name.into())).to_vec();
    let prepared = Case::new().load(&text, |config| config.target = Some(ColumnRefs::Many(target))).unwrap();
    assert_eq!((prepared.preparation.target.kind, prepared.splits.test.num_outputs()), (TargetKind::Flags, 2));
}

#[test]
fn gaps_get_the_mean_of_the_training_rows() {
    let case = Case::new();
    let width = |i: usize| if i.is_multiple_of(6) { String::new() } else { (i % 10).to_string() };
    let text: String = (0..60).map(|i| format!("{},{},{}\n", width(i), i % 4, i % 2)).collect();
    let Prepared { splits, preparation, notes, .. } =
        case.load(&text, |config| config.missing = Missing::Mean).unwrap();
    let gap = splits.assignment.test.iter().position(|row| row.is_multiple_of(6)).unwrap();
    // The mean of what is known is the mean of the column with its gaps filled: 0 after scaling.
    assert!(splits.test.sample(gap)[0].abs() < 1e-6);
    assert!(notes[1].starts_with("10 missing cells of 60 rows"), "{notes:?}");
    assert!(case.apply(&preparation, ",1\n").is_ok());
}

#[test]
fn a_scale_that_is_given_takes_the_place_of_standardization() {
    let case = Case::new();
    let text: String = (0..30).map(|i| format!("{},{}\n", 16 * i, i % 2)).collect();
    let prepared = case.load(&text, |config| config.csv_scale = crate::Scale::new(16.0)).unwrap();
    let expected: Vec<f32> = prepared.splits.assignment.train.iter().map(|&row| row as f32).collect();
    assert_eq!(prepared.splits.train.values(), expected);
    let as_it_is = case.load(&text, |config| config.standardize = Some(false)).unwrap();
    let unscaled: Vec<f32> = expected.iter().map(|value| 16.0 * value).collect();
    assert_eq!(as_it_is.splits.train.values(), unscaled);
}

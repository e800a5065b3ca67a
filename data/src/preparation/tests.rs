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
fn an_empty_line_of_a_file_with_one_column_moves_no_row_up() {
    let case = Case::new();
    let rows: String = (0..30).map(|i| format!("{},{}\n", i % 10, i % 2)).collect();
    let Prepared { preparation, .. } = case.load(&format!("x,y\n{rows}"), |_| {}).unwrap();
    for end in ["\n", "\r\n", "\r", "\r\r\n"] {
        let lines = |lines: &[&str]| lines.iter().map(|line| format!("{line}{end}")).collect::<String>();
        let found = case.apply(&preparation, &lines(&["x", "1", "", "3"]));
        let message = found.unwrap_err();
        assert!(message.ends_with("found an empty line above, expected a value in every line, or nothing behind it"));
        assert!(message.starts_with("more.csv:4:1: ") || end == "\r\r\n", "{message}");
        let found = case.apply(&preparation, &lines(&["x", "1", "2", "3", "", ""])).unwrap();
        assert_eq!(found.num_samples(), 3, "{end:?}");
        let marked = |rows: &[&str]| case.apply(&preparation, &format!("\u{feff}{}", lines(rows)));
        assert_eq!(marked(&["x", "1", "2", "3"]).unwrap().num_samples(), 3, "{end:?}");
        assert!(marked(&["x", "1", "", "3"]).is_err() && marked(&["x", "", "3"]).is_err(), "{end:?}");
    }
    // Nor does one above the first row, where rows have no names.
    let Prepared { preparation, .. } = case.load(&rows, |_| {}).unwrap();
    for mark in ["", "\u{feff}"] {
        assert!(case.apply(&preparation, &format!("{mark}\n1\n3\n")).unwrap_err().contains("an empty line above"));
        assert_eq!(case.apply(&preparation, &format!("{mark}1\n3\n")).unwrap().num_samples(), 2);
    }
    let Prepared { preparation, .. } = case.load(&format!("x,y\n{rows}"), |_| {}).unwrap();
    // Of several columns an empty line is no row.
    assert_eq!(case.apply(&preparation, "x,y\n1,0\n\n3,1\n").unwrap().num_samples(), 2);
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
            "width,color,width\n1,red,2\n",
            "more.csv:1:1: found `width` in columns 1 and 3, expected each column that was learned from once",
        ),
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
fn columns_of_one_name_that_were_learned_from_are_told_apart_by_their_places() {
    let case = Case::new();
    let text = "a,a,y\n".to_owned() + &(0..60).map(|i| format!("{i},{},{}\n", i % 3, i % 2)).collect::<String>();
    let preparation = case.load(&text, |_| {}).unwrap().preparation;
    let applied = case.apply(&preparation, "a,a,y\n5,1,0\n").unwrap();
    let Inputs::Values(values) = &applied.inputs else { panic!("values") };
    assert_eq!(values.len(), 2);
    let without = |config: &mut DataConfig| config.ignore = vec![ColumnRef::Number(2)];
    let preparation_of_one = case.load(&text, without).unwrap().preparation;
    let Inputs::Values(of_one) = case.apply(&preparation_of_one, "a,a,y\n5,1,0\n").unwrap().inputs else { panic!() };
    assert_eq!(of_one, values[..1], "a file like the one that was learned from");
    let Inputs::Values(alone) = case.apply(&preparation_of_one, "a,a\n5,1\n").unwrap().inputs else { panic!() };
    assert_eq!(alone, values[..1], "the same without the target");
    let error = case.apply(&preparation_of_one, "a,a,y,a\n5,1,0,2\n").unwrap_err();
    assert_eq!(error, "more.csv:1:1: found `a` in columns 1 and 2, expected each column that was learned from once");
    let error = case.apply(&preparation_of_one, "a,y,a\n5,0,1\n").unwrap_err();
    assert_eq!(error, "more.csv:1:1: found `a` in columns 1 and 3, expected each column that was learned from once");
    let error = case.apply(&preparation, "a,b,y,a\n5,1,0,2\n").unwrap_err();
    assert_eq!(error, "more.csv:1:1: found `a` in columns 1 and 4, expected each column that was learned from once");
}

#[test]
fn labels_that_are_words_stay_words_in_a_file_whose_labels_could_be_numbers() {
    let case = Case::new();
    let labels = ["01", "1", "x", "y", "z"];
    let preparation = case.load(&rows(|i| labels[i % 5].to_owned()), |_| {}).unwrap().preparation;
    assert_eq!(preparation.target.names, labels);
    for (more, expected) in [("01 01 1", [0, 0, 1].as_slice()), ("1 01 1 x", &[1, 0, 1, 2])] {
        let more: String = more.split(' ').map(|label| format!("1,red,{label}\n")).collect();
        let applied = case.apply(&preparation, &("width,color,y\n".to_owned() + &more)).unwrap();
        assert_eq!(applied.targets.unwrap().labels(), Some(expected));
    }
    // Numbers are the same number however they are written.
    let preparation = case.load(&rows(|i| (i % 2).to_string()), |_| {}).unwrap().preparation;
    let applied = case.apply(&preparation, "width,color,y\n1,red,01\n1,red,0.0\n").unwrap();
    assert_eq!(applied.targets.unwrap().labels(), Some([1, 0].as_slice()));
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
fn values_are_learned_in_deviations_from_their_mean() {
    let case = Case::new();
    let text: String = (0..50).map(|i| format!("{},{}\n", i, 100.5 + 10.0 * f64::from(i))).collect();
    let Prepared { splits, preparation, notes, .. } = case.load(&text, |_| {}).unwrap();
    assert_eq!(preparation.target.kind, TargetKind::Values);
    assert_eq!(notes[1], "target: `column 2`: values, since 100.5 is no whole number (data.target_kind)");
    let crate::Targets::Values { values, .. } = splits.test.targets() else { panic!("values") };
    assert!(values.iter().all(|value| value.abs() < 3.0), "{values:?}");
    let (mean, scale) = (preparation.target.means[0], preparation.target.scales[0]);
    for (value, row) in values.iter().zip(&splits.assignment.test) {
        let (found, expected) = (f64::from(*value) * scale + mean, 100.5 + 10.0 * *row as f64);
        assert!((found - expected).abs() < 1e-3, "{found} is not {expected}");
    }
}

#[test]
fn values_of_training_rows_have_the_mean_0_and_the_deviation_1_with_permuted_labels_too() {
    let text: String = (0..50).map(|i| format!("{},{}\n", i, 100.5 + 10.0 * f64::from(i))).collect();
    for permute_labels in [false, true] {
        let Prepared { splits, .. } = Case::new().load(&text, |config| config.permute_labels = permute_labels).unwrap();
        let crate::Targets::Values { values, .. } = splits.train.targets() else { panic!("values") };
        let (mean, deviation) = mean_and_scale(values.iter().copied().map(f64::from));
        assert!(mean.abs() < 1e-5 && (deviation - 1.0).abs() < 1e-5, "{permute_labels}: {mean} ± {deviation}");
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

#[test]
fn a_scale_that_is_given_is_not_one_of_words() {
    let case = Case::new();
    let text = rows(|i| (i % 2).to_string());
    let Prepared { splits, preparation, notes, .. } =
        case.load(&text, |config| config.csv_scale = crate::Scale::new(16.0)).unwrap();
    // The width, then a flag for each of blue, green and red.
    for (place, &row) in splits.assignment.train.iter().enumerate() {
        let word = ["red", "green", "blue"][row % 3];
        let flags = ["blue", "green", "red"].map(|of| if of == word { 1.0 } else { 0.0 });
        assert_eq!(splits.train.sample(place), [&[(row % 10) as f32 / 16.0][..], &flags].concat());
    }
    let told = "samples of [4], numbers divided by 16; one input per word of `color`";
    assert!(notes.iter().any(|note| note.starts_with(told)), "{notes:?}");
    let applied = |of: &Preparation| case.apply(of, "width,color\n8,green\n").unwrap().inputs;
    assert_eq!(applied(&preparation), Inputs::Values(vec![0.5, 0.0, 1.0, 0.0]));
    // What was written before means what its network was trained with.
    let earlier = Preparation { scaling: Scaling { means: vec![0.0], scales: vec![16.0] }, ..preparation };
    assert_eq!(earlier.contradiction(), None);
    assert_eq!(applied(&earlier), Inputs::Values(vec![0.5, 0.0, 0.0625, 0.0]));
}

#[test]
fn numbers_that_differ_in_late_digits_are_standardized_before_they_are_rounded() {
    let case = Case::new();
    let seconds = |i: usize| 1_700_000_000 + i;
    let text: String = (0..60).map(|i| format!("{},{}\n", seconds(i), i % 2)).collect();
    let Prepared { splits, preparation, .. } = case.load(&text, |_| {}).unwrap();
    let mut different: Vec<u32> = splits.train.values().iter().map(|value| value.to_bits()).collect();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), splits.train.num_samples());
    let applied = case.apply(&preparation, &text).unwrap();
    let Inputs::Values(values) = applied.inputs else { panic!("values") };
    let of_test: Vec<f32> = splits.assignment.test.iter().map(|&row| values[row]).collect();
    assert_eq!(splits.test.values(), of_test);

    // The same as an array of whole numbers, and of f64.
    let bytes: Vec<u8> =
        (0..60_usize).flat_map(|i| [seconds(i), i % 2].map(|n| n as i64)).flat_map(i64::to_le_bytes).collect();
    let doubles: Vec<u8> =
        (0..60_usize).flat_map(|i| [seconds(i), i % 2].map(|n| n as f64)).flat_map(f64::to_le_bytes).collect();
    for (descr, bytes) in [("<i8", bytes), ("<f8", doubles)] {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (60, 2), }}");
        let file =
            [b"\x93NUMPY\x01\x00", &u16::try_from(header.len()).unwrap().to_le_bytes()[..], header.as_bytes(), &bytes]
                .concat();
        let path = case.folder.path().join("train.npy");
        fs::write(&path, file).unwrap();
        let prepared = load(&DataConfig::new(DataName::File(path.clone()))).unwrap();
        assert_eq!(prepared.splits.train.values(), splits.train.values(), "{descr}");
        assert_eq!(prepared.preparation.apply(&path).unwrap().inputs, Inputs::Values(values.clone()), "{descr}");
    }
}

#[test]
fn what_becomes_too_large_for_an_input_is_refused() {
    let case = Case::new();
    let preparation = case.load(&rows(|i| (i % 2).to_string()), |_| {}).unwrap().preparation;
    let small = Preparation { scaling: Scaling { means: vec![0.0], scales: vec![1e-9] }, ..preparation };
    let message = "more.csv: found inf in sample 0, as it was to be scaled, expected finite numbers";
    assert_eq!(case.apply(&small, "width,color\n1e30,red\n").unwrap_err(), message);
}

#[test]
fn a_class_of_zero_is_one_whatever_its_sign() {
    let case = Case::new();
    let target = |i: usize| ["-0.0", "1", "0"][i % 3].to_owned();
    let Prepared { preparation, .. } = case.load(&rows(target), |_| {}).unwrap();
    assert_eq!(preparation.target.names, ["0", "1"]);
    let more = "width,color,y\n1,red,0\n1,red,-0\n1,red,1\n";
    let labels = |of: &Preparation| match case.apply(of, more).unwrap().targets {
        Some(Targets::Classes { labels, .. }) => labels,
        other => panic!("{other:?}"),
    };
    assert_eq!(labels(&preparation), [0, 0, 1]);
    // As a file whose zeros were all negative was written down before.
    let mut earlier = preparation;
    earlier.target.names[0] = "-0".into();
    assert_eq!(labels(&earlier), [0, 0, 1]);
}

#[test]
fn another_file_has_the_format_and_the_delimiter_that_were_given() {
    let case = Case::new();
    let path = case.folder.path().join("rows.txt");
    let text = "width|note;y\n".to_owned() + &(0..30).map(|i| format!("{}|a;{}\n", i % 10, i % 2)).collect::<String>();
    fs::write(&path, text.replace(';', "|")).unwrap();
    let mut config = DataConfig::new(DataName::File(path.clone()));
    (config.format, config.delimiter) = (Some("csv".into()), Some(Delimiter::Pipe));
    config.ignore = vec![ColumnRef::Name("note".into())];
    let preparation = load(&config).unwrap().preparation;
    let again: Preparation = serde_json::from_str(&serde_json::to_string(&preparation).unwrap()).unwrap();
    assert_eq!(again, preparation);
    assert_eq!(again.apply(&path).unwrap().num_samples(), 30);
    for (name, text) in [
        ("more.txt", "y|width|c,d\n0|3|x\n"), // `,` is in a name
        ("more.dat", "width|y\n3|0\n"),
        ("more.csv", "width;y\n3;0\n"),
        ("one.txt", "width\n3\n"),
    ] {
        let path = case.folder.path().join(name);
        fs::write(&path, text).unwrap();
        assert_eq!(again.apply(&path).map_err(|error| error.to_string()).unwrap().num_samples(), 1, "{name}");
    }
}

#[track_caller]
fn check_contradiction(change: impl FnOnce(&mut serde_json::Value), expected: &str) {
    let text: String = "x,c,a,b\n".to_owned()
        + &(0..30).map(|i| format!("{i},{},{},{}\n", ["u", "v"][i % 2], i % 3, i)).collect::<String>();
    let target = ["a", "b"].map(|name| ColumnRef::Name(name.into())).to_vec();
    let prepared = Case::new().load(&text, |config| config.target = Some(ColumnRefs::Many(target))).unwrap();
    assert_eq!(prepared.preparation.contradiction(), None);
    let mut document = serde_json::to_value(&prepared.preparation).unwrap();
    change(&mut document);
    let changed: Preparation = serde_json::from_value(document).unwrap();
    let (field, found, accepted) = changed.contradiction().unwrap();
    assert_eq!(format!("{field}: {found}, expected {accepted}"), expected);
}

#[test]
fn a_document_that_contradicts_itself_is_told_before_it_is_used() {
    use serde_json::json;

    check_contradiction(
        |document| document["columns"]["targets"] = json!([["a", 2], ["b", 2]]),
        "columns: two columns at 2, expected a place for each",
    );
    check_contradiction(
        |document| document["columns"]["features"][1]["position"] = json!(0),
        "columns: two columns at 0, expected a place for each",
    );
    check_contradiction(
        |document| document["columns"]["targets"] = json!([["a", 4], ["b", 3]]),
        "columns: a column at 4, expected places below 4, the number of columns",
    );
    check_contradiction(
        |document| document["columns"]["targets"] = json!([["a", 2]]),
        "columns: 1 columns of a target of values, expected 1 for classes, and one for each of the values or flags",
    );
    for words in [json!(["v", "u"]), json!(["u", "u"])] {
        check_contradiction(
            |document| document["columns"]["features"][1]["kind"]["words"]["values"] = words,
            "columns: words of `c` in another order, or twice, expected each word once, in the order of their bytes",
        );
    }
    check_contradiction(
        |document| document["target"]["scales"] = json!([]),
        "target: 2 means and 0 scales, expected 2 of both, or none",
    );
    check_contradiction(
        |document| document["target"]["vocabulary"] = json!(2),
        "target: a vocabulary beside values, expected one for tokens alone",
    );
    check_contradiction(
        |document| document["target"] = json!({"kind": "classes", "names": ["a", "a"]}),
        "columns: 2 columns of a target of classes, expected 1 for classes, and one for each of the values or flags",
    );
    check_contradiction(
        |document| {
            document["columns"]["targets"] = json!([["a", 2]]);
            document["target"] = json!({"kind": "classes", "names": ["a", "a"]});
        },
        "target: two classes called `a`, expected a name for each",
    );
    check_contradiction(
        |document| document["target"]["class_counts"] = json!([1, 2]),
        "target: counts of 2 classes, expected 0, or none",
    );
    check_contradiction(
        |document| document["scaling"]["scales"][1] = json!(0.0),
        "scaling: a scale of 0, expected finite numbers above 0",
    );
    check_contradiction(
        |document| document["format"] = json!("xls"),
        "format: `xls`, expected csv, npy, npz, safetensors, parquet, images, text, tokens_u16, tokens_u32, idx",
    );
}

#[test]
fn names_of_columns_reach_a_terminal_without_its_commands() {
    let case = Case::new();
    let text = "\u{1b}[31mred,word,y\n".to_owned()
        + &(0..30)
            .map(|i| {
                format!("{},{},{}\n", if i == 3 { String::new() } else { i.to_string() }, ["u", "v"][i % 2], i % 2)
            })
            .collect::<String>();
    let Prepared { preparation, notes, .. } = case.load(&text, |config| config.missing = Missing::Mean).unwrap();
    let applied = case.apply(&preparation, &text.replace("u,", "\u{1b}u,")).unwrap();
    let all = [notes, applied.notes].concat();
    assert!(all.iter().any(|note| note.contains("(`\\u{1b}[31mred`: 1)")), "{all:#?}");
    assert!(all.iter().all(|note| !note.contains('\u{1b}')), "{all:#?}");
}

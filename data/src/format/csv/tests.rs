//! Tests of files of rows: each mistake at its place, each dialect read as it was meant.

use super::super::Features;
use super::super::sheet::A_NUMBER;
use super::*;
use crate::config::{ColumnRef, ColumnRefs, DataConfig, Delimiter, Missing};

fn read_as(text: &[u8], config: &DataConfig) -> Result<Records, Error> {
    parse(text, "x.csv", &Reading { config, learned: None, has_word_labels: false, tokenizer: None })
}

/// Features row by row, and the target; numbers only.
#[track_caller]
fn numbers(text: &str, config: &DataConfig) -> (Vec<f64>, Vec<f64>) {
    use crate::column::Cells;

    let records = read_as(text.as_bytes(), config).unwrap();
    let Features::Columns(columns) = &records.features else { panic!("{text:?} has columns") };
    let columns: Vec<&Vec<f64>> = columns
        .iter()
        .map(|column| match &column.cells {
            Cells::Numbers(values) => values,
            Cells::Words { words, .. } => panic!("{text:?}: words {words:?}"),
        })
        .collect();
    let features = (0..columns[0].len()).flat_map(|row| columns.iter().map(move |column| column[row])).collect();
    match &records.targets[0].cells {
        Cells::Numbers(values) => (features, values.clone()),
        Cells::Words { words, .. } => panic!("{text:?}: words {words:?}"),
    }
}

#[track_caller]
fn check(text: &str, features: &[f64], target: &[f64]) {
    assert_eq!(numbers(text, &DataConfig::default()), (features.to_vec(), target.to_vec()), "{text:?}");
}

#[track_caller]
fn check_refused(text: &[u8], message: &str) {
    check_refused_as(text, &DataConfig::default(), message);
}

#[track_caller]
fn check_refused_as(text: &[u8], config: &DataConfig, message: &str) {
    let found = read_as(text, config).unwrap_err().to_string();
    assert_eq!(found, message, "{:?}", String::from_utf8_lossy(text));
}

#[test]
fn rows_are_read_in_order() {
    check("0,16,3\n1,2,9\n", &[0.0, 16.0, 1.0, 2.0], &[3.0, 9.0]);
    check("0,16,3\n1,2,9", &[0.0, 16.0, 1.0, 2.0], &[3.0, 9.0]);
    check("0.5, -1e3 ,0\r\n", &[0.5, -1000.0], &[0.0]);
    check("\u{feff}0,16,3\n1,2,9\n", &[0.0, 16.0, 1.0, 2.0], &[3.0, 9.0]);
}

#[test]
fn files_are_read_as_spreadsheets_write_them() {
    for text in [
        "0.5,2,1\n3,4,0\n",
        "0.5;2;1\n3;4;0\n",
        "0.5|2|1\n3|4|0\n",
        "0.5\t2\t1\r\n3\t4\t0\r\n",
        "width,height,label\n0.5,2,1\n3,4,0\n",
        "\u{feff}width;height;\"the; label\"\r\n0.5;2;1\r\n3;4;0",
        "\"0.5\",\"2\",\"1\"\n\n3,4,0\n\n",
        "\"width; mm\",height,label\n0.5,2,1\n3,4,0\n",
        "width 5\";height;label\n0.5;2;1\n3;4;0\n",
        "\n\r\n0.5;2;1\n3;4;0\n",
        "Na,Mg,Type\r0.5,2,1\r3,4,0\r",
        // The numbers of rows that a data frame writes.
        ",width,height,label\n0,0.5,2,1\n1,3,4,0\n",
        // Names that start with digits.
        "1x1,1x2,label\n0.5,2,1\n3,4,0\n",
        "sepal length (cm),od280/od315,\"a, b\"\n0.5,2,1\n3,4,0\n",
    ] {
        check(text, &[0.5, 2.0, 3.0, 4.0], &[1.0, 0.0]);
    }
}

#[test]
fn columns_are_chosen_by_name_or_number() {
    let text = "id,width,label,height\n7,0.5,1,2\n8,3,0,4\n";
    let name = |name: &str| ColumnRef::Name(name.into());
    for config in [
        DataConfig { target: Some(ColumnRefs::One(name("label"))), ignore: vec![name("id")], ..DataConfig::default() },
        DataConfig {
            target: Some(ColumnRefs::One(ColumnRef::Number(3))),
            features: Some(vec![name("width"), ColumnRef::Number(4)]),
            ..DataConfig::default()
        },
    ] {
        assert_eq!(numbers(text, &config), (vec![0.5, 2.0, 3.0, 4.0], vec![1.0, 0.0]));
    }
    let none = DataConfig { target: Some(ColumnRefs::One(name("labl"))), ..DataConfig::default() };
    let accepted = "expected one of `id`, `width`, `label`, `height`, or a number from 1 to 4";
    check_refused_as(text.as_bytes(), &none, &format!("data.target: x.csv has no column `labl`; {accepted}"));
    let zero = DataConfig { ignore: vec![ColumnRef::Number(0)], ..DataConfig::default() };
    check_refused_as(text.as_bytes(), &zero, &format!("data.ignore: x.csv has no column 0; {accepted}"));
    let both = DataConfig { features: Some(vec![name("id")]), ignore: vec![name("id")], ..DataConfig::default() };
    let message = "data.features: `id` is the target, or left out, too; expected one of them";
    check_refused_as(text.as_bytes(), &both, message);
}

#[test]
fn a_column_that_is_chosen_twice_is_refused() {
    let twice = DataConfig { features: Some(vec![ColumnRef::Number(1); 2]), ..DataConfig::default() };
    check_refused_as(b"a,y\n1,0\n", &twice, "data.features: names `a` twice; expected each column once");
}

#[test]
fn a_first_column_that_is_called_column_1_is_a_feature() {
    check("column 1,column 2,label\n0.5,2,1\n3,4,0\n", &[0.5, 2.0, 3.0, 4.0], &[1.0, 0.0]);
}

#[test]
fn in_a_target_of_words_only_the_empty_cell_is_missing() {
    let classes = |text: &str, config: &DataConfig| {
        let records = read_as(text.as_bytes(), config).map_err(|error| error.to_string())?;
        match &records.targets[0].cells {
            crate::column::Cells::Words { codes, words } => {
                Ok(codes.iter().map(|&code| words[code as usize].clone()).collect::<Vec<_>>())
            }
            crate::column::Cells::Numbers(values) => Err(format!("{values:?}")),
        }
    };
    for missing in [Missing::Refuse, Missing::Drop, Missing::Mean] {
        let config = DataConfig { missing, ..DataConfig::default() };
        for words in [["none", "some"], ["NA", "EU"], ["?", "!"], ["null", "None"]] {
            let text = format!("a,y\n1,{}\n2,{}\n3,{}\n", words[0], words[1], words[0]);
            assert_eq!(classes(&text, &config).unwrap(), [words[0], words[1], words[0]], "{missing:?}");
        }
    }
    let drop = DataConfig { missing: Missing::Drop, ..DataConfig::default() };
    assert_eq!(classes("a,y\n1,none\n2,\n3,some\n", &drop).unwrap(), ["none", "some"]);
    // Among numbers they lack a number.
    assert_eq!(numbers("a,y\n1,0\n2,NA\n3,1\nNA,NA\n", &drop), (vec![1.0, 3.0], vec![0.0, 1.0]));
    let notes = read_as(b"a,y\n1,0\n2,NA\n3,1\nNA,NA\n", &drop).unwrap().notes;
    assert_eq!(notes[1], "2 of 4 rows are left out: they lack 3 cells (`a`: 1, `y`: 2)");
    let mean = DataConfig { missing: Missing::Mean, ..DataConfig::default() };
    check_refused_as(
        b"a,y\n1,0\n2,NA\n",
        &mean,
        "x.csv:3:2: found `NA`, a missing value, expected a target in every row",
    );
}

#[test]
fn missing_values_are_refused_dropped_or_kept_for_their_mean() {
    let text = b"a,b,y\n1,,0\n2,5,1\n,6,0\n4,7,1\n";
    let rule = "`data.missing` = \"drop\" leaves such rows out, \"mean\" fills them";
    check_refused(text, &format!("x.csv:2:2: found nothing, expected {A_NUMBER}, or a word; {rule}"));
    let drop = DataConfig { missing: Missing::Drop, ..DataConfig::default() };
    let text = std::str::from_utf8(text).unwrap();
    assert_eq!(numbers(text, &drop), (vec![2.0, 5.0, 4.0, 7.0], vec![1.0, 1.0]));
    let notes = read_as(text.as_bytes(), &drop).unwrap().notes;
    assert_eq!(notes[1], "2 of 4 rows are left out: they lack 2 cells (`a`: 1, `b`: 1)");
    let mean = DataConfig { missing: Missing::Mean, ..DataConfig::default() };
    let (features, _) = numbers(text, &mean);
    assert!(
        features[1].is_nan() && features[4].is_nan() && features.iter().filter(|value| value.is_nan()).count() == 2
    );
    check_refused_as(b"a,y\n1,0\n2,\n", &mean, "x.csv:3:2: found nothing, expected a target in every row");
    check_refused_as(
        b"a,y\n,0\n2,\n",
        &drop,
        "x.csv:1:1: found no row of numbers, expected rows of features and a target",
    );
}

#[test]
fn the_line_of_a_mistake_is_that_of_its_row() {
    for (text, place) in [
        ("1,0\nx,0\n", "2:1"),
        ("1,0\r\nx,0\r\n", "2:1"),
        ("1,0\n\n\nx,0\n", "4:1"),
        ("a,b\n\"1\",0\nx,0\n", "3:1"),
        ("\"a\nb\",c\n1,0\nx,0\n", "4:1"),
        ("1;0\nx;0\n", "2:1"),
        ("1,0\rx,0\r", "2:1"),
        ("1,0\r\r\n\nx,0", "4:1"),
        ("\"a\rb\",c\r\n1,0\rx,0", "4:1"),
    ] {
        check_refused(text.as_bytes(), &format!("x.csv:{place}: found `x`, expected {A_NUMBER}"));
    }
}

#[test]
fn each_mistake_is_named_with_line_and_column() {
    let columns = |number: usize| format!("expected {number} columns, as in the first row");
    let empty = "x.csv:1:1: found no row of numbers, expected rows of features and a target";
    check_refused(b"", empty);
    check_refused(b"\n\n", empty);
    check_refused(b"width,label\n", empty);
    check_refused(b"1,2,3\n1,2\n", &format!("x.csv:2:2: found 2 columns, {}", columns(3)));
    check_refused(b"1,2,3\n1,2,3,4\n", &format!("x.csv:2:3: found 4 columns, {}", columns(3)));
    check_refused(b"a,b,c\n1,0\n", &format!("x.csv:2:2: found 2 columns, {}", columns(3)));
    check_refused(
        b"1\n2\n",
        "x.csv:1:1: found 1 column, expected 2 or more: features and a target; or another `data.delimiter`",
    );
    check_refused(b"width,0\n1,0\n", &format!("x.csv:1:1: found `width`, expected {A_NUMBER}"));
    check_refused(b"0,5;1;0\n1,5;1;1\n", &format!("x.csv:1:1: found `0,5`, expected {A_NUMBER}"));
    check_refused(b"\"1,234.5\",1\n\"2,000\",0\n", &format!("x.csv:1:1: found `1,234.5`, expected {A_NUMBER}"));
    let gap = |found: &str| {
        let found = if found.is_empty() { "nothing".to_owned() } else { format!("`{found}`, a missing value") };
        format!(
            "found {found}, expected {A_NUMBER}, or a word; `data.missing` = \"drop\" leaves such rows out, \"mean\" fills them"
        )
    };
    for missing in ["NA", "n/a", "null", "NULL", "None", "none", "nan", "NaN", "", "?"] {
        check_refused(format!("{missing},{missing},0\n1,2,0\n").as_bytes(), &format!("x.csv:1:1: {}", gap(missing)));
        check_refused(format!("1,{missing},0\n1,2,0\n").as_bytes(), &format!("x.csv:1:2: {}", gap(missing)));
    }
    check_refused(b"1,1e39,0\n", &format!("x.csv:1:2: found `1e39`, expected {A_NUMBER}"));
    check_refused(b"1,inf,0\n", &format!("x.csv:1:2: found `inf`, expected {A_NUMBER}"));
    check_refused(b"1,2,0\n1,\x1b[31m,0\n", &format!("x.csv:2:2: found `\\u{{1b}}[31m`, expected {A_NUMBER}"));
    check_refused(b"1,0\n\xff,0\n", "x.csv:2:1: found a byte that is not UTF-8 at offset 0, expected text in UTF-8");
    check_refused(b"a\xff,b\n1,0\n", "x.csv:1:1: found a byte that is not UTF-8 at offset 1, expected text in UTF-8");
    check_refused(b"\xff\xfe1\0,\x000\0", "x.csv:1:1: found text in UTF-16, expected text in UTF-8");
    check_refused(
        b"1,2,\"0\n1,3,1\n",
        "x.csv:1:3: found a line break within `0\\n1,3,1`, expected quotes that are closed on their line",
    );
    let unread = DataConfig { ignore: vec![ColumnRef::Name("note".into())], ..DataConfig::default() };
    let quotes =
        "without a closing quote at its end, expected cells that are quoted as a whole, with quotes in them doubled";
    // As some write them: a backslash is no escape here, and the cell would take the row below into it.
    check_refused_as(
        b"x,note,y\n1,\"6\\\"\",0\n2,\"7\\\"\",1\n3,ok,0\n4,ok,1\n",
        &unread,
        &format!(r#"x.csv:2:2: found the cell `\"6\\\"\",0\n2,\"7` {quotes}"#),
    );
    check_refused_as(
        b"x,y,note\r\n1,0,a\r\n2,1,\"b\r\n3,0,c\r\n4,1,d\r\n",
        &unread,
        &format!(r#"x.csv:3:3: found the cell `\"b\r\n3,0,c\r\n4,1,d\r\n` {quotes}"#),
    );
    check_refused_as(
        b"x,y,note\n1,0,\"a,c\"b\n2,1,c\n",
        &unread,
        &format!(r#"x.csv:2:3: found the cell `\"a,c\"b` {quotes}"#),
    );
    // Quotes that take nothing into their cells stay.
    let closed = "\u{feff}\"x\",y,note\n1,0,\"a, \"\"b\"\"\nc\" \n2,1, d \"e\" f\n3,\"0\",\"Great\" film";
    assert_eq!(
        numbers(closed, &DataConfig { target: Some(ColumnRefs::One(ColumnRef::Name("y".into()))), ..unread }).1,
        [0.0, 1.0, 0.0]
    );
    let semicolons = DataConfig { delimiter: Some(Delimiter::Semicolon), ..DataConfig::default() };
    check_refused_as(
        b"1,2\n",
        &semicolons,
        "x.csv:1:1: found 1 column, expected 2 or more: features and a target; or another `data.delimiter`",
    );
}

#[test]
fn words_are_features_while_they_are_few() {
    let rows: String = (0..70).map(|row| format!("{row},name{row},{}\n", row % 2)).collect();
    check_refused(
        rows.as_bytes(),
        "x.csv:65:2: found more than 64 different words in `column 2`, expected numbers, or at most 64 words; \
         `data.ignore` leaves the column out",
    );
    let ignored = DataConfig { ignore: vec![ColumnRef::Number(2)], ..DataConfig::default() };
    assert_eq!(numbers(&rows, &ignored).0.len(), 70);
}

#[test]
fn long_cells_are_cut_in_messages() {
    let text = format!("1,0\n{},0\n", "z".repeat(10_000));
    assert!(read_as(text.as_bytes(), &DataConfig::default()).unwrap_err().to_string().len() < 200);
}

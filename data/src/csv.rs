//! Samples as rows of a CSV file: features, then the label. Cells may be quoted; a first row of names is passed over.

use std::collections::BTreeSet;
use std::path::Path;

use csv::{ByteRecord, Reader, ReaderBuilder, Trim};

use super::error::quoted;
use super::{Error, Table, unpack};

/// Largest text that is read, after unpacking.
const LIMIT_BYTES: u64 = 1 << 30;
/// Labels are class numbers, and each costs an output of the network: larger ones are a column mix-up.
const MAX_LABEL: u32 = 9_999;

/// What the cells of a file may hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// Features per line; taken from the first line when absent.
    pub num_features: Option<usize>,
    /// Features are whole numbers up to this one; any finite number when absent.
    pub max_level: Option<u8>,
    /// Largest label.
    pub max_label: u32,
}

/// Reads a user's file, plain or `.gz`; every feature is divided by `scale`.
///
/// Classes are 0 to the largest label; shape of a sample (F,).
///
/// # Errors
/// [`Error::Read`], [`Error::Unpack`], [`Error::TooLarge`], or [`Error::Csv`] with line and column.
pub(super) fn read(path: &Path, scale: f32) -> Result<Table, Error> {
    let place = path.display().to_string();
    let bytes = unpack::read_file(path, LIMIT_BYTES)?;
    let rules = Rules { num_features: None, max_level: None, max_label: MAX_LABEL };
    let (features, labels) = parse(&bytes, &place, rules)?;
    let num_features = features.len() / labels.len();
    let num_classes = num_classes(&labels, &place)?;
    let inputs = features.into_iter().map(|value| value / scale).collect();
    Table::new(inputs, vec![num_features], labels, num_classes)
}

/// Classes, which are counted from 0 without gaps: a class without a row is an output that nothing teaches.
fn num_classes(labels: &[u32], place: &str) -> Result<usize, Error> {
    let found: BTreeSet<u32> = labels.iter().copied().collect();
    let wrong = |found: String, expected: String| Err(Error::Labels { place: place.into(), found, expected });
    let (first, last) = (found.first().copied().unwrap_or(0), found.last().copied().unwrap_or(0));
    let missing = (0..=last).find(|label| !found.contains(label));
    match missing {
        _ if found.len() < 2 => {
            wrong(format!("the label {first} in every row"), "at least two classes in the last column".into())
        }
        Some(0) if (1..=last).all(|label| found.contains(&label)) => wrong(
            format!("labels from 1 to {last}"),
            format!("labels from 0 to {}: subtract 1 from the last column", last - 1),
        ),
        Some(missing) => wrong(
            format!("no row with the label {missing}"),
            format!("every label from 0 to {last}, the largest, in the last column"),
        ),
        None => Ok(found.len()),
    }
}

/// Features in row-major order, and one label per row. A byte-order mark and empty lines are passed over, and so is a
/// first row of as many names.
///
/// # Errors
/// [`Error::Csv`] for the first cell or row that breaks a rule, also for a file without rows.
pub(super) fn parse(bytes: &[u8], place: &str, rules: Rules) -> Result<(Vec<f32>, Vec<u32>), Error> {
    let mut reader = reader(bytes, delimiter(bytes));
    let (mut features, mut labels) = (Vec::new(), Vec::new());
    let (mut num_features, mut may_be_header, mut row) = (rules.num_features, true, ByteRecord::new());
    while reader.read_byte_record(&mut row).expect("bytes can be read, and rows may have any length") {
        let wrong = |column: usize, found: String, expected: String| {
            let start = row.position().map_or(0, |position| usize::try_from(position.byte()).unwrap_or(usize::MAX));
            Error::Csv { place: place.into(), line: line_of(bytes, start), column, found, expected }
        };
        let text = |(index, cell)| {
            let text = std::str::from_utf8(cell).map_err(|error| {
                let found = format!("a byte that is not UTF-8 at offset {}", error.valid_up_to());
                wrong(index + 1, found, "text".into())
            });
            Ok((index + 1, text?))
        };
        let cells = row.iter().enumerate().map(text).collect::<Result<Vec<(usize, &str)>, Error>>()?;
        let expected_features = *num_features.get_or_insert(row.len().saturating_sub(1).max(1));
        if row.len() != expected_features + 1 {
            let expected = format!("{} columns ({expected_features} features, then the label)", expected_features + 1);
            return Err(wrong(row.len().min(expected_features + 1), format!("{} columns", row.len()), expected));
        }
        if std::mem::take(&mut may_be_header) && cells.iter().all(|(_, cell)| is_name(cell)) {
            continue;
        }
        for (column, cell) in cells {
            let wrong = |expected| wrong(column, quoted(cell), expected);
            if column <= expected_features {
                features.push(feature(cell, rules.max_level).map_err(wrong)?);
            } else {
                labels.push(label(cell, rules.max_label).map_err(wrong)?);
            }
        }
    }
    if labels.is_empty() {
        let (found, expected) = ("no row of numbers".into(), "rows of features, then the label".into());
        return Err(Error::Csv { place: place.into(), line: 1, column: 1, found, expected });
    }
    Ok((features, labels))
}

fn reader(bytes: &[u8], delimiter: u8) -> Reader<&[u8]> {
    ReaderBuilder::new().has_headers(false).flexible(true).trim(Trim::All).delimiter(delimiter).from_reader(bytes)
}

/// `;` or a tab where it separates cells of the first row, since no number has one, else `,`.
fn delimiter(bytes: &[u8]) -> u8 {
    let separates = |&delimiter: &u8| {
        let mut row = ByteRecord::new();
        reader(bytes, delimiter).read_byte_record(&mut row).is_ok_and(|found| found && row.len() > 1)
    };
    [b';', b'\t'].into_iter().find(separates).unwrap_or(b',')
}

/// The line of a row, from 1; the row starts behind the line breaks at `start`. Lines end with `\n`, `\r\n` or `\r`.
fn line_of(bytes: &[u8], start: usize) -> usize {
    let breaks = bytes[start..].iter().take_while(|&byte| matches!(byte, b'\r' | b'\n')).count();
    let before = &bytes[..start + breaks];
    let ends = |(index, &byte): (usize, &u8)| byte == b'\n' || byte == b'\r' && before.get(index + 1) != Some(&b'\n');
    1 + before.iter().enumerate().filter(|&entry| ends(entry)).count()
}

/// Whether a cell is the name of a column: neither a number nor a word for a missing one.
fn is_name(cell: &str) -> bool {
    // `Na` is sodium.
    let missing = cell == "NA" || ["n/a", "null", "none"].iter().any(|word| cell.eq_ignore_ascii_case(word));
    cell.starts_with(|first: char| first.is_alphabetic() || first == '_') && cell.parse::<f32>().is_err() && !missing
}

fn feature(cell: &str, max_level: Option<u8>) -> Result<f32, String> {
    if let Some(max) = max_level {
        let level = cell.parse::<u8>().ok().filter(|&level| level <= max);
        return level.map(f32::from).ok_or_else(|| format!("a whole number from 0 to {max}"));
    }
    let value = cell.parse::<f32>().ok().filter(|value| value.is_finite());
    value.ok_or_else(|| "a finite number, with `.` before decimals".into())
}

fn label(cell: &str, max: u32) -> Result<u32, String> {
    let label = cell.parse::<u32>().ok().filter(|&label| label <= max);
    label.ok_or_else(|| format!("a label, a whole number from 0 to {max}, in the last column"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: Rules = Rules { num_features: None, max_level: None, max_label: MAX_LABEL };
    const DIGITS: Rules = Rules { num_features: Some(2), max_level: Some(16), max_label: 9 };

    #[track_caller]
    fn check(text: &str, rules: Rules, features: &[f32], labels: &[u32]) {
        assert_eq!(parse(text.as_bytes(), "x.csv", rules).unwrap(), (features.to_vec(), labels.to_vec()));
    }

    #[track_caller]
    fn check_refused(text: &[u8], rules: Rules, message: &str) {
        assert_eq!(parse(text, "x.csv", rules).unwrap_err().to_string(), message);
    }

    #[test]
    fn rows_are_read_in_order() {
        check("0,16,3\n1,2,9\n", DIGITS, &[0.0, 16.0, 1.0, 2.0], &[3, 9]);
        check("0,16,3\n1,2,9", DIGITS, &[0.0, 16.0, 1.0, 2.0], &[3, 9]);
        check("0.5, -1e3 ,0\r\n", OPEN, &[0.5, -1000.0], &[0]);
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_number() {
        check("\u{feff}0,16,3\n1,2,9\n", OPEN, &[0.0, 16.0, 1.0, 2.0], &[3, 9]);
    }

    #[test]
    fn files_are_read_as_spreadsheets_write_them() {
        for text in [
            "0.5,2,1\n3,4,0\n",
            "0.5;2;1\n3;4;0\n",
            "0.5\t2\t1\r\n3\t4\t0\r\n",
            "width,height,label\n0.5,2,1\n3,4,0\n",
            "\u{feff}width;height;\"the; label\"\r\n0.5;2;1\r\n3;4;0",
            "\"0.5\",\"2\",\"1\"\n\n3,4,0\n\n",
            "\"width; mm\",height,label\n0.5,2,1\n3,4,0\n",
            "width 5\";height;label\n0.5;2;1\n3;4;0\n",
            "\n\r\n0.5;2;1\n3;4;0\n",
            "Na,Mg,Type\r0.5,2,1\r3,4,0\r",
        ] {
            check(text, OPEN, &[0.5, 2.0, 3.0, 4.0], &[1, 0]);
        }
    }

    #[test]
    fn the_line_of_a_mistake_is_that_of_its_row() {
        let number = "expected a finite number, with `.` before decimals";
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
            check_refused(text.as_bytes(), OPEN, &format!("x.csv:{place}: found `x`, {number}"));
        }
    }

    #[test]
    fn labels_are_counted_from_0_without_gaps() {
        for (labels, expected) in [
            (&[0, 1, 0][..], Ok(2)),
            (&[2, 0, 1], Ok(3)),
            (&[0, 0], Err("found the label 0 in every row, expected at least two classes in the last column")),
            (&[1, 1], Err("found the label 1 in every row, expected at least two classes in the last column")),
            (&[1, 3, 2], Err("found labels from 1 to 3, expected labels from 0 to 2: subtract 1 from the last column")),
            (
                &[0, 3, 1],
                Err("found no row with the label 2, expected every label from 0 to 3, the largest, in the last column"),
            ),
            (
                &[2, 4, 3],
                Err("found no row with the label 0, expected every label from 0 to 4, the largest, in the last column"),
            ),
        ] {
            let found = num_classes(labels, "x.csv").map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(|message| format!("x.csv: {message}")), "{labels:?}");
        }
    }

    #[test]
    fn each_mistake_is_named_with_line_and_column() {
        let columns = "expected 3 columns (2 features, then the label)";
        let empty = "x.csv:1:1: found no row of numbers, expected rows of features, then the label";
        check_refused(b"", OPEN, empty);
        check_refused(b"width,label\n", OPEN, empty);
        check_refused(b"1,2,3\n1,2\n", OPEN, &format!("x.csv:2:2: found 2 columns, {columns}"));
        check_refused(b"1,2,3\n1,2,3,4\n", OPEN, &format!("x.csv:2:3: found 4 columns, {columns}"));
        check_refused(b"1,2\n", DIGITS, &format!("x.csv:1:2: found 2 columns, {columns}"));
        check_refused(b"a,b,c\n1,0\n", OPEN, &format!("x.csv:2:2: found 2 columns, {columns}"));
        check_refused(b"a,b\n1,2,0\n", DIGITS, &format!("x.csv:1:2: found 2 columns, {columns}"));
        let number = "expected a finite number, with `.` before decimals";
        check_refused(b"width,0\n1,0\n", OPEN, &format!("x.csv:1:1: found `width`, {number}"));
        check_refused(b"0,5;1;0\n", OPEN, &format!("x.csv:1:1: found `0,5`, {number}"));
        check_refused(b"1,2,0\n1,NaN,0\n", OPEN, &format!("x.csv:2:2: found `NaN`, {number}"));
        check_refused(b"1,,0\n", OPEN, &format!("x.csv:1:2: found ``, {number}"));
        for missing in ["NA", "n/a", "null", "NULL", "None", "none", "nan", "NaN", ""] {
            let text = format!("{missing},{missing},{missing}\n1,2,0\n");
            check_refused(text.as_bytes(), OPEN, &format!("x.csv:1:1: found `{missing}`, {number}"));
        }
        check_refused(b"1,1e39,0\n", OPEN, &format!("x.csv:1:2: found `1e39`, {number}"));
        check_refused(b"1,\x1b[31m,0\n", OPEN, &format!("x.csv:1:2: found `\\u{{1b}}[31m`, {number}"));
        check_refused(b"1,17,0\n", DIGITS, "x.csv:1:2: found `17`, expected a whole number from 0 to 16");
        check_refused(b"1,0.5,0\n", DIGITS, "x.csv:1:2: found `0.5`, expected a whole number from 0 to 16");
        let label = "expected a label, a whole number from 0 to";
        check_refused(b"1,1,10\n", DIGITS, &format!("x.csv:1:3: found `10`, {label} 9, in the last column"));
        check_refused(b"1,1.5\n", OPEN, &format!("x.csv:1:2: found `1.5`, {label} 9999, in the last column"));
        check_refused(b"1,-1\n", OPEN, &format!("x.csv:1:2: found `-1`, {label} 9999, in the last column"));
        check_refused(b"1,0\n\xff,0\n", OPEN, "x.csv:2:1: found a byte that is not UTF-8 at offset 0, expected text");
    }

    #[test]
    fn long_cells_are_cut_in_messages() {
        let text = format!("{},0\n", "z".repeat(10_000));
        assert!(parse(text.as_bytes(), "x.csv", OPEN).unwrap_err().to_string().len() < 200);
    }

    #[test]
    fn a_file_is_scaled_and_its_classes_counted_plain_or_packed() {
        let folder = tempfile::tempdir().unwrap();
        let (plain, packed) = (folder.path().join("a.csv"), folder.path().join("a.csv.gz"));
        let text = b"0,8,0\n16,4,1\n";
        std::fs::write(&plain, text).unwrap();
        std::fs::write(&packed, unpack::tests::gzip(text)).unwrap();
        let table = read(&plain, 16.0).unwrap();
        assert_eq!(table, read(&packed, 16.0).unwrap());
        assert_eq!(table.inputs(), [0.0, 0.5, 1.0, 0.25]);
        assert_eq!(
            (table.targets(), table.num_classes(), table.sample_shape()),
            ([0, 1].as_slice(), 2, [2].as_slice())
        );
    }
}

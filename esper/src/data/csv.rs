//! Comma-separated samples: features, then the label, no header, one sample per line.

use std::collections::BTreeSet;
use std::path::Path;

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

/// Features in row-major order, and one label per line. A byte-order mark is passed over.
///
/// # Errors
/// [`Error::Csv`] for the first cell or line that breaks a rule, also for an empty file.
pub(super) fn parse(bytes: &[u8], place: &str, rules: Rules) -> Result<(Vec<f32>, Vec<u32>), Error> {
    let mut num_features = rules.num_features;
    let (mut features, mut labels) = (Vec::new(), Vec::new());
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let lines = bytes.strip_suffix(b"\n").unwrap_or(bytes).split(|&byte| byte == b'\n');
    for (line_index, line) in lines.enumerate() {
        let wrong = |column: usize, found: String, expected: String| Error::Csv {
            place: place.into(),
            line: line_index + 1,
            column,
            found,
            expected,
        };
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = std::str::from_utf8(line).map_err(|error| {
            wrong(1, format!("a byte that is not UTF-8 at offset {}", error.valid_up_to()), "text".into())
        })?;
        if let Some(separator) = [';', '\t'].into_iter().find(|&separator| line.contains(separator)) {
            let found = format!("columns separated by {}", quoted(&separator.to_string()));
            let column = line.split(separator).next().map_or(1, |before| before.split(',').count());
            return Err(wrong(column, found, "`,` between columns, and `.` in numbers".into()));
        }
        let num_cells = if line.trim().is_empty() { 0 } else { line.split(',').count() };
        let expected_features = *num_features.get_or_insert(num_cells.saturating_sub(1).max(1));
        if num_cells != expected_features + 1 {
            let found = if num_cells == 0 { "an empty line".into() } else { format!("{num_cells} columns") };
            let expected = format!("{} columns ({expected_features} features, then the label)", expected_features + 1);
            return Err(wrong(num_cells.min(expected_features + 1).max(1), found, expected));
        }
        for (cell_index, cell) in line.split(',').map(str::trim).enumerate() {
            let wrong = |expected: String| wrong(cell_index + 1, quoted(cell), expected);
            if cell_index < expected_features {
                features.push(feature(cell, rules.max_level).map_err(wrong)?);
            } else {
                labels.push(label(cell, rules.max_label).map_err(wrong)?);
            }
        }
    }
    Ok((features, labels))
}

fn feature(cell: &str, max_level: Option<u8>) -> Result<f32, String> {
    if let Some(max) = max_level {
        let level = cell.parse::<u8>().ok().filter(|&level| level <= max);
        return level.map(f32::from).ok_or_else(|| format!("a whole number from 0 to {max}"));
    }
    let value = cell.parse::<f32>().ok().filter(|value| value.is_finite());
    value.ok_or_else(|| "a finite number (a header line is not part of the format)".into())
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
    fn other_separators_are_named() {
        let expected = "expected `,` between columns, and `.` in numbers";
        check_refused(b"1;2;0\n", OPEN, &format!("x.csv:1:1: found columns separated by `;`, {expected}"));
        check_refused(b"width;label\n", OPEN, &format!("x.csv:1:1: found columns separated by `;`, {expected}"));
        check_refused(b"0,5;1,5;0\n", OPEN, &format!("x.csv:1:2: found columns separated by `;`, {expected}"));
        check_refused(b"1\t2\t0\n", DIGITS, &format!("x.csv:1:1: found columns separated by `\\t`, {expected}"));
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
        check_refused(b"", OPEN, "x.csv:1:1: found an empty line, expected 2 columns (1 features, then the label)");
        check_refused(b"1,2,3\n1,2\n", OPEN, &format!("x.csv:2:2: found 2 columns, {columns}"));
        check_refused(b"1,2,3\n1,2,3,4\n", OPEN, &format!("x.csv:2:3: found 4 columns, {columns}"));
        check_refused(b"1,2,3\n\n1,2,3\n", OPEN, &format!("x.csv:2:1: found an empty line, {columns}"));
        check_refused(b"1,2\n", DIGITS, &format!("x.csv:1:2: found 2 columns, {columns}"));
        let number = "expected a finite number (a header line is not part of the format)";
        check_refused(b"width,label\n1,0\n", OPEN, &format!("x.csv:1:1: found `width`, {number}"));
        check_refused(b"1,2,0\n1,NaN,0\n", OPEN, &format!("x.csv:2:2: found `NaN`, {number}"));
        check_refused(b"1,,0\n", OPEN, &format!("x.csv:1:2: found ``, {number}"));
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

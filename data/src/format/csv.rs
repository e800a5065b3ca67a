//! Rows of cells with a delimiter between them, as spreadsheets and libraries export them.
//!
//! A byte-order mark, empty lines and `\r\n` are passed over; cells may be quoted. A column holds numbers when at least half
//! of its cells are numbers, else words. Memory follows the text, of which at most 1 GiB is read.

use std::path::Path;

use csv::{ByteRecord, Reader, ReaderBuilder, Trim};

use super::{Features, Format, Reading, Records};
use crate::column::{Builder, Column, add_word};
use crate::config::{ColumnRef, Delimiter, Header, Missing};
use crate::error::quoted;
use crate::preparation::{ColumnPlan, FeatureKind};
use crate::{Error, unpack};

/// Files of rows.
pub(super) const FORMAT: Format =
    Format { name: "csv", endings: &[".csv", ".csv.gz", ".tsv", ".tsv.gz"], starts: &[], keys: super::ROWS, read };

/// Largest text that is read, after unpacking.
const LIMIT_BYTES: u64 = 1 << 30;
/// Each word of a feature is an input of the network: more are a name or a number of a row.
const MAX_WORDS: usize = 64;
/// Each label is an output of the network.
const MAX_LABELS: usize = 10_000;
const DELIMITERS: [u8; 4] = [b';', b'\t', b'|', b','];
const A_NUMBER: &str = "a finite number, with `.` before decimals";

fn read(path: &Path, reading: &Reading<'_>) -> Result<Records, Error> {
    let bytes = unpack::read_file(path, LIMIT_BYTES)?;
    parse(&bytes, &path.display().to_string(), reading)
}

/// Reads the columns that are asked for.
///
/// # Errors
/// [`Error::Csv`] for the first cell or row that breaks a rule, [`Error::Config`] for a column that is not there.
fn parse(bytes: &[u8], place: &str, reading: &Reading<'_>) -> Result<Records, Error> {
    if let [0xff, 0xfe, ..] | [0xfe, 0xff, ..] = bytes {
        let (found, expected) = ("text in UTF-16".into(), "text in UTF-8".into());
        return Err(Error::Csv { place: place.into(), line: 1, column: 1, found, expected });
    }
    let sheet = Sheet::open(bytes, place, reading)?;
    let mut notes = vec![sheet.described()];
    let chosen = match reading.learned {
        Some(plan) => sheet.chosen_as(plan)?,
        None => sheet.chosen(reading, &mut notes)?,
    };
    let chosen = sheet.judged(chosen, reading, &mut notes)?;
    sheet.filled(&chosen, reading, notes)
}

/// A column that is read.
#[derive(Debug)]
struct Chosen {
    position: usize,
    name: String,
    is_target: bool,
    holds_words: bool,
}

impl Chosen {
    /// Whether nothing stands in a cell. A class may be called `none` or `?`: in a target of words only the empty cell is missing.
    fn is_gap(&self, cell: &str) -> bool {
        if self.is_target && self.holds_words { cell.is_empty() } else { is_missing(cell) }
    }
}

#[derive(Debug)]
struct Sheet<'a> {
    bytes: &'a [u8],
    place: &'a str,
    delimiter: u8,
    has_header: bool,
    /// Whether the first row has an empty cell before the names.
    is_first_unnamed: bool,
    names: Vec<String>,
}

/// A row with its place in the text.
struct Row<'a> {
    sheet: &'a Sheet<'a>,
    record: &'a ByteRecord,
}

impl<'a> Sheet<'a> {
    fn open(bytes: &'a [u8], place: &'a str, reading: &Reading<'_>) -> Result<Self, Error> {
        // Another file than the one that was learned from may have another, as one without a target has none.
        let first_line =
            bytes.split(|&byte| byte == b'\n').find(|line| !line.trim_ascii().is_empty()).unwrap_or_default();
        let is_usable = |delimiter: &u8| reading.learned.is_none() || first_line.contains(delimiter);
        let given = reading.config.delimiter.map(Delimiter::byte).filter(is_usable);
        let delimiter = given.unwrap_or_else(|| delimiter(bytes));
        let mut rows = reader(bytes, delimiter);
        let (mut first, mut second) = (ByteRecord::new(), ByteRecord::new());
        let mut next = |row: &mut ByteRecord| rows.read_byte_record(row).expect("bytes can be read");
        let (has_first, has_second) = (next(&mut first), next(&mut second));
        let empty = Self { bytes, place, delimiter, has_header: false, is_first_unnamed: false, names: Vec::new() };
        if !has_first {
            return Err(empty.no_rows());
        }
        let texts = |row: &ByteRecord| -> Vec<String> {
            row.iter().map(|cell| String::from_utf8_lossy(cell).into_owned()).collect()
        };
        let (cells, below) = (texts(&first), texts(&second));
        let has_header = match reading.config.header {
            Header::Yes => true,
            Header::No => false,
            Header::Auto => is_header(&cells, &below),
        };
        // Names are text as all else is.
        Row { sheet: &empty, record: &first }.expect_text()?;
        let names = if has_header { named(&cells) } else { named(&vec![String::new(); cells.len()]) };
        let is_first_unnamed = has_header && cells[0].is_empty();
        let sheet = Self { has_header, is_first_unnamed, names, ..empty };
        if has_header && !has_second { Err(sheet.no_rows()) } else { Ok(sheet) }
    }

    fn no_rows(&self) -> Error {
        let (found, expected) = ("no row of numbers".into(), "rows of features and a target".into());
        Error::Csv { place: self.place.into(), line: 1, column: 1, found, expected }
    }

    fn described(&self) -> String {
        let delimiter = match self.delimiter {
            b'\t' => "tabs".to_owned(),
            other => format!("`{}`", char::from(other)),
        };
        let header = if self.has_header { "a first row of names" } else { "no row of names" };
        format!("{} columns with {delimiter} between them, {header}", self.names.len())
    }

    /// Hands every row below the header to `take`; rows have as many cells as the first.
    fn rows(&self, mut take: impl FnMut(&Row<'_>) -> Result<(), Error>) -> Result<(), Error> {
        let (mut reader, mut record, mut is_first) =
            (reader(self.bytes, self.delimiter), ByteRecord::new(), self.has_header);
        while reader.read_byte_record(&mut record).expect("bytes can be read, and rows may have any length") {
            let row = Row { sheet: self, record: &record };
            if record.len() != self.names.len() {
                row.expect_text()?;
                let expected = format!("{} columns, as in the first row", self.names.len());
                let found = format!("{} columns", record.len());
                return Err(row.wrong(record.len().min(self.names.len()), found, expected));
            }
            if !std::mem::take(&mut is_first) {
                take(&row)?;
            }
        }
        Ok(())
    }

    /// The columns of a new run: what the configuration names, else all, with the last one as the target.
    fn chosen(&self, reading: &Reading<'_>, notes: &mut Vec<String>) -> Result<Vec<Chosen>, Error> {
        let config = reading.config;
        let find = |key, refs: &[ColumnRef]| {
            let found = refs.iter().map(|column| self.find(key, column)).collect::<Result<Vec<_>, _>>()?;
            match found.iter().enumerate().find(|(at, index)| found[..*at].contains(index)) {
                None => Ok(found),
                Some((_, &twice)) => {
                    let problem = format!("names {} twice; expected each column once", quoted(&self.names[twice]));
                    Err(Error::Config { key, problem })
                }
            }
        };
        let features = config.features.as_ref().map(|refs| find("data.features", refs)).transpose()?;
        let mut ignored = find("data.ignore", &config.ignore)?;
        let targets = config.target.as_ref().map(|target| find("data.target", &target.refs())).transpose()?;
        let is_named = |index: usize| {
            features.iter().chain(&targets).any(|list| list.contains(&index)) || ignored.contains(&index)
        };
        // The numbers of rows that a data frame writes.
        if self.is_first_unnamed && self.names.len() > 1 && !is_named(0) {
            notes.push("column 1 is left out: it has no name and numbers the rows (data.features names it)".to_owned());
            ignored.push(0);
        }
        let free =
            |index: &usize| !ignored.contains(index) && !features.as_ref().is_some_and(|list| list.contains(index));
        let targets = match targets {
            Some(targets) => targets,
            None => (0..self.names.len()).rev().find(free).into_iter().collect(),
        };
        let taken = |index: &usize| !ignored.contains(index) && !targets.contains(index);
        let features = features.unwrap_or_else(|| (0..self.names.len()).filter(taken).collect());
        let refuse = |key, problem: String| Err(Error::Config { key, problem });
        if let Some(&both) = features.iter().find(|index| !taken(index)) {
            let problem =
                format!("{} is the target, or left out, too; expected one of them", quoted(&self.names[both]));
            return refuse("data.features", problem);
        }
        if targets.is_empty() {
            return refuse("data.target", format!("no column is left for it; expected one of {}", self.accepted()));
        }
        if features.is_empty() {
            let found = format!("{} column", self.names.len());
            let (line, expected) = (1, "2 or more: features and a target; or another `data.delimiter`".into());
            return Err(Error::Csv { place: self.place.into(), line, column: 1, found, expected });
        }
        let chosen = |is_target| {
            move |&position: &usize| Chosen {
                position,
                name: self.names[position].clone(),
                is_target,
                holds_words: false,
            }
        };
        Ok(features.iter().map(chosen(false)).chain(targets.iter().map(chosen(true))).collect())
    }

    fn find(&self, key: &'static str, column: &ColumnRef) -> Result<usize, Error> {
        let index = match column {
            ColumnRef::Number(number) => number.checked_sub(1).filter(|&index| index < self.names.len()),
            ColumnRef::Name(name) => self.names.iter().position(|known| known == name),
        };
        index.ok_or_else(|| {
            let problem = format!("{} has no column {column}; expected one of {}", self.place, self.accepted());
            Error::Config { key, problem }
        })
    }

    fn accepted(&self) -> String {
        const SHOWN: usize = 12;
        let shown: Vec<String> = self.names.iter().take(SHOWN).map(|name| quoted(name)).collect();
        let more = if self.names.len() > SHOWN { ", …" } else { "" };
        format!("{}{more}, or a number from 1 to {}", shown.join(", "), self.names.len())
    }

    /// The columns that a run has learned from: by name, or by place where there are no names. Targets may be absent.
    fn chosen_as(&self, plan: &ColumnPlan) -> Result<Vec<Chosen>, Error> {
        let wrong = |found: String, expected: String| Error::Csv {
            place: self.place.into(),
            line: 1,
            column: 1,
            found,
            expected,
        };
        let num_targets = plan.targets.len();
        let is_without = !plan.has_header && self.names.len() + num_targets == plan.num_columns;
        if !plan.has_header && !is_without && self.names.len() != plan.num_columns {
            let expected =
                format!("{} columns, or {} without the target", plan.num_columns, plan.num_columns - num_targets);
            return Err(wrong(format!("{} columns", self.names.len()), expected));
        }
        let place = |name: &str, position: usize| {
            if plan.has_header {
                return self.names.iter().position(|known| known == name);
            }
            let before = plan.targets.iter().filter(|(_, target)| *target < position).count();
            Some(if is_without { position - before } else { position })
        };
        let mut chosen = Vec::new();
        for feature in &plan.features {
            let Some(position) = place(&feature.name, feature.position) else {
                let missing = format!("no column {}", quoted(&feature.name));
                return Err(wrong(missing, format!("the columns that were learned from, among {}", self.accepted())));
            };
            let holds_words = matches!(feature.kind, FeatureKind::Words { .. });
            chosen.push(Chosen { position, name: feature.name.clone(), is_target: false, holds_words });
        }
        let targets: Vec<_> = plan.targets.iter().map(|(name, position)| (name, place(name, *position))).collect();
        if !is_without && targets.iter().all(|(_, position)| position.is_some()) {
            chosen.extend(targets.into_iter().filter_map(|(name, position)| {
                // Words or numbers: the labels say, see below.
                Some(Chosen { position: position?, name: name.clone(), is_target: true, holds_words: false })
            }));
        }
        Ok(chosen)
    }

    /// Which columns hold words, and the gaps: refused, or counted and told. Columns that were learned from hold what they held.
    fn judged(
        &self,
        mut chosen: Vec<Chosen>,
        reading: &Reading<'_>,
        notes: &mut Vec<String>,
    ) -> Result<Vec<Chosen>, Error> {
        let mut tallies = vec![Tally::default(); chosen.len()];
        let (mut num_rows, mut num_dropped) = (0_usize, 0_usize);
        // Rows that lack nothing, unless a mark in a target is a missing number, and not a word; the first of them.
        let (mut num_marked, mut first_marked) = (0_usize, None);
        self.rows(|row| {
            num_rows += 1;
            let (mut has_gap, mut has_mark) = (false, false);
            for (column, tally) in chosen.iter().zip(&mut tallies) {
                let cell = row.text(column.position)?;
                if column.is_target && is_missing(cell) && !cell.is_empty() {
                    tally.marks += 1;
                    has_mark = true;
                    if first_marked.is_none() {
                        first_marked = row.gap(column, cell, reading).err();
                    }
                } else if is_missing(cell) {
                    tally.gaps += 1;
                    has_gap = true;
                    row.gap(column, cell, reading)?;
                } else if cell.parse::<f64>().is_ok() {
                    tally.numbers += 1;
                } else if is_decimal_comma(cell) {
                    return Err(row.wrong(column.position + 1, quoted(cell), A_NUMBER.into()));
                } else {
                    tally.words += 1;
                }
            }
            num_dropped += usize::from(has_gap && reading.drops());
            num_marked += usize::from(has_mark && !has_gap && reading.drops());
            Ok(())
        })?;
        for (column, tally) in chosen.iter_mut().zip(&mut tallies) {
            if reading.learned.is_none() || column.is_target {
                column.holds_words = tally.words > tally.numbers || tally.numbers == 0 && tally.marks > 0;
            }
            if !column.holds_words {
                tally.gaps += tally.marks;
            }
        }
        if chosen.iter().zip(&tallies).any(|(column, tally)| tally.marks > 0 && !column.holds_words) {
            first_marked.map_or(Ok(()), Err)?;
            num_dropped += num_marked;
        }
        if num_rows == num_dropped {
            return Err(self.no_rows());
        }
        let gaps: usize = tallies.iter().map(|tally| tally.gaps).sum();
        let with_gaps = chosen.iter().zip(&tallies).filter(|(_, tally)| tally.gaps > 0);
        let with_gaps: Vec<String> =
            with_gaps.map(|(column, tally)| format!("{}: {}", quoted(&column.name), tally.gaps)).collect();
        if num_dropped > 0 {
            notes.push(format!(
                "{num_dropped} of {num_rows} rows are left out: they lack {gaps} cells ({})",
                with_gaps.join(", ")
            ));
        } else if gaps > 0 {
            notes.push(format!(
                "{gaps} missing cells of {num_rows} rows get the mean of the training rows, or are a word of their own ({})",
                with_gaps.join(", ")
            ));
        }
        Ok(chosen)
    }

    fn filled(&self, chosen: &[Chosen], reading: &Reading<'_>, notes: Vec<String>) -> Result<Records, Error> {
        let mut builders: Vec<Builder> = chosen.iter().map(|column| Builder::new(column.holds_words)).collect();
        self.rows(|row| {
            let cells = chosen.iter().map(|column| row.text(column.position)).collect::<Result<Vec<_>, _>>()?;
            if reading.drops() && chosen.iter().zip(&cells).any(|(column, cell)| column.is_gap(cell)) {
                return Ok(());
            }
            let cells = chosen.iter().zip(cells).zip(&mut builders);
            cells.into_iter().try_for_each(|((column, cell), builder)| row.add(column, cell, builder))
        })?;
        let mut records = Records::new(Features::Columns(Vec::new()), notes);
        let mut columns = Vec::new();
        for (Chosen { position, name, is_target, .. }, builder) in chosen.iter().zip(builders) {
            let column = Column { name: name.clone(), position: *position, cells: builder.finish() };
            if *is_target { records.targets.push(column) } else { columns.push(column) }
        }
        records.features = Features::Columns(columns);
        (records.has_header, records.num_columns) = (self.has_header, self.names.len());
        Ok(records)
    }
}

/// What stands in a column.
#[derive(Debug, Clone, Default)]
struct Tally {
    numbers: usize,
    words: usize,
    gaps: usize,
    /// Cells of a target that are a word, or lack a number.
    marks: usize,
}

impl Row<'_> {
    fn text(&self, index: usize) -> Result<&str, Error> {
        let text = std::str::from_utf8(&self.record[index]).map_err(|error| {
            let found = format!("a byte that is not UTF-8 at offset {}", error.valid_up_to());
            self.wrong(index + 1, found, "text in UTF-8".into())
        })?;
        // UTF-16 without a mark, or no text at all.
        if text.contains('\0') {
            return Err(self.wrong(index + 1, "a byte 0".into(), "text in UTF-8".into()));
        }
        // A quote that is not closed takes the rest of the file for one cell.
        if text.contains(['\n', '\r']) && self.sheet.names.get(index).is_some() {
            let expected = "quotes that are closed on their line".into();
            return Err(self.wrong(index + 1, format!("a line break within {}", quoted(text)), expected));
        }
        Ok(text)
    }

    fn expect_text(&self) -> Result<(), Error> {
        (0..self.record.len()).try_for_each(|index| self.text(index).map(drop))
    }

    fn wrong(&self, column: usize, found: String, expected: String) -> Error {
        let start = self.record.position().map_or(0, |position| usize::try_from(position.byte()).unwrap_or(usize::MAX));
        Error::Csv { place: self.sheet.place.into(), line: line_of(self.sheet.bytes, start), column, found, expected }
    }

    /// Whether a cell may be missing.
    fn gap(&self, column: &Chosen, cell: &str, reading: &Reading<'_>) -> Result<(), Error> {
        let expected = match (reading.learned, reading.config.missing) {
            (None, Missing::Drop) => return Ok(()),
            (None, Missing::Mean) | (Some(_), _) if column.is_target => "a target in every row".to_owned(),
            (None, Missing::Mean) => return Ok(()),
            (None, Missing::Refuse) => {
                format!("{A_NUMBER}, or a word; `data.missing` = \"drop\" leaves such rows out, \"mean\" fills them")
            }
            (Some(plan), _) if plan.fills(&column.name) => return Ok(()),
            (Some(_), _) => "a value: the run has learned from none that are missing".to_owned(),
        };
        let found = if cell.is_empty() { "nothing".to_owned() } else { format!("{}, a missing value", quoted(cell)) };
        Err(self.wrong(column.position + 1, found, expected))
    }

    fn add(&self, column: &Chosen, cell: &str, to: &mut Builder) -> Result<(), Error> {
        let is_gap = column.is_gap(cell);
        let most = if column.is_target { MAX_LABELS } else { MAX_WORDS };
        match to {
            Builder::Numbers(values) if is_gap => values.push(f64::NAN),
            Builder::Numbers(values) => {
                match cell.parse().ok().filter(|value: &f64| value.abs() <= f64::from(f32::MAX)) {
                    Some(value) => values.push(value),
                    None => return Err(self.wrong(column.position + 1, quoted(cell), A_NUMBER.into())),
                }
            }
            Builder::Words { codes, known } => {
                let word = if is_gap { "" } else { cell };
                if add_word(codes, known, word) > most {
                    let found = format!("more than {most} different words in {}", quoted(&column.name));
                    let expected = if column.is_target {
                        "classes or numbers: another `data.target`".to_owned()
                    } else {
                        format!("numbers, or at most {most} words; `data.ignore` leaves the column out")
                    };
                    return Err(self.wrong(column.position + 1, found, expected));
                }
            }
        }
        Ok(())
    }
}

fn reader(bytes: &[u8], delimiter: u8) -> Reader<&[u8]> {
    ReaderBuilder::new().has_headers(false).flexible(true).trim(Trim::All).delimiter(delimiter).from_reader(bytes)
}

/// The first of `;`, tab, `|` and `,` that divides the first two rows into as many cells, more than one.
fn delimiter(bytes: &[u8]) -> u8 {
    let divides = |&delimiter: &u8| {
        let (mut rows, mut row) = (reader(bytes, delimiter), ByteRecord::new());
        let mut cells = || rows.read_byte_record(&mut row).is_ok_and(|found| found).then_some(row.len());
        let (first, second) = (cells(), cells());
        first.is_some_and(|first| first > 1 && second.is_none_or(|second| second == first))
    };
    DELIMITERS.into_iter().find(divides).unwrap_or(b',')
}

/// The line of a row, from 1; the row starts behind the line breaks at `start`. Lines end with `\n`, `\r\n` or `\r`.
fn line_of(bytes: &[u8], start: usize) -> usize {
    let breaks = bytes[start..].iter().take_while(|&byte| matches!(byte, b'\r' | b'\n')).count();
    let before = &bytes[..start + breaks];
    let ends = |(index, &byte): (usize, &u8)| byte == b'\n' || byte == b'\r' && before.get(index + 1) != Some(&b'\n');
    1 + before.iter().enumerate().filter(|&entry| ends(entry)).count()
}

/// What stands for a value that is not there.
fn is_missing(cell: &str) -> bool {
    // `Na` is sodium.
    cell.is_empty()
        || cell == "NA"
        || cell == "?"
        || ["nan", "n/a", "null", "none"].iter().any(|word| cell.eq_ignore_ascii_case(word))
}

/// Whether a cell is a number as it is written where the decimal mark is a comma.
fn is_decimal_comma(cell: &str) -> bool {
    cell.contains(',') && cell.replace(',', ".").parse::<f64>().is_ok()
        || cell.split(',').count() > 1 && cell.replace(',', "").parse::<f64>().is_ok()
}

/// Whether the first row holds names, of which some may be empty: no numbers, and a name above a number, or names alone but for
/// the number of the row, which has none.
fn is_header(cells: &[String], below: &[String]) -> bool {
    let is_number = |cell: &String| cell.parse::<f64>().is_ok() || is_decimal_comma(cell);
    let has_no_value = |cell: &String| !is_number(cell) && (!is_missing(cell) || cell.is_empty() && cells.len() > 1);
    let is_name = |(index, cell): (usize, &String)| {
        cell.starts_with(|first: char| first.is_alphabetic() || first == '_') || index == 0 && cell.is_empty()
    };
    let differs = cells.iter().zip(below).any(|(name, cell)| is_number(cell) && !is_number(name) && !name.is_empty());
    cells.iter().all(has_no_value) && (differs || cells.iter().enumerate().all(is_name))
}

/// Names of columns, each another one.
fn named(cells: &[String]) -> Vec<String> {
    let mut names: Vec<String> = Vec::with_capacity(cells.len());
    let mut seen = std::collections::BTreeSet::new();
    for (number, cell) in (1..).zip(cells) {
        let wanted = if cell.is_empty() { format!("column {number}") } else { cell.clone() };
        let name = if seen.contains(&wanted) { format!("{wanted} (column {number})") } else { wanted };
        seen.insert(name.clone());
        names.push(name);
    }
    names
}

#[cfg(test)]
mod tests;

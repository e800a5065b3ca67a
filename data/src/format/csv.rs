//! Rows of cells with a delimiter between them, as spreadsheets and libraries export them.
//!
//! A byte-order mark, empty lines and `\r\n` are passed over; cells may be quoted. Memory follows the text, of which at most
//! 1 GiB is read.

use std::borrow::Cow;
use std::path::Path;

use csv::{ByteRecord, Reader, ReaderBuilder, Trim};

use super::sheet::{Row, Sheet, is_decimal_comma, is_missing, named, no_rows};
use super::{Format, Reading, Records};
use crate::config::{Delimiter, Header};
use crate::error::quoted;
use crate::{Error, unpack};

/// Files of rows.
pub(super) const FORMAT: Format =
    Format { name: "csv", endings: &[".csv", ".csv.gz", ".tsv", ".tsv.gz"], starts: &[], keys: super::ROWS, read };

/// Largest text that is read, after unpacking.
const LIMIT_BYTES: u64 = 1 << 30;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
const DELIMITERS: [u8; 4] = [b';', b'\t', b'|', b','];

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
    let text = Text::open(bytes, place, reading)?;
    let records = (&text as &dyn Sheet).records(reading, vec![text.described()])?;
    expect_closed_quotes(bytes, text.delimiter, place)?;
    Ok(records)
}

/// A quoted cell goes on to the quote that closes it, over rows too, also in a column that nobody reads. One whose closing quote is
/// missing, or escaped by something else than a second quote, takes cells or rows into it, and most often goes on behind the quote that
/// ends it then.
///
/// # Errors
/// [`Error::Csv`] for the first quoted cell that has no closing quote, or one in front of something else and a delimiter or a line
/// break within.
fn expect_closed_quotes(bytes: &[u8], delimiter: u8, place: &str) -> Result<(), Error> {
    if !bytes.contains(&b'"') {
        return Ok(());
    }
    let ends = |byte: u8| byte == delimiter || matches!(byte, b'\n' | b'\r');
    let find =
        |from: usize, is: &dyn Fn(u8) -> bool| bytes[from..].iter().position(|&byte| is(byte)).map(|at| from + at);
    let mut start = if bytes.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
    let mut column = 1;
    loop {
        let mut behind = start;
        if bytes.get(start) == Some(&b'"') {
            let mut close = find(start + 1, &|byte| byte == b'"');
            while let Some(at) = close.filter(|&at| bytes.get(at + 1) == Some(&b'"')) {
                close = find(at + 2, &|byte| byte == b'"');
            }
            let is_blank = |byte: u8| matches!(byte, b' ' | b'\t') && byte != delimiter;
            behind = close.map_or(bytes.len(), |at| find(at + 1, &|byte| !is_blank(byte)).unwrap_or(bytes.len()));
            let goes_on = bytes.get(behind).is_some_and(|&byte| !ends(byte));
            if close.is_none() || goes_on && bytes[start..behind].iter().any(|&byte| ends(byte)) {
                let shown = String::from_utf8_lossy(&bytes[start..bytes.len().min(behind + 1)]);
                let found = format!("the cell {} without a closing quote at its end", quoted(&shown));
                let expected = "cells that are quoted as a whole, with quotes in them doubled".into();
                return Err(Error::Csv { place: place.into(), line: line_of(bytes, start), column, found, expected });
            }
        }
        let Some(end) = find(behind, &ends) else { return Ok(()) };
        column = if bytes[end] == delimiter { column + 1 } else { 1 };
        start = end + 1;
    }
}

/// A text of rows.
#[derive(Debug)]
struct Text<'a> {
    bytes: &'a [u8],
    place: &'a str,
    delimiter: u8,
    has_header: bool,
    /// Whether the first row has an empty cell before the names.
    is_first_unnamed: bool,
    names: Vec<String>,
}

/// A row with its place in the text.
struct Line<'a> {
    text: &'a Text<'a>,
    record: &'a ByteRecord,
}

impl<'a> Text<'a> {
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
            return Err(no_rows(&empty));
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
        Line { text: &empty, record: &first }.expect_text()?;
        let names = if has_header { named(&cells) } else { named(&vec![String::new(); cells.len()]) };
        let is_first_unnamed = has_header && cells[0].is_empty();
        let text = Self { has_header, is_first_unnamed, names, ..empty };
        if has_header && !has_second { Err(no_rows(&text)) } else { Ok(text) }
    }

    fn described(&self) -> String {
        let delimiter = match self.delimiter {
            b'\t' => "tabs".to_owned(),
            other => format!("`{}`", char::from(other)),
        };
        let header = if self.has_header { "a first row of names" } else { "no row of names" };
        format!("{} columns with {delimiter} between them, {header}", self.names.len())
    }
}

impl Sheet for Text<'_> {
    fn place(&self) -> &str {
        self.place
    }

    fn names(&self) -> &[String] {
        &self.names
    }

    fn has_header(&self) -> bool {
        self.has_header
    }

    /// A first column without a name, as a data frame writes it.
    fn numbers_rows(&self, column: usize) -> bool {
        column == 0 && self.is_first_unnamed && self.names.len() > 1
    }

    fn wrong(&self, found: String, expected: String) -> Error {
        Error::Csv { place: self.place.into(), line: 1, column: 1, found, expected }
    }

    /// Rows have as many cells as the first.
    fn rows(&self, take: &mut dyn FnMut(&dyn Row) -> Result<(), Error>) -> Result<(), Error> {
        let (mut reader, mut record, mut is_first) =
            (reader(self.bytes, self.delimiter), ByteRecord::new(), self.has_header);
        while reader.read_byte_record(&mut record).expect("bytes can be read, and rows may have any length") {
            let line = Line { text: self, record: &record };
            if record.len() != self.names.len() {
                line.expect_text()?;
                let expected = format!("{} columns, as in the first row", self.names.len());
                let found = format!("{} columns", record.len());
                return Err(line.wrong(record.len().min(self.names.len()) - 1, found, expected));
            }
            // Of a file with one column an empty line may be a cell, and rows that are numbered would be others without it.
            if self.names.len() == 1 && !is_first && line.is_behind_a_gap() {
                return Err(line.wrong(
                    0,
                    "an empty line above".into(),
                    "a value in every line, or nothing behind it".into(),
                ));
            }
            if !std::mem::take(&mut is_first) {
                take(&line)?;
            }
        }
        Ok(())
    }
}

impl Row for Line<'_> {
    fn text(&self, column: usize) -> Result<Cow<'_, str>, Error> {
        let text = std::str::from_utf8(&self.record[column]).map_err(|error| {
            let found = format!("a byte that is not UTF-8 at offset {}", error.valid_up_to());
            self.wrong(column, found, "text in UTF-8".into())
        })?;
        // UTF-16 without a mark, or no text at all.
        if text.contains('\0') {
            return Err(self.wrong(column, "a byte 0".into(), "text in UTF-8".into()));
        }
        // A quote that is not closed takes the rest of the file for one cell.
        if text.contains(['\n', '\r']) && self.text.names.get(column).is_some() {
            let expected = "quotes that are closed on their line".into();
            return Err(self.wrong(column, format!("a line break within {}", quoted(text)), expected));
        }
        Ok(text.into())
    }

    fn wrong(&self, column: usize, found: String, expected: String) -> Error {
        let line = line_of(self.text.bytes, self.start());
        Error::Csv { place: self.text.place.into(), line, column: column + 1, found, expected }
    }
}

impl Line<'_> {
    /// Where the row begins in the text: of the first one before a byte-order mark, of others behind what ends the row above.
    fn start(&self) -> usize {
        self.record.position().map_or(0, |position| usize::try_from(position.byte()).unwrap_or(usize::MAX))
    }

    /// Whether there is an empty line right before the row.
    fn is_behind_a_gap(&self) -> bool {
        let (above, rest) = self.text.bytes.split_at(self.start());
        let rest = if above.is_empty() { rest.strip_prefix(BYTE_ORDER_MARK).unwrap_or(rest) } else { rest };
        let is_break = |byte: &&u8| matches!(byte, b'\r' | b'\n');
        let breaks = || above.iter().rev().take_while(is_break).chain(rest.iter().take_while(is_break));
        // A line ends with `\n`, whatever is before it, or where there is none with `\r`; one of them ends the row above.
        let end = if breaks().any(|&byte| byte == b'\n') { b'\n' } else { b'\r' };
        breaks().filter(|&&byte| byte == end).count() > usize::from(!above.is_empty())
    }

    fn expect_text(&self) -> Result<(), Error> {
        (0..self.record.len()).try_for_each(|column| self.text(column).map(drop))
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
    // A reader is a table of states that is made anew for each: of most there is nothing to be read.
    DELIMITERS.into_iter().filter(|delimiter| bytes.contains(delimiter)).find(divides).unwrap_or(b',')
}

/// The line of a row, from 1; the row starts behind the line breaks at `start`. Lines end with `\n`, `\r\n` or `\r`.
fn line_of(bytes: &[u8], start: usize) -> usize {
    let breaks = bytes[start..].iter().take_while(|&byte| matches!(byte, b'\r' | b'\n')).count();
    let before = &bytes[..start + breaks];
    let ends = |(index, &byte): (usize, &u8)| byte == b'\n' || byte == b'\r' && before.get(index + 1) != Some(&b'\n');
    1 + before.iter().enumerate().filter(|&entry| ends(entry)).count()
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

#[cfg(test)]
mod tests;

//! Rows of cells, whatever file they come from: which columns are read, what each holds, and what becomes of gaps.
//!
//! A column holds numbers when at least half of its cells are numbers, else words.

use std::borrow::Cow;

use super::{Features, Reading, Records};
use crate::Error;
use crate::column::{Builder, Column, add_word};
use crate::config::{ColumnRef, Missing};
use crate::error::quoted;
use crate::preparation::{ColumnPlan, FeatureKind};

/// Each word of a feature is an input of the network: more are a name or a number of a row.
const MAX_WORDS: usize = 64;
/// Each label is an output of the network.
const MAX_LABELS: usize = 10_000;
/// What a cell may hold.
pub(super) const A_NUMBER: &str = "a finite number, with `.` before decimals";

/// Rows of cells, which are read as often as they are asked for. Columns count from 0.
pub(super) trait Sheet {
    /// The file.
    fn place(&self) -> &str;

    /// Of all columns, each another one.
    fn names(&self) -> &[String];

    /// Whether columns are found by their names in other files.
    fn has_header(&self) -> bool;

    /// Whether a column is none of the data, but the numbers of rows that a library wrote beside them.
    fn numbers_rows(&self, column: usize) -> bool;

    /// What is wrong with the file as a whole.
    fn wrong(&self, found: String, expected: String) -> Error;

    /// Hands over every row.
    ///
    /// # Errors
    /// The first one of `take`, or that a row is none.
    fn rows(&self, take: &mut dyn FnMut(&dyn Row) -> Result<(), Error>) -> Result<(), Error>;
}

/// A row with its place in the file.
pub(super) trait Row {
    /// A cell as text; an empty one is missing.
    ///
    /// # Errors
    /// That it has none.
    fn text(&self, column: usize) -> Result<Cow<'_, str>, Error>;

    /// What is wrong with a cell.
    fn wrong(&self, column: usize, found: String, expected: String) -> Error;
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

/// That there is nothing to learn from.
pub(super) fn no_rows(sheet: &dyn Sheet) -> Error {
    sheet.wrong("no row of numbers".into(), "rows of features and a target".into())
}

impl dyn Sheet + '_ {
    /// Reads the columns that are asked for.
    ///
    /// # Errors
    /// That of the first cell or row that breaks a rule; [`Error::Config`] for a column that is not there.
    pub(super) fn records(&self, reading: &Reading<'_>, mut notes: Vec<String>) -> Result<Records, Error> {
        let chosen = match reading.learned {
            Some(plan) => self.chosen_as(plan)?,
            None => self.chosen(reading, &mut notes)?,
        };
        let chosen = self.judged(chosen, reading, &mut notes)?;
        self.filled(&chosen, reading, notes)
    }

    /// The columns of a new run: what the configuration names, else all, with the last one as the target.
    fn chosen(&self, reading: &Reading<'_>, notes: &mut Vec<String>) -> Result<Vec<Chosen>, Error> {
        let config = reading.config;
        let find = |key, refs: &[ColumnRef]| {
            let found = refs.iter().map(|column| self.find(key, column)).collect::<Result<Vec<_>, _>>()?;
            match found.iter().enumerate().find(|(at, index)| found[..*at].contains(index)) {
                None => Ok(found),
                Some((_, &twice)) => {
                    let problem = format!("names {} twice; expected each column once", quoted(&self.names()[twice]));
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
        let numbering = (0..self.names().len()).filter(|&column| self.numbers_rows(column) && !is_named(column));
        for column in numbering.collect::<Vec<_>>() {
            let number = column + 1;
            notes.push(format!(
                "column {number} is left out: it has no name and numbers the rows (data.features names it)"
            ));
            ignored.push(column);
        }
        let free =
            |index: &usize| !ignored.contains(index) && !features.as_ref().is_some_and(|list| list.contains(index));
        let targets = match targets {
            Some(targets) => targets,
            None => (0..self.names().len()).rev().find(free).into_iter().collect(),
        };
        let taken = |index: &usize| !ignored.contains(index) && !targets.contains(index);
        let features = features.unwrap_or_else(|| (0..self.names().len()).filter(taken).collect());
        let refuse = |key, problem: String| Err(Error::Config { key, problem });
        if let Some(&both) = features.iter().find(|index| !taken(index)) {
            let problem =
                format!("{} is the target, or left out, too; expected one of them", quoted(&self.names()[both]));
            return refuse("data.features", problem);
        }
        if targets.is_empty() {
            return refuse("data.target", format!("no column is left for it; expected one of {}", self.accepted()));
        }
        if features.is_empty() {
            let found = format!("{} column", self.names().len());
            let expected = "2 or more: features and a target; or another `data.delimiter`".into();
            return Err(self.wrong(found, expected));
        }
        let chosen = |is_target| {
            move |&position: &usize| Chosen {
                position,
                name: self.names()[position].clone(),
                is_target,
                holds_words: false,
            }
        };
        Ok(features.iter().map(chosen(false)).chain(targets.iter().map(chosen(true))).collect())
    }

    fn find(&self, key: &'static str, column: &ColumnRef) -> Result<usize, Error> {
        let index = match column {
            ColumnRef::Number(number) => number.checked_sub(1).filter(|&index| index < self.names().len()),
            ColumnRef::Name(name) => self.names().iter().position(|known| known == name),
        };
        index.ok_or_else(|| {
            let problem = format!("{} has no column {column}; expected one of {}", self.place(), self.accepted());
            Error::Config { key, problem }
        })
    }

    fn accepted(&self) -> String {
        const SHOWN: usize = 12;
        let shown: Vec<String> = self.names().iter().take(SHOWN).map(|name| quoted(name)).collect();
        let more = if self.names().len() > SHOWN { ", …" } else { "" };
        format!("{}{more}, or a number from 1 to {}", shown.join(", "), self.names().len())
    }

    /// The columns that a run has learned from: by name, or by place where there are no names. Targets may be absent.
    fn chosen_as(&self, plan: &ColumnPlan) -> Result<Vec<Chosen>, Error> {
        let num_targets = plan.targets.len();
        let is_without = !plan.has_header && self.names().len() + num_targets == plan.num_columns;
        if !plan.has_header && !is_without && self.names().len() != plan.num_columns {
            let expected =
                format!("{} columns, or {} without the target", plan.num_columns, plan.num_columns - num_targets);
            return Err(self.wrong(format!("{} columns", self.names().len()), expected));
        }
        let before = |position| plan.targets.iter().filter(|(_, target)| *target < position).count();
        let place = |name: &str, position: usize| {
            if plan.has_header {
                return self.names().iter().position(|known| known == name);
            }
            Some(if is_without { position - before(position) } else { position })
        };
        let learned = || {
            let features = plan.features.iter().map(|feature| (feature.name.as_str(), feature.position));
            features.chain(plan.targets.iter().map(|(name, position)| (name.as_str(), *position)))
        };
        // Of two columns of one name it is the one in its place, where all are in theirs.
        let names = self.names();
        let is_there = |name: &str, position: usize| names.get(position).is_some_and(|known| known == name);
        let is_alike = match (names.len() + num_targets).checked_sub(plan.num_columns) {
            Some(0) => plan.features.iter().all(|of| is_there(&of.name, of.position - before(of.position))),
            Some(more) => more == num_targets && learned().all(|(name, position)| is_there(name, position)),
            None => false,
        };
        for (number, again) in (1..).zip(names).filter(|_| plan.has_header && !is_alike) {
            let Some(name) = again.strip_suffix(&repeated("", number)) else { continue };
            let is_learned = |name: &str| learned().any(|(known, _)| known == name);
            let first = names[..number - 1].iter().position(|known| known == name);
            if let Some(first) = first.filter(|_| is_learned(name) && !is_learned(again)) {
                let found = format!("{} in columns {} and {number}", quoted(name), first + 1);
                return Err(self.wrong(found, "each column that was learned from once".into()));
            }
        }
        let mut chosen = Vec::new();
        for feature in &plan.features {
            let Some(position) = place(&feature.name, feature.position) else {
                let missing = format!("no column {}", quoted(&feature.name));
                return Err(
                    self.wrong(missing, format!("the columns that were learned from, among {}", self.accepted()))
                );
            };
            let holds_words = matches!(feature.kind, FeatureKind::Words { .. });
            chosen.push(Chosen { position, name: feature.name.clone(), is_target: false, holds_words });
        }
        let targets: Vec<_> = plan.targets.iter().map(|(name, position)| (name, place(name, *position))).collect();
        if !is_without && targets.iter().all(|(_, position)| position.is_some()) {
            chosen.extend(targets.into_iter().filter_map(|(name, position)| {
                // Words or numbers: the labels say, those that were learned or those of the file, see below.
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
        self.rows(&mut |row| {
            num_rows += 1;
            let (mut has_gap, mut has_mark) = (false, false);
            for (column, tally) in chosen.iter().zip(&mut tallies) {
                let cell = row.text(column.position)?;
                if column.is_target && is_missing(&cell) && !cell.is_empty() {
                    tally.marks += 1;
                    has_mark = true;
                    if first_marked.is_none() {
                        first_marked = gap(row, column, &cell, reading).err();
                    }
                } else if is_missing(&cell) {
                    tally.gaps += 1;
                    has_gap = true;
                    gap(row, column, &cell, reading)?;
                } else if cell.parse::<f64>().is_ok() {
                    tally.numbers += 1;
                } else if is_decimal_comma(&cell) {
                    return Err(row.wrong(column.position, quoted(&cell), A_NUMBER.into()));
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
                column.holds_words = column.is_target && reading.has_word_labels
                    || tally.words > tally.numbers
                    || tally.numbers == 0 && tally.marks > 0;
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
            return Err(no_rows(self));
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
        self.rows(&mut |row| {
            let cells = chosen.iter().map(|column| row.text(column.position)).collect::<Result<Vec<_>, _>>()?;
            if reading.drops() && chosen.iter().zip(&cells).any(|(column, cell)| column.is_gap(cell)) {
                return Ok(());
            }
            let cells = chosen.iter().zip(cells).zip(&mut builders);
            cells.into_iter().try_for_each(|((column, cell), builder)| add(row, column, &cell, builder))
        })?;
        let mut records = Records::new(Features::Columns(Vec::new()), notes);
        let mut columns = Vec::new();
        for (Chosen { position, name, is_target, .. }, builder) in chosen.iter().zip(builders) {
            let column = Column { name: name.clone(), position: *position, cells: builder.finish() };
            if *is_target { records.targets.push(column) } else { columns.push(column) }
        }
        records.features = Features::Columns(columns);
        (records.has_header, records.num_columns) = (self.has_header(), self.names().len());
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

/// Whether a cell may be missing.
fn gap(row: &dyn Row, column: &Chosen, cell: &str, reading: &Reading<'_>) -> Result<(), Error> {
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
    Err(row.wrong(column.position, found, expected))
}

fn add(row: &dyn Row, column: &Chosen, cell: &str, to: &mut Builder) -> Result<(), Error> {
    let is_gap = column.is_gap(cell);
    let most = if column.is_target { MAX_LABELS } else { MAX_WORDS };
    match to {
        Builder::Numbers(values) if is_gap => values.push(f64::NAN),
        Builder::Numbers(values) => match cell.parse().ok().filter(|value: &f64| value.abs() <= f64::from(f32::MAX)) {
            Some(value) => values.push(value),
            None => return Err(row.wrong(column.position, quoted(cell), A_NUMBER.into())),
        },
        Builder::Words { codes, known } => {
            let word = if is_gap { "" } else { cell };
            if add_word(codes, known, word) > most {
                let found = format!("more than {most} different words in {}", quoted(&column.name));
                let expected = if column.is_target {
                    "classes or numbers: another `data.target`".to_owned()
                } else {
                    format!("numbers, or at most {most} words; `data.ignore` leaves the column out")
                };
                return Err(row.wrong(column.position, found, expected));
            }
        }
    }
    Ok(())
}

/// What stands for a value that is not there.
pub(super) fn is_missing(cell: &str) -> bool {
    // `Na` is sodium.
    cell.is_empty()
        || cell == "NA"
        || cell == "?"
        || ["nan", "n/a", "null", "none"].iter().any(|word| cell.eq_ignore_ascii_case(word))
}

/// Whether a cell is a number as it is written where the decimal mark is a comma.
pub(super) fn is_decimal_comma(cell: &str) -> bool {
    cell.contains(',') && cell.replace(',', ".").parse::<f64>().is_ok()
        || cell.split(',').count() > 1 && cell.replace(',', "").parse::<f64>().is_ok()
}

/// What column `number` is called where its name is that of a column before it.
fn repeated(name: &str, number: usize) -> String {
    format!("{name} (column {number})")
}

/// Names of columns, each another one.
pub(super) fn named(cells: &[String]) -> Vec<String> {
    let mut names: Vec<String> = Vec::with_capacity(cells.len());
    let mut seen = std::collections::BTreeSet::new();
    for (number, cell) in (1..).zip(cells) {
        let wanted = if cell.is_empty() { format!("column {number}") } else { cell.clone() };
        let name = if seen.contains(&wanted) { repeated(&wanted, number) } else { wanted };
        seen.insert(name.clone());
        names.push(name);
    }
    names
}

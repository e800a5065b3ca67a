//! The columns of a file of rows: numbers or words, with gaps.

use std::collections::BTreeMap;

/// One column of N rows.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Column {
    pub name: String,
    /// Place in the file, from 0.
    pub position: usize,
    pub cells: Cells,
}

/// What stands in a column.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cells {
    /// Finite numbers, or NaN where there is none.
    Numbers(Vec<f64>),
    /// Words by their place in the list, in the order of the file; a missing one is the empty word.
    Words { codes: Vec<u32>, words: Vec<String> },
}

impl Cells {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Numbers(values) => values.len(),
            Self::Words { codes, .. } => codes.len(),
        }
    }
}

/// A column that is being read.
#[derive(Debug)]
pub(super) enum Builder {
    Numbers(Vec<f64>),
    Words { codes: Vec<u32>, known: BTreeMap<String, u32> },
}

impl Builder {
    pub(super) fn new(holds_words: bool) -> Self {
        if holds_words { Self::Words { codes: Vec::new(), known: BTreeMap::new() } } else { Self::Numbers(Vec::new()) }
    }

    pub(super) fn finish(self) -> Cells {
        match self {
            Self::Numbers(values) => Cells::Numbers(values),
            Self::Words { codes, known } => {
                let mut words = vec![String::new(); known.len()];
                for (word, code) in known {
                    words[code as usize] = word;
                }
                Cells::Words { codes, words }
            }
        }
    }
}

/// Adds a word, and says how many different ones there are.
pub(super) fn add_word(codes: &mut Vec<u32>, known: &mut BTreeMap<String, u32>, word: &str) -> usize {
    let next = u32::try_from(known.len()).unwrap_or(u32::MAX);
    let code = match known.get(word) {
        Some(&code) => code,
        None => *known.entry(word.to_owned()).or_insert(next),
    };
    codes.push(code);
    known.len()
}

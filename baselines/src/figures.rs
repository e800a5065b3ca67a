//! Figures in documents, made from committed results.
//!
//! A document carries its figures as templates:
//! ```text
//! <!-- figures baselines/perf/a.json baselines/perf/b.json
//! % small; 10
//! % large; 100
//! | $1 | {n$2.step .1} | {2:torch.n$2 / n$2.step .2} |
//! -->
//! | small | 12.5 | 1.31 |
//! | large | 99.1 | 1.02 |
//! <!-- /figures -->
//! ```
//! What stands between the comment and its end is made by [`render`] and nobody types it. A line of the template is text
//! with expressions in braces. Lines that begin with `%` are lists, separated by `;`: the line after them is repeated for
//! each, with its parts as `$1`, `$2`, ….
//!
//! | expression | value |
//! |---|---|
//! | `NAME` | median of the quantity in the first file; `NAME@max` (`min`, `p95`, `n`) another number; `2:NAME` from the second file |
//! | `max NAME*` | over all quantities that fit, `*` for any text: `max`, `min`, `sum`; `count` how many there are |
//! | `A / B`, `A * 1000`, `A + B`, `A - B` | from left to right |
//! | `env gpu` | a fact of the environment; `config NAME` one of the configuration |
//!
//! A format may end it: `.2` two digits after the point, `+.2` with the sign. Without one a number has three digits, and
//! all before the point. A `?` at the very end allows the quantity to be missing, which is written `–`.

mod expression;

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::result::BenchResult;
use expression::Facts;

const BEGIN: &str = "<!-- figures ";
const TEMPLATE_END: &str = "-->";
const END: &str = "<!-- /figures -->";
/// Documents and folders of documents, from the root of the repository.
const DOCUMENTS: &[&str] = &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs"];

/// A document whose figures are not those of the results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stale {
    /// The document.
    pub path: PathBuf,
    /// What it should be.
    pub text: String,
    /// Its first line that differs, with what should stand there.
    pub difference: String,
}

/// Looks through all documents of the repository at `root`, and gives those whose figures differ from the results.
///
/// # Errors
/// [`Error::File`]; [`Error::Figures`] for a template that cannot be filled in.
pub fn stale(root: &Path) -> Result<Vec<Stale>, Error> {
    let mut paths = Vec::new();
    for name in DOCUMENTS {
        documents(&root.join(name), &mut paths)?;
    }
    let mut found = Vec::new();
    for path in paths {
        let before = std::fs::read_to_string(&path).map_err(|source| file("reading", &path, source))?;
        let text = render(&before, root).map_err(|(line, message)| {
            let place = format!("{}:{line}", path.strip_prefix(root).unwrap_or(&path).display());
            Error::Figures { place, message }
        })?;
        if text != before {
            let index = before.lines().zip(text.lines()).take_while(|(before, after)| before == after).count();
            let line = |text: &str| text.lines().nth(index).unwrap_or_default().to_owned();
            let difference = format!("line {}: `{}` should be `{}`", index + 1, line(&before), line(&text));
            found.push(Stale { path, text, difference });
        }
    }
    Ok(found)
}

fn documents(path: &Path, found: &mut Vec<PathBuf>) -> Result<(), Error> {
    if path.is_file() {
        found.extend((path.extension().is_some_and(|end| end == "md")).then(|| path.to_owned()));
        return Ok(());
    }
    let failed = |source| file("listing", path, source);
    let entries = std::fs::read_dir(path).map_err(failed)?.collect::<Result<Vec<_>, _>>();
    let mut entries: Vec<PathBuf> = entries.map_err(failed)?.into_iter().map(|entry| entry.path()).collect();
    entries.sort();
    entries.iter().try_for_each(|entry| documents(entry, found))
}

fn file(action: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::File { action, path: path.to_owned(), source }
}

/// The document with all figures filled in from the results, whose paths start at `root`; all else stays as it is.
///
/// # Errors
/// The number of a line and what is wrong there.
pub fn render(text: &str, root: &Path) -> Result<String, (usize, String)> {
    let mut out = String::new();
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    while let Some((begin, line)) = lines.next() {
        push(&mut out, line);
        let Some(paths) = line.strip_prefix(BEGIN) else { continue };
        let results = paths.split_whitespace().map(|path| BenchResult::read(&root.join(path)));
        let results = results.collect::<Result<Vec<_>, _>>().map_err(|error| (begin, error.chain()))?;
        let facts = Facts { results: &results };
        let (mut rows, mut lists) = (Vec::new(), Vec::new());
        loop {
            let Some((number, line)) = lines.next() else {
                return Err((begin, format!("`{TEMPLATE_END}` is missing")));
            };
            push(&mut out, line);
            if line == TEMPLATE_END {
                break;
            }
            if let Some(list) = line.strip_prefix('%') {
                lists.push(list);
                continue;
            }
            let lists = if lists.is_empty() { vec![""] } else { std::mem::take(&mut lists) };
            for list in lists {
                rows.push(facts.fill(&with_parts(line, list)).map_err(|message| (number, message))?);
            }
        }
        if !lines.by_ref().any(|(_, line)| line == END) {
            return Err((begin, format!("`{END}` is missing")));
        }
        rows.iter().for_each(|row| push(&mut out, row));
        push(&mut out, END);
    }
    Ok(out)
}

fn push(out: &mut String, line: &str) {
    out.push_str(line);
    out.push('\n');
}

/// The line with `$1`, `$2`, … replaced.
fn with_parts(line: &str, list: &str) -> String {
    let parts = list.split(';').enumerate().map(|(index, part)| (format!("${}", index + 1), part.trim()));
    parts.fold(line.to_owned(), |line, (name, part)| line.replace(&name, part))
}

#[cfg(test)]
mod tests;

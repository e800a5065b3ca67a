//! `docs/requirements.md` has every requirement once, with a state, and the tests that it names exist.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::tree::{File, Tree};

const PAGE: &str = "docs/requirements.md";
/// The numbers that are given.
const NUMBERS: [RangeInclusive<u32>; 6] = [1..=20, 21..=38, 40..=46, 50..=55, 60..=65, 66..=69];
const STATES: [&str; 4] = ["proven", "partly", "missed", "open"];

pub(crate) fn violations(tree: &Tree) -> Vec<String> {
    let mut found: Vec<String> = tree.check(|file| dead_test(file, &tree.files));
    let mut times: BTreeMap<u32, usize> = NUMBERS.into_iter().flatten().map(|number| (number, 0)).collect();
    for (index, line) in tree.text_of(PAGE).lines().enumerate().filter(|(_, line)| line.starts_with("| R-")) {
        let wrong = |what: String| format!("{PAGE}:{}: {what}", index + 1);
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [id, _, shown_by, state] = cells[..] else {
            found.push(wrong("expected number, requirement, what shows it, state".to_owned()));
            continue;
        };
        match id.strip_prefix("R-").and_then(|number| number.parse().ok()).and_then(|number| times.get_mut(&number)) {
            Some(count) => *count += 1,
            None => found.push(wrong(format!("`{id}` is no requirement"))),
        }
        let word = state.split([' ', ':', ',']).next().unwrap_or_default();
        if !STATES.contains(&word) {
            found.push(wrong(format!("the state of {id} is `{word}`: expected one of {}", STATES.join(", "))));
        } else if word == "proven" && !shown_by.contains('`') {
            found.push(wrong(format!("{id} is proven by nothing")));
        }
    }
    let not_once = times.into_iter().filter(|(_, count)| *count != 1);
    found.extend(not_once.map(|(number, count)| format!("{PAGE}: R-{number} is there {count} times, expected once")));
    found
}

/// A test that the page names and that is not there.
fn dead_test(file: &File, files: &[File]) -> Option<String> {
    let lines = file.text.lines().enumerate().filter(|_| file.path == PAGE);
    let named = lines.flat_map(|(index, line)| line.split('`').skip(1).step_by(2).map(move |name| (index, name)));
    named.filter_map(|(index, name)| Some((index, name.split_once("::")?))).find_map(|(index, (path, test))| {
        let starts = [format!("fn {test}("), format!("fn {test}<")];
        let is_there =
            files.iter().any(|file| file.path == path && starts.iter().any(|start| file.text.contains(start)));
        (!is_there).then(|| format!("{PAGE}:{}: there is no `{test}` in {path}", index + 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(rows: &str) -> Tree {
        let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
        Tree { files: vec![file(PAGE, rows), file("a/tests/b.rs", "fn holds() {}")] }
    }

    #[test]
    fn planted_rows_are_found() {
        let row = |number: u32| format!("| R-{number} | it | `a/tests/b.rs::holds` | proven |\n");
        let all: String = NUMBERS.into_iter().flatten().map(row).collect();
        assert_eq!(violations(&tree(&all)), Vec::<String>::new());
        for (from, to, complaint) in [
            (row(7), String::new(), "R-7 is there 0 times"),
            (row(7), row(7) + &row(7), "R-7 is there 2 times"),
            (row(7), row(39), "`R-39` is no requirement"),
            (row(7), "| R-7 | it | | proven |\n".to_owned(), "R-7 is proven by nothing"),
            (row(7), "| R-7 | it | `a` | good |\n".to_owned(), "the state of R-7 is `good`"),
            (row(7), "| R-7 | it | proven |\n".to_owned(), "expected number, requirement"),
            (row(7), row(7).replace("holds", "hold"), "there is no `hold` in a/tests/b.rs"),
            (row(7), row(7).replace("b.rs", "c.rs"), "there is no `holds` in a/tests/c.rs"),
        ] {
            let found = violations(&tree(&all.replacen(&from, &to, 1)));
            assert!(found.iter().any(|found| found.contains(complaint)), "{found:?}: expected {complaint}");
        }
    }
}

//! What passes make of the programs in `filetests/*.program`, and wrong rewrites that were found and are not made again.
//!
//! A file names its passes (`passes …`, as a set of them prints) and holds cases: a line `== TITLE`, a program, a line
//! `--`, and what the passes make of it. With `ESPER_BLESS=1` the files are written anew with what was found.

use std::fs;
use std::path::{Path, PathBuf};

use super::{replay, run};
use crate::compile::{Compiled, PassSet, Program, Reproducer, Unseen, bisect, compile};

/// The files of a folder with a name that ends like this, in order.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == ending));
    files.sort();
    files
}

/// What is expected of a case: rewrites by pass, the program, and what runs once.
fn outcome(program: &Program, compiled: &Compiled) -> String {
    if compiled.program == *program {
        return "unchanged\n".to_owned();
    }
    let rewrites = compiled.reports.iter().filter(|report| report.num_rewrites > 0);
    let rewrites: String = rewrites.map(|report| format!(" {}={}", report.pass.name(), report.num_rewrites)).collect();
    let once = if compiled.once.nodes.is_empty() { String::new() } else { format!("once:\n{}", compiled.once) };
    format!("rewrites{rewrites}\n{}{once}", compiled.program)
}

/// The text of a file as it should be.
fn blessed(text: &str, name: &str) -> String {
    let (header, cases) =
        text.split_once("\n== ").unwrap_or_else(|| panic!("{name}: no case, which starts with `== `"));
    let passes = header.lines().find_map(|line| line.strip_prefix("passes "));
    let passes: PassSet = passes.unwrap_or_else(|| panic!("{name}: no line `passes ..`")).parse().expect(name);
    let mut blessed = header.to_owned();
    for case in cases.split("\n== ") {
        let (title, rest) = case.split_once('\n').unwrap_or((case, ""));
        let place = format!("{name}, `{title}`");
        let input = rest.split_once("\n--").map_or(rest, |(input, _)| input);
        let program: Program = input.parse().unwrap_or_else(|error| panic!("{place}: {error}"));
        let compiled = compile(&program, &passes).unwrap_or_else(|error| panic!("{place}: {error:?}"));
        let expected = run(&program, None);
        assert!(expected.is_ok(), "{place}: {expected:?}");
        assert_eq!(replay(&compiled, None), expected, "{place}: another result");
        let input = input.trim_end();
        blessed.push_str(&format!("\n== {title}\n{input}\n--\n{}", outcome(&program, &compiled)));
    }
    blessed
}

/// Lines that only one of two texts has, with one line around them.
fn diff(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let start = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let rest = old.len().min(new.len()) - start;
    let end = old.iter().rev().zip(new.iter().rev()).take(rest).take_while(|(old, new)| old == new).count();
    let lines = |sign: &'static str, lines: &[&str]| -> Vec<String> {
        lines[start..lines.len() - end].iter().map(|line| format!("{sign}{line}")).collect()
    };
    let before = start.checked_sub(1).map(|line| format!("line {start}:\n {}", old[line]));
    [before.into_iter().collect(), lines("-", &old), lines("+", &new)].concat().join("\n")
}

fn is_blessing() -> bool {
    std::env::var_os("ESPER_BLESS").is_some_and(|value| value == "1")
}

/// Confirms that a file of this crate holds a text.
#[track_caller]
pub(super) fn is_as_in_file(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if is_blessing() {
        return fs::write(path, text).unwrap();
    }
    let found = fs::read_to_string(path).unwrap();
    assert!(found == text, "{file}:\n{}\nESPER_BLESS=1 takes what was found\n", diff(&found, text));
}

#[test]
fn files_say_what_passes_make_of_programs() {
    let mut wrong = Vec::new();
    for file in files("filetests", "program") {
        let text = fs::read_to_string(&file).unwrap();
        let found = blessed(&text, &file.display().to_string());
        if found == text {
            continue;
        }
        if is_blessing() {
            fs::write(&file, found).unwrap();
        } else {
            wrong.push(format!("{}:\n{}", file.display(), diff(&text, &found)));
        }
    }
    assert!(wrong.is_empty(), "{}\nESPER_BLESS=1 takes what was found\n", wrong.join("\n\n"));
}

#[test]
fn every_pass_has_a_file() {
    let names: Vec<String> =
        files("filetests", "program").iter().map(|file| file.file_stem().unwrap().to_string_lossy().into()).collect();
    for pass in crate::compile::Pass::ALL {
        assert!(names.iter().any(|name| name == pass.name()), "no file {}.program in filetests", pass.name());
    }
}

#[test]
fn reproducers_find_their_rewrite_where_the_fault_is_planted_and_nothing_without_it() {
    for file in files("filetests/reproducers", "program") {
        let name = file.display().to_string();
        let text = fs::read_to_string(&file).unwrap();
        let reproducer: Reproducer = text.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(is_blessing() || reproducer.to_string() == text, "{name}: {}", diff(&text, &reproducer.to_string()));
        let healthy = reproducer.passes.clone().without_wrong_rewrite();
        let found = bisect(&reproducer.program, &healthy, || true);
        assert_eq!(found, Err(Unseen::NoDifference), "{name}: the rewrite is still wrong, or it is not known");
        if healthy != reproducer.passes {
            let found = bisect(&reproducer.program, &reproducer.passes, || true);
            let found = found.unwrap_or_else(|why| panic!("{name}: the planted fault is not found: {why}"));
            if is_blessing() {
                fs::write(&file, found.to_string()).unwrap();
            } else {
                assert_eq!(found, reproducer, "{name}");
            }
        }
    }
}

#[test]
fn a_difference_of_two_files_is_told_by_its_lines() {
    assert_eq!(diff("a\nb\nc\nd", "a\nx\ny\nd"), "line 1:\n a\n-b\n-c\n+x\n+y");
    assert_eq!(diff("a\na", "a\na\na"), "line 2:\n a\n+a");
}

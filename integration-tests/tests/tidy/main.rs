//! Invariants I-4, I-9 and I-10, and a part of I-3: rules about files that neither the compiler nor clippy checks.

mod tree;
mod code;
mod rules;
mod contract;
mod results;
mod documents;
mod extend;
mod requirements;

use tree::Tree;

#[track_caller]
fn report(violations: &[String]) {
    assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
}

#[test]
fn every_file_starts_with_its_purpose() {
    report(&Tree::read().check(rules::purpose_line));
}

#[test]
fn no_file_is_too_long() {
    report(&Tree::read().check(rules::length));
}

#[test]
fn no_test_is_silenced_and_nothing_is_left_undone() {
    report(&Tree::read().check(rules::banned_code));
}

#[test]
fn unsafe_code_stays_in_its_folder() {
    report(&Tree::read().check(rules::unsafe_code));
}

#[test]
fn every_crate_root_forbids_unsafe_code() {
    report(&Tree::read().check(rules::crate_root));
}

#[test]
fn the_codec_is_named_in_one_module() {
    report(&rules::codec(&Tree::read()));
}

#[test]
fn what_the_trainer_records_cannot_name_who_decides() {
    report(&Tree::read().check(rules::trainer_region));
}

#[test]
fn every_crate_takes_the_lints_of_the_workspace() {
    report(&Tree::read().check(rules::manifest_lints));
}

#[test]
fn packages_hold_what_they_include() {
    report(&Tree::read().check(rules::included_file));
}

#[test]
fn a_contract_change_is_locked_and_told() {
    report(&contract::violations(&Tree::read()));
}

#[test]
#[expect(clippy::print_stderr, reason = "a check that cannot be made has to say so")]
fn results_name_the_commit_that_they_were_measured_at() {
    match results::History::read() {
        Some(history) => {
            if history.is_cut {
                eprintln!("a shallow clone: commits that are missing here are taken as older");
            }
            report(&results::violations(&Tree::read(), &history));
        }
        None => eprintln!("skipped: this is a copy without its history"),
    }
}

#[test]
fn documents_name_files_that_exist() {
    let paths = documents::paths();
    report(&Tree::read().check(|file| documents::dead_path(file, &paths)));
}

#[test]
fn every_requirement_is_listed_with_what_shows_it() {
    report(&requirements::violations(&Tree::read()));
}

#[test]
fn times_in_documents_come_from_results() {
    report(&Tree::read().check(documents::typed_figure));
}

#[test]
fn a_new_part_touches_the_files_that_the_guide_lists() {
    report(&extend::violations(&Tree::read()));
}

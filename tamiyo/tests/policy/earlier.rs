//! What seeds of earlier runs came to says whether another one is tried, and not which one.

use crate::heuristic::{SHORT, check, plateau, with_last};
use crate::support::{config, slot};

/// Slot, size, whether a permanent seed was there, seeds, kept.
fn row((slot, parameters, grown, tries, kept): (&str, u64, bool, u64, u64)) -> String {
    format!(
        r#"{{"slot":"{slot}","blueprint":"mlp","parameters":{parameters},"grown":{grown},"tries":{tries},"kept":{kept}}}"#
    )
}

fn with(rows: &[(&str, u64, bool, u64, u64)]) -> String {
    let rows = rows.iter().map(|one| row(*one)).collect::<Vec<_>>().join(",");
    SHORT.replacen("\"closing", &format!("\"earlier\":{{\"tries\":[{rows}]}},\"closing"), 1)
}

#[test]
fn nothing_is_tried_where_seeds_of_earlier_runs_leave_none_a_chance() {
    let grown = || with_last(plateau(20, 3), |s| s.slots[0].num_fossilized = 1);
    let germinates = ["plateau: germinate mlp in a"];
    // None of n was kept: a chance of 2 / (n + 2)², 0.125 after two and 0.08 after three.
    check(&with(&[("a", 10, false, 2, 0)]), &plateau(20, 3), &germinates);
    check(&with(&[("a", 10, false, 3, 0)]), &plateau(20, 3), &["does_not_pay"]);
    check(
        &with(&[("a", 10, false, 3, 0)]).replacen("\"tries", "\"min_chance\":0.07,\"tries", 1),
        &plateau(20, 3),
        &germinates,
    );
    // With a permanent seed it is another question.
    check(&with(&[("a", 10, false, 3, 0)]), &grown(), &germinates);
    check(&with(&[("a", 10, true, 3, 0)]), &grown(), &["does_not_pay"]);
    check(&with(&[("a", 10, true, 3, 0)]), &plateau(20, 3), &germinates);
}

#[test]
fn what_comes_first_does_not_depend_on_it() {
    let two = || with_last(plateau(20, 3), |s| s.slots.push(slot("b", &[("mlp", 10)])));
    check(&with(&[("a", 10, false, 9, 0), ("b", 10, false, 6, 5)]), &two(), &["plateau: germinate mlp in a"]);
    // The one that has a chance has no room.
    let none_in_b = || with_last(two(), |s| s.slots[1].offers.clear());
    check(&with(&[("a", 10, false, 9, 0), ("b", 10, false, 6, 5)]), &none_in_b(), &["does_not_pay"]);
}

#[test]
fn counts_that_cannot_be_and_those_of_another_host_are_refused_with_their_place() {
    let told = |json: &str| {
        let (config, slots) = (config(json), [slot("a", &[("mlp", 10)])]);
        let issues = [config.validate(), config.validate_for(&slots)].into_iter().filter_map(Result::err).flatten();
        issues.map(|issue| issue.to_string()).collect::<Vec<_>>()
    };
    let refused = |rows: &[(&str, u64, bool, u64, u64)], expected: &str| {
        let found = told(&with(rows));
        assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
    };
    assert_eq!(told(&with(&[("a", 10, false, 3, 3), ("a", 10, true, 3, 0)])), Vec::<String>::new());
    refused(&[("a", 10, false, 3, 4)], "heuristic.earlier.tries[0].kept` is 4: expected 0 to 3");
    refused(&[("a", 10, false, 0, 0)], "heuristic.earlier.tries[0].tries` is 0: expected at least 1");
    refused(&[("a", 10, false, 3, 0), ("a", 10, false, 1, 0)], "heuristic.earlier.tries[1]` is of a pair");
    refused(&[("b", 10, false, 3, 0)], "heuristic.earlier.tries[0].slot` is `b`: expected one of a");
    refused(
        &[("a", 11, false, 3, 0)],
        "tries[0].parameters` is 11: expected 10, which a seed of `mlp` in `a` has here",
    );
    let other = with(&[("a", 10, false, 3, 0)]).replace("\"mlp\"", "\"conv\"");
    assert!(told(&other)[0].contains("tries[0].blueprint` is `conv`: expected one of mlp"), "{:?}", told(&other));
    let newer = with(&[("a", 10, false, 3, 0)]).replacen("\"tries", "\"version\":2,\"tries", 1);
    assert!(told(&newer)[0].contains("heuristic.earlier.version` is 2: expected 1 to 1"), "{:?}", told(&newer));
}

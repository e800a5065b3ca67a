//! `docs/telemetry.md`: every name there is, and what became of those that there were.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{catalogue, check_derived, read};

const PAGE: &str = "docs/telemetry.md";
const TABLE: &str = "deploy/reference-names.csv";

/// A name of the older system: what it is called now, if it is there, and why not so any more.
struct Reference {
    is_metric: bool,
    name: String,
    now: Option<String>,
    why: String,
}

fn references() -> Vec<Reference> {
    let text = read(TABLE);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("kind,reference,now,why"));
    let reference = |line: &str| {
        // Reasons have no line breaks, and may have commas, in quotes or not: they stand last.
        let mut cells = line.splitn(4, ',');
        let mut next = || cells.next().unwrap_or_else(|| panic!("{TABLE}: {line}: expected 4 cells")).to_owned();
        let (kind, name, now, why) = (next(), next(), next(), next().trim_matches('"').replace("\"\"", "\""));
        assert!(matches!(kind.as_str(), "metric" | "event"), "{TABLE}: {line}");
        Reference { is_metric: kind == "metric", name, now: Some(now).filter(|now| !now.is_empty()), why }
    };
    lines.map(reference).collect()
}

/// Every metric and event.
fn known() -> BTreeSet<&'static str> {
    let catalogue = catalogue();
    catalogue.metrics().map(|desc| desc.name).chain(catalogue.events().map(|desc| desc.name)).collect()
}

#[test]
fn every_name_of_the_older_system_is_kept_renamed_or_retired_with_a_reason() {
    let (known, references, catalogue) = (known(), references(), catalogue());
    let mut seen = BTreeSet::new();
    for Reference { is_metric, name, now, why } in &references {
        assert!(seen.insert((is_metric, name)), "{name} is there twice");
        let is_kept = now.as_ref() == Some(name);
        let exists = if *is_metric { catalogue.metric(name).is_some() } else { catalogue.event(name).is_some() };
        assert_eq!(is_kept, exists, "{name} is {} by the code", if exists { "emitted" } else { "not emitted" });
        assert!(
            now.as_ref().is_none_or(|now| known.contains(now.as_str())),
            "{name} became {now:?}, which nothing is called"
        );
        assert!(is_kept != (why.len() > 5), "{name}: a reason for what is not kept, and for nothing else");
    }
    let count = |is_metric| references.iter().filter(|one| one.is_metric == is_metric).count();
    // 68 names of the trainer, 42 of the seed manager, and of the policy 27, of which one stands for many.
    assert!(count(true) > 130 && count(false) > 100, "{} metrics and {} events", count(true), count(false));
}

#[test]
fn the_reference_page_is_what_the_descriptors_say_and_no_name_leaves_it_unsaid() {
    let references = references();
    let mut page = catalogue().to_markdown();
    page.push_str("\n## Names of the older system that are not kept\n\n| name | now | why |\n|---|---|---|\n");
    for Reference { name, now, why, .. } in references.iter().filter(|one| one.now.as_ref() != Some(&one.name)) {
        let now = now.as_ref().map_or_else(|| "retired".to_owned(), |now| format!("`{now}`"));
        writeln!(page, "| `{name}` | {now} | {why} |").unwrap();
    }
    let names = |page: &str| -> BTreeSet<String> {
        page.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned())).collect()
    };
    let gone: Vec<String> = names(&read(PAGE)).difference(&names(&page)).cloned().collect();
    assert!(gone.is_empty(), "{gone:?} left {PAGE}: expected a line in {TABLE} that says why");
    check_derived(PAGE, &page);
}

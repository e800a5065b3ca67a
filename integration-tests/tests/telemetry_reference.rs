//! `docs/telemetry.md` is what the descriptors say; set `ESPER_REGENERATE_DOCS=1` to write it again.

use std::path::Path;

use esper::wire::DESCRIPTORS;
use esper_telemetry::Catalogue;

#[test]
fn the_reference_page_is_what_the_descriptors_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/telemetry.md");
    let page = Catalogue::new(DESCRIPTORS).unwrap().to_markdown();
    if std::env::var_os("ESPER_REGENERATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        page,
        "docs/telemetry.md is out of date, see the top of this test"
    );
}

#[test]
fn every_metric_and_event_has_one_owner() {
    let metrics: Vec<&str> = DESCRIPTORS.iter().flat_map(|(metrics, _)| metrics.iter().map(|m| m.name)).collect();
    let owners = ["tolaria.", "kasmina.", "tamiyo.", "kasmina.command_verifier.", "esper."];
    assert_eq!(DESCRIPTORS.len(), owners.len());
    for ((metrics, _), owner) in DESCRIPTORS.iter().zip(owners) {
        assert!(metrics.iter().all(|metric| metric.name.starts_with(owner)), "a metric of {owner} has another prefix");
    }
    assert!(metrics.len() > 30, "only {} metrics", metrics.len());
}

//! What a run with all subsystems and living seeds tells: no name of the record is gone..
//!
//! The drills of `.ci/run` do the same for timeouts and rollbacks, against `baselines/perf/phase0`.

use std::collections::BTreeSet;
use std::sync::Arc;

use esper_disk::StdFs;
use esper_telemetry::reader::FrameReader;
use integration_tests::{run_folder, short_run};

use super::{read, root};

const RECORD: &str = "integration-tests/tests/telemetry_reference/normal-epoch.txt";

/// Names of the metrics, and of the events with `event ` before them.
fn told() -> BTreeSet<String> {
    let dir = tempfile::tempdir().unwrap();
    let settings = short_run::SETTINGS.iter().map(|setting| (*setting).to_owned()).collect();
    run_folder::train_with(dir.path(), Arc::new(StdFs), Some(settings)).unwrap();
    let packets = FrameReader::open(&dir.path().join(run_folder::RUN).join("packets.bin")).unwrap();
    let mut names = BTreeSet::new();
    for packet in packets.map(Result::unwrap) {
        names.extend(packet.metrics.into_iter().map(|metric| metric.name));
        names.extend(packet.events.into_iter().map(|event| format!("event {}", event.name)));
    }
    names
}

#[test]
fn no_name_of_a_normal_run_is_gone_r_2() {
    let told = told();
    if std::env::var_os("ESPER_REGENERATE_DOCS").is_some() {
        let lines: String = told.iter().map(|name| format!("{name}\n")).collect();
        std::fs::write(root(RECORD), lines).unwrap();
    }
    let record = read(RECORD);
    let gone: Vec<&str> = record.lines().filter(|name| !told.contains(*name)).collect();
    assert!(gone.is_empty(), "a run does not tell any more: {}", gone.join(", "));
    for owner in ["tolaria.grad_agg.", "kasmina.seed.", "tamiyo.decision.", "esper.telemetry.", "event tamiyo."] {
        assert!(record.lines().any(|name| name.starts_with(owner)), "{RECORD} has no name of {owner}");
    }
}

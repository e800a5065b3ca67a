//! `esper profile`: a table of phases, and a trace whose spans are what the epochs were made of.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde_json::Value;

#[test]
fn phases_of_an_epoch_are_told_and_lie_within_it() {
    let dir = tempfile::tempdir().unwrap();
    let (out, trace) = (dir.path().join("run"), dir.path().join("trace.json"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_esper"));
    command.args(["profile", "--epochs", "3", "--progress", "off", "--trace"]).arg(&trace).arg("--out").arg(&out);
    let output = command.output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{told}");
    let share = |name: &str| -> f64 {
        let row = told.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in\n{told}"));
        row.split_whitespace().last().unwrap().trim_end_matches('%').parse().unwrap()
    };
    let phases = ["load", "plan", "eager", "read", "evaluate", "decide", "publish", "checkpoint", "other"];
    let sum: f64 = phases.map(share).iter().sum();
    // The last evaluation, on test data, and the last checkpoint are after the epochs.
    assert!((99.0..250.0).contains(&sum), "{sum} % of\n{told}");
    assert!(share("eager") > share("decide"), "{told}");

    let trace: Value = serde_json::from_str(&fs::read_to_string(&trace).unwrap()).unwrap();
    let mut spans: BTreeMap<&str, Vec<(u64, f64, f64)>> = BTreeMap::new();
    for event in trace["traceEvents"].as_array().unwrap() {
        let number = |key: &str| event[key].as_f64().unwrap();
        let (thread, began) = (event["tid"].as_u64().unwrap(), number("ts"));
        spans.entry(event["name"].as_str().unwrap()).or_default().push((thread, began, began + number("dur")));
    }
    assert_eq!(spans["epoch"].len(), 3);
    // 1 079 samples in batches of 32.
    assert_eq!(spans["eager"].len(), 3 * 34);
    for name in ["load", "eager", "decide", "read"] {
        for (thread, began, ended) in &spans[name] {
            let holds =
                |(around, from, to): &(u64, f64, f64)| around == thread && from <= began && ended <= &(to + 0.001);
            assert!(spans["epoch"].iter().any(holds), "{name} from {began} to {ended} is in no epoch");
        }
    }
    assert!(spans["write"].iter().all(|(thread, ..)| *thread != spans["epoch"][0].0), "the disk is waited for");
}

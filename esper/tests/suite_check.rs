//! `esper bench suite-check` on the CPU: whole runs of this program, compared.

use std::process::Command;

use serde_json::Value;

#[test]
fn whole_runs_in_every_mode_of_steps_come_to_the_same_and_lose_no_packet() {
    let dir = tempfile::tempdir().unwrap();
    let esper = assert_cmd::cargo::cargo_bin!("esper");
    let arguments = ["bench", "suite-check", "--device", "cpu", "--epochs", "16", "--out"];
    let output = Command::new(esper).args(arguments).arg(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(dir.path().join("suite-check.json")).unwrap();
    let measurements = &serde_json::from_str::<Value>(&text).unwrap()["measurements"];
    for job in ["heuristic", "pcgrad"] {
        for way in ["eager", "graph", "compiled"] {
            let median = |name: &str| measurements[name]["median"].as_f64();
            assert_eq!(median(&format!("check.suite.{job}.{way}")), Some(1.0));
            assert_eq!(median(&format!("suite.{job}.{way}.replays")), Some(0.0), "the CPU replays nothing");
            assert!(median(&format!("suite.{job}.{way}.metrics_of_seeds")).unwrap() > 100.0, "{job}.{way}");
        }
        assert!(measurements[format!("check.suite.{job}.blocking")].is_null(), "launches are those of a GPU");
    }
}

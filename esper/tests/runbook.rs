//! Every command of `docs/runbook.md`, in its order, in one empty folder; and each switch of its table of knobs, in a short run.
#![cfg(unix)]
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test that cannot run says so; a helper of a test fails the test"
)]

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// The blocks of commands, each line after a line that says it.
fn script(page: &str) -> String {
    let blocks = page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    blocks.flat_map(str::lines).map(|line| format!("printf '%s\\n' {} >&2\n{line}\n", quoted(line))).collect()
}

fn quoted(line: &str) -> String {
    format!("'{}'", line.replace('\'', "'\\''"))
}

#[test]
fn every_command_of_the_runbook_does_what_it_says() {
    if Command::new("curl").arg("--version").output().is_err() {
        println!("curl is not installed: nothing was tested");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(root.join("docs/runbook.md")).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let script = script(&page).replace("9464", &port.to_string());
    assert!(script.matches("esper ").count() > 30, "{script}");
    let dir = tempfile::tempdir().unwrap();
    let esper = Path::new(env!("CARGO_BIN_EXE_esper")).parent().unwrap();
    let path = std::env::join_paths(
        [esper.to_path_buf()].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let output = Command::new("bash")
        // Whatever fails, nothing is left running.
        .args(["-m", "-euo", "pipefail", "-c", &format!("trap 'kill %1 2>/dev/null || true' EXIT\n{script}")])
        .current_dir(dir.path())
        .env("PATH", path.unwrap())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the last of these failed:\n{told}");
}

#[test]
fn alerts_that_the_runbook_names_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let [page, alerts] =
        ["docs/runbook.md", "deploy/alerts.toml"].map(|file| fs::read_to_string(root.join(file)).unwrap());
    let is_part = |c: char| c.is_ascii_alphanumeric();
    let names = page.split(|c| !is_part(c)).filter(|word| word.starts_with("Esper") && word.len() > 6);
    let missing: Vec<&str> = names.filter(|name| !alerts.contains(&format!("name = \"{name}"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The code in the column of off switches, of every row.
fn switches(page: &str) -> Vec<Vec<String>> {
    let (_, table) = page.split_once("## Knobs").unwrap();
    let rows =
        table.lines().skip_while(|line| !line.starts_with("|---")).skip(1).take_while(|line| line.starts_with('|'));
    let cell = |row: &str| row.split('|').nth(2).unwrap_or_default().to_owned();
    rows.map(|row| cell(row).split('`').skip(1).step_by(2).map(str::to_owned).collect()).collect()
}

fn esper(dir: &Path, variable: Option<(&str, &str)>, args: &[&str]) -> Result<Output, String> {
    let output = Command::new(env!("CARGO_BIN_EXE_esper")).args(args).current_dir(dir).envs(variable).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(output) } else { Err(format!("{:?}: {told}", output.status.code())) }
}

/// A run of one short epoch; what it came to.
fn epoch(dir: &Path, variable: Option<(&str, &str)>, flags: &[&str]) -> Result<Value, String> {
    let run = tempfile::tempdir_in(dir).unwrap();
    let args = ["train", "--epochs", "1", "--set", "data.test_fraction=0.6", "--json", "--progress", "off", "--out"];
    let output = esper(dir, variable, &[&args[..], &[run.path().to_str().unwrap()], flags].concat())?;
    let text = String::from_utf8(output.stdout).unwrap();
    let mut summary: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    for differs in ["wall_s", "out", "memory"] {
        summary.as_object_mut().unwrap().remove(differs);
    }
    Ok(summary)
}

/// Uses a switch as the table writes it, in a run that has the result `plain` without it.
fn use_switch(page: &str, dir: &Path, switch: &str, plain: &Value) -> Result<(), String> {
    let named = switch.replace("RULE", "loss_spike");
    let words: Vec<&str> = named.split(' ').collect();
    match (words.as_slice(), named.split_once('=')) {
        // For a run under way: among the commands that the other test runs.
        (["esper", "emergency", "RUN", rest @ ..], _) => {
            let command = format!("esper emergency staging {}", rest.join(" "));
            page.contains(&command).then_some(()).ok_or_else(|| format!("the page does not try {command}"))
        }
        ([flag], _) if flag.starts_with("--") => {
            let help = String::from_utf8(esper(dir, None, &["train", "--help"])?.stdout).unwrap();
            let is_there = help.split_whitespace().any(|word| word == *flag);
            is_there.then_some(()).ok_or_else(|| format!("esper train has no flag {flag}"))
        }
        (flags @ [first, ..], _) if first.starts_with("--") => epoch(dir, None, flags).map(drop),
        ([_], Some((name, value))) => {
            let told = epoch(dir, Some((name, "nonsense")), &[]).err().unwrap_or_default();
            if !(told.starts_with("Some(2)") && told.contains(name)) {
                return Err(format!("{name} takes nonsense: {told}"));
            }
            let summary = epoch(dir, Some((name, value)), &[])?;
            if summary == *plain { Ok(()) } else { Err(format!("another result on the CPU: {summary}")) }
        }
        ([setting], None) => esper(dir, None, &["config", "explain", setting.trim_matches(['[', ']'])]).map(drop),
        _ => Err("expected flags, VARIABLE=VALUE, a setting or `esper emergency RUN`".to_owned()),
    }
}

#[test]
fn every_switch_of_the_knobs_is_accepted_and_one_with_another_name_is_found() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(root.join("docs/runbook.md")).unwrap();
    let rows = switches(&page);
    assert!(rows.len() >= 19 && rows.iter().all(|row| !row.is_empty()), "{rows:?}");
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let plain = epoch(dir, None, &[]).unwrap();
    assert!(plain["steps"].as_u64().unwrap() > 0, "{plain}");
    for switch in rows.iter().flatten() {
        assert_eq!(use_switch(&page, dir, switch, &plain), Ok(()), "{switch}");
    }
    let renamed = ["ESPER_OVERLP=0", "ESPER_NVTX=maybe", "--set telemetry.max_mb=64", "--policy of", "--serv"];
    for wrong in renamed.into_iter().chain(["[seeds.libary]", "train.safety.seed_ms", "esper emergency RUN --levl 2"]) {
        assert!(use_switch(&page, dir, wrong, &plain).is_err(), "{wrong}");
    }
}

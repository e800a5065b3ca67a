//! Every command of `docs/runbook.md`, in its order, in one empty folder.
#![cfg(unix)]
#![expect(clippy::print_stdout, reason = "a test that cannot run says so")]

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

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

//! A real Prometheus: it accepts the rules, has every alert fire and clear, scrapes a run, and finds what rules and panels read.
//!
//! `promtool` and `prometheus` are looked for in the folder `ESPER_PROMETHEUS` and on the path. Where they are not, the tests say so
//! and pass, unless `ESPER_REQUIRE_PROMETHEUS` is set.
#![cfg(unix)]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "helpers of tests, which wait for another process"
)]

#[path = "programs/prometheus.rs"]
mod installed;
mod programs;
#[expect(dead_code, reason = "some of it is for the tests of serving")]
mod served;

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use baselines::hostile::ask;
use serde_json::Value;

use self::installed::program;
use self::served::Served;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

#[test]
fn every_alert_fires_and_clears_and_configuration_and_rules_are_accepted() {
    let Some(promtool) = program("promtool") else { return };
    for arguments in [
        &["check", "rules", "rules.yml"][..],
        &["check", "config", "prometheus.yml"],
        &["test", "rules", "rules.test.yml"],
    ] {
        let output = Command::new(&promtool).args(arguments).current_dir(deploy().join("prometheus")).output().unwrap();
        let told = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        assert!(output.status.success(), "promtool {arguments:?}: {told}");
    }
}

/// A server that scrapes; ended when it goes out of scope.
struct Prometheus {
    child: Child,
    address: SocketAddr,
}

impl Prometheus {
    /// Scrapes `target` with the rules of `deploy/` every second.
    fn start(program: &Path, dir: &Path, target: SocketAddr) -> Self {
        let config = fs::read_to_string(deploy().join("prometheus/prometheus.yml")).unwrap();
        let config = config.replace("127.0.0.1:9464", &target.to_string()).replace("5s", "1s");
        assert!(config.contains(&target.to_string()));
        fs::write(dir.join("prometheus.yml"), config).unwrap();
        fs::copy(deploy().join("prometheus/rules.yml"), dir.join("rules.yml")).unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = Command::new(program)
            .arg(format!("--config.file={}", dir.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, address }
    }

    /// The answer of its API; null while it does not answer.
    fn api(&self, path: &str) -> Value {
        let (status, body) = ask(self.address, &format!("GET /api/v1/{path} HTTP/1.0\r\n\r\n"));
        if status == 200 { serde_json::from_str::<Value>(&body).unwrap()["data"].take() } else { Value::Null }
    }

    /// Whether a query has a result.
    fn has(&self, query: &str) -> bool {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        self.api(&format!("query?query={encoded}"))["result"].as_array().is_some_and(|result| !result.is_empty())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Queries of all panels that show something without a GPU.
fn panels() -> BTreeSet<String> {
    let mut queries = BTreeSet::new();
    for entry in fs::read_dir(deploy().join("grafana/dashboards")).unwrap() {
        let dashboard: Value = serde_json::from_str(&fs::read_to_string(entry.unwrap().path()).unwrap()).unwrap();
        for panel in dashboard["panels"].as_array().unwrap() {
            let targets = panel["targets"].as_array().unwrap().iter().filter(|_| panel["description"] != "On a GPU.");
            queries.extend(targets.map(|target| target["expr"].as_str().unwrap().to_owned()));
        }
    }
    assert!(queries.len() > 30, "{} queries", queries.len());
    queries
}

/// What a rule reads: names with the labels that are asked for, without ranges.
fn selectors(query: &str) -> Vec<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = query.match_indices("esper_").map(|(at, _)| at).filter(|&at| !query[..at].ends_with(is_name));
    let selector = |at: usize| {
        let name = query[at..].find(|c| !is_name(c)).map_or(query.len(), |end| at + end);
        let labels = query[name..].strip_prefix('{').and_then(|rest| rest.find('}')).map_or(0, |end| end + 2);
        query[at..name + labels].to_owned()
    };
    starts.map(selector).collect()
}

#[test]
fn a_scraped_run_has_what_every_panel_and_every_rule_reads() {
    let Some(program) = program("prometheus") else { return };
    let dir = tempfile::tempdir().unwrap();
    let run = Served::start(&dir.path().join("run"), &["--set", "train.conflict=pcgrad"]);
    let prometheus = Prometheus::start(&program, dir.path(), run.address);
    let deadline = Instant::now() + Duration::from_secs(150);
    let mut waiting = panels();
    // A seed comes and goes: what was there once is enough.
    while !waiting.is_empty() {
        assert!(Instant::now() < deadline, "no data of a run for {waiting:#?}");
        thread::sleep(Duration::from_secs(1));
        waiting.retain(|query| !prometheus.has(query));
    }
    assert!(prometheus.has("up{job=\"esper\"} == 1"));
    assert!(prometheus.has("esper_build_info{version!=\"\"}"));
    let rules = prometheus.api("rules")["groups"][0]["rules"].take();
    let rules = rules.as_array().unwrap();
    assert_eq!(rules.len(), fs::read_to_string(deploy().join("alerts.toml")).unwrap().matches("[[alert]]").count());
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
        for selector in selectors(rule["query"].as_str().unwrap()) {
            // With a library of weights, all from its start; gauges of a GPU.
            let is_elsewhere = selector.starts_with("esper_kasmina_prefetch_")
                || selector.starts_with("esper_tolaria_graph_") && !selector.contains("_total");
            assert!(prometheus.has(&selector) || is_elsewhere, "{selector} is read and not exposed");
        }
    }
    let firing = prometheus.api("alerts");
    let firing: Vec<&Value> =
        firing["alerts"].as_array().unwrap().iter().filter(|alert| alert["state"] == "firing").collect();
    assert!(firing.is_empty(), "alerts of a normal run: {firing:#?}");
    run.end();
}

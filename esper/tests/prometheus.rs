//! A real Prometheus: it accepts the rules, has every alert fire and clear, scrapes a run, and finds what rules and panels read.
//!
//! `promtool` and `prometheus` are looked for in the folder `ESPER_PROMETHEUS` and on the path. Where they are not, the tests say so
//! and pass, unless `ESPER_REQUIRE_PROMETHEUS` is set.
//!
//! `ESPER_TEST_DEVICE=cuda:0 ESPER_PANELS_OUT=DIR cargo test --release -p esper --features cuda --test prometheus scraped` scrapes a run on
//! a GPU, asks the panels of a GPU as well, and writes what they had to `DIR/panels.json`.
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

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use baselines::environment::Build;
use baselines::hostile::ask;
use baselines::measure::Measurement;
use baselines::result::BenchResult;
use leyline::clock::{Clock as _, SystemClock};
use serde_json::Value;

use self::installed::program;
use self::served::Served;

/// How long panels wait for a run.
const A_RUN: Duration = Duration::from_secs(150);

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

    /// What a query had first in the time since `start_s`, one value for each series.
    fn values(&self, query: &str, start_s: u64) -> Vec<f64> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let end_s = SystemClock::new().unix().as_secs();
        let found =
            self.api(&format!("query_range?query={encoded}&start={start_s}&end={end_s}&step=1s"))["result"].take();
        let value = |row: &Value| row["values"][0][1].as_str().unwrap().parse().unwrap();
        found.as_array().map_or_else(Vec::new, |rows| rows.iter().map(value).collect())
    }

    /// Whether a query has a result.
    fn has(&self, query: &str) -> bool {
        let now_s = SystemClock::new().unix().as_secs();
        !self.values(query, now_s).is_empty()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Queries of all panels, or of those that show something without a GPU.
fn panels(has_gpu: bool) -> BTreeSet<String> {
    let mut queries = BTreeSet::new();
    for entry in fs::read_dir(deploy().join("grafana/dashboards")).unwrap() {
        let dashboard: Value = serde_json::from_str(&fs::read_to_string(entry.unwrap().path()).unwrap()).unwrap();
        for panel in dashboard["panels"].as_array().unwrap() {
            let is_shown = has_gpu || panel["description"] != "On a GPU.";
            let targets = panel["targets"].as_array().unwrap().iter().filter(|_| is_shown);
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

/// What the panels had, as a committed result.
fn write(seen: &BTreeMap<String, Vec<f64>>, device: &str, out: &Path) {
    let notes = "QUERY: what a panel of the dashboards had when it had data first, one value for each series, of a run that a \
        Prometheus scraped every second.";
    let mut result = BenchResult::new("panels", notes, &SystemClock::new());
    result.command = format!(
        "ESPER_TEST_DEVICE={device} ESPER_PANELS_OUT=DIR cargo test --release -p esper --features cuda --test prometheus scraped"
    );
    let commit = Some(env!("ESPER_BUILD_COMMIT")).filter(|commit| !commit.is_empty());
    let build = Build { commit, dirty: env!("ESPER_BUILD_DIRTY") == "true" };
    result.environment = result.environment.built_from(build);
    let gpu = Command::new("nvidia-smi").args(["--query-gpu=name", "--format=csv,noheader"]).output();
    result.environment.gpu =
        gpu.ok().filter(|_| device != "cpu").map(|gpu| String::from_utf8(gpu.stdout).unwrap().trim().to_owned());
    // A share of nothing is no number.
    let measured = |(query, values): (&String, &Vec<f64>)| {
        let finite = values.iter().copied().filter(|value| value.is_finite()).collect();
        Some((query.clone(), Measurement::of("value", finite)?))
    };
    result.measurements = seen.iter().filter_map(measured).collect();
    result.config.insert("panels".to_owned(), seen.len().to_string());
    result.write(out).unwrap();
}

/// What rules read is exposed, and none of them fires.
fn check_rules(prometheus: &Prometheus, has_gpu: bool) {
    assert!(prometheus.has("up{job=\"esper\"} == 1"));
    assert!(prometheus.has("esper_build_info{version!=\"\"}"));
    let rules = prometheus.api("rules")["groups"][0]["rules"].take();
    let rules = rules.as_array().unwrap();
    assert_eq!(rules.len(), fs::read_to_string(deploy().join("alerts.toml")).unwrap().matches("[[alert]]").count());
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
        for selector in selectors(rule["query"].as_str().unwrap()) {
            // With a library of weights, all from its start; gauges of a GPU.
            let is_of_gpu = selector.starts_with("esper_tolaria_graph_") && !selector.contains("_total")
                || selector.starts_with("esper_tolaria_compile_replay_");
            let is_elsewhere = selector.starts_with("esper_kasmina_prefetch_") || !has_gpu && is_of_gpu;
            assert!(prometheus.has(&selector) || is_elsewhere, "{selector} is read and not exposed");
        }
    }
    let firing = prometheus.api("alerts");
    let firing: Vec<&Value> =
        firing["alerts"].as_array().unwrap().iter().filter(|alert| alert["state"] == "firing").collect();
    assert!(firing.is_empty(), "alerts of a normal run: {firing:#?}");
}

#[test]
fn a_scraped_run_has_what_every_panel_and_every_rule_reads() {
    let Some(program) = program("prometheus") else { return };
    let device = std::env::var("ESPER_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned());
    let has_gpu = device != "cpu";
    let mut waiting = panels(has_gpu);
    let mut seen: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    // On a GPU a seed of small data comes and goes between two scrapes, and a larger set has no gradients that are told apart.
    for &data in if has_gpu { &["digits", "mnist1d"][..] } else { &["digits"] } {
        let dir = tempfile::tempdir().unwrap();
        let flags = ["--set", "train.conflict=pcgrad", "--device", &device, "--data", data];
        let run = Served::start(&dir.path().join("run"), &flags);
        let prometheus = Prometheus::start(&program, dir.path(), run.address);
        let (start_s, deadline) = (SystemClock::new().unix().as_secs(), Instant::now() + A_RUN);
        // What was there once is enough.
        while !waiting.is_empty() && Instant::now() < deadline {
            thread::sleep(Duration::from_secs(1));
            seen.extend(waiting.iter().map(|query| (query.clone(), prometheus.values(query, start_s))));
            waiting.retain(|query| seen[query].is_empty());
        }
        let is_last = !has_gpu || data == "mnist1d";
        assert!(waiting.is_empty() || !is_last, "no data of a run for {waiting:#?}");
        check_rules(&prometheus, has_gpu);
        run.end();
        if waiting.is_empty() {
            break;
        }
    }
    if let Some(out) = std::env::var_os("ESPER_PANELS_OUT") {
        write(&seen, &device, Path::new(&out));
    }
}

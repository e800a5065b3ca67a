//! What is derived from the catalogue is what is committed: `docs/telemetry.md`, `docs/alerts.md` and `deploy/`. Set
//! `ESPER_REGENERATE_DOCS=1` to write them again.
//!
//! The tables that people write: the descriptors in the code, `deploy/reference-names.csv`, `deploy/alerts.toml` and
//! `deploy/dashboards.toml`.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod alerts;
mod dashboards;
mod names;

use std::fs;
use std::path::{Path, PathBuf};

use esper::wire::DESCRIPTORS;
use esper_telemetry::Catalogue;
use esper_telemetry::prometheus::{OtlpName, PrometheusName};
use leyline::telemetry::MetricKind;
use serde::de::DeserializeOwned;

fn catalogue() -> Catalogue {
    Catalogue::new(DESCRIPTORS).unwrap()
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(root(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn table<T: DeserializeOwned>(path: &str) -> T {
    toml::from_str(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The file says `text`, or is made to.
#[track_caller]
fn check_derived(path: &str, text: &str) {
    if std::env::var_os("ESPER_REGENERATE_DOCS").is_some() {
        fs::create_dir_all(root(path).parent().unwrap()).unwrap();
        fs::write(root(path), text).unwrap();
    }
    assert_eq!(read(path), text, "{path} is out of date, see the top of this test");
}

/// A text as YAML, which takes every string of JSON.
fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

/// An expression with each {name} replaced by the Prometheus name of that metric, and the names.
fn resolved(expression: &str) -> (String, Vec<&'static str>) {
    let catalogue = catalogue();
    let (mut out, mut names) = (String::new(), Vec::new());
    let mut rest = expression;
    while let Some((before, after)) = rest.split_once('{') {
        let (inside, behind) = after.split_once('}').unwrap_or_else(|| panic!("{expression}: a brace is open"));
        out.push_str(before);
        if inside.contains(['=', '~', '"']) {
            out.push_str(&format!("{{{inside}}}"));
        } else {
            let desc = catalogue.metric(inside).unwrap_or_else(|| panic!("{expression}: nothing is called {inside}"));
            out.push_str(&PrometheusName::of(desc).name);
            names.push(desc.name);
        }
        rest = behind;
    }
    (out + rest, names)
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

/// A name as collectors export it to Prometheus, by the rules of OpenTelemetry ("Prometheus and OpenMetrics Compatibility").
fn exported(name: &str, unit: &str, kind: MetricKind) -> String {
    let mut name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let (main, per) = unit.split_once('/').unwrap_or((unit, ""));
    let word = match main {
        "s" => "_seconds",
        "By" => "_bytes",
        "1" if kind == MetricKind::Gauge => "_ratio",
        _ => {
            assert!(main == "1" || main.starts_with('{'), "{name}: {unit} is not among the units of the rules");
            ""
        }
    };
    let per = if per == "s" { "_per_second" } else { per };
    let total = if kind == MetricKind::Counter { "_total" } else { "" };
    for suffix in [word, per, total] {
        if !name.ends_with(suffix) {
            name += suffix;
        }
    }
    name
}

#[test]
fn what_a_collector_exports_has_the_names_of_what_is_scraped_r_60() {
    for desc in catalogue().metrics() {
        let (scraped, sent) = (PrometheusName::of(desc), OtlpName::of(desc.name, desc.unit));
        assert_eq!(exported(&sent.name, sent.unit, desc.kind), scraped.name, "{}", desc.name);
        assert!((sent.scale - scraped.scale).abs() < f64::EPSILON, "{}", desc.name);
    }
}

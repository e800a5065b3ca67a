//! `deploy/alerts.toml` becomes rules, tests of the rules for `promtool test rules`, and `docs/alerts.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Deserialize;

use super::{check_derived, resolved, table};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Alerts {
    alert: Vec<Alert>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Alert {
    name: String,
    expr: String,
    r#for: String,
    severity: Severity,
    means: String,
    r#do: String,
    /// What a test feeds.
    series: BTreeMap<String, String>,
    /// Labels of the alert besides its severity.
    #[serde(default)]
    labels: BTreeMap<String, String>,
    fires: String,
    clears: String,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Severity {
    Warning,
    Critical,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

const TABLE: &str = "deploy/alerts.toml";
const MADE: &str = "# Made from deploy/alerts.toml; do not edit.\n";

fn alerts() -> Vec<Alert> {
    table::<Alerts>(TABLE).alert
}

/// A text as YAML, which takes every string of JSON.
fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

/// The annotations of an alert: what is told, and where it is written what to do.
fn annotations(alert: &Alert) -> [(&'static str, String); 2] {
    let place = format!("docs/alerts.md#{}", alert.name.to_lowercase());
    [("summary", quoted(&alert.means)), ("runbook", quoted(&place))]
}

#[test]
fn rules_are_what_the_table_says() {
    let mut rules = format!("{MADE}groups:\n  - name: esper\n    rules:\n");
    for alert in alerts() {
        let [summary, runbook] = annotations(&alert).map(|(name, text)| format!("          {name}: {text}\n"));
        let (name, severity, hold) = (&alert.name, alert.severity.name(), &alert.r#for);
        let expr = quoted(&resolved(&alert.expr).0);
        writeln!(
            rules,
            "      - alert: {name}\n        expr: {expr}\n        for: {hold}\n        labels: {{severity: {severity}}}\n        annotations:"
        )
        .unwrap();
        rules += &(summary + &runbook);
    }
    check_derived("deploy/prometheus/rules.yml", &rules);
}

#[test]
fn tests_of_rules_are_what_the_table_says() {
    let mut tests = format!("{MADE}rule_files: [rules.yml]\nevaluation_interval: 30s\ntests:\n");
    for alert in alerts() {
        tests += "  - interval: 30s\n    input_series:\n";
        for (series, values) in &alert.series {
            writeln!(tests, "      - {{series: {}, values: {}}}", quoted(&resolved(series).0), quoted(values)).unwrap();
        }
        tests += "    alert_rule_test:\n";
        for silent in ["1m", &alert.clears] {
            writeln!(tests, "      - {{eval_time: {silent}, alertname: {}, exp_alerts: []}}", alert.name).unwrap();
        }
        let severity = ("severity", quoted(alert.severity.name()));
        let labels = alert.labels.iter().map(|(name, value)| (name.as_str(), quoted(value))).chain([severity]);
        let flow = |pairs: Vec<(&str, String)>| {
            pairs.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join(", ")
        };
        let (labels, told) = (flow(labels.collect()), flow(annotations(&alert).into()));
        writeln!(
            tests,
            "      - eval_time: {}\n        alertname: {}\n        exp_alerts: [{{exp_labels: {{{labels}}}, exp_annotations: {{{told}}}}}]",
            alert.fires, alert.name
        )
        .unwrap();
    }
    check_derived("deploy/prometheus/rules.test.yml", &tests);
}

#[test]
fn the_page_of_alerts_is_what_the_table_says() {
    let mut page = String::from(
        "# Alerts\n\nMade from `deploy/alerts.toml`; do not edit. The rules are `deploy/prometheus/rules.yml`; `promtool test rules \
         deploy/prometheus/rules.test.yml` has each of them fire and clear.\n",
    );
    for alert in alerts() {
        let hold = if alert.r#for == "0s" { String::new() } else { format!(", for {}", alert.r#for) };
        let expr = resolved(&alert.expr).0;
        let (name, severity, means, action) = (&alert.name, alert.severity.name(), &alert.means, &alert.r#do);
        write!(page, "\n## {name}\n{severity}{hold}: {means}\n\n```text\n{expr}\n```\n{action}\n").unwrap();
    }
    check_derived("docs/alerts.md", &page);
}

#[test]
fn every_alert_has_its_own_name_and_reads_something_and_what_it_reads_is_fed_by_its_test() {
    let mut names = BTreeSet::new();
    for alert in alerts() {
        assert!(names.insert(alert.name.clone()), "{} is there twice", alert.name);
        let read: BTreeSet<&str> = resolved(&alert.expr).1.into_iter().collect();
        let fed: BTreeSet<&str> = alert.series.keys().flat_map(|series| resolved(series).1).collect();
        assert!(!read.is_empty() || alert.expr.starts_with("up{"), "{} reads nothing", alert.name);
        assert!(fed.is_subset(&read), "{} is fed what it does not read", alert.name);
    }
}

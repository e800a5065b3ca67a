//! `deploy/alerts.toml` becomes rules, tests of the rules for `promtool test rules`, and `docs/alerts.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Deserialize;

use super::dashboards::tests_of_panels;
use super::{check_derived, quoted, read, resolved, table};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Alerts {
    alert: Vec<Alert>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Alert {
    name: String,
    owner: String,
    expr: String,
    r#for: String,
    severity: Severity,
    means: String,
    r#do: String,
    /// How and why its limit differs from the one that was wanted first.
    adjusted: Option<String>,
    /// What a test feeds.
    series: BTreeMap<String, String>,
    /// Labels of the alert besides its severity.
    #[serde(default)]
    labels: BTreeMap<String, String>,
    fires: String,
    clears: String,
    /// Further times at which it must be silent.
    #[serde(default)]
    silent: Vec<String>,
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
const TESTS_MADE: &str = "# Made from deploy/alerts.toml and deploy/dashboards.toml; do not edit.\n";

fn alerts() -> Vec<Alert> {
    table::<Alerts>(TABLE).alert
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
    let mut tests = format!("{TESTS_MADE}rule_files: [rules.yml]\nevaluation_interval: 30s\ntests:\n");
    for alert in alerts() {
        tests += "  - interval: 30s\n    input_series:\n";
        for (series, values) in &alert.series {
            writeln!(tests, "      - {{series: {}, values: {}}}", quoted(&resolved(series).0), quoted(values)).unwrap();
        }
        tests += "    alert_rule_test:\n";
        for silent in ["1m", &alert.clears].into_iter().chain(alert.silent.iter().map(String::as_str)) {
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
    check_derived("deploy/prometheus/rules.test.yml", &(tests + &tests_of_panels()));
}

#[test]
fn the_page_of_alerts_is_what_the_table_says() {
    let mut page = String::from(
        "# Alerts\n\nMade from `deploy/alerts.toml`; do not edit. The rules are `deploy/prometheus/rules.yml`; `promtool test rules \
         deploy/prometheus/rules.test.yml` has each of them fire and clear.\n",
    );
    page += &noise();
    for alert in alerts() {
        let hold = if alert.r#for == "0s" { String::new() } else { format!(", for {}", alert.r#for) };
        let expr = resolved(&alert.expr).0;
        let owner = &alert.owner;
        let (name, severity, means, action) = (&alert.name, alert.severity.name(), &alert.means, &alert.r#do);
        write!(page, "\n## {name}\n{severity}{hold}, for [{owner}](owners/{owner}.md): {means}\n\n```text\n{expr}\n```\n{action}\n").unwrap();
        if let Some(adjusted) = &alert.adjusted {
            writeln!(page, "\nAdjusted: {adjusted}").unwrap();
        }
    }
    check_derived("docs/alerts.md", &page);
}

/// How much of a normal day each alert fires, from what `esper/tests/alert_noise.rs` wrote.
fn noise() -> String {
    #[derive(Deserialize)]
    struct Fired {
        hours: u64,
        seconds: u64,
    }
    #[derive(Deserialize)]
    struct Recorded {
        runs: Vec<Run>,
    }
    #[derive(Deserialize)]
    struct Run {
        made: String,
        flags: Vec<String>,
        series: BTreeMap<String, String>,
    }
    let fired: BTreeMap<String, Fired> = serde_json::from_str(&read("deploy/noise/alerts.json")).unwrap();
    let Recorded { runs } = serde_json::from_str(&read("deploy/noise/runs.json")).unwrap();
    let alerts = alerts();
    let known: BTreeSet<String> = alerts.iter().map(|alert| alert.name.clone()).collect();
    assert_eq!(fired.keys().cloned().collect::<BTreeSet<_>>(), known, "the noise of other alerts was measured");
    let noisy: Vec<_> = fired.iter().filter(|(_, fired)| fired.seconds > 0).collect();
    let mut text = format!(
        "\n## On a normal day\nReal runs were recorded, several at once, and laid end to \
         end to 24 hours; counters go on within a run and start again with the next, and each run is gone for one scrape at its \
         end. The rules were evaluated over them by `promtool` (`cargo test -p esper --test alert_noise`; recordings and result: \
         `deploy/noise/`). The folder LIBRARY has the weights of a seed of an earlier run.{}\n\n| run | flags of `esper train` | recorded with |\n|---|---|---|\n",
        absent(&alerts, &runs.iter().flat_map(|run| run.series.keys().map(String::as_str)).collect())
    );
    for (index, run) in runs.iter().enumerate() {
        writeln!(text, "| {} | `{}` | {} |", index + 1, run.flags.join(" "), run.made).unwrap();
    }
    text += &format!("\n{} of {} alerts fired", noisy.len(), fired.len());
    if noisy.is_empty() {
        return text + ".\n";
    }
    text += ":\n\n| alert | hours in which it fired | seconds |\n|---|---|---|\n";
    for (name, Fired { hours, seconds }) in noisy {
        writeln!(text, "| {name} | {hours} | {seconds} |").unwrap();
    }
    text
}

/// Which alerts read what was in none of the `series` that were recorded.
fn absent(alerts: &[Alert], series: &BTreeSet<&str>) -> String {
    let is_recorded = |name: &&str| {
        let (name, _) = resolved(&format!("{{{name}}}"));
        series.iter().any(|series| series.split('{').next() == Some(&name))
    };
    let names = alerts.iter().filter(|alert| !resolved(&alert.expr).1.iter().all(is_recorded));
    let names: Vec<&str> = names.map(|alert| alert.name.as_str()).collect();
    if names.is_empty() {
        return String::new();
    }
    format!(" Not recorded, or not all of it, is what {} reads: silence here says nothing of that.", names.join(", "))
}

#[test]
fn every_alert_is_on_the_page_of_its_owner() {
    let (begin, end) = ("<!-- alerts: made from deploy/alerts.toml -->\n", "<!-- /alerts -->");
    let mut of: BTreeMap<String, String> = BTreeMap::new();
    for Alert { name, owner, severity, .. } in alerts() {
        let line = format!("- [{name}](../alerts.md#{}), {}\n", name.to_lowercase(), severity.name());
        *of.entry(owner).or_default() += &line;
    }
    let pages: BTreeSet<String> = std::fs::read_dir(super::root("docs/owners"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().trim_end_matches(".md").to_owned())
        .collect();
    assert_eq!(pages, of.keys().cloned().collect::<BTreeSet<_>>(), "pages of owners against owners of alerts");
    for (owner, lines) in of {
        let path = format!("docs/owners/{owner}.md");
        let page = read(&path);
        let (before, rest) = page.split_once(begin).unwrap_or_else(|| panic!("{path} has no list of alerts"));
        let (_, after) = rest.split_once(end).unwrap_or_else(|| panic!("{path}: its list of alerts does not end"));
        check_derived(&path, &format!("{before}{begin}{lines}{end}{after}"));
    }
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

//! `deploy/dashboards.toml` becomes dashboards that Grafana is provisioned with, and tests for `promtool` of what only a GPU shows. What a
//! CPU shows is asked of a real run by `esper/tests/prometheus.rs`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{catalogue, check_derived, quoted, resolved, table};

const TABLE: &str = "deploy/dashboards.toml";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Dashboards {
    dashboard: Vec<Dashboard>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Dashboard {
    uid: String,
    title: String,
    panels: Vec<Panel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Panel {
    title: String,
    /// As Grafana calls it.
    unit: String,
    queries: Vec<String>,
    /// Of the alert that watches it.
    limit: Option<f64>,
    /// Whether there is something to see on a GPU only.
    #[serde(default)]
    gpu: bool,
}

impl Panel {
    fn to_json(&self, index: usize) -> Value {
        let targets: Vec<Value> = self
            .queries
            .iter()
            .zip('A'..)
            .map(|(query, letter)| json!({"refId": letter.to_string(), "expr": resolved(query).0, "legendFormat": "__auto"}))
            .collect();
        let mut steps = vec![json!({"color": "green", "value": null})];
        steps.extend(self.limit.map(|limit| json!({"color": "red", "value": limit})));
        json!({
            "id": index + 1,
            "title": self.title,
            "description": if self.gpu { "On a GPU." } else { "" },
            "type": "timeseries",
            "datasource": {"type": "prometheus", "uid": "esper-prometheus"},
            "gridPos": {"x": index % 2 * 12, "y": index / 2 * 8, "w": 12, "h": 8},
            "fieldConfig": {
                "defaults": {
                    "unit": self.unit,
                    "thresholds": {"mode": "absolute", "steps": steps},
                    "custom": {"thresholdsStyle": {"mode": if self.limit.is_some() { "line" } else { "off" }}},
                },
                "overrides": [],
            },
            "targets": targets,
        })
    }
}

/// Blocks of `promtool test rules`: each query of a panel of a GPU is fed a gauge that goes from 0 to a number of its own, and must
/// show that number some minutes later.
pub(super) fn tests_of_panels() -> String {
    let panels = table::<Dashboards>(TABLE).dashboard.into_iter().flat_map(|dashboard| dashboard.panels);
    let queries = panels.filter(|panel| panel.gpu).flat_map(|panel| panel.queries);
    let mut tests = String::new();
    for (index, query) in queries.enumerate() {
        let (asked, names) = resolved(&query);
        let [name] = names[..] else { panic!("{query}: expected one metric") };
        assert!(catalogue().metric(name).is_some_and(|desc| desc.labels.is_empty()), "{query}: expected no labels");
        let series = resolved(&format!("{{{name}}}")).0;
        // A function leaves no name.
        let (shown, value) = (if asked == series { &series } else { "{}" }, index + 1);
        write!(
            tests,
            "  - interval: 30s\n    input_series:\n      - {{series: {}, values: \"0x4 {value}x20\"}}\n    promql_expr_test:\n      - {{expr: {}, \
             eval_time: 8m, exp_samples: [{{labels: {}, value: {value}}}]}}\n",
            quoted(&series),
            quoted(&asked),
            quoted(shown)
        )
        .unwrap();
    }
    assert!(tests.matches("promql_expr_test").count() > 4, "panels of a GPU are gone");
    tests
}

#[test]
fn dashboards_are_what_the_table_says() {
    let mut uids = BTreeSet::new();
    for dashboard in table::<Dashboards>(TABLE).dashboard {
        assert!(uids.insert(dashboard.uid.clone()), "{} is there twice", dashboard.uid);
        assert!(dashboard.panels.iter().all(|panel| !panel.queries.is_empty()), "{}: an empty panel", dashboard.uid);
        let panels: Vec<Value> =
            dashboard.panels.iter().enumerate().map(|(index, panel)| panel.to_json(index)).collect();
        let json = json!({
            "uid": dashboard.uid,
            "title": dashboard.title,
            "tags": ["esper"],
            "schemaVersion": 39,
            "editable": false,
            "refresh": "5s",
            "time": {"from": "now-1h", "to": "now"},
            "panels": panels,
        });
        let path = format!("deploy/grafana/dashboards/{}.json", dashboard.uid);
        check_derived(&path, &(serde_json::to_string_pretty(&json).unwrap() + "\n"));
    }
}

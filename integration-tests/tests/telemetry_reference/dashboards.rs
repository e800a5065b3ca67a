//! `deploy/dashboards.toml` becomes dashboards that Grafana is provisioned with.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{check_derived, resolved, table};

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

#[test]
fn dashboards_are_what_the_table_says() {
    let mut uids = BTreeSet::new();
    for dashboard in table::<Dashboards>("deploy/dashboards.toml").dashboard {
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

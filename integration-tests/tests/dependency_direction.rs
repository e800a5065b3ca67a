//! Invariant I-1: subsystems meet only in `leyline`. Reads `cargo metadata` and compares it with a table.

use std::process::Command;

use serde_json::Value;

/// The workspace crates that a crate may name.
struct Allowed {
    krate: &'static str,
    /// In `[dependencies]`.
    normal: &'static [&'static str],
    /// In `[dev-dependencies]`, beside the normal ones.
    dev: &'static [&'static str],
    /// In `[build-dependencies]`.
    build: &'static [&'static str],
}

const NONE: &[&str] = &[];
const TESTKIT: &[&str] = &["leyline-testkit"];
/// For examples: the token of the eager side.
const LEYLINE: &[&str] = &["leyline"];
const KERNELS: &[&str] = &["kernel-build"];

/// One line per crate of the workspace. A new line or name here is a new edge in the design: see `CONTRIBUTING.md`.
const ALLOWED: &[Allowed] = &[
    Allowed { krate: "kernel-build", normal: NONE, dev: NONE, build: NONE },
    Allowed { krate: "esper-disk", normal: NONE, dev: NONE, build: NONE },
    Allowed { krate: "leyline", normal: NONE, dev: NONE, build: NONE },
    Allowed { krate: "leyline-testkit", normal: &["leyline"], dev: NONE, build: NONE },
    Allowed { krate: "esper-graph", normal: &["leyline"], dev: NONE, build: KERNELS },
    Allowed { krate: "esper-layers", normal: &["esper-graph"], dev: LEYLINE, build: KERNELS },
    Allowed { krate: "esper-safety", normal: &["leyline"], dev: TESTKIT, build: NONE },
    Allowed { krate: "esper-weights", normal: &["leyline", "esper-safety"], dev: TESTKIT, build: NONE },
    Allowed { krate: "esper-data", normal: &["leyline"], dev: NONE, build: NONE },
    Allowed {
        krate: "tolaria",
        normal: &["leyline", "esper-disk", "esper-graph", "esper-safety"],
        dev: TESTKIT,
        build: KERNELS,
    },
    Allowed { krate: "kasmina", normal: &["leyline", "esper-layers", "esper-weights"], dev: TESTKIT, build: NONE },
    Allowed {
        krate: "esper-export",
        normal: &["leyline", "esper-data", "esper-weights", "kasmina"],
        dev: NONE,
        build: NONE,
    },
    Allowed { krate: "tamiyo", normal: &["leyline"], dev: TESTKIT, build: NONE },
    Allowed { krate: "esper-signing", normal: &["leyline", "esper-disk"], dev: TESTKIT, build: NONE },
    Allowed { krate: "esper-telemetry", normal: &["leyline", "esper-disk"], dev: TESTKIT, build: NONE },
    Allowed {
        krate: "baselines",
        normal: &[
            "leyline",
            "esper-graph",
            "esper-layers",
            "esper-weights",
            "tolaria",
            "kasmina",
            "tamiyo",
            "esper-telemetry",
        ],
        dev: TESTKIT,
        build: NONE,
    },
    Allowed {
        krate: "esper",
        normal: &[
            "leyline",
            "esper-data",
            "esper-disk",
            "esper-graph",
            "esper-layers",
            "esper-weights",
            "tolaria",
            "kasmina",
            "esper-export",
            "tamiyo",
            "esper-signing",
            "esper-telemetry",
            "baselines",
        ],
        dev: TESTKIT,
        build: NONE,
    },
    Allowed {
        krate: "integration-tests",
        normal: &[
            "leyline",
            "esper-data",
            "esper-disk",
            "esper-graph",
            "esper-layers",
            "esper-weights",
            "tolaria",
            "kasmina",
            "esper-export",
            "tamiyo",
            "esper-signing",
            "esper-telemetry",
            "esper",
            "baselines",
            "leyline-testkit",
        ],
        dev: NONE,
        build: NONE,
    },
];

/// Crates from outside that only these may name, in any section.
const RESERVED: &[(&str, &[&str], &str)] = &[
    ("anyhow", &["esper"], "errors between crates have kinds"),
    ("clap", &["esper", "baselines"], "only the command and the works that it measures have arguments"),
    ("bincode", &["esper-telemetry"], "the codec must stay replaceable"),
    ("opentelemetry-proto", &["esper-telemetry"], "one sink sends to collectors"),
    ("ureq", &["esper-telemetry"], "nothing else asks other machines"),
    ("cudarc", &["esper-graph", "esper-layers", "tolaria"], "only graphs, layers and the trainer talk to the driver"),
];

/// All that `leyline` may name outside its tests.
const CONTRACT_DEPENDENCIES: &[&str] = &["candle-core", "serde", "thiserror"];

#[derive(Debug, Clone, PartialEq, Eq)]
struct Edge {
    from: String,
    to: String,
    /// `normal`, `dev` or `build`.
    section: String,
}

#[test]
fn the_workspace_has_only_the_edges_of_the_table() {
    let metadata = metadata();
    let edges = edges(&metadata);
    assert!(edges.iter().any(|edge| edge.from == "esper" && edge.to == "leyline"), "cargo metadata was misread");
    let found = violations(&crates(&metadata), &edges);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[track_caller]
fn check(from: &str, to: &str, section: &str, complaint: Option<&str>) {
    let edge = Edge { from: from.into(), to: to.into(), section: section.into() };
    let names: Vec<String> = ALLOWED.iter().map(|allowed| allowed.krate.to_owned()).collect();
    let found = violations(&names, &[edge]);
    match complaint {
        Some(complaint) => {
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(complaint), "`{}` does not contain `{complaint}`", found[0]);
        }
        None => assert!(found.is_empty(), "{found:?}"),
    }
}

#[test]
fn a_planted_edge_between_subsystems_is_named() {
    check("tolaria", "kasmina", "normal", Some("`tolaria` must not name `kasmina` in its normal dependencies"));
    check("tolaria", "kasmina", "dev", Some("`tolaria` must not name `kasmina` in its dev dependencies"));
    check("kasmina", "esper-signing", "normal", Some("`kasmina` must not name `esper-signing`"));
    check("tamiyo", "esper-signing", "dev", Some("`tamiyo` must not name `esper-signing`"));
    check("tamiyo", "esper", "build", Some("`tamiyo` must not name `esper` in its build dependencies"));
}

#[test]
fn the_testkit_is_for_tests() {
    check("kasmina", "leyline-testkit", "dev", None);
    check("kasmina", "leyline-testkit", "normal", Some("`leyline-testkit`"));
    check("leyline", "leyline-testkit", "dev", Some("`leyline-testkit`"));
}

#[test]
fn only_build_scripts_compile_kernels() {
    check("esper-layers", "kernel-build", "build", None);
    check("tolaria", "kernel-build", "build", None);
    check("tolaria", "kernel-build", "normal", Some("`kernel-build` in its normal dependencies"));
    check("tamiyo", "kernel-build", "build", Some("`kernel-build` in its build dependencies"));
}

#[test]
fn layers_know_nothing_of_those_who_train_them() {
    check("kasmina", "esper-layers", "normal", None);
    check("tamiyo", "esper-layers", "normal", Some("`tamiyo` must not name `esper-layers`"));
    check("esper-layers", "leyline", "normal", Some("`esper-layers` must not name `leyline`"));
    check("esper-layers", "esper-graph", "normal", None);
    check("kasmina", "cudarc", "normal", Some("only graphs, layers and the trainer talk to the driver"));
}

#[test]
fn graphs_know_nothing_of_what_is_recorded() {
    for krate in ["esper-layers", "tolaria", "kasmina"] {
        check("esper-graph", krate, "normal", Some(&format!("`esper-graph` must not name `{krate}`")));
        check("esper-graph", krate, "dev", Some(&format!("`esper-graph` must not name `{krate}`")));
    }
    check("tolaria", "esper-graph", "normal", None);
}

#[test]
fn weights_know_nothing_of_the_seeds_that_take_them() {
    check("kasmina", "esper-weights", "normal", None);
    check("esper-weights", "kasmina", "dev", Some("`esper-weights` must not name `kasmina`"));
    check("tolaria", "esper-weights", "normal", Some("`tolaria` must not name `esper-weights`"));
}

#[test]
fn what_keeps_a_run_going_knows_nothing_of_what_it_watches() {
    check("tolaria", "esper-safety", "normal", None);
    check("esper-weights", "esper-safety", "normal", None);
    check("esper-safety", "tolaria", "dev", Some("`esper-safety` must not name `tolaria`"));
    check("tamiyo", "esper-safety", "normal", Some("`tamiyo` must not name `esper-safety`"));
}

#[test]
fn data_know_nothing_of_what_learns_from_them() {
    check("esper", "esper-data", "normal", None);
    check("esper-data", "tolaria", "dev", Some("`esper-data` must not name `tolaria`"));
    check("tolaria", "esper-data", "normal", Some("`tolaria` must not name `esper-data`"));
}

#[test]
fn contracts_stay_free_of_behavior() {
    check("leyline", "serde", "normal", None);
    check("leyline", "serde_json", "dev", None);
    check("leyline", "candle-nn", "normal", Some("`leyline` must not name `candle-nn`"));
}

#[test]
fn reserved_crates_are_kept_to_their_owners() {
    check("esper", "anyhow", "normal", None);
    check("tamiyo", "anyhow", "dev", Some("errors between crates have kinds"));
    check("tolaria", "bincode", "normal", Some("the codec must stay replaceable"));
}

#[test]
fn a_crate_that_the_table_does_not_know_is_named() {
    let found = violations(&["stranger".to_owned()], &[]);
    assert_eq!(found, ["`stranger` is not in the table of integration-tests/tests/dependency_direction.rs"]);
}

/// What is wrong, one line each.
fn violations(crates: &[String], edges: &[Edge]) -> Vec<String> {
    let row = |name: &str| ALLOWED.iter().find(|allowed| allowed.krate == name);
    let mut found: Vec<String> = crates
        .iter()
        .filter(|name| row(name).is_none())
        .map(|name| format!("`{name}` is not in the table of integration-tests/tests/dependency_direction.rs"))
        .collect();
    for Edge { from, to, section } in edges {
        if row(to).is_some() {
            let permitted = row(from).is_none_or(|allowed| {
                let named = |list: &[&str]| list.contains(&to.as_str());
                match section.as_str() {
                    "build" => named(allowed.build),
                    "dev" => named(allowed.normal) || named(allowed.dev),
                    _ => named(allowed.normal),
                }
            });
            if !permitted {
                found.push(format!("`{from}` must not name `{to}` in its {section} dependencies"));
            }
        } else if from == "leyline" && section != "dev" && !CONTRACT_DEPENDENCIES.contains(&to.as_str()) {
            found.push(format!("`leyline` must not name `{to}`: contracts may use {CONTRACT_DEPENDENCIES:?} only"));
        }
        for (reserved, owners, reason) in RESERVED {
            if to == reserved && !owners.contains(&from.as_str()) {
                found.push(format!("`{from}` must not name `{to}`, only {owners:?} may: {reason}"));
            }
        }
    }
    found
}

fn metadata() -> Value {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline", "--manifest-path", manifest])
        .output()
        .expect("cargo can be started");
    assert!(output.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

fn crates(metadata: &Value) -> Vec<String> {
    packages(metadata).map(|package| text(&package["name"])).collect()
}

fn edges(metadata: &Value) -> Vec<Edge> {
    let of_package = |package: &Value| {
        let from = text(&package["name"]);
        let dependencies = package["dependencies"].as_array().cloned().unwrap_or_default();
        dependencies.into_iter().map(move |dependency| Edge {
            from: from.clone(),
            to: text(&dependency["name"]),
            section: dependency["kind"].as_str().unwrap_or("normal").to_owned(),
        })
    };
    packages(metadata).flat_map(of_package).collect()
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().expect("cargo metadata lists packages").iter()
}

fn text(value: &Value) -> String {
    value.as_str().expect("names are texts").to_owned()
}

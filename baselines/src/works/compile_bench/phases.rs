//! What the compiler reports, as samples.

use esper_graph::CompileReport;

use crate::samples::{Samples, ms};

/// What became of the graph.
pub(super) fn push(samples: &mut Samples, case: &str, report: &CompileReport) {
    let mut count = |what: String, value: usize| samples.push(format!("{case}.{what}"), "count", value as f64);
    count("nodes.before".to_owned(), report.nodes_before);
    count("nodes.after".to_owned(), report.nodes_after);
    count("critical_path".to_owned(), report.critical_path);
    count("dependencies".to_owned(), report.num_dependencies);
    count("dependencies.early".to_owned(), report.num_early);
    count("kernels".to_owned(), report.kernels.values().sum());
    count("kernels.unknown".to_owned(), report.unknown_kernels.values().sum());
    count("kernels.generated".to_owned(), report.num_generated);
    for pass in &report.passes {
        let name = pass.pass.name();
        count(format!("pass.{name}.rewrites"), pass.num_rewrites);
        count(format!("pass.{name}.nodes"), pass.nodes.after);
        count(format!("pass.{name}.critical_path"), pass.critical_path.after);
    }
    samples.push(format!("{case}.arena"), "bytes", report.arena_bytes as f64);
}

/// What it took.
pub(super) fn push_times(samples: &mut Samples, name: &str, report: &CompileReport) {
    let times = &report.times;
    for (phase, time) in [
        ("total", times.total()),
        ("lift", times.lift),
        ("passes", times.passes),
        ("kernels", times.kernels),
        ("instantiate", times.instantiate),
        ("verify", times.verify),
    ] {
        samples.push(format!("{name}.{phase}"), "ms", ms(time));
    }
    for pass in &report.passes {
        samples.push(format!("{name}.passes.{}", pass.pass.name()), "ms", ms(pass.time));
    }
    samples.push(format!("{name}.cached"), "count", report.num_cached as f64);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use esper_graph::CompileTimes;

    use super::*;

    #[test]
    fn a_report_becomes_samples_by_name() {
        let report = CompileReport {
            nodes_before: 90,
            nodes_after: 30,
            critical_path: 12,
            num_dependencies: 31,
            num_early: 17,
            kernels: BTreeMap::from([("a".to_owned(), 20), ("b".to_owned(), 9)]),
            num_cached: 4,
            times: CompileTimes {
                lift: Duration::from_millis(3),
                kernels: Duration::from_millis(40),
                ..CompileTimes::default()
            },
            ..CompileReport::default()
        };
        let mut samples = Samples::default();
        push(&mut samples, "mlp.f32.layers", &report);
        push_times(&mut samples, "mlp.f32.layers.compile.cold", &report);
        let expected = [
            ("nodes.before", 90.0),
            ("nodes.after", 30.0),
            ("critical_path", 12.0),
            ("dependencies", 31.0),
            ("dependencies.early", 17.0),
            ("kernels", 29.0),
            ("compile.cold.total", 43.0),
            ("compile.cold.lift", 3.0),
            ("compile.cold.cached", 4.0),
        ];
        for (name, value) in expected {
            let found = samples.median(&format!("mlp.f32.layers.{name}")).unwrap();
            assert!((found - value).abs() < 1e-9, "{name}: {found}");
        }
    }
}

//! A report of the compiler for people.

use std::fmt;
use std::time::Duration;

use super::compile::{Change, PassReport};
use super::compile_report::CompileReport;

/// Kernels that are listed by name; the rest is summed up.
const KERNELS_LISTED: usize = 12;

impl fmt::Display for CompileReport {
    /// Nodes and chain before and after, in total and per pass; kernels, most launches first; times by phase.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes_before, nodes_after, critical_path, .. } = self;
        writeln!(
            f,
            "nodes {nodes_before} → {nodes_after}, longest chain {critical_path}, arena {} bytes",
            self.arena_bytes
        )?;
        writeln!(f, "{} of {} dependencies let kernels start early", self.num_early, self.num_dependencies)?;
        writeln!(f, "addresses that moved between the recordings: {}", self.num_moved_addresses)?;
        if !self.passes.is_empty() {
            writeln!(
                f,
                "{:<18} {:>8} {:>8} {:>15} {:>15} {:>15}",
                "pass", "ms", "rewrites", "nodes", "dependencies", "longest chain"
            )?;
        }
        self.passes.iter().try_for_each(|pass| write_pass(f, pass))?;
        let launches: usize = self.kernels.values().sum();
        writeln!(
            f,
            "launches {launches}, generated kernels {} ({} from the cache)",
            self.num_generated, self.num_cached
        )?;
        write_kernels(f, &self.kernels)?;
        if !self.unknown_kernels.is_empty() {
            writeln!(
                f,
                "launches of kernels of which nothing is known {}",
                self.unknown_kernels.values().sum::<usize>()
            )?;
            write_kernels(f, &self.unknown_kernels)?;
        }
        let times = &self.times;
        write!(
            f,
            "time {:.1} ms: lift {:.1}, passes {:.1}, kernels {:.1}, instantiate {:.1}, verify {:.1}",
            ms(times.total()),
            ms(times.lift),
            ms(times.passes),
            ms(times.kernels),
            ms(times.instantiate),
            ms(times.verify),
        )
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn write_pass(f: &mut fmt::Formatter<'_>, report: &PassReport) -> fmt::Result {
    let change = |Change { before, after }: Change| format!("{before} → {after}");
    let (nodes, dependencies) = (change(report.nodes), change(report.dependencies));
    let (name, chain) = (report.pass.name(), change(report.critical_path));
    let (time, rewrites) = (ms(report.time), report.num_rewrites);
    writeln!(f, "{name:<18} {time:>8.2} {rewrites:>8} {nodes:>15} {dependencies:>15} {chain:>15}")
}

/// Most launches first, names in order among equals.
fn write_kernels(f: &mut fmt::Formatter<'_>, kernels: &std::collections::BTreeMap<String, usize>) -> fmt::Result {
    let mut by_launches: Vec<(&String, usize)> = kernels.iter().map(|(name, launches)| (name, *launches)).collect();
    by_launches.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    let (listed, rest) = by_launches.split_at(by_launches.len().min(KERNELS_LISTED));
    listed.iter().try_for_each(|(name, launches)| writeln!(f, "{launches:>6} {name}"))?;
    if rest.is_empty() {
        return Ok(());
    }
    let launches: usize = rest.iter().map(|(_, launches)| launches).sum();
    writeln!(f, "{launches:>6} of {} others", rest.len())
}

#[cfg(test)]
mod tests {
    use super::super::compile::{PassSet, compile};
    use super::super::compile_report::CompileTimes;
    use super::*;

    /// Of two fills of one block, the first of which nobody reads.
    fn passes() -> Vec<PassReport> {
        let program = "blocks x0=8\n%0 zero x0[0..8]\n%1 zero x0[0..8]".parse().unwrap();
        compile(&program, &PassSet::exact()).unwrap().reports
    }

    #[test]
    fn a_report_says_what_each_pass_did_and_which_kernels_run() {
        let kernels = [("sgd", 2), ("add", 7), ("copy", 2)].map(|(name, count)| (name.to_owned(), count));
        let report = CompileReport {
            passes: passes(),
            nodes_before: 2,
            nodes_after: 1,
            critical_path: 1,
            kernels: kernels.into(),
            unknown_kernels: [("mystery".to_owned(), 1)].into(),
            num_dependencies: 9,
            num_early: 5,
            num_generated: 4,
            num_cached: 3,
            times: CompileTimes { lift: Duration::from_micros(1500), ..CompileTimes::default() },
            ..CompileReport::default()
        };
        let text = report.to_string();
        assert!(text.starts_with("nodes 2 → 1, longest chain 1"), "{text}");
        for pass in &report.passes {
            let line = text.lines().find(|line| line.starts_with(pass.pass.name())).unwrap();
            assert!(line.contains(&format!("{} → {}", pass.nodes.before, pass.nodes.after)), "{line}");
            assert!(line.contains(&format!("{:.2} {:>8} ", ms(pass.time), pass.num_rewrites)), "{line}");
        }
        assert!(text.contains("5 of 9 dependencies let kernels start early"), "{text}");
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} is not in {text}"));
        assert!(at("7 add") < at("2 copy") && at("2 copy") < at("2 sgd"), "{text}");
        assert!(at("launches 11, generated kernels 4 (3 from the cache)") < at("1 mystery"), "{text}");
        assert!(
            text.ends_with("time 1.5 ms: lift 1.5, passes 0.0, kernels 0.0, instantiate 0.0, verify 0.0"),
            "{text}"
        );
    }

    #[test]
    fn many_kernels_are_summed_up_and_none_is_lost() {
        let kernels = (0..20).map(|index| (format!("k{index:02}"), index + 1)).collect();
        let text = CompileReport { kernels, ..CompileReport::default() }.to_string();
        assert!(text.contains("launches 210"), "{text}");
        assert!(text.contains("20 k19") && text.contains("9 k08") && !text.contains("k07"), "{text}");
        assert!(text.contains("36 of 8 others"), "{text}");
    }
}

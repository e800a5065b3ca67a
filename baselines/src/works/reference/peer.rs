//! The perceptron's steps in PyTorch on the same threads.

use std::collections::BTreeMap;
use std::path::Path;

use leyline::clock::Clock;

use crate::error::Error;
use crate::measure::Measurement;
use crate::result::BenchResult;
use crate::torch::{Quantities, run_script};

const SCRIPT: &str = concat!(include_str!("../../../torch/report.py"), include_str!("../../../torch/cpu.py"));

/// `torch.mlp.eager` and `.compile`, and `ratio.mlp`, the step of `ours` over the faster of them where both were measured.
pub(super) fn add(ours: &mut BenchResult, python: &Path, clock: &dyn Clock) -> Result<(), Error> {
    let threads = candle_core::utils::get_num_threads();
    let report: Quantities = run_script(SCRIPT, python, &[format!("--threads={threads}")])?;
    let peer = report.into_result("", "", clock);
    ours.config.extend(peer.config.into_iter().map(|(key, value)| (format!("peer.{key}"), value)));
    ours.config.insert("threads".to_owned(), threads.to_string());
    ours.measurements.extend(peer.measurements);
    let ratio = ratio(&ours.measurements);
    ours.measurements.extend(ratio.map(|ratio| ("ratio.mlp".to_owned(), ratio)));
    Ok(())
}

fn ratio(measurements: &BTreeMap<String, Measurement>) -> Option<Measurement> {
    let median = |name: &str| Some(measurements.get(name)?.median);
    let peer = median("torch.mlp.eager")?.min(median("torch.mlp.compile")?);
    Measurement::of("ratio", vec![median("mlp.step")? / peer])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_to_the_faster_mode_and_absent_without_one_of_them() {
        let of = |ms: f64| Measurement::of("ms", vec![ms]).unwrap();
        let pairs = [("mlp.step", 3.0), ("torch.mlp.eager", 4.0), ("torch.mlp.compile", 2.0)];
        let mut measurements: BTreeMap<_, _> = pairs.map(|(name, ms)| (name.to_owned(), of(ms))).into();
        assert!((ratio(&measurements).unwrap().median - 1.5).abs() < 1e-12);
        measurements.remove("torch.mlp.compile");
        assert_eq!(ratio(&measurements), None);
    }
}

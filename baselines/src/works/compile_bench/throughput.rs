//! Tokens per second, and the share of the device's peak that they take, of language models here and in the peers.

use std::collections::BTreeMap;

use super::ratios::MODES;
use crate::measure::Measurement;
use crate::models::Tokens;

/// Dense products of `bf16` per second, by what the driver's name of a device contains: the data sheets of NVIDIA.
const PEAKS: [(&str, f64); 2] = [("H200", 989.4e12), ("H100 80GB HBM3", 989.4e12)];

/// `tokens_per_s.CASE` and, where the peak of the device is known, `utilization.CASE`, of repetitions that were not waited
/// for one by one, with products in `bf16`. Cases that were not measured are left out.
pub(super) fn of(
    works: &BTreeMap<&'static str, Tokens>,
    gpu: &str,
    measurements: &BTreeMap<String, Measurement>,
) -> BTreeMap<String, Measurement> {
    let peak = PEAKS.iter().find(|(name, _)| gpu.contains(name)).map(|(_, peak)| *peak);
    let mut found = BTreeMap::new();
    for (work, tokens) in works {
        let ours = ["eager", "graph", "compiled"].map(|way| {
            let case = format!("{work}.bf16.layers.{way}");
            (format!("{case}.pipelined"), case)
        });
        let peers = MODES.iter().flat_map(|(library, mode)| {
            ["autocast", "bf16"].map(|precision| {
                let case = format!("{library}.{work}.{precision}.{mode}");
                (format!("{case}.enqueued"), case)
            })
        });
        for (measured, case) in ours.into_iter().chain(peers) {
            let Some(step_us) = measurements.get(&measured).map(|step| step.median) else { continue };
            let per_second = tokens.per_step as f64 / (step_us * 1e-6);
            let share = peak.map(|peak| per_second * tokens.flops / peak);
            let values = [("tokens_per_s", "1/s", Some(per_second)), ("utilization", "ratio", share)];
            for (what, unit, value) in values {
                let value = value.and_then(|value| Measurement::of(unit, vec![value]));
                found.extend(value.map(|value| (format!("{what}.{case}"), value)));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_a_second_has_as_many_tokens_as_a_batch_and_a_share_of_a_known_peak_only() {
        let works = BTreeMap::from([("gpt2", Tokens { per_step: 8192, flops: 989.4e12 / 8192.0 / 2.0 })]);
        let seconds = |name: &str, seconds: f64| (name.to_owned(), Measurement::of("us", vec![seconds * 1e6]).unwrap());
        let measurements = BTreeMap::from([
            seconds("gpt2.bf16.layers.compiled.pipelined", 1.0),
            seconds("torch.gpt2.autocast.eager.enqueued", 2.0),
            seconds("torch.gpt2.autocast.eager", 3.0),
            seconds("torch.mlp.autocast.eager.enqueued", 1.0),
        ]);
        let on = |gpu: &str| -> Vec<(String, f64)> {
            of(&works, gpu, &measurements).into_iter().map(|(name, value)| (name, value.median)).collect()
        };
        let rates =
            [("tokens_per_s.gpt2.bf16.layers.compiled", 8192.0), ("tokens_per_s.torch.gpt2.autocast.eager", 4096.0)];
        let shares = [("utilization.gpt2.bf16.layers.compiled", 0.5), ("utilization.torch.gpt2.autocast.eager", 0.25)];
        let expected = |values: &[(&str, f64)]| -> Vec<(String, f64)> {
            values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
        };
        assert_eq!(on("NVIDIA A100"), expected(&rates));
        let found = on("NVIDIA H200");
        assert_eq!(found[..2], expected(&rates));
        for ((name, value), (expected_name, expected)) in found[2..].iter().zip(shares) {
            assert!(name == expected_name && (value - expected).abs() < 1e-12, "{name}: {value}");
        }
        assert_eq!(found.len(), 4);
    }
}

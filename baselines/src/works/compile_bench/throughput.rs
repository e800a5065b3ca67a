//! Tokens per second of language models here and in the peers, and with products of `bf16` the share of the device's peak that they take.

use std::collections::BTreeMap;

use super::ratios::MODES;
use crate::measure::Measurement;
use crate::models::Tokens;

/// Dense products of `bf16` per second, by what the driver's name of a device contains: the data sheets of NVIDIA.
const PEAKS: [(&str, f64); 2] = [("H200", 989.4e12), ("H100 80GB HBM3", 989.4e12)];

/// Precisions here and in the peers, and whether products are of `bf16`.
const PRECISIONS: [(&[&str], &[&str], bool); 2] = [
    (&["bf16", "bf16_pure", "bf16_stochastic"], &["autocast", "bf16"], true),
    (&["f32", "tf32"], &["f32", "tf32"], false),
];

/// `tokens_per_s.CASE` and, with products of `bf16` where the peak of the device is known, `utilization.CASE`, of repetitions that were
/// not waited for one by one. Cases that were not measured are left out.
pub(super) fn of(
    works: &BTreeMap<&'static str, Tokens>,
    gpu: &str,
    measurements: &BTreeMap<String, Measurement>,
) -> BTreeMap<String, Measurement> {
    let peak = PEAKS.iter().find(|(name, _)| gpu.contains(name)).map(|(_, peak)| *peak);
    let mut found = BTreeMap::new();
    for ((work, tokens), (ours, peers, is_bf16)) in
        works.iter().flat_map(|of_work| PRECISIONS.map(|precisions| (of_work, precisions)))
    {
        let ours = ours.iter().flat_map(|precision| {
            ["eager", "graph", "compiled"].map(|way| {
                let case = format!("{work}.{precision}.layers.{way}");
                (format!("{case}.pipelined"), case)
            })
        });
        let peers = MODES.iter().flat_map(|(library, mode)| {
            peers.iter().map(move |precision| {
                let case = format!("{library}.{work}.{precision}.{mode}");
                (format!("{case}.enqueued"), case)
            })
        });
        for (measured, case) in ours.chain(peers) {
            let Some(step_us) = measurements.get(&measured).map(|step| step.median) else { continue };
            let per_second = tokens.per_step as f64 / (step_us * 1e-6);
            let share = peak.filter(|_| is_bf16).map(|peak| per_second * tokens.flops / peak);
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
    fn a_step_of_a_second_has_as_many_tokens_as_a_batch_and_with_bf16_a_share_of_a_known_peak() {
        let works = BTreeMap::from([("gpt2", Tokens { per_step: 8192, flops: 989.4e12 / 8192.0 / 2.0 })]);
        let seconds = |name: &str, seconds: f64| (name.to_owned(), Measurement::of("us", vec![seconds * 1e6]).unwrap());
        let measurements = BTreeMap::from([
            seconds("gpt2.bf16.layers.compiled.pipelined", 1.0),
            seconds("torch.gpt2.autocast.eager.enqueued", 2.0),
            seconds("torch.gpt2.autocast.eager", 3.0),
            seconds("gpt2.f32.layers.graph.pipelined", 4.0),
            seconds("torch.mlp.autocast.eager.enqueued", 1.0),
        ]);
        let on = |gpu: &str| -> Vec<(String, f64)> {
            of(&works, gpu, &measurements).into_iter().map(|(name, value)| (name, value.median)).collect()
        };
        let rates = [
            ("tokens_per_s.gpt2.bf16.layers.compiled", 8192.0),
            ("tokens_per_s.gpt2.f32.layers.graph", 2048.0),
            ("tokens_per_s.torch.gpt2.autocast.eager", 4096.0),
        ];
        let shares = [("utilization.gpt2.bf16.layers.compiled", 0.5), ("utilization.torch.gpt2.autocast.eager", 0.25)];
        let expected = |values: &[(&str, f64)]| -> Vec<(String, f64)> {
            values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
        };
        assert_eq!(on("NVIDIA A100"), expected(&rates));
        let found = on("NVIDIA H200");
        assert_eq!(found[..3], expected(&rates));
        for ((name, value), (expected_name, expected)) in found[3..].iter().zip(shares) {
            assert!(name == expected_name && (value - expected).abs() < 1e-12, "{name}: {value}");
        }
        assert_eq!(found.len(), 5, "products of f32 have no such share");
    }
}

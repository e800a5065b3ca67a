//! Compiled steps over the step of the same work of the fastest of the peers that were asked for, from one run.

use std::collections::BTreeMap;

use crate::measure::Measurement;
use crate::models::{Form, Precision, Variant};

/// Steps of peers.
pub(super) const MODES: [(&str, &str); 5] =
    [("torch", "eager"), ("torch", "graph"), ("torch", "compile"), ("torch", "compile_graph"), ("jax", "jit")];

/// `ratio.WORK.PRECISION.FORM`, of medians, and with `.pipelined` of repetitions that were not waited for one by one.
///
/// A case has a ratio when all of the `asked` modes were measured: the fastest may be the one that is missing.
pub(super) fn of(
    cases: &[(&'static str, Precision)],
    asked: &[String],
    measurements: &BTreeMap<String, Measurement>,
) -> BTreeMap<String, Measurement> {
    let median = |name: &str| Some(measurements.get(name)?.median);
    let asked = |(_, mode): &&(&str, &str)| asked.iter().any(|asked| asked == mode);
    let mut ratios = BTreeMap::new();
    for &(work, precision) in cases {
        let of = match precision {
            Precision::F32 => String::new(),
            Precision::Tf32 => ".tf32".to_owned(),
            // Parameters in f32 on both sides.
            Precision::Bf16 => ".autocast".to_owned(),
            Precision::Bf16Pure | Precision::Bf16Stochastic => ".bf16".to_owned(),
        };
        let fastest = |of_all: &str| {
            let peers = MODES.iter().filter(asked);
            let peers: Option<Vec<f64>> =
                peers.map(|(library, mode)| median(&format!("{library}.{work}{of}.{mode}{of_all}"))).collect();
            peers?.into_iter().min_by(f64::total_cmp)
        };
        for form in Form::ALL {
            let case = format!("{work}.{}", Variant { form, precision });
            for (ours, theirs, name) in [("compiled", "", ""), ("compiled.pipelined", ".enqueued", ".pipelined")] {
                let ours = median(&format!("{case}.{ours}"));
                let ratio = ours.zip(fastest(theirs)).and_then(|(a, b)| Measurement::of("ratio", vec![a / b]));
                ratios.extend(ratio.map(|ratio| (format!("ratio.{case}{name}"), ratio)));
            }
        }
    }
    ratios
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_precision_is_divided_by_its_own_fastest_peer() {
        let measured = |pairs: &[(&str, f64)]| -> BTreeMap<String, Measurement> {
            let of = |&(name, value): &(&str, f64)| (name.to_owned(), Measurement::of("us", vec![value]).unwrap());
            pairs.iter().map(of).collect()
        };
        let measurements = measured(&[
            ("mlp.f32.primitive.compiled", 200.0),
            ("mlp.f32.layers.compiled", 100.0),
            ("mlp.f32.layers.compiled.pipelined", 90.0),
            ("mlp.tf32.layers.compiled", 30.0),
            ("mlp.bf16.layers.compiled", 20.0),
            ("torch.mlp.graph", 200.0),
            ("torch.mlp.graph.enqueued", 180.0),
            ("torch.mlp.tf32.graph", 60.0),
            ("torch.mlp.bf16.graph", 10.0),
            ("torch.mlp.autocast.graph", 80.0),
            ("torch.mlp.autocast.compile_graph", 160.0),
            ("jax.mlp.autocast.jit", 40.0),
        ]);
        let cases: Vec<_> = Precision::ALL.map(|precision| ("mlp", precision)).to_vec();
        let found = |asked: &[&str]| -> Vec<(String, String)> {
            let asked: Vec<String> = asked.iter().map(|&mode| mode.to_owned()).collect();
            of(&cases, &asked, &measurements).into_iter().map(|(name, of)| (name, of.median.to_string())).collect()
        };
        let expected = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        let of_graphs = [
            ("ratio.mlp.bf16.layers", "0.25"),
            ("ratio.mlp.f32.layers", "0.5"),
            ("ratio.mlp.f32.layers.pipelined", "0.5"),
            ("ratio.mlp.f32.primitive", "1"),
            ("ratio.mlp.tf32.layers", "0.5"),
        ];
        assert_eq!(found(&["graph"]), expected(&of_graphs));
        // The other precisions lack a mode that was asked for.
        let of_all = [("ratio.mlp.bf16.layers", "0.5")];
        assert_eq!(found(&["graph", "compile_graph", "jit"]), expected(&of_all));
    }
}

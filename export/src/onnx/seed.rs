//! Seeds: what each computes from the value of its slot, and how that is mixed with it.

use kasmina::graft::SeedSpec;
use leyline::command::{Blend, ConfidenceGate};

use super::builder::{Builder, Value, With, sizes};
use super::{Signal, Window};
use crate::error::Error;

/// The blueprints of this version.
const ACCEPTED: &str = "attention, conv, depthwise, low_rank, mlp, noise, norm, norm_mlp or widen";
/// Of seeds that look at neighbors.
const WINDOW: Window = Window { kernel: 3, stride: 1 };

/// The value `h` of the slot behind a seed, which sees `x`: h itself, but around a layer.
pub(super) fn lower(graph: &mut Builder<'_>, spec: &SeedSpec, h: &Signal, x: &Signal) -> Result<Signal, Error> {
    let name = format!("seed.{:04}", spec.id.0);
    let delta = if spec.blueprint.as_str() == "noise" {
        let constant = graph.weight_as(&format!("{name}.constant"), &[h.channels], None)?;
        let zeros = graph.node("Sub", &[&h.value, &h.value], &[]);
        graph.node("Add", &[&zeros, &constant], &[])
    } else {
        delta(graph, spec, &name, x)?
    };
    Ok(h.with(blend(graph, spec, &name, h, &delta)?))
}

fn delta(graph: &mut Builder<'_>, spec: &SeedSpec, name: &str, h: &Signal) -> Result<Value, Error> {
    let of = |part: &str| format!("{name}.{part}");
    Ok(match spec.blueprint.as_str() {
        "mlp" => bottleneck(graph, &h.value, name)?,
        "norm_mlp" => {
            let x = normalized(graph, h);
            bottleneck(graph, &x, name)?
        }
        "low_rank" => {
            let (down, up) = (graph.weight(&of("down.weight"))?, graph.weight(&of("up.weight"))?);
            let x = graph.node("MatMul", &[&h.value, &down], &[]);
            graph.node("MatMul", &[&x, &up], &[])
        }
        "norm" => {
            let (scale, shift) = (graph.weight(&of("scale"))?, graph.weight(&of("shift"))?);
            graph.normalize(&h.value, &scale, Some(&shift))
        }
        "conv" => {
            let x = graph.convolution(h, &of("down"), WINDOW, h.channels)?;
            let x = x.with(graph.node("Relu", &[&x.value], &[]));
            graph.convolution(&x, &of("up"), WINDOW, x.channels)?.value
        }
        "depthwise" => {
            let x = graph.convolution(h, &of("depth"), WINDOW, 1)?;
            let x = graph.node("Relu", &[&x.value], &[]);
            graph.linear(&x, &of("point"))?
        }
        "attention" => {
            let x = h.with(normalized(graph, h));
            let num_heads = [4, 2, 1].into_iter().find(|&heads| spec.width.is_multiple_of(heads)).unwrap_or(1);
            graph.attention(&x, name, num_heads)?
        }
        "widen" => {
            let x = graph.linear(&h.value, &of("down"))?;
            let x = graph.node("Relu", &[&x], &[]);
            let up = graph.weight(&of("up.weight"))?;
            graph.node("MatMul", &[&x, &up], &[])
        }
        other => {
            let (field, found) = (format!("network.seeds.{}.blueprint", spec.id), format!("`{other}`"));
            return Err(Error::Onnx { field, found, expected: ACCEPTED.to_owned() });
        }
    })
}

fn bottleneck(graph: &mut Builder<'_>, x: &str, name: &str) -> Result<Value, Error> {
    let x = graph.linear(x, &format!("{name}.down"))?;
    let x = graph.node("Relu", &[&x], &[]);
    graph.linear(&x, &format!("{name}.up"))
}

fn normalized(graph: &mut Builder<'_>, h: &Signal) -> Value {
    let ones = graph.constants(&vec![1.0; h.channels], &[h.channels]);
    graph.normalize(&h.value, &ones, None)
}

fn blend(graph: &mut Builder<'_>, spec: &SeedSpec, name: &str, h: &Signal, f: &str) -> Result<Value, Error> {
    let alpha = graph.constant(spec.alpha.get());
    Ok(match &spec.blend {
        Blend::Residual => added(graph, &h.value, &alpha, f),
        Blend::Convex => mixed(graph, &h.value, &alpha, f),
        Blend::Channel(weights) => {
            let weights = graph.constants(weights.get(), &[h.channels]);
            let share = graph.node("Mul", &[&alpha, &weights], &[]);
            mixed(graph, &h.value, &share, f)
        }
        Blend::Confidence(gate) => {
            let sure = confidence(graph, *gate, &h.with(f.to_owned()));
            let share = graph.node("Mul", &[&alpha, &sure], &[]);
            mixed(graph, &h.value, &share, f)
        }
        Blend::Multiply => {
            let tanh = graph.node("Tanh", &[f], &[]);
            let scaled = graph.node("Mul", &[&h.value, &tanh], &[]);
            added(graph, &h.value, &alpha, &scaled)
        }
        Blend::Gate => {
            let mean = graph.mean_over_positions(h);
            let x = bottleneck(graph, &mean, &format!("{name}.gate"))?;
            let gate = graph.node("Sigmoid", &[&x], &[]);
            let gate = of_each_sample(graph, &gate, h);
            let share = graph.node("Mul", &[&alpha, &gate], &[]);
            added(graph, &h.value, &share, f)
        }
    })
}

/// h + share·f.
fn added(graph: &mut Builder<'_>, h: &str, share: &str, f: &str) -> Value {
    let part = graph.node("Mul", &[share, f], &[]);
    graph.node("Add", &[h, &part], &[])
}

/// (1 − share)·h + share·f.
fn mixed(graph: &mut Builder<'_>, h: &str, share: &str, f: &str) -> Value {
    let one = graph.constant(1.0);
    let rest = graph.node("Sub", &[&one, share], &[]);
    let rest = graph.node("Mul", &[&rest, h], &[]);
    added(graph, &rest, share, f)
}

/// How sure a seed is of each sample, in the rank of its outputs.
fn confidence(graph: &mut Builder<'_>, gate: ConfidenceGate, f: &Signal) -> Value {
    let scores = graph.mean_over_positions(f);
    let shares = graph.node("Softmax", &[&scores], &[With::Int("axis", -1)]);
    let two = graph.whole(&[2]);
    let largest = graph.nodes("TopK", &[&shares, &two], &[With::Int("axis", -1)], 2);
    let each = graph.whole(&[1, 1]);
    let largest = graph.nodes("Split", &[&largest[0], &each], &[With::Int("axis", -1)], 2);
    let margin = graph.node("Sub", &[&largest[0], &largest[1]], &[]);
    let (threshold, steepness) = (graph.constant(gate.threshold()), graph.constant(gate.steepness()));
    let above = graph.node("Sub", &[&margin, &threshold], &[]);
    let above = graph.node("Mul", &[&above, &steepness], &[]);
    let sure = graph.node("Sigmoid", &[&above], &[]);
    let (low, high) = (graph.constant(gate.low()), graph.constant(gate.high()));
    let sure = graph.node("Clip", &[&sure, &low, &high], &[]);
    of_each_sample(graph, &sure, f)
}

/// (samples, 1) in the rank of `h`.
fn of_each_sample(graph: &mut Builder<'_>, x: &str, h: &Signal) -> Value {
    if h.positions.is_empty() {
        return x.to_owned();
    }
    let axes: Vec<i64> = (1..=sizes(&[h.positions.len()])[0]).collect();
    let axes = graph.whole(&axes);
    graph.node("Unsqueeze", &[x, &axes], &[])
}

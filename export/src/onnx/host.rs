//! Hosts: from slot to slot, each with the seeds that act there.

use kasmina::graft::NetworkSpec;
use kasmina::host::{HostConfig, Pool};

use super::builder::{Builder, Value, With};
use super::{Signal, Window, seed};
use crate::error::Error;

/// A network from its inputs to its logits.
pub(super) fn lower(graph: &mut Builder<'_>, network: &NetworkSpec) -> Result<Value, Error> {
    let inputs = "inputs".to_owned();
    let vector = |value, channels| Signal { value, positions: Vec::new(), channels };
    match network.host {
        HostConfig::Mlp { inputs: channels, ref hidden, .. } => {
            let mut h = at(graph, network, "input", vector(inputs, channels))?;
            for (index, &width) in hidden.iter().enumerate() {
                let value = graph.linear(&h.value, &format!("host.layer{index}"))?;
                let value = graph.node("Relu", &[&value], &[]);
                h = at(graph, network, &format!("hidden{index}"), vector(value, width))?;
            }
            graph.linear(&h.value, "host.head")
        }
        HostConfig::Cnn1d { length, ref channels, kernel, stride, pool, .. } => {
            let value = graph.reshape(&inputs, &[length, 1]);
            let h = Signal { value, positions: vec![length], channels: 1 };
            convolutions(graph, network, h, channels, Window { kernel, stride }, pool)
        }
        HostConfig::Cnn2d { height, width, input_channels, ref channels, kernel, stride, pool, .. } => {
            let value = graph.reshape(&inputs, &[input_channels, height, width]);
            let value = graph.node("Transpose", &[&value], &[With::Ints("perm", &[0, 2, 3, 1])]);
            let h = Signal { value, positions: vec![height, width], channels: input_channels };
            convolutions(graph, network, h, channels, Window { kernel, stride }, pool)
        }
        HostConfig::Transformer { inputs: features, patch, width, heads, layers, .. } => {
            let h = at(graph, network, "input", vector(inputs, features))?;
            let length = features / patch;
            let tokens = graph.reshape(&h.value, &[length, patch]);
            let tokens = graph.linear(&tokens, "host.embedding")?;
            let positions = graph.weight("host.embedding.positions")?;
            let value = graph.node("Add", &[&tokens, &positions], &[]);
            let mut h = Signal { value, positions: vec![length], channels: width };
            h = at(graph, network, "embedded", h)?;
            for index in 0..layers {
                h = encoder_block(graph, h, &format!("host.block{index}"), heads)?;
                h = at(graph, network, &format!("block{index}"), h)?;
            }
            let value = norm(graph, &h.value, "host.pool.norm")?;
            let mean = graph.mean_over_positions(&h.with(value));
            graph.linear(&mean, "host.head")
        }
    }
}

/// The value of a slot behind its seeds.
fn at(graph: &mut Builder<'_>, network: &NetworkSpec, slot: &str, mut h: Signal) -> Result<Signal, Error> {
    for spec in network.seeds.iter().filter(|spec| spec.slot.as_str() == slot) {
        h = seed::lower(graph, spec, &h)?;
    }
    Ok(h)
}

fn convolutions(
    graph: &mut Builder<'_>,
    network: &NetworkSpec,
    h: Signal,
    channels: &[usize],
    window: Window,
    pool: Pool,
) -> Result<Value, Error> {
    let mut h = at(graph, network, "input", h)?;
    for index in 0..channels.len() {
        let seen = graph.convolution(&h, &format!("host.block{index}"), window, h.channels)?;
        let value = graph.node("Relu", &[&seen.value], &[]);
        h = at(graph, network, &format!("block{index}"), seen.with(value))?;
    }
    let pooled = match pool {
        Pool::Mean => graph.mean_over_positions(&h),
        Pool::Flatten => {
            let first = graph.channels_first(&h);
            graph.reshape(&first, &[h.channels * h.positions.iter().product::<usize>()])
        }
    };
    graph.linear(&pooled, "host.head")
}

fn encoder_block(graph: &mut Builder<'_>, h: Signal, name: &str, num_heads: usize) -> Result<Signal, Error> {
    let value = norm(graph, &h.value, &format!("{name}.attention.norm"))?;
    let seen = graph.attention(&h.with(value), &format!("{name}.attention"), num_heads)?;
    let h = h.with(graph.node("Add", &[&h.value, &seen], &[]));
    let x = norm(graph, &h.value, &format!("{name}.mlp.norm"))?;
    let x = graph.linear(&x, &format!("{name}.mlp.up"))?;
    let x = gelu(graph, &x);
    let x = graph.linear(&x, &format!("{name}.mlp.down"))?;
    Ok(h.with(graph.node("Add", &[&h.value, &x], &[])))
}

fn norm(graph: &mut Builder<'_>, x: &str, name: &str) -> Result<Value, Error> {
    let (scale, shift) = (graph.weight(&format!("{name}.scale"))?, graph.weight(&format!("{name}.shift"))?);
    Ok(graph.normalize(x, &scale, Some(&shift)))
}

/// ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))).
fn gelu(graph: &mut Builder<'_>, x: &str) -> Value {
    let (half, one, cubic) = (graph.constant(0.5), graph.constant(1.0), graph.constant(0.044_715));
    let root = graph.constant((2.0 / std::f64::consts::PI).sqrt());
    let square = graph.node("Mul", &[x, x], &[]);
    let cube = graph.node("Mul", &[&square, x], &[]);
    let cube = graph.node("Mul", &[&cube, &cubic], &[]);
    let sum = graph.node("Add", &[x, &cube], &[]);
    let sum = graph.node("Mul", &[&sum, &root], &[]);
    let tanh = graph.node("Tanh", &[&sum], &[]);
    let share = graph.node("Add", &[&tanh, &one], &[]);
    let share = graph.node("Mul", &[&share, &half], &[]);
    graph.node("Mul", &[x, &share], &[])
}

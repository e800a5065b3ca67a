//! Hosts: from slot to slot, each with the seeds that act there.

use kasmina::graft::NetworkSpec;
use kasmina::host::{HostConfig, Pool};

use super::builder::{Builder, Value, With};
use super::{INPUTS, Signal, Window, seed};
use crate::error::Error;

/// The hosts of this version; another one is refused until it is written here.
const ACCEPTED: &str = "mlp, cnn1d, cnn2d or transformer";

/// A network from its inputs to its logits.
pub(super) fn lower(graph: &mut Builder<'_>, network: &NetworkSpec) -> Result<Value, Error> {
    if let HostConfig::Mlp { inputs, hidden, .. } = &network.host {
        let mut h = at(graph, network, "input", inputs_of(*inputs))?;
        let mut before = None;
        for (index, &channels) in hidden.iter().enumerate() {
            let seen = h.clone();
            h = around(graph, network, before, (&h, &format!("host.layer{index}"), channels))?;
            h = h.with(graph.node("Relu", &[&h.value], &[]));
            h = at(graph, network, &format!("hidden{index}"), h)?;
            before = Some((index, seen));
        }
        return Ok(around(graph, network, before, (&h, "host.head", network.host.num_outputs()))?.value);
    }
    if let HostConfig::Cnn1d { length, channels, kernel, stride, pool, .. } = &network.host {
        let value = graph.reshape(INPUTS, &[*length, 1]);
        let h = Signal { value, positions: vec![*length], channels: 1 };
        return convolutions(graph, network, h, channels, Window { kernel: *kernel, stride: *stride }, *pool);
    }
    if let HostConfig::Cnn2d { height, width, input_channels, channels, kernel, stride, pool, .. } = &network.host {
        let value = graph.reshape(INPUTS, &[*input_channels, *height, *width]);
        let value = graph.node("Transpose", &[&value], &[With::Ints("perm", &[0, 2, 3, 1])]);
        let h = Signal { value, positions: vec![*height, *width], channels: *input_channels };
        return convolutions(graph, network, h, channels, Window { kernel: *kernel, stride: *stride }, *pool);
    }
    if let HostConfig::Transformer { inputs, patch, width, heads, layers, .. } = network.host {
        let h = at(graph, network, "input", inputs_of(inputs))?;
        let length = inputs / patch;
        let tokens = graph.reshape(&h.value, &[length, patch]);
        let tokens = graph.linear(&tokens, "host.embedding")?;
        let positions = graph.weight("host.embedding.positions")?;
        let value = graph.node("Add", &[&tokens, &positions], &[]);
        let mut h = at(graph, network, "embedded", Signal { value, positions: vec![length], channels: width })?;
        for index in 0..layers {
            h = encoder_block(graph, h, &format!("host.block{index}"), heads)?;
            h = at(graph, network, &format!("block{index}"), h)?;
        }
        let value = norm(graph, &h.value, "host.pool.norm")?;
        let mean = graph.mean_over_positions(&h.with(value));
        return graph.linear(&mean, "host.head");
    }
    let found = format!("`{}`", network.host.kind());
    Err(Error::Onnx { field: "network.host".to_owned(), found, expected: ACCEPTED.to_owned() })
}

/// The samples as vectors.
fn inputs_of(channels: usize) -> Signal {
    Signal { value: INPUTS.to_owned(), positions: Vec::new(), channels }
}

/// The value of a slot behind its seeds.
fn at(graph: &mut Builder<'_>, network: &NetworkSpec, slot: &str, mut h: Signal) -> Result<Signal, Error> {
    for spec in network.seeds.iter().filter(|spec| spec.slot.as_str() == slot) {
        h = seed::lower(graph, spec, &h, &h)?;
    }
    Ok(h)
}

/// A linear layer, and the seeds around the layer before, which has a number and sees a value.
fn around(
    graph: &mut Builder<'_>,
    network: &NetworkSpec,
    before: Option<(usize, Signal)>,
    (x, layer, channels): (&Signal, &str, usize),
) -> Result<Signal, Error> {
    let mut h = Signal { value: graph.linear(&x.value, layer)?, positions: Vec::new(), channels };
    let Some((index, seen)) = before else { return Ok(h) };
    let slot = format!("around{index}");
    for spec in network.seeds.iter().filter(|spec| spec.slot.as_str() == slot) {
        h = seed::lower(graph, spec, &h, &seen)?;
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

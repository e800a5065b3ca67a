//! What the host does for a step that is replayed: the key, the look-up, and all of a call.

use std::hint::black_box;
use std::num::NonZeroUsize;

use candle_core::{Device, Tensor};
use esper_graph::{CaptureCost, ExecutionMode, GraphCache, GraphFunction, GraphKey, GraphManager};
use leyline::region::Eager;

use super::batch::Batch;
use super::execution::Mode;
use super::lab::{Lab, cell};
use super::network::Network;

/// Times that are taken, and calls in each of them where one is too short to be timed.
const TIMES: usize = 50;
const CALLS: usize = 200;
/// Graphs that are kept beside the one that is looked up.
const KEPT: usize = 8;

fn key(batch: &Batch, device: &Device) -> GraphKey {
    batch.tensors.iter().fold(GraphKey::new(ExecutionMode::Train, device), GraphKey::input)
}

/// The section of a report.
pub(super) fn section(lab: &mut Lab, eager: &mut Eager) -> anyhow::Result<String> {
    let (network, batch) = (lab.network(None)?, lab.batches()?.remove(0));
    let keys = repeated(lab, || black_box(key(black_box(&batch), &lab.device)));
    let mut cache = GraphCache::<usize>::new(NonZeroUsize::new(KEPT).expect("8 is not 0"), &GraphManager::new());
    let of = |tag: usize| key(&batch, &lab.device).tag("kept", tag.to_string());
    for tag in 0..KEPT {
        cache.insert(of(tag), tag, CaptureCost { capture_ms: 0.0, instantiate_ms: 0.0, bytes: None });
    }
    let asked = of(KEPT / 2);
    let look_ups = repeated(lab, || black_box(cache.get(black_box(&asked)).copied()));
    let key = lab.keep("dispatch.key", "us", keys);
    let look_up = lab.keep("dispatch.look_up", "us", look_ups);
    let both = key.zip(look_up).map(|(key, look_up)| key + look_up);
    let (key, look_up, both) = (cell(key, 3), cell(look_up, 3), cell(both, 3));
    let mut text = format!("dispatch of a step, us: key {key}, look-up {look_up}, together {both}\n");
    if lab.session.is_none() {
        return Ok(text + &format!("  {}", lab.needs_gpu("a whole call")));
    }
    let calls = calls(lab, eager, &network, &batch)?;
    let call = lab.keep("dispatch.call", "us", calls);
    text += &format!("  a whole call, with {} inputs copied, {}\n", batch.tensors.len(), cell(call, 3));
    Ok(text)
}

/// Microseconds of a call, again and again.
fn repeated<R>(lab: &Lab, mut call: impl FnMut() -> R) -> Vec<f64> {
    let time = || {
        let began = lab.now();
        (0..CALLS).for_each(|_| drop(call()));
        (lab.now() - began).as_secs_f64() * 1e6 / CALLS as f64
    };
    std::iter::repeat_with(time).take(TIMES).collect()
}

/// Microseconds until a call of a function that is replayed returns, on an idle device.
fn calls(lab: &Lab, eager: &mut Eager, network: &Network, batch: &Batch) -> anyhow::Result<Vec<f64>> {
    let step = |inputs: &[Tensor]| Ok(vec![network.step(inputs, &mut || Ok(()))?]);
    let mut function = GraphFunction::new(step, Mode::Captured.config(1, None), &GraphManager::global());
    for _ in 0..3 {
        function.call_in_place(eager, &batch.inputs())?;
    }
    let mut times = Vec::new();
    for _ in 0..TIMES {
        lab.wait()?;
        let began = lab.now();
        function.call_in_place(eager, &batch.inputs())?;
        times.push((lab.now() - began).as_secs_f64() * 1e6);
    }
    lab.wait()?;
    Ok(times)
}

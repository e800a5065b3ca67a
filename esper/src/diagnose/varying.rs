//! Batches and sequences of sizes that jump: one graph for each size, and the bits of eager steps.

use std::collections::BTreeSet;

use candle_core::{Result, Tensor};
use esper_graph::{GraphFunction, GraphManager};
use leyline::region::Eager;

use super::batch::Batch;
use super::execution::Mode;
use super::lab::{Lab, fingerprint, loss_bits};

/// Steps of one size before the next: two of warm-up, the second of which is captured, and two replays.
const CALLS: u64 = 4;

/// Takes steps of these sizes, (samples, tokens), twice: captured, and by a network that starts alike eagerly.
pub(super) fn section(lab: &mut Lab, eager: &mut Eager, name: &str, shapes: &[[usize; 2]]) -> anyhow::Result<String> {
    let (network, twin) = (lab.network(None)?, lab.network(None)?);
    let num_shapes = shapes.iter().collect::<BTreeSet<_>>().len();
    let step = |inputs: &[Tensor]| -> Result<Vec<Tensor>> { Ok(vec![network.step(inputs, &mut || Ok(()))?]) };
    let mut function = GraphFunction::new(step, Mode::Captured.config(num_shapes, None), &GraphManager::global());
    // What is never captured needs no warm-up.
    let num_calls = if lab.session.is_some() { CALLS } else { 1 };
    let (mut num_steps, mut differing, mut seed) = (0, 0, 0);
    'all: for shape in shapes {
        for _ in 0..num_calls {
            if lab.is_over() {
                break 'all;
            }
            let batch = Batch::drawn(&lab.sizes, *shape, seed, &lab.device)?;
            seed += 1;
            let found = function.call(eager, &batch.inputs())?.remove(0);
            let expected = twin.step(&batch.tensors, &mut || Ok(()))?;
            differing += usize::from(loss_bits(&found)? != loss_bits(&expected)?);
            num_steps += 1;
        }
    }
    if fingerprint(&network)? != fingerprint(&twin)? {
        differing = differing.max(1);
    }
    let bits = lab.check(&format!("varying.{name}"), differing, num_steps, "losses or the parameters from eager steps");
    let sizes: Vec<String> = shapes.iter().map(|[samples, tokens]| format!("{samples}x{tokens}")).collect();
    let mut text = format!("varying {name} ({}): {num_steps} steps; {bits}\n", sizes.join(", "));
    lab.told.insert(format!("varying.{name}"), sizes.join(", "));
    if lab.session.is_none() {
        return Ok(text + &format!("  {}", lab.needs_gpu("number of captures")));
    }
    let stats = function.stats().total;
    let counts = [("captures", stats.captures), ("replays", stats.replays), ("evictions", stats.evictions)];
    for (what, count) in counts {
        lab.keep(format!("varying.{name}.{what}"), "graphs", vec![count as f64]);
    }
    let [captures, replays, evictions] = counts.map(|(_, count)| count);
    text += &format!(
        "  a graph for each size, nothing is filled up: {captures} captures of {num_shapes} sizes, {replays} replays, {evictions} evictions\n"
    );
    if let Some(refusal) = shapes.iter().find_map(|shape| {
        let batch = Batch::drawn(&lab.sizes, *shape, 0, &lab.device).ok()?;
        function.last_refusal(&batch.inputs()).cloned()
    }) {
        text += &format!("  a size runs eagerly: {refusal}; {}\n", refusal.remedy());
    }
    Ok(text)
}

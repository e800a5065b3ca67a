//! Each part of the network captured on its own: which of them cannot be, and what a capture costs, whole and by part.

use std::path::Path;

use anyhow::ensure;
use candle_core::{Result, Tensor};
use esper_graph::{GraphFunction, GraphManager, Refusal};
use leyline::region::Eager;

use super::execution::Mode;
use super::lab::{Lab, cell, loss_bits};
use super::network::Plant;

/// Calls that wait for a compiler, at most.
const MOST_CALLS: usize = 20_000;

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    /// What cannot be captured.
    pub(super) breaks: bool,
    /// What captures cost.
    pub(super) costs: bool,
}

/// A function that was called until it was captured, and compiled where that was asked for.
#[derive(Debug)]
struct Tried {
    result: Tensor,
    refusal: Option<Refusal>,
    /// Recorded, made executable; compiled, with its kernels (ms).
    capture_ms: Option<f64>,
    compile_ms: Option<f64>,
}

/// The section of a report.
pub(super) fn section(lab: &mut Lab, eager: &mut Eager, asked: Asked, plant: Option<Plant>) -> anyhow::Result<String> {
    let (network, batches) = (lab.network(plant)?, lab.batches()?);
    let batch = &batches[0].tensors;
    // Kernels are generated anew for the whole, and once for all parts.
    let (whole, shared) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let mut x = batch[0].clone();
    let mut parts = Vec::new();
    for part in network.parts() {
        let inputs: Vec<&Tensor> = std::iter::once(&x).chain(batch).collect();
        let run = |inputs: &[Tensor]| Ok(vec![network.run(part, &inputs[0], &inputs[1..])?]);
        let tried = tried(lab, eager, &inputs, asked.costs.then(|| shared.path()), run)?;
        x = tried.result.clone();
        parts.push((part.name(), tried));
    }
    let inputs: Vec<&Tensor> = batch.iter().collect();
    let forward = |inputs: &[Tensor]| Ok(vec![network.forward(inputs, &mut || Ok(()))?]);
    let forward = tried(lab, eager, &inputs, asked.costs.then(|| whole.path()), forward)?;
    let differing = usize::from(loss_bits(&x)? != loss_bits(&forward.result)?);
    let bits = lab.check("parts", differing, 1, "losses of parts captured one by one");
    let step = |inputs: &[Tensor]| Ok(vec![network.step(inputs, &mut || Ok(()))?]);
    let step = tried(lab, eager, &inputs, asked.costs.then(|| whole.path()), step)?;
    parts.extend([("forward".to_owned(), forward), ("step".to_owned(), step)]);
    let mut text = String::new();
    if asked.breaks {
        text += &breaks(lab, &parts);
    }
    if asked.costs {
        text += &costs(lab, &parts, &bits);
    }
    Ok(text)
}

fn breaks(lab: &mut Lab, parts: &[(String, Tried)]) -> String {
    if lab.session.is_none() {
        return lab.needs_gpu("graph check");
    }
    let refused: Vec<_> = parts.iter().filter_map(|(name, tried)| Some((name, tried.refusal.as_ref()?))).collect();
    lab.keep("graph_check.breaks", "parts", vec![refused.len() as f64]);
    let mut text = format!("graph check: {} of {} parts cannot be captured\n", refused.len(), parts.len());
    for (name, refusal) in refused {
        let (word, stage, remedy) = (refusal.name(), refusal.stage(), refusal.remedy());
        let told = format!("{word} ({stage}): {refusal}; remedy: {remedy}");
        text += &format!("  `{name}`: {told}\n");
        lab.told.insert(format!("graph_check.{name}"), told);
    }
    text
}

fn costs(lab: &mut Lab, parts: &[(String, Tried)], bits: &str) -> String {
    let (whole, blocks) = (&parts[parts.len() - 2..], &parts[..parts.len() - 2]);
    for (name, Tried { capture_ms, compile_ms, .. }) in parts {
        for (what, ms) in [("capture", capture_ms), ("compile", compile_ms)] {
            lab.keep(format!("latency.{name}.{what}"), "ms", ms.iter().copied().collect());
        }
    }
    let mut text = format!("capture by part: {bits}\n");
    if lab.session.is_none() {
        return text + &format!("  {}", lab.needs_gpu("latency of captures"));
    }
    text += &format!("  {:<22} {:>11} {:>11}\n", "", "capture, ms", "compile, ms");
    let mut line = |name: &str, capture: Option<f64>, compile: Option<f64>| {
        text += &format!("  {name:<22} {:>11} {:>11}\n", cell(capture, 2), cell(compile, 2));
    };
    for (name, tried) in whole {
        line(&format!("whole {name}"), tried.capture_ms, tried.compile_ms);
    }
    let of = |value: fn(&Tried) -> Option<f64>| blocks.iter().map(|(_, tried)| value(tried)).collect::<Vec<_>>();
    let [captures, compiles] = [of(|tried| tried.capture_ms), of(|tried| tried.compile_ms)];
    // A sum of which a part is missing is none.
    let sum = |values: &[Option<f64>]| values.iter().copied().sum::<Option<f64>>();
    let most = |values: &[Option<f64>]| values.iter().copied().flatten().reduce(f64::max);
    let sums = [sum(&captures), sum(&compiles)];
    line(&format!("{} parts, together", blocks.len()), sums[0], sums[1]);
    line("slowest part", most(&captures), most(&compiles));
    for (what, ms) in ["capture", "compile"].into_iter().zip(sums) {
        lab.keep(format!("latency.parts.{what}"), "ms", ms.into_iter().collect());
    }
    text
}

/// Calls a function until it is replayed; with a folder for kernels, until it is compiled.
fn tried(
    lab: &Lab,
    eager: &mut Eager,
    inputs: &[&Tensor],
    kernels: Option<&Path>,
    run: impl FnMut(&[Tensor]) -> Result<Vec<Tensor>>,
) -> anyhow::Result<Tried> {
    let mode = if kernels.is_some() { Mode::Compiled } else { Mode::Captured };
    let mut function = GraphFunction::new(run, mode.config(1, kernels.map(Path::to_owned)), &GraphManager::global());
    let result = function.call(eager, inputs)?.remove(0);
    for _ in 0..MOST_CALLS {
        let stats = function.stats().total;
        let is_done = if kernels.is_some() { stats.compiled > 0 } else { stats.replays > 0 };
        let refusal = function.last_refusal(inputs).or(function.last_compile_refusal());
        if is_done || refusal.is_some() || lab.is_over() {
            break;
        }
        function.call_in_place(eager, inputs)?;
        lab.wait()?;
    }
    let stats = function.stats().total;
    let refusal = function.last_refusal(inputs).cloned();
    ensure!(refusal.is_some() || stats.captures > 0 || lab.is_over(), "a function was neither captured nor refused");
    let capture_ms =
        stats.capture_ms.zip(stats.instantiate_ms).map(|(capture, instantiate)| capture.last + instantiate.last);
    let compile_ms = function.compile_report().map(|report| report.times.total().as_secs_f64() * 1e3);
    Ok(Tried { result, refusal, capture_ms, compile_ms })
}

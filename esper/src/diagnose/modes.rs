//! Steps eagerly, captured and compiled beside each other: time, device memory, and whether they have the same bits.

use std::thread;
use std::time::Duration;

use baselines::measure::Measurement;
use candle_core::{Result, Tensor};
use esper_graph::{GraphFunction, GraphManager, PeakMemory, Session};
use leyline::region::Eager;

use super::batch::Batch;
use super::execution::{Execution, Mode};
use super::lab::{Lab, cell, fingerprint, loss_bits};

/// Eager steps before a capture, and of eager runs before they are timed.
const WARM_UP: usize = 2;
/// Between steps while a compiler works, so that eager steps need not be as many.
const PAUSE: Duration = Duration::from_millis(20);

/// What came of one way to run steps.
#[derive(Debug)]
struct Row {
    mode: Mode,
    /// Of the first step, and of those that were timed (ms).
    first: Option<f64>,
    times: Vec<f64>,
    memory: Option<PeakMemory>,
    losses: Vec<u64>,
    parameters: blake3::Hash,
    /// Why it did not come to that.
    why_not: Option<String>,
    compile_ms: Option<f64>,
}

/// The section of a report: a table. Results are named `PREFIX.MODE.…`.
pub(super) fn section(
    lab: &mut Lab,
    eager: &mut Eager,
    (prefix, execution): (&str, Execution),
    skips_baseline: bool,
) -> anyhow::Result<String> {
    let mut rows = Vec::new();
    // The compiler takes the most steps; the others take as many, so that results can be compared.
    for mode in [Mode::Compiled, Mode::Captured, Mode::Eager] {
        let is_wanted = if mode == Mode::Eager { !skips_baseline } else { lab.session.is_some() };
        if is_wanted && execution.has(mode) {
            let at_least = rows.last().map_or(0, |row: &Row| row.losses.len() - row.times.len());
            rows.push(execution.within(|| run(lab, eager, mode, execution, at_least))?);
        }
    }
    rows.reverse();
    let mut text = format!("{prefix}: steps of {} samples\n", lab.num_samples);
    text += &format!(
        "  {:<9} {:>9} {:>10} {:>10} {:>12} {:>11}  bits\n",
        "", "ms", "first, ms", "speed-up", "tensors, MiB", "graphs, MiB"
    );
    let baseline = (rows.first()).filter(|row| row.mode == Mode::Eager).map(|row| row.times.clone());
    let baseline = baseline.and_then(|times| Measurement::of("ms", times)).map(|found| found.median);
    for row in &rows {
        text += &line(lab, prefix, row, &rows[0], baseline);
    }
    if lab.session.is_none() {
        text += &format!("  {}", lab.needs_gpu("captured and compiled steps, device memory"));
    }
    Ok(text)
}

fn line(lab: &mut Lab, prefix: &str, row: &Row, reference: &Row, baseline: Option<f64>) -> String {
    let name = row.mode.name();
    let prefix = format!("{prefix}.{name}");
    if let Some(why_not) = &row.why_not {
        lab.told.insert(prefix, why_not.clone());
        return format!("  {name:<9} {why_not}\n");
    }
    let time = lab.keep(format!("{prefix}.step"), "ms", row.times.clone());
    lab.keep(format!("{prefix}.first_step"), "ms", row.first.into_iter().collect());
    lab.keep(format!("{prefix}.compile"), "ms", row.compile_ms.into_iter().collect());
    let speed_up = baseline.zip(time).map(|(eager, time)| eager / time);
    lab.keep(format!("{prefix}.over_eager"), "ratio", speed_up.into_iter().collect());
    let mut mib = |what: &str, bytes: Option<u64>| {
        let bytes = bytes.map(|bytes| bytes as f64);
        lab.keep(format!("{prefix}.memory.{what}"), "bytes", bytes.into_iter().collect())
            .map(|bytes| bytes / 1_048_576.0)
    };
    let tensors = mib("tensors", row.memory.map(|memory| memory.tensors));
    let graphs = mib("graphs", row.memory.map(|memory| memory.graphs));
    let bits = if std::ptr::eq(row, reference) {
        format!("{} steps", row.losses.len())
    } else {
        let num_steps = row.losses.len().min(reference.losses.len());
        let mut differing = row.losses.iter().zip(&reference.losses).filter(|(a, b)| a != b).count();
        if row.losses.len() == reference.losses.len() && row.parameters != reference.parameters {
            differing = differing.max(1);
        }
        lab.check(&prefix, differing, num_steps, &format!("losses or the parameters from {}", reference.mode.name()))
    };
    let [time, first] = [time, row.first].map(|ms| cell(ms, 3));
    let (speed_up, tensors, graphs) = (cell(speed_up, 2), cell(tensors, 1), cell(graphs, 1));
    format!("  {name:<9} {time:>9} {first:>10} {speed_up:>10} {tensors:>12} {graphs:>11}  {bits}\n")
}

/// Runs steps until they are taken in this way, at least so many, and then those that are timed.
fn run(lab: &Lab, eager: &mut Eager, mode: Mode, execution: Execution, at_least: usize) -> anyhow::Result<Row> {
    let mut network = lab.network(None)?;
    network.recomputes = execution.recompute;
    let batches = lab.batches()?;
    let step = |inputs: &[Tensor]| Ok(vec![network.step(inputs, &mut || Ok(()))?]);
    let mut function = GraphFunction::new(step, mode.config(1, None), &GraphManager::global());
    let (mut losses, mut times, mut first) = (Vec::new(), Vec::new(), None);
    let why_not = loop {
        let stats = function.stats().total;
        let (is_ready, refusal) = match mode {
            Mode::Eager => (losses.len() >= WARM_UP, None),
            Mode::Captured => (stats.replays > 0, function.last_refusal(&batches[0].inputs())),
            Mode::Compiled => {
                (stats.compiled > 0, function.last_refusal(&batches[0].inputs()).or(function.last_compile_refusal()))
            }
        };
        let why_not = refusal.map(|refusal| format!("{}: {refusal}; {}", refusal.name(), refusal.remedy()));
        if why_not.is_some() || is_ready && losses.len() >= at_least {
            break why_not;
        }
        if lab.is_over() {
            break Some(format!("the time of --seconds was over after {} steps", losses.len()));
        }
        let took = take(lab, eager, &mut function, &batches, &mut losses)?;
        first.get_or_insert(took);
        if mode == Mode::Compiled {
            thread::sleep(PAUSE);
        }
    };
    if let (Some(session), None) = (&lab.session, &why_not) {
        session.restart_peak_memory()?;
    }
    while why_not.is_none() && times.len() < lab.num_steps && (times.len() < 3 || !lab.is_over()) {
        times.push(take(lab, eager, &mut function, &batches, &mut losses)?);
    }
    let memory = lab.session.as_ref().map(Session::peak_memory).transpose()?;
    let compile_ms = function.compile_report().map(|report| report.times.total().as_secs_f64() * 1e3);
    Ok(Row { mode, first, times, memory, losses, parameters: fingerprint(&network)?, why_not, compile_ms })
}

/// Takes the next step, and waits for it. Returns what it took (ms).
fn take(
    lab: &Lab,
    eager: &mut Eager,
    function: &mut GraphFunction<impl FnMut(&[Tensor]) -> Result<Vec<Tensor>>>,
    batches: &[Batch],
    losses: &mut Vec<u64>,
) -> anyhow::Result<f64> {
    let inputs = batches[losses.len() % batches.len()].inputs();
    let began = lab.now();
    let loss = function.call_in_place(eager, &inputs)?[0].clone();
    lab.wait()?;
    let took = lab.now() - began;
    losses.push(loss_bits(&loss)?);
    Ok(took.as_secs_f64() * 1e3)
}

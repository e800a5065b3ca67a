//! What a capture costs, by part: ten fresh set-ups in a row, ten captures of one model, ten trainers in a row, and captures that are refused.

mod later;

use esper_graph::{CaptureReport, GraphManager, GraphMemory};
use leyline::region::Eager;

use crate::error::Error;
use crate::gpu::open::{Gpu, capture, refused, replay};
use crate::gpu::step::{TrainingStep, check_loss, eager_losses};
use crate::models::NAMES as MODELS;
use crate::samples::{Samples, ms};
use crate::work::{Needs, Outcome, Setting, Work, settings};

pub(super) const WORK: Work = Work::new(
    "capture-profile",
    "Captures by part: ten fresh set-ups, ten captures of one model, ten trainers, and captures that are refused",
    Needs::Gpu,
    run,
);
const CAPTURES: usize = 10;
const WARM_UP: usize = 2;

fn run(setting: &Setting) -> Result<Outcome, Error> {
    // The session goes again at once, so that each of the fresh ones is a new one.
    let Gpu { ordinal, device, clock, .. } = Gpu::open(setting)?;
    let mut eager = Eager::acquire()?;
    let mut samples = Samples::default();
    for model in MODELS {
        // A fresh model replays once after its warm-up, the reused one once per capture. The first eager steps also
        // compile kernels and start cuBLAS, which is no part of a capture.
        let losses = eager_losses(model, WARM_UP + CAPTURES, &device)?;
        for _ in 0..CAPTURES {
            let before = clock.now();
            let gpu = Gpu::on(&device, ordinal, &clock)?;
            samples.push(format!("{model}.fresh.session"), "ms", ms(clock.now() - before));
            fresh(&gpu, model, losses[WARM_UP], &mut eager, &mut samples)?;
            samples.push(format!("{model}.fresh.set_up"), "ms", ms(clock.now() - before));
        }
        for (mode, keeps_memory) in [("reused", false), ("kept", true)] {
            GraphManager::global().set_keeps_memory(keeps_memory);
            let gpu = Gpu::on(&device, ordinal, &clock)?;
            let result = reused(&gpu, &format!("{model}.{mode}"), model, &losses[WARM_UP..], &mut eager, &mut samples);
            GraphManager::global().set_keeps_memory(false);
            result?;
            gpu.session.trim_graph_memory().map_err(|refusal| refused("giving the memory for graphs back", refusal))?;
        }
        {
            let gpu = Gpu::on(&device, ordinal, &clock)?;
            later::trainers(&gpu, model, &mut eager, &mut samples)?;
            later::refused_captures(&gpu, model, &losses[WARM_UP..], &mut eager, &mut samples)?;
        }
        for mode in ["fresh", "reused", "kept", "trainer"] {
            let name = format!("{model}.{mode}");
            if let Some(ratio) = samples.slowest_over_median(&format!("{name}.total")) {
                samples.push(format!("{name}.slowest_over_median"), "ratio", ratio);
            }
        }
    }
    let config = settings([
        ("step", "forward pass, cross-entropy, backward pass, SGD, as plain operations".to_owned()),
        ("captures", CAPTURES.to_string()),
        ("warm_up_steps", WARM_UP.to_string()),
    ]);
    let notes = "fresh: a new model, new static buffers and a new session for each capture, on one device; reused: one \
                 model, the graph before dropped first; kept: the same, with what graphs leave kept for the next one. total: begin, record, end, inspect, instantiate, upload; \
                 first_replay: until the device is done; set_up: from opening the session to dropping the graph. \
                 capture_ctor_ms: making model and static buffers; capture_ctx_ms: switching to recording. Nothing is \
                 zeroed before a capture, so there is no capture_zero_ms. memory: what the device reserves for graphs. \
                 trainer: ten trainers, one after the other, of 4 epochs each, tfm5m with the token after each sequence as its class; total: their captures with instantiation and upload, whole: from making one to its end. refused: captures that fail \
                 at the end of the step; memory.after: when the eager step that takes its place is done";
    let gpu = Gpu::on(&device, ordinal, &clock)?;
    Ok(gpu.result(WORK.name, notes, config, samples).into())
}

fn fresh(gpu: &Gpu, model: &str, expected: f64, eager: &mut Eager, samples: &mut Samples) -> Result<(), Error> {
    let name = format!("{model}.fresh");
    let step = made(gpu, &name, model, samples)?;
    profile(gpu, &name, &step, expected, eager, samples)
}

fn reused(
    gpu: &Gpu,
    name: &str,
    model: &str,
    expected: &[f64],
    eager: &mut Eager,
    samples: &mut Samples,
) -> Result<(), Error> {
    let step = made(gpu, name, model, samples)?;
    expected.iter().try_for_each(|loss| profile(gpu, name, &step, *loss, eager, samples))
}

/// A model after its warm-up.
fn made(gpu: &Gpu, name: &str, model: &str, samples: &mut Samples) -> Result<TrainingStep, Error> {
    let started = gpu.now();
    let step = TrainingStep::new(model, &gpu.device)?;
    gpu.wait()?;
    let finished = gpu.now();
    samples.push(format!("{name}.capture_ctor_ms"), "ms", ms(finished - started));
    for _ in 0..WARM_UP {
        gpu.session.warm(|| step.run())?;
    }
    gpu.wait()?;
    samples.push(format!("{name}.warm_up"), "ms", ms(gpu.now() - finished));
    Ok(step)
}

/// One capture with its first replay, and the memory around it.
fn profile(
    gpu: &Gpu,
    name: &str,
    step: &TrainingStep,
    expected: f64,
    eager: &mut Eager,
    samples: &mut Samples,
) -> Result<(), Error> {
    let before = memory(gpu)?;
    let with = capture_and_replay(gpu, name, step, eager, samples)?;
    check_loss(name, expected, step.last_loss()?)?;
    for (when, memory) in [("before", before), ("with", with), ("after", memory(gpu)?)] {
        samples.push(format!("{name}.memory.{when}"), "bytes", memory.reserved as f64);
    }
    Ok(())
}

/// Memory while the graph is there; it is dropped at the end.
fn capture_and_replay(
    gpu: &Gpu,
    name: &str,
    step: &TrainingStep,
    eager: &mut Eager,
    samples: &mut Samples,
) -> Result<GraphMemory, Error> {
    let mut graph = capture(&gpu.session, eager, name, || step.run())?;
    for (held, tensor) in step.held() {
        graph.hold(held, tensor)?;
    }
    gpu.wait()?;
    let started = gpu.now();
    replay(&graph)?;
    gpu.wait()?;
    samples.push(format!("{name}.first_replay"), "ms", ms(gpu.now() - started));
    record(graph.report(), name, samples);
    memory(gpu)
}

fn record(report: &CaptureReport, name: &str, samples: &mut Samples) {
    let times = report.times;
    let parts = [
        ("capture_ctx_ms", times.begin),
        ("begin", times.begin),
        ("record", times.record),
        ("end", times.end),
        ("inspect", times.inspect),
        ("instantiate", times.instantiate),
        ("upload", times.upload),
        ("total", times.total()),
    ];
    for (part, time) in parts {
        samples.push(format!("{name}.{part}"), "ms", ms(time));
    }
    let nodes = &report.nodes;
    let counts = [
        ("kernels", nodes.kernels),
        ("memsets", nodes.memsets),
        ("device_copies", nodes.device_copies),
        ("allocations", nodes.allocations),
        ("frees", nodes.frees),
        ("others", nodes.others),
    ];
    for (kind, count) in counts {
        samples.push(format!("{name}.nodes.{kind}"), "nodes", count as f64);
    }
    samples.push(format!("{name}.memory.allocations"), "bytes", report.allocated_bytes as f64);
    if let Some(bytes) = report.reserved_bytes {
        samples.push(format!("{name}.memory.reserved_bytes"), "bytes", bytes as f64);
    }
}

fn memory(gpu: &Gpu) -> Result<GraphMemory, Error> {
    gpu.session.graph_memory().map_err(|refusal| refused("reading the memory for graphs", refusal))
}

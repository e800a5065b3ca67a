//! The fastest of the algorithms of a product, timed.

use std::sync::Arc;

use candle_core::{CudaDevice, Result, bail};
use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode, CUstreamCaptureStatus};
use cudarc::driver::{CudaGraph, CudaStream};
use esper_graph::launch::tensor_error;

use super::library::Choice;
use super::product::workspace;

/// The library's best guesses that are timed.
pub(super) const CANDIDATES: usize = 16;
/// Products of a launch, so that what launching costs the host is not timed.
const PER_LAUNCH: usize = 10;
/// Launches of each, in turns; the shortest counts.
const ROUNDS: usize = 4;
/// What is shorter by less than this part of the time of the first guess is not taken for faster.
const MARGIN: f32 = 0.03;

/// Of `candidates`, of which the library expects the first to be the fastest; `run` enqueues one with the address of its memory.
///
/// # Errors
/// When a graph is being recorded: nothing can be timed then. When the first cannot run.
/// # Sync
/// waits for the device
pub(super) fn fastest(
    device: &CudaDevice,
    candidates: &[Choice],
    run: impl Fn(&Choice, u64) -> Result<()>,
) -> Result<Choice> {
    let stream = device.cuda_stream();
    if tensor_error(stream.capture_status())? != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
        bail!("algorithms of a product are timed before a graph is recorded, and this one was not: run it once before")
    }
    let Some(first) = candidates.first() else { bail!("a product without algorithms") };
    let mut ready = Vec::new();
    for candidate in candidates {
        let memory = workspace(device, candidate.workspace)?;
        let place = memory.address(&stream);
        match recorded(&stream, || run(candidate, place)) {
            Ok(graph) => ready.push((candidate, graph, memory, f32::INFINITY)),
            // Some cannot run after all, of which only a try tells.
            Err(error) if ready.is_empty() => return Err(error),
            Err(_) => {}
        }
    }
    for _ in 0..ROUNDS {
        for (_, graph, _, shortest) in &mut ready {
            *shortest = shortest.min(tensor_error(milliseconds(&stream, graph))?);
        }
    }
    let limit = ready.first().map_or(0.0, |(.., first)| first * (1.0 - MARGIN));
    let faster = ready.iter().filter(|(.., time)| *time < limit).min_by(|a, b| a.3.total_cmp(&b.3));
    Ok(*faster.map_or(first, |(candidate, ..)| *candidate))
}

/// Some of a product, one after the other, as one launch; it ran once.
fn recorded(stream: &Arc<CudaStream>, run: impl Fn() -> Result<()>) -> Result<CudaGraph> {
    // What the library prepares at the first time is not recorded.
    run()?;
    tensor_error(stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))?;
    let ran = (0..PER_LAUNCH).try_for_each(|_| run());
    let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    ran?;
    let Some(graph) = tensor_error(graph)? else { bail!("a product enqueued nothing") };
    tensor_error(graph.launch())?;
    Ok(graph)
}

/// Of one launch, by events of the device.
fn milliseconds(stream: &CudaStream, graph: &CudaGraph) -> std::result::Result<f32, cudarc::driver::DriverError> {
    let start = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
    graph.launch()?;
    start.elapsed_ms(&stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?)
}

//! What launches cost the host and the device: `k` small kernels eagerly, against one replay of a graph of the same.

use candle_core::{DType, Tensor, Var};
use esper_graph::{Captured, DeviceTimer};
use leyline::region::Eager;
use tolaria::host_read::{HostReads, read_vec};

use crate::error::Error;
use crate::gpu::fit::{Line, least_squares};
use crate::gpu::open::{Gpu, refused, replay};
use crate::plot::{Curve, log_log_svg};
use crate::samples::{Samples, us};
use crate::work::{Attachment, Needs, Outcome, Setting, Work, settings};

pub(super) const WORK: Work =
    Work::new("launch-model", "Launches of kernels: eager against one replay of a graph, with a plot", Needs::Gpu, run);
/// Kernels of a region.
const COUNTS: [u32; 9] = [1, 2, 5, 10, 20, 50, 100, 200, 300];
const ELEMENTS: usize = 1024;
const WARM_UP: usize = 20;
const REPETITIONS: usize = 200;
const MODES: [&str; 2] = ["eager", "graph"];
const SIDES: [&str; 2] = ["host", "device"];

fn run(setting: &Setting) -> Result<Outcome, Error> {
    let gpu = Gpu::open(setting)?;
    let mut eager = Eager::acquire()?;
    let mut samples = Samples::default();
    let work = Additions::new(&gpu)?;
    for count in COUNTS {
        let graph = gpu.warm_and_capture(&mut eager, &format!("{count} kernels"), || work.enqueue(count))?;
        samples.push(name(count, "graph", "nodes"), "nodes", graph.report().nodes.total() as f64);
        measure(&gpu, &work, count, &graph, &mut samples)?;
    }
    for side in SIDES {
        for mode in MODES {
            fit(mode, side, &mut samples);
        }
    }
    let curve = |mode: &str| {
        let point = |count| Some((f64::from(count), samples.median(&name(count, mode, "host"))?));
        Curve { label: mode.to_owned(), points: COUNTS.into_iter().filter_map(point).collect() }
    };
    let text = log_log_svg("Host time of a step", ["kernels", "host time (µs)"], &MODES.map(curve));
    let plot = Attachment { file_name: format!("{}.svg", WORK.name), text };
    let config = settings([
        ("kernel", format!("sum of two f32 tensors of {ELEMENTS} elements into a new one")),
        ("region", "the kernels, each on the result of the one before, and one copy into a static buffer".to_owned()),
        ("warm_up", WARM_UP.to_string()),
    ]);
    let notes = "kernels_K.MODE.host: time until K kernels and one copy are enqueued, on an idle device; .device: from \
                 the first to the last of them by events of the stream; .over_graph: eager over graph. fit: a line \
                 through the medians over K, by least squares; base is its value at 0, per_kernel its slope. A kernel \
                 is three nodes of a graph: its allocation, itself, its release";
    Ok(Outcome { result: gpu.result(WORK.name, notes, config, samples), attachments: vec![plot] })
}

fn name(count: u32, mode: &str, what: &str) -> String {
    format!("kernels_{count:03}.{mode}.{what}")
}

/// Eager and replayed repetitions in turn, so that both see the same state of the machine.
fn measure(gpu: &Gpu, work: &Additions, count: u32, graph: &Captured, samples: &mut Samples) -> Result<(), Error> {
    let mut timer = gpu.session.timer().map_err(|refusal| refused("a timer", refusal))?;
    for repetition in 0..WARM_UP + REPETITIONS {
        for mode in MODES {
            work.reset()?;
            let enqueue = || if mode == "eager" { work.enqueue(count) } else { replay(graph) };
            let [host, device] = time_once(gpu, &mut timer, enqueue)?;
            if repetition >= WARM_UP {
                samples.push(name(count, mode, "host"), "us", host);
                samples.push(name(count, mode, "device"), "us", device);
            }
        }
    }
    work.reset()?;
    replay(graph)?;
    work.check(count)?;
    for side in SIDES {
        let [eager, graph] = MODES.map(|mode| samples.median(&name(count, mode, side)));
        if let (Some(eager), Some(graph)) = (eager, graph) {
            samples.push(format!("kernels_{count:03}.over_graph.{side}"), "ratio", eager / graph);
        }
    }
    Ok(())
}

/// Microseconds on the host and on the device.
fn time_once(
    gpu: &Gpu,
    timer: &mut DeviceTimer,
    enqueue: impl FnOnce() -> Result<(), Error>,
) -> Result<[f64; 2], Error> {
    gpu.wait()?;
    // Inside the events, which cost the host a few microseconds themselves.
    let host = gpu.session.time(timer, || {
        let started = gpu.now();
        enqueue().map(|()| gpu.now() - started)
    })?;
    gpu.wait()?;
    // After the wait the last stretch is known; without one the value is no number and the measurement is left out.
    Ok([us(host), timer.last_ms().map_or(f64::NAN, |device| device * 1e3)])
}

fn fit(mode: &str, side: &str, samples: &mut Samples) {
    let point = |count| Some((f64::from(count), samples.median(&name(count, mode, side))?));
    let points: Vec<(f64, f64)> = COUNTS.into_iter().filter_map(point).collect();
    let Some(Line { intercept, slope, r_squared }) = least_squares(&points) else { return };
    for (what, unit, value) in [("base", "us", intercept), ("per_kernel", "us", slope), ("r_squared", "1", r_squared)] {
        samples.push(format!("fit.{mode}.{side}.{what}"), unit, value);
    }
    if mode == "graph" {
        // Nodes over kernels are a line themselves: three per kernel and the copy.
        let nodes =
            |count| Some((samples.median(&name(count, "graph", "nodes"))?, samples.median(&name(count, mode, side))?));
        let points: Vec<(f64, f64)> = COUNTS.into_iter().filter_map(nodes).collect();
        if let Some(line) = least_squares(&points) {
            samples.push(format!("fit.{mode}.{side}.per_node"), "us", line.slope);
        }
    }
}

/// The region: adds 1 again and again.
struct Additions {
    start: Tensor,
    one: Tensor,
    sum: Var,
}

impl Additions {
    fn new(gpu: &Gpu) -> candle_core::Result<Self> {
        Ok(Self {
            start: Tensor::zeros(ELEMENTS, DType::F32, &gpu.device)?,
            one: Tensor::ones(ELEMENTS, DType::F32, &gpu.device)?,
            sum: Var::zeros(ELEMENTS, DType::F32, &gpu.device)?,
        })
    }

    fn enqueue(&self, count: u32) -> Result<(), Error> {
        let mut x = self.start.clone();
        for _ in 0..count {
            x = x.add(&self.one)?;
        }
        Ok(self.sum.set(&x)?)
    }

    /// Forgets the sum, so that a region which did nothing is found out.
    fn reset(&self) -> candle_core::Result<()> {
        self.sum.set(&self.start)
    }

    fn check(&self, count: u32) -> Result<(), Error> {
        let expected = f64::from(count);
        for found in read_vec(self.sum.as_tensor(), "bench_sum", &mut HostReads::default())? {
            let found = f64::from(found);
            if (found - expected).abs() > 0.0 || found.is_nan() {
                return Err(Error::WrongResult { what: format!("a replay of {count} additions"), expected, found });
            }
        }
        Ok(())
    }
}

//! A region that is captured by hand: static buffers, warm-up, capture, replays, and what to do when it is refused.
//!
//! `cargo run -p esper-graph --example capture_scope`, or with `--features cuda -- cuda:0`.
#![expect(clippy::print_stdout, reason = "an example shows what happened")]

mod support;

use std::error::Error;

use candle_core::{DType, Device, Tensor};
use esper_graph::{Captured, Refusal, Session};
use leyline::region::Eager;

/// What the region reads and writes. Its elements change, its tensors do not.
struct Buffers {
    input: Tensor,
    output: Tensor,
}

impl Buffers {
    fn new(device: &Device) -> candle_core::Result<Self> {
        let zeros = || Tensor::zeros(4, DType::F32, device);
        Ok(Self { input: zeros()?, output: zeros()? })
    }

    /// The region. Everything that it makes is gone when it returns.
    fn run(&self) -> candle_core::Result<()> {
        self.output.slice_set(&self.input.sqr()?.affine(0.5, 1.0)?.sqrt()?, 0, 0)
    }

    fn load(&self, values: [f32; 4]) -> candle_core::Result<()> {
        self.input.slice_set(&Tensor::new(&values, self.input.device())?, 0, 0)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = support::device()?;
    let buffers = Buffers::new(&device)?;
    let graph = match capture(&device, &buffers) {
        Ok(graph) => {
            let report = graph.report();
            println!("captured {} nodes in {:?}", report.nodes.total(), report.times.total());
            Some(graph)
        }
        Err(refusal) => {
            println!("not captured ({}): {refusal}", refusal.name());
            None
        }
    };
    for step in 0..4_u8 {
        buffers.load([0.0, 1.0, 2.0, f32::from(step)])?;
        match &graph {
            Some(graph) => graph.replay()?,
            None => buffers.run()?,
        }
        println!("step {step}: {}", buffers.output);
    }

    if let Ok(session) = Session::open(&device) {
        // A region that waits for a value of the device cannot be replayed.
        let mut eager = Eager::acquire()?;
        let reads = session.capture(&mut eager, |_| buffers.input.to_device(&Device::Cpu).map(drop));
        println!("a region that reads on the host: {:?}", reads.err().map(|refusal| refusal.to_string()));
    }
    Ok(())
}

fn capture(device: &Device, buffers: &Buffers) -> Result<Captured, Refusal> {
    let session = Session::open(device)?;
    let failed = |message: String| Refusal::RegionFailed { message };
    session.warm(|| buffers.run()).map_err(|error| failed(error.to_string()))?;
    let mut eager = Eager::acquire().map_err(|error| failed(error.to_string()))?;
    let mut graph = session.capture(&mut eager, |_| buffers.run())?;
    for (name, tensor) in [("input", &buffers.input), ("output", &buffers.output)] {
        graph.hold(name, tensor).map_err(|error| failed(error.to_string()))?;
    }
    Ok(graph)
}

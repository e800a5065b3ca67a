//! Memory of graphs: what a capture takes, and that eviction and clearing give it back.

use std::num::{NonZeroU32, NonZeroUsize};

use candle_core::{DType, Tensor};
use leyline::region::Eager;
use tolaria::graph::{GraphFunction, GraphFunctionConfig, GraphManager};

use super::report::{Broken, Report, promise};
use crate::works::gpu::open::Gpu;

const LIMIT: usize = 3;
const SHAPES: usize = 5;
/// The functions hold intermediate tensors of so many elements per row.
const WIDTH: usize = 1 << 20;

pub(super) fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    report.check("memory.limit_and_return", |samples| {
        let seen = limit_and_return(gpu, eager)?;
        for (name, bytes) in [("memory.one_graph", seen.one), ("memory.at_the_limit", seen.full)] {
            samples.push(name, "bytes", bytes as f64);
        }
        samples.push("memory.after_clear", "bytes", seen.cleared as f64);
        Ok(format!(
            "{SHAPES} shapes with a limit of {LIMIT}: {} bytes with one graph, {} with {LIMIT}, {} after clear",
            seen.one, seen.full, seen.cleared
        ))
    });
}

struct Seen {
    one: u64,
    full: u64,
    cleared: u64,
}

fn limit_and_return(gpu: &Gpu, eager: &mut Eager) -> Result<Seen, Broken> {
    gpu.session.trim_graph_memory().map_err(|refusal| Broken(refusal.to_string()))?;
    let reserved = || gpu.session.graph_memory().map(|memory| memory.reserved).map_err(|r| Broken(r.to_string()));
    let before = reserved()?;
    let config = GraphFunctionConfig {
        warmup_calls: NonZeroU32::MIN,
        limit: NonZeroUsize::new(LIMIT).expect("a literal above 0"),
        ..GraphFunctionConfig::default()
    };
    let work = |inputs: &[Tensor]| -> candle_core::Result<Vec<Tensor>> {
        let wide = inputs[0].broadcast_as((inputs[0].dims()[0], WIDTH))?.contiguous()?;
        Ok(vec![(wide * 2.0)?.sum_keepdim(1)?])
    };
    let mut wrapped = GraphFunction::new(work, config, &GraphManager::global());
    let mut one = None;
    for rows in 1..=SHAPES {
        let input = Tensor::ones((8 * rows, 1), DType::F32, &gpu.device)?;
        for _ in 0..3 {
            drop(wrapped.call(eager, &[&input])?);
        }
        gpu.wait()?;
        if rows == 1 {
            one = Some(reserved()? - before);
        }
        let stats = wrapped.stats();
        promise(stats.entries <= LIMIT, || format!("{} graphs are kept", stats.entries))?;
    }
    let (one, full) = (one.unwrap_or(0), reserved()? - before);
    promise(wrapped.stats().total.evictions == (SHAPES - LIMIT) as u64, || format!("{:?}", wrapped.stats().total))?;
    promise(one > 0, || "a graph took no memory".to_owned())?;
    let dropped = wrapped.clear();
    gpu.wait()?;
    let cleared = reserved()?.saturating_sub(before);
    promise(dropped == LIMIT, || format!("{dropped} graphs were cleared"))?;
    promise(cleared == 0, || format!("{cleared} of {full} bytes stayed after clear"))?;
    Ok(Seen { one, full, cleared })
}

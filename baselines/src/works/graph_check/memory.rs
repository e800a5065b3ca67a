//! Memory of graphs: what a capture takes, and that eviction and clearing give it back.

use std::cell::RefCell;
use std::num::{NonZeroU32, NonZeroUsize};

use candle_core::{DType, Tensor};
use esper_graph::{GraphFunction, GraphFunctionConfig, GraphManager};
use leyline::region::Eager;

use crate::gpu::open::Gpu;
use crate::gpu::report::{Broken, Report, promise};

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
    report.check("memory.evictions_return", |_| {
        let (evictions, full) = evictions(gpu, eager, false)?;
        Ok(format!(
            "{evictions} evictions among {SAME} shapes of one size: never more than the {full} bytes of {LIMIT}"
        ))
    });
    report.check("memory.a_leak_is_found", |_| match evictions(gpu, eager, true) {
        Err(Broken(text)) if text.contains(STAYED) => Ok(format!("planted: {text}")),
        Err(other) => Err(other),
        Ok(_) => Err(Broken("a function that keeps what evicted graphs read was not found out".to_owned())),
    });
}

/// Shapes with as many elements each, so that every graph takes as much as any other.
const SAME: usize = 8;
const ELEMENTS: usize = 1 << 20;
const ELEMENTS_BYTES: u64 = 4 << 20;
/// How often every shape is called.
const ROUNDS: usize = 4;
/// Bytes that may come on top of the graphs: constants of shapes. One graph that stays takes four times as much.
const SLACK: u64 = ELEMENTS_BYTES / 4;
/// What is said of memory that does not return.
const STAYED: &str = "stayed after evictions";

/// Calls a function in more shapes than it may keep, again and again; after every eviction no more memory is in use than
/// when as many graphs as may be were kept for the first time. Returns the number of evictions and of bytes.
///
/// With `keeps` the function keeps what it is given, so that what evicted graphs read stays.
fn evictions(gpu: &Gpu, eager: &mut Eager, keeps: bool) -> Result<(u64, u64), Broken> {
    let used = || -> Result<u64, Broken> {
        gpu.wait()?;
        let asked = gpu
            .session
            .trim_graph_memory()
            .and_then(|()| Ok(gpu.session.graph_memory()?.reserved + gpu.session.tensor_memory()?));
        asked.map_err(|refusal| Broken(refusal.to_string()))
    };
    let before = used()?;
    let config = GraphFunctionConfig {
        warmup_calls: NonZeroU32::MIN,
        limit: NonZeroUsize::new(LIMIT).expect("a literal above 0"),
        ..GraphFunctionConfig::default()
    };
    let kept = RefCell::new(Vec::new());
    let work = |inputs: &[Tensor]| -> candle_core::Result<Vec<Tensor>> {
        if keeps {
            kept.borrow_mut().push(inputs[0].clone());
        }
        Ok(vec![(&inputs[0] * 2.0)?.sum_keepdim(1)?])
    };
    let mut wrapped = GraphFunction::new(work, config, &GraphManager::global());
    let mut full = 0;
    for call in 0..ROUNDS * SAME {
        let rows = 8 << (call % SAME);
        let input = Tensor::ones((rows, ELEMENTS / rows), DType::F32, &gpu.device)?;
        for _ in 0..2 {
            drop(wrapped.call(eager, &[&input])?);
        }
        drop(input);
        if call < LIMIT {
            full = used()?;
            continue;
        }
        let more = used()?.saturating_sub(full);
        let evicted = wrapped.stats().total.evictions;
        promise(more <= SLACK, || format!("{more} bytes {STAYED}: {evicted} graphs had to go by then"))?;
    }
    let stats = wrapped.stats().total;
    promise(stats.evictions == (ROUNDS * SAME - LIMIT) as u64, || format!("{stats:?}"))?;
    let taken = full.saturating_sub(before);
    promise(taken >= LIMIT as u64 * ELEMENTS_BYTES, || format!("{LIMIT} graphs take {taken} bytes only"))?;
    wrapped.clear();
    let cleared = used()?.saturating_sub(before);
    promise(cleared <= SLACK, || format!("{cleared} bytes {STAYED} and a clear"))?;
    Ok((stats.evictions, taken))
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

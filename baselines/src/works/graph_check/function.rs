//! A wrapped inference function: a thousand random inputs of changing shapes give the bits of the function itself.

use std::num::{NonZeroU32, NonZeroUsize};

use candle_core::Tensor;
use esper_graph::{GraphFunction, GraphFunctionConfig, GraphManager};
use leyline::model::{Pass, TrainableModel as _};
use leyline::region::Eager;
use tolaria::host_read::{HostReads, read_vec};

use crate::gpu::growing::differing;
use crate::gpu::open::Gpu;
use crate::gpu::report::{Broken, Report, promise};
use crate::models::{Draw, Workload};

const CALLS: usize = 1000;
/// Rows of the inputs, in turn.
const ROWS: [usize; 3] = [128, 1, 37];

pub(super) fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    report.check("function.1000_inputs", |_| thousand(gpu, eager));
}

fn thousand(gpu: &Gpu, eager: &mut Eager) -> Result<String, Broken> {
    let work = Workload::mlp(1, &gpu.device)?;
    let infer = |inputs: &[Tensor]| -> candle_core::Result<Vec<Tensor>> {
        let outputs = work.model.forward(&inputs[0], Pass::Evaluate { overrides: &[] });
        Ok(vec![outputs.map_err(|error| candle_core::Error::Msg(error.to_string()))?.logits])
    };
    let config = GraphFunctionConfig {
        warmup_calls: NonZeroU32::MIN,
        limit: NonZeroUsize::new(ROWS.len()).expect("a literal above 0"),
        ..GraphFunctionConfig::default()
    };
    let mut wrapped = GraphFunction::new(infer, config, &GraphManager::global());
    let mut draw = Draw::new(17, &gpu.device);
    let mut reads = HostReads::default();
    let mut first: Option<(Tensor, Vec<f32>)> = None;
    for call in 0..CALLS {
        let input = draw.uniform((ROWS[call % ROWS.len()], 784), 1.0)?;
        let found = wrapped.call(eager, &[&input])?.remove(0);
        let expected = infer(std::slice::from_ref(&input))?.remove(0);
        let values = read_vec(&found, "check", &mut reads)?;
        let wrong = differing(&values, &read_vec(&expected, "check", &mut reads)?);
        promise(wrong == 0, || format!("call {call}: {wrong} of {} outputs differ", values.len()))?;
        if call == CALLS / 2 {
            first = Some((found, values));
        }
    }
    let (kept, values) = first.expect("a call in the middle");
    let later = read_vec(&kept, "check", &mut reads)?;
    promise(differing(&values, &later) == 0, || "a later call changed an earlier output".to_owned())?;
    let stats = wrapped.stats().total;
    promise(stats.captures == ROWS.len() as u64, || format!("{} captures", stats.captures))?;
    promise(stats.replays == (CALLS - ROWS.len()) as u64, || format!("{} replays", stats.replays))?;
    Ok(format!("{CALLS} inputs of 3 shapes, {} replays, all outputs bit-identical", stats.replays))
}

//! Wrapped inference functions and models: a thousand random inputs of changing shapes give the bits of the function itself,
//! replayed as captured and as compiled.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use candle_core::cuda::{gemm_reduced_precision_bf16, set_gemm_reduced_precision_bf16};
use candle_core::{DType, Tensor};
use esper_graph::{GraphFunction, GraphFunctionConfig, GraphManager, GraphModel, PlantedFault, Refusal};
use leyline::model::{Pass, TrainableModel as _};
use leyline::region::Eager;
use tolaria::host_read::{HostReads, read_vec};

use crate::gpu::growing::differing;
use crate::gpu::open::Gpu;
use crate::gpu::report::{Broken, Report, promise};
use crate::models::{Draw, Workload};

const CALLS: usize = 1000;
/// Calls in which a compile must have come to an end, and those that are made after it.
const PATIENCE: usize = 20_000;
const MORE: u64 = 50;
/// Rows of the inputs, in turn.
const ROWS: [usize; 3] = [128, 1, 37];

pub(super) fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    report.check("function.1000_inputs", |_| thousand(gpu, eager));
    report.check("function.compiled", |_| {
        let work = Workload::mlp(1, &gpu.device)?;
        compiled(gpu, eager, |inputs| forward(&work, inputs))
    });
    report.check("function.compiled_small_numbers", |_| compiled(gpu, eager, small_numbers));
    report.check("function.compiled_halves", |_| {
        let every = (0..=u32::from(u16::MAX)).map(|bits| f32::from_bits(bits << 16));
        let every = Tensor::from_iter(every, &gpu.device)?.to_dtype(DType::BF16)?;
        compiled(gpu, eager, |inputs| halves(&every, inputs))
    });
    report.check("function.switches", |_| switches(gpu, eager));
    report.check("function.compile_refused", |_| compile_refused(gpu, eager));
    report.check("function.compiled_model", |_| compiled_model(gpu, eager));
}

/// Compiled after as few replays as possible.
fn soon() -> GraphFunctionConfig {
    GraphFunctionConfig { warmup_calls: NonZeroU32::MIN, compile_warmup_calls: 1, ..GraphFunctionConfig::default() }
}

/// Calls `wrapped` with new inputs until `is_over`, and `MORE` times after that; all results are those of `infer`.
fn same_bits<W>(
    gpu: &Gpu,
    wrapped: &mut W,
    is_over: impl Fn(&W) -> bool,
    mut call: impl FnMut(&mut W, &Tensor) -> candle_core::Result<Tensor>,
    infer: impl Fn(&[Tensor]) -> candle_core::Result<Vec<Tensor>>,
) -> Result<usize, Broken> {
    let mut draw = Draw::new(23, &gpu.device);
    let mut reads = HostReads::default();
    let mut num_more = 0;
    for index in 0..PATIENCE {
        let input = draw.uniform((ROWS[0], 784), 1.0)?;
        let found = read_vec(&call(wrapped, &input)?, "check", &mut reads)?;
        let expected = read_vec(&infer(std::slice::from_ref(&input))?.remove(0), "check", &mut reads)?;
        let wrong = differing(&found, &expected);
        promise(wrong == 0, || format!("call {index}: {wrong} of {} outputs differ", found.len()))?;
        if is_over(wrapped) {
            num_more += 1;
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
        if num_more > MORE {
            return Ok(index);
        }
    }
    Err(Broken(format!("nothing was compiled or refused in {PATIENCE} calls")))
}

/// Products of `bf16` of which some are too small for the type: what is left of them is the sign.
fn small_numbers(inputs: &[Tensor]) -> candle_core::Result<Vec<Tensor>> {
    let small = inputs[0].affine(2.0_f64.powi(-126), 0.0)?.to_dtype(DType::BF16)?;
    Ok(vec![small.affine(2.0_f64.powi(-6), 0.0)?.to_dtype(DType::F32)?])
}

/// Functions of every number of `bf16`, of which a compiled graph has its own; of the input no more than a zero is taken away.
fn halves(every: &Tensor, inputs: &[Tensor]) -> candle_core::Result<Vec<Tensor>> {
    let nothing = inputs[0].narrow(0, 0, 1)?.narrow(1, 0, 1)?.flatten_all()?.affine(0.0, 0.0)?.to_dtype(DType::BF16)?;
    let every = every.broadcast_sub(&nothing)?;
    Ok(vec![Tensor::cat(&[every.gelu_erf()?.to_dtype(DType::F32)?, every.erf()?.to_dtype(DType::F32)?], 0)?])
}

/// A compiled function gives the bits of the function, and is counted.
fn compiled(
    gpu: &Gpu,
    eager: &mut Eager,
    infer: impl Fn(&[Tensor]) -> candle_core::Result<Vec<Tensor>> + Copy,
) -> Result<String, Broken> {
    let mut wrapped = GraphFunction::new(infer, soon(), &GraphManager::new());
    let is_over =
        |wrapped: &GraphFunction<_>| wrapped.compile_report().is_some() || wrapped.last_compile_refusal().is_some();
    let calls = same_bits(gpu, &mut wrapped, is_over, |wrapped, x| Ok(wrapped.call(eager, &[x])?.remove(0)), infer)?;
    let stats = wrapped.stats().total;
    promise(stats.compiled >= MORE, || format!("{stats:?}: {:?}", wrapped.last_compile_refusal()))?;
    promise(stats.captures == 1 && stats.fallbacks == 0, || format!("{stats:?}"))?;
    Ok(format!("{} of {calls} calls were compiled, all outputs bit-identical", stats.compiled))
}

/// A function is captured anew where a switch of candle has moved, and replayed where it is back.
fn switches(gpu: &Gpu, eager: &mut Eager) -> Result<String, Broken> {
    let infer = |inputs: &[Tensor]| Ok(vec![inputs[0].matmul(&inputs[0].t()?)?]);
    let config = GraphFunctionConfig { warmup_calls: NonZeroU32::MIN, ..GraphFunctionConfig::default() };
    let mut wrapped = GraphFunction::new(infer, config, &GraphManager::new());
    let input = Draw::new(29, &gpu.device).uniform((64, 64), 1.0)?.to_dtype(DType::BF16)?;
    let before = gemm_reduced_precision_bf16();
    let captures = [before, !before, before].map(|is_on| {
        set_gemm_reduced_precision_bf16(is_on);
        let called = (0..3).try_for_each(|_| wrapped.call(eager, &[&input]).map(drop));
        called.map(|()| wrapped.stats().total.captures).map_err(|error| error.to_string())
    });
    set_gemm_reduced_precision_bf16(before);
    promise(captures == [1, 2, 2].map(Ok), || format!("captures so far: {captures:?}"))?;
    Ok("a switch for sums of bf16, moved and put back: two captures".to_owned())
}

/// A function that cannot be compiled goes on as it was captured.
fn compile_refused(gpu: &Gpu, eager: &mut Eager) -> Result<String, Broken> {
    let work = Workload::mlp(1, &gpu.device)?;
    let infer = |inputs: &[Tensor]| forward(&work, inputs);
    let mut wrapped = GraphFunction::new(infer, soon(), &GraphManager::new());
    wrapped.plant(PlantedFault::PointerLikeNumber);
    let is_over = |wrapped: &GraphFunction<_>| wrapped.last_compile_refusal().is_some();
    same_bits(gpu, &mut wrapped, is_over, |wrapped, x| Ok(wrapped.call(eager, &[x])?.remove(0)), infer)?;
    let stats = wrapped.stats().total;
    let refusal = wrapped.last_compile_refusal();
    promise(matches!(refusal, Some(Refusal::NotCompiled { .. })), || format!("{refusal:?}"))?;
    promise(stats.compiled == 0 && stats.replays > MORE && stats.fallbacks == 0, || format!("{stats:?}"))?;
    Ok(format!("{} replays of the captured graph, all outputs bit-identical", stats.replays))
}

/// The same for a wrapped model.
fn compiled_model(gpu: &Gpu, eager: &mut Eager) -> Result<String, Broken> {
    let work = Workload::mlp(1, &gpu.device)?;
    let infer = |inputs: &[Tensor]| forward(&work, inputs);
    let model = |x: &Tensor| Ok(infer(std::slice::from_ref(x))?.remove(0));
    let mut wrapped = GraphModel::new(model, soon(), &GraphManager::new());
    let is_over =
        |wrapped: &GraphModel<_>| wrapped.compile_report().is_some() || wrapped.last_compile_refusal().is_some();
    let calls = same_bits(gpu, &mut wrapped, is_over, |wrapped, x| wrapped.forward(eager, x), infer)?;
    let stats = wrapped.stats().total;
    promise(stats.compiled >= MORE, || format!("{stats:?}: {:?}", wrapped.last_compile_refusal()))?;
    Ok(format!("{} of {calls} forward passes were compiled, all outputs bit-identical", stats.compiled))
}

fn forward(work: &Workload, inputs: &[Tensor]) -> candle_core::Result<Vec<Tensor>> {
    let outputs = work.model.forward(&inputs[0], Pass::Evaluate { overrides: &[] });
    Ok(vec![outputs.map_err(|error| candle_core::Error::Msg(error.to_string()))?.logits])
}

fn thousand(gpu: &Gpu, eager: &mut Eager) -> Result<String, Broken> {
    let work = Workload::mlp(1, &gpu.device)?;
    let infer = |inputs: &[Tensor]| forward(&work, inputs);
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

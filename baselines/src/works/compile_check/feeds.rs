//! Steps whose values are copied by the graph that takes them: each finds its own, and nothing is copied twice.

use std::num::NonZeroUsize;

use candle_core::{DType, Tensor};
use esper_graph::compile::PassSet;
use esper_graph::{CompileOptions, CompiledGraph, HostSlice, StagingLane, StagingRing};
use leyline::region::Eager;
use tolaria::host_read::{HostReads, read_vec};

use super::faults::{POISON, STEPS, eager_parameters, started};
use crate::gpu::compiled_step::start;
use crate::gpu::growing::differing;
use crate::gpu::open::{Gpu, capture, refused};
use crate::gpu::report::{Broken, Report, promise};

/// Turns through a ring of two buffers.
const TURNS: u16 = 60;
/// Turns between two looks at the sums, few enough that `f32` still holds what the first of them added.
const AT_ONCE: u16 = 12;
/// Copies that one launch makes.
const MOST: usize = 32;

pub(super) fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    for is_fed in [true, false] {
        let name = if is_fed { "feed.steps" } else { "feed.steps.apart" };
        report.check(name, |_| steps(gpu, eager, is_fed));
    }
    for num_copies in [1, 2, MOST, MOST + 1] {
        report.check(format!("feed.copies.{num_copies}"), |_| copies(gpu, eager, num_copies));
    }
}

fn options(is_fed: bool) -> CompileOptions {
    CompileOptions { is_fed, ..CompileOptions::new(PassSet::all()) }
}

/// Every other step is handed its values, and those between find theirs in place: a graph that copied once more what the step before
/// was handed would take the wrong samples.
fn steps(gpu: &Gpu, eager: &mut Eager, is_fed: bool) -> Result<String, Broken> {
    let (mut step, captured, compilation) = started(gpu, eager, options(is_fed))?;
    let mut compiled = compilation.wait().map_err(|refusal| refused("compiling", refusal))?;
    step.load()?;
    compiled.verify(&captured, POISON).map_err(|refusal| refused("the comparison", refusal))?;
    while step.num_steps() < STEPS {
        if step.num_steps() % 2 == 0 {
            step.compiled(gpu, &compiled, |_| ())?;
        } else {
            step.load()?;
            compiled.replay().map_err(|refusal| refused("a replay", refusal))?;
        }
    }
    let wrong = differing(&step.parameters()?, &eager_parameters(gpu, STEPS)?);
    promise(wrong == 0, || format!("{wrong} parameters differ from eager steps"))?;
    Ok(format!("{STEPS} steps, every other one handed its values, with the bits of eager ones"))
}

/// A sum that halves what it was and adds so many inputs, each turn with its own numbers, while the device has something else to do. All come
/// from the host but the last of several.
fn copies(gpu: &Gpu, eager: &mut Eager, num_copies: usize) -> Result<String, Broken> {
    let zeros = |len: usize| Tensor::zeros(len, DType::F32, &gpu.device);
    let inputs = (0..num_copies).map(|input| zeros(1 + input % 7)).collect::<candle_core::Result<Vec<_>>>()?;
    let num_parts = (num_copies - 1).max(1);
    let sum = zeros(inputs.iter().map(Tensor::elem_count).sum())?;
    let region = || {
        let next = ((&sum * 0.5)? + Tensor::cat(&inputs, 0)?)?;
        Ok::<_, crate::error::Error>(sum.slice_set(&next, 0, 0)?)
    };
    (0..2).try_for_each(|_| gpu.session.warm(region))?;
    let captured = capture(&gpu.session, eager, "a sum", region)?;
    let draft = |eager: &mut Eager| {
        let region = |_: &_| region().map_err(|error| error.to_string());
        eager
            .record(|recording| gpu.session.draft(recording, region))
            .map_err(|refusal| refused("a recording", refusal))
    };
    let drafts = vec![draft(eager)?, draft(eager)?];
    let mut compiled: CompiledGraph =
        start(gpu, drafts, options(true))?.wait().map_err(|refusal| refused("compiling", refusal))?;
    compiled.verify(&captured, POISON).map_err(|refusal| refused("the comparison", refusal))?;

    let value = |turn: u16, input: u16, index: u16| f32::from(7 * turn + 3 * input + index % 13 + 1);
    let values = |turn: u16, (input, tensor): (u16, &Tensor)| -> Vec<f32> {
        (0..).take(tensor.elem_count()).map(|index| value(turn, input, index)).collect()
    };
    let mut ring = StagingRing::new(&gpu.session, NonZeroUsize::new(2).expect("2 is not 0"), StagingLane::Compute)?;
    let busy = Tensor::ones((2048, 2048), DType::F32, &gpu.device)?;
    let mut expected = vec![0.0_f32; sum.elem_count()];
    for turn in 0..TURNS {
        let values: Vec<Vec<f32>> = (0..).zip(&inputs).map(|input| values(turn, input)).collect();
        let (parts, beside) = values.split_at(num_parts);
        let parts: Vec<_> = parts.iter().zip(&inputs).map(|(part, input)| (HostSlice::F32(part), input)).collect();
        let beside = beside.iter().map(|values| Tensor::new(values.as_slice(), &gpu.device));
        let beside = beside.collect::<candle_core::Result<Vec<_>>>()?;
        let beside: Vec<_> = beside.iter().zip(&inputs[num_parts..]).collect();
        busy.matmul(&busy)?;
        let mut feed = ring.feed(&parts, &beside)?;
        compiled.replay_fed(&mut feed).map_err(|refusal| refused("a fed replay", refusal))?;
        for (sum, value) in expected.iter_mut().zip(values.iter().flatten()) {
            *sum = *sum * 0.5 + value;
        }
        if (turn + 1) % AT_ONCE == 0 {
            let different = differing(&read_vec(&sum, "a sum", &mut HostReads::default())?, &expected);
            promise(different == 0, || format!("{different} of {} sums differ after turn {turn}", expected.len()))?;
        }
    }
    // Launches of their own are measured, from the first on.
    let is_by_graph = ring.copy_ms().is_none();
    promise(is_by_graph == (num_copies <= MOST), || format!("copied by the graph: {is_by_graph}"))?;
    Ok(format!("{TURNS} turns of {num_copies} copies, by the graph: {is_by_graph}, {} sums", expected.len()))
}

//! Faults planted in the compiler: each is found, and the step it was planted in is right all the same.

use std::time::Duration;

use candle_core::{DType, Tensor};
use esper_graph::compile::{Pass, PassSet, Reproducer, bisect};
use esper_graph::{Captured, Compilation, CompileOptions, PlantedFault, Refusal, Searched};
use leyline::region::Eager;
use tolaria::host_read::{HostReads, read_vec};

use crate::error::Error;
use crate::gpu::compiled_step::{captured, drafts, start};
use crate::gpu::growing::differing;
use crate::gpu::open::{Gpu, capture, refused};
use crate::gpu::optimizer_step::OptimizerStep;
use crate::gpu::report::{Broken, Report, promise};
use crate::models::{Draw, Workload};

/// Steps that are compared.
pub(super) const STEPS: usize = 24;
/// What the memory of a compiled graph is filled with before it is verified.
pub(super) const POISON: u8 = 0xCB;

pub(super) fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    report.check("fault.wrong_rewrite", |_| wrong_rewrite(gpu, eager, true));
    report.check("fault.wrong_rewrite_unseen", |_| wrong_rewrite(gpu, eager, false));
    report.check("fault.unknown_kernel", |_| unknown_kernel(gpu, eager));
    report.check("fault.pointer_like_number", |_| pointer_like_number(gpu, eager));
    report.check("fault.named_like_a_product", |_| named_like_a_product(gpu, eager));
    report.check("overlap.on", |_| early_kernels(gpu, eager, true));
    report.check("overlap.off", |_| early_kernels(gpu, eager, false));
}

/// Kernels start early where the device has it and they may, and every step has the same bits.
fn early_kernels(gpu: &Gpu, eager: &mut Eager, overlap: bool) -> Result<String, Broken> {
    let options = CompileOptions { overlap, ..CompileOptions::new(PassSet::all()) };
    let (mut step, captured, compilation) = started(gpu, eager, options)?;
    let mut compiled = compilation.wait().map_err(|refusal| refused("compiling", refusal))?;
    let (num_early, all) = (compiled.report().num_early, compiled.report().num_dependencies);
    let can = gpu.session.facts().compute_capability.is_some_and(|(major, _)| major >= 9);
    promise((num_early > 0) == (overlap && can), || {
        format!("{num_early} of {all} dependencies let kernels start early")
    })?;
    step.load()?;
    compiled.verify(&captured, POISON).map_err(|refusal| refused("the comparison", refusal))?;
    while step.num_steps() < STEPS {
        step.load()?;
        compiled.replay().map_err(|refusal| refused("a replay", refusal))?;
    }
    let wrong = differing(&step.parameters()?, &eager_parameters(gpu, STEPS)?);
    promise(wrong == 0, || format!("{wrong} parameters differ from eager steps"))?;
    Ok(format!("{num_early} of {all} dependencies let kernels start early, {STEPS} steps with the bits of eager ones"))
}

/// A result that a rewrite of a pass dropped is missed by the comparison. Pass and rewrite are found without help, by the
/// interpreter or by steps alone, and what is written replays; every step is what the captured graph makes of it.
fn wrong_rewrite(gpu: &Gpu, eager: &mut Eager, interprets: bool) -> Result<String, Broken> {
    const MOST_STEPS: usize = 20_000;
    const PAUSE: Duration = Duration::from_millis(10);
    let (pass, rewrite) = (Pass::Fuse, 3);
    let folder = std::env::temp_dir().join(format!("esper-wrong-rewrite-{}-{interprets}", std::process::id()));
    let passes = PassSet::all().with_wrong_rewrite(pass, rewrite);
    let options = CompileOptions { kernel_cache: Some(folder.clone()), ..CompileOptions::new(passes) };
    let (mut step, captured, compilation) = started(gpu, eager, options)?;
    let mut compiled = compilation.wait().map_err(|refusal| refused("compiling", refusal))?;
    step.load()?;
    let Err(refusal) = compiled.verify(&captured, POISON) else {
        return Err(Broken("the comparison found no difference".to_owned()));
    };
    promise(refusal.name() == "differs", || format!("refused for another reason: {refusal}"))?;
    let Some(mut search) = compiled.search(&refusal, interprets) else {
        return Err(Broken("no search was begun".to_owned()));
    };
    let found = loop {
        step.load()?;
        match search.step(&captured).map_err(|refusal| refused("a step of the search", refusal))? {
            Searched::Over(refusal) => break refusal,
            Searched::GoesOn => std::thread::sleep(PAUSE),
        }
        promise(step.num_steps() < MOST_STEPS, || format!("nothing was found in {MOST_STEPS} steps"))?;
    };
    let Refusal::WrongRewrite { pass: of, rewrite: number, reproducer: Some(file), .. } = &found else {
        return Err(Broken(format!("not found: {found}")));
    };
    promise((*of, *number) == (pass, rewrite), || format!("another rewrite was found: {found}"))?;
    let text = std::fs::read_to_string(file).map_err(|error| Broken(format!("{}: {error}", file.display())))?;
    std::fs::remove_dir_all(&folder).map_err(|error| Broken(format!("{}: {error}", folder.display())))?;
    let reproducer: Reproducer = text.parse().map_err(|error| Broken(format!("the reproducer: {error}")))?;
    let nodes = reproducer.program.nodes.len();
    let shown = bisect(&reproducer.program, &reproducer.passes, || true);
    let (is_shown, replayed) = match shown {
        Ok(again) => (again.culprit == reproducer.culprit, format!("{:?}", again.culprit)),
        Err(why) => (false, format!("nothing: {why}")),
    };
    promise(!interprets || is_shown, || format!("the reproducer shows {replayed}; {}", reproducer.difference))?;
    let num_steps = step.num_steps();
    let wrong = differing(&step.parameters()?, &eager_parameters(gpu, num_steps)?);
    promise(wrong == 0, || format!("{wrong} parameters differ from eager steps"))?;
    Ok(format!(
        "{found}: {nodes} nodes, shown without the model: {is_shown}; {num_steps} steps with the bits of eager ones"
    ))
}

/// A kernel of which nothing is known costs speed, not results.
fn unknown_kernel(gpu: &Gpu, eager: &mut Eager) -> Result<String, Broken> {
    let (mut step, captured, compilation) = started(gpu, eager, with_fault(PlantedFault::UnknownKernel))?;
    let mut compiled = compilation.wait().map_err(|refusal| refused("compiling", refusal))?;
    let unknown = compiled.report().unknown_kernels.clone();
    promise(unknown.keys().any(|name| name.contains("forgotten")), || format!("unknown kernels: {unknown:?}"))?;
    step.load()?;
    compiled.verify(&captured, POISON).map_err(|refusal| refused("the comparison", refusal))?;
    while step.num_steps() < STEPS {
        step.load()?;
        compiled.replay().map_err(|refusal| refused("a replay", refusal))?;
    }
    let wrong = differing(&step.parameters()?, &eager_parameters(gpu, STEPS)?);
    promise(wrong == 0, || format!("{wrong} parameters differ from eager steps"))?;
    let names: Vec<String> = unknown.iter().map(|(name, count)| format!("{count} {name}")).collect();
    Ok(format!("{STEPS} steps with the bits of eager ones, unknown: {}", names.join(", ")))
}

/// A number that stays where addresses move makes the two recordings two programs.
fn pointer_like_number(gpu: &Gpu, eager: &mut Eager) -> Result<String, Broken> {
    let (step, captured, compilation) = started(gpu, eager, with_fault(PlantedFault::PointerLikeNumber))?;
    let refusal = match compilation.wait() {
        Err(refusal) => refusal,
        Ok(_) => return Err(Broken("the recordings were taken for one program".to_owned())),
    };
    promise(refusal.name() == "not_twins", || format!("refused for another reason: {refusal}"))?;
    finish_captured(gpu, step, &captured)?;
    Ok(format!("{refusal}; {STEPS} steps with the bits of eager ones"))
}

/// Kernels of a program that accumulate like a product, but write to an operand too. They are left unknown, whatever they
/// are called, and the product of cuBLAS among them is not.
fn named_like_a_product(gpu: &Gpu, eager: &mut Eager) -> Result<String, Broken> {
    const NAMES: [&str; 2] = ["my_gemm_accumulate", "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_of_a_program"];
    const SIDE: usize = 64;
    let x = Draw::new(23, &gpu.device).uniform((SIDE, SIDE), 0.5)?;
    let zeros = || Tensor::zeros((SIDE, SIDE), DType::F32, &gpu.device);
    let results = [zeros()?, zeros()?, zeros()?, zeros()?];
    let region = || -> Result<(), Error> {
        let b = x.affine(2.0, 1.0)?;
        let product = x.matmul(&b)?;
        results[0].slice_set(&b.affine(3.0, 0.0)?, 0, 0)?;
        for (name, result) in NAMES.into_iter().zip(&results[1..]) {
            let sums = zeros()?;
            gpu.session.launch_planted(name, [&product, &b, &sums])?;
            result.slice_set(&(sums + &b)?, 0, 0)?;
        }
        Ok(results[3].slice_set(&b.affine(5.0, 0.0)?, 0, 0)?)
    };
    let read = || -> Result<Vec<f32>, Broken> {
        let mut reads = HostReads::default();
        let values =
            results.iter().map(|result| read_vec(result, "check", &mut reads)).collect::<Result<Vec<_>, _>>()?;
        Ok(values.concat())
    };
    for _ in 0..2 {
        gpu.session.warm(region)?;
    }
    let expected = read()?;
    let mut captured = capture(&gpu.session, eager, "a program's kernels", region)?;
    captured.hold("x", &x)?;
    results.iter().try_for_each(|result| captured.hold("a result", result))?;
    let mut drafts = Vec::new();
    for _ in 0..2 {
        let draft = eager.record(|recording| gpu.session.draft(recording, |_| region().map_err(|error| error.chain())));
        drafts.push(draft.map_err(|refusal| refused("a recording of a program's kernels", refusal))?);
    }
    let compilation = start(gpu, drafts, CompileOptions::new(PassSet::all()))?;
    let mut compiled = compilation.wait().map_err(|refusal| refused("compiling", refusal))?;
    compiled.verify(&captured, POISON).map_err(|refusal| refused("the comparison", refusal))?;
    for _ in 0..STEPS {
        results.iter().try_for_each(Tensor::zero_set)?;
        compiled.replay().map_err(|refusal| refused("a replay", refusal))?;
        let wrong = differing(&expected, &read()?);
        promise(wrong == 0, || format!("{wrong} of {} results differ from eager ones", expected.len()))?;
    }
    let unknown: Vec<&str> = compiled.report().unknown_kernels.keys().map(String::as_str).collect();
    promise(unknown == NAMES, || format!("expected only the program's own kernels to be unknown, found {unknown:?}"))?;
    Ok(format!("{STEPS} replays with the bits of eager runs, unknown: {}", unknown.join(", ")))
}

fn with_fault(fault: PlantedFault) -> CompileOptions {
    CompileOptions { fault: Some(fault), ..CompileOptions::new(PassSet::all()) }
}

/// A captured step whose compilation, with a fault in it, is under way.
pub(super) fn started(
    gpu: &Gpu,
    eager: &mut Eager,
    options: CompileOptions,
) -> Result<(OptimizerStep, Captured, Compilation), Broken> {
    let (step, plan, captured) = captured(gpu, eager, Workload::mlp(0, &gpu.device)?)?;
    let compilation = start(gpu, drafts(gpu, eager, &step, &plan)?, options)?;
    Ok((step, captured, compilation))
}

/// Goes on with the captured graph; nothing that happened before may have left a trace.
fn finish_captured(gpu: &Gpu, mut step: OptimizerStep, captured: &Captured) -> Result<(), Broken> {
    while step.num_steps() < STEPS {
        step.load()?;
        captured.replay().map_err(|refusal| refused("a replay", refusal))?;
    }
    let wrong = differing(&step.parameters()?, &eager_parameters(gpu, STEPS)?);
    promise(wrong == 0, || format!("{wrong} parameters differ from eager steps"))
}

pub(super) fn eager_parameters(gpu: &Gpu, num_steps: usize) -> Result<Vec<f32>, Broken> {
    let mut step = OptimizerStep::new(gpu, Workload::mlp(0, &gpu.device)?)?;
    for _ in 0..num_steps {
        step.eagerly(gpu)?;
    }
    Ok(step.parameters()?)
}

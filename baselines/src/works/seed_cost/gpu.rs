//! The cost of seeds on a GPU: kernels and device time of a recorded forward and backward pass.

use candle_core::{DType, Tensor, Var};
use esper_graph::NodeCounts;
use leyline::region::Eager;

use super::{Grown, Phase, Variant, WORK, Widths, forward_backward, plain};
use crate::error::Error;
use crate::gpu::open::{Gpu, refused, replay};
use crate::samples::Samples;
use crate::work::{Outcome, Setting, settings};

const WIDTHS: Widths = Widths { inputs: 784, hidden: &[512, 512, 512, 512, 512], classes: 10 };
const BATCH: usize = 128;
const SEED_WIDTH: usize = 32;
const WARM_UP: usize = 20;
const REPETITIONS: usize = 300;

const NOTES: &str = "plain: forward, loss and backward of the layers alone, recorded as one CUDA graph; none: the same layers \
    as a host with six free slots; PHASE_K: with K seeds of the first blueprint on offer, in the last K \
    slots; shadow_first_K, shadow_last_K: K shadows in the first and in the last K slots (with 4 of 6, two slots are in \
    both), since a side loss runs through all layers behind its seed. NAME.kernels, memsets, device_copies: nodes of the \
    graph (fails unless plain, none and germinated_K agree in each of the three). NAME.replay: device time of a replay by events (us). over_none: difference of the \
    medians. Graphs are as recorded, not compiled";

/// Fails when a slot without an active seed adds a kernel, a fill or a copy.
pub(super) fn run(setting: &Setting) -> Result<Outcome, Error> {
    let gpu = Gpu::open(setting)?;
    let mut eager = Eager::acquire()?;
    let mut samples = Samples::default();
    let values: Vec<f32> = (0..BATCH * WIDTHS.inputs).map(|i| ((i * 7 + 3) % 11) as f32 / 11.0 - 0.5).collect();
    let inputs = Tensor::from_vec(values, (BATCH, WIDTHS.inputs), &gpu.device)?;
    let targets: Vec<u32> = (0..10).cycle().take(BATCH).collect();
    let targets = Tensor::from_vec(targets, BATCH, &gpu.device)?;
    let loss = Var::zeros(1, DType::F32, &gpu.device)?;

    let layers = plain(WIDTHS, &gpu.device)?;
    let alone = || {
        let mut h = inputs.clone();
        for (index, [weight, bias]) in layers.iter().enumerate() {
            let activation =
                if index + 1 < layers.len() { esper_layers::Activation::Relu } else { esper_layers::Activation::None };
            let options = esper_layers::LinearOptions { activation, ..esper_layers::LinearOptions::default() };
            h = esper_layers::linear(&h, weight.as_tensor(), Some(bias.as_tensor()), &options)?;
        }
        let value = candle_nn::loss::cross_entropy(&h, &targets)?;
        value.backward()?;
        Ok(loss.slice_set(&value.detach().reshape(1)?, 0, 0)?)
    };
    let (plain_nodes, _) = measure(&gpu, &mut eager, "plain", &mut samples, alone)?;

    let mut base = None;
    let mut variants = vec![("none".to_owned(), None)];
    variants.extend(Variant::all().into_iter().map(|variant| (variant.name(), Some(variant))));
    for (name, seeds) in variants {
        let mut network = Grown::new(WIDTHS, SEED_WIDTH, &gpu.device, &gpu.clock)?;
        if let Some(variant) = seeds {
            network.grow(&mut eager, variant)?;
        }
        let region = || {
            let value = forward_backward(network.model(), &inputs, &targets)?;
            Ok(loss.slice_set(&value.detach().reshape(1)?, 0, 0)?)
        };
        let (found, median) = measure(&gpu, &mut eager, &name, &mut samples, region)?;
        if seeds.is_none_or(|variant: Variant| variant.phase == Phase::Germinated) {
            require_same(&name, &found, &plain_nodes)?;
        }
        let none = *base.get_or_insert(median);
        samples.push(format!("{name}.over_none"), "us", median - none);
    }
    let config = settings([("network", format!("{WIDTHS}, batch {BATCH}, f32, seed width {SEED_WIDTH}"))]);
    Ok(gpu.result(WORK.name, NOTES, config, samples).into())
}

/// Fails where a step without an active seed does other work than one without slots.
fn require_same(name: &str, found: &NodeCounts, expected: &NodeCounts) -> Result<(), Error> {
    for (kind, found, expected) in [
        ("kernels", found.kernels, expected.kernels),
        ("memsets", found.memsets, expected.memsets),
        ("device copies", found.device_copies, expected.device_copies),
    ] {
        if found != expected {
            let what = format!("{name}: {kind} of a step without an active seed");
            return Err(Error::WrongResult { what, expected: expected as f64, found: found as f64 });
        }
    }
    Ok(())
}

/// Nodes and median device time of a region.
fn measure(
    gpu: &Gpu,
    eager: &mut Eager,
    name: &str,
    samples: &mut Samples,
    region: impl Fn() -> Result<(), Error>,
) -> Result<(NodeCounts, f64), Error> {
    let captured = gpu.warm_and_capture(eager, name, region)?;
    let nodes = captured.report().nodes.clone();
    samples.push(format!("{name}.kernels"), "count", nodes.kernels as f64);
    samples.push(format!("{name}.memsets"), "count", nodes.memsets as f64);
    samples.push(format!("{name}.device_copies"), "count", nodes.device_copies as f64);
    let mut timer = gpu.session.timer().map_err(|refusal| refused("a timer", refusal))?;
    for index in 0..WARM_UP + REPETITIONS {
        gpu.session.time(&mut timer, || replay(&captured))?;
        gpu.wait()?;
        if let Some(ms) = timer.last_ms().filter(|_| index >= WARM_UP) {
            samples.push(format!("{name}.replay"), "us", ms * 1e3);
        }
    }
    Ok((nodes, samples.median(&format!("{name}.replay")).unwrap_or(f64::NAN)))
}

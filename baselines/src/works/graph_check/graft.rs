//! A graft into a network of about 5 million parameters: eager steps meanwhile, back on replay within three.

use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::SeedManager as _;
use tolaria::aggregate::ConflictResolution;
use tolaria::optim::OptimizerConfig;
use tolaria::trainer::{StepMode, TrainPrecision};

use crate::gpu::growing::{Growing, in_mode, perceptron};
use crate::gpu::open::Gpu;
use crate::gpu::report::{Broken, Report, promise};
use crate::samples::Samples;

/// The stall that a capture may cause, ms.
const BAR_MS: f64 = 10.0;

pub(super) fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    report.check("graft.five_million", |samples| five_million(gpu, eager, samples));
}

fn five_million(gpu: &Gpu, eager: &mut Eager, samples: &mut Samples) -> Result<String, Broken> {
    let growing = Growing {
        host: perceptron(784, vec![2048, 1536]),
        num_samples: 128 * 16,
        batch_size: 128,
        microbatches: 1,
        epochs: 20,
        stage_epochs: 2,
        optimizer: OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 },
        conflict: ConflictResolution::Mean,
        execution: in_mode(StepMode::Graph),
        data_on_host: false,
        seed_width: 32,
        precision: TrainPrecision::F32,
        checkpointing: kasmina::ActivationCheckpointing::None,
    };
    let (trainer, _) = growing.finish(gpu, eager)?;
    if let Some(refusal) = trainer.last_refusal() {
        return Err(Broken(format!("a shape was refused: {refusal}")));
    }
    let stats = trainer.graph_stats();
    let mut stalls = Vec::new();
    for (key, row) in &stats.per_key {
        promise(row.misses <= 2, || format!("{key}: {} eager steps before the first replay", row.misses))?;
        let (Some(capture), Some(instantiate)) = (row.capture_ms, row.instantiate_ms) else { continue };
        samples.push("graft.capture", "ms", capture.last);
        samples.push("graft.instantiate", "ms", instantiate.last);
        samples.push("graft.stall", "ms", capture.last + instantiate.last);
        stalls.push(capture.last + instantiate.last);
    }
    let slowest = stalls.iter().copied().fold(0.0, f64::max);
    promise(stalls.len() >= 2, || format!("{} structures were captured", stalls.len()))?;
    promise(slowest <= BAR_MS, || format!("the slowest capture took {slowest:.3} ms, more than {BAR_MS}"))?;
    let parameters = trainer.seeds().model().layout().num_elements();
    Ok(format!(
        "{parameters} parameters, {} structures, 2 eager steps each, slowest capture with instantiation {slowest:.3} ms",
        stalls.len()
    ))
}

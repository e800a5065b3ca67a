//! Memory of a step with all activations kept, and with those of blocks computed again: less, however the step runs.

use std::thread;
use std::time::Duration;

use esper_graph::PeakMemory;
use kasmina::ActivationCheckpointing;
use kasmina::host::HostConfig;
use leyline::error::BoxError;
use leyline::region::Eager;
use tolaria::optim::OptimizerConfig;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Flow, Observer, StepMode, StepReport};

use crate::gpu::growing::{Growing, in_mode};
use crate::gpu::open::Gpu;
use crate::gpu::report::{Broken, Report, promise};

/// Steps until the largest shape is captured, and compiled where it is to be.
const BEFORE: u64 = 300;
/// Steps whose memory counts.
const MEASURED: u64 = 40;
/// After each step before, so that there is time to compile.
const PAUSE: Duration = Duration::from_millis(20);

pub(super) fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    for (mode_name, mode) in
        [("eager", StepMode::Eager), ("captured", StepMode::Graph), ("compiled", StepMode::Compiled)]
    {
        let name = format!("memory.activations.{mode_name}");
        report.check(name.clone(), |samples| {
            let [all, blocks] = [ActivationCheckpointing::None, ActivationCheckpointing::Blocks]
                .map(|checkpointing| peak(gpu, eager, &language_model(mode, checkpointing)));
            let (all, blocks) = (all?, blocks?);
            for (kept, Seen { peak, .. }) in [("none", &all), ("blocks", &blocks)] {
                samples.push(format!("{name}.{kept}.tensors"), "bytes", peak.tensors as f64);
                samples.push(format!("{name}.{kept}.graphs"), "bytes", peak.graphs as f64);
            }
            for (kept, Seen { arena, .. }) in [("none", &all), ("blocks", &blocks)] {
                // Within `tensors`.
                samples.extend_from(format!("{name}.{kept}.arena"), "bytes", arena.map(|bytes| bytes as f64));
            }
            let total = |Seen { peak: PeakMemory { graphs, tensors }, .. }: &Seen| graphs + tensors;
            let [all, blocks] = [total(&all), total(&blocks)];
            promise(blocks < all, || format!("{blocks} bytes with blocks computed again, {all} with all kept"))?;
            Ok(format!("{all} bytes at once with all activations kept, {blocks} with blocks computed again"))
        });
    }
}

/// Six blocks, in which what is kept is many times their parameters; one epoch, in which nothing grows.
fn language_model(mode: StepMode, checkpointing: ActivationCheckpointing) -> Growing {
    let host = HostConfig::LanguageModel {
        context: 256,
        width: 128,
        heads: 4,
        layers: 6,
        mlp_ratio: 4,
        tied: false,
        vocabulary: 64,
    };
    let sgd = OptimizerConfig::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    let small = Growing { epochs: 1, execution: in_mode(mode), checkpointing, ..Growing::small(1, sgd) };
    let steps = usize::try_from(BEFORE + MEASURED).expect("some hundred steps") + 1;
    Growing { host, num_samples: small.batch_size * steps, ..small }
}

/// What a run took.
struct Seen {
    peak: PeakMemory,
    /// Of the compiled graph.
    arena: Option<usize>,
}

fn peak(gpu: &Gpu, eager: &mut Eager, growing: &Growing) -> Result<Seen, Broken> {
    let mut trainer = growing.trainer(gpu)?;
    let mut watch = Watch { gpu, pauses: growing.execution.mode == StepMode::Compiled, found: None };
    trainer.run(eager, &mut watch)?;
    let peak = watch.found.unwrap_or_else(|| Err(Broken(format!("no {} steps were taken", BEFORE + MEASURED))))?;
    if let Some(refusal) = trainer.last_refusal().or(trainer.last_compile_refusal()) {
        return Err(Broken(format!("a shape was refused: {refusal}")));
    }
    let (replays, compiled) = (trainer.graph_stats().total.replays, trainer.num_compiled_replays());
    let (of, enough) = match growing.execution.mode {
        StepMode::Eager => ("eager", replays == 0),
        StepMode::Graph => ("replayed", replays > MEASURED && compiled == 0),
        StepMode::Compiled => ("compiled", compiled > MEASURED),
    };
    promise(enough, || {
        format!("of {MEASURED} steps that count not all were {of}: {replays} replays, {compiled} compiled")
    })?;
    Ok(Seen { peak, arena: trainer.compile_report().map(|report| report.arena_bytes) })
}

/// Begins to measure after some steps, and ends the run after some more.
struct Watch<'a> {
    gpu: &'a Gpu,
    pauses: bool,
    found: Option<Result<PeakMemory, Broken>>,
}

impl Watch<'_> {
    /// When the device has nothing left to do, and no memory of graphs that are gone.
    fn begin(&self) -> Result<(), Broken> {
        self.gpu.wait()?;
        let begun = self.gpu.session.trim_graph_memory().and_then(|()| self.gpu.session.restart_peak_memory());
        begun.map_err(|refusal| Broken(refusal.to_string()))
    }

    fn end(&self) -> Result<PeakMemory, Broken> {
        self.gpu.wait()?;
        self.gpu.session.peak_memory().map_err(|refusal| Broken(refusal.to_string()))
    }
}

impl Observer for Watch<'_> {
    fn step(&mut self, report: &StepReport<'_>) -> Flow {
        match report.step.0 {
            step if step < BEFORE && self.pauses => thread::sleep(PAUSE),
            BEFORE => self.found = self.begin().err().map(Err),
            step if step >= BEFORE + MEASURED => {
                self.found = self.found.take().or_else(|| Some(self.end()));
                return Flow::Stop;
            }
            _ => {}
        }
        Flow::Continue
    }

    fn epoch_finished(&mut self, _: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use candle_core::Device;
    use leyline::clock::{Clock, SystemClock};

    use super::*;

    #[test]
    fn what_is_measured_ends_within_the_first_epoch_of_a_network_with_blocks() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        for checkpointing in [ActivationCheckpointing::None, ActivationCheckpointing::Blocks] {
            let growing = language_model(StepMode::Compiled, checkpointing);
            assert!((growing.num_samples / growing.batch_size) as u64 > BEFORE + MEASURED);
            assert!(growing.trainer_on(&Device::Cpu, &clock).is_ok());
        }
    }
}

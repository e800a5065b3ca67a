//! Going back across a germination, in every stage of a seed and in the middle of a ramp: the bits of a run that never left.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use candle_core::Device;
use leyline::clock::Clock;
use leyline::error::BoxError;
use leyline::id::StepIndex;
use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::{SeedManager as _, SeedStage};
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Flow, NullObserver, Observer, RecoveryConfig, StepMode};

use super::frozen::execution;
use super::ramp::{EPOCHS, Ramp, RampTrainer, STEPS_PER_EPOCH, ramps};
use crate::gpu::growing::{differing, values_of};
use crate::gpu::open::Gpu;
use crate::gpu::report::{Broken, Report, promise};

const STEPS: u64 = STEPS_PER_EPOCH as u64;
/// Steps from a state to the place from which the run goes back to it: some of an epoch, and over the end of one.
const AWAY: [u64; 2] = [9, STEPS];
const COMPILING: Duration = Duration::from_millis(15);

pub(super) fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    for (name, ramp) in ramps() {
        for (mode_name, mode) in [("graph", StepMode::Graph), ("compiled", StepMode::Compiled)] {
            let name = name.replacen("ramp", "rollback", 1);
            report.check(format!("{name}.{mode_name}"), |_| {
                let seen = goes_back(&ramp, &gpu.device, &gpu.clock, mode, eager)?;
                let Seen { trainer, .. } = &seen;
                if let Some(refusal) = trainer.last_refusal() {
                    return Err(Broken(format!("a shape was refused: {refusal}")));
                }
                let (replays, compiled) = (trainer.graph_stats().total.replays, trainer.num_compiled_replays());
                promise(replays > 0 && (compiled > 0) == (mode == StepMode::Compiled), || {
                    format!("{replays} replays, {compiled} of them compiled: {:?}", trainer.last_compile_refusal())
                })?;
                Ok(format!("{}, {replays} replays, {compiled} of them compiled", seen.told))
            });
        }
    }
}

/// A run that went back on its way.
struct Seen {
    trainer: RampTrainer,
    told: String,
}

/// Trains without a break, and once more with a way back to each of many states.
fn goes_back(
    ramp: &Ramp,
    device: &Device,
    clock: &Arc<dyn Clock>,
    mode: StepMode,
    eager: &mut Eager,
) -> Result<Seen, Broken> {
    let recovery = || RecoveryConfig { memory_mib: 64, ..RecoveryConfig::default() };
    let mut whole = ramp.trainer_with(device, clock, execution(mode), recovery())?;
    whole.run(eager, &mut NullObserver)?;
    let expected = values_of(whole.seeds().model().parameters())?;

    let mut trainer = ramp.trainer_with(device, clock, execution(mode), recovery())?;
    // Compiles take longer than the few steps between two ways back, which let go of what they were for.
    let pause = if mode == StepMode::Compiled && !device.is_cpu() { COMPILING } else { Duration::ZERO };
    let (mut stages, mut num_amid, mut num_over_growth, mut num_ways) = (BTreeSet::new(), 0, 0, 0);
    // Near the end of an epoch, right after it, and its middle.
    let kept = (0..EPOCHS - 1).flat_map(|epoch| [1, STEPS / 2, STEPS - 1].map(|step| epoch * STEPS + step));
    for (index, step) in kept.enumerate() {
        trainer.run(eager, &mut StopAt(step, pause))?;
        promise(trainer.keep_state(eager)?, || "there is no room for a state".to_owned())?;
        trainer.confirm_state();
        let before = trainer.seeds().model().layout().num_elements();
        for seed in trainer.seeds().export_seed_states(eager).map_err(|error| Broken(error.to_string()))? {
            stages.insert(seed.stage);
            num_amid += u64::from(!seed.alpha.is_zero() && !seed.alpha.is_one());
        }
        trainer.run(eager, &mut StopAt(step + AWAY[index % 2], pause))?;
        num_over_growth += u64::from(trainer.seeds().model().layout().num_elements() != before);
        let back = trainer.roll_back(eager)?;
        promise(back.to == StepIndex(step), || format!("it went back to step {}, not to {step}", back.to))?;
        num_ways += 1;
    }
    trainer.run(eager, &mut NullObserver)?;
    let found = values_of(trainer.seeds().model().parameters())?;
    let wrong = differing(&expected, &found);
    promise(wrong == 0, || format!("{wrong} of {} parameters differ", found.len()))?;
    let needed = [SeedStage::Training, SeedStage::Blending, SeedStage::Holding];
    let is_all = needed.iter().all(|stage| stages.contains(stage)) && num_amid > 0 && num_over_growth > 0;
    promise(is_all, || format!("stages {stages:?}, {num_amid} amid a ramp, {num_over_growth} over a germination"))?;
    let stages: Vec<String> = stages.iter().map(ToString::to_string).collect();
    let told = format!(
        "{num_ways} ways back, to a seed in {}, {num_amid} of them amid its ramp, {num_over_growth} over a change of structure: 0 of {} parameters differ",
        stages.join(", "),
        found.len()
    );
    Ok(Seen { trainer, told })
}

/// Stops at a step, and waits so long after each before.
struct StopAt(u64, Duration);

impl Observer for StopAt {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        thread::sleep(self.1);
        if step.0 == self.0 { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use leyline::clock::SystemClock;

    use super::*;

    /// What the checks do on a GPU ends with the same bits on the CPU, where steps run eagerly.
    #[test]
    fn going_back_leaves_no_trace_on_the_cpu() {
        let (mut eager, clock) = (Eager::acquire().unwrap(), Arc::new(SystemClock::default()) as Arc<dyn Clock>);
        let (name, ramp) = ramps().swap_remove(0);
        let seen = goes_back(&ramp, &Device::Cpu, &clock, StepMode::Compiled, &mut eager);
        assert!(seen.map_err(|Broken(text)| text).expect(&name).told.contains("0 of"));
    }
}

//! The drills themselves.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::thread;

use candle_core::Device;
use esper_telemetry::QueueConfig;
use tolaria::checkpoint::{CheckpointReader, StdFs};
use tolaria::trainer::{ExecutionConfig, Level, Origin, Outcome, RecoveryConfig, SafetyConfig, StepMode, TrainConfig};

use super::faults::{DELAY, Switch};
use super::normal::normal_epoch;
use super::world::{Does, EPOCHS, STEPS, Seen, World, settings};
use super::{Drill, Failed, Names, expect};

/// Every drill, in the order in which they run.
pub(crate) const ALL: &[Drill] = &[
    Drill {
        name: "normal-epoch",
        about: "nothing goes wrong: a seed lives through whole epochs, and all subsystems tell of it",
        names: Names {
            metrics: &[
                "tolaria.epochs.total",
                "tolaria.steps.total",
                "tolaria.checkpoint.saves_total",
                "tolaria.grad_agg.seed.share",
                "kasmina.seed.stage",
                "kasmina.seed.parameters",
                "kasmina.command_verifier.accepted_total",
                "tamiyo.decision.total",
                "tamiyo.validation_loss",
                "esper.telemetry.packets_total",
            ],
            events: &["tamiyo.decision", "seed_operation", "seed_stage", "gate_event"],
        },
        needs_gpu: false,
        run: normal_epoch,
    },
    Drill {
        name: "policy-timeout",
        about: "the policy answers late: its answer is dropped, and nothing grows until it is back",
        names: Names {
            metrics: &[
                "tolaria.timeout.tamiyo_total",
                "tolaria.timeout.late_answers_total",
                "tolaria.mode.conservative_entered_total",
            ],
            events: &[
                "tolaria.tamiyo_timeout",
                "tolaria.conservative_mode_entered",
                "tolaria.conservative_mode_cleared",
            ],
        },
        needs_gpu: false,
        run: policy_timeout,
    },
    Drill {
        name: "seed-manager-timeout",
        about: "the seed manager takes too long: that is counted, and nothing grows until it is fast again",
        names: Names {
            metrics: &["tolaria.timeout.kasmina_total", "tolaria.mode.conservative_entered_total"],
            events: &[
                "tolaria.kasmina_timeout",
                "tolaria.conservative_mode_entered",
                "tolaria.conservative_mode_cleared",
            ],
        },
        needs_gpu: false,
        run: seed_manager_timeout,
    },
    Drill {
        name: "rollback-deadline",
        about: "going back takes longer than it may: it is discarded, the trainer is as it was, and the run ends",
        names: Names {
            metrics: &[
                "tolaria.rollback.deadline_exceeded_total",
                "tolaria.rollback.failures_total",
                "tolaria.epochs.failed",
            ],
            events: &["tolaria.diverged", "tolaria.rollback.restore_failed"],
        },
        needs_gpu: false,
        run: rollback_deadline,
    },
    Drill {
        name: "emergency-halt",
        about: "an operator raises the emergency level to a halt: the run writes a checkpoint and ends, and can go on from there",
        names: Names {
            metrics: &[
                "tolaria.emergency.level",
                "tolaria.emergency.halt",
                "tolaria.emergency.halts_total",
                "tolaria.checkpoint.saves_total",
            ],
            events: &["tolaria.emergency.escalated", "tolaria.emergency.halt"],
        },
        needs_gpu: false,
        run: emergency_halt,
    },
    Drill {
        name: "capture-failure",
        about: "a step cannot be recorded: it runs eagerly, and says why",
        names: Names {
            metrics: &["tolaria.graph.fallback_total", "tolaria.steps.total"],
            events: &["tolaria.graph_fallback"],
        },
        needs_gpu: true,
        run: capture_failure,
    },
    Drill {
        name: "frozen-value",
        about: "a number of the host moves under recorded steps: no decision, evaluation or checkpoint sees what they computed",
        names: Names {
            metrics: &["tolaria.graph.tests_total", "tolaria.epochs.failed"],
            events: &["tolaria.graph_fallback"],
        },
        needs_gpu: true,
        run: frozen_value,
    },
    Drill {
        name: "sink-stall",
        about: "telemetry cannot be written: training does not wait, and what is lost is counted",
        names: Names { metrics: &["esper.telemetry.dropped_total", "tolaria.epochs.total"], events: &[] },
        needs_gpu: false,
        run: sink_stall,
    },
    Drill {
        name: "disk-full",
        about: "no checkpoint fits on the disk for a while: training goes on, and the one before stays valid",
        names: Names {
            metrics: &["tolaria.checkpoint.save_failures_total", "tolaria.checkpoint.saves_total"],
            events: &["tolaria.checkpoint_failed"],
        },
        needs_gpu: false,
        run: disk_full,
    },
    Drill {
        name: "nan",
        about: "a parameter becomes no number: it is named, the run goes back, and the learning rate falls",
        names: Names {
            metrics: &[
                "tolaria.rollback.fast_hits_total",
                "tolaria.rollback.snapshots_total",
                "tolaria.rollback.fast_size_bytes",
                "tolaria.steps.skipped_total",
            ],
            events: &["tolaria.diverged", "tolaria.rollback.restored"],
        },
        needs_gpu: false,
        run: nan,
    },
    Drill {
        name: "lost-device",
        about: "every call of the device fails from one step on: the run ends, and another process goes on from its checkpoint",
        names: Names { metrics: &["tolaria.epochs.failed", "tolaria.checkpoint.saves_total"], events: &[] },
        needs_gpu: false,
        run: lost_device,
    },
];

/// Time that policy and seed manager have.
const PATIENCE_MS: NonZeroU64 = NonZeroU64::new(50).expect("a literal above 0");

/// Somebody is slow when the second epoch ends, and has had time to come back before the fourth does.
fn slow_once(device: &Device, safety: SafetyConfig, of: fn(&World) -> &Switch) -> Result<World, Failed> {
    let expected = World::undisturbed(device, settings())?;
    let mut world = World::new(device, TrainConfig { safety, ..settings() })?;
    let is_slow = of(&world).clone();
    world.complete(|step| {
        is_slow.set((STEPS + 1..2 * STEPS + 1).contains(&step));
        if step == 3 * STEPS + 1 {
            thread::sleep(2 * DELAY);
        }
    })?;
    expect(world.bits()? == expected, || "the run came to other bits".to_owned())?;
    Ok(world)
}

fn policy_timeout(device: &Device) -> Result<Seen, Failed> {
    let safety = SafetyConfig { policy_ms: Some(PATIENCE_MS), ..SafetyConfig::default() };
    let world = slow_once(device, safety, |world| &world.slow.policy)?;
    world.close(
        "one answer came late and was dropped; conservative, and normal again; the bits of a run without".to_owned(),
    )
}

fn seed_manager_timeout(device: &Device) -> Result<Seen, Failed> {
    let safety = SafetyConfig { seeds_ms: Some(PATIENCE_MS), ..SafetyConfig::default() };
    let world = slow_once(device, safety, |world| &world.slow.seeds)?;
    world.close(
        "one call took too long and was counted; conservative, and normal again; the bits of a run without".to_owned(),
    )
}

fn nan(device: &Device) -> Result<Seen, Failed> {
    let mut world = World::new(device, settings())?;
    world.run_to(STEPS + 3)?;
    world.plant_nan()?;
    let back = world.complete(|_| ())?;
    let bits = world.bits()?;
    expect(bits.iter().all(|bits| f32::from_bits(*bits).is_finite()), || {
        "the network ended without numbers".to_owned()
    })?;
    let [told] = back.as_slice() else { return Err(Failed(format!("it went back so often: {back:?}"))) };
    expect(told.starts_with("parameter `weight`"), || format!("the culprit is another one: {told}"))?;
    let told = told.clone();
    world.close(told)
}

fn rollback_deadline(device: &Device) -> Result<Seen, Failed> {
    let recovery = RecoveryConfig { deadline_ms: NonZeroU64::new(5), ..settings().recovery };
    let mut world = World::new(device, TrainConfig { recovery, ..settings() })?;
    world.run_to(STEPS + 3)?;
    world.plant_nan()?;
    world.clock.is_slow.set(true);
    let (ended, back) = world.run(|_| ());
    expect(matches!(ended, Err(tolaria::Error::LateRestore)), || format!("the run ended as {ended:?}"))?;
    expect(back.is_empty(), || format!("a restore that was late was kept: {back:?}"))?;
    let at = world.trainer.progress().1;
    expect(at.0 > STEPS + 3, || format!("the trainer is at step {at}, where it was not before"))?;
    // In time it still can.
    world.clock.is_slow.set(false);
    let to = world.trainer.roll_back(&mut world.eager)?.to;
    world.close(format!("late at step {at}, discarded; in time it went back to step {to}"))
}

fn emergency_halt(device: &Device) -> Result<Seen, Failed> {
    let expected = World::undisturbed(device, settings())?;
    let mut world = World::new(device, settings())?;
    let emergency = world.trainer.emergency();
    let (ended, _) = world.run(|step| {
        if step == STEPS + 3 {
            emergency.set(Origin::Operator, Level::Halt, "drill");
        }
    });
    let ended = ended?;
    let at = world.trainer.progress().1.0;
    expect(ended == Outcome::Halted && at <= STEPS + 4, || format!("the run ended as {ended:?} at step {at}"))?;
    let (dir, seen) = (world.folder(), world.close(String::new())?);
    let mut again = World::again(device, settings(), dir)?;
    let resumed = again.trainer.resume(&mut again.eager)?.ok_or_else(|| Failed("there is no checkpoint".to_owned()))?;
    expect(resumed.step.0 == at, || format!("the checkpoint is of step {}, not {at}", resumed.step))?;
    again.complete(|_| ())?;
    expect(again.bits()? == expected, || "the resumed run came to other bits".to_owned())?;
    Ok(Seen { told: format!("halted at step {at} with a checkpoint; resumed to the bits of a run without"), ..seen })
}

fn disk_full(device: &Device) -> Result<Seen, Failed> {
    let expected = World::undisturbed(device, settings())?;
    let mut world = World::new(device, settings())?;
    let is_full = world.disk.is_full.clone();
    // Full when the second and the third epoch end.
    world.complete(|step| is_full.set((STEPS + 1..3 * STEPS + 1).contains(&step)))?;
    expect(world.bits()? == expected, || "the run came to other bits".to_owned())?;
    let reader = CheckpointReader::new(world.folder().path(), Arc::new(StdFs));
    let newest = reader.load_latest()?.ok_or_else(|| Failed("there is no checkpoint".to_owned()))?;
    let at = newest.snapshot.meta.epoch;
    expect(at.0 == EPOCHS && newest.skipped.is_empty(), || format!("the newest checkpoint is of epoch {at}"))?;
    world.close(format!(
        "two checkpoints failed, the run has the bits of one without, and its last checkpoint is of epoch {at}"
    ))
}

fn sink_stall(device: &Device) -> Result<Seen, Failed> {
    let queue = QueueConfig { capacity: NonZeroUsize::new(8).expect("a literal above 0") };
    let mut world = World::with_queue(device, settings(), 4 * EPOCHS, queue)?;
    world.sink_is_stuck.set(true);
    // To its end, with nobody who takes a packet.
    world.complete(|_| ())?;
    let stats = world.stats();
    world.sink_is_stuck.set(false);
    expect(stats.packets.dropped > 0, || format!("no packet was lost: {stats:?}"))?;
    let dropped = stats.packets.dropped;
    let seen =
        world.close(format!("{dropped} packets were lost and counted, {} epochs trained meanwhile", 4 * EPOCHS))?;
    expect(seen.metric("tolaria.epochs.total") >= (4 * EPOCHS) as f64, || "epochs are missing".to_owned())?;
    Ok(seen)
}

fn lost_device(device: &Device) -> Result<Seen, Failed> {
    let expected = World::undisturbed(device, settings())?;
    let mut world = World::new(device, settings())?;
    world.run_to(2 * STEPS + 3)?;
    world.let_it(Does::Fail);
    let (ended, _) = world.run(|_| ());
    let Err(error) = ended else { return Err(Failed(format!("the run ended as {ended:?}"))) };
    let (dir, seen) = (world.folder(), world.close(String::new())?);
    let mut again = World::again(device, settings(), dir)?;
    let resumed = again.trainer.resume(&mut again.eager)?.ok_or_else(|| Failed("there is no checkpoint".to_owned()))?;
    again.complete(|_| ())?;
    expect(again.bits()? == expected, || "the resumed run came to other bits".to_owned())?;
    let error = anyhow::Error::new(error);
    let told = format!("{error:#}; resumed from step {} to the bits of a run without", resumed.step);
    Ok(Seen { told, ..seen })
}

/// As soon as they can be, steps are recorded.
fn recorded() -> TrainConfig {
    TrainConfig { execution: ExecutionConfig { mode: StepMode::Graph, ..ExecutionConfig::default() }, ..settings() }
}

fn capture_failure(device: &Device) -> Result<Seen, Failed> {
    let expected = World::undisturbed(device, settings())?;
    let mut world = World::new(device, recorded())?;
    world.let_it(Does::Read);
    world.complete(|_| ())?;
    let refusal = world.trainer.last_refusal().map(ToString::to_string);
    let refusal = refusal.ok_or_else(|| Failed("steps that read from the device were recorded".to_owned()))?;
    expect(world.bits()? == expected, || "the run came to other bits".to_owned())?;
    world.close(refusal)
}

fn frozen_value(device: &Device) -> Result<Seen, Failed> {
    let mut world = World::new(device, recorded())?;
    world.run_to(2 * STEPS + 3)?;
    // After the test that comes with the stop there are replays again before it moves.
    let does = world.scaler();
    let (ended, _) = world.run(|step| {
        if step == 2 * STEPS + 6 {
            does();
        }
    });
    let Err(error @ tolaria::Error::FrozenValue { .. }) = ended else {
        return Err(Failed(format!("the run ended as {ended:?}")));
    };
    expect(world.bits().is_err(), || "what they computed can be saved".to_owned())?;
    world.close(error.to_string())
}

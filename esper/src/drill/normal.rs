//! Nothing goes wrong: the whole command, until a seed has gone through its life, with all its telemetry.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use candle_core::{Device, DeviceLocation};
use esper_disk::StdFs;
use esper_telemetry::Packet;
use esper_telemetry::reader::FrameReader;
use leyline::telemetry::Level;

use super::world::Seen;
use super::{Failed, expect};
use crate::progress::ProgressMode;
use crate::run::{OtlpArgs, TrainArgs, train_quietly};
use crate::serve::ServeArgs;
use crate::signature::SignatureArgs;

const EPOCHS: u64 = 14;
/// Few samples, and a policy that tries a seed at once.
const SETTINGS: [&str; 6] = [
    "data.test_fraction=0.6",
    "seeds.gates.holding_min_epochs=1",
    "policy.heuristic.germination.min_epoch=1",
    "policy.heuristic.plateau.patience_epochs=1",
    "policy.heuristic.plateau.min_relative_gain=1.0",
    "policy.heuristic.looking.max_share=1.0",
];
/// What stays 0 where nothing goes wrong.
const LOSSES: [&str; 5] = [
    "esper.telemetry.dropped_total",
    "tolaria.checkpoint.save_failures_total",
    "tolaria.epochs.failed",
    "tolaria.rollback.failures_total",
    "tolaria.steps.skipped_total",
];

pub(super) fn normal_epoch(device: &Device) -> Result<Seen, Failed> {
    let dir = tempfile::tempdir()?;
    let run = dir.path().join("run");
    let device = match device.location() {
        DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        DeviceLocation::Cpu | DeviceLocation::Metal { .. } => "cpu".to_owned(),
    };
    let arguments = TrainArgs {
        config: None,
        data: Some("digits".to_owned()),
        tokenizer: None,
        device: Some(device),
        gpu_dataset: None,
        policy: None,
        policy_file: None,
        epochs: Some(EPOCHS.to_string()),
        max_steps: None,
        seed: None,
        out: Some(run.clone()),
        resume: false,
        set: SETTINGS.map(str::to_owned).to_vec(),
        signature: SignatureArgs::default(),
        json: false,
        tui: false,
        progress: ProgressMode::Off,
        tensorboard: None,
        serve: ServeArgs::default(),
        otlp: OtlpArgs::default(),
    };
    let ended = train_quietly(&arguments, Arc::new(StdFs))?;
    expect(ended == ExitCode::SUCCESS, || format!("the run ended with {ended:?}"))?;
    let packets = FrameReader::open(&run.join("packets.bin"))?.collect::<Result<Vec<_>, _>>()?;
    look(&packets)
}

/// What the packets hold; the run is not normal when something was lost, is critical, or no seed lived through an epoch.
fn look(packets: &[Packet]) -> Result<Seen, Failed> {
    let mut seen = Seen::default();
    let mut lived = 0;
    let (mut before, mut epoch): (Vec<&str>, u64) = (Vec::new(), 0);
    for packet in packets {
        let mut values: BTreeMap<&str, f64> = BTreeMap::new();
        for metric in &packet.metrics {
            *values.entry(&metric.name).or_insert(0.0) += metric.value;
        }
        for (name, value) in values {
            let highest = seen.metrics.entry(name.to_owned()).or_insert(value);
            *highest = highest.max(value);
        }
        for event in &packet.events {
            expect(event.level < Level::Critical, || format!("epoch {}: the event {}", packet.epoch, event.name))?;
            seen.events.insert(event.name.clone());
        }
        let stages = packet.metrics.iter().filter(|metric| metric.name == "kasmina.seed.stage");
        let now: Vec<&str> = stages.map(|metric| metric.labels["seed_id"].as_str()).collect();
        // There are packets within an epoch, too.
        if packet.epoch.0 > epoch {
            lived += u64::from(now.iter().any(|seed| before.contains(seed)));
            (before, epoch) = (now, packet.epoch.0);
        }
    }
    for name in LOSSES {
        let found = seen.metrics.get(name);
        expect(found == Some(&0.0), || format!("{name} is {found:?}"))?;
    }
    expect(lived > 0, || "no seed lived through an epoch".to_owned())?;
    seen.told =
        format!("{EPOCHS} epochs, {lived} of them with a living seed; no step, epoch, checkpoint or packet was lost");
    Ok(seen)
}

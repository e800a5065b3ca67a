//! The run that is disturbed, and what must hold of its folder before and after it went on.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use esper_disk::StdFs;
use esper_signing::Journal;
use esper_telemetry::sink::FrameSink;
use integration_tests::run_folder::{RUN, train};
use leyline::durable::SavedState;
use serde_json::Value;
use tolaria::checkpoint::CheckpointReader;
use tolaria::host_read::{HostReads, read_vec};
use tolaria::trainer::report::EpochReport;

/// What a run comes to, without what differs between processes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ended {
    checkpoint: Vec<(String, Value, Vec<u32>)>,
    pub(crate) epochs: Vec<Value>,
    summary: Vec<Value>,
    files: BTreeSet<String>,
}

/// What the run comes to when nobody disturbs it.
pub(crate) fn undisturbed() -> &'static Ended {
    static ENDED: OnceLock<Ended> = OnceLock::new();
    ENDED.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        train(dir.path(), Arc::new(StdFs), false).unwrap();
        Ended::read(&dir.path().join(RUN))
    })
}

impl Ended {
    /// Of a folder whose run has ended.
    pub(crate) fn read(run: &Path) -> Self {
        let reader = CheckpointReader::new(run.join("checkpoints"), Arc::new(StdFs));
        let bits = |tensor: &candle_core::Tensor| {
            read_vec(tensor, "test", &mut HostReads::default()).unwrap().into_iter().map(f32::to_bits)
        };
        let of = |(name, state): (String, SavedState)| {
            let mut document: Value = serde_json::from_str(&state.json).unwrap();
            if let Some(fields) = document.as_object_mut() {
                fields.retain(|field, _| !["replay_window", "sequence", "revision"].contains(&&**field));
            }
            (name, document, state.tensors.values().flat_map(bits).collect())
        };
        let components = reader.load_latest().unwrap().unwrap().snapshot.components;
        let picked = |text: &str, fields: &[&str]| {
            let value: Value = serde_json::from_str(text).unwrap();
            fields.iter().map(|field| value[field].clone()).collect::<Vec<Value>>()
        };
        let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
        let of_epoch = ["epoch", "step", "num_parameters", "train", "validation", "transitions"];
        let of_run = ["test_accuracy", "test_loss", "epochs", "steps", "parameters", "best"];
        let names = fs::read_dir(run).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        Self {
            checkpoint: components.into_iter().map(of).collect(),
            epochs: metrics.lines().map(|line| Value::Array(picked(line, &of_epoch))).collect(),
            summary: picked(&fs::read_to_string(run.join("summary.json")).unwrap(), &of_run),
            // What was found damaged is kept beside.
            files: names.filter(|name| !name.contains(".damaged-")).collect(),
        }
    }
}

/// Reads everything below `dir` as a resume does, and changes as little: checkpoints from generation `promised` on, the history
/// of their epochs, packets, journal, whole files. Gives whether a run has begun.
#[track_caller]
pub(crate) fn assert_readable(dir: &Path, promised: u64) -> bool {
    let run = dir.join(RUN);
    let has_begun = run.join("config.toml").is_file();
    assert!(has_begun || promised == 0, "a run with checkpoints has no config.toml");
    for name in ["run.json", "preparation.json", "rows.json", "summary.json"] {
        match fs::read_to_string(run.join(name)) {
            Ok(text) => drop(serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{name}: {error}"))),
            Err(_) => assert!(!has_begun || name == "summary.json", "{name} is missing"),
        }
    }
    if run.join("checkpoints").is_dir() {
        let reader = CheckpointReader::new(run.join("checkpoints"), Arc::new(StdFs));
        let loaded = reader.load_latest().unwrap();
        let found = loaded.as_ref().map_or(0, |loaded| loaded.generation.0);
        assert!(found >= promised, "generation {promised} was promised, and {found} is there");
        if let Some(loaded) = loaded {
            assert!(loaded.skipped.is_empty(), "{:?}", loaded.skipped);
            let metrics = fs::read(run.join("metrics.jsonl")).unwrap();
            let epochs: BTreeSet<u64> = metrics
                .split_inclusive(|byte| *byte == b'\n')
                .filter_map(|line| Some(serde_json::from_slice::<EpochReport>(line).ok()?.epoch.0))
                .collect();
            let known = loaded.snapshot.meta.epoch.0;
            assert!((1..=known).all(|epoch| epochs.contains(&epoch)), "a checkpoint of epoch {known}, {epochs:?}");
        }
    }
    if run.join("packets.bin").is_file() {
        FrameSink::append(run.join("packets.bin")).unwrap();
    }
    if run.join("commands.journal").is_file() {
        Journal::open(&run.join("commands.journal")).unwrap();
    }
    has_begun
}

/// Goes on with the run, or starts it anew where it had not begun, and compares what it comes to.
#[track_caller]
pub(crate) fn assert_goes_on(dir: &Path, has_begun: bool) {
    train(dir, Arc::new(StdFs), has_begun).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(&Ended::read(&dir.join(RUN)), undisturbed());
    let checkpoints = fs::read_dir(dir.join(RUN).join("checkpoints")).unwrap();
    let names: Vec<_> = checkpoints.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().all(|name| !name.starts_with("tmp-")), "{names:?}");
}

/// A number from the environment, for runs that are longer than those of every day.
pub(crate) fn number(variable: &str, of_every_day: usize) -> usize {
    std::env::var(variable).map_or(of_every_day, |text| text.parse().unwrap())
}

//! A small run of the command with every file that a run folder has, and an export of a network.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use candle_core::{Device, Tensor};
use esper::progress::ProgressMode;
use esper::run::{OtlpArgs, TrainArgs, train_quietly};
use esper::serve::ServeArgs;
use esper::signature::SignatureArgs;
use esper_disk::{Fs, StdFs, replace_file};
use esper_export::{Export, IfPresent};
use kasmina::blueprint::Registry;
use kasmina::graft::NetworkSpec;
use kasmina::host::HostConfig;
use kasmina::weight::ElementType;
use tempfile::TempDir;

use crate::short_run;

/// Name of the run folder below a directory.
pub const RUN: &str = "run";
/// Seeds germinate in the first epochs, so that commands are written down.
const NUM_EPOCHS: u64 = 4;
/// A run that waits for its checkpoints.
const WAITS: &str = "checkpoint.in_background=false";
const OWN: &[&str] = &[
    "train.batch.microbatches_per_step=2",
    "data.test_fraction=0.4",
    "checkpoint.keep_last=2",
    "checkpoint.every_steps=3",
    // One order of calls of the disk in every run.
    WAITS,
];

/// A file of rows, of which a network can learn something: of all processes that train, for a run goes on with the data that it
/// names.
fn data() -> &'static Path {
    static DATA: OnceLock<PathBuf> = OnceLock::new();
    DATA.get_or_init(|| {
        let mut text = "a,b,c,label\n".to_owned();
        for row in 0..160_u32 {
            let [a, b, c] = [7, 11, 13].map(|factor| row * factor % 17);
            writeln!(text, "{a},{b},{c},{}", ["low", "high"][usize::from(a + b > c + 8)]).expect("writing to a string");
        }
        let path = std::env::temp_dir().join("esper-run-folder.csv");
        replace_file(&StdFs, &path, text.as_bytes()).expect("a folder for temporary files");
        path
    })
}

/// The settings of the run, as values of `--set`.
#[must_use]
pub fn settings() -> Vec<String> {
    let key = |setting: &str| setting.split('=').next().unwrap_or_default().to_owned();
    let is_own = |setting: &&&str| key(setting) == "run.epochs" || OWN.iter().any(|own| key(own) == key(setting));
    let shared = short_run::SETTINGS.iter().filter(|setting| !is_own(setting)).chain(OWN);
    let last = [format!("run.epochs={NUM_EPOCHS}"), format!("data.name={}", data().display())];
    shared.map(|setting| (*setting).to_owned()).chain(last).collect()
}

/// Those of the run that leaves its checkpoints to a thread.
#[must_use]
pub fn settings_beside() -> Vec<String> {
    settings().into_iter().filter(|setting| setting != WAITS).collect()
}

/// Starts the run in `dir`, or goes on with it.
///
/// # Errors
/// What the command would say.
pub fn train(dir: &Path, fs: Arc<dyn Fs>, resume: bool) -> Result<(), String> {
    train_with(dir, fs, if resume { None } else { Some(settings()) })
}

/// Starts the run with these settings, or goes on with it.
///
/// # Errors
/// What the command would say.
pub fn train_with(dir: &Path, fs: Arc<dyn Fs>, settings: Option<Vec<String>>) -> Result<(), String> {
    train_quietly(&arguments(dir, settings), fs).map(drop).map_err(|error| format!("{error:#}"))
}

/// What the command is given to start the run in `dir` with these settings, or to go on with it.
#[must_use]
pub fn arguments(dir: &Path, settings: Option<Vec<String>>) -> TrainArgs {
    TrainArgs {
        tokenizer: None,
        config: None,
        data: None,
        device: None,
        gpu_dataset: None,
        policy: None,
        policy_file: None,
        epochs: None,
        max_steps: None,
        seed: None,
        out: Some(dir.join(RUN)),
        resume: settings.is_none(),
        set: settings.unwrap_or_default(),
        json: true,
        tui: false,
        progress: ProgressMode::Off,
        signature: SignatureArgs::default(),
        tensorboard: None,
        serve: ServeArgs::default(),
        otlp: OtlpArgs::default(),
    }
}

/// A folder whose run has ended, and an export.
fn made() -> &'static BTreeMap<String, Vec<u8>> {
    static MADE: OnceLock<BTreeMap<String, Vec<u8>>> = OnceLock::new();
    MADE.get_or_init(|| {
        let dir: TempDir = tempfile::tempdir().expect("a temporary folder");
        train(dir.path(), Arc::new(StdFs), false).expect("a run that nobody disturbs");
        export().write(&dir.path().join("exported"), IfPresent::Refuse).expect("an export");
        let mut files = BTreeMap::new();
        let mut open = vec![dir.path().to_owned()];
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    open.push(path);
                } else {
                    let name = path.strip_prefix(dir.path()).expect("below it").to_string_lossy().into_owned();
                    files.insert(name, fs::read(path).expect("a file"));
                }
            }
        }
        files
    })
}

/// A file of the run folder.
///
/// # Panics
/// When there is no such file.
#[must_use]
pub fn bytes(name: &str) -> Vec<u8> {
    made()[&format!("{RUN}/{name}")].clone()
}

/// A file of its newest checkpoint, as of generation 1.
///
/// # Panics
/// When there is no such file.
#[must_use]
pub fn generation(name: &str) -> Vec<u8> {
    let mut in_order = made().iter().filter(|(path, _)| path.contains("/gen-") && path.ends_with(name));
    let (path, bytes) = in_order.next_back().expect("a checkpoint");
    if name != "manifest.json" {
        return bytes.clone();
    }
    let number: u64 =
        path.split("gen-").nth(1).and_then(|rest| rest.split('/').next()?.parse().ok()).expect("a number");
    let text = String::from_utf8(bytes.clone()).expect("text");
    let body = &text[text.find("\"manifest\":").expect("an envelope") + 11..text.len() - 2];
    let body = body.replacen(&format!("\"generation\":{number},"), "\"generation\":1,", 1);
    format!("{{\"blake3\":\"{}\",\"manifest\":{body}}}\n", blake3::hash(body.as_bytes())).into_bytes()
}

/// A file of the export.
///
/// # Panics
/// When there is no such file.
#[must_use]
pub fn exported(name: &str) -> Vec<u8> {
    made()[&format!("exported/{name}")].clone()
}

fn export() -> Export {
    let host = HostConfig::Mlp { inputs: 6, hidden: vec![5], classes: 3 };
    let network = NetworkSpec { host, dtype: ElementType::F32, seeds: Vec::new() };
    let tensor = |(name, shape): (String, Vec<usize>)| {
        (name, Tensor::ones(shape, candle_core::DType::F32, &Device::Cpu).expect("ones"))
    };
    let tensors = network.tensors(&Registry::all()).expect("a network").into_iter().map(tensor).collect();
    let preparation = serde_json::from_str(
        r#"{"version": 1, "source": "letters.csv", "sample_shape": [6], "scaling": {"means": [0.0], "scales": [16.0]},
        "target": {"kind": "classes", "names": ["a", "b", "c"]}}"#,
    );
    Export { network, tensors, preparation: preparation.expect("a preparation"), task: None }
}

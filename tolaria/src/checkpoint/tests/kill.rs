//! A process killed at any moment leaves a directory from which the run goes on.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{assert_same, keep, snapshot_of};
use crate::checkpoint::{CheckpointStore, StdFs};

/// Tells the test binary that it is the process to be killed, and where it saves.
const CHILD_DIR: &str = "ESPER_CHECKPOINT_KILL_DIR";
/// Number of kills, for longer runs than the default.
const NUM_KILLS: &str = "ESPER_CHECKPOINT_NUM_KILLS";
/// 128 KiB, so that writing takes a noticeable part of the time.
const NUM_ELEMENTS: u64 = 16 << 10;

#[test]
fn a_killed_process_loses_nothing_acknowledged() {
    if let Some(dir) = std::env::var_os(CHILD_DIR) {
        save_until_killed(Path::new(&dir));
    }
    let num_kills: u32 = std::env::var(NUM_KILLS).map_or(24, |text| text.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let (mut acknowledged, mut num_interrupted) = (0, 0);
    for kill in 0..num_kills {
        let delay = Duration::from_micros(rng.random_range(0..60_000));
        acknowledged = kill_after(delay, dir.path()).unwrap_or(acknowledged);
        let names = || std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let is_temporary = |name: std::ffi::OsString| name.to_str().unwrap().starts_with("tmp-");
        num_interrupted += u32::from(names().any(is_temporary));

        let store = CheckpointStore::open(dir.path(), keep(2), Arc::new(StdFs)).unwrap();
        assert!(!names().any(is_temporary), "kill {kill} left a temporary directory");
        let Some(loaded) = store.load_latest().unwrap() else {
            assert_eq!(acknowledged, 0, "kill {kill} lost everything");
            continue;
        };
        let step = loaded.snapshot.meta.step.0;
        assert!(loaded.skipped.is_empty(), "kill {kill}: {:?}", loaded.skipped);
        assert!((acknowledged..=acknowledged + 1).contains(&step), "kill {kill}: {step} after {acknowledged}");
        assert_same(&loaded.snapshot, &snapshot_of(step, NUM_ELEMENTS));
        acknowledged = step;
    }
    assert!(acknowledged > 0 && num_interrupted > 0, "{acknowledged} saves, {num_interrupted} interrupted");
}

/// Starts this test as a child, kills it, and gives back the last step that it acknowledged.
fn kill_after(delay: Duration, dir: &Path) -> Option<u64> {
    let (_crate_name, module) = module_path!().split_once("::").unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([&format!("{module}::a_killed_process_loses_nothing_acknowledged"), "--exact", "--nocapture"])
        .env(CHILD_DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while line != "ready\n" {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "the child ended before it was killed");
    }
    std::thread::sleep(delay);
    child.kill().unwrap();
    child.wait().unwrap();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    rest.split_inclusive('\n')
        .filter_map(|line| line.strip_prefix("ack ")?.strip_suffix('\n')?.parse().ok())
        .next_back()
}

fn save_until_killed(dir: &Path) -> ! {
    let say = |text: &str| {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).expect("the parent reads");
    };
    let mut store = CheckpointStore::open(dir, keep(2), Arc::new(StdFs)).unwrap();
    let mut step = store.load_latest().unwrap().map_or(0, |loaded| loaded.snapshot.meta.step.0);
    say("\nready\n");
    loop {
        step += 1;
        store.save(&snapshot_of(step, NUM_ELEMENTS)).unwrap();
        say(&format!("ack {step}\n"));
    }
}

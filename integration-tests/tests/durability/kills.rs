//! A process that dies, at a named call of the file system or at any moment, loses nothing and leaves nothing behind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use esper_disk::StdFs;
use esper_disk::testkit::{Failure, FaultFs, Which};
use integration_tests::run_folder::{RUN, settings_beside, train};
use leyline::clock::{Clock as _, SystemClock};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::job::{Ended, assert_goes_on, assert_readable, number, undisturbed};

/// Tells this program that it is the process that dies: the folder, the moment, the name of the call, and how many of them pass.
const CHILD: [&str; 4] = ["ESPER_DIES_IN", "ESPER_DIES", "ESPER_DIES_AT", "ESPER_DIES_AFTER"];
/// Times that the process dies at each call of a name.
const PER_POINT: &str = "ESPER_DEATHS_PER_POINT";
/// One name of so many is tried.
const EVERY_POINT: &str = "ESPER_DEATHS_EVERY_POINT";
/// Only names that have this in them are tried.
const ONLY_POINTS: &str = "ESPER_DEATHS_ONLY";
/// Kills at random moments.
const NUM_KILLS: &str = "ESPER_NUM_KILLS";
/// The `esper` that is killed; this program without it.
const PROGRAM: &str = "ESPER_PROGRAM";

const ONLY: [&str; 3] = ["kills::a_process_that_dies_at_a_named_call_loses_nothing", "--exact", "--nocapture"];

/// The calls that change something, and how often a run makes each.
fn points() -> BTreeMap<String, usize> {
    let (dir, fs) = (tempfile::tempdir().unwrap(), FaultFs::recording(Arc::new(StdFs)));
    train(dir.path(), Arc::new(fs.clone()), false).unwrap();
    let mut points = BTreeMap::new();
    let changes = [
        "create_dir",
        "write",
        "write_at",
        "set_len",
        "sync",
        "sync_dir",
        "rename",
        "link",
        "remove",
        "remove_file",
        "open",
    ];
    for point in fs.points() {
        // The folder around the run has another name each time.
        if changes.contains(&point.split(' ').next().unwrap()) && !point.contains(" .tmp") {
            *points.entry(point).or_default() += 1;
        }
    }
    points
}

/// This program as a child that trains in `dir`.
fn child(dir: &Path, resume: bool, dies: &str, at: &str, after: usize) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let moment = if resume { format!("{dies} resume") } else { dies.to_owned() };
    let values = [dir.to_str().unwrap().to_owned(), moment, at.to_owned(), after.to_string()];
    command.args(ONLY).envs(CHILD.into_iter().zip(values)).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn be_the_child(dir: PathBuf) {
    let [_, dies, at, after] = CHILD.map(|variable| std::env::var(variable).unwrap());
    let (dies, resume) = dies.strip_suffix(" resume").map_or((dies.as_str(), false), |dies| (dies, true));
    let which = Which::Named(at, after.parse().unwrap());
    let fs = match dies {
        "before" => FaultFs::failing_at(Arc::new(StdFs), Failure::DiesBefore, which),
        "after" => FaultFs::failing_at(Arc::new(StdFs), Failure::DiesAfter, which),
        _ => FaultFs::recording(Arc::new(StdFs)),
    };
    train(&dir, Arc::new(fs), resume).unwrap();
}

#[test]
fn a_process_that_dies_at_a_named_call_loses_nothing() {
    if let Some(dir) = std::env::var_os(CHILD[0]) {
        return be_the_child(dir.into());
    }
    let (per_point, every) = (number(PER_POINT, 1), number(EVERY_POINT, 9));
    let points = points();
    let (mut num_died, mut num_tried) = (0, 0);
    let only = std::env::var(ONLY_POINTS).unwrap_or_default();
    let tried =
        points.iter().enumerate().filter(|(_, (point, _))| point.contains(&only)).skip(2 % every).step_by(every);
    for (index, (point, times)) in tried {
        for (turn, dies) in (0..per_point).flat_map(|turn| [(turn, "before"), (turn, "after")]) {
            let dir = tempfile::tempdir().unwrap();
            let after = (index + turn) % times;
            let died = !child(dir.path(), false, dies, point, after).status().unwrap().success();
            (num_died, num_tried) = (num_died + usize::from(died), num_tried + 1);
            let has_begun = dir.path().join(RUN).is_dir() && assert_readable(dir.path(), 0);
            println!("{dies} {point}, {after} passed: died {died}, begun {has_begun}");
            assert_goes_on(dir.path(), has_begun);
        }
    }
    println!("{} named calls, {num_died} deaths: 0 lost, 0 torn, 0 stale", points.len());
    // Telemetry writes from a thread of its own: the last call of a name may not come.
    assert!(
        points.len() >= 24 && num_died * 10 >= num_tried * 9,
        "{num_died} of {num_tried} at {} names",
        points.len()
    );
}

/// The command that goes on with a run, or starts it.
fn command(dir: &Path, resume: bool) -> Command {
    let Some(program) = std::env::var_os(PROGRAM) else { return child(dir, resume, "never", "", 0) };
    let mut command = Command::new(program);
    command.args(["train", "--progress", "off", "--out"]).arg(dir.join(RUN));
    if resume {
        command.arg("--resume");
    } else {
        command.args(settings_beside().iter().flat_map(|setting| ["--set", setting]));
    }
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn a_process_that_is_killed_at_any_moment_loses_nothing() {
    let num_kills = number(NUM_KILLS, 6);
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let (mut dir, mut num_killed, mut num_runs) = (tempfile::tempdir().unwrap(), 0, 0);
    let clock = SystemClock::new();
    assert!(command(dir.path(), false).status().unwrap().success());
    let longest = clock.now();
    // By another process too: what a run comes to does not depend on who trains.
    assert_eq!(&Ended::read(&dir.path().join(RUN)), undisturbed());
    dir = tempfile::tempdir().unwrap();
    let mut newest = 0;
    while num_killed < num_kills {
        let has_begun = dir.path().join(RUN).is_dir() && assert_readable(dir.path(), newest);
        newest = newest_generation(dir.path());
        let mut child = command(dir.path(), has_begun).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(rng.random_range(0..=u64::try_from(longest.as_micros()).unwrap())));
        child.kill().unwrap();
        if child.wait().unwrap().success() {
            assert_eq!(&Ended::read(&dir.path().join(RUN)), undisturbed());
            num_runs += 1;
            (dir, newest) = (tempfile::tempdir().unwrap(), 0);
        } else {
            num_killed += 1;
        }
    }
    let has_begun = dir.path().join(RUN).is_dir() && assert_readable(dir.path(), newest);
    assert_goes_on(dir.path(), has_begun);
    println!(
        "{num_killed} kills within {longest:?} of the start, {} runs ended: 0 lost, 0 torn, 0 stale",
        num_runs + 1
    );
}

fn newest_generation(dir: &Path) -> u64 {
    let names = std::fs::read_dir(dir.join(RUN).join("checkpoints")).into_iter().flatten();
    let number = |name: String| name.strip_prefix("gen-")?.parse().ok();
    names.filter_map(|entry| number(entry.ok()?.file_name().into_string().ok()?)).max().unwrap_or(0)
}

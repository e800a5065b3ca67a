//! Whatever call of the file system fails, once the run has begun to train it trains to its end, counts it, and can be read.

use std::path::Path;
use std::sync::Arc;

use esper_disk::StdFs;
use esper_disk::testkit::{Failure, FaultFs};
use esper_telemetry::reader::FrameReader;
use integration_tests::run_folder::{RUN, train};

use crate::job::{Ended, assert_goes_on, assert_readable, number, undisturbed};

/// One call of so many fails.
const EVERY: &str = "ESPER_FAILING_CALL_EVERY";
/// Made last before the first step.
const BEGINS: &str = "remove_file summary.json";
/// Metrics that count what failed.
const COUNTED_BY: &[&str] = &[
    "tolaria.checkpoint.save_failures_total",
    "esper.metrics_log.failures_total",
    "esper.telemetry.sink_errors_total",
    "kasmina.command_verifier.rejections_total",
];

/// Fails call `n` and gives whether there were so many.
fn check(failure: Failure, n: usize) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let faulty = FaultFs::failing(Arc::new(StdFs), failure, n);
    let trained = train(dir.path(), Arc::new(faulty.clone()), false);
    if !faulty.has_failed() {
        trained.unwrap();
        return false;
    }
    let calls = faulty.calls();
    let what = format!("{failure:?} of call {n}, `{}`: {trained:?}", calls[n]);
    let begins = calls.iter().position(|call| call == BEGINS);
    let has_begun = begins.is_some_and(|begins| begins < n);
    let last_save = calls.iter().rposition(|call| call.starts_with("create_dir tmp-")).unwrap_or(0);
    let is_passing = matches!(failure, Failure::Once | Failure::AfterTheEffect);
    // The last checkpoint and what is written after it must succeed, and nothing that lasts does.
    assert!(trained.is_ok() || !has_begun || n >= last_save || !is_passing, "{what}");
    if trained.is_ok() && has_begun && is_passing && n < last_save {
        let last =
            FrameReader::open(&dir.path().join(RUN).join("packets.bin")).unwrap().map(Result::unwrap).last().unwrap();
        let counted = last.metrics.iter().filter(|metric| COUNTED_BY.contains(&metric.name.as_str()));
        // An older generation that cannot be looked at or removed stays, which the next save tries again and nothing counts.
        let of_retention = ["kind ", "read ", "remove", "list ", "rename gen-", "sync_dir checkpoints"];
        let may_go_unnoticed = of_retention.iter().any(|call| calls[n].starts_with(call));
        let num_counted = counted.map(|metric| metric.value).sum::<f64>();
        assert!(num_counted >= 1.0 || may_go_unnoticed, "{what} is not counted");
    }
    if dir.path().join(RUN).is_dir() {
        let can_go_on = assert_readable(dir.path(), 0);
        if trained.is_err() && has_lines_alone(&dir.path().join(RUN)) {
            // More epochs than pass before a first checkpoint, and nobody knows whether there were checkpoints: refused by
            // name, with the command that starts anew.
            match train(dir.path(), Arc::new(StdFs), true) {
                Err(refused) => assert!(refused.contains("or a new run: esper train"), "{what}: {refused}"),
                Ok(()) => assert_eq!(&Ended::read(&dir.path().join(RUN)), undisturbed(), "{what}"),
            }
        } else if trained.is_err() {
            assert_goes_on(dir.path(), can_go_on);
        } else if !calls[n].contains("commands.journal") {
            // Every epoch is what it would have been. A best network that could not be kept is not the best one, so more may
            // differ; and a command that could not be written down was refused, and makes another run.
            assert_eq!(Ended::read(&dir.path().join(RUN)).epochs, undisturbed().epochs, "{what}");
        }
    }
    true
}

/// Whether there are lines of epochs and no checkpoint, as on a disk on which only short lines find a place.
fn has_lines_alone(run: &Path) -> bool {
    let names = std::fs::read_dir(run.join("checkpoints")).into_iter().flatten();
    let has_generation =
        names.into_iter().any(|entry| entry.unwrap().file_name().to_string_lossy().starts_with("gen-"));
    !has_generation && std::fs::metadata(run.join("metrics.jsonl")).is_ok_and(|metadata| metadata.len() > 0)
}

#[test]
fn whatever_call_fails_training_goes_on_or_the_run_can_be_taken_up() {
    let every = number(EVERY, 23);
    let mut num_checked = 0;
    for (index, failure) in
        [Failure::Once, Failure::AfterTheEffect, Failure::FromThenOn, Failure::DiskFull].into_iter().enumerate()
    {
        let calls = (index % every..).step_by(every).take_while(|n| check(failure, *n)).count();
        println!("{failure:?}: {calls} calls");
        num_checked += calls;
    }
    assert!(num_checked * every > 400, "{num_checked} calls");
}

//! Power may go at any moment of a run and of its resume: every file of the folder is then the old or the new one.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;

use esper_disk::Fs;
use esper_disk::testkit::{CrashPoint, Failure, FaultFs, MirrorFs, SimFs, Which};
use integration_tests::run_folder::{settings, settings_beside, train, train_with};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::job::{assert_goes_on, assert_readable, number};

/// States of the disk that are looked at.
const STATES: &str = "ESPER_POWER_LOSS_STATES";
/// One state of so many is gone on from, to the end of the run.
const RESUME_EVERY: &str = "ESPER_POWER_LOSS_RESUME_EVERY";

/// When the next generation is begun, the one before is durable.
fn promised_before(dir: &Path) -> Option<u64> {
    dir.file_name()?.to_str()?.strip_prefix("tmp-")?.parse::<u64>().ok()?.checked_sub(1)
}

/// A run that is cut off in the middle, and its resume to the end, on a disk that syncs open files or does not.
fn record(syncs: bool, settings: Vec<String>) -> Vec<CrashPoint> {
    let (dir, model) = (tempfile::tempdir().unwrap(), Arc::new(SimFs::default()));
    model.record();
    let mirror = MirrorFs::new(dir.path(), Arc::clone(&model)).acknowledging(promised_before);
    let mirror = if syncs { mirror } else { mirror.without_syncs() };
    let cut_off = FaultFs::failing_at(
        Arc::new(mirror.clone()) as Arc<dyn Fs>,
        Failure::FromThenOn,
        Which::Named("write state.json".to_owned(), 4),
    );
    train_with(dir.path(), Arc::new(cut_off), Some(settings)).unwrap_err();
    train(dir.path(), Arc::new(mirror), true).unwrap();
    model.take_points()
}

#[test]
fn a_loss_of_power_at_any_moment_leaves_a_folder_from_which_the_run_goes_on_to_the_same_bits() {
    // One that waits for its checkpoints, and one whose thread writes them beside the rest, in an order of the day.
    let points = [record(true, settings()), record(true, settings_beside())].concat();
    let (wanted, resume_every) = (number(STATES, 800), number(RESUME_EVERY, 25));
    // Where little is not durable there are fewer states than that.
    let per_point = (2 * wanted).div_ceil(points.len());
    let (mut num_states, mut num_resumed, mut seen) = (0, 0, BTreeSet::new());
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for (index, point) in points.iter().enumerate() {
        point.for_some_states(per_point, &mut rng, |state| {
            num_states += 1;
            if !seen.insert((state.digest(), point.acknowledged)) {
                return;
            }
            let dir = tempfile::tempdir().unwrap();
            state.export(dir.path()).unwrap();
            let checked = catch_unwind(AssertUnwindSafe(|| {
                let has_begun = assert_readable(dir.path(), point.acknowledged);
                if seen.len() % resume_every == 0 {
                    num_resumed += 1;
                    assert_goes_on(dir.path(), has_begun);
                }
            }));
            if let Err(panic) = checked {
                println!("point {index} of {}, {:?}", points.len(), state.tree());
                resume_unwind(panic);
            }
        });
    }
    println!(
        "{} moments, {num_states} states, {} of them different, {num_resumed} gone on from",
        points.len(),
        seen.len()
    );
    assert!(num_states >= wanted && seen.len() > wanted / 4 && num_resumed > 0, "{num_states}, {}", seen.len());
}

#[test]
fn a_disk_that_does_not_sync_open_files_is_found_out() {
    let (mut num_found, mut rng) = (0, ChaCha8Rng::seed_from_u64(7));
    for point in record(false, settings()).iter().step_by(5) {
        point.for_some_states(2, &mut rng, |state| {
            let dir = tempfile::tempdir().unwrap();
            state.export(dir.path()).unwrap();
            let checked = catch_unwind(AssertUnwindSafe(|| assert_readable(dir.path(), point.acknowledged)));
            num_found += u32::from(checked.is_err());
        });
    }
    assert!(num_found > 10, "only {num_found} states lack what was promised");
}

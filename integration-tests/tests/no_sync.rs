//! I-5: no device-to-host read in an optimizer step, two packed ones per epoch.

use integration_tests::short_run::{Recorded, config, trainer};
use leyline::region::Eager;

#[test]
fn an_epoch_reads_its_sums_and_its_evaluation_once_and_steps_read_nothing() {
    let config = config(&["policy.policy=off", "run.epochs=3", "train.conflict=mean"]);
    let mut trainer = trainer(&config, None);
    let mut recorded = Recorded::default();
    trainer.run(&mut Eager::acquire().unwrap(), &mut recorded).unwrap();
    let reads: Vec<(&str, u64)> = trainer.host_reads().iter().map(|(name, count)| (*name, *count)).collect();
    assert_eq!(reads, [("epoch sums", 3), ("evaluation", 3)]);
    assert!(trainer.progress().1.0 > 6, "too few steps to tell");
}

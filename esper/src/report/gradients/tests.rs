//! Histories written by hand.

use leyline::id::SeedId;
use tolaria::trainer::report::LayerRecord;

use super::*;
use crate::report::testing::epoch;

const FIRST: Owner = Owner::Seed(SeedId(1));
const SECOND: Owner = Owner::Seed(SeedId(2));

fn owner(owner: Owner, share: f64) -> OwnerRecord {
    OwnerRecord {
        owner,
        windows: 10,
        weight: 0.5,
        norm: 3.0 * share,
        share,
        share_delta: None,
        conflicts: 3,
        pairs: 10,
        conflict_ratio: 0.3,
        resolved_weight: 1.5,
        alpha: None,
        host_split: None,
        num_parameters: 1234,
        parameter_fraction: 0.25,
        layers: vec![LayerRecord { layer: "stem\u{1b}.weight".to_owned(), norm: share }],
    }
}

fn conflict(owners: &[(Owner, f64)]) -> ConflictRecord {
    let owners: Vec<OwnerRecord> = owners.iter().map(|(who, share)| owner(*who, *share)).collect();
    let host = Owner::Host;
    let others = owners.iter().filter(|record| record.owner != host);
    let cosines = others.map(|other| CosineRecord { a: host, b: other.owner, cosine: -0.125, windows: 10 }).collect();
    ConflictRecord { ratio: 0.3, conflicts: 6, pairs: 20, windows: 10, host_share: 0.625, owners, cosines }
}

/// A run with these records at the ends of epochs 1, 2, …
fn run(conflicts: Vec<Option<ConflictRecord>>) -> Vec<EpochReport> {
    let report = |(index, conflict)| EpochReport { conflict, ..epoch(index as u64 + 1) };
    conflicts.into_iter().enumerate().map(report).collect()
}

#[test]
fn a_run_that_told_no_owners_apart_has_nothing_to_show() {
    assert!(Gradients::of(&run(vec![None, None])).is_none());
    assert!(Gradients::of(&[]).is_none());
}

#[test]
fn the_last_measured_epoch_is_told_in_a_sentence() {
    let epochs = run(vec![Some(conflict(&[])), Some(conflict(&[])), None]);
    let told = Gradients::of(&epochs).expect("two epochs were measured").sentence;
    assert_eq!(told, "epoch 2: 6 of 20 ordered pairs of owners conflict (30.00%), host share 62.50%, over 10 windows");
}

#[test]
fn every_owner_is_shown_as_it_was_when_it_took_part_last() {
    let epochs = run(vec![
        Some(conflict(&[(Owner::Host, 0.75), (FIRST, 0.25)])),
        Some(conflict(&[(Owner::Host, 0.5), (SECOND, 0.5)])),
        None,
    ]);
    let shown = Gradients::of(&epochs).expect("two epochs were measured");
    let cell = |row: &OwnerRow, at: usize| row.cells[at].clone().unwrap_or_default();
    let told: Vec<(&str, String, String)> =
        shown.owners.iter().map(|row| (row.owner.as_str(), cell(row, 0), cell(row, 3))).collect();
    let line = |owner, epoch: &str, share: &str| (owner, epoch.to_owned(), share.to_owned());
    assert_eq!(told, [line("host", "2", "50.00%"), line("seed-1", "1", "25.00%"), line("seed-2", "2", "50.00%")]);
    assert_eq!(shown.owners[0].cells[4], None, "a first share has no change");
    assert_eq!(cell(&shown.owners[0], 5), "3 of 10 (30.00%)");
    assert_eq!(owners(&epochs), [Owner::Host, FIRST, SECOND]);
}

#[test]
fn cosines_are_those_of_the_last_epoch_with_any() {
    let epochs = run(vec![Some(conflict(&[(Owner::Host, 0.75), (FIRST, 0.25)])), Some(conflict(&[]))]);
    let (epoch, pairs) = Gradients::of(&epochs).and_then(|shown| shown.cosines).expect("one epoch has a pair");
    assert_eq!((epoch, pairs.len()), (1, 1));
    assert_eq!((pairs[0].pair.as_str(), pairs[0].cosine.as_str()), ("host and seed-1", "-0.1250"));
}

#[test]
fn names_of_layers_cannot_carry_control_characters() {
    let epochs = run(vec![Some(conflict(&[(Owner::Host, 0.75)]))]);
    let layers = Gradients::of(&epochs).expect("it was measured").layers;
    assert_eq!((layers[0].layer.as_str(), layers[0].norm.as_str()), ("stem.weight", "0.7500"));
}

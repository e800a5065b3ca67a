//! Tests of the store as a whole, and the snapshots they store.

mod round_trip;
mod store;
mod corruption;
mod faults;
mod crash;
mod kill;
mod signed;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use esper_disk::testkit::SimFs;
use leyline::durable::SavedState;
use leyline::id::{EpochIndex, RunId, StepIndex, TopologyRevision};

use super::payload::encode;
use super::{CheckpointError, CheckpointStore, Fs, Generation, Snapshot, SnapshotMeta};

/// Directory of the store on a simulated disk; its parent exists.
const DIR: &str = "/run";

/// A small snapshot; everything in it depends on `step`.
fn snapshot(step: u64) -> Snapshot {
    snapshot_of(step, 12)
}

/// A snapshot with `num_elements` elements in its largest tensor.
fn snapshot_of(step: u64, num_elements: u64) -> Snapshot {
    let weight: Vec<u8> =
        (0..num_elements).flat_map(|i| (step.wrapping_mul(31) ^ i.wrapping_mul(2_654_435_761)).to_le_bytes()).collect();
    let elements = usize::try_from(num_elements).unwrap();
    let tensors = BTreeMap::from([
        ("weight".to_owned(), Tensor::from_raw_buffer(&weight, DType::F64, &[elements], &Device::Cpu).unwrap()),
        ("seed-1/count".to_owned(), Tensor::new(i64::try_from(step).unwrap(), &Device::Cpu).unwrap()),
    ]);
    let components = BTreeMap::from([
        ("host".to_owned(), SavedState { json: format!("{{\"step\":{step}}}"), tensors }),
        ("policy".to_owned(), SavedState { json: format!("[{step}, \"é\\n\"]"), tensors: BTreeMap::new() }),
    ]);
    let meta = SnapshotMeta {
        run_id: RunId::new("run-1").unwrap(),
        epoch: EpochIndex(step / 10),
        step: StepIndex(step),
        topology: TopologyRevision(2),
        created_unix_ms: 1_700_000_000_000 + step,
        config_digest: "blake3:00ff".to_owned(),
    };
    Snapshot { meta, components }
}

/// Equal to the bit: description, documents, names, shapes, types and elements.
#[track_caller]
fn assert_same(actual: &Snapshot, expected: &Snapshot) {
    assert_eq!(actual.meta, expected.meta);
    let (actual, expected) = (encode(&actual.components).unwrap(), encode(&expected.components).unwrap());
    assert_eq!(actual.state, expected.state);
    assert!(actual.tensors == expected.tensors, "tensors differ");
}

fn keep(keep_last: usize) -> NonZeroUsize {
    NonZeroUsize::new(keep_last).unwrap()
}

fn open(fs: &Arc<SimFs>, keep_last: usize) -> CheckpointStore {
    CheckpointStore::open(DIR, keep(keep_last), Arc::clone(fs) as Arc<dyn Fs>).unwrap()
}

/// A simulated disk with the generations of `steps`, and the store on it.
fn saved(steps: impl IntoIterator<Item = u64>, keep_last: usize) -> (Arc<SimFs>, CheckpointStore) {
    let fs = Arc::new(SimFs::default());
    let mut store = open(&fs, keep_last);
    for step in steps {
        store.save(&snapshot(step)).unwrap();
    }
    (fs, store)
}

fn numbers(generations: &[Generation]) -> Vec<u64> {
    generations.iter().map(|generation| generation.0).collect()
}

/// The message of an error and of everything below it.
fn chain(error: &CheckpointError) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        text += &format!(": {source}");
        next = source.source();
    }
    text
}

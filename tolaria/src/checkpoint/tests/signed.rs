//! Generations that are signed, and what is refused of them.

use std::path::Path;
use std::sync::Arc;

use super::{DIR, assert_same, keep, numbers, open, snapshot};
use crate::checkpoint::{CheckpointError, CheckpointReader, CheckpointStore, Fs, Generation, Seal, Signing};
use esper_disk::testkit::SimFs;

/// A keyed digest.
#[derive(Debug)]
struct Key(u8);

impl Seal for Key {
    fn sign(&self, manifest: &[u8]) -> [u8; 32] {
        *blake3::keyed_hash(&[self.0; 32], manifest).as_bytes()
    }

    fn verifies(&self, manifest: &[u8], signature: &[u8; 32]) -> bool {
        self.sign(manifest) == *signature
    }
}

fn signing(key: u8, is_required: bool) -> Option<Signing> {
    Some(Signing { seal: Arc::new(Key(key)), is_required })
}

fn signed(fs: &Arc<SimFs>, key: u8) -> CheckpointStore {
    open(fs, 9).with_signing(signing(key, true))
}

fn reader(fs: &Arc<SimFs>, signing: Option<Signing>) -> CheckpointReader {
    CheckpointReader::new(DIR, Arc::clone(fs) as Arc<dyn Fs>).with_signing(signing)
}

fn path(generation: u64, name: &str) -> std::path::PathBuf {
    Path::new(DIR).join(Generation(generation).directory_name()).join(name)
}

#[track_caller]
fn assert_untrusted<T: std::fmt::Debug>(found: Result<T, CheckpointError>, generation: u64, why: &str) {
    let error = found.unwrap_err();
    assert!(matches!(error, CheckpointError::Untrusted { generation: named, .. } if named == Generation(generation)));
    assert!(error.to_string().contains(why) && error.to_string().contains("manifest.hmac"), "{error}");
}

#[test]
fn a_signed_generation_is_read_with_its_key_or_by_who_asks_for_none_and_refused_with_another() {
    let fs = Arc::new(SimFs::default());
    signed(&fs, 1).save(&snapshot(1)).unwrap();
    for accepted in [signing(1, true), signing(1, false), None] {
        assert_same(&reader(&fs, accepted).load_latest().unwrap().unwrap().snapshot, &snapshot(1));
    }
    for is_required in [true, false] {
        assert_untrusted(reader(&fs, signing(2, is_required)).load_latest(), 1, "another key");
    }
    assert_untrusted(signed(&fs, 2).verify(Generation(1)), 1, "another key");
}

#[test]
fn one_that_is_not_signed_is_refused_where_that_is_asked_for_and_no_older_one_takes_its_place() {
    let fs = Arc::new(SimFs::default());
    signed(&fs, 1).save(&snapshot(1)).unwrap();
    open(&fs, 9).save(&snapshot(2)).unwrap();
    assert_untrusted(reader(&fs, signing(1, true)).load_latest(), 2, "missing");
    assert_same(&reader(&fs, signing(1, false)).load_latest().unwrap().unwrap().snapshot, &snapshot(2));
    open(&fs, 9).save_pinned(&snapshot(3)).unwrap();
    assert_untrusted(reader(&fs, signing(1, true)).load_pinned(), 3, "missing");
}

#[test]
fn a_signature_is_of_one_manifest_and_of_every_bit_of_it() {
    let fs = Arc::new(SimFs::default());
    let mut store = signed(&fs, 1);
    for step in 1..=2 {
        store.save(&snapshot(step)).unwrap();
    }
    drop(store);
    let signature = fs.read(&path(1, "manifest.hmac"), 99).unwrap();
    let right = fs.read(&path(2, "manifest.hmac"), 99).unwrap();
    assert_eq!(right.len(), 65);
    // That of another generation of the run.
    fs.poke(&path(2, "manifest.hmac"), &signature);
    assert_untrusted(reader(&fs, signing(1, true)).load_latest(), 2, "another manifest");
    for at in 0..right.len() {
        let mut flipped = right.clone();
        flipped[at] ^= 1;
        fs.poke(&path(2, "manifest.hmac"), &flipped);
        assert_untrusted(reader(&fs, signing(1, true)).load_latest(), 2, "");
        fs.poke(&path(2, "manifest.hmac"), &right[..at]);
        assert_untrusted(reader(&fs, signing(1, false)).load_latest(), 2, "64 hexadecimal digits");
    }
    fs.poke(&path(2, "manifest.hmac"), &[&right[..], b"\n"].concat());
    assert_untrusted(reader(&fs, signing(1, false)).load_latest(), 2, "64 hexadecimal digits");
    fs.poke(&path(2, "manifest.hmac"), &right);
    assert_same(&reader(&fs, signing(1, true)).load_latest().unwrap().unwrap().snapshot, &snapshot(2));
    // What somebody else wrote, whose digests are all right, under a signature from here.
    open(&fs, 9).save(&snapshot(3)).unwrap();
    fs.write_synced(&path(3, "manifest.hmac"), &right).unwrap();
    assert_untrusted(reader(&fs, signing(1, false)).load_latest(), 3, "another manifest");
    // What was damaged by chance is passed over, as without a key.
    let mut damaged = fs.read(&path(3, "manifest.json"), 9999).unwrap();
    damaged[90] ^= 1;
    fs.poke(&path(3, "manifest.json"), &damaged);
    let loaded = reader(&fs, signing(1, true)).load_latest().unwrap().unwrap();
    assert_eq!((loaded.generation, loaded.skipped.len()), (Generation(2), 1));
}

#[test]
fn a_folder_in_place_of_a_signature_is_none() {
    let fs = Arc::new(SimFs::default());
    signed(&fs, 1).save(&snapshot(1)).unwrap();
    open(&fs, 9).save(&snapshot(2)).unwrap();
    fs.create_dir(&path(2, "manifest.hmac")).unwrap();
    assert_untrusted(reader(&fs, signing(1, false)).load_latest(), 2, "64 hexadecimal digits");
}

#[test]
fn retention_counts_only_what_it_may_trust() {
    let fs = Arc::new(SimFs::default());
    signed(&fs, 1).save(&snapshot(1)).unwrap();
    open(&fs, 9).save(&snapshot(2)).unwrap();
    let opened = CheckpointStore::open(DIR, keep(2), Arc::clone(&fs) as Arc<dyn Fs>);
    let mut store = opened.unwrap().with_signing(signing(1, true));
    store.save(&snapshot(3)).unwrap();
    assert_eq!(numbers(&store.list().unwrap()), [1, 2, 3], "2 is none of ours, so 1 is the second one");
    store.save(&snapshot(4)).unwrap();
    assert_eq!(numbers(&store.list().unwrap()), [3, 4]);
}

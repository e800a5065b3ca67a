//! Retention, the lock, permissions, links and the order of the commit.

use std::path::Path;
use std::sync::Arc;

use esper_disk::testkit::{FaultFs, SimFs};
use leyline::error::{Error, ErrorKind};

use super::{DIR, assert_same, chain, keep, numbers, open, saved, snapshot};
use crate::checkpoint::{CheckpointError, CheckpointReader, CheckpointStore, Fs, Generation, StdFs};

/// Changes the last byte of a generation's tensors.
fn damage(fs: &SimFs, generation: u64) {
    let path = Path::new(DIR).join(Generation(generation).directory_name()).join("tensors.safetensors");
    let mut bytes = fs.read(&path, u64::MAX).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs.poke(&path, &bytes);
}

#[test]
fn an_empty_directory_has_nothing_to_load() {
    let (_fs, store) = saved([], 1);
    assert!(store.load_latest().unwrap().is_none());
    assert!(store.list().unwrap().is_empty());
    let error = store.load(Generation(1)).unwrap_err();
    assert_eq!(error.to_string(), "no generation 1 in `/run`; the newest is absent");
}

#[test]
fn the_newest_generations_are_kept() {
    #[track_caller]
    fn check(num_saves: u64, keep_last: usize, expected: &[u64]) {
        let (fs, store) = saved(1..=num_saves, keep_last);
        assert_eq!(numbers(&store.list().unwrap()), expected);
        assert!(!fs.tree().iter().any(|path| path.contains("tmp-")), "{:?}", fs.tree());
        assert_same(&store.load_latest().unwrap().unwrap().snapshot, &snapshot(num_saves));
    }
    check(1, 1, &[1]);
    check(5, 1, &[5]);
    check(5, 3, &[3, 4, 5]);
    check(2, 9, &[1, 2]);
}

#[test]
fn a_damaged_generation_does_not_take_the_place_of_a_sound_one() {
    let (fs, store) = saved(1..=3, 2);
    drop(store);
    damage(&fs, 3);
    let mut store = open(&fs, 2);
    assert_eq!(store.save(&snapshot(4)).unwrap(), Generation(4));
    assert_eq!(numbers(&store.list().unwrap()), [2, 3, 4], "2 is the second sound one");
    store.save(&snapshot(5)).unwrap();
    assert_eq!(numbers(&store.list().unwrap()), [4, 5], "3 is older than the second sound one");
}

/// Steps at which a pinned generation is saved, and how many are saved; those that are left, and the pinned one.
#[track_caller]
fn check_pinned(pinned: &[u64], num_saves: u64, keep_last: usize, expected: &[u64], found: Option<u64>) {
    for reopened in [false, true] {
        let (fs, mut store) = saved([], keep_last);
        for step in 1..=num_saves {
            let is_pinned = pinned.contains(&step);
            let saved = if is_pinned { store.save_pinned(&snapshot(step)) } else { store.save(&snapshot(step)) };
            assert_eq!(saved.unwrap(), Generation(step));
            if reopened {
                drop(store);
                store = open(&fs, keep_last);
            }
        }
        let context = format!("{pinned:?}, {num_saves} saves, keeping {keep_last}, reopened: {reopened}");
        assert_eq!(numbers(&store.list().unwrap()), expected, "{context}");
        let loaded = store.load_pinned().unwrap();
        assert_eq!(loaded.as_ref().map(|loaded| loaded.generation.0), found, "{context}");
        if let (Some(loaded), Some(found)) = (loaded, found) {
            assert_same(&loaded.snapshot, &snapshot(found));
        }
        assert_same(&store.load_latest().unwrap().unwrap().snapshot, &snapshot(num_saves));
    }
}

#[test]
fn a_pinned_generation_stays_beside_the_last_ones_until_a_newer_one_is_pinned() {
    check_pinned(&[], 3, 1, &[3], None);
    check_pinned(&[1], 1, 1, &[1], Some(1));
    check_pinned(&[1], 5, 1, &[1, 5], Some(1));
    check_pinned(&[2], 6, 2, &[2, 5, 6], Some(2));
    check_pinned(&[1, 3], 5, 1, &[3, 5], Some(3));
    check_pinned(&[1, 3, 5], 5, 2, &[2, 4, 5], Some(5));
    check_pinned(&[1, 2, 3], 3, 2, &[3], Some(3));
}

#[test]
fn a_damaged_pinned_generation_does_not_end_the_life_of_a_sound_one() {
    // Both are there when the process ends between the newer one and the removal of the older one.
    let (fs, mut store) = saved([], 1);
    store.save_pinned(&snapshot(1)).unwrap();
    store.save(&snapshot(2)).unwrap();
    drop(store);
    let kept = fs.clone();
    let mut other = open(&fs, 1);
    fs.record();
    other.save_pinned(&snapshot(3)).unwrap();
    drop(other);
    let mut num_both = 0;
    for point in fs.take_points() {
        point.for_each_state(|fs| {
            let has = |generation: u64| {
                let name = format!("/{}/manifest.json", Generation(generation).directory_name());
                fs.tree().iter().any(|path| path.ends_with(&name))
            };
            if has(1) && has(3) {
                num_both += 1;
                let fs = Arc::new(fs);
                damage(&fs, 3);
                let mut store = open(&fs, 1);
                assert_same(&store.load_pinned().unwrap().unwrap().snapshot, &snapshot(1));
                store.save(&snapshot(4)).unwrap();
                assert_eq!(numbers(&store.list().unwrap()), [1, 4]);
            }
        });
    }
    assert!(num_both > 0, "{:?}", kept.tree());
}

/// The generations that a save leaves: the new one, the newest sound ones beside it, what is newer than the last of them,
/// the pinned one, and those that are kept by a file.
fn expected_after(sound: &[bool], keep_last: usize, pinned: Option<u64>, kept: &[u64]) -> Vec<u64> {
    let newest = sound.len() as u64 + 1;
    let is_pinned = |n: u64| pinned == Some(n) && sound[usize::try_from(n).unwrap() - 1];
    let is_kept = |n: u64| kept.contains(&n);
    let mut left = vec![newest];
    let mut num_sound = 1;
    for (index, is_sound) in sound.iter().enumerate().rev() {
        let n = index as u64 + 1;
        if is_pinned(n) || is_kept(n) || num_sound < keep_last {
            left.push(n);
        }
        num_sound += usize::from(*is_sound && !is_pinned(n) && !is_kept(n));
    }
    left.sort_unstable();
    left
}

#[test]
fn retention_never_takes_the_last_sound_generations_the_pinned_one_or_what_is_kept_whatever_is_damaged() {
    const NUM: u64 = 5;
    for (damaged, keep_last) in (0..1_u32 << NUM).flat_map(|damaged| [1, 2, 3].map(|keep_last| (damaged, keep_last))) {
        for (pinned, kept) in [(None, &[][..]), (Some(2), &[]), (None, &[1, 4]), (Some(1), &[3])] {
            let (fs, mut store) = saved([], 9);
            for step in 1..=NUM {
                let is_pinned = pinned == Some(step);
                if is_pinned { store.save_pinned(&snapshot(step)) } else { store.save(&snapshot(step)) }.unwrap();
            }
            drop(store);
            let sound: Vec<bool> = (0..NUM).map(|index| damaged & (1 << index) == 0).collect();
            (1..=NUM).zip(&sound).filter(|(_, sound)| !**sound).for_each(|(generation, _)| damage(&fs, generation));
            for &generation in kept {
                fs.write_synced(&Path::new(DIR).join(Generation(generation).keep_name()), b"").unwrap();
            }
            let mut store = open(&fs, keep_last);
            store.save(&snapshot(NUM + 1)).unwrap();
            let expected = expected_after(&sound, keep_last, pinned, kept);
            let context = format!("sound {sound:?}, keeping {keep_last}, pinned {pinned:?}, kept {kept:?}");
            assert_eq!(numbers(&store.list().unwrap()), expected, "{context}");
        }
    }
}

#[test]
fn a_generation_that_is_kept_goes_when_its_file_does() {
    let (fs, mut store) = saved(1..=2, 1);
    let keep = Path::new(DIR).join(Generation(2).keep_name());
    fs.write_synced(&keep, b"the one of the paper").unwrap();
    for step in 3..=5 {
        store.save(&snapshot(step)).unwrap();
    }
    assert_eq!(numbers(&store.list().unwrap()), [2, 5]);
    fs.rename(&keep, &keep.with_file_name("kept-no-more")).unwrap();
    store.save(&snapshot(6)).unwrap();
    assert_eq!(numbers(&store.list().unwrap()), [6]);
}

#[test]
fn all_damaged_is_an_error_and_not_a_fresh_start() {
    let (fs, store) = saved(1..=2, 2);
    damage(&fs, 1);
    damage(&fs, 2);
    let error = store.load_latest().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let CheckpointError::NothingLoadable { skipped, .. } = error else { panic!("{error}") };
    assert_eq!(skipped.iter().map(|(generation, _)| generation.0).collect::<Vec<_>>(), [2, 1]);
    assert!(chain(&skipped[0].1).contains("generation 2 is damaged: `/run/gen-00000002/tensors.safetensors`"));
    assert!(chain(&skipped[0].1).contains("BLAKE3 digest is"));
}

#[test]
fn there_is_no_generation_after_the_largest_number() {
    let (fs, mut store) = saved([1], 2);
    fs.create_dir(&Path::new(DIR).join(Generation(u64::MAX).directory_name())).unwrap();
    let error = store.save(&snapshot(2)).unwrap_err();
    assert!(matches!(error, CheckpointError::NumbersExhausted { newest: Generation(u64::MAX), .. }), "{error}");
    assert_eq!(store.load_latest().unwrap().unwrap().generation, Generation(1));
}

#[test]
fn missing_parents_are_made() {
    let fs = Arc::new(SimFs::default());
    let mut store = CheckpointStore::open("/a/b/c", keep(1), Arc::clone(&fs) as Arc<dyn Fs>).unwrap();
    store.save(&snapshot(1)).unwrap();
    assert!(fs.tree().contains(&"/a/b/c/gen-00000001/manifest.json".to_owned()), "{:?}", fs.tree());
}

#[test]
fn the_rename_comes_after_every_sync_and_the_removal_after_the_read_back() {
    let (fs, store) = saved([1], 1);
    drop(store);
    let log = Arc::new(FaultFs::recording(fs));
    let mut store = CheckpointStore::open(DIR, keep(1), Arc::clone(&log) as Arc<dyn Fs>).unwrap();
    let num_before = log.calls().len();
    store.save(&snapshot(2)).unwrap();
    let calls = log.calls().split_off(num_before);
    let effects: Vec<&str> = calls.iter().map(String::as_str).filter(|call| !call.starts_with("kind ")).collect();
    let expected = [
        "list run",
        "list run",
        "create_dir tmp-00000002",
        "write tensors.safetensors",
        "write state.json",
        "write manifest.json",
        "sync_dir tmp-00000002",
        "rename tmp-00000002",
        "sync_dir run",
        "read manifest.json",
        "read state.json",
        "read tensors.safetensors",
        "list run",
        "read manifest.json",
        "rename gen-00000001",
        "sync_dir run",
        "remove tmp-00000001",
    ];
    assert_eq!(effects, expected);
}

#[test]
fn a_second_writer_is_refused_until_the_first_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let open = || CheckpointStore::open(dir.path(), keep(2), Arc::new(StdFs));
    let mut first = open().unwrap();
    let error = open().unwrap_err();
    assert!(matches!(&error, CheckpointError::Locked { dir: named } if named == dir.path()), "{error}");
    assert!(error.to_string().contains(dir.path().to_str().unwrap()));
    assert_eq!(error.kind(), ErrorKind::Rejected);
    // The refused one has touched nothing, and reading needs no lock.
    first.save(&snapshot(1)).unwrap();
    let reader = CheckpointReader::new(dir.path(), Arc::new(StdFs));
    assert_same(&reader.load_latest().unwrap().unwrap().snapshot, &snapshot(1));
    drop(first);
    assert_same(&open().unwrap().load_latest().unwrap().unwrap().snapshot, &snapshot(1));
}

#[test]
fn stale_temporary_directories_are_swept_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for name in ["tmp-00000009", "tmp-00000009/inner", "tmp-9", "tmp-notes", "other"] {
        std::fs::create_dir(path(name)).unwrap();
    }
    std::fs::write(path("tmp-00000009/state.json"), "half").unwrap();
    std::fs::write(path("tmp-00000008"), "not a directory").unwrap();
    let mut store = CheckpointStore::open(dir.path(), keep(1), Arc::new(StdFs)).unwrap();
    assert!(!path("tmp-00000009").exists());
    assert!(["tmp-00000008", "tmp-9", "tmp-notes", "other"].iter().all(|name| path(name).exists()));
    // The next save sweeps as well.
    std::fs::create_dir(path("tmp-00000001")).unwrap();
    assert_eq!(store.save(&snapshot(1)).unwrap(), Generation(1));
    assert!(!path("tmp-00000001").exists());
}

#[cfg(unix)]
mod unix {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::checkpoint::EntryKind;

    fn walk(path: &Path, found: &mut Vec<PathBuf>) {
        found.push(path.to_owned());
        if path.is_dir() {
            fs::read_dir(path).unwrap().for_each(|entry| walk(&entry.unwrap().path(), found));
        }
    }

    #[test]
    fn only_the_owner_can_use_what_the_store_makes() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("checkpoints");
        let mut store = CheckpointStore::open(&dir, keep(1), Arc::new(StdFs)).unwrap();
        store.save(&snapshot(1)).unwrap();
        let mut paths = Vec::new();
        walk(&dir, &mut paths);
        assert_eq!(paths.len(), 6, "{paths:?}");
        for path in paths {
            let metadata = fs::metadata(&path).unwrap();
            let expected = if metadata.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(metadata.permissions().mode() & 0o7777, expected, "{}", path.display());
        }
    }

    #[test]
    fn links_are_not_followed() {
        for name in ["manifest.json", "state.json", "tensors.safetensors", ""] {
            let dir = tempfile::tempdir().unwrap();
            let mut store = CheckpointStore::open(dir.path(), keep(2), Arc::new(StdFs)).unwrap();
            store.save(&snapshot(1)).unwrap();
            let newest = dir.path().join(store.save(&snapshot(2)).unwrap().directory_name());
            // The target is the very file, so only the link can be what is refused.
            let (link, target) = (newest.join(name), dir.path().join("elsewhere"));
            let link = if name.is_empty() { newest.clone() } else { link };
            fs::rename(&link, &target).unwrap();
            symlink(&target, &link).unwrap();
            let loaded = store.load_latest().unwrap().unwrap();
            assert_same(&loaded.snapshot, &snapshot(1));
            let reason = chain(&loaded.skipped[0].1);
            assert!(reason.contains("it is not a"), "{name}: {reason}");
            assert_eq!(StdFs.kind(&link).unwrap(), Some(EntryKind::Other));
            if !name.is_empty() {
                assert!(StdFs.read(&link, u64::MAX).is_err(), "{name}: read through a link");
            }
        }
    }

    #[test]
    fn the_lock_is_not_taken_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        symlink(dir.path().join("precious"), dir.path().join("lock")).unwrap();
        let error = CheckpointStore::open(dir.path(), keep(1), Arc::new(StdFs)).unwrap_err();
        assert!(matches!(error, CheckpointError::Io { action: "lock", .. }), "{error}");
        assert!(!dir.path().join("precious").exists());
    }

    #[test]
    fn the_directory_itself_may_be_reached_through_a_link() {
        let parent = tempfile::tempdir().unwrap();
        fs::create_dir(parent.path().join("real")).unwrap();
        symlink("real", parent.path().join("latest")).unwrap();
        let mut store = CheckpointStore::open(parent.path().join("latest"), keep(1), Arc::new(StdFs)).unwrap();
        store.save(&snapshot(1)).unwrap();
        assert!(parent.path().join("real/gen-00000001/manifest.json").exists());
    }

    #[test]
    fn a_read_stops_at_its_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        StdFs.write_synced(&path, b"12345").unwrap();
        assert_eq!(StdFs.read(&path, 5).unwrap(), b"12345");
        assert_eq!(StdFs.read(&path, 4).unwrap_err().kind(), std::io::ErrorKind::FileTooLarge);
        assert!(StdFs.write_synced(&path, b"").is_err(), "an existing file was overwritten");
        // One terabyte that is not there: refused by its size, before memory is taken.
        fs::File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(StdFs.read(&path, 1 << 30).unwrap_err().kind(), std::io::ErrorKind::FileTooLarge);
    }
}

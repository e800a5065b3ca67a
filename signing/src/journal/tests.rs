//! Crashes and damage: whatever happens to the file, nothing that it held whole is accepted again.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;
use esper_disk::testkit::{Failure, FaultFs, SimFs, Which};
use leyline::command::{Command, Operation, Order, SignedCommand};
use leyline::durable::Durable as _;
use leyline::region::Eager;
use leyline::seed::SeedManager as _;
use leyline_testkit::clock::ManualClock;
use leyline_testkit::fake_seed_manager::FakeSeedManager;
use leyline_testkit::recording_recorder::RecordingRecorder;
use tempfile::TempDir;

use super::*;
use crate::fixtures::{NOW_MS, command, key, run_id, sign, verifier};
use crate::verifier::Verifier;
use crate::{Error, Rejection, Verified};

const NOW: Duration = Duration::from_millis(NOW_MS);

struct Folder {
    _dir: TempDir,
    path: PathBuf,
}

impl Folder {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("commands.journal");
        Self { _dir: dir, path }
    }

    fn open(&self) -> Result<Journal, JournalError> {
        Journal::open(&self.path)
    }

    fn verifier(&self) -> Verifier {
        let mut verifier = verifier();
        verifier.set_journal(self.open().unwrap());
        verifier
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap()
    }
}

fn accept(verifier: &mut Verifier, signed: &SignedCommand) -> Result<Command, Rejection> {
    verifier.accept(signed, NOW)
}

/// Commands of two keys, with different nonces, accepted in this order; and the journal they leave.
fn written() -> (Vec<SignedCommand>, Vec<u8>) {
    let folder = Folder::new();
    let mut verifier = folder.verifier();
    let of = |(id, sequence, nonce)| sign(id, &Command { nonce: Nonce([nonce; 16]), ..command(sequence) });
    let commands = [(0, 3, 0xA0), (1, 3, 0xA1), (0, 4, 0), (0, 9, 0xFF)].map(of).to_vec();
    for signed in &commands {
        accept(&mut verifier, signed).unwrap();
    }
    let bytes = folder.bytes();
    assert_eq!(bytes.len(), SLOT * (1 + commands.len()));
    (commands, bytes)
}

#[test]
fn after_a_restart_nothing_is_accepted_again() {
    let folder = Folder::new();
    let mut first = folder.verifier();
    for sequence in [1, 2, 5] {
        accept(&mut first, &sign(0, &command(sequence))).unwrap();
    }
    drop(first);
    for _ in 0..2 {
        let mut restarted = folder.verifier();
        for sequence in [1, 2, 5] {
            let reason = accept(&mut restarted, &sign(0, &command(sequence))).unwrap_err().reason();
            assert_eq!(reason, "sequence_replayed");
        }
    }
    let mut restarted = folder.verifier();
    accept(&mut restarted, &sign(0, &command(6))).unwrap();
    assert!(folder.open().is_err(), "it is in use");
    drop(restarted);
    assert!(folder.open().unwrap().knows(KeyId(0)));
    assert!(!folder.open().unwrap().knows(KeyId(1)));
}

#[test]
fn a_file_cut_anywhere_lets_nothing_in_that_it_still_holds() {
    let (commands, bytes) = written();
    for len in 0..=bytes.len() {
        let folder = Folder::new();
        fs::write(&folder.path, &bytes[..len]).unwrap();
        let journal = match folder.open() {
            Ok(journal) => journal,
            Err(error) => {
                assert!(len < SLOT, "{len} bytes: {error}");
                assert_eq!(folder.bytes(), bytes[..len], "a journal that is refused is left alone");
                continue;
            }
        };
        let rest = len % SLOT;
        let torn = (rest > 0).then_some(TornTail { offset: (len - rest) as u64, bytes: rest as u64 });
        assert_eq!(journal.torn_tail(), torn, "{len} bytes");
        let mut verifier = verifier();
        verifier.set_journal(journal);
        for signed in &commands[..len / SLOT - 1] {
            let reason = accept(&mut verifier, signed).unwrap_err().reason();
            assert_eq!(reason, "sequence_replayed", "{len} bytes");
        }
        // The others were never carried out. They are taken up, and survive.
        for signed in &commands[len / SLOT - 1..] {
            accept(&mut verifier, signed).unwrap();
        }
        drop(verifier);
        let mut reopened = folder.verifier();
        assert!(commands.iter().all(|signed| accept(&mut reopened, signed).is_err()), "{len} bytes");
    }
}

#[test]
fn every_altered_byte_is_an_error_that_says_where() {
    let (_, bytes) = written();
    let folder = Folder::new();
    for position in 0..bytes.len() {
        for flip in 1..=255 {
            let mut altered = bytes.clone();
            altered[position] ^= flip;
            // Without the file: opening would only add a read.
            match read(&folder.path, &altered).unwrap_err() {
                JournalError::Foreign { .. } => assert!(position < 8),
                JournalError::Version { .. } => assert!((8..12).contains(&position)),
                JournalError::Damaged { offset, .. } => assert_eq!(offset, (position - position % SLOT) as u64),
                other => panic!("{other}"),
            }
        }
        let mut altered = bytes.clone();
        altered[position] ^= 1;
        fs::write(&folder.path, &altered).unwrap();
        assert_eq!(folder.open().unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(folder.bytes(), altered, "a journal that is refused is left alone");
    }
}

#[test]
fn a_slot_that_was_never_filled_is_cut_off_at_the_end_and_damage_before_it() {
    let (commands, bytes) = written();
    let zeros = [0; SLOT];
    let folder = Folder::new();
    fs::write(&folder.path, [bytes.as_slice(), &zeros].concat()).unwrap();
    let mut journal = folder.open().unwrap();
    assert_eq!(journal.torn_tail.take(), Some(TornTail { offset: bytes.len() as u64, bytes: SLOT as u64 }));
    drop(journal);
    assert!(commands.iter().all(|signed| accept(&mut folder.verifier(), signed).is_err()));

    let last = bytes.len() - SLOT;
    for content in [[&bytes[..last], &zeros, &bytes[last..]].concat(), [bytes.as_slice(), &zeros, &zeros].concat()] {
        fs::write(&folder.path, content).unwrap();
        let offset = match folder.open().unwrap_err() {
            JournalError::Damaged { offset, .. } => offset,
            other => panic!("{other}"),
        };
        assert!(offset == last as u64 || offset == bytes.len() as u64, "{offset}");
    }
}

#[test]
fn opening_keeps_the_highest_number_of_every_key_and_nothing_else() {
    let folder = Folder::new();
    let mut verifier = folder.verifier();
    for sequence in 1..=50 {
        accept(&mut verifier, &sign(0, &command(sequence))).unwrap();
    }
    accept(&mut verifier, &sign(1, &command(7))).unwrap();
    drop(verifier);
    let long = folder.bytes();
    assert_eq!(long.len(), 52 * SLOT);
    drop(folder.open().unwrap());
    let short = folder.bytes();
    assert_eq!(short.len(), 3 * SLOT, "a header and one slot for each key");
    drop(folder.open().unwrap());
    assert_eq!(folder.bytes(), short, "there is nothing left to drop");
    let mut restarted = folder.verifier();
    for signed in [sign(0, &command(50)), sign(1, &command(7))] {
        assert_eq!(accept(&mut restarted, &signed).unwrap_err().reason(), "sequence_replayed");
    }
    accept(&mut restarted, &sign(0, &command(51))).unwrap();
}

#[test]
fn a_crash_while_the_file_is_replaced_leaves_the_old_one_in_force() {
    let (commands, bytes) = written();
    let folder = Folder::new();
    for len in [0, 1, SLOT, bytes.len() - 1] {
        fs::write(&folder.path, &bytes).unwrap();
        fs::write(folder.path.with_file_name("commands.journal.new"), &bytes[..len]).unwrap();
        let mut restarted = folder.verifier();
        assert!(commands.iter().all(|signed| accept(&mut restarted, signed).is_err()), "{len}");
        assert_eq!(fs::read_dir(folder.path.parent().unwrap()).unwrap().count(), 1, "{len}");
    }
}

#[test]
fn what_is_no_journal_or_of_another_version_is_refused_and_left_alone() {
    let folder = Folder::new();
    let mut newer = header();
    newer[8] = 2;
    for (content, message) in [
        (b"thesis".as_slice(), "is not a command journal"),
        (b"", "is not a command journal"),
        (&newer, "has version 2: this build reads version 1"),
        (&header()[..SLOT - 1], "is damaged at byte 0"),
    ] {
        fs::write(&folder.path, content).unwrap();
        let error = folder.open().unwrap_err();
        assert!(error.to_string().ends_with(message), "{error}");
        assert_eq!((error.kind(), folder.bytes().as_slice()), (ErrorKind::Corrupt, content));
    }
    let nowhere = Journal::open(&folder.path.join("below")).unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::Io);
}

/// Its file cannot be written, and is not locked.
fn unwritable(folder: &Folder) -> Journal {
    let which = Which::Named("write_at commands.journal".to_owned(), 0);
    let fs = FaultFs::failing_at(Arc::new(StdFs), Failure::FromThenOn, which);
    let mut journal = folder.open().unwrap();
    journal.file = fs.open(&folder.path, Open::Existing).unwrap();
    journal
}

#[test]
fn after_a_failed_write_the_next_one_starts_where_the_last_durable_one_ended() {
    let folder = Folder::new();
    let new = |sequence| Acceptance { key_id: KeyId(0), sequence, nonce: Nonce([1; 16]), expires_unix_ms: NOW_MS };
    let mut journal = unwritable(&folder);
    assert!(journal.append(&new(1)).is_err());
    // What a write that failed half way leaves, then the medium recovers.
    fs::write(&folder.path, [header().as_slice(), &slot(&new(1))[..9]].concat()).unwrap();
    journal.file = StdFs.open(&folder.path, Open::Existing).unwrap();
    journal.append(&new(2)).unwrap();
    journal.append(&new(3)).unwrap();
    assert_eq!(folder.bytes(), [header(), slot(&new(2)), slot(&new(3))].concat());
}

#[test]
fn a_command_that_cannot_be_written_down_is_rejected_with_its_cause_and_not_carried_out() {
    let folder = Folder::new();
    let recorder = Arc::new(RecordingRecorder::new());
    let clock = Arc::new(ManualClock::new(NOW));
    let manager = FakeSeedManager::new(&Device::Cpu).unwrap();
    let manager = Verified::new(manager, run_id(), key(0).1, clock, recorder.clone());
    let mut manager = manager.with_journal(unwritable(&folder));
    let operation = Operation::germinate("slot-0".parse().unwrap(), "linear".parse().unwrap());
    let signed = sign(0, &Command { operation: operation.clone(), ..command(1) });
    let order = Order { signed: Some(signed), ..operation.into() };
    let mut eager = Eager::acquire().unwrap();
    let saved = manager.save(&eager).unwrap().json;
    for _ in 0..2 {
        let error = manager.apply(&mut eager, &order).unwrap_err();
        assert!(matches!(&error, Error::Command(Rejection::Journal(JournalError::Io { .. }))), "{error:?}");
        assert_eq!(manager.save(&eager).unwrap().json, saved, "nothing was used up or changed");
    }
    let answers: Vec<_> = recorder.events().into_iter().map(|event| (event.desc.name, event.attributes)).collect();
    assert_eq!(answers, vec![("command_rejected", vec![("reason", "journal_failed".to_owned())]); 2]);
    let mut manager = manager.with_journal(folder.open().unwrap_or_else(|error| panic!("{error}")));
    manager.apply(&mut eager, &order).unwrap();
}

/// What the second opener does between two steps of the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Other {
    /// It holds the journal until the first one has ended.
    Holds,
    /// It accepts a command and closes the journal.
    Leaves,
}

/// What came of two openers: the steps of the first, and whether the second got the journal at the step.
fn interleave(existing: Option<&[u8]>, step: Step, other: Other) -> (Vec<Step>, bool) {
    let folder = Folder::new();
    if let Some(bytes) = existing {
        fs::write(&folder.path, bytes).unwrap();
    }
    let new = Acceptance { key_id: KeyId(5), sequence: 77, nonce: Nonce([3; 16]), expires_unix_ms: NOW_MS };
    let (mut steps, mut held, mut was_open) = (Vec::new(), None, false);
    let first = Journal::open_in_steps(&StdFs, &folder.path, &mut |now| {
        steps.push(now);
        if now != step || was_open {
            return;
        }
        match folder.open() {
            Ok(mut second) => {
                was_open = true;
                second.append(&new).unwrap();
                held = (other == Other::Holds).then_some(second);
            }
            Err(error) => assert!(matches!(error, JournalError::InUse { .. }), "{step:?}: {error}"),
        }
    });
    let what = format!("{step:?} {other:?} {steps:?}");
    match first {
        Ok(mut first) => {
            assert!(held.is_none(), "{what}: two have it");
            assert_eq!(first.knows(KeyId(5)), was_open, "{what}: what the other accepted is not known");
            assert!(first.file.is_at(&folder.path).unwrap(), "{what}: its file is not the one at the path");
            assert!(matches!(folder.open(), Err(JournalError::InUse { .. })), "{what}");
            first.append(&Acceptance { key_id: KeyId(6), ..new }).unwrap();
        }
        Err(error) => {
            assert!(matches!(error, JournalError::InUse { .. }), "{what}: {error}");
            assert!(held.is_some(), "{what}: nobody has it");
        }
    }
    drop(held);
    let reopened = folder.open().unwrap();
    assert_eq!(reopened.knows(KeyId(5)), was_open, "{what}");
    assert_eq!(reopened.knows(KeyId(0)), existing.is_some(), "{what}");
    let names = fs::read_dir(folder.path.parent().unwrap()).unwrap().count();
    assert_eq!(names, 1, "{what}: something is left beside it");
    (steps, was_open)
}

#[test]
fn two_that_open_a_journal_at_once_never_both_have_it_and_none_loses_what_the_other_accepted() {
    use Step::{FirstLinked, FirstOpened, FirstWritten, Locked, Missing, Opened, Replacing};
    let bytes = written().1;
    let torn = [bytes.as_slice(), &[1, 2, 3]].concat();
    let all = [Missing, FirstOpened, FirstWritten, FirstLinked, Opened, Locked, Replacing];
    let (mut reached, mut got_in) = (Vec::new(), 0);
    for existing in [None, Some(bytes.as_slice()), Some(torn.as_slice())] {
        for step in all {
            for other in [Other::Holds, Other::Leaves] {
                let (steps, was_open) = interleave(existing, step, other);
                reached.extend(steps);
                got_in += u32::from(was_open);
            }
        }
    }
    assert!(all.iter().all(|step| reached.contains(step)), "never reached: {reached:?}");
    assert!(got_in >= 6, "the second one came in {got_in} times only");
}

#[test]
fn a_crash_before_the_second_name_of_the_first_file_is_gone_does_no_harm() {
    let folder = Folder::new();
    let first = folder.path.with_file_name("commands.journal.first");
    for (leftover, linked) in [(b"".as_slice(), false), (&header()[..9], false), (&header(), true)] {
        fs::write(&first, leftover).unwrap();
        if linked {
            fs::hard_link(&first, &folder.path).unwrap();
        }
        let mut journal = folder.open().unwrap();
        assert!(!first.exists(), "a second name is left beside it");
        let new = Acceptance { key_id: KeyId(1), sequence: 1, nonce: Nonce([1; 16]), expires_unix_ms: NOW_MS };
        journal.append(&new).unwrap();
        drop(journal);
        assert!(folder.open().unwrap().knows(KeyId(1)));
        // Moved away: the new journal is another file, whatever names the old one has.
        let (moved, whole) = (folder.path.with_file_name("old"), folder.bytes());
        fs::rename(&folder.path, &moved).unwrap();
        assert!(!folder.open().unwrap().knows(KeyId(1)));
        assert_eq!(fs::read(&moved).unwrap(), whole);
        assert!(!first.exists());
        fs::remove_file(&folder.path).unwrap();
    }
}

#[test]
fn a_command_stays_known_also_where_an_earlier_opening_could_not_sync_the_folder() {
    let (disk, path) = (Arc::new(SimFs::default()), Path::new("/run/commands.journal"));
    let new = |sequence| Acceptance { key_id: KeyId(0), sequence, nonce: Nonce([1; 16]), expires_unix_ms: NOW_MS };
    disk.create_dir(Path::new("/run")).unwrap();
    let mut journal = Journal::open_on(&*disk, path).unwrap();
    [1, 2].into_iter().for_each(|sequence| journal.append(&new(sequence)).unwrap());
    drop(journal);
    disk.settle();

    let which = Which::Named("sync_dir run".to_owned(), 0);
    let faulty = FaultFs::failing_at(Arc::clone(&disk) as Arc<dyn Fs>, Failure::Once, which);
    assert!(Journal::open_on(&faulty, path).is_err() && faulty.has_failed());

    let mut journal = Journal::open_on(&*disk, path).unwrap();
    disk.record();
    journal.append(&new(3)).unwrap();
    disk.take_points().pop().unwrap().for_each_state(|disk| {
        let reopened = Journal::open_on(&disk, path).unwrap();
        assert!(reopened.window().check(&new(3)).is_err(), "accepted twice: {:?}", disk.tree());
    });
}

#[test]
fn a_file_larger_than_any_journal_is_refused_before_it_is_read() {
    let folder = Folder::new();
    fs::write(&folder.path, header()).unwrap();
    fs::OpenOptions::new().write(true).open(&folder.path).unwrap().set_len(MAX_BYTES + 1).unwrap();
    let error = folder.open().unwrap_err();
    assert!(matches!(&error, JournalError::TooLarge { path, .. } if *path == folder.path), "{error}");
    assert!(error.to_string().ends_with("goes beyond 1073741824 bytes"), "{error}");
    // None grows so large that it could not be opened.
    let mut journal = unwritable(&Folder::new());
    journal.len = MAX_BYTES - SLOT as u64 + 1;
    let new = Acceptance { key_id: KeyId(1), sequence: 1, nonce: Nonce([1; 16]), expires_unix_ms: NOW_MS };
    assert!(matches!(journal.append(&new), Err(JournalError::TooLarge { .. })));
}

//! Checkpoints that are signed: the commands that read them accept the right key alone.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::path::Path;
use std::process::Command;

/// Exit code and what was said.
fn esper(args: &[&str], dir: &Path, key: Option<&str>) -> (Option<i32>, String) {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("esper"));
    command.args(args).current_dir(dir).env_remove("ESPER_CHECKPOINT_KEY");
    if let Some(key) = key {
        command.env("ESPER_CHECKPOINT_KEY", key);
    }
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_run_that_is_signed_is_read_with_its_key_and_one_that_is_not_without_asking_for_signatures() {
    let dir = tempfile::tempdir().unwrap();
    let (right, wrong) = ("5a".repeat(32), "a5".repeat(32));
    std::fs::write(dir.path().join("key"), format!("{right}\n")).unwrap();
    std::fs::write(dir.path().join("other"), &wrong).unwrap();
    let train = ["train", "--epochs", "1", "--progress", "off", "--out"];
    let with_key = [&train[..], &["signed", "--checkpoint-key", "key"]].concat();
    assert_eq!(esper(&with_key, dir.path(), None).0, Some(0));
    assert_eq!(esper(&[&train[..], &["plain"]].concat(), dir.path(), None).0, Some(0));

    let resume = |run: &'static str| ["train", "--resume", "--progress", "off", "--out", run];
    let readers =
        |run: &'static str| [resume(run).to_vec(), vec!["evaluate", run], vec!["export", run, "--to", "to", "--force"]];
    for reader in readers("signed") {
        let with = |flags: &[&'static str], key| esper(&[&reader[..], flags].concat(), dir.path(), key);
        for (flags, key) in [
            (&["--require-signed", "--checkpoint-key", "key"][..], None),
            (&["--require-signed"], Some(&*right)),
            (&["--checkpoint-key", "key"], Some(&*wrong)),
            (&[], None),
        ] {
            let (code, said) = with(flags, key);
            assert_eq!(code, Some(0), "{reader:?} {flags:?}: {said}");
        }
        for flags in [&["--require-signed", "--checkpoint-key", "other"][..], &["--checkpoint-key", "other"]] {
            let (code, said) = with(flags, None);
            assert_eq!(code, Some(1), "{reader:?} {flags:?}: {said}");
            assert!(said.contains("it is of another key, or of another manifest"), "{said}");
        }
        let (code, said) = with(&["--require-signed"], None);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("expected --checkpoint-key FILE, or ESPER_CHECKPOINT_KEY"), "{said}");
    }
    for reader in readers("plain") {
        let required = [&reader[..], &["--require-signed", "--checkpoint-key", "key"]].concat();
        let (code, said) = esper(&required, dir.path(), None);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("manifest.hmac` cannot be accepted: it is missing"), "{said}");
        assert_eq!(esper(&[&reader[..], &["--checkpoint-key", "key"]].concat(), dir.path(), None).0, Some(0));
    }
}

#[test]
#[cfg(unix)]
fn a_variable_that_is_no_text_is_no_key_and_not_none() {
    use std::os::unix::ffi::OsStrExt as _;

    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("esper"));
    command.args(["train", "--epochs", "1", "--progress", "off", "--out", "run"]).current_dir(dir.path());
    let output = command.env("ESPER_CHECKPOINT_KEY", std::ffi::OsStr::from_bytes(b"\xff")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("ESPER_CHECKPOINT_KEY holds no key") && !dir.path().join("run").exists(), "{said}");
}

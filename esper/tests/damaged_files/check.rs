//! Cases, and what `esper train` and `esper predict` say to them.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Address space of each command: far below what the files claim, and above what the command needs.
const LIMIT_KIB: u32 = 600 << 10;
/// What stands in a folder.
pub(crate) enum Content {
    Bytes(Vec<u8>),
    Folder,
    LinkTo(&'static str),
    Pipe,
    /// So many bytes that take no space, behind these.
    Sparse(Vec<u8>, u64),
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Bytes(text.into())
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::Bytes(text.into())
    }
}

/// What the command says to a file.
enum Expected {
    /// Exit code 2 and these parts of the message.
    Refused(&'static [&'static str]),
    /// The same from `esper train`; a prediction needs no targets and no second row, and is not looked at.
    RefusedForTraining(&'static [&'static str]),
    /// Exit code 0, and these parts of what is told about the data.
    Trains(&'static [&'static str]),
}

/// A file, what lies beside it, and what is said to it.
pub(crate) struct Case {
    /// As it is given to `--data`.
    name: &'static str,
    files: Vec<(&'static str, Content)>,
    settings: Vec<&'static str>,
    expected: Expected,
}

impl Case {
    fn new(name: &'static str, content: impl Into<Content>, expected: Expected) -> Self {
        Self { name, files: vec![(name, content.into())], settings: Vec::new(), expected }
    }

    pub(crate) fn refused(name: &'static str, content: impl Into<Content>, parts: &'static [&'static str]) -> Self {
        Self::new(name, content, Expected::Refused(parts))
    }

    pub(crate) fn untrainable(name: &'static str, content: impl Into<Content>, parts: &'static [&'static str]) -> Self {
        Self::new(name, content, Expected::RefusedForTraining(parts))
    }

    pub(crate) fn trains(name: &'static str, content: impl Into<Content>, told: &'static [&'static str]) -> Self {
        Self::new(name, content, Expected::Trains(told))
    }

    /// With another file in the folder.
    pub(crate) fn beside(mut self, name: &'static str, content: impl Into<Content>) -> Self {
        self.files.push((name, content.into()));
        self
    }

    /// With `--set SETTING`.
    pub(crate) fn set(mut self, setting: &'static str) -> Self {
        self.settings.extend(["--set", setting]);
        self
    }
}

/// What is the same whatever the format is: no file, no regular file, and more of a file than there may be.
pub(crate) fn of_any_format(name: &'static str) -> Vec<Case> {
    vec![
        Case::refused(name, Content::LinkTo(name), &["cannot read"]),
        Case::refused(name, Content::LinkTo("nowhere"), &["cannot read", "No such file"]),
        Case::refused(name, Content::Pipe, &["found a pipe, a socket or a device, expected a regular file"]),
        Case::refused(name, Content::LinkTo("/dev/zero"), &["found a pipe, a socket or a device"]),
        Case::refused(name, Content::Sparse(Vec::new(), 20 << 30), &["found 21474836480 bytes, expected at most"]),
        Case::refused(name, Content::Folder, &["found no image, expected folders of .png"]),
    ]
}

/// Runs all cases, and predicts by a run on `good` wherever a file is refused; there is none where `good` is none.
#[track_caller]
pub(crate) fn check(good: Option<Case>, cases: Vec<Case>) {
    assert!(cases.len() >= 15, "{} files are damaged or odd", cases.len());
    let subject = tempfile::tempdir().unwrap();
    let run = subject.path().join("run");
    let mut wrong: Vec<String> = good.iter().filter_map(|good| train(subject.path(), good).err()).collect();
    for case in cases {
        let folder = tempfile::tempdir().unwrap();
        wrong.extend(train(folder.path(), &case).err());
        if let (Expected::Refused(parts), true) = (&case.expected, good.is_some()) {
            let predicted = esper(folder.path(), &["predict", &run.display().to_string(), "--data", case.name]);
            wrong.extend(refused(folder.path(), &case, &predicted, parts).err());
        }
    }
    assert!(wrong.is_empty(), "{} files are not answered as they should be:\n{}", wrong.len(), wrong.join("\n"));
}

/// What is wrong with the answer to a file.
fn train(dir: &Path, case: &Case) -> Result<(), String> {
    for (name, content) in &case.files {
        write(dir, name, content);
    }
    let fixed = ["train", "--out", "run", "--policy", "off", "--epochs", "1", "--max-steps", "2", "--progress", "off"];
    let output = esper(dir, &[&fixed[..], &["--data", case.name], &case.settings].concat());
    match case.expected {
        Expected::Refused(parts) | Expected::RefusedForTraining(parts) => refused(dir, case, &output, parts),
        Expected::Trains(told) => {
            answered(case, &output, 0, told)?;
            let is_whole = dir.join("run/summary.json").is_file();
            if is_whole { Ok(()) } else { Err(format!("{}: no summary", case.name)) }
        }
    }
}

fn refused(dir: &Path, case: &Case, output: &Output, parts: &[&str]) -> Result<(), String> {
    answered(case, output, 2, &[&[case.name], parts].concat())?;
    let left = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let first = |name: &str| name.trim_start_matches("./").split('/').next().unwrap().to_owned();
    let made: BTreeSet<String> = case.files.iter().map(|(name, _)| first(name)).collect();
    let more: Vec<String> = left.filter(|name| !made.contains(name)).collect();
    if more.is_empty() { Ok(()) } else { Err(format!("{}: {more:?} were left behind", case.name)) }
}

fn answered(case: &Case, output: &Output, code: i32, parts: &[&str]) -> Result<(), String> {
    let text = String::from_utf8_lossy(&output.stderr);
    let lacks = parts.iter().find(|part| !text.contains(**part));
    if output.status.code() == Some(code) && lacks.is_none() && text.len() < 2000 && !text.contains('\0') {
        return Ok(());
    }
    let shown: String = text.chars().take(600).collect();
    Err(format!("{}: {:?}, expected {code} and {parts:?}: {shown}", case.name, output.status))
}

fn write(dir: &Path, name: &str, content: &Content) {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    match content {
        Content::Bytes(bytes) => fs::write(path, bytes).unwrap(),
        Content::Folder => fs::create_dir(path).unwrap(),
        Content::LinkTo(target) => symlink(target, path).unwrap(),
        Content::Pipe => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
        Content::Sparse(head, length) => {
            fs::write(&path, head).unwrap();
            OpenOptions::new().write(true).open(path).unwrap().set_len(*length).unwrap();
        }
    }
}

fn esper(dir: &Path, args: &[&str]) -> Output {
    let limited = format!("ulimit -v {LIMIT_KIB} && exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &limited, env!("CARGO_BIN_EXE_esper")]).args(args);
    command.current_dir(dir).stdin(Stdio::null()).output().unwrap()
}

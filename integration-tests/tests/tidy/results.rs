//! Committed results name a commit of this history, and were measured by a build of exactly that commit.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::tree::{File, Tree};

const RESULTS: &str = "baselines/perf/";
/// Results that break the rule and have to be measured again. Each that no longer breaks it has to leave this list.
const TO_MEASURE_AGAIN: &[&str] = &[];

/// The commits that a result may name.
#[derive(Debug, Clone)]
pub(crate) struct History {
    /// The newest one and all before it, as git writes them.
    pub(crate) commits: Vec<String>,
    /// Whether older ones are missing here.
    pub(crate) is_cut: bool,
}

impl History {
    /// The history of this repository; none in a copy without one.
    pub(crate) fn read() -> Option<Self> {
        let git = |args: &[&str]| {
            let output = Command::new("git").current_dir(env!("CARGO_MANIFEST_DIR")).args(args).output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let root = git(&["rev-parse", "--show-toplevel"])?;
        let expected = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
        if Path::new(&root).canonicalize().ok()? != expected.canonicalize().ok()? {
            return None;
        }
        let is_cut = git(&["rev-parse", "--is-shallow-repository"])? == "true";
        Some(Self { commits: git(&["rev-list", "HEAD"])?.lines().map(str::to_owned).collect(), is_cut })
    }
}

/// What is wrong with the committed results.
pub(crate) fn violations(tree: &Tree, history: &History) -> Vec<String> {
    check(tree, history, TO_MEASURE_AGAIN)
}

fn check(tree: &Tree, history: &History, excused: &[&str]) -> Vec<String> {
    let results = tree.files.iter().filter(|file| file.path.starts_with(RESULTS) && file.path.ends_with(".json"));
    let found: Vec<(&str, Option<String>)> =
        results.map(|file| (file.path.as_str(), complaint(file, history))).collect();
    let mut violations = Vec::new();
    for (path, complaint) in &found {
        match (complaint, excused.contains(path)) {
            (Some(complaint), false) => violations.push(format!("{path}: {complaint}")),
            (None, true) => violations.push(format!("{path} is in order: take it off the list TO_MEASURE_AGAIN")),
            _ => {}
        }
    }
    let gone = excused.iter().filter(|path| found.iter().all(|(found, _)| found != *path));
    violations.extend(gone.map(|path| format!("{path} is gone: take it off the list TO_MEASURE_AGAIN")));
    violations
}

fn complaint(file: &File, history: &History) -> Option<String> {
    let Ok(result) = serde_json::from_str::<Value>(&file.text) else { return Some("is not JSON".to_owned()) };
    let environment = &result["environment"];
    if environment["dirty"] == true {
        return Some("was measured by a build whose sources differed from its commit".to_owned());
    }
    if environment["profile"] == "debug" {
        return Some("was measured by a debug build".to_owned());
    }
    let Some(commit) = environment["commit"].as_str() else { return Some("names no commit".to_owned()) };
    let is_named = commit.len() >= 7 && history.commits.iter().any(|known| known.starts_with(commit));
    let may_be_older = history.is_cut && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    (!is_named && !may_be_older).then(|| format!("names the commit `{commit}`, which is not in this history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "baselines/perf/a/b.json";

    #[track_caller]
    fn expect(environment: &str, is_cut: bool, excused: &[&str], complaint: Option<&str>) {
        let text = format!("{{\"environment\": {environment}}}");
        let tree = Tree { files: vec![File { path: PATH.into(), text }] };
        let history = History { commits: vec!["0123456789abcdef".into()], is_cut };
        match (check(&tree, &history, excused).as_slice(), complaint) {
            ([], None) => {}
            ([found], Some(complaint)) => assert!(found.starts_with(PATH) && found.contains(complaint), "{found}"),
            (found, _) => panic!("{environment}: {found:?}, expected {complaint:?}"),
        }
    }

    #[test]
    fn a_planted_result_of_another_history_is_named() {
        expect(r#"{"commit": "0123456789abcdef"}"#, false, &[], None);
        expect(r#"{"commit": "0123456"}"#, false, &[], None);
        expect(r#"{"commit": "657af3261d6e"}"#, false, &[], Some("`657af3261d6e`, which is not in this history"));
        expect(r#"{"commit": "657af3261d6e"}"#, true, &[], None);
        expect(r#"{"commit": "0123456-dirty"}"#, true, &[], Some("which is not in this history"));
        expect(r#"{"commit": "0123456", "dirty": true}"#, false, &[], Some("sources differed"));
        expect(r#"{"commit": "0123456", "profile": "debug"}"#, false, &[], Some("debug build"));
        expect(r#"{"commit": null}"#, false, &[], Some("names no commit"));
        expect(r#"{"commit": "01"}"#, false, &[], Some("which is not in this history"));
    }

    #[test]
    fn an_excuse_that_is_no_longer_needed_is_named() {
        expect(r#"{"commit": null}"#, false, &[PATH], None);
        expect(r#"{"commit": "0123456"}"#, false, &[PATH], Some("take it off the list"));
        expect(r#"{"commit": "0123456"}"#, false, &["baselines/perf/a/b.json.gone"], Some("is gone"));
    }
}

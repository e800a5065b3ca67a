//! The rules about single files. Each says what is wrong with a file, or nothing.

use crate::code::{code_of, has_word};
use crate::tree::{File, Tree};

const MAX_LINES: usize = 600;
/// The only folders and files that may hold unsafe code: those that call drivers and libraries, or answer for what a
/// graph points at.
const UNSAFE_PATHS: &[&str] = &[
    "graph/src/absent.rs",
    "graph/src/cuda/",
    "graph/src/kernels/",
    "graph/src/launch/",
    "tolaria/src/kernels/",
    "baselines/src/gpu/open.rs",
    "layers/src/device/",
    "layers/src/attention/cuda.rs",
    "layers/src/decoding/cuda.rs",
    "layers/src/embedding/cuda.rs",
    "layers/src/linear/kernels.rs",
    "layers/src/linear/thin.rs",
    "layers/src/cpu/product.rs",
    "layers/src/norm/cuda.rs",
    "candle/core/src/backward/direct.rs",
    "candle/core/src/backward/norm.rs",
    "fuzz/src/watched.rs",
];
/// Crate roots that deny unsafe code and allow it to such a folder or file.
const DENYING_ROOTS: &[&str] = &["graph/src/lib.rs", "tolaria/src/lib.rs", "layers/src/lib.rs", "baselines/src/lib.rs"];
/// Crate roots that include what others have written; unsafe code of our own is not allowed beside it.
const INCLUDING_ROOTS: &[&str] = &["candle/core/src/lib.rs", "candle/nn/src/lib.rs"];
/// Workspaces of their own, built as strangers build them, and the targets of the fuzzer.
const OTHER_WORKSPACES: &[&str] = &["candle/", "consumers/", "fuzz/"];
/// The only files of the trainer that say what is recorded, steps and evaluations, and what they must not name.
const REGIONS: [&str; 2] = ["tolaria/src/trainer/region.rs", "tolaria/src/trainer/evaluations.rs"];
const OUTSIDE_REGIONS: &[&str] = &["SeedManager", "Policy", "Trainer", "StepExecutor"];
/// Text that no source may contain, with the reason.
const BANNED: &[(&str, &str)] = &[
    ("#[ignore", "a test that does not run proves nothing"),
    ("should_panic", "it passes on any panic; assert on the error"),
    ("todo!", "nothing is committed unfinished"),
    ("unimplemented!", "nothing is committed unfinished"),
];

pub(crate) fn purpose_line(file: &File) -> Option<String> {
    let first = file.text.lines().next().unwrap_or_default();
    let missing = file.is_rust() && first.strip_prefix("//!").is_none_or(|purpose| purpose.trim().len() < 8);
    missing.then(|| format!("{}: the first line must be `//!` and say what the file is for", file.path))
}

pub(crate) fn length(file: &File) -> Option<String> {
    let num_lines = file.text.lines().count();
    let long = file.is_rust() && num_lines > MAX_LINES;
    long.then(|| format!("{}: {num_lines} lines, at most {MAX_LINES} are allowed; split it by idea", file.path))
}

pub(crate) fn banned_code(file: &File) -> Option<String> {
    if !file.is_rust() {
        return None;
    }
    let code = code_of(&file.text);
    let (text, reason) = BANNED.iter().find(|(text, _)| code.contains(text))?;
    Some(format!("{}: `{text}` is not allowed: {reason}", file.path))
}

pub(crate) fn unsafe_code(file: &File) -> Option<String> {
    let is_allowed = UNSAFE_PATHS.iter().any(|path| file.path.starts_with(path));
    let exempt = !file.is_rust() || file.is_test() || is_allowed;
    let found = !exempt && has_word(&code_of(&file.text), "unsafe");
    found.then(|| format!("{}: unsafe code is allowed in {} and in tests only", file.path, UNSAFE_PATHS.join(", ")))
}

pub(crate) fn crate_root(file: &File) -> Option<String> {
    let is_root = ["/src/lib.rs", "/src/main.rs"].iter().any(|end| file.path.ends_with(end))
        || (file.is_rust() && file.path.contains("/src/bin/"));
    let code = code_of(&file.text);
    let forbids = code.contains("#![forbid(unsafe_code)]");
    let may_deny = DENYING_ROOTS.contains(&file.path.as_str()) && code.contains("#![deny(unsafe_code)]");
    let includes = INCLUDING_ROOTS.contains(&file.path.as_str()) && code.contains("include!(concat!(env!(");
    let missing = is_root && !forbids && !may_deny && !includes;
    missing.then(|| format!("{}: the crate root must say `#![forbid(unsafe_code)]`", file.path))
}

pub(crate) fn manifest_lints(file: &File) -> Option<String> {
    let lines: Vec<_> = file.text.lines().map(|line| line.replace(' ', "")).collect();
    let inherits = lines.iter().any(|line| line == "lints.workspace=true")
        || lines.windows(2).any(|pair| pair[0] == "[lints]" && pair[1] == "workspace=true");
    let is_other = OTHER_WORKSPACES.iter().any(|folder| file.path.starts_with(folder));
    let missing = file.is_manifest() && !is_other && !inherits;
    missing.then(|| format!("{}: `[lints] workspace = true` is missing", file.path))
}

/// A package holds nothing from outside of its folder, so what a source includes has to lie in it. Tests are not built from
/// packages, and the crate of tests is not published.
pub(crate) fn included_file(file: &File) -> Option<String> {
    if !file.is_rust() || file.is_test() || file.path.starts_with("integration-tests/") {
        return None;
    }
    let source = file.text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let package = if file.path.starts_with("leyline/testkit/") { 2 } else { 1 };
    // Folders between the root of the package and the file.
    let depth = file.path.split('/').count() - 1 - package;
    let includes = ["include_str!(\"", "include_bytes!(\""].into_iter().flat_map(|call| source.split(call).skip(1));
    let outside =
        includes.filter_map(|rest| rest.split('"').next()).find(|path| path.matches("../").count() > depth)?;
    Some(format!("{}: `{outside}` lies outside of the package, which would not build from a registry", file.path))
}

/// What the trainer records is opened where no seed manager, policy or trainer is known.
pub(crate) fn trainer_region(file: &File) -> Option<String> {
    if file.is_test() || !file.path.starts_with("tolaria/src/trainer/") {
        return None;
    }
    let code = code_of(&file.text);
    if !REGIONS.contains(&file.path.as_str()) {
        let opens = code.contains("eager.record(") || code.contains("execute::Region<");
        return opens.then(|| format!("{}: regions are opened in {} only", file.path, REGIONS.join(" and ")));
    }
    let name = OUTSIDE_REGIONS.iter().find(|name| has_word(&code, name))?;
    Some(format!("{}: `{name}` is named where steps are recorded", file.path))
}

/// The codec is named in one file at most, its tests aside, so that it can be replaced there.
pub(crate) fn codec(tree: &Tree) -> Vec<String> {
    let names_it = |file: &&File| file.is_rust() && !file.is_test() && has_word(&code_of(&file.text), "bincode");
    let files: Vec<_> = tree.files.iter().filter(names_it).map(|file| file.path.as_str()).collect();
    if files.len() > 1 { vec![format!("bincode is named in {}: one module may", files.join(", "))] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.into(), text: text.into() }
    }

    #[track_caller]
    fn check(rule: impl Fn(&File) -> Option<String>, path: &str, text: &str, complaint: Option<&str>) {
        match (rule(&file(path, text)), complaint) {
            (None, None) => {}
            (Some(found), Some(complaint)) => {
                assert!(found.starts_with(path) && found.contains(complaint), "{found}");
            }
            (found, _) => panic!("{path}: {found:?}, expected {complaint:?}"),
        }
    }

    #[test]
    fn a_planted_file_without_purpose_is_named() {
        check(purpose_line, "a/src/b.rs", "use x;\n//! Late.", Some("first line"));
        check(purpose_line, "a/src/b.rs", "//! x\n", Some("first line"));
        check(purpose_line, "a/src/b.rs", "//! Adds numbers.\n", None);
        check(purpose_line, "a/Cargo.toml", "[package]", None);
    }

    #[test]
    fn a_planted_long_file_is_named() {
        check(length, "a/src/b.rs", &"x\n".repeat(601), Some("601 lines"));
        check(length, "a/src/b.rs", &"x\n".repeat(600), None);
    }

    #[test]
    fn planted_banned_code_is_named() {
        for text in ["#[ignore]", "#[ignore = \"slow\"]", "#[should_panic]", "todo!()", "unimplemented!(\"x\")"] {
            check(banned_code, "a/src/b.rs", text, Some("is not allowed"));
        }
        check(banned_code, "a/src/b.rs", "// todo! is not code\nlet x = \"#[ignore]\";", None);
    }

    #[test]
    fn planted_unsafe_code_is_named() {
        check(unsafe_code, "kasmina/src/b.rs", "unsafe { x() }", Some("unsafe code"));
        check(unsafe_code, "graph/src/cuda/b.rs", "unsafe { x() }", None);
        check(unsafe_code, "graph/src/compile/b.rs", "unsafe { x() }", Some("unsafe code"));
        check(unsafe_code, "tolaria/tests/b.rs", "unsafe { x() }", None);
        check(unsafe_code, "kasmina/src/lib.rs", "#![forbid(unsafe_code)]", None);
    }

    #[test]
    fn a_planted_region_that_knows_the_manager_is_named() {
        check(trainer_region, "tolaria/src/trainer/step.rs", "eager.record(|_| ())", Some("regions are opened in"));
        check(
            trainer_region,
            "tolaria/src/trainer/step.rs",
            "impl execute::Region<I> for A",
            Some("regions are opened in"),
        );
        check(trainer_region, "tolaria/src/trainer/step.rs", "region.run_eagerly(eager, None)", None);
        check(trainer_region, "tolaria/src/trainer/step/tests.rs", "eager.record(|_| ())", None);
        check(trainer_region, REGIONS[0], "use leyline::seed::SeedManager;", Some("`SeedManager` is named"));
        check(trainer_region, REGIONS[0], "eager.record(|_| ()) // not SeedManager", None);
    }

    #[test]
    fn a_planted_crate_root_without_forbid_is_named() {
        check(crate_root, "kasmina/src/lib.rs", "// #![forbid(unsafe_code)]", Some("crate root"));
        check(crate_root, "kasmina/src/lib.rs", "#![deny(unsafe_code)]", Some("crate root"));
        check(crate_root, "kasmina/src/bin/tool.rs", "fn main() {}", Some("crate root"));
        check(crate_root, "tolaria/src/lib.rs", "#![deny(unsafe_code)]", None);
        check(crate_root, "kasmina/src/other.rs", "", None);
    }

    #[test]
    fn a_planted_manifest_without_lints_is_named() {
        check(manifest_lints, "a/Cargo.toml", "[package]\n[lints]\n[dependencies]", Some("is missing"));
        check(manifest_lints, "a/Cargo.toml", "[lints]\nworkspace = true", None);
        check(manifest_lints, "a/Cargo.toml", "lints.workspace = true", None);
    }

    #[test]
    fn a_planted_file_from_outside_of_the_package_is_named() {
        for (path, include, complaint) in [
            ("a/src/b/c.rs", "../../data/d.gz", None),
            ("a/src/b/c.rs", "../../../Cargo.lock", Some("outside of the package")),
            ("leyline/testkit/src/c.rs", "../README.md", None),
            ("leyline/testkit/src/c.rs", "../../src/lib.rs", Some("outside of the package")),
            ("a/tests/c.rs", "../../data/d.gz", None),
        ] {
            check(included_file, path, &format!("include_str!(\"{include}\")"), complaint);
        }
    }

    #[test]
    fn a_planted_second_use_of_the_codec_is_named() {
        let used = |path| file(path, "use bincode::config;");
        assert!(codec(&Tree { files: vec![used("a/src/codec.rs"), used("a/src/codec/tests.rs")] }).is_empty());
        let found = codec(&Tree { files: vec![used("a/src/codec.rs"), used("a/src/other.rs")] });
        assert_eq!(found, ["bincode is named in a/src/codec.rs, a/src/other.rs: one module may"]);
    }
}

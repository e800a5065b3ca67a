//! Records the commit that the program is built from, and whether its sources differ from that commit.

use std::path::Path;
use std::process::Command;

/// What no program is made of.
const NOT_SOURCES: &[&str] =
    &["docs", "*.md", ".ci", "baselines/perf", "integration-tests", "*/tests/*", "*/examples/*"];

/// Without the repository this crate belongs to (a package, a copy inside another repository) the commit stays unknown.
fn main() {
    let (mut commit, mut dirty) = (String::new(), false);
    println!("cargo::rerun-if-changed=build.rs");
    if let Some(repository) = repository() {
        let git = |args: &[&str]| git(&repository, args);
        let sources: Vec<String> = NOT_SOURCES.iter().map(|path| format!(":(exclude){path}")).collect();
        let with_sources = |args: &[&'static str]| -> Vec<String> {
            args.iter().map(|arg| (*arg).to_owned()).chain([".".to_owned()]).chain(sources.clone()).collect()
        };
        let run = |args: Vec<String>| git(&args.iter().map(String::as_str).collect::<Vec<_>>());
        commit = git(&["rev-parse", "HEAD"]).unwrap_or_default();
        dirty = run(with_sources(&["status", "--porcelain", "--"])).is_none_or(|changes| !changes.is_empty());
        let branch = git(&["rev-parse", "--symbolic-full-name", "HEAD"]).unwrap_or_default();
        let moved = ["HEAD", "logs/HEAD", "packed-refs", &branch];
        let moved = moved.iter().filter_map(|name| git(&["rev-parse", "--git-path", name]));
        let files = run(with_sources(&["ls-files", "--"])).unwrap_or_default();
        for path in moved.chain(files.lines().map(str::to_owned)) {
            // A path that is not there would run this script in every build.
            let path = Path::new(&repository).join(path);
            if path.is_file() {
                println!("cargo::rerun-if-changed={}", path.display());
            }
        }
    }
    println!("cargo::rustc-env=ESPER_BUILD_COMMIT={commit}");
    println!("cargo::rustc-env=ESPER_BUILD_DIRTY={dirty}");
}

/// The root of the repository, when this crate lies directly in it.
fn repository() -> Option<String> {
    let package = std::env::var("CARGO_MANIFEST_DIR").ok()?;
    let root = git(&package, &["rev-parse", "--show-toplevel"])?;
    let parent = Path::new(&package).parent()?.canonicalize().ok()?;
    (Path::new(&root).canonicalize().ok()? == parent).then_some(root)
}

fn git(folder: &str, args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(["--no-optional-locks", "-C", folder]).args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

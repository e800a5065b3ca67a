//! Records the commit that the program is built from, and whether its sources differ from that commit.

use std::process::Command;

fn main() {
    // A path that is not there: this script runs in every build, so that what it says is true.
    println!("cargo::rerun-if-changed=never");
    let commit = git(&["rev-parse", "HEAD"]).unwrap_or_default();
    let changes = git(&["status", "--porcelain", "--", ":(top)*.rs", ":(top)*.toml", ":(top)*.cu*", ":(top)*.py"]);
    let dirty = changes.is_none_or(|changes| !changes.is_empty());
    println!("cargo::rustc-env=ZOO_BUILD_COMMIT={commit}");
    println!("cargo::rustc-env=ZOO_BUILD_DIRTY={dirty}");
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("--no-optional-locks").args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

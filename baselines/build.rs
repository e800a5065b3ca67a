//! Lists the works: every file `src/works/NAME.rs` and every folder `src/works/NAME/` is a module with a `WORK`. Tells
//! which version of candle is built.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let folder = Path::new(&variable("CARGO_MANIFEST_DIR")).join("src/works");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", folder.display());
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut works: Vec<(String, PathBuf)> = entries.flatten().filter_map(|entry| module(&entry.path())).collect();
    works.sort();
    let (mut modules, mut list) = (String::new(), String::new());
    for (name, path) in &works {
        writeln!(modules, "#[path = {path:?}]\nmod {name};").expect("a string takes all");
        writeln!(list, "    {name}::WORK,").expect("a string takes all");
    }
    let text = format!("{modules}\n/// In the order of their names.\npub static ALL: &[Work] = &[\n{list}];\n");
    let path = Path::new(&variable("OUT_DIR")).join("works.rs");
    fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if let Some(version) = locked_version("candle-core") {
        println!("cargo::rustc-env=CANDLE_VERSION={version}");
    }
}

/// Of a dependency, by the lock file of the workspace or, where this crate is alone, of the package.
fn locked_version(name: &str) -> Option<String> {
    let folder = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let lock = ["../Cargo.lock", "Cargo.lock"].map(|path| folder.join(path)).into_iter().find(|path| path.exists())?;
    println!("cargo::rerun-if-changed={}", lock.display());
    let lock = fs::read_to_string(lock).ok()?;
    let entry = lock.split("[[package]]").find(|entry| entry.contains(&format!("name = \"{name}\"\n")))?;
    let line = entry.lines().find_map(|line| line.strip_prefix("version = "))?;
    Some(line.trim_matches('"').to_owned())
}

/// The name of a module and the file that it starts in.
fn module(path: &Path) -> Option<(String, PathBuf)> {
    let name = path.file_stem()?.to_str()?.to_owned();
    if path.is_dir() {
        Some((name, path.join("mod.rs")))
    } else {
        (path.extension()? == "rs").then(|| (name, path.to_owned()))
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

//! Lists the works: every file `src/works/NAME.rs` and every folder `src/works/NAME/` is a module with a `WORK`, where
//! NAME can be one of a module. Tells which version of candle is built.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let folder = Path::new(&variable("CARGO_MANIFEST_DIR")).join("src/works");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", folder.display());
    let entries = fs::read_dir(&folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = entries.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut works: Vec<(String, PathBuf)> = entries.iter().filter_map(|entry| module(&entry.path())).collect();
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
    let file = path.file_name()?.to_str()?;
    let name = file.strip_suffix(".rs").unwrap_or(file);
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    if name.starts_with(|first: char| first.is_ascii_digit()) || !name.chars().all(is_part) {
        return None;
    }
    let kind = fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let start = if kind.is_dir() { path.join("mod.rs") } else { path.to_owned() };
    assert!(start.is_file(), "{}: missing; it starts the work `{name}`", start.display());
    (start.extension()? == "rs").then(|| (name.to_owned(), start))
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

//! The sources of a published package, as Cargo keeps them, with a few edits: for build scripts.
//!
//! ```text
//! ESPER_CANDLE_SOURCES or $CARGO_HOME/registry/src ──► copy in OUT_DIR ──► edits ──► include!
//! ```
//! An edit names the text that it replaces. A text that is not there exactly once ends the build, so no edit is lost in silence.

#![forbid(unsafe_code)]

mod kernels;

pub use kernels::write_images;

use std::path::{Path, PathBuf};
use std::{env, fmt, fs, io};

/// Where else sources are looked for: a folder that holds `NAME-VERSION` or `NAME`, as `cargo vendor` makes it.
const VARIABLE: &str = "ESPER_CANDLE_SOURCES";

/// What is changed in one place of a file.
#[derive(Debug, Clone, Copy)]
pub struct Edit {
    /// The file, from `src` on.
    pub file: &'static str,
    /// What stands there exactly once; nothing adds the new text to the end of the file.
    pub find: &'static str,
    /// What stands there instead.
    pub replace: &'static str,
}

/// Why there are no edited sources.
#[derive(Debug)]
pub enum Error {
    /// They are nowhere.
    NotFound(String),
    /// An edit does not fit them.
    Edit(String),
    /// A kernel has no machine code.
    Kernel(String),
    /// A file could not be read or written.
    Io(PathBuf, io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(text) | Self::Edit(text) | Self::Kernel(text) => f.write_str(text),
            Self::Io(path, source) => write!(f, "{}: {source}", path.display()),
        }
    }
}

impl std::error::Error for Error {}

/// Puts the edited sources of `name` `version` into `OUT_DIR/src`, where `lib.rs` can be included.
///
/// # Errors
/// [`Error::NotFound`] says what to do; [`Error::Edit`] names the edit that does not fit.
pub fn write(name: &str, version: &str, edits: &[Edit]) -> Result<(), Error> {
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or_else(|| missing("OUT_DIR"))?);
    let source = find(name, version)?;
    let target = out.join("src");
    if target.exists() {
        fs::remove_dir_all(&target).map_err(|e| Error::Io(target.clone(), e))?;
    }
    copy(&source.join("src"), &target)?;
    for edit in edits {
        apply(&target, edit)?;
    }
    // Documentation of the crate can stand at the start of a file only, which an included one is not.
    let path = target.join("lib.rs");
    let text = read(&path)?;
    let lines = text.lines().filter(|line| !line.starts_with("//!"));
    put(&path, &lines.flat_map(|line| [line, "\n"]).collect::<String>())
}

fn missing(variable: &str) -> Error {
    Error::NotFound(format!("{variable} is not set: this is for build scripts"))
}

fn find(name: &str, version: &str) -> Result<PathBuf, Error> {
    if let Some(source) = kept(name, version) {
        return Ok(source);
    }
    Err(Error::NotFound(format!(
        "the sources of {name} {version} are neither in Cargo's registry nor in the folder that {VARIABLE} names: \
         `cargo info {name}@{version}` has Cargo download and check them, outside of this workspace; or set {VARIABLE} to a folder \
         that holds `{name}-{version}`"
    )))
}

fn kept(name: &str, version: &str) -> Option<PathBuf> {
    let mut places = Vec::new();
    if let Some(folder) = env::var_os(VARIABLE).map(PathBuf::from) {
        places.extend([folder.join(format!("{name}-{version}")), folder.join(name)]);
    }
    let home = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".cargo")));
    let registries = home.and_then(|home| fs::read_dir(home.join("registry/src")).ok());
    let mut registries: Vec<PathBuf> = registries.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    registries.sort();
    places.extend(registries.into_iter().map(|registry| registry.join(format!("{name}-{version}"))));
    places.into_iter().find(|place| is_package(place, name, version))
}

fn is_package(place: &Path, name: &str, version: &str) -> bool {
    let manifest = fs::read_to_string(place.join("Cargo.toml")).unwrap_or_default();
    let has = |line: String| manifest.lines().any(|found| found == line);
    has(format!("name = \"{name}\"")) && has(format!("version = \"{version}\"")) && place.join("src/lib.rs").exists()
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    fs::create_dir_all(to).map_err(|e| Error::Io(to.to_owned(), e))?;
    for entry in fs::read_dir(from).map_err(|e| Error::Io(from.to_owned(), e))? {
        let path = entry.map_err(|e| Error::Io(from.to_owned(), e))?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() { copy(&path, &target)? } else { put(&target, &read(&path)?)? }
    }
    Ok(())
}

fn apply(folder: &Path, edit: &Edit) -> Result<(), Error> {
    let path = folder.join(edit.file);
    let text = read(&path)?;
    if edit.find.is_empty() {
        return put(&path, &(text + edit.replace));
    }
    match text.matches(edit.find).count() {
        1 => put(&path, &text.replacen(edit.find, edit.replace, 1)),
        count => {
            let first = edit.find.lines().next().unwrap_or_default();
            Err(Error::Edit(format!(
                "{}: the text that starts with `{first}` stands there {count} times, not once",
                edit.file
            )))
        }
    }
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|e| Error::Io(path.to_owned(), e))
}

fn put(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|e| Error::Io(path.to_owned(), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDIT: Edit = Edit { file: "a.rs", find: "one", replace: "two" };

    /// What an edit makes of a file, or why it does not.
    #[track_caller]
    fn check(text: &str, edit: Edit, expected: Result<&str, &str>) {
        let folder = env::temp_dir().join(format!("candle-sources-{}-{}", std::process::id(), text.len()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("a.rs"), text).unwrap();
        let found = apply(&folder, &edit).map(|()| fs::read_to_string(folder.join("a.rs")).unwrap());
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found.map_err(|e| e.to_string()), expected.map(str::to_owned).map_err(str::to_owned));
    }

    #[test]
    fn what_stands_once_is_replaced() {
        check("a one b", EDIT, Ok("a two b"));
    }

    #[test]
    fn what_stands_nowhere_or_twice_is_refused() {
        check("a b", EDIT, Err("a.rs: the text that starts with `one` stands there 0 times, not once"));
        check("one, one", EDIT, Err("a.rs: the text that starts with `one` stands there 2 times, not once"));
    }

    #[test]
    fn an_edit_without_a_text_adds_to_the_end() {
        check("a\n", Edit { find: "", ..EDIT }, Ok("a\ntwo"));
    }

    #[test]
    fn a_folder_is_a_package_only_with_its_name_and_version() {
        let folder = env::temp_dir().join(format!("candle-sources-package-{}", std::process::id()));
        fs::create_dir_all(folder.join("src")).unwrap();
        fs::write(folder.join("src/lib.rs"), "").unwrap();
        fs::write(folder.join("Cargo.toml"), "[package]\nname = \"a\"\nversion = \"1.0.0\"\n").unwrap();
        let found =
            [("a", "1.0.0"), ("a", "1.0.1"), ("b", "1.0.0")].map(|(name, version)| is_package(&folder, name, version));
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, [true, false, false]);
    }
}

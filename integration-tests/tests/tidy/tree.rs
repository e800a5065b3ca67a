//! The files of the workspace that rules look at: sources, manifests, documents, results, records of the contract.

use std::fs;
use std::path::Path;

/// A file with its path from the root of the repository, parts separated by `/`.
#[derive(Debug, Clone)]
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    pub(crate) fn is_manifest(&self) -> bool {
        self.path.ends_with("/Cargo.toml")
    }

    /// Whether only tests see it: under `tests/`, or a test module of its own.
    pub(crate) fn is_test(&self) -> bool {
        self.path.split('/').any(|part| part == "tests" || part == "tests.rs")
    }
}

/// All files, ordered by path.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) files: Vec<File>,
}

impl Tree {
    pub(crate) fn read() -> Self {
        let root = root();
        let mut files = Vec::new();
        walk(root, "", &mut |path| {
            let ends = [".rs", ".cu", ".cuh", ".toml", ".html", ".md", ".json", "contract.lock"];
            if ends.iter().any(|end| path.ends_with(end)) {
                let text = fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
                files.push(File { path: path.to_owned(), text: text.replace("\r\n", "\n") });
            }
        });
        files.sort_by(|a, b| a.path.cmp(&b.path));
        for expected in ["leyline/src/lib.rs", "esper/Cargo.toml", "leyline/contract.lock"] {
            assert!(files.iter().any(|file| file.path == expected), "{expected} was not found under {root:?}");
        }
        Self { files }
    }

    /// What the rule says about each file.
    pub(crate) fn check(&self, rule: impl Fn(&File) -> Option<String>) -> Vec<String> {
        self.files.iter().filter_map(rule).collect()
    }

    pub(crate) fn text_of(&self, path: &str) -> &str {
        self.files.iter().find(|file| file.path == path).map_or("", |file| &file.text)
    }
}

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace")
}

/// Gives `found` the path of each file under `folder`, after `prefix`.
pub(crate) fn walk(folder: &Path, prefix: &str, found: &mut impl FnMut(&str)) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?} cannot be listed: {error}"));
    for entry in entries {
        let entry = entry.expect("an entry of a folder that can be listed");
        let name = entry.file_name().into_string().expect("names of files are UTF-8");
        let path = format!("{prefix}{name}");
        if !entry.file_type().expect("an entry has a type").is_dir() {
            found(&path);
        } else if !is_output(&name, &entry.path()) {
            walk(&entry.path(), &format!("{path}/"), found);
        }
    }
}

/// Folders that git ignores, and build folders wherever they are.
fn is_output(name: &str, folder: &Path) -> bool {
    name.starts_with('.') || ["target", "runs", "shared"].contains(&name) || folder.join("CACHEDIR.TAG").exists()
}

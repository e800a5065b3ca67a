//! Invariant I-4: `leyline/contract.lock` holds a hash of the contracts, and the changelog has a line for it.

use crate::tree::{File, Tree};

const SOURCES: &str = "leyline/src/";
const LOCK: &str = "leyline/contract.lock";
const CHANGELOG: &str = "leyline/CHANGELOG.md";
/// Digits of the hash that a line of the changelog repeats.
const SHORT: usize = 8;

/// What is wrong with the lock and the changelog.
pub(crate) fn violations(tree: &Tree) -> Vec<String> {
    let hash = hash(&tree.files);
    let locked = tree.text_of(LOCK).trim();
    if locked != hash {
        let short = &hash[..SHORT];
        return vec![format!(
            "the contracts changed: {SOURCES} has the hash {hash}, {LOCK} says `{locked}`.\n\
             If the change is meant: write the new hash into {LOCK}, and add a line to {CHANGELOG} of the form\n\
             - **contract** `{short}` what changed, and what implementers must do"
        )];
    }
    let told = format!("- **contract** `{}` ", &hash[..SHORT]);
    let has_line = tree.text_of(CHANGELOG).lines().any(|line| line.starts_with(&told) && line.len() > told.len());
    if has_line { Vec::new() } else { vec![format!("{CHANGELOG} has no line that starts with `{told}`")] }
}

/// BLAKE3 over path and text of every source in the order of the paths, each preceded by its length.
fn hash(files: &[File]) -> String {
    let mut sources: Vec<_> = files.iter().filter(|file| file.path.starts_with(SOURCES)).collect();
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    let mut hasher = blake3::Hasher::new();
    for part in sources.iter().flat_map(|file| [&file.path, &file.text]) {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(source: &str, lock: &str, changelog: &str) -> Tree {
        let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
        Tree { files: vec![file("leyline/src/a.rs", source), file(LOCK, lock), file(CHANGELOG, changelog)] }
    }

    #[test]
    fn a_planted_change_fails_until_it_is_locked_and_told() {
        let lock = hash(&tree("//! One.", "", "").files);
        let told = format!("- **contract** `{}` one\n", &lock[..SHORT]);
        assert_eq!(violations(&tree("//! One.", &lock, &told)), Vec::<String>::new());

        let changed = violations(&tree("//! Two.", &lock, &told));
        assert!(changed[0].contains("the contracts changed") && changed[0].contains("**contract**"), "{changed:?}");

        let lock = hash(&tree("//! Two.", "", "").files);
        let untold = violations(&tree("//! Two.", &lock, &told));
        assert!(untold[0].contains("has no line"), "{untold:?}");
    }

    #[test]
    fn text_that_moves_between_files_changes_the_hash() {
        let pair = |a: &str, b: &str| {
            let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
            hash(&[file("leyline/src/a.rs", a), file("leyline/src/b.rs", b)])
        };
        assert_ne!(pair("xy", "z"), pair("x", "yz"));
    }
}

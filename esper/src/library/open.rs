//! Opens the library that a configuration names.

use std::error::Error as _;
use std::iter;

use esper_weights::DirectoryStore;

use crate::config::{Issue, LibraryConfig};

/// Opens the folder and pins what its manifest lists.
///
/// # Errors
/// The keys, when the folder has no valid manifest, or lacks blueprints that the configuration names.
pub fn open(config: &LibraryConfig) -> Result<DirectoryStore, Vec<Issue>> {
    let path = config.path.display();
    let store = DirectoryStore::open(&config.path).map_err(|error| {
        let causes = iter::successors(error.source(), |&cause| cause.source());
        let text = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
        let problem =
            format!("is {path}: {text}; expected a folder with a manifest.json, as `esper seeds export` writes it");
        vec![Issue::new("seeds.library.path", problem)]
    })?;
    let mut issues = Vec::new();
    for (index, blueprint) in config.blueprints.iter().flatten().enumerate() {
        if !store.blueprints().any(|published| published == blueprint) {
            let published: Vec<&str> = store.blueprints().map(|published| published.as_str()).collect();
            let published = if published.is_empty() { "none".to_owned() } else { published.join(", ") };
            let key = format!("seeds.library.blueprints[{index}]");
            issues.push(Issue::new(key, format!("is `{blueprint}`; published in {path}: {published}")));
        }
    }
    if issues.is_empty() { Ok(store) } else { Err(issues) }
}

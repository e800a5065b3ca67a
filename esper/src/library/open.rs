//! Opens the library that a configuration names.

use std::error::Error as _;
use std::iter;

use kasmina::prefetch::DirectoryStore;

use crate::config::LibraryConfig;
use crate::exit::UsageError;

/// Opens the folder and pins what its manifest lists.
///
/// # Errors
/// [`UsageError`] with the key, when the folder has no valid manifest, or lacks a blueprint that the configuration names.
pub fn open(config: &LibraryConfig) -> anyhow::Result<DirectoryStore> {
    let path = config.path.display();
    let store = DirectoryStore::open(&config.path).map_err(|error| {
        let causes = iter::successors(error.source(), |&cause| cause.source());
        let text = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
        UsageError(format!(
            "configuration: `seeds.library.path` is {path}: {text}; expected a folder with a manifest.json, as `esper \
             seeds export` writes it"
        ))
    })?;
    for (index, blueprint) in config.blueprints.iter().flatten().enumerate() {
        if !store.blueprints().any(|published| published == blueprint) {
            let published: Vec<&str> = store.blueprints().map(|published| published.as_str()).collect();
            let published = if published.is_empty() { "none".to_owned() } else { published.join(", ") };
            let key = format!("seeds.library.blueprints[{index}]");
            let message = format!("configuration: `{key}` is `{blueprint}`; published in {path}: {published}");
            return Err(UsageError(message).into());
        }
    }
    Ok(store)
}

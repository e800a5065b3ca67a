//! Programs that some tests need and not every machine has.

use std::path::PathBuf;

/// The file `name` in the folder `first` or in one of the path.
pub(crate) fn on_path(first: Option<PathBuf>, name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    first.into_iter().chain(std::env::split_paths(&path)).map(|dir| dir.join(name)).find(|file| file.is_file())
}

//! Folders for compiled kernels that are gone when the measurement is over.

use std::path::{Path, PathBuf};

use crate::error::Error;

/// A new folder among the temporary files, removed when it is dropped.
#[derive(Debug)]
pub(crate) struct CacheFolders {
    root: PathBuf,
}

impl CacheFolders {
    /// `unique` tells apart what one process makes.
    pub(crate) fn new(unique: u128) -> Result<Self, Error> {
        let root = std::env::temp_dir().join(format!("esper-bench-{}-{unique}", std::process::id()));
        make(&root)?;
        Ok(Self { root })
    }

    /// The folder of a name, empty at first.
    pub(crate) fn of(&self, name: &str) -> Result<PathBuf, Error> {
        let folder = self.root.join(name);
        make(&folder)?;
        Ok(folder)
    }
}

impl Drop for CacheFolders {
    fn drop(&mut self) {
        // Among temporary files a leftover is no harm.
        std::fs::remove_dir_all(&self.root).ok();
    }
}

/// Bytes of all files in a folder and below it; what cannot be read counts nothing.
pub(crate) fn size_bytes(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size_bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

fn make(path: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(path).map_err(|source| Error::File { action: "making", path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_counted_with_what_is_below_and_removed_at_the_end() {
        let folders = CacheFolders::new(1).unwrap();
        let folder = folders.of("a").unwrap();
        assert_eq!(size_bytes(&folder), 0);
        std::fs::create_dir_all(folder.join("0/1")).unwrap();
        std::fs::write(folder.join("index"), [0; 10]).unwrap();
        std::fs::write(folder.join("0/1/kernels"), [0; 32]).unwrap();
        assert_eq!(size_bytes(&folder), 42);
        assert_eq!(size_bytes(&folders.of("b").unwrap()), 0);
        assert_ne!(folders.root, CacheFolders::new(2).unwrap().root);
        drop(folders);
        assert!(!folder.exists());
    }
}

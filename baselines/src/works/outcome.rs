//! What a work leaves behind: its result, and files that belong to it.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::result::BenchResult;

/// A result with its attachments.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The numbers.
    pub result: BenchResult,
    /// Files beside it.
    pub attachments: Vec<Attachment>,
}

/// A text file beside a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Its name within the folder of the result.
    pub file_name: String,
    /// Its text.
    pub text: String,
}

impl Outcome {
    /// Writes the result and its attachments into `dir`.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write(&self, dir: &Path) -> Result<Vec<PathBuf>, Error> {
        let mut written = vec![self.result.write(dir)?];
        for Attachment { file_name, text } in &self.attachments {
            let path = dir.join(file_name);
            std::fs::write(&path, text).map_err(|source| Error::File {
                action: "writing",
                path: path.clone(),
                source,
            })?;
            written.push(path);
        }
        Ok(written)
    }
}

impl From<BenchResult> for Outcome {
    fn from(result: BenchResult) -> Self {
        Self { result, attachments: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use leyline::clock::SystemClock;

    use super::*;
    use crate::environment::Environment;

    #[test]
    fn attachments_lie_beside_the_result() {
        let result = BenchResult {
            schema: crate::result::SCHEMA,
            name: "drawn".to_owned(),
            command: String::new(),
            notes: String::new(),
            environment: Environment::detect(&SystemClock::new()),
            config: BTreeMap::new(),
            measurements: BTreeMap::new(),
            metrics: Vec::new(),
        };
        let attachments = vec![Attachment { file_name: "drawn.svg".to_owned(), text: "<svg/>".to_owned() }];
        let dir = tempfile::tempdir().unwrap();
        let written = Outcome { result, attachments }.write(&dir.path().join("new")).unwrap();
        let names: Vec<_> = written.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(names, ["drawn.json", "drawn.svg"]);
        assert_eq!(std::fs::read_to_string(&written[1]).unwrap(), "<svg/>");
    }
}

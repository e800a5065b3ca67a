//! The table of checks.

use crate::error::Error;
use crate::works::Outcome;
use crate::works::gpu::open::Gpu;
use crate::works::gpu::samples::Samples;

/// Checks so far.
#[derive(Debug, Default)]
pub(in crate::works::gpu) struct Report {
    rows: Vec<Row>,
    pub(in crate::works::gpu) samples: Samples,
}

#[derive(Debug)]
struct Row {
    name: String,
    /// What was seen, or what went wrong.
    outcome: Result<String, String>,
}

/// Why a check failed.
#[derive(Debug)]
pub(in crate::works::gpu) struct Broken(pub(in crate::works::gpu) String);

impl<E: Into<Error>> From<E> for Broken {
    fn from(error: E) -> Self {
        Self(error.into().chain())
    }
}

/// Fails a check unless `holds`.
pub(in crate::works::gpu) fn promise(holds: bool, text: impl FnOnce() -> String) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken(text())) }
}

impl Report {
    /// Runs one check. Its text says what was seen.
    pub(in crate::works::gpu) fn check(
        &mut self,
        name: impl Into<String>,
        check: impl FnOnce(&mut Samples) -> Result<String, Broken>,
    ) {
        let outcome = check(&mut self.samples).map_err(|Broken(text)| text);
        self.rows.push(Row { name: name.into(), outcome });
    }

    /// The result, when every promise was kept.
    pub(in crate::works::gpu) fn finish(mut self, gpu: &Gpu, name: &str, notes: &str) -> Result<Outcome, Error> {
        let table: Vec<String> = self
            .rows
            .iter()
            .map(|row| match &row.outcome {
                Ok(seen) => format!("kept    {}: {seen}", row.name),
                Err(broken) => format!("BROKEN  {}: {broken}", row.name),
            })
            .collect();
        if self.rows.iter().any(|row| row.outcome.is_err()) {
            return Err(Error::BrokenPromises { table: table.join("\n") });
        }
        let mut config = Vec::new();
        for row in &self.rows {
            self.samples.push(format!("check.{}", row.name), "kept", 1.0);
            if let Ok(seen) = &row.outcome {
                config.push((row.name.as_str(), seen.clone()));
            }
        }
        Ok(gpu.result(name, notes, &config, self.samples).into())
    }
}

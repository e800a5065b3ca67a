//! The table of checks.

use clap::Args;
use leyline::region::Eager;

use super::open::Gpu;
use crate::error::Error;
use crate::samples::Samples;
use crate::work::{Outcome, Setting, Settings};

/// Which of its checks a work runs.
#[derive(Debug, Args)]
pub(crate) struct Chosen {
    /// Checks whose names begin so; the result has that in its name. All by default
    #[arg(long, value_name = "NAME", default_value = "")]
    only: String,
}

impl Chosen {
    /// Runs them; `notes` say what the result of the work `name` means.
    ///
    /// # Errors
    /// Without a GPU, and for a promise that was not kept.
    pub(crate) fn measure(
        &self,
        setting: &Setting,
        (name, notes): (&str, &str),
        run: impl FnOnce(&Gpu, &mut Eager, &mut Report),
    ) -> Result<Outcome, Error> {
        let gpu = Gpu::open(setting)?;
        let (mut samples, mut report) = (Samples::default(), Report::only(&self.only));
        run(&gpu, &mut Eager::acquire()?, &mut report);
        let config = report.finish(&mut samples)?;
        let mut result = gpu.result(name, notes, config, samples);
        if !self.only.is_empty() {
            result.name = format!("{name}.{}", self.only);
            result.command += &format!(" --only {}", self.only);
        }
        Ok(result.into())
    }
}

/// Checks so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
    /// How the names of checks begin that are run; empty for all.
    only: String,
    pub(crate) samples: Samples,
}

#[derive(Debug)]
struct Row {
    name: String,
    /// What was seen, or what went wrong.
    outcome: Result<String, String>,
}

/// Why a check failed.
#[derive(Debug)]
pub(crate) struct Broken(pub(crate) String);

impl<E: Into<Error>> From<E> for Broken {
    fn from(error: E) -> Self {
        Self(error.into().chain())
    }
}

/// Fails a check unless `holds`.
pub(crate) fn promise(holds: bool, text: impl FnOnce() -> String) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken(text())) }
}

impl Report {
    /// Of checks whose names begin so.
    pub(crate) fn only(beginning: &str) -> Self {
        Self { only: beginning.to_owned(), ..Self::default() }
    }

    /// Runs one check. Its text says what was seen.
    pub(crate) fn check(
        &mut self,
        name: impl Into<String>,
        check: impl FnOnce(&mut Samples) -> Result<String, Broken>,
    ) {
        let name = name.into();
        if name.starts_with(&self.only) {
            let outcome = check(&mut self.samples).map_err(|Broken(text)| text);
            self.rows.push(Row { name, outcome });
        }
    }

    /// What was seen, when there was something to see and every promise was kept.
    pub(crate) fn finish(mut self, samples: &mut Samples) -> Result<Settings, Error> {
        if self.rows.is_empty() {
            return Err(Error::BrokenPromises { table: format!("the name of no check begins with `{}`", self.only) });
        }
        let line = |row: &Row| match &row.outcome {
            Ok(seen) => format!("kept    {}: {seen}", row.name),
            Err(broken) => format!("BROKEN  {}: {broken}", row.name),
        };
        let table: Vec<String> = self.rows.iter().map(line).collect();
        let mut config = Settings::new();
        for Row { name, outcome } in self.rows {
            let Ok(seen) = outcome else { return Err(Error::BrokenPromises { table: table.join("\n") }) };
            self.samples.push(format!("check.{name}"), "kept", 1.0);
            config.insert(name, seen);
        }
        *samples = self.samples;
        Ok(config)
    }
}

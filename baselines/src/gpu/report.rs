//! The table of checks.

use clap::Args;
use leyline::region::Eager;

use super::open::Gpu;
use super::parts::{self, Part, Turn};
use crate::error::Error;
use crate::samples::Samples;
use crate::work::{Outcome, Setting, Settings};

/// Which of its checks a work runs.
#[derive(Debug, Args)]
pub(crate) struct Chosen {
    /// Checks whose names begin so; the result has that in its name. All by default
    #[arg(long, value_name = "NAME", default_value = "")]
    only: String,
    /// Processes that share the checks; those that measure times or memory have the device alone afterwards
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: u32,
    /// The part of such a process.
    #[arg(long, hide = true)]
    part: Option<Part>,
}

impl Chosen {
    /// Runs them; `notes` say what the result of the work `name` means, and `alone` how the names of checks begin that no other
    /// process on the device may disturb.
    ///
    /// # Errors
    /// Without a GPU, and for a promise that was not kept.
    pub(crate) fn measure(
        &self,
        setting: &Setting,
        (name, notes, alone): (&str, &str, &'static [&'static str]),
        run: impl FnOnce(&Gpu, &mut Eager, &mut Report),
    ) -> Result<Outcome, Error> {
        let turn = match (self.part, self.jobs) {
            (Some(part), _) => Turn::Shared(part, alone),
            (None, 1) => Turn::All,
            (None, _) => Turn::Alone(alone),
        };
        let gpu = Gpu::open(setting)?;
        let shared =
            if matches!(turn, Turn::Alone(_)) { parts::run(name, &self.only, self.jobs, &gpu)? } else { vec![] };
        let (mut samples, mut report) = (Samples::default(), Report::only(&self.only, turn));
        run(&gpu, &mut Eager::acquire()?, &mut report);
        if self.part.is_none() && shared.iter().all(|part| part.config.is_empty()) {
            report.some()?;
        }
        let config = report.finish(&mut samples)?;
        let mut result = gpu.result(name, notes, config, samples);
        for part in shared {
            result.config.extend(part.config);
            result.measurements.extend(part.measurements);
        }
        if !self.only.is_empty() {
            result.name = format!("{name}.{}", self.only);
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
    turn: Turn,
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
    /// Of checks whose names begin so and whose turn it is.
    pub(crate) fn only(beginning: &str, turn: Turn) -> Self {
        Self { only: beginning.to_owned(), turn, ..Self::default() }
    }

    /// Runs one check, and says so at `RUST_LOG=info`. Its text says what was seen.
    pub(crate) fn check(
        &mut self,
        name: impl Into<String>,
        check: impl FnOnce(&mut Samples) -> Result<String, Broken>,
    ) {
        let name = name.into();
        if name.starts_with(&self.only) && self.turn.takes(&name) {
            let outcome = check(&mut self.samples);
            self.keep(name, outcome);
        }
    }

    /// Checks whose names begin with `group` and a point, made together and by one process. Each has the rest of its name.
    pub(crate) fn group(
        &mut self,
        group: &str,
        checks: impl FnOnce() -> Result<Vec<(String, Result<String, Broken>)>, Error>,
    ) {
        let of_group = format!("{group}.");
        let asked = of_group.starts_with(&self.only) || self.only.starts_with(&of_group);
        if !asked || !self.turn.takes(&of_group) {
            return;
        }
        match checks() {
            Ok(checks) => {
                for (name, outcome) in checks.into_iter().map(|(name, outcome)| (of_group.clone() + &name, outcome)) {
                    if name.starts_with(&self.only) {
                        self.keep(name, outcome);
                    }
                }
            }
            Err(error) => self.keep(group.to_owned(), Err(error.into())),
        }
    }

    fn keep(&mut self, name: String, outcome: Result<String, Broken>) {
        tracing::info!(name, kept = outcome.is_ok(), "checked");
        self.rows.push(Row { name, outcome: outcome.map_err(|Broken(text)| text) });
    }

    /// Fails when there was nothing to see.
    fn some(&self) -> Result<(), Error> {
        if self.rows.is_empty() {
            return Err(Error::BrokenPromises { table: format!("the name of no check begins with `{}`", self.only) });
        }
        Ok(())
    }

    /// What was seen, when every promise was kept.
    pub(crate) fn finish(mut self, samples: &mut Samples) -> Result<Settings, Error> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn names(only: &str, turn: Turn) -> Vec<String> {
        let mut report = Report::only(only, turn);
        report.group("layers.a", || Ok(vec![("1".to_owned(), Ok(String::new())), ("2".to_owned(), Ok(String::new()))]));
        report.check("layers.b", |_| Ok(String::new()));
        report.group("layers.c", || Err(Error::BrokenPromises { table: "no device".to_owned() }));
        report.rows.into_iter().map(|row| row.name).collect()
    }

    #[test]
    fn a_group_is_made_where_one_of_its_checks_is_asked_for_and_by_one_part() {
        assert_eq!(names("", Turn::All), ["layers.a.1", "layers.a.2", "layers.b", "layers.c"]);
        assert_eq!(names("layers.a", Turn::All), ["layers.a.1", "layers.a.2"]);
        assert_eq!(names("layers.a.2", Turn::All), ["layers.a.2"]);
        assert_eq!(names("layers.b", Turn::All), ["layers.b"]);
        let part = |text: &str| Turn::Shared(text.parse().unwrap(), &[]);
        assert_eq!(names("", part("0/2")), ["layers.a.1", "layers.a.2", "layers.c"]);
        assert_eq!(names("", part("1/2")), ["layers.b"]);
    }

    #[test]
    fn a_group_that_cannot_be_made_is_a_broken_promise() {
        let mut report = Report::only("", Turn::All);
        report.group("layers.c", || Err(Error::BrokenPromises { table: "no device".to_owned() }));
        let text = report.finish(&mut Samples::default()).unwrap_err().to_string();
        assert!(text.contains("layers.c"), "{text}");
    }
}

//! One benchmark's result as it is committed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use leyline::clock::Clock;
use serde::{Deserialize, Serialize};

use crate::environment::Environment;
use crate::error::Error;
use crate::measure::Measurement;

/// Version of the file format.
pub const SCHEMA: u32 = 1;

/// What was measured, how and where.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BenchResult {
    /// Version of the format.
    pub schema: u32,
    /// Name of the work.
    pub name: String,
    /// The command that repeats it.
    pub command: String,
    /// What the numbers mean and what is inside the timed part.
    pub notes: String,
    /// Where it was measured.
    pub environment: Environment,
    /// Settings of the work.
    pub config: BTreeMap<String, String>,
    /// Quantities by name.
    pub measurements: BTreeMap<String, Measurement>,
    /// Names of the telemetry metrics that had a value; a later result must have them too.
    pub metrics: Vec<String>,
}

impl BenchResult {
    /// A result of `esper bench NAME` without numbers, measured now on this machine.
    #[must_use]
    pub fn new(name: &str, notes: &str, clock: &dyn Clock) -> Self {
        Self {
            schema: SCHEMA,
            name: name.to_owned(),
            command: format!("cargo run --release -p esper -- bench {name} --out DIR"),
            notes: notes.to_owned(),
            environment: Environment::detect(clock),
            config: BTreeMap::new(),
            measurements: BTreeMap::new(),
            metrics: Vec::new(),
        }
    }

    /// Writes `DIR/NAME.json`.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write(&self, dir: &Path) -> Result<PathBuf, Error> {
        let path = dir.join(format!("{}.json", self.name));
        let mut text = Vec::new();
        let lines = Lines(serde_json::ser::PrettyFormatter::new());
        self.serialize(&mut serde_json::Serializer::with_formatter(&mut text, lines))
            .expect("names and finite numbers are JSON");
        text.push(b'\n');
        std::fs::create_dir_all(dir).and_then(|()| std::fs::write(&path, text)).map_err(|source| Error::File {
            action: "writing",
            path: path.clone(),
            source,
        })?;
        Ok(path)
    }

    /// Reads a result.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Parse`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::File {
            action: "reading",
            path: path.to_owned(),
            source,
        })?;
        serde_json::from_str(&text).map_err(|source| Error::Parse { path: path.to_owned(), source })
    }
}

/// A line per quantity, with each list in one line.
struct Lines(serde_json::ser::PrettyFormatter<'static>);

impl serde_json::ser::Formatter for Lines {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}

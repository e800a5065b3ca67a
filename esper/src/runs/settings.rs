//! The settings of a run as keys and values, to tell what is different between two.

use std::collections::BTreeMap;
use std::path::Path;

use crate::report::{CONFIG_FILE, ReportError, read_config};

/// What makes two runs the same but for chance: the random seeds, and where they write.
const CHANCE: &[&str] = &["run.seed", "run.out", "data.split_seed"];

/// Every setting of a run by its dotted key, as it is written in TOML.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Settings(BTreeMap<String, String>);

impl Settings {
    /// Those of the folder of a run; of any version, as nothing is looked at but keys and values.
    pub(crate) fn read(dir: &Path) -> Result<Self, ReportError> {
        let path = dir.join(CONFIG_FILE);
        let text = read_config(dir)?;
        let table: toml::Table = toml::from_str(&text).map_err(|error| {
            let before = &text[..error.span().map_or(0, |span| span.start.min(text.len()))];
            let line = before.matches('\n').count() + 1;
            let column = before.len() - before.rfind('\n').map_or(0, |at| at + 1) + 1;
            ReportError::Malformed { path, line, column, problem: error.message().to_owned() }
        })?;
        let mut settings = BTreeMap::new();
        flatten("", &toml::Value::Table(table), &mut settings);
        Ok(Self(settings))
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Without what chance decides.
    pub(super) fn without_chance(mut self) -> Self {
        self.0.retain(|key, _| !CHANCE.contains(&key.as_str()));
        self
    }

    /// Those within these sections alone.
    pub(super) fn of_sections(mut self, sections: &[&str]) -> Self {
        self.0.retain(|key, _| {
            sections
                .iter()
                .any(|section| key.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
        });
        self
    }

    /// The keys whose values are not the same in all of these.
    pub(super) fn different<'a>(all: &[&'a Self]) -> Vec<&'a str> {
        let mut keys: Vec<&str> = all.iter().flat_map(|settings| settings.0.keys()).map(String::as_str).collect();
        keys.sort_unstable();
        keys.dedup();
        keys.retain(|key| all.iter().any(|settings| settings.get(key) != all[0].get(key)));
        keys
    }
}

fn flatten(path: &str, value: &toml::Value, settings: &mut BTreeMap<String, String>) {
    match value {
        toml::Value::Table(table) if !table.is_empty() => {
            for (key, value) in table {
                flatten(&if path.is_empty() { key.clone() } else { format!("{path}.{key}") }, value, settings);
            }
        }
        value => drop(settings.insert(path.to_owned(), value.to_string())),
    }
}

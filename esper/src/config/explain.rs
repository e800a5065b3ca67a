//! What a setting means, what it accepts, what it is when nothing is said, and where its value comes from.
//!
//! Meanings are written down where a section is, or else in `meanings.toml`. What is accepted is asked of the configuration itself: a value of another
//! type, or beyond every limit, is refused with what would have been taken.

use std::collections::BTreeMap;

use kasmina::host::HostConfig;
use serde::Deserialize;
use tolaria::optim::{OptimizerConfig, ScheduleConfig};
use tolaria::task::TaskConfig;

use super::sections::ALTERNATIVES;
use super::{ConfigError, Diagnostic, EsperConfig, Layer, Loaded, diagnose};

const MEANINGS: &str = include_str!("meanings.toml");

/// What `meanings.toml` holds.
#[derive(Debug, Deserialize)]
struct Document {
    meanings: BTreeMap<String, String>,
    /// Settings beside which those of an alternative can be looked at; sizes are the largest, which limit others.
    beside: Vec<Beside>,
}

#[derive(Debug, Deserialize)]
struct Beside {
    prefix: String,
    settings: String,
}

/// A section that explains itself: its path, what its settings mean, examples of its alternatives.
type Section = (&'static str, &'static [(&'static str, &'static str)], &'static [&'static str]);

const SECTIONS: &[Section] = &[
    ("host", HostConfig::MEANINGS, HostConfig::EXAMPLES),
    ("task", TaskConfig::MEANINGS, TaskConfig::EXAMPLES),
    ("train.optimizer", OptimizerConfig::MEANINGS, OptimizerConfig::EXAMPLES),
    ("train.schedule", ScheduleConfig::MEANINGS, ScheduleConfig::EXAMPLES),
];

fn document() -> Document {
    let mut document: Document = toml::from_str(MEANINGS).expect("meanings and settings beside them, see the tests");
    for (section, meanings, examples) in SECTIONS {
        let of_section = meanings.iter().map(|(key, meaning)| (format!("{section}.{key}"), (*meaning).to_owned()));
        document.meanings.extend(of_section);
        let prefix = format!("{section}.");
        let beside = |example| Beside { prefix: prefix.clone(), settings: format!("{section} = {example}") };
        document.beside.extend(examples.iter().map(beside));
    }
    document
}

/// Numbers that show limits by being refused.
const PROBES: &[&str] = &["-1", "-1.0", "0", "0.0", "2.0", "9223372036854775807", "1e300"];

/// What is said of a key that nothing knows.
const NO_SETTING: &str = "is not a setting";

/// What is known of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Explanation {
    pub(crate) meaning: String,
    /// Its type or names, then limits.
    pub(crate) accepted: Vec<String>,
}

/// Every setting with its meaning.
pub(crate) fn meanings() -> BTreeMap<String, String> {
    document().meanings
}

/// Explains a setting; none for a key that is none.
pub(crate) fn explain(key: &str) -> Option<Explanation> {
    let meaning = meanings().remove(key)?;
    let mut accepted = vec![kind(key)];
    for probe in PROBES {
        for limit in refused(key, probe).iter().filter_map(expected) {
            if !accepted.contains(&limit) {
                accepted.push(limit);
            }
        }
    }
    Some(Explanation { meaning, accepted })
}

/// The setting whose name is nearest to `key`, when it is near enough to be a slip.
pub(crate) fn nearest(key: &str) -> Option<String> {
    let meanings = meanings();
    let last = |key: &str| key.rsplit('.').next().map(str::to_owned);
    let whole = diagnose::nearest_name(key, meanings.keys().map(String::as_str)).map(str::to_owned);
    // The right name in the wrong section.
    whole.or_else(|| meanings.keys().find(|known| last(known) == last(key)).cloned())
}

/// The type, or the names, that a setting takes.
fn kind(key: &str) -> String {
    // A name that is none is answered with those that there are; a list of names with those of its elements.
    for probe in ["\"?\"", "[\"?\"]"] {
        if let Some(named) = refused(key, probe).iter().find(|refusal| !refusal.accepted.is_empty()) {
            return named.accepted.join(", ");
        }
    }
    let all = against(key, "false");
    if all.iter().any(Vec::is_empty) {
        return "true or false".to_owned();
    }
    // Of an alternative that has a tag the section is told instead of the key.
    let section = key.rsplit_once('.').map_or("", |(section, _)| section);
    let of_section = |found: &&Diagnostic| found.key == section && found.problem != NO_SETTING;
    let told = refused(key, "false").iter().find_map(expected);
    let told = told.or_else(|| all.iter().flatten().filter(of_section).find_map(expected));
    told.unwrap_or_else(|| "a value that fits".to_owned())
}

/// What a refusal says is accepted.
fn expected(refusal: &Diagnostic) -> Option<String> {
    if !refusal.accepted.is_empty() {
        return Some(refusal.accepted.join(", "));
    }
    refusal.problem.split_once("expected ").map(|(_, accepted)| accepted.to_owned())
}

/// What the configuration has against this value of a setting.
fn refused(key: &str, value: &str) -> Vec<Diagnostic> {
    let all = against(key, value);
    // Of another alternative it is no setting, which says nothing about its value.
    let is_about = |found: &Diagnostic| {
        (found.key == key || found.key.starts_with(&format!("{key}["))) && found.problem != NO_SETTING
    };
    let about: Vec<Diagnostic> = all.into_iter().find(|found| found.iter().any(is_about)).unwrap_or_default();
    about.into_iter().filter(is_about).collect()
}

/// The mistakes of a configuration with this setting, alone and beside each alternative that it may belong to.
fn against(key: &str, value: &str) -> Vec<Vec<Diagnostic>> {
    let beside = document().beside.into_iter().filter(|beside| key.starts_with(&beside.prefix));
    let mut beside: Vec<Option<String>> = beside.map(|beside| Some(beside.settings)).collect();
    if beside.is_empty() {
        beside.push(None);
    }
    let layers = |beside: Option<String>| {
        let given = beside.map(|text| Layer::text("beside", &text));
        given.into_iter().chain(Layer::flag("probe", key, value)).collect::<Vec<_>>()
    };
    let mistakes = |beside| match EsperConfig::from_layers(layers(beside)) {
        Err(ConfigError::Invalid(mistakes)) => mistakes,
        Ok(_) | Err(_) => Vec::new(),
    };
    beside.into_iter().map(mistakes).collect()
}

/// The value of a setting as TOML; none where it is not set.
pub(crate) fn value_of(config: &EsperConfig, key: &str) -> Option<String> {
    let mut value = &toml::Value::try_from(config).ok()?;
    for part in key.split('.') {
        value = value.get(part)?;
    }
    Some(value.to_string())
}

/// Where the value of a setting comes from.
pub(crate) fn origin_of(loaded: &Loaded<EsperConfig>, key: &str) -> String {
    loaded.provenance.get(key).map_or_else(|| "default".to_owned(), ToString::to_string)
}

/// A file in which every setting of a configuration stands with its meaning and is commented out, so that what is not changed
/// goes on following from the data and from the version.
pub(crate) fn commented(config: &EsperConfig) -> String {
    let mut meanings = meanings();
    let text = toml::to_string(config).expect("a loaded configuration can be written as TOML");
    let (mut written, mut section, mut in_list) = (String::new(), String::new(), false);
    let absent = |section: &str, meanings: &mut BTreeMap<String, String>, written: &mut String| {
        let here = |key: &String| key.rsplit_once('.').is_some_and(|(before, _)| before == section);
        let keys: Vec<String> = meanings.keys().filter(|key| here(key)).cloned().collect();
        for key in keys {
            let name = key.rsplit('.').next().unwrap_or(&key);
            comment(written, &meanings.remove(&key).unwrap_or_default());
            *written += &format!("# {name} = (not set)\n");
        }
    };
    for line in text.lines() {
        if let Some(header) = line.strip_prefix('[') {
            absent(&section, &mut meanings, &mut written);
            in_list = header.starts_with('[');
            section = header.trim_matches(['[', ']']).to_owned();
            // Of alternatives, a table without its settings would be another choice.
            let is_choice = ALTERNATIVES.iter().any(|one| section.starts_with(one.path));
            written += &if in_list || is_choice { format!("\n# {line}\n") } else { format!("\n{line}\n") };
        } else if let Some((name, _)) = line.split_once(" = ") {
            comment(&mut written, &meanings.remove(&format!("{section}.{name}")).unwrap_or_default());
            // The data set decides about the others.
            let is_chosen = section == "data" && name == "name";
            written += &if is_chosen && !in_list { format!("{line}\n") } else { format!("# {line}\n") };
        }
    }
    absent(&section, &mut meanings, &mut written);
    written.trim_start().to_owned()
}

/// A text as comments of at most so many letters a line.
fn comment(written: &mut String, text: &str) {
    const WIDTH: usize = 110;
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + word.chars().count() >= WIDTH {
            *written += &format!("## {line}\n");
            line.clear();
        }
        line += if line.is_empty() { "" } else { " " };
        line += word;
    }
    if !line.is_empty() {
        *written += &format!("## {line}\n");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::data::DataName;

    /// Every key that the configuration accepts: it says so itself when it refuses another.
    fn accepted_keys(section: &str, found: &mut BTreeSet<String>) {
        let (meanings, unknown) = (meanings(), "no_such_setting");
        let probe = if section.is_empty() { unknown.to_owned() } else { format!("{section}.{unknown}") };
        let mistakes: Vec<Diagnostic> = against(&probe, "0").into_iter().flatten().collect();
        let names: BTreeSet<String> = mistakes
            .iter()
            .filter(|mistake| mistake.key == probe || mistake.key == section)
            .flat_map(|mistake| mistake.accepted.clone())
            .collect();
        assert!(!names.is_empty(), "`{section}` has no meaning, and is no section: {mistakes:?}");
        for name in names {
            let key = if section.is_empty() { name } else { format!("{section}.{name}") };
            if !meanings.contains_key(&key) {
                accepted_keys(&key, found);
            } else {
                found.insert(key);
            }
        }
    }

    #[test]
    fn every_setting_has_a_meaning_and_every_meaning_a_setting() {
        let mut accepted = BTreeSet::new();
        accepted_keys("", &mut accepted);
        accepted.extend(ALTERNATIVES.iter().filter_map(|one| Some(format!("{}.{}", one.path, one.tag?))));
        let told: BTreeSet<String> = meanings().into_keys().collect();
        let stale: Vec<&String> = told.difference(&accepted).collect();
        assert!(stale.is_empty(), "meanings of keys that are no settings: {stale:?}");
        assert!(meanings().values().all(|meaning| meaning.len() > 3), "a meaning is empty");
    }

    #[test]
    fn every_setting_says_what_it_accepts() {
        for (key, expected) in [
            ("run.epochs", "a whole number above 0"),
            ("run.device", "cpu, cuda:N"),
            ("train.clip_norm", "a number; a number that is above 0 in single precision"),
            ("policy.policy", "heuristic, off, fixed, random, learned"),
            ("seeds.seed_width", "a whole number, 0 or above; 1 to 65536"),
            ("seeds.isolation.strict", "true or false"),
            ("host.cnn1d.kernel", "a whole number, 0 or above; 1 to "),
            ("train.optimizer.momentum", "a number; "),
        ] {
            let found = explain(key).unwrap().accepted.join("; ");
            assert!(found.starts_with(expected), "{key}: {found}");
        }
        for key in meanings().keys() {
            let accepted = explain(key).unwrap().accepted;
            // Of several forms, which the meaning tells.
            let is_told = key == "task.class_weights" || accepted[0] != "a value that fits";
            assert!(!accepted[0].is_empty() && is_told, "{key}: {accepted:?}");
        }
        assert_eq!(explain("run.epoch"), None);
        assert_eq!(nearest("run.epoch").as_deref(), Some("run.epochs"));
        assert_eq!(nearest("train.batch_size").as_deref(), Some("train.batch.batch_size"));
    }

    #[test]
    fn a_written_file_says_what_holds_without_it() {
        for name in DataName::ACCEPTED.iter().filter_map(|name| DataName::parse(name)) {
            let config = EsperConfig::defaults_for(&name);
            let text = commented(&config);
            assert_eq!(
                EsperConfig::from_layers(vec![Layer::text("esper.toml", &*text)]).unwrap().config,
                config,
                "{text}"
            );
            for part in ["## Passes over the training part.\n# epochs = ", "# out = (not set)", "\n[train.batch]\n"] {
                assert!(text.contains(part), "`{part}` is missing in:\n{text}");
            }
        }
    }
}

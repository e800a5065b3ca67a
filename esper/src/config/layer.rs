//! One source of settings, and the map from positions to places.

use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::path::Path;

use toml::de::DeValue;

use super::{ConfigError, Diagnostic, Place, tree};
use crate::data::DataName;

/// Largest configuration file.
const LIMIT_BYTES: u64 = 1 << 20;

/// TOML text with the name under which its mistakes are reported.
#[derive(Debug, Clone)]
pub struct Layer {
    origin: Origin,
    text: String,
    /// Where each line begins: every key is looked up by its line.
    lines: Vec<usize>,
}

#[derive(Debug, Clone)]
enum Origin {
    Default(&'static str),
    File(String),
    Flag(String),
}

impl Layer {
    fn new(origin: Origin, text: String) -> Self {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(end, _)| end + 1)).collect();
        Self { origin, text, lines }
    }

    /// Built-in values.
    pub fn defaults(name: &'static str, text: &str) -> Self {
        Self::new(Origin::Default(name), text.into())
    }

    /// The content of a file.
    ///
    /// # Errors
    /// [`ConfigError::Read`], also for bytes that are not UTF-8; [`ConfigError::TooLarge`] above 1 MiB.
    pub fn file(path: &Path) -> Result<Self, ConfigError> {
        let failed = |source| ConfigError::Read { path: path.into(), source };
        let mut text = String::new();
        let file = File::open(path).map_err(failed)?;
        let size = file.take(LIMIT_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
        if u64::try_from(size).is_ok_and(|size| size <= LIMIT_BYTES) {
            Ok(Self::text(&path.display().to_string(), text))
        } else {
            Err(ConfigError::TooLarge { path: path.into(), limit_bytes: LIMIT_BYTES })
        }
    }

    /// The content of a file that was read already.
    pub fn text(path: &str, text: impl Into<String>) -> Self {
        Self::new(Origin::File(path.into()), text.into())
    }

    /// A setting of the form `key.path=value`, as given to `--set`.
    ///
    /// A value that is not TOML is taken as a string, so `--set run.device=cuda:0` needs no quotes.
    ///
    /// # Errors
    /// [`ConfigError::Flag`] when there is no dotted key before an `=`.
    pub fn set(setting: &str) -> Result<Self, ConfigError> {
        let shown = setting.escape_debug().to_string();
        let bad = || ConfigError::Flag { text: shown.clone() };
        let (key, value) = setting.split_once('=').ok_or_else(bad)?;
        Self::flag(&format!("--set {shown}"), key.trim(), value.trim()).ok_or_else(bad)
    }

    /// The flags with names of their own, then what was given to `--set`, which cannot say something else than they do.
    ///
    /// # Errors
    /// As [`Self::set`]; [`ConfigError::Invalid`] with every setting that contradicts a flag.
    pub fn flags(named: Vec<Self>, settings: &[String]) -> Result<Vec<Self>, ConfigError> {
        let mut settings = settings.iter().map(|setting| Self::set(setting)).collect::<Result<Vec<_>, _>>()?;
        let contradicting = settings.iter().flat_map(|setting| named.iter().filter_map(|flag| setting.against(flag)));
        let mistakes: Vec<Diagnostic> = contradicting.collect();
        if !mistakes.is_empty() {
            return Err(ConfigError::Invalid(mistakes));
        }
        let mut layers = named;
        layers.append(&mut settings);
        Ok(layers)
    }

    /// What is wrong when this setting and a flag give one key different values.
    fn against(&self, flag: &Self) -> Option<Diagnostic> {
        let (own, other) = (tree::parse(&self.text, 0).ok()?, tree::parse(&flag.text, 0).ok()?);
        let mut found = None;
        tree::walk(&other, &mut |path, _, value| {
            let asked = (!value.get_ref().is_table()).then(|| tree::find(&own, path)).flatten();
            if asked.is_some_and(|(_, asked)| self.text.get(asked.span()) != flag.text.get(value.span())) {
                let problem = format!("contradicts `{}`; expected one of them", flag.place(0));
                let (place, key) = (self.place(0), path.to_owned());
                found = Some(Diagnostic { place, key, problem, accepted: Vec::new(), nearest: None });
            }
        });
        found
    }

    /// The value of a flag with its own name, for example `--epochs 20` for the key `run.epochs`.
    ///
    /// `shown` is the flag as it was given. `None` when `key` is not a dotted key.
    pub fn flag(shown: &str, key: &str, value: &str) -> Option<Self> {
        if is_toml_value(value) { Self::assignment(shown, key, value) } else { Self::text_flag(shown, key, value) }
    }

    /// As [`Self::flag`], for a value that is text whatever it looks like: a folder may be called `7`.
    pub(crate) fn text_flag(shown: &str, key: &str, value: &str) -> Option<Self> {
        Self::assignment(shown, key, &toml::Value::from(value).to_string())
    }

    fn assignment(shown: &str, key: &str, value: &str) -> Option<Self> {
        let bare = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
        if !key.split('.').all(bare) {
            return None;
        }
        Some(Self::new(Origin::Flag(shown.into()), format!("{key} = {value}\n")))
    }

    /// What `--data` says: the name of a set, a path, or a path with its format as in `text:FILE`.
    #[must_use]
    pub fn data(value: &str) -> Vec<Self> {
        let shown = format!("--data {value}");
        let text = |key, value: &str| Self::text_flag(&shown, key, value);
        match DataName::with_format(value) {
            Some((format, path)) => {
                [text("data.name", &path.to_string()), text("data.format", format)].into_iter().flatten().collect()
            }
            None => text("data.name", value).into_iter().collect(),
        }
    }

    pub(super) fn is_default(&self) -> bool {
        matches!(self.origin, Origin::Default(_))
    }

    pub(super) fn is_flag(&self) -> bool {
        matches!(self.origin, Origin::Flag(_))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    fn place(&self, offset: usize) -> Place {
        match &self.origin {
            Origin::Default(layer) => Place::Default { layer: (*layer).into() },
            Origin::Flag(text) => Place::Flag(text.clone()),
            Origin::File(path) => {
                let end = if self.text.is_char_boundary(offset) { offset } else { self.text.len() };
                let line = self.lines.partition_point(|start| *start <= end);
                let column = self.text[self.lines[line - 1]..end].chars().count() + 1;
                Place::File { path: path.clone(), line, column }
            }
        }
    }
}

/// Whether `value` stands for itself in `key = value`. A line break never does: it would end the setting.
fn is_toml_value(value: &str) -> bool {
    !value.contains(['\n', '\r', '#']) && DeValue::parse(value).is_ok()
}

/// Layers laid end to end, so that one number names a position in any of them.
#[derive(Debug, Clone)]
pub(super) struct Layers {
    /// Each layer with the position of its first byte.
    layers: Vec<(usize, Layer)>,
}

impl Layers {
    pub(super) fn new(layers: Vec<Layer>) -> Self {
        let mut start = 0;
        let place = |layer: Layer| {
            let first = start;
            // A position just past the end still belongs to its layer.
            start += layer.text.len() + 1;
            (first, layer)
        };
        Self { layers: layers.into_iter().map(place).collect() }
    }

    /// Each layer with the position of its first byte.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Layer)> {
        self.layers.iter().map(|(start, layer)| (*start, layer))
    }

    /// The place of a position.
    pub(super) fn place(&self, position: usize) -> Place {
        let index = self.layers.partition_point(|(start, _)| *start <= position).saturating_sub(1);
        match self.layers.get(index) {
            Some((start, layer)) => layer.place(position - start),
            None => Place::Default { layer: "no layer".into() },
        }
    }

    /// The text between two positions of one layer.
    pub(super) fn text(&self, span: Range<usize>) -> Option<&str> {
        let (start, layer) = self.layers.iter().rfind(|(start, _)| *start <= span.start)?;
        layer.text.get(span.start - start..span.end.checked_sub(*start)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_set(setting: &str, text: &str) {
        assert_eq!(Layer::set(setting).unwrap().text, text);
    }

    #[test]
    fn values_that_are_not_toml_become_strings() {
        check_set("run.epochs=3", "run.epochs = 3\n");
        check_set(" run.epochs = 3 ", "run.epochs = 3\n");
        check_set("run.device=cuda:0", "run.device = \"cuda:0\"\n");
        check_set("run.device=\"cpu\"", "run.device = \"cpu\"\n");
        check_set("a.b=[1, 2]", "a.b = [1, 2]\n");
        check_set("a.b=[1, 2", "a.b = \"[1, 2\"\n");
        check_set("a.b=", "a.b = \"\"\n");
        check_set("a.b=x=y", "a.b = \"x=y\"\n");
        check_set("a.b=true", "a.b = true\n");
    }

    #[test]
    fn what_data_is_called_is_text_whatever_it_looks_like() {
        for (name, texts) in [
            ("7", &["data.name = \"7\"\n"][..]),
            ("true", &["data.name = \"true\"\n"]),
            ("csv:2024", &["data.name = \"./2024\"\n", "data.format = \"csv\"\n"]),
        ] {
            let layers = Layer::data(name);
            assert_eq!(layers.iter().map(|layer| layer.text.as_str()).collect::<Vec<_>>(), texts);
        }
    }

    #[test]
    fn a_setting_cannot_bring_a_second_one_along() {
        check_set("a=1\nb=2", "a = \"\"\"\n1\nb=2\"\"\"\n");
        check_set("a=1 # c", "a = \"1 # c\"\n");
        let text = &Layer::set("a=1\nb=2").unwrap().text;
        assert_eq!(text.parse::<toml::Table>().unwrap().len(), 1);
    }

    #[test]
    fn a_setting_without_a_dotted_key_is_refused() {
        for setting in ["", "run.epochs", "=3", "run..epochs=3", "run.=3", "[run]\nx=3", "a b=3", "a\"b=1"] {
            let error = Layer::set(setting).unwrap_err();
            assert!(matches!(error, ConfigError::Flag { .. }), "{setting}: {error}");
        }
    }

    #[test]
    fn a_setting_may_repeat_a_flag_and_not_contradict_it() {
        let flags = |settings: &[&str]| {
            let named = ["--epochs 5", "--seed 1"].map(|shown| {
                let (name, value) = shown.split_once(' ').unwrap();
                Layer::flag(shown, &format!("run.{}", &name[2..]), value).unwrap()
            });
            let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
            Layer::flags(named.to_vec(), &settings).map(|layers| layers.len()).map_err(|error| error.to_string())
        };
        assert_eq!(flags(&["run.epochs=5", "run.device=cpu"]), Ok(4));
        let message = "--set run.epochs=6: `run.epochs` contradicts `--epochs 5`; expected one of them\n\
                       --set run={seed = 2}: `run.seed` contradicts `--seed 1`; expected one of them";
        assert_eq!(flags(&["run.epochs=6", "run={seed = 2}"]), Err(message.to_owned()));
        assert!(flags(&["run.epochs"]).unwrap_err().contains("KEY=VALUE"));
    }

    #[test]
    fn positions_are_places_by_line_and_character() {
        let layers = Layers::new(vec![
            Layer::defaults("base", "a = 1\n"),
            Layer::text("x.toml", "é = 1\nbb = 2"),
            Layer::set("c=3").unwrap(),
        ]);
        let file = |line, column| Place::File { path: "x.toml".into(), line, column };
        let starts: Vec<usize> = layers.iter().map(|(start, _)| start).collect();
        assert_eq!(layers.place(0), Place::Default { layer: "base".into() });
        assert_eq!(layers.place(starts[1]), file(1, 1));
        // `é` takes two bytes and one column.
        assert_eq!(layers.place(starts[1] + 2), file(1, 2));
        assert_eq!(layers.place(starts[1] + 7), file(2, 1));
        assert_eq!(layers.place(starts[2] - 1), file(2, 7));
        assert_eq!(layers.place(starts[2]), Place::Flag("--set c=3".into()));
        assert_eq!(layers.text(starts[1] + 7..starts[1] + 9), Some("bb"));
    }
}

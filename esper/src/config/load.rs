//! Merges layers, deserializes them, and keeps where every value came from.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::DeValue;

use super::layer::Layers;
use super::tree::{self, Tree};
use super::{ConfigError, Diagnostic, Layer, Place, diagnose};

/// A section that is one of several alternatives. When an upper layer chooses another one, the settings below it are
/// dropped instead of merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alternative {
    /// Dotted path of the section.
    pub path: &'static str,
    /// Key whose value names the alternative; absent when the section holds one table named after it.
    pub tag: Option<&'static str>,
}

/// A setting that has the right type and still cannot work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issue {
    /// Dotted path.
    pub key: String,
    /// What is wrong, and what is accepted, as the continuation of a sentence that starts with the key. One that only
    /// says "expected …" is completed with what was found.
    pub problem: String,
}

impl Issue {
    /// An issue in full words, for example "is 3, expected 0 to 1".
    pub fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { key: key.into(), problem: problem.into() }
    }
}

/// A configuration with the origin of its values.
#[derive(Debug, Clone)]
pub struct Loaded<T> {
    /// The configuration.
    pub config: T,
    /// Where each value came from, by dotted path; a value that no layer holds is missing here.
    pub provenance: BTreeMap<String, Place>,
}

/// Merges `layers` (later ones win) into a `T`, which `validate` may still refuse.
///
/// # Errors
/// [`ConfigError::Invalid`] with the first mistake of syntax or type, or with every unusable number and every issue of
/// `validate`; [`ConfigError::Unwritable`] when `T` has no form in TOML.
pub fn load<T: DeserializeOwned + Serialize>(
    layers: Vec<Layer>,
    alternatives: &[Alternative],
    validate: impl FnOnce(&T) -> Vec<Issue>,
) -> Result<Loaded<T>, ConfigError> {
    let layers = Layers::new(layers);
    let tree = merge(&layers, alternatives)?;
    refuse(diagnose::unusable_numbers(&tree, &layers))?;
    let deserializer = toml::Deserializer::from(Spanned::new(0..0, tree.clone()));
    let config = T::deserialize(deserializer)
        .map_err(|error| ConfigError::Invalid(vec![diagnose::rejected(&error, &tree, &layers)]))?;
    refuse(validate(&config).into_iter().map(|issue| locate(issue, &tree, &layers)).collect())?;
    let mut provenance = BTreeMap::new();
    tree::walk(&tree, &mut |path, key_span, value| {
        if let (Some(span), false) = (key_span, value.get_ref().is_table()) {
            provenance.insert(path.to_owned(), layers.place(span.start));
        }
    });
    let loaded = Loaded { config, provenance };
    // Found out now, not after the first epoch when the run folder is written.
    loaded.to_toml()?;
    Ok(loaded)
}

/// The text at a dotted path in the uppermost layer that has one; layers that cannot be parsed are passed over.
pub(super) fn peek(layers: &[Layer], path: &str) -> Option<String> {
    let text = |layer: &Layer| {
        let tree = tree::parse(layer.as_str(), 0).ok()?;
        tree::get(&tree, path).and_then(|(_, value)| value.get_ref().as_str().map(str::to_owned))
    };
    layers.iter().rev().find_map(text)
}

impl<T: Serialize> Loaded<T> {
    /// The merged configuration as TOML that loads again, each value with its origin in a comment.
    ///
    /// # Errors
    /// [`ConfigError::Unwritable`] when `T` has no form in TOML.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        let text = toml::to_string(&self.config).map_err(ConfigError::Unwritable)?;
        let tree = tree::parse(&text, 0).expect("a serializer writes what the parser reads");
        let mut comments = BTreeMap::new();
        tree::walk(&tree, &mut |path, key_span, value| {
            // Values inside a list have no line of their own.
            let is_leaf = !matches!(value.get_ref(), DeValue::Table(_));
            if key_span.is_some() && is_leaf && !path.contains('[') {
                comments.insert(value.span().end, self.origin(path));
            }
        });
        let mut annotated = String::with_capacity(2 * text.len());
        let mut written = 0;
        for (end, origin) in comments {
            annotated.push_str(&text[written..end]);
            write!(annotated, "  # {origin}").expect("a string takes any text");
            written = end;
        }
        annotated.push_str(&text[written..]);
        Ok(annotated)
    }

    fn origin(&self, path: &str) -> String {
        match self.provenance.get(path) {
            None | Some(Place::Default { .. }) => "default".to_owned(),
            Some(place) => format!("{}: {}", place.kind(), place.to_string().escape_debug()),
        }
    }
}

fn merge<'a>(layers: &'a Layers, alternatives: &[Alternative]) -> Result<Tree<'a>, ConfigError> {
    let mut merged = Tree::new();
    for (start, layer) in layers.iter() {
        let tree = tree::parse(layer.as_str(), start)
            .map_err(|error| ConfigError::Invalid(vec![diagnose::unreadable(&error, start, layers)]))?;
        tree::overlay(&mut merged, tree, "", alternatives);
    }
    Ok(merged)
}

fn refuse(mistakes: Vec<Diagnostic>) -> Result<(), ConfigError> {
    if mistakes.is_empty() { Ok(()) } else { Err(ConfigError::Invalid(mistakes)) }
}

/// Gives an issue the place of its key, or of the nearest section around it that some layer holds.
fn locate(issue: Issue, tree: &Tree<'_>, layers: &Layers) -> Diagnostic {
    let Issue { key, mut problem } = issue;
    let written = tree::find(tree, &key).and_then(|(_, value)| layers.text(value.span()));
    if let (Some(written), true) = (written, problem.starts_with("expected ")) {
        problem = format!("is {written}, {problem}");
    }
    let mut path = Some(key.as_str());
    let mut place = Place::Default { layer: "built in".into() };
    while let Some(current) = path {
        if let Some((key_span, value)) = tree::find(tree, current) {
            place = layers.place(key_span.unwrap_or_else(|| value.span()).start);
            break;
        }
        path = current.rfind(['.', '[']).map(|end| &current[..end]);
    }
    Diagnostic { place, key, problem, accepted: Vec::new(), nearest: None }
}

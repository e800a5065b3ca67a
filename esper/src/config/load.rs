//! Merges layers, deserializes them, and keeps where every value came from.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::DeValue;

use super::layer::Layers;
use super::tree::{self, Tree};
use super::{ConfigError, Diagnostic, Layer, Place, diagnose, sizes};

/// As many keys and types that are wrong are told of at once.
const MOST_MISTAKES: usize = 64;

/// A section that is one of several alternatives. When an upper layer chooses another one, the settings below it are
/// dropped instead of merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alternative {
    /// Dotted path of the section.
    pub path: &'static str,
    /// Key whose value names the alternative; absent when the section holds one table named after it.
    pub tag: Option<&'static str>,
    /// Settings in it that are filled in and not written: nobody is told that they are accepted.
    pub filled_in: &'static [&'static str],
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
    layers: Layers,
    alternatives: &'static [Alternative],
}

/// Merges `layers` (later ones win, flags over all others) into a `T`, which `validate` may still refuse.
///
/// # Errors
/// [`ConfigError::Invalid`] with the first mistake of syntax, every unusable number, every value of the wrong type, or
/// every key that is no setting and every issue of `validate`; [`ConfigError::Unwritable`] when `T` has no form in TOML.
pub fn load<T: DeserializeOwned + Serialize>(
    layers: Vec<Layer>,
    alternatives: &'static [Alternative],
    validate: impl FnOnce(&T) -> Vec<Issue>,
) -> Result<Loaded<T>, ConfigError> {
    let (loaded, mistakes) = gather(layers, alternatives, validate)?;
    refuse(mistakes)?;
    Ok(loaded)
}

/// As [`load`], but for mistakes beside which every value is the one that was asked for: they are returned, so that
/// others can be looked for.
pub(super) fn gather<T: DeserializeOwned + Serialize>(
    layers: Vec<Layer>,
    alternatives: &'static [Alternative],
    validate: impl FnOnce(&T) -> Vec<Issue>,
) -> Result<(Loaded<T>, Vec<Diagnostic>), ConfigError> {
    let layers = Layers::new(layers);
    let mut tree = merge(&layers, alternatives, |_| true)?;
    refuse(diagnose::unusable_numbers(&tree, &layers))?;
    let (config, mut mistakes) = deserialize(&mut tree, &layers, alternatives)?;
    mistakes.extend(validate(&config).into_iter().map(|issue| locate(issue, &tree, &layers)));
    let mut provenance = BTreeMap::new();
    tree::walk(&tree, &mut |path, key_span, value| {
        if let (Some(span), false) = (key_span, value.get_ref().is_table()) {
            provenance.insert(path.to_owned(), layers.place(span.start));
        }
    });
    drop(tree);
    let loaded = Loaded { config, provenance, layers, alternatives };
    // Found out now, not after the first epoch when the run folder is written.
    loaded.bare_toml()?;
    Ok((loaded, mistakes))
}

/// Deserializes the tree, and again without what was refused, so that all mistakes are found. A key that is no setting
/// is left out, and the rest is what was asked for; a value of the wrong type gives way to the default, with which
/// nothing but the types of the others can be judged.
fn deserialize<'a, T: DeserializeOwned>(
    tree: &mut Tree<'a>,
    layers: &'a Layers,
    alternatives: &[Alternative],
) -> Result<(T, Vec<Diagnostic>), ConfigError> {
    let (mut mistakes, mut is_as_asked) = (Vec::new(), true);
    let mut defaults = None;
    loop {
        let error = match T::deserialize(toml::Deserializer::from(Spanned::new(0..0, tree.clone()))) {
            Ok(config) if is_as_asked => return Ok((config, mistakes)),
            Ok(_) => break,
            Err(error) => error,
        };
        let mut rejected = diagnose::rejected(&error, tree, layers);
        for Alternative { path, filled_in, .. } in alternatives {
            if rejected.diagnostic.key.starts_with(&format!("{path}.")) {
                rejected.diagnostic.accepted.retain(|name| !filled_in.contains(&name.as_str()));
            }
        }
        let section = |key: &str| key.rsplit_once('.').map(|(section, _)| section.to_owned());
        let beside = section(&rejected.diagnostic.key);
        let is_misspelt = || mistakes.iter().any(|told: &Diagnostic| section(&told.key) == beside);
        // Each takes another pass over all settings, and a file of mistakes may have a hundred thousand.
        let is_enough = mistakes.len() >= MOST_MISTAKES;
        if is_enough
            || mistakes.contains(&rejected.diagnostic)
            || rejected.is_missing && (!is_as_asked || is_misspelt())
        {
            // Follows from what was set aside.
            break;
        }
        let path = rejected.set_aside(alternatives);
        mistakes.push(rejected.diagnostic);
        is_as_asked &= rejected.is_no_setting;
        if defaults.is_none() {
            defaults = Some(merge(layers, alternatives, Layer::is_default)?);
        }
        let default = defaults.as_ref().and_then(|defaults| tree::get(defaults, &path));
        let default = default.filter(|_| !rejected.is_no_setting);
        if rejected.is_missing || !tree::replace(tree, &path, default.map(|(key, value)| (key.clone(), value.clone())))
        {
            break;
        }
    }
    Err(ConfigError::Invalid(mistakes))
}

/// The texts at dotted paths, each in the uppermost layer that has one; layers that cannot be parsed are passed over.
pub(super) fn peek<const N: usize>(layers: &[Layer], paths: [&str; N]) -> [Option<String>; N] {
    let mut found = [const { None }; N];
    for tree in layers.iter().filter_map(|layer| tree::parse(layer.as_str(), 0).ok()) {
        for (path, found) in paths.iter().zip(&mut found) {
            if let Some(text) = tree::get(&tree, path).and_then(|(_, value)| value.get_ref().as_str()) {
                *found = Some(text.to_owned());
            }
        }
    }
    found
}

impl<T> Loaded<T> {
    /// What is wrong with a setting, at its place.
    #[must_use]
    pub fn locate(&self, issue: Issue) -> Diagnostic {
        let tree = merge(&self.layers, self.alternatives, |_| true).expect("these layers were merged before");
        locate(issue, &tree, &self.layers)
    }
}

impl<T: Serialize> Loaded<T> {
    /// The merged configuration as TOML that loads again, each value with its origin in a comment.
    ///
    /// # Errors
    /// [`ConfigError::Unwritable`] when `T` has no form in TOML.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        let text = self.bare_toml()?;
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

    fn bare_toml(&self) -> Result<String, ConfigError> {
        toml::to_string(&self.config).map_err(ConfigError::Unwritable)
    }

    fn origin(&self, path: &str) -> String {
        match self.provenance.get(path) {
            Some(Place::Default { layer }) if layer == sizes::LAYER => "default from the data".to_owned(),
            None | Some(Place::Default { .. }) => "default".to_owned(),
            Some(place) => format!("{}: {}", place.kind(), place.to_string().escape_debug()),
        }
    }
}

fn merge<'a>(
    layers: &'a Layers,
    alternatives: &[Alternative],
    wanted: impl Fn(&Layer) -> bool,
) -> Result<Tree<'a>, ConfigError> {
    // A setting of an alternative may stand before the flag that chooses it: flags choose against the other layers all together.
    let (mut merged, mut flags) = (Tree::new(), Tree::new());
    for (start, layer) in layers.iter().filter(|(_, layer)| wanted(layer)) {
        let tree = tree::parse(layer.as_str(), start)
            .map_err(|error| ConfigError::Invalid(vec![diagnose::unreadable(&error, start, layers)]))?;
        tree::overlay(if layer.is_flag() { &mut flags } else { &mut merged }, tree, "", alternatives);
    }
    tree::overlay(&mut merged, flags, "", alternatives);
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

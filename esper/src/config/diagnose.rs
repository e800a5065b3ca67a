//! From what the deserializer says to what a user can act on.

use toml::de::DeValue;

use super::layer::Layers;
use super::tree::{self, Tree};
use super::{Alternative, Diagnostic};

/// What the deserializer refused.
pub(super) struct Rejected {
    pub(super) diagnostic: Diagnostic,
    /// Whether it is a key that nothing knows, and not in a list: without it the others mean the same.
    pub(super) is_no_setting: bool,
    /// Whether a key is missing.
    pub(super) is_missing: bool,
}

impl Rejected {
    /// The path of what has to go before the others can be looked at: a list as a whole, and of a section that is one of
    /// several alternatives all, because its keys belong together.
    pub(super) fn set_aside(&self, alternatives: &[Alternative]) -> String {
        let key = self.diagnostic.key.as_str();
        if self.is_no_setting {
            return key.to_owned();
        }
        let whole = key.split_once('[').map_or(key, |(list, _)| list);
        let around =
            alternatives.iter().find(|one| whole.strip_prefix(one.path).is_some_and(|rest| rest.starts_with('.')));
        around.map_or(whole, |section| section.path).to_owned()
    }
}

/// Explains an error of deserializing `tree`.
pub(super) fn rejected(error: &toml::de::Error, tree: &Tree<'_>, layers: &Layers) -> Rejected {
    let message = Message::parse(error.message());
    let span = error.span().unwrap_or(0..0);
    let mut key = tree::locate(tree, &span).unwrap_or_default();
    let mut position = span.start;
    // Tagged enums buffer their content and lose the inner position; the name in the message finds it again.
    if let Some((inner, inner_position)) = message.descend(tree, &key) {
        (key, position) = (inner, inner_position);
    }
    if let Message::MissingField { name } = &message {
        key = tree::join(&key, name);
    }
    let nearest = message.nearest(tree, &key);
    let (problem, accepted) = message.explain(&key, tree, layers);
    Rejected {
        is_no_setting: matches!(message, Message::UnknownField { .. }) && !key.contains('['),
        is_missing: matches!(message, Message::MissingField { .. }),
        diagnostic: Diagnostic { place: layers.place(position), key, problem, accepted, nearest },
    }
}

/// Explains why the text of a layer that starts at `start` is not TOML.
pub(super) fn unreadable(error: &toml::de::Error, start: usize, layers: &Layers) -> Diagnostic {
    let position = start + error.span().map_or(0, |span| span.start);
    // The parser takes the end of the line for text without quotes.
    let ends_here = layers.text(position..position + 1).is_none_or(|next| next.trim().is_empty() || next == "#");
    let message = match error.message().trim() {
        message if ends_here && message.starts_with("string values must be quoted") => "expected a value after `=`",
        message => message,
    };
    Diagnostic {
        place: layers.place(position),
        key: String::new(),
        problem: format!("not TOML: {message}"),
        accepted: Vec::new(),
        nearest: None,
    }
}

/// Numbers that no setting accepts: not finite, or beyond 64 bits with sign (TOML's own range).
pub(super) fn unusable_numbers(tree: &Tree<'_>, layers: &Layers) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    tree::walk(tree, &mut |path, _, value| {
        let expected = match value.get_ref() {
            DeValue::Float(float) if !float.as_str().parse::<f64>().is_ok_and(f64::is_finite) => "a finite number",
            DeValue::Integer(integer) if i64::from_str_radix(integer.as_str(), integer.radix()).is_err() => {
                "a whole number from -9223372036854775808 to 9223372036854775807"
            }
            _ => return,
        };
        found.push(Diagnostic {
            place: layers.place(value.span().start),
            key: path.into(),
            problem: format!("is {}, expected {expected}", layers.text(value.span()).unwrap_or("not usable")),
            accepted: Vec::new(),
            nearest: None,
        });
    });
    found
}

/// The accepted name nearest to `found`, when it is near enough to be a slip.
pub(super) fn nearest_name<'a>(found: &str, accepted: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let normal = |name: &str| name.to_ascii_lowercase().replace('-', "_");
    let found = normal(found);
    // Two slips in a name of eight letters, one in a shorter name. In a name of three, one letter for another makes
    // another word: `gpu` is not a misspelt `cpu`.
    let allowed = 1 + found.chars().count() / 8;
    let is_slip = |distance: usize, name: &str| {
        let substituted = found.len() == name.len() && sorted_letters(&found) != sorted_letters(name);
        distance <= allowed && !(found.len() <= 3 && substituted)
    };
    let is_beginning = |name: &str| found.len() >= 3 && normal(name).starts_with(&found);
    accepted
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&found, &normal(name)), name))
        .filter(|(distance, name)| is_slip(*distance, name) || is_beginning(name))
        .min()
        .map(|(_, name)| name)
}

fn sorted_letters(name: &str) -> Vec<char> {
    let mut letters: Vec<char> = name.chars().collect();
    letters.sort_unstable();
    letters
}

/// The messages of serde's derived implementations.
enum Message<'a> {
    UnknownField { name: &'a str, accepted: Vec<&'a str> },
    UnknownVariant { name: &'a str, accepted: Vec<&'a str> },
    MissingField { name: &'a str },
    Unexpected { found: &'a str, expected: &'a str },
    Other(&'a str),
}

impl<'a> Message<'a> {
    fn parse(text: &'a str) -> Self {
        let text = text.trim();
        let named = |prefix| {
            let (name, rest) = text.strip_prefix(prefix)?.split_once('`')?;
            Some((name, quoted_names(rest)))
        };
        if let Some((name, accepted)) = named("unknown field `") {
            return Self::UnknownField { name, accepted };
        }
        if let Some((name, accepted)) = named("unknown variant `") {
            return Self::UnknownVariant { name, accepted };
        }
        if let Some((name, _)) = named("missing field `") {
            return Self::MissingField { name };
        }
        // The parser's own check of a table that is the content of an enum variant.
        if let Some((names, accepted)) =
            text.strip_prefix("unexpected keys in table: ").and_then(|rest| rest.split_once(", available keys: "))
        {
            let name = names.split(", ").next().unwrap_or(names);
            return Self::UnknownField { name, accepted: accepted.split(", ").collect() };
        }
        let unexpected = ["invalid type: ", "invalid value: ", "invalid length "];
        let rest = unexpected.iter().find_map(|prefix| text.strip_prefix(prefix));
        match rest.and_then(|rest| rest.rsplit_once(", expected ")) {
            Some((found, expected)) => Self::Unexpected { found, expected },
            None => Self::Other(text),
        }
    }

    /// The key below `key` that the message names, with its position.
    fn descend(&self, tree: &Tree<'_>, key: &str) -> Option<(String, usize)> {
        let table = match key {
            "" => tree,
            key => tree::get(tree, key)?.1.get_ref().as_table()?,
        };
        match self {
            Self::UnknownField { name, .. } => {
                let (inner, _) = table.get_key_value(*name)?;
                Some((tree::join(key, name), inner.span().start))
            }
            Self::UnknownVariant { name, .. } => {
                let is_named = |value: &DeValue<'_>| value.as_str() == Some(*name);
                let (inner, value) = table.iter().find(|(_, value)| is_named(value.get_ref()))?;
                Some((tree::join(key, inner.get_ref()), value.span().start))
            }
            Self::MissingField { .. } | Self::Unexpected { .. } | Self::Other(_) => None,
        }
    }

    fn nearest(&self, tree: &Tree<'_>, key: &str) -> Option<String> {
        match self {
            Self::UnknownVariant { name, accepted } => nearest_name(name, accepted.iter().copied()).map(str::to_owned),
            Self::UnknownField { name, accepted } => {
                let near = nearest_name(name, accepted.iter().copied()).map(str::to_owned);
                near.or_else(|| same_name_elsewhere(tree, key, name))
            }
            Self::MissingField { .. } | Self::Unexpected { .. } | Self::Other(_) => None,
        }
    }

    fn explain(&self, key: &str, tree: &Tree<'_>, layers: &Layers) -> (String, Vec<String>) {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        match self {
            Self::UnknownField { accepted, .. } => {
                let kind = if key.contains('.') { "is not a setting" } else { "is not a section" };
                (kind.to_owned(), owned(accepted))
            }
            // An alternative that is chosen by the name of its table.
            Self::UnknownVariant { name, accepted } if key.rsplit('.').next() == Some(name) => {
                ("is not a setting".to_owned(), owned(accepted))
            }
            Self::UnknownVariant { name, accepted } => (format!("is `{}`", name.escape_debug()), owned(accepted)),
            Self::MissingField { .. } => ("is missing".to_owned(), Vec::new()),
            Self::Unexpected { found, expected } => {
                // What stands in the file says more than the deserializer's rendering of it.
                let text = tree::find(tree, key)
                    .filter(|(_, value)| !value.get_ref().is_table())
                    .and_then(|(_, value)| layers.text(value.span()));
                let found = text.filter(|text| text.len() <= 60 && !text.contains('\n')).unwrap_or(found);
                (format!("is {found}, expected {}", in_plain_words(expected)), Vec::new())
            }
            // A section that holds one table named after an alternative.
            Self::Other(text) if text.starts_with("wanted exactly 1 element") => {
                let table = if key.is_empty() { None } else { tree::find(tree, key) };
                let table = table.and_then(|(_, value)| value.get_ref().as_table());
                let names: Vec<&str> =
                    table.iter().flat_map(|table| table.keys()).map(|key| key.get_ref().as_ref()).collect();
                let found =
                    if names.is_empty() { "is empty".to_owned() } else { format!("holds {}", names.join(" and ")) };
                (format!("{found}, expected exactly one table"), Vec::new())
            }
            Self::Other(text) => ((*text).to_owned(), Vec::new()),
        }
    }
}

/// A setting of this very name in another section; of several, the one least deep.
fn same_name_elsewhere(tree: &Tree<'_>, key: &str, name: &str) -> Option<String> {
    let mut found = Vec::new();
    tree::walk(tree, &mut |path, key_span, _| {
        if key_span.is_some() && path != key && path.rsplit('.').next() == Some(name) {
            found.push(path.to_owned());
        }
    });
    found.into_iter().min_by_key(|path| path.matches('.').count())
}

fn quoted_names(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Rust's names for what is expected, in the words of a configuration file.
fn in_plain_words(expected: &str) -> String {
    let words = match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number, 0 or above",
        "a nonzero u8" | "a nonzero u16" | "a nonzero u32" | "a nonzero u64" | "a nonzero usize" => {
            "a whole number above 0"
        }
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "a section",
        "a string" | "string or map" => "text in quotes",
        other if other.starts_with("struct ") || other.starts_with("internally tagged enum ") => "a section",
        other => other,
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_nearest(found: &str, accepted: &[&str], expected: Option<&str>) {
        assert_eq!(nearest_name(found, accepted.iter().copied()), expected);
    }

    #[test]
    fn slips_are_near_and_other_words_are_not() {
        check_nearest("epochz", &["seed", "epochs", "out"], Some("epochs"));
        check_nearest("eopchs", &["seed", "epochs", "out"], Some("epochs"));
        check_nearest("batchsize", &["batch_size", "loss"], Some("batch_size"));
        check_nearest("Batch-Size", &["batch_size", "loss"], Some("batch_size"));
        check_nearest("heuristics", &["heuristic", "off"], Some("heuristic"));
        check_nearest("batch", &["loss", "batch_size"], Some("batch_size"));
        check_nearest("learning", &["heuristic", "off"], None);
        check_nearest("gpu", &["cpu", "cuda:N"], None);
        check_nearest("rnu", &["run", "data"], Some("run"));
        check_nearest("", &["off"], None);
    }

    #[test]
    fn serde_messages_are_taken_apart() {
        let accepted = |text| match Message::parse(text) {
            Message::UnknownField { accepted, .. } | Message::UnknownVariant { accepted, .. } => accepted,
            _ => panic!("{text}"),
        };
        assert_eq!(accepted("unknown field `x`, expected one of `a`, `b`, `c`"), ["a", "b", "c"]);
        assert_eq!(accepted("unknown field `x`, expected `a` or `b`"), ["a", "b"]);
        assert_eq!(accepted("unknown variant `x`, expected `a`\n"), ["a"]);
        assert_eq!(accepted("unknown field `x`, there are no fields"), [""; 0]);
        let Message::Unexpected { found, expected } =
            Message::parse("invalid type: string \"a, expected b\", expected u64")
        else {
            panic!("not taken apart")
        };
        assert_eq!((found, expected), ("string \"a, expected b\"", "u64"));
    }
}

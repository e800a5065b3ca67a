//! The merged tree of settings: parsed layers, laid over one another, with positions.

use std::borrow::Cow;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue, Error};

use super::Alternative;

/// A table whose positions count from the first byte of the first layer.
pub(super) type Tree<'a> = DeTable<'a>;
/// A value in it.
pub(super) type Node<'a> = Spanned<DeValue<'a>>;
/// The name of a value.
pub(super) type Key<'a> = Spanned<Cow<'a, str>>;

/// Parses the text of a layer that starts at position `start`.
///
/// # Errors
/// The parser's, with a span within the layer.
pub(super) fn parse(text: &str, start: usize) -> Result<Tree<'_>, Error> {
    Ok(shift_table(DeTable::parse(text)?.into_inner(), start))
}

/// Lays `upper` over `lower`, key by key. A table that chooses another alternative than the one below replaces it.
pub(super) fn overlay<'a>(lower: &mut Tree<'a>, upper: Tree<'a>, path: &str, alternatives: &[Alternative]) {
    for (key, mut value) in upper {
        let path = join(path, key.get_ref());
        // Removed and inserted, not replaced: the key must carry the position of the upper layer.
        if let Some(below) = lower.remove(key.get_ref().as_ref()) {
            value = merge(below, value, &path, alternatives);
        }
        lower.insert(key, value);
    }
}

fn merge<'a>(lower: Node<'a>, upper: Node<'a>, path: &str, alternatives: &[Alternative]) -> Node<'a> {
    let span = upper.span();
    let merged = match (lower.into_inner(), upper.into_inner()) {
        (DeValue::Table(mut lower), DeValue::Table(upper)) => {
            let replaces = alternatives.iter().filter(|alternative| alternative.path == path).any(|alternative| {
                let chosen = [&lower, &upper].map(|table| chosen(table, alternative));
                matches!(chosen, [Some(below), Some(above)] if below != above)
            });
            if replaces {
                DeValue::Table(upper)
            } else {
                overlay(&mut lower, upper, path, alternatives);
                DeValue::Table(lower)
            }
        }
        (_, upper) => upper,
    };
    Spanned::new(span, merged)
}

/// The alternative a table stands for: the value of its tag, or its first key.
fn chosen<'a>(table: &'a Tree<'_>, alternative: &Alternative) -> Option<&'a str> {
    match alternative.tag {
        Some(tag) => table.get(tag)?.get_ref().as_str(),
        None => table.keys().next().map(|key| key.get_ref().as_ref()),
    }
}

/// The key and the value at a dotted path.
pub(super) fn get<'t, 'a>(tree: &'t Tree<'a>, path: &str) -> Option<(&'t Key<'a>, &'t Node<'a>)> {
    match path.split_once('.') {
        None => tree.get_key_value(path),
        Some((first, rest)) => get(tree.get(first)?.get_ref().as_table()?, rest),
    }
}

/// Puts `entry` in the place of what is at a dotted path, or nothing; false when nothing was there.
pub(super) fn replace<'a>(tree: &mut Tree<'a>, path: &str, entry: Option<(Key<'a>, Node<'a>)>) -> bool {
    match path.split_once('.') {
        Some((first, rest)) => match tree.get_mut(first).map(Spanned::get_mut) {
            Some(DeValue::Table(table)) => replace(table, rest, entry),
            _ => false,
        },
        None => {
            let was_there = tree.remove(path).is_some();
            if let (Some((key, value)), true) = (entry, was_there) {
                tree.insert(key, value);
            }
            was_there
        }
    }
}

/// The value at a path as [`walk`] spells it, list elements included, with the span of its key.
pub(super) fn find<'t, 'a>(tree: &'t Tree<'a>, wanted: &str) -> Option<(Option<Range<usize>>, &'t Node<'a>)> {
    let mut found = None;
    walk(tree, &mut |path, key_span, value| {
        if path == wanted {
            found = Some((key_span.cloned(), value));
        }
    });
    found
}

/// The dotted path of the outermost key or value that has exactly this span.
pub(super) fn locate(tree: &Tree<'_>, span: &Range<usize>) -> Option<String> {
    let mut found: Option<String> = None;
    walk(tree, &mut |path, key_span, value| {
        if key_span == Some(span) || value.span() == *span {
            // A list made of `[[tables]]` has the span of its first table, and only that one can be meant.
            let is_element = found.as_ref().is_some_and(|list| path.strip_prefix(list.as_str()) == Some("[0]"));
            if found.is_none() || is_element {
                found = Some(path.to_owned());
            }
        }
    });
    found
}

/// Visits every value, outer ones first, with its dotted path and the span of its key (absent for list elements).
pub(super) fn walk<'t, 'a>(tree: &'t Tree<'a>, visit: &mut impl FnMut(&str, Option<&Range<usize>>, &'t Node<'a>)) {
    walk_table(tree, "", visit);
}

fn walk_table<'t, 'a>(
    table: &'t Tree<'a>,
    path: &str,
    visit: &mut impl FnMut(&str, Option<&Range<usize>>, &'t Node<'a>),
) {
    for (key, value) in table {
        walk_node(value, &join(path, key.get_ref()), Some(&key.span()), visit);
    }
}

fn walk_node<'t, 'a>(
    value: &'t Node<'a>,
    path: &str,
    key_span: Option<&Range<usize>>,
    visit: &mut impl FnMut(&str, Option<&Range<usize>>, &'t Node<'a>),
) {
    visit(path, key_span, value);
    match value.get_ref() {
        DeValue::Table(table) => walk_table(table, path, visit),
        DeValue::Array(elements) => {
            for (index, element) in elements.into_iter().enumerate() {
                walk_node(element, &format!("{path}[{index}]"), None, visit);
            }
        }
        DeValue::String(_) | DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => {}
    }
}

/// `path.key`, or `key` at the root.
pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn shift_table(table: Tree<'_>, start: usize) -> Tree<'_> {
    table.into_iter().map(|(key, value)| (shift(key, start, |name| name), shift_node(value, start))).collect()
}

fn shift_node(value: Node<'_>, start: usize) -> Node<'_> {
    shift(value, start, |value| match value {
        DeValue::Table(table) => DeValue::Table(shift_table(table, start)),
        DeValue::Array(elements) => {
            DeValue::Array(elements.into_iter().map(|element| shift_node(element, start)).collect())
        }
        leaf => leaf,
    })
}

fn shift<T>(item: Spanned<T>, start: usize, inner: impl FnOnce(T) -> T) -> Spanned<T> {
    let span = item.span();
    Spanned::new(span.start + start..span.end + start, inner(item.into_inner()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALTERNATIVES: &[Alternative] = &[
        Alternative { path: "host", tag: None, filled_in: &[] },
        Alternative { path: "policy", tag: Some("kind"), filled_in: &[] },
    ];

    #[track_caller]
    fn check_overlay(lower: &str, upper: &str, merged: &str) {
        let mut tree = parse(lower, 0).unwrap();
        overlay(&mut tree, parse(upper, lower.len() + 1).unwrap(), "", ALTERNATIVES);
        let found: toml::Table =
            serde::Deserialize::deserialize(toml::Deserializer::from(Spanned::new(0..0, tree))).unwrap();
        assert_eq!(found, merged.parse::<toml::Table>().unwrap());
    }

    #[test]
    fn upper_values_win_key_by_key() {
        check_overlay("a = 1\nb = 2", "b = 3", "a = 1\nb = 3");
        check_overlay("[s]\na = 1\nb = 2", "s.b = 3", "[s]\na = 1\nb = 3");
        check_overlay("s = [1, 2]", "s = [3]", "s = [3]");
        check_overlay("s = 1", "[s]\na = 1", "[s]\na = 1");
        check_overlay("[s]\na = 1", "s = 1", "s = 1");
    }

    #[test]
    fn choosing_another_alternative_drops_the_settings_of_the_first() {
        check_overlay("host.mlp.width = 1", "host.cnn.kernel = 3", "host.cnn.kernel = 3");
        check_overlay("host.mlp.width = 1", "host.mlp.depth = 3", "host.mlp = { width = 1, depth = 3 }");
        check_overlay("policy = { kind = 'a', x = 1 }", "policy.kind = 'b'", "policy.kind = 'b'");
        check_overlay("policy = { kind = 'a', x = 1 }", "policy.x = 2", "policy = { kind = 'a', x = 2 }");
        check_overlay(
            "policy = { kind = 'a', x = 1 }",
            "policy = { kind = 'a', y = 2 }",
            "policy = { kind = 'a', x = 1, y = 2 }",
        );
    }

    #[test]
    fn merged_keys_carry_the_position_of_the_layer_that_won() {
        let mut tree = parse("a = 1\nb = 2", 0).unwrap();
        overlay(&mut tree, parse("b = [3]", 100).unwrap(), "", &[]);
        assert_eq!(get(&tree, "a").unwrap().0.span(), 0..1);
        let (key, value) = get(&tree, "b").unwrap();
        assert_eq!((key.span(), value.span()), (100..101, 104..107));
        assert_eq!(locate(&tree, &(105..106)).as_deref(), Some("b[0]"));
        assert_eq!(locate(&tree, &(6..7)), None);
        assert_eq!(find(&tree, "b[0]").map(|(key, value)| (key, value.span())), Some((None, 105..106)));
        assert!(find(&tree, "b[1]").is_none());
    }
}

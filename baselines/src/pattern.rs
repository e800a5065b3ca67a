//! Names with `*` for any text.

/// Whether `name` is `pattern`, where each `*` stands for any text, also for none.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(head) else { return false };
    let places = (0..=name.len()).filter(|place| name.is_char_boundary(*place));
    places.into_iter().any(|place| matches(rest, &name[place..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, name, expected) in [
            ("a.b", "a.b", true),
            ("a.b", "a.bc", false),
            ("*", "", true),
            ("a.*", "a.b.c", true),
            ("*.b", "a.b.c", false),
            ("*.eager.*", "mlp.eager.device", true),
            ("*a*a", "xaya", true),
            ("*a*a", "xay", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}

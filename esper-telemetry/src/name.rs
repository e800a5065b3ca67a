//! What a name may look like, in one place for descriptors, packets and frames.

/// Longest name of a metric, event, source, label or attribute, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 128;

/// What [`is_dotted`] accepts, for error messages.
pub(crate) const DOTTED: &str = "1 to 128 characters of a-z, 0-9, _ and ., no empty segment";

/// What [`is_plain`] accepts, for error messages.
pub(crate) const PLAIN: &str = "1 to 128 characters of a-z, 0-9 and _, not starting with a digit";

/// Whether `text` is a dotted path such as `tolaria.grad.norm`.
pub(crate) fn is_dotted(text: &str) -> bool {
    // Of every metric of every packet: all bytes at once, without a way out before the end.
    let bytes = text.as_bytes();
    let is_known = bytes.iter().fold(true, |all, &byte| all & (allowed(byte) | (byte == b'.')));
    let has_empty = bytes
        .iter()
        .zip(bytes.get(1..).unwrap_or_default())
        .fold(false, |any, (&a, &b)| any | ((a == b'.') & (b == b'.')));
    let ends = [bytes.first(), bytes.last()];
    is_known
        && !has_empty
        && text.len() <= MAX_NAME_BYTES
        && ends.iter().all(|end| end.is_some_and(|&byte| byte != b'.'))
}

/// Whether `text` is the name of a label or attribute.
pub(crate) fn is_plain(text: &str) -> bool {
    text.len() <= MAX_NAME_BYTES
        && text.bytes().next().is_some_and(|first| !first.is_ascii_digit())
        && text.bytes().all(allowed)
}

/// The longest prefix of `text` that has at most `max_bytes` bytes and ends between characters.
pub(crate) fn clip(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

fn allowed(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dotted_names_have_no_empty_segment_and_no_foreign_character() {
        for good in ["a", "tolaria.grad.norm", "seed_stage", "x.95"] {
            assert!(is_dotted(good), "{good:?} was refused");
        }
        for bad in ["", ".", "a.", ".a", "a..b", "A", "a-b", "a b", "é", "a\n", &"x".repeat(129)] {
            assert!(!is_dotted(bad), "{bad:?} was accepted");
        }
    }

    #[test]
    fn plain_names_are_one_segment_and_do_not_start_with_a_digit() {
        for good in ["seed_id", "_", "p50"] {
            assert!(is_plain(good), "{good:?} was refused");
        }
        for bad in ["", "a.b", "0a", "A", "é", &"x".repeat(129)] {
            assert!(!is_plain(bad), "{bad:?} was accepted");
        }
    }

    #[test]
    fn clipping_never_splits_a_character() {
        assert_eq!(clip("aé", 2), "a");
        assert_eq!(clip("aé", 3), "aé");
        assert_eq!(clip("", 3), "");
    }
}

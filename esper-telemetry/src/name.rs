//! What a name may look like, in one place for descriptors, packets and frames.

/// Longest name of a metric, event, source, label or attribute, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 128;

/// What [`is_dotted`] accepts, for error messages.
pub(crate) const DOTTED: &str = "1 to 128 characters of a-z, 0-9, _ and ., no empty segment";

/// What [`is_plain`] accepts, for error messages.
pub(crate) const PLAIN: &str = "1 to 128 characters of a-z, 0-9 and _, not starting with a digit";

/// Whether `text` is a dotted path such as `tolaria.grad.norm`.
pub(crate) fn is_dotted(text: &str) -> bool {
    // Of every metric of every packet: eight bytes at once, those of a rest with some before them.
    let bytes = text.as_bytes();
    let (words, rest) = bytes.as_chunks::<8>();
    // As if a dot stood before.
    let (mut good, mut before) = (HIGH_BITS, 0x80);
    for word in words {
        let (of_word, last) = segments(u64::from_le_bytes(*word), before);
        (good, before) = (good & of_word, last);
    }
    let rest = match bytes.last_chunk::<8>() {
        Some(last) => segments(u64::from_le_bytes(*last), 0),
        None => segments(rest.iter().rev().fold(each(b'a'), |word, &byte| word << 8 | u64::from(byte)), before),
    };
    good & rest.0 & HIGH_BITS == HIGH_BITS
        && bytes.len() <= MAX_NAME_BYTES
        && bytes.last().is_some_and(|&byte| byte != b'.')
}

const HIGH_BITS: u64 = each(0x80);

const fn each(byte: u8) -> u64 {
    byte as u64 * 0x0101_0101_0101_0101
}

/// The high bits of those bytes of `word`, the first one lowest, that may stand in a path and are no dot behind another, and
/// the high bit of `0xff` where the last one is a dot, to be `before` of the next word.
#[inline]
fn segments(word: u64, before: u64) -> (u64, u64) {
    // Of bytes without a high bit: a sum has it from some byte on, and is carried nowhere.
    let from = |low: u8| word.wrapping_add(each(0x80 - low));
    let dots = (from(b'.') ^ from(b'.' + 1)) & HIGH_BITS;
    let known = (from(b'a') ^ from(b'z' + 1)) | (from(b'0') ^ from(b'9' + 1)) | (from(b'_') ^ from(b'_' + 1)) | dots;
    (known & !word & !(dots & (dots << 8 | before)), dots >> 56)
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
    fn a_byte_is_accepted_or_refused_wherever_it_stands_in_a_path_of_any_length() {
        for len in 1..=35 {
            for at in 0..len {
                for byte in 0..=127_u8 {
                    let mut bytes = vec![b'z'; len];
                    bytes[at] = byte;
                    let is_inner_dot = byte == b'.' && at > 0 && at + 1 < len;
                    let text = std::str::from_utf8(&bytes).unwrap();
                    assert_eq!(is_dotted(text), allowed(byte) || is_inner_dot, "{text:?}");
                }
                for wide in ["é", "\u{ff}", "…"] {
                    let text = format!("{}{wide}{}", "0".repeat(at), "_".repeat(len - at));
                    assert!(!is_dotted(&text), "{text:?}");
                }
                let text = format!("{}..{}", "a".repeat(at + 1), "a".repeat(len - at));
                assert!(!is_dotted(&text), "{text:?}");
            }
        }
        assert!(is_dotted(&"x".repeat(128)));
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

//! Text from outside made safe to show: no terminal escapes, no invisible reordering, no line breaks where one line is meant.

/// One line: line breaks and tabs become spaces, other control characters and bidirectional overrides go.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if matches!(c, '\n' | '\r' | '\t') { ' ' } else { c }).filter(|&c| !is_hostile(c)).collect()
}

/// As [`printable`], with line breaks and tabs kept.
pub(super) fn printable_lines(text: &str) -> String {
    text.chars().filter(|&c| matches!(c, '\n' | '\t') || !is_hostile(c)).collect()
}

/// Control characters move the cursor or end an XML document; bidirectional marks show text in another order than it
/// stands (CVE-2021-42574); the last two are no characters in XML.
fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, shown: &str) {
        assert_eq!(printable(text), shown);
    }

    #[test]
    fn what_moves_a_cursor_or_reorders_text_is_gone() {
        check("plain é 漢 🌱", "plain é 漢 🌱");
        check("\u{1b}[2Jcleared", "[2Jcleared");
        check("two\nlines\tand\rmore", "two lines and more");
        check("\u{9b}31m\u{7}\u{0}\u{7f}", "31m");
        check("user\u{202e}\u{2066}nimda", "usernimda");
    }

    #[test]
    fn a_text_of_lines_keeps_its_lines() {
        assert_eq!(printable_lines("a = 1\r\n\tb = \u{1b}2\n"), "a = 1\n\tb = 2\n");
    }
}

//! Rust source without comments and the contents of literals, so that a rule does not trip over text.

/// The source with comments, strings and character literals blanked; line breaks stay where they are.
pub(crate) fn code_of(source: &str) -> String {
    blanked(source, true)
}

/// The source with comments blanked: names of things in strings stay.
pub(crate) fn uncommented(source: &str) -> String {
    blanked(source, false)
}

fn blanked(source: &str, with_literals: bool) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(next) = rest.chars().next() {
        let comment = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else {
            0
        };
        let literal = if comment > 0 {
            0
        } else if let Some(len) = raw_string(rest, out.chars().next_back()) {
            len
        } else if next == '"' {
            quoted(rest, '"')
        } else if next == '\'' {
            char_literal(rest)
        } else {
            0
        };
        let len = comment.max(literal).max(next.len_utf8());
        if comment > 0 || (literal > 0 && with_literals) {
            out.push(' ');
            out.extend(rest[..len].chars().filter(|c| *c == '\n'));
        } else {
            out.push_str(&rest[..len]);
        }
        rest = &rest[len..];
    }
    out
}

/// Whether `word` stands in `code` with nothing of an identifier around it.
pub(crate) fn has_word(code: &str, word: &str) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(part_of_name) && !after.is_some_and(part_of_name)
    })
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if text[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                break;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

/// Length of `r"…"` or `r#"…"#` at the start of `text`, unless the `r` ends an identifier.
fn raw_string(text: &str, before: Option<char>) -> Option<usize> {
    if before.is_some_and(|c| (c.is_alphanumeric() && c != 'b') || c == '_') {
        return None;
    }
    let hashes = text.strip_prefix('r')?.chars().take_while(|c| *c == '#').count();
    let body = text[1 + hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let len = body.find(&end).map_or(body.len(), |at| at + end.len());
    Some(2 + hashes + len)
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of a character literal; 0 for a lifetime.
fn char_literal(text: &str) -> usize {
    let mut chars = text.chars().skip(1);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) | (Some(_), Some('\'')) => quoted(text, '\''),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, expected: bool) {
        assert_eq!(has_word(&code_of(source), "word"), expected, "{source} was read as {}", code_of(source));
    }

    #[test]
    fn words_count_in_code_only() {
        check("let word = 1;", true);
        check("let x = 1; // word", false);
        check("/* a /* word */ word */ let x = 1;", false);
        check("/* a */ word", true);
        check(r#"let x = "word \" word";"#, false);
        check(r#"let x = "a"; word"#, true);
        check(r###"let x = r#"a " word"#;"###, false);
        check(r###"let x = br#"a " word"#; word"###, true);
        check("let x = '\"'; word", true);
        check("let x = '\\''; word", true);
        check("fn f<'a>(x: &'a str) { word }", true);
        check("let keyword = words;", false);
    }

    #[test]
    fn names_in_strings_stay_where_only_comments_go() {
        for (source, expected) in [("// word", false), ("/* word */ x", false), (r#"f("// word") // x"#, true)] {
            assert_eq!(has_word(&uncommented(source), "word"), expected, "{source}");
        }
    }
}

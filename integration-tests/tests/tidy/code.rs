//! Rust source without comments and the contents of literals, so that a rule does not trip over text.

/// The source with comments, strings and character literals blanked; line breaks stay where they are.
pub(crate) fn code_of(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(next) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if let Some(len) = raw_string(rest, out.chars().next_back()) {
            len
        } else if next == '"' {
            quoted(rest, '"')
        } else if next == '\'' {
            char_literal(rest)
        } else {
            0
        };
        if skipped == 0 {
            out.push(next);
            rest = &rest[next.len_utf8()..];
        } else {
            out.push(' ');
            out.extend(rest[..skipped].chars().filter(|c| *c == '\n'));
            rest = &rest[skipped..];
        }
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
}

//! Text as words, numbers and signs, each with its place.

/// Why a text is no program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: found {found}, expected {expected}")]
pub struct ParseError {
    /// The line, counted from 1.
    pub line: usize,
    /// The character of the line, counted from 1.
    pub column: usize,
    /// What stands there.
    pub found: String,
    /// What is accepted there.
    pub expected: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// Letters, digits and `_`, not starting with a digit.
    Word(&'a str),
    Number(&'a str),
    /// What stands between quotes, escapes included.
    Quoted(&'a str),
    Sign(&'a str),
    End,
}

/// The tokens of a text, one at a time.
#[derive(Debug, Clone)]
pub(super) struct Lexer<'a> {
    text: &'a str,
    token: Token<'a>,
    /// Where the token starts, in bytes.
    start: usize,
    /// Where the next one may start.
    end: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let mut lexer = Self { text, token: Token::End, start: 0, end: 0 };
        lexer.advance();
        lexer
    }

    pub(super) fn token(&self) -> Token<'a> {
        self.token
    }

    /// The token, and on to the next one.
    pub(super) fn next(&mut self) -> Token<'a> {
        let token = self.token;
        self.advance();
        token
    }

    pub(super) fn error(&self, expected: impl Into<String>) -> ParseError {
        let before = &self.text[..self.start];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let found = match self.token {
            Token::End => "the end".to_owned(),
            _ => format!("`{}`", &self.text[self.start..self.end]),
        };
        ParseError {
            line: 1 + before.matches('\n').count(),
            column: 1 + before[line_start..].chars().count(),
            found,
            expected: expected.into(),
        }
    }

    fn advance(&mut self) {
        let mut rest = &self.text[self.end..];
        loop {
            rest = rest.trim_start();
            if !rest.starts_with('#') {
                break;
            }
            rest = rest.find('\n').map_or("", |newline| &rest[newline..]);
        }
        self.start = self.text.len() - rest.len();
        let len = match rest.chars().next() {
            None => 0,
            Some('"') => quoted(rest),
            Some(first) if first.is_ascii_alphabetic() || first == '_' => {
                rest.find(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_')).unwrap_or(rest.len())
            }
            Some(first) if first.is_ascii_digit() => number(rest),
            Some('-') if rest[1..].starts_with(|digit: char| digit.is_ascii_digit()) => 1 + number(&rest[1..]),
            Some(_) if rest.starts_with("..") || rest.starts_with("->") => 2,
            Some(other) => other.len_utf8(),
        };
        let text = &rest[..len];
        self.end = self.start + len;
        self.token = match text.chars().next() {
            None => Token::End,
            Some('"') if len > 1 && text.ends_with('"') => Token::Quoted(&text[1..len - 1]),
            Some(first) if first.is_ascii_alphabetic() || first == '_' => Token::Word(text),
            Some(first) if first.is_ascii_digit() || (first == '-' && text != "->" && len > 1) => Token::Number(text),
            Some(_) => Token::Sign(text),
        };
    }
}

/// Length of a number, which is whole, hexadecimal, or has a fraction or an exponent.
fn number(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_hex = text.starts_with("0x");
    let mut len = 0;
    while let Some(&byte) = bytes.get(len) {
        let digit_follows = bytes.get(len + 1).is_some_and(u8::is_ascii_digit);
        let follows_exponent = len > 0 && !is_hex && bytes[len - 1].eq_ignore_ascii_case(&b'e');
        let is_part = byte.is_ascii_alphanumeric()
            || (byte == b'.' && digit_follows)
            || ((byte == b'-' || byte == b'+') && digit_follows && follows_exponent);
        if !is_part {
            break;
        }
        len += 1;
    }
    len
}

/// Length of what stands in quotes, with them; of the rest of the line where no quote ends it.
fn quoted(text: &str) -> usize {
    let mut is_escaped = false;
    for (position, letter) in text.char_indices().skip(1) {
        match letter {
            '\n' => return position,
            '"' if !is_escaped => return position + 1,
            _ => is_escaped = letter == '\\' && !is_escaped,
        }
    }
    text.len()
}

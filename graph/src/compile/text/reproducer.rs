//! Reproducers as text, and back.
//!
//! ```text
//!   # the comment says what differed
//!   passes all fuel 17
//!   found fuse 4
//!   blocks …
//! ```

use std::fmt;
use std::str::FromStr;

use super::lexer::{Lexer, ParseError};
use super::parse::Parser;
use crate::compile::bisect::{Culprit, Reproducer};

impl fmt::Display for Reproducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.difference.lines().try_for_each(|line| writeln!(f, "# {line}"))?;
        writeln!(f, "passes {}", self.passes)?;
        writeln!(f, "found {} {}", self.culprit.pass.name(), self.culprit.rewrite)?;
        write!(f, "{}", self.program)
    }
}

impl FromStr for Reproducer {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let comment = text.lines().take_while(|line| line.starts_with('#'));
        let difference: Vec<&str> = comment.map(|line| line.trim_start_matches('#').trim()).collect();
        let mut parser = Parser { lexer: Lexer::new(text), blocks: Vec::new() };
        parser.word("passes")?;
        let passes = parser.passes()?;
        let fuel = passes.fuel().ok_or_else(|| parser.lexer.error("before this `fuel` and how many rewrites"))?;
        parser.word("found")?;
        let (pass, rewrite) = parser.rewrite()?;
        let culprit = Culprit { pass, rewrite, fuel };
        Ok(Self { passes, culprit, difference: difference.join("\n"), program: parser.program()? })
    }
}

//! Sets of passes as text, and back.

use std::fmt;
use std::str::FromStr;

use super::lexer::{Lexer, ParseError, Token};
use super::parse::{Parsed, Parser, one_of};
use crate::compile::pass::{Pass, PassSet};

impl fmt::Display for PassSet {
    /// `all`, `exact` or names of passes; then the fuel and the planted fault, where there is one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.iter().eq(Self::all().iter()) {
            f.write_str("all")?;
        } else if self.iter().eq(Self::exact().iter()) {
            f.write_str("exact")?;
        } else {
            let names: Vec<&str> = self.iter().map(Pass::name).collect();
            f.write_str(&names.join(" "))?;
        }
        if let Some(fuel) = self.fuel() {
            write!(f, " fuel {fuel}")?;
        }
        if let Some((pass, rewrite)) = self.wrong_rewrite() {
            write!(f, " wrong {} {rewrite}", pass.name())?;
        }
        Ok(())
    }
}

impl FromStr for PassSet {
    type Err = ParseError;

    /// The set of a text as it prints.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut parser = Parser { lexer: Lexer::new(text), blocks: Vec::new() };
        let passes = parser.passes()?;
        match parser.lexer.token() {
            Token::End => Ok(passes),
            _ => Err(parser.lexer.error("the name of a pass, `all`, `exact`, `fuel`, `wrong`, or the end")),
        }
    }
}

impl Parser<'_> {
    /// Passes up to the first word that belongs to none.
    pub(super) fn passes(&mut self) -> Parsed<PassSet> {
        let mut passes = PassSet::none();
        while let Token::Word(word) = self.lexer.token() {
            if let Some(pass) = Pass::by_name(word) {
                passes = passes.with(pass);
            } else if word == "all" {
                passes = PassSet::all();
            } else if word == "exact" {
                passes = PassSet::exact();
            } else {
                break;
            }
            self.lexer.next();
        }
        if self.takes_word("fuel") {
            passes = passes.with_fuel(self.number_as("a number of rewrites")?);
        }
        if self.takes_word("wrong") {
            let (pass, rewrite) = self.rewrite()?;
            passes = passes.with_wrong_rewrite(pass, rewrite);
        }
        Ok(passes)
    }

    /// `PASS NUMBER`.
    pub(super) fn rewrite(&mut self) -> Parsed<(Pass, usize)> {
        let pass = match self.lexer.token() {
            Token::Word(word) => Pass::by_name(word),
            _ => None,
        };
        let names = || format!("a pass: {}", one_of(Pass::ALL.into_iter().map(Pass::name)));
        let pass = pass.ok_or_else(|| self.lexer.error(names()))?;
        self.lexer.next();
        Ok((pass, self.number_as("the number of a rewrite, from 1")?))
    }
}

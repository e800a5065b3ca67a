//! Text to programs: blocks and nodes.

use std::fmt::Display;
use std::str::FromStr;

use super::lexer::{Lexer, ParseError, Token};
use super::names::Named;
use crate::compile::block::{Block, BlockId, Lifetime, Region};
use crate::compile::node::{Node, NodeIndex, NodeKind, Pattern};
use crate::compile::program::Program;

pub(super) struct Parser<'a> {
    pub(super) lexer: Lexer<'a>,
    pub(super) blocks: Vec<Block>,
}

pub(super) type Parsed<T> = Result<T, ParseError>;

impl FromStr for Program {
    type Err = ParseError;

    /// The program of a text. Whether it keeps the rules of programs is for [`Program::validate`] to say.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        Parser { lexer: Lexer::new(text), blocks: Vec::new() }.program()
    }
}

impl Parser<'_> {
    /// A program, up to the end.
    pub(super) fn program(mut self) -> Parsed<Program> {
        while self.takes_word("blocks") {
            self.blocks()?;
        }
        let mut nodes = Vec::new();
        while self.takes("%") {
            let number: usize = self.number_as("the number of the node")?;
            if number != nodes.len() {
                let expected = format!("after the number of the node, which is {}, its kind", nodes.len());
                return Err(self.lexer.error(expected));
            }
            nodes.push(self.node(number)?);
        }
        match self.lexer.token() {
            Token::End => Ok(Program { blocks: self.blocks, nodes }),
            _ => Err(self.lexer.error("`blocks`, `%` of a node, or the end")),
        }
    }

    fn blocks(&mut self) -> Parsed<()> {
        while let Token::Word(word) = self.lexer.token() {
            if word == "blocks" {
                break;
            }
            let number = self.blocks.len();
            let lifetime = Lifetime::WORDS.iter().find(|(_, letter)| word == format!("{letter}{number}"));
            let Some((lifetime, _)) = lifetime else {
                return Err(self.lexer.error(format!("`x{number}`, `a{number}` or `g{number}`")));
            };
            self.lexer.next();
            self.sign("=")?;
            let size_bytes = self.number_as("a number of bytes")?;
            self.blocks.push(Block { size_bytes, lifetime: *lifetime });
        }
        Ok(())
    }

    fn node(&mut self, number: usize) -> Parsed<Node> {
        const KINDS: &str = "`alloc`, `free`, `empty`, `zero`, `fill`, `copy`, `kernel` or `fused`";
        let Token::Word(word) = self.lexer.token() else { return Err(self.lexer.error(KINDS)) };
        if !["alloc", "free", "empty", "zero", "fill", "copy", "kernel", "fused"].contains(&word) {
            return Err(self.lexer.error(KINDS));
        }
        self.lexer.next();
        let kind = match word {
            "alloc" => NodeKind::Alloc(self.block()?),
            "free" => NodeKind::Free(self.block()?),
            "empty" => NodeKind::Empty,
            "zero" => NodeKind::Memset { region: self.region()?, pattern: Pattern::ZERO },
            "fill" => {
                let (region, value) = (self.region()?, self.number_as("a value of 32 bits")?);
                self.word("width")?;
                let width_bytes = self.number_as("1, 2 or 4")?;
                NodeKind::Memset { region, pattern: Pattern { value, width_bytes } }
            }
            "copy" => {
                let source = self.region()?;
                self.word("to")?;
                NodeKind::Copy { source, destination: self.region()? }
            }
            "kernel" => NodeKind::Kernel(self.kernel()?),
            _ => NodeKind::Kernel(self.fused()?),
        };
        let dependencies = if self.takes_word("after") {
            self.list("[", "]", |parser| Ok(NodeIndex(parser.number_as("the number of a node")?)))?
        } else {
            number.checked_sub(1).map(NodeIndex).into_iter().collect()
        };
        Ok(Node { kind, dependencies })
    }

    /// A block that was listed, under the letter of its lifetime.
    pub(super) fn block(&mut self) -> Parsed<BlockId> {
        if let Token::Word(word) = self.lexer.token()
            && let Some(number) = word.get(1..).and_then(|number| number.parse().ok())
            && let Some(block) = self.blocks.get::<usize>(number)
            && word.starts_with(block.lifetime.word())
        {
            self.lexer.next();
            return Ok(BlockId(number));
        }
        Err(self.lexer.error("a block that `blocks` lists"))
    }

    fn region(&mut self) -> Parsed<Region> {
        let block = self.block()?;
        self.range(block)
    }

    /// `[START..END]` of a block.
    pub(super) fn range(&mut self, block: BlockId) -> Parsed<Region> {
        self.sign("[")?;
        let start = self.number_as("the first byte")?;
        self.sign("..")?;
        let end = self.number_as("the byte after the last")?;
        self.sign("]")?;
        Ok(Region::new(block, start, end))
    }

    pub(super) fn list<T>(
        &mut self,
        open: &str,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Parsed<T>,
    ) -> Parsed<Vec<T>> {
        self.sign(open)?;
        let mut items = Vec::new();
        while !self.takes(close) {
            items.push(item(self)?);
            self.takes(",");
        }
        Ok(items)
    }

    /// A whole number, decimal or hexadecimal, that fits.
    pub(super) fn number_as<T: TryFrom<u64>>(&mut self, what: &str) -> Parsed<T> {
        let number = match self.lexer.token() {
            Token::Number(text) => match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None => text.parse().ok(),
            },
            _ => None,
        };
        let number = number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| self.lexer.error(what))?;
        self.lexer.next();
        Ok(number)
    }

    /// One of the words of a kind of value.
    pub(super) fn named<T: Named>(&mut self, what: &str) -> Parsed<T> {
        if let Token::Word(word) = self.lexer.token()
            && let Some(value) = T::of_word(word)
        {
            self.lexer.next();
            return Ok(value);
        }
        Err(self.lexer.error(format!("{what}: {}", one_of(T::WORDS.iter().map(|(_, word)| word)))))
    }

    pub(super) fn takes(&mut self, sign: &str) -> bool {
        let is_there = self.lexer.token() == Token::Sign(sign);
        if is_there {
            self.lexer.next();
        }
        is_there
    }

    pub(super) fn takes_word(&mut self, word: &str) -> bool {
        let is_there = self.lexer.token() == Token::Word(word);
        if is_there {
            self.lexer.next();
        }
        is_there
    }

    pub(super) fn sign(&mut self, sign: &str) -> Parsed<()> {
        if self.takes(sign) { Ok(()) } else { Err(self.lexer.error(format!("`{sign}`"))) }
    }

    pub(super) fn word(&mut self, word: &str) -> Parsed<()> {
        if self.takes_word(word) { Ok(()) } else { Err(self.lexer.error(format!("`{word}`"))) }
    }
}

pub(super) fn one_of<T: Display>(words: impl Iterator<Item = T>) -> String {
    let words: Vec<String> = words.map(|word| format!("`{word}`")).collect();
    words.join(", ")
}

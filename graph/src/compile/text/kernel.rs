//! Text to kernels: pointers, and what each element is.

use super::lexer::Token;
use super::names::Named as _;
use super::parse::{Parsed, Parser};
use crate::compile::codegen::generate;
use crate::compile::fused::{Fused, Output, View};
use crate::compile::kernel::{Code, Effect, Kernel, LaunchShape, Pointer};
use crate::compile::memory::ARENA_ALIGNMENT;
use crate::compile::node::Write;
use crate::compile::pointwise::{BinaryOp, Comparison, ElementType, Operand, Pointwise, Step, UnaryOp};
use crate::compile::reduction::Reduction;

impl Parser<'_> {
    /// A recorded kernel, from its name on.
    pub(super) fn kernel(&mut self) -> Parsed<Kernel> {
        let name = match self.lexer.token() {
            Token::Word(word) => word.to_owned(),
            Token::Quoted(text) => text.replace("\\\"", "\"").replace("\\\\", "\\"),
            _ => return Err(self.lexer.error("the name of a kernel")),
        };
        self.lexer.next();
        let node = if self.takes_word("from") { self.number_as("the number of a recorded node")? } else { 0 };
        let shape = if self.takes_word("pointwise") { Some(self.numbers("the size of a dimension")?) } else { None };
        let rows = if shape.is_none() && self.takes_word("fused") { Some(self.rows()?) } else { None };
        let is_told = shape.is_some() || rows.is_some();
        let is_known = !is_told && self.takes_word("known");
        if !is_told && !is_known && !self.takes_word("unknown") {
            return Err(self.lexer.error("`from`, `unknown`, `known`, `pointwise` or `fused`"));
        }
        let (pointers, values) = self.pointers()?;
        let effect = match (shape, rows) {
            (Some(shape), _) => Effect::Pointwise(Box::new(self.pointwise(shape)?)),
            (None, Some(rows)) => self.elements(rows)?,
            (None, None) if is_known => Effect::Known,
            (None, None) => Effect::Unknown,
        };
        let mut launch = LaunchShape::default();
        for word in ["grid", "block"] {
            if self.takes_word(word) {
                let sizes = self.numbers("a number of blocks or threads")?;
                let sizes = sizes.try_into().map_err(|_| self.lexer.error("three sizes before this"))?;
                *(if word == "grid" { &mut launch.grid } else { &mut launch.block }) = sizes;
            }
        }
        if self.takes_word("shared") {
            launch.shared_bytes = self.number_as("a number of bytes")?;
        }
        self.finished(Kernel { launch, ..plain(name, Code::Recorded(node), pointers, effect) }, values)
    }

    /// A kernel of the compiler's own, from the number of its elements on.
    pub(super) fn fused(&mut self) -> Parsed<Kernel> {
        let rows = self.rows()?;
        let is_pending = self.takes_word("pending");
        let (pointers, values) = self.pointers()?;
        let effect = self.elements(rows)?;
        let mut kernel = self.finished(plain(String::new(), Code::Generated("".into()), pointers, effect), values)?;
        if !is_pending {
            generate(&mut kernel);
        }
        Ok(kernel)
    }

    /// Elements, and those of a row.
    fn rows(&mut self) -> Parsed<[usize; 2]> {
        let elements = self.number_as("a number of elements")?;
        Ok([elements, if self.takes_word("by") { self.number_as("the elements of a row")? } else { 1 }])
    }

    /// What is computed of so many elements, in rows of so many.
    fn elements(&mut self, [elements, columns]: [usize; 2]) -> Parsed<Effect> {
        let operands = self.operands(|parser, pointer, element| {
            let dims = if parser.lexer.token() == Token::Sign("(") {
                parser.list("(", ")", |parser| {
                    let size = parser.number_as("a size")?;
                    parser.sign(":")?;
                    Ok((size, parser.number_as("a stride")?))
                })?
            } else if elements == 1 {
                Vec::new()
            } else {
                vec![(elements, 1)]
            };
            Ok(View { pointer, element, dims })
        })?;
        let mut outputs = Vec::new();
        while self.lexer.token() != Token::Sign("{") {
            let (pointer, element) = self.tensor()?;
            self.sign("=")?;
            let is_per_row = self.takes_word("row");
            outputs.push(Output { pointer, element, step: self.step_number()?, is_per_row });
            self.takes(",");
        }
        Ok(Effect::Fused(Box::new(Fused { elements, columns, operands, outputs, steps: self.steps()? })))
    }

    fn numbers<T: TryFrom<u64>>(&mut self, what: &str) -> Parsed<Vec<T>> {
        self.list("[", "]", |parser| parser.number_as(what))
    }

    /// The pointers, and what stands in their words.
    fn pointers(&mut self) -> Parsed<(Vec<Pointer>, Vec<u64>)> {
        let mut values = Vec::new();
        let mut index = 0;
        let pointers = self.list("(", ")", |parser| {
            let block = parser.block()?;
            let offset_bytes = if parser.takes("+") { parser.number_as("a number of bytes")? } else { 0 };
            let mut pointer = Pointer::new(index, block, offset_bytes);
            let mut value = 0;
            index += 1;
            while let Token::Word(word) = parser.lexer.token() {
                parser.lexer.next();
                let is_some = word == "w" && parser.takes("?");
                match word {
                    "r" => pointer.read = Some(parser.range(block)?),
                    "w" => pointer.write = Some(Write { region: parser.range(block)?, is_full: !is_some }),
                    "rw" | "u" => {
                        let region = parser.range(block)?;
                        pointer.read = Some(region);
                        pointer.write = Some(Write { region, is_full: word == "rw" });
                        if word == "u" {
                            pointer.alignment = ARENA_ALIGNMENT;
                        }
                    }
                    "align" => pointer.alignment = parser.number_as("a number of bytes")?,
                    "word" => pointer.word_index = parser.number_as("the number of a word")?,
                    "value" => value = parser.number_as("what stands in the word")?,
                    _ => {
                        return Err(parser
                            .lexer
                            .error("before this `r`, `w`, `w?`, `rw`, `u`, `align`, `word` or `value`"));
                    }
                }
            }
            values.push(value);
            Ok(pointer)
        })?;
        Ok((pointers, values))
    }

    /// What follows the computation: words and lengths of arguments where they are not the plain ones.
    fn finished(&mut self, mut kernel: Kernel, values: Vec<u64>) -> Parsed<Kernel> {
        if self.takes_word("words") {
            kernel.parameters = self.numbers("a word of 64 bits")?;
            kernel.argument_bytes = vec![8; kernel.parameters.len()];
        }
        for (pointer, value) in kernel.pointers.iter().zip(values) {
            if let Some(word) = kernel.parameters.get_mut(pointer.word_index).filter(|_| value > 0) {
                *word = value;
            }
        }
        if self.takes_word("bytes") {
            kernel.argument_bytes = self.numbers("a number of bytes")?;
        }
        Ok(kernel)
    }

    fn pointwise(&mut self, shape: Vec<usize>) -> Parsed<Pointwise> {
        let operands = self.operands(|parser, pointer, element| {
            let is_strided = parser.lexer.token() == Token::Sign("[");
            let strides = if is_strided { Some(parser.numbers("a stride")?) } else { None };
            Ok(Operand { pointer, element, strides })
        })?;
        let (output, output_type) = self.tensor()?;
        Ok(Pointwise { shape, operands, output, output_type, steps: self.steps()? })
    }

    /// Tensors that are read, up to `->`.
    fn operands<T>(&mut self, mut rest: impl FnMut(&mut Self, usize, ElementType) -> Parsed<T>) -> Parsed<Vec<T>> {
        let mut operands = Vec::new();
        while !self.takes("->") {
            let (pointer, element) = self.tensor()?;
            operands.push(rest(self, pointer, element)?);
            self.takes(",");
        }
        Ok(operands)
    }

    /// `POINTER:TYPE`.
    fn tensor(&mut self) -> Parsed<(usize, ElementType)> {
        let pointer = self.number_as("the number of a pointer")?;
        self.sign(":")?;
        Ok((pointer, self.named("a type")?))
    }

    fn steps(&mut self) -> Parsed<Vec<Step>> {
        self.sign("{")?;
        let mut steps = Vec::new();
        while !self.takes("}") {
            steps.push(self.step()?);
            self.takes(";");
        }
        Ok(steps)
    }

    fn step(&mut self) -> Parsed<Step> {
        const OTHERS: &str =
            "`load`, `const`, `muladd`, `select`, `convert`, `power`, `elu`, or the word of an operation";
        let Token::Word(word) = self.lexer.token() else { return Err(self.lexer.error(OTHERS)) };
        let (unary, binary) = (UnaryOp::of_word(word), BinaryOp::of_word(word));
        let (comparison, reduction) = (Comparison::of_word(word), Reduction::of_word(word));
        let is_other = ["load", "const", "muladd", "select", "convert", "power", "elu"].contains(&word);
        let is_operation = unary.is_some() || binary.is_some() || comparison.is_some() || reduction.is_some();
        if !is_operation && !is_other {
            return Err(self.lexer.error(OTHERS));
        }
        self.lexer.next();
        if let Some(reduction) = reduction {
            return Ok(Step::Reduce(reduction, self.step_number()?));
        }
        if let Some(op) = unary {
            return Ok(Step::Unary(op, self.step_number()?));
        }
        if let Some(op) = binary {
            return Ok(Step::Binary(op, [self.step_number()?, self.step_number()?]));
        }
        if let Some(comparison) = comparison {
            return Ok(Step::Compare(comparison, [self.step_number()?, self.step_number()?]));
        }
        Ok(match word {
            "load" => Step::Load(self.number_as("the number of an operand")?),
            "const" => {
                let element = self.named("a type")?;
                Step::Constant(element, self.bits(|text| text.parse().ok().map(f64::to_bits))?)
            }
            "muladd" => {
                let value = self.step_number()?;
                Step::MultiplyAdd { value, factor: self.bits_of_f32()?, term: self.bits_of_f32()? }
            }
            "select" => Step::Select([self.step_number()?, self.step_number()?, self.step_number()?]),
            "convert" => Step::Convert(self.named("a type")?, self.step_number()?),
            "power" => Step::Power(self.step_number()?, self.bits_of_f32()?),
            _ => Step::Elu(self.step_number()?, self.bits_of_f32()?),
        })
    }

    fn step_number(&mut self) -> Parsed<usize> {
        self.sign("$")?;
        self.number_as("the number of an earlier step")
    }

    fn bits_of_f32(&mut self) -> Parsed<u32> {
        self.bits(|text| text.parse().ok().map(f32::to_bits))
    }

    /// The bits of a number: as they are in hexadecimal, or of what `read` takes the text for.
    fn bits<T: TryFrom<u64>>(&mut self, read: impl Fn(&str) -> Option<T>) -> Parsed<T> {
        const WHAT: &str = "a number, or its bits after `0x`";
        match self.lexer.token() {
            Token::Number(text) if !text.starts_with("0x") => {
                let bits = read(text).ok_or_else(|| self.lexer.error(WHAT))?;
                self.lexer.next();
                Ok(bits)
            }
            _ => self.number_as(WHAT),
        }
    }
}

/// A kernel whose words are those of its pointers, one after the other.
fn plain(name: String, code: Code, pointers: Vec<Pointer>, effect: Effect) -> Kernel {
    Kernel {
        name,
        code,
        launch: LaunchShape::default(),
        parameters: vec![0; pointers.len()],
        argument_bytes: vec![8; pointers.len()],
        pointers,
        effect,
    }
}

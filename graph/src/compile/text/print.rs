//! Programs to text.

use std::fmt::{self, Write as _};

use super::names::Named as _;
use crate::compile::block::{Block, BlockId, Region};
use crate::compile::fused::{View, is_contiguous};
use crate::compile::kernel::{Code, Effect, Kernel, LaunchShape, Pointer};
use crate::compile::memory::ARENA_ALIGNMENT;
use crate::compile::node::{NodeIndex, NodeKind, Pattern};
use crate::compile::pointwise::Step;
use crate::compile::program::Program;

/// Blocks of one line.
const BLOCKS_PER_LINE: usize = 12;

impl fmt::Display for Program {
    /// The text that [`str::parse`] takes for the same program.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |block| Name(&self.blocks, block);
        for first in (0..self.blocks.len()).step_by(BLOCKS_PER_LINE) {
            f.write_str("blocks")?;
            for index in (first..self.blocks.len()).take(BLOCKS_PER_LINE) {
                write!(f, " {}={}", name(BlockId(index)), self.blocks[index].size_bytes)?;
            }
            f.write_char('\n')?;
        }
        let region = |of: &Region| format!("{}[{}..{}]", name(of.block), of.start, of.end);
        for (index, node) in self.nodes.iter().enumerate() {
            write!(f, "%{index} ")?;
            match &node.kind {
                NodeKind::Kernel(kernel) => write_kernel(f, &self.blocks, kernel)?,
                NodeKind::Memset { region: of, pattern: Pattern::ZERO } => write!(f, "zero {}", region(of))?,
                NodeKind::Memset { region: of, pattern } => {
                    write!(f, "fill {} {:#x} width {}", region(of), pattern.value, pattern.width_bytes)?;
                }
                NodeKind::Copy { source, destination } => {
                    write!(f, "copy {} to {}", region(source), region(destination))?;
                }
                NodeKind::Alloc(block) => write!(f, "alloc {}", name(*block))?,
                NodeKind::Free(block) => write!(f, "free {}", name(*block))?,
                NodeKind::Empty => f.write_str("empty")?,
            }
            if !node.dependencies.iter().copied().eq(index.checked_sub(1).map(NodeIndex)) {
                write!(f, " after {}", list(node.dependencies.iter().map(|of| of.0)))?;
            }
            f.write_char('\n')?;
        }
        Ok(())
    }
}

/// A block by its lifetime and number.
struct Name<'a>(&'a [Block], BlockId);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.0.get(self.1.0).map_or("?", |block| block.lifetime.word());
        write!(f, "{word}{}", self.1.0)
    }
}

fn write_kernel(f: &mut fmt::Formatter<'_>, blocks: &[Block], kernel: &Kernel) -> fmt::Result {
    let is_own = matches!((&kernel.code, &kernel.effect), (Code::Generated(_), Effect::Fused(_)));
    if !is_own {
        write!(f, "kernel {} ", quoted(&kernel.name))?;
        if let Code::Recorded(node @ 1..) = kernel.code {
            write!(f, "from {node} ")?;
        }
    }
    match &kernel.effect {
        Effect::Unknown => f.write_str("unknown")?,
        Effect::Known => f.write_str("known")?,
        Effect::Pointwise(pointwise) => write!(f, "pointwise {}", list(&pointwise.shape))?,
        Effect::Fused(fused) => write!(f, "fused {}", fused.elements)?,
    }
    if let Effect::Fused(fused) = &kernel.effect
        && fused.columns != 1
    {
        write!(f, " by {}", fused.columns)?;
    }
    if matches!(&kernel.code, Code::Generated(source) if source.is_empty()) {
        f.write_str(" pending")?;
    }
    let pointer = |(index, pointer)| text_of_pointer(blocks, kernel, index, pointer);
    write!(f, " ({})", joined(kernel.pointers.iter().enumerate().map(pointer), ", "))?;
    let steps = match &kernel.effect {
        Effect::Unknown | Effect::Known => None,
        Effect::Pointwise(pointwise) => {
            let operands = pointwise.operands.iter().map(|operand| {
                let strides = operand.strides.as_ref().map(list).unwrap_or_default();
                format!("{}:{}{strides}", operand.pointer, operand.element.word())
            });
            let (output, element) = (pointwise.output, pointwise.output_type.word());
            write!(f, " {} -> {output}:{element}", joined(operands, ", "))?;
            Some(&pointwise.steps)
        }
        Effect::Fused(fused) => {
            let operands = fused.operands.iter().map(|view| text_of_view(view, fused.elements));
            let output = |output: &crate::compile::Output| {
                let row = if output.is_per_row { "row " } else { "" };
                format!("{}:{}={row}${}", output.pointer, output.element.word(), output.step)
            };
            write!(f, " {} -> {}", joined(operands, ", "), joined(fused.outputs.iter().map(output), ", "))?;
            Some(&fused.steps)
        }
    };
    if let Some(steps) = steps {
        write!(f, " {{ {} }}", joined(steps.iter().map(text_of_step), "; "))?;
    }
    if !is_own && kernel.launch != LaunchShape::default() {
        let LaunchShape { grid, block, shared_bytes } = kernel.launch;
        write!(f, " grid {} block {} shared {shared_bytes}", list(grid), list(block))?;
    }
    let plain = vec![0; kernel.pointers.len()];
    let words: Vec<u64> =
        kernel.parameters.iter().enumerate().map(|(index, word)| shown(kernel, index, *word)).collect();
    if words != plain {
        write!(f, " words {}", list(&words))?;
    }
    if kernel.argument_bytes != vec![8; kernel.parameters.len()] {
        write!(f, " bytes {}", list(&kernel.argument_bytes))?;
    }
    Ok(())
}

/// A word among `words`: that of a pointer stands with the pointer.
fn shown(kernel: &Kernel, index: usize, word: u64) -> u64 {
    if kernel.pointers.iter().any(|pointer| pointer.word_index == index) { 0 } else { word }
}

fn text_of_pointer(blocks: &[Block], kernel: &Kernel, index: usize, pointer: &Pointer) -> String {
    let mut text = Name(blocks, pointer.block).to_string();
    let mut add = |part: fmt::Arguments<'_>| text.push_str(&part.to_string());
    if pointer.offset_bytes > 0 {
        add(format_args!("+{}", pointer.offset_bytes));
    }
    let range = |of: Region| format!("[{}..{}]", of.start, of.end);
    let mut alignment = Pointer::new(0, pointer.block, 0).alignment;
    match (pointer.read, pointer.write) {
        (Some(read), Some(write)) if read == write.region && write.is_full => add(format_args!(" rw{}", range(read))),
        (Some(read), Some(write)) if read == write.region => {
            alignment = ARENA_ALIGNMENT;
            add(format_args!(" u{}", range(read)));
        }
        (read, write) => {
            if let Some(read) = read {
                add(format_args!(" r{}", range(read)));
            }
            if let Some(write) = write {
                add(format_args!(" w{}{}", if write.is_full { "" } else { "?" }, range(write.region)));
            }
        }
    }
    if pointer.alignment != alignment {
        add(format_args!(" align {}", pointer.alignment));
    }
    if pointer.word_index != index {
        add(format_args!(" word {}", pointer.word_index));
    }
    if let Some(value @ 1..) = kernel.parameters.get(pointer.word_index) {
        add(format_args!(" value {value:#x}"));
    }
    text
}

fn text_of_view(view: &View, elements: usize) -> String {
    let size: usize = view.dims.iter().map(|(size, _)| size).product();
    let is_plain = is_contiguous(&view.dims) && size == elements;
    let dims = view.dims.iter().map(|(size, stride)| format!("{size}:{stride}"));
    let dims = if is_plain { String::new() } else { format!("({})", joined(dims, " ")) };
    format!("{}:{}{dims}", view.pointer, view.element.word())
}

fn text_of_step(step: &Step) -> String {
    let number = |bits: u32| {
        let value = f32::from_bits(bits);
        if value.is_finite() { format!("{value:?}") } else { format!("{bits:#x}") }
    };
    match *step {
        Step::Load(operand) => format!("load {operand}"),
        Step::Constant(element, bits) => {
            let value = f64::from_bits(bits);
            let value = if value.is_finite() { format!("{value:?}") } else { format!("{bits:#x}") };
            format!("const {} {value}", element.word())
        }
        Step::Unary(op, of) => format!("{} ${of}", op.word()),
        Step::Binary(op, [left, right]) => format!("{} ${left} ${right}", op.word()),
        Step::MultiplyAdd { value, factor, term } => format!("muladd ${value} {} {}", number(factor), number(term)),
        Step::Compare(comparison, [left, right]) => format!("{} ${left} ${right}", comparison.word()),
        Step::Select([condition, yes, no]) => format!("select ${condition} ${yes} ${no}"),
        Step::Convert(element, of) => format!("convert {} ${of}", element.word()),
        Step::Power(of, exponent) => format!("power ${of} {}", number(exponent)),
        Step::Elu(of, alpha) => format!("elu ${of} {}", number(alpha)),
        Step::Reduce(reduction, of) => format!("{} ${of}", reduction.word()),
    }
}

fn list<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    format!("[{}]", joined(items, " "))
}

fn joined<T: fmt::Display>(items: impl IntoIterator<Item = T>, separator: &str) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    items.join(separator)
}

/// A name as it is where it is one word, else in quotes.
fn quoted(name: &str) -> String {
    let is_word = !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.is_empty()
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    if is_word { name.to_owned() } else { format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\"")) }
}

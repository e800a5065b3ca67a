//! Kernels that can add a tensor to what they compute.

use super::block::{BlockId, Region};
use super::fused::{Access, Body, Store, merged};
use super::kernel::{Kernel, Pointer};
use super::node::Write;
use super::pointwise::{BinaryOp, ElementType, Step};

/// An output that a kernel adds a tensor to where it is given one: each element is rounded to the type of the output, and so is the
/// sum.
///
/// The words of what it can be given are null as it was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adding {
    /// Index into [`Kernel::pointers`]; every element is written.
    pub output: usize,
    /// Type of its elements.
    pub element: ElementType,
    /// The word for the address of what is added: as many elements of that type.
    pub addend: usize,
    /// The word for an address where the sum goes as `bf16`, too, if it may go there: as many elements.
    pub rounded: Option<usize>,
}

impl Adding {
    /// What is given for a word.
    fn given(kernel: &Kernel, word: usize) -> Option<&Pointer> {
        kernel.pointers.iter().find(|pointer| pointer.word_index == word)
    }

    /// Whether a pointer is one of those that it can be given.
    pub(super) fn is_given(&self, pointer: &Pointer) -> bool {
        pointer.word_index == self.addend || Some(pointer.word_index) == self.rounded
    }

    /// The bytes of the output.
    pub(super) fn region(&self, kernel: &Kernel) -> Option<Region> {
        kernel.pointers.get(self.output)?.write.filter(|write| write.is_full).map(|write| write.region)
    }

    /// The sum that a kernel forms with what it was given, of its output in place; none where it was given nothing.
    pub(super) fn body(&self, kernel: &Kernel) -> Option<Body> {
        let (output, addend) = (self.region(kernel)?, Self::given(kernel, self.addend)?.read?);
        let elements = output.len() / self.element.size_bytes();
        let of = |region| Access { region, element: self.element, dims: merged(&[elements], None) };
        let store = |region, element, step| Store { region, element, step, is_per_row: false };
        let mut body = Body {
            elements,
            columns: 1,
            operands: vec![of(output), of(addend)],
            outputs: vec![store(output, self.element, 2)],
            steps: vec![Step::Load(0), Step::Load(1), Step::Binary(BinaryOp::Add, [0, 1])],
        };
        let rounded = self.rounded.and_then(|word| Self::given(kernel, word)?.write);
        if let Some(Write { region, .. }) = rounded {
            body.steps.push(Step::Convert(ElementType::Bf16, 2));
            body.outputs.push(store(region, ElementType::Bf16, 3));
        }
        Some(body)
    }

    /// Whether it contradicts nothing that stands in the kernel.
    pub(super) fn fits(&self, kernel: &Kernel) -> bool {
        let size_bytes = self.element.size_bytes();
        let Some(output) = self.region(kernel).filter(|region| region.len().is_multiple_of(size_bytes)) else {
            return false;
        };
        let elements = output.len() / size_bytes;
        let words = [Some(self.addend), self.rounded];
        let has_words = words.into_iter().flatten().all(|word| word < kernel.parameters.len());
        let own = kernel.pointers.get(self.output).is_some_and(|pointer| !self.is_given(pointer));
        let is_read =
            |pointer: &Pointer| pointer.write.is_none() && pointer.read.is_some_and(|read| read.len() == output.len());
        let is_written = |pointer: &Pointer| {
            let bytes = elements * ElementType::Bf16.size_bytes();
            pointer.read.is_none() && pointer.write.is_some_and(|write| write.is_full && write.region.len() == bytes)
        };
        let (addend, rounded) =
            (Self::given(kernel, self.addend), self.rounded.and_then(|word| Self::given(kernel, word)));
        let is_f32 = self.element == ElementType::F32;
        has_words
            && own
            && Some(self.addend) != self.rounded
            && (is_f32 || (self.element == ElementType::Bf16 && self.rounded.is_none()))
            && addend.is_none_or(is_read)
            && rounded.is_none_or(|pointer| addend.is_some() && is_written(pointer))
    }

    /// Gives a kernel what to add, and where the sum goes.
    pub(super) fn give(&self, kernel: &mut Kernel, addend: Region, sum: Region, rounded: Option<Region>) {
        let output = &mut kernel.pointers[self.output];
        *output = Pointer { alignment: output.alignment, ..whole(output.word_index, sum) };
        let read = |word, region: Region| Pointer { read: Some(region), write: None, ..whole(word, region) };
        kernel.pointers.push(read(self.addend, addend));
        kernel.pointers.extend(self.rounded.zip(rounded).map(|(word, region)| whole(word, region)));
    }
}

/// All of a region is written.
fn whole(word: usize, Region { block, start, end }: Region) -> Pointer {
    let block: BlockId = block;
    Pointer::new(word, block, start).writing(start, end)
}

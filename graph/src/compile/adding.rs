//! Kernels that can add a tensor to what they compute.

use super::block::Region;
use super::fused::{Access, Body, Store, merged};
use super::kernel::{Kernel, Pointer};
use super::node::Write;
use super::pointwise::{BinaryOp, ElementType, Step};

/// In the word [`Adding::zeros`]: 0 is added to the sum, so that it is never `-0.0`.
const ZERO_TO_SUM: u64 = 1;
/// The same of the rounded sum, after it was rounded.
const ZERO_TO_ROUNDED: u64 = 2;

/// An output that a kernel adds a tensor to where it is given one: each element is rounded to the type of the output, and so is the
/// sum.
///
/// The words of what it can be given are 0 as it was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adding {
    /// Index into [`Kernel::pointers`]: the only one that reaches the output, of which every element is written and none read.
    pub output: usize,
    /// Type of its elements: `f32` or `bf16`.
    pub element: ElementType,
    /// The word for the address of what is added: as many elements of that type.
    pub addend: usize,
    /// The word for two bits, which tell that 0 is added to the sum (1) and to the rounded sum (2).
    pub zeros: usize,
    /// The word for an address where the sum of `f32` goes rounded to `bf16`, too, if it may go there.
    pub rounded: Option<usize>,
}

/// What a kernel is given to add, and where the sum goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) addend: Region,
    pub(super) sum: Place,
    pub(super) rounded: Option<Place>,
}

/// Where a sum goes, and whether 0 is added to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) region: Region,
    pub(super) adds_zero: bool,
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
        kernel.pointers.get(self.output)?.write.map(|write| write.region)
    }

    /// The sum that a kernel forms with what it was given, of its output in place; none where it was given nothing.
    pub(super) fn body(&self, kernel: &Kernel) -> Option<Body> {
        let (output, addend) = (self.region(kernel)?, Self::given(kernel, self.addend)?.read?);
        let zeros = *kernel.parameters.get(self.zeros)?;
        let elements = output.len() / self.element.size_bytes();
        let of = |region| Access { region, element: self.element, dims: merged(&[elements], None) };
        let mut body = Body {
            elements,
            columns: 1,
            operands: vec![of(output), of(addend)],
            outputs: Vec::new(),
            steps: vec![Step::Load(0), Step::Load(1), Step::Binary(BinaryOp::Add, [0, 1])],
        };
        body.store_from(2, (output, self.element), zeros & ZERO_TO_SUM != 0);
        if let Some(Write { region, .. }) = self.rounded.and_then(|word| Self::given(kernel, word)?.write) {
            body.steps.push(Step::Convert(ElementType::Bf16, 2));
            let rounded = body.steps.len() - 1;
            body.store_from(rounded, (region, ElementType::Bf16), zeros & ZERO_TO_ROUNDED != 0);
        }
        Some(body)
    }

    /// Whether it contradicts nothing that stands in the kernel, and nothing that is added or made shares bytes with what else the
    /// kernel touches.
    pub(super) fn fits(&self, kernel: &Kernel) -> bool {
        let Self { element, addend, zeros, rounded, .. } = *self;
        let words = [Some(addend), Some(zeros), rounded];
        let word = |word: usize| kernel.parameters.get(word).copied();
        let mut num_words: Vec<usize> = words.into_iter().flatten().filter(|index| word(*index).is_some()).collect();
        num_words.sort_unstable();
        num_words.dedup();
        let num_own = kernel.pointers.iter().take_while(|pointer| !self.is_given(pointer)).count();
        let given = &kernel.pointers[num_own..];
        let types = element == ElementType::F32 || (element == ElementType::Bf16 && rounded.is_none());
        let are_words_right = num_words.len() == words.into_iter().flatten().count()
            && Self::given(kernel, zeros).is_none()
            && self.output < num_own
            && given.iter().all(|pointer| self.is_given(pointer))
            // What is not given is null.
            && [Some(addend), rounded].into_iter().flatten().all(|index| Self::given(kernel, index).is_some() || word(index) == Some(0));
        let Some(output) = kernel.pointers.get(self.output).filter(|_| types && are_words_right) else { return false };
        let elements = output.write.map_or(0, |write| write.region.len() / element.size_bytes());
        let (sum, rounds) = (Self::given(kernel, addend), rounded.and_then(|index| Self::given(kernel, index)));
        let most = if rounds.is_some() { ZERO_TO_SUM | ZERO_TO_ROUNDED } else { ZERO_TO_SUM };
        let is_written = |pointer: &Pointer, element: ElementType| {
            let is_whole = |Write { region, is_full }: Write| {
                is_full && region.start == pointer.offset_bytes && region.len() == elements * element.size_bytes()
            };
            pointer.read.is_none() && pointer.write.is_some_and(is_whole)
        };
        let is_read = |pointer: &Pointer| {
            let is_whole =
                |read: Region| read.start == pointer.offset_bytes && read.len() == elements * element.size_bytes();
            pointer.write.is_none() && pointer.read.is_some_and(is_whole)
        };
        is_written(output, element)
            && self.is_alone(kernel, self.output)
            && word(zeros).is_some_and(|bits| bits <= if sum.is_some() { most } else { 0 })
            && sum.is_none_or(is_read)
            && rounds.is_none_or(|pointer| sum.is_some() && is_written(pointer, ElementType::Bf16))
            && (num_own..kernel.pointers.len()).all(|index| self.is_alone(kernel, index))
    }

    /// Whether a pointer reads nothing that another one writes, and writes nothing that another one touches.
    fn is_alone(&self, kernel: &Kernel, index: usize) -> bool {
        let Pointer { read, write, .. } = kernel.pointers[index];
        let others = kernel.pointers.iter().enumerate().filter(|(other, _)| *other != index);
        others.map(|(_, other)| other).all(|other| {
            let written = other.write.map(|write| write.region);
            let clear = |own: Option<Region>, theirs: Option<Region>| {
                own.zip(theirs).is_none_or(|(own, theirs)| !own.overlaps(&theirs))
            };
            let own = write.map(|write| write.region);
            clear(read, written) && clear(own, written) && clear(own, other.read)
        })
    }

    /// The kernel with a sum to form, if it may form it.
    pub(super) fn given_to(&self, kernel: &Kernel, sum: &Sum) -> Option<Kernel> {
        let mut kernel = kernel.clone();
        let output = &mut kernel.pointers[self.output];
        *output = whole(output.word_index, sum.sum.region);
        let Region { block, start, end } = sum.addend;
        kernel.pointers.push(Pointer::new(self.addend, block, start).reading(start, end));
        let mut zeros = if sum.sum.adds_zero { ZERO_TO_SUM } else { 0 };
        if let Some(rounded) = sum.rounded {
            kernel.pointers.push(whole(self.rounded?, rounded.region));
            zeros |= if rounded.adds_zero { ZERO_TO_ROUNDED } else { 0 };
        }
        *kernel.parameters.get_mut(self.zeros)? = zeros;
        self.fits(&kernel).then_some(kernel)
    }
}

impl Body {
    /// Stores a step, or 0 and the step.
    fn store_from(&mut self, mut step: usize, (region, element): (Region, ElementType), adds_zero: bool) {
        if adds_zero {
            let zero = self.steps.len();
            self.steps.extend([Step::Constant(element, 0), Step::Binary(BinaryOp::Add, [zero, step])]);
            step = zero + 1;
        }
        self.outputs.push(Store { region, element, step, is_per_row: false });
    }
}

/// All of a region is written.
fn whole(word: usize, Region { block, start, end }: Region) -> Pointer {
    Pointer::new(word, block, start).writing(start, end)
}

#[cfg(test)]
mod tests {
    use crate::compile::{NodeIndex, Program, ProgramError};

    #[test]
    fn what_a_kernel_adds_fits_its_pointers_and_words_and_shares_no_bytes_with_the_rest() {
        let valid = |kernel: &str| {
            let text = format!("blocks x0=96 x1=96 x2=96\n%0 kernel norm adding {kernel}");
            text.parse::<Program>().unwrap().validate()
        };
        let fits = [
            "1:f32 2 3 (x0 r[0..48], x1 w[0..48]) words [0 0 0 0]",
            "1:f32 2 3 4 (x0 r[0..48], x1 w[0..48], x2 r[0..48], x2+48 w[48..72] word 4) words [0 0 0 3 0]",
            "1:bf16 2 3 (x0 r[0..48], x1 w[0..48], x2 r[0..48]) words [0 0 0 1]",
        ];
        for kernel in fits {
            assert_eq!(valid(kernel), Ok(()), "{kernel}");
        }
        let wrong = [
            // No such pointer, one that reads, one that is written in part or from another byte on.
            "2:f32 2 3 (x0 r[0..48], x1 w[0..48]) words [0 0 0 0]",
            "1:f32 2 3 (x0 r[0..48], x1 r[0..16] w[0..48]) words [0 0 0 0]",
            "1:f32 2 3 (x0 r[0..48], x1 w?[0..48]) words [0 0 0 0]",
            "1:f32 2 3 (x0 r[0..48], x1+16 w[0..48]) words [0 0 0 0]",
            // An output that another pointer reaches.
            "1:f32 3 4 (x0 r[0..48], x1 w[0..48], x1+32 w[32..48]) words [0 0 0 0 0]",
            "1:f32 2 3 (x1 r[0..48], x1 w[0..48]) words [0 0 0 0]",
            // Other types, words that are not there, the same, not null, or a pointer.
            "1:f64 2 3 (x0 r[0..48], x1 w[0..48]) words [0 0 0 0]",
            "1:bf16 2 3 4 (x0 r[0..48], x1 w[0..48]) words [0 0 0 0 0]",
            "1:f32 2 3 (x0 r[0..48], x1 w[0..48]) words [0 0 0]",
            "1:f32 2 2 (x0 r[0..48], x1 w[0..48]) words [0 0 0]",
            "1:f32 2 3 (x0 r[0..48], x1 w[0..48]) words [0 0 7 0]",
            "1:f32 2 3 (x0 r[0..48], x1 w[0..48]) words [0 0 0 1]",
            "1:f32 2 0 (x0 r[0..48], x1 w[0..48]) words [0 0 0]",
            // Bits that say something of what is not given.
            "1:f32 2 3 4 (x0 r[0..48], x1 w[0..48], x2 r[0..48]) words [0 0 0 2 0]",
            // An addend of another size, that is written, or that shares bytes with the output; what is given before the rest.
            "1:f32 2 3 (x0 r[0..48], x1 w[0..48], x2 r[0..24]) words [0 0 0 0]",
            "1:f32 2 3 (x0 r[0..48], x1 w[0..48], x2 rw[0..48]) words [0 0 0 0]",
            "1:f32 2 3 (x0 r[0..48], x1 w[0..48], x1+32 r[32..80]) words [0 0 0 0]",
            "2:f32 0 3 (x2 r[0..48], x0 r[0..48], x1 w[0..48]) words [0 0 0 0]",
            // A rounded sum without a sum, of another size, or over what is read.
            "1:f32 2 3 4 (x0 r[0..48], x1 w[0..48], x2 w[0..24] word 4) words [0 0 0 0 0]",
            "1:f32 2 3 4 (x0 r[0..48], x1 w[0..48], x2 r[0..48], x2+48 w[48..96] word 4) words [0 0 0 0 0]",
            "1:f32 2 3 4 (x0 r[0..48], x1 w[0..48], x2 r[0..48], x0 w[0..24] word 4) words [0 0 0 0 0]",
        ];
        for kernel in wrong {
            assert_eq!(valid(kernel), Err(ProgramError::Operands { node: NodeIndex(0) }), "{kernel}");
        }
    }
}

//! Kernels that compute each element from those at the same position.

use super::call::{Call, product};
use super::decoded::{Decoded, Use};
use super::entries::{Entry, Family};
use super::layout::{Info, Layout};
use super::parameter::Parameter;
use crate::compile::lift::Memory;
use crate::compile::pointwise::{BinaryOp, Comparison, ElementType, Operand, Pointwise, Step, UnaryOp};

/// Inputs, output and computation of a launch; the addresses are those of the arguments named.
struct Elements<'a> {
    info: &'a Info,
    inputs: &'a [usize],
    output: usize,
    /// The computation, where steps can tell it; loads come first, one per input.
    steps: Option<Vec<Step>>,
}

/// Loads of `num_inputs` operands, and a step on them.
fn steps(num_inputs: usize, last: Option<Step>) -> Vec<Step> {
    (0..num_inputs).map(Step::Load).chain(last).collect()
}

impl Elements<'_> {
    /// Reads every input by its layout and writes all of the output. An input that is null is the output.
    fn decode(self, call: &Call<'_>, entry: &Entry) -> Option<Decoded> {
        let numel = product(&self.info.shape)?;
        let mut uses: Vec<Use> = self.info.reading.into_iter().collect();
        let element = |argument: usize| entry.parameters.get(argument).and_then(|parameter| parameter.element());
        let mut operands = Vec::new();
        let output = uses.len() + self.inputs.iter().filter(|&&input| call.address(input).is_some()).count();
        let mut is_in_place = false;
        for (&input, layout) in self.inputs.iter().zip(&self.info.layouts) {
            let strides = (!layout.is_contiguous()).then(|| layout.strides.clone());
            let element = element(input)?;
            if call.address(input).is_some() {
                operands.push(Operand { pointer: uses.len(), element, strides });
                uses.push(call.reading(input, layout.extent()?)?);
            } else {
                // In place, an element is read where it is written, whatever the strides.
                is_in_place = true;
                operands.push(Operand { pointer: output, element, strides: None });
            }
        }
        let mut written = call.writing(self.output, numel)?;
        if is_in_place {
            written = written.and_reading(call.bytes_of(self.output, numel)?);
        }
        uses.push(written);
        let output_type = element(self.output)?;
        let is_apart = operands.iter().all(|operand| is_apart(operand, &uses, output, output_type));
        let steps = self.steps.filter(|_| numel > 0 && is_apart);
        let shape = self.info.shape.clone();
        let pointwise = steps.map(|steps| Pointwise { shape, operands, output, output_type, steps });
        Some(Decoded { uses, pointwise, reduced: None })
    }
}

/// Whether an operand shares no byte with the output, or is the output, element by element.
fn is_apart(operand: &Operand, uses: &[Use], output: usize, output_type: ElementType) -> bool {
    let (read, written) = (&uses[operand.pointer], &uses[output]);
    let is_same = operand.strides.is_none()
        && read.address == written.address
        && operand.element.size_bytes() == output_type.size_bytes();
    is_same || read.end() <= written.address || written.end() <= read.address
}

pub(super) fn unary(
    call: &Call<'_>,
    memory: &mut dyn Memory,
    operation: Option<UnaryOp>,
    entry: &Entry,
) -> Option<Decoded> {
    let info = &Info::read(call, memory, [0, 1, 2], 1)?;
    let steps = Some(steps(1, operation.map(|operation| Step::Unary(operation, 0))));
    Elements { info, inputs: &[3], output: 4, steps }.decode(call, entry)
}

pub(super) fn cast(call: &Call<'_>, memory: &mut dyn Memory, entry: &Entry) -> Option<Decoded> {
    let info = &Info::read(call, memory, [0, 1, 2], 1)?;
    let steps = entry.parameters[4].element().map(|to| steps(1, Some(Step::Convert(to, 0))));
    call.address(3)?;
    Elements { info, inputs: &[3], output: 4, steps }.decode(call, entry)
}

/// Operations of an element and a number that is the same for all.
pub(super) fn with_number(call: &Call<'_>, memory: &mut dyn Memory, entry: &Entry) -> Option<Decoded> {
    let info = &Info::read(call, memory, [0, 1, 2], 1)?;
    let number = number(call, entry, 3).and_then(as_single);
    let last = number.map(|bits| if entry.family == Family::Elu { Step::Elu(0, bits) } else { Step::Power(0, bits) });
    let steps = last.map(|last| steps(1, Some(last)));
    Elements { info, inputs: &[4], output: 5, steps }.decode(call, entry)
}

pub(super) fn affine(call: &Call<'_>, memory: &mut dyn Memory, entry: &Entry) -> Option<Decoded> {
    let info = &Info::read(call, memory, [0, 1, 2], 1)?;
    let numbers = (number(call, entry, 5), number(call, entry, 6));
    let steps = match (entry.parameters[4].element()?, numbers) {
        (ElementType::F32 | ElementType::F64, (Some(factor), Some(term))) => multiply_add(factor, term),
        // Of 16-bit floats, the product and the sum may be rounded on their own: only where one of them changes
        // nothing is the result the same either way.
        (ElementType::Bf16, (Some(factor), Some(term))) => {
            let is_one = factor.to_bits() == 1.0_f64.to_bits();
            let is_zero = term.abs().to_bits() == 0;
            if is_one || is_zero { multiply_add(factor, term) } else { None }
        }
        _ => None,
    };
    Elements { info, inputs: &[3], output: 4, steps }.decode(call, entry)
}

fn multiply_add(factor: f64, term: f64) -> Option<Vec<Step>> {
    let last = Step::MultiplyAdd { value: 0, factor: as_single(factor)?, term: as_single(term)? };
    Some(steps(1, Some(last)))
}

pub(super) fn binary(call: &Call<'_>, memory: &mut dyn Memory, operation: BinaryOp, entry: &Entry) -> Option<Decoded> {
    let info = &Info::read(call, memory, [0, 1, 2], 2)?;
    both(call, 3..5)?;
    let steps = Some(steps(2, Some(Step::Binary(operation, [0, 1]))));
    Elements { info, inputs: &[3, 4], output: 5, steps }.decode(call, entry)
}

pub(super) fn compare(
    call: &Call<'_>,
    memory: &mut dyn Memory,
    comparison: Comparison,
    entry: &Entry,
) -> Option<Decoded> {
    let info = &Info::read(call, memory, [0, 1, 2], 2)?;
    both(call, 3..5)?;
    let steps = Some(steps(2, Some(Step::Compare(comparison, [0, 1]))));
    Elements { info, inputs: &[3, 4], output: 5, steps }.decode(call, entry)
}

pub(super) fn select(call: &Call<'_>, memory: &mut dyn Memory, entry: &Entry) -> Option<Decoded> {
    // Its dimensions are never null.
    both(call, 2..6)?;
    let info = &Info::read(call, memory, [0, 1, 2], 3)?;
    let steps = Some(steps(3, Some(Step::Select([0, 1, 2]))));
    Elements { info, inputs: &[3, 4, 5], output: 6, steps }.decode(call, entry)
}

/// None where one of the addresses is null: only kernels of one input work in place.
fn both(call: &Call<'_>, mut arguments: std::ops::Range<usize>) -> Option<()> {
    arguments.all(|argument| call.address(argument).is_some()).then_some(())
}

pub(super) fn fill(call: &Call<'_>, entry: &Entry) -> Option<Decoded> {
    let numel = call.count(2)?;
    let info = &Info { shape: vec![numel], layouts: Vec::new(), reading: None };
    let steps = constant(call, entry, 1);
    Elements { info, inputs: &[], output: 0, steps }.decode(call, entry)
}

pub(super) fn const_set(call: &Call<'_>, memory: &mut dyn Memory, entry: &Entry) -> Option<Decoded> {
    let info = &Info::read(call, memory, [0, 1, 2], 1)?;
    let layout: &Layout = info.layouts.first()?;
    if layout.is_contiguous() {
        let steps = constant(call, entry, 3);
        return Elements { info, inputs: &[], output: 4, steps }.decode(call, entry);
    }
    let extent = layout.extent()?;
    let written = if layout.is_dense() { call.writing(4, extent) } else { call.writing_some(4, extent) };
    Some(Decoded { uses: info.reading.into_iter().chain(written).collect(), pointwise: None, reduced: None })
        .filter(|_| written.is_some())
}

/// Copies rows; the computation can be told where the rows of the output leave no gap.
pub(super) fn copy2d(call: &Call<'_>, entry: &Entry) -> Option<Decoded> {
    let [rows, columns, from, to] = [2, 3, 4, 5].map(|argument| call.count(argument));
    let (rows, columns, from, to) = (rows?, columns?, from?, to?);
    let numel = product(&[rows, columns])?;
    if !call.has_threads(numel) {
        return None;
    }
    let source = Layout { dims: vec![rows, columns], strides: vec![from, 1] };
    if rows <= 1 || to == columns {
        let info = &Info { shape: source.dims.clone(), layouts: vec![source], reading: None };
        return Elements { info, inputs: &[0], output: 1, steps: Some(steps(1, None)) }.decode(call, entry);
    }
    let target = Layout { dims: vec![rows, columns], strides: vec![to, 1] };
    if to < columns {
        return None;
    }
    let uses = vec![call.reading(0, source.extent()?)?, call.writing_some(1, target.extent()?)?];
    Some(Decoded { uses, pointwise: None, reduced: None })
}

/// The step that gives a number of the type of the elements.
fn constant(call: &Call<'_>, entry: &Entry, argument: usize) -> Option<Vec<Step>> {
    let Parameter::Value(element) = *entry.parameters.get(argument)? else { return None };
    let value = number(call, entry, argument)?;
    Some(vec![Step::Constant(element, value.to_bits())])
}

/// A number among the arguments; none where 64-bit floats do not hold it exactly, or it is not a number.
fn number(call: &Call<'_>, entry: &Entry, argument: usize) -> Option<f64> {
    let Parameter::Value(element) = *entry.parameters.get(argument)? else { return None };
    let bytes = call.bytes(argument)?;
    let value = match element {
        ElementType::F32 => f64::from(f32::from_le_bytes(bytes.try_into().ok()?)),
        ElementType::F64 => f64::from_le_bytes(bytes.try_into().ok()?),
        ElementType::Bf16 => {
            let high = u16::from_le_bytes(bytes.try_into().ok()?);
            f64::from(f32::from_bits(u32::from(high) << 16))
        }
        ElementType::U8 => f64::from(*bytes.first()?),
        ElementType::U32 => f64::from(u32::from_le_bytes(bytes.try_into().ok()?)),
        ElementType::I64 => f64::from(i32::try_from(i64::from_le_bytes(bytes.try_into().ok()?)).ok()?),
    };
    (!value.is_nan()).then_some(value)
}

/// The bits of a number as a 32-bit float, where it is one.
fn as_single(value: f64) -> Option<u32> {
    #[expect(clippy::cast_possible_truncation, reason = "the comparison below finds what does not fit")]
    let single = value as f32;
    (f64::from(single).to_bits() == value.to_bits()).then_some(single.to_bits())
}

//! Pass: the gradient of a rectifier is taken by the kernel that makes what goes into it, where that has a place for it.
//!
//! ```text
//!   thin_gradient(dz, W) ──► dx              thin_gradient(dz, W, y) ──► dx, g
//!   linear_gradient(y, dx) ──► g       as
//! ```
//! Both are kernels of `esper-layers`. The first is recorded with two null pointers, for `y` and `g`, and a zero behind its
//! other arguments; what it writes beside `dx` then has the bits of the second.

use super::block::{Lifetime, Region};
use super::dependencies::recovered;
use super::fuel::Fuel;
use super::kernel::{Code, Effect, Kernel, LaunchShape, Pointer};
use super::lifetimes;
use super::node::{NodeKind, Write};
use super::pointwise::{Comparison, ElementType, Operand, Pointwise, Step};
use super::program::Program;
use super::work::did;

/// Words of a kernel with a place for a rectifier: what it makes without it, then where the rectifier's output is, where the
/// result goes, and in which form.
const GRADIENT: usize = 2;
const OUTPUT: usize = 6;
const RESULT: usize = 7;
const FORM: usize = 8;
/// The result has the type of the gradient, or is rounded to that of the factors.
const ALIKE: u64 = 1;
const ROUNDED: u64 = 2;
/// As `Activation::Relu` is told to kernels.
const RELU: u64 = 1;
/// Kernels load and store as many bytes at once.
const ALIGNMENT: usize = 16;
/// Most nodes between the two.
const MAX_DISTANCE: usize = 1 << 12;

/// The gradient of a rectifier: 0 where its output is not above 0.
struct Gate {
    output: Region,
    gradient: Region,
    result: Region,
    /// Of output and gradient, and of the result.
    types: [ElementType; 2],
}

/// Lets kernels take the gradient of the rectifier below them too, and drops the kernels that did.
///
/// That is the same as long as nobody between the two touches the result or writes what they read, and all of it lies in
/// blocks that the graph owns. Like fusion, the result has the dependencies that the data ask for.
pub(super) fn take_gates(mut program: Program, fuel: &mut Fuel) -> Program {
    let num_before = fuel.burnt();
    for index in 0..program.nodes.len() {
        let NodeKind::Kernel(kernel) = &program.nodes[index].kind else { continue };
        let Some(gate) = recorded(kernel) else { continue };
        let Some((above, form)) = maker(&program, index, &gate) else { continue };
        if !fuel.burn() {
            break;
        }
        program.nodes[index].kind = NodeKind::Empty;
        if let NodeKind::Kernel(kernel) = &mut program.nodes[above].kind {
            kernel.parameters[FORM] = form;
            kernel.pointers.extend([reading(OUTPUT, &gate.output), writing(RESULT, &gate.result)]);
        }
    }
    if fuel.burnt() == num_before {
        return program;
    }
    let Program { blocks, nodes } = program;
    recovered(lifetimes::chain(blocks, lifetimes::operations(nodes)))
}

/// A kernel that is one of these, or has taken one, as what it does one after the other.
pub(super) fn taken_apart(kernel: &Kernel) -> Option<(Option<Kernel>, Kernel)> {
    if let Some(gate) = recorded(kernel) {
        return Some((None, gate.as_pointwise()));
    }
    let (element, rounded) = has_place(kernel)?;
    let to = match *kernel.parameters.get(FORM)? {
        ALIKE => element,
        ROUNDED => rounded?,
        _ => return None,
    };
    let of = |word| kernel.pointers.iter().find(|pointer| pointer.word_index == word);
    let (output, gradient, result) = (of(OUTPUT)?.read?, of(GRADIENT)?.write?.region, of(RESULT)?.write?.region);
    let mut first = kernel.clone();
    first.parameters[FORM] = 0;
    first.pointers.retain(|pointer| pointer.word_index < OUTPUT);
    Some((Some(first), Gate { output, gradient, result, types: [element, to] }.as_pointwise()))
}

/// A kernel that does nothing else.
fn recorded(kernel: &Kernel) -> Option<Gate> {
    use ElementType::{Bf16, F32};
    let types = match &*kernel.name {
        "linear_gradient_f32" => [F32, F32],
        "linear_gradient_bf16" => [Bf16, Bf16],
        "linear_gradient_f32_bf16" => [F32, Bf16],
        _ => return None,
    };
    let ([_, _, _, count, RELU], [output, gradient, result]) = (&kernel.parameters[..], &kernel.pointers[..]) else {
        return None;
    };
    let (output, gradient, Write { region: result, is_full }) = (output.read?, gradient.read?, result.write?);
    let bytes = types.map(|element| usize::try_from(*count).ok()?.checked_mul(element.size_bytes()));
    let fits = [output.len(), gradient.len()].map(Some) == [bytes[0]; 2] && Some(result.len()) == bytes[1];
    let is_known = is_recorded(kernel) && is_full && fits && *count > 0;
    is_known.then_some(Gate { output, gradient, result, types })
}

/// The type of what a kernel with a place makes, and what it may round that to.
fn has_place(kernel: &Kernel) -> Option<(ElementType, Option<ElementType>)> {
    let types = match &*kernel.name {
        "thin_gradient_f32" | "thin_gradient_f16_f32" => (ElementType::F32, None),
        "thin_gradient_bf16" => (ElementType::Bf16, None),
        "thin_gradient_bf16_f32" => (ElementType::F32, Some(ElementType::Bf16)),
        _ => return None,
    };
    (is_recorded(kernel) && kernel.parameters.len() == FORM + 1).then_some(types)
}

fn is_recorded(kernel: &Kernel) -> bool {
    matches!(kernel.code, Code::Recorded(_)) && kernel.effect == Effect::Known
}

/// The kernel that makes what goes into a gate, if it can take that, and in which form it has the result.
fn maker(program: &Program, index: usize, gate: &Gate) -> Option<(usize, u64)> {
    let is_owned = |region: &Region| {
        program.blocks[region.block.0].lifetime == Lifetime::Graph && region.start.is_multiple_of(ALIGNMENT)
    };
    let Gate { output, gradient, result, types } = gate;
    let is_apart = [output, gradient].into_iter().all(|read| !read.overlaps(result));
    if ![output, gradient, result].into_iter().all(is_owned) || !is_apart {
        return None;
    }
    for earlier in (0..index).rev().take(MAX_DISTANCE) {
        did(1);
        let kind = &program.nodes[earlier].kind;
        let writes = |region: &Region| kind.each_write().any(|write| write.region.overlaps(region));
        if writes(output) || writes(result) || kind.each_read().any(|read| read.overlaps(result)) {
            return None;
        }
        if !writes(gradient) {
            continue;
        }
        let NodeKind::Kernel(kernel) = kind else { return None };
        let (element, rounded) = has_place(kernel)?;
        let form = match *types {
            [from, to] if from == element && to == element => ALIKE,
            [from, to] if from == element && rounded == Some(to) => ROUNDED,
            _ => return None,
        };
        let is_free = kernel.parameters[FORM] == 0 && kernel.pointers.iter().all(|pointer| pointer.word_index < OUTPUT);
        let makes = Write { region: *gradient, is_full: true };
        let is_made = kernel.pointers.iter().any(|of| of.word_index == GRADIENT && of.write == Some(makes));
        return (is_free && is_made).then_some((earlier, form));
    }
    None
}

fn reading(word: usize, region: &Region) -> Pointer {
    Pointer::new(word, region.block, region.start).reading(region.start, region.end)
}

fn writing(word: usize, region: &Region) -> Pointer {
    Pointer::new(word, region.block, region.start).writing(region.start, region.end)
}

impl Gate {
    fn as_pointwise(&self) -> Kernel {
        let [element, to] = self.types;
        let operand = |pointer| Operand { pointer, element, strides: None };
        let mut steps = vec![Step::Load(0), Step::Load(1), Step::Constant(element, 0)];
        steps.extend([Step::Compare(Comparison::Greater, [0, 2]), Step::Select([3, 1, 2])]);
        steps.extend((to != element).then_some(Step::Convert(to, 4)));
        let pointwise = Pointwise {
            shape: vec![self.gradient.len() / element.size_bytes()],
            operands: vec![operand(0), operand(1)],
            output: 2,
            output_type: to,
            steps,
        };
        Kernel {
            name: "gate".to_owned(),
            code: Code::Generated("".into()),
            launch: LaunchShape::default(),
            parameters: vec![0; 3],
            argument_bytes: vec![8; 3],
            pointers: vec![reading(0, &self.output), reading(1, &self.gradient), writing(2, &self.result)],
            effect: Effect::Pointwise(Box::new(pointwise)),
        }
    }
}

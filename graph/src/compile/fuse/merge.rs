//! Two element-wise kernels as one.

use std::borrow::Cow;

use crate::compile::block::Region;
use crate::compile::codegen::{has_joint_rows, reduces_columns};
use crate::compile::fused::{Access, Body, Store, is_clear, renumbered};
use crate::compile::pointwise::{BinaryOp, Step};

/// Most addresses of a kernel: more tensors at once fill the registers and gain little.
const MAX_POINTERS: usize = 24;
/// Most steps of a kernel.
const MAX_STEPS: usize = 192;

/// Both with the same positions, where one reduces rows of which the other has one position each.
pub(super) fn aligned<'a>(first: &'a Body, second: &'a Body) -> [Cow<'a, Body>; 2] {
    let spread = |body: &'a Body, rows: &Body| {
        let is_per_row = rows.columns > 1 && body.columns == 1 && body.elements == rows.rows();
        let spread = if is_per_row { body.spread_over(rows.columns) } else { None };
        spread.map_or(Cow::Borrowed(body), Cow::Owned)
    };
    [spread(first, second), spread(second, first)]
}

/// Whether one kernel may do what `first` and then `second` do.
pub(super) fn can_merge(first: &Body, second: &Body) -> bool {
    let columns = first.columns.max(second.columns);
    let rows = if first.columns > 1 { first.dims_of_rows() } else { Vec::new() };
    first.elements == second.elements
        && (first.columns == second.columns || first.columns == 1 || second.columns == 1)
        && (columns == 1 || has_joint_rows(&[first, second], columns) || goes_on_with_columns(first, second))
        && first.steps.len() + second.steps.len() <= MAX_STEPS
        && first.outputs.iter().all(|store| {
            second.operands.iter().all(|access| is_same_place(access, store, &rows))
                && second.outputs.iter().all(|other| {
                    !other.region.overlaps(&store.region)
                        || (other.region == store.region
                            && other.element == store.element
                            && other.is_per_row == store.is_per_row)
                })
        })
        && second.outputs.iter().all(|store| first.operands.iter().all(|access| is_clear(access, store)))
        && num_pointers(first, second) <= MAX_POINTERS
}

/// Whether `first` reduces columns, and `second` computes one number for each from what that gives. Work that only reads the same
/// would wait for the columns for nothing.
fn goes_on_with_columns(first: &Body, second: &Body) -> bool {
    let is_stored = |access: &Access| first.outputs.iter().any(|store| store.region == access.region);
    first.columns == second.columns
        && second.operands.iter().any(is_stored)
        && !second.steps.iter().any(|step| matches!(step, Step::Reduce(..)))
        && second.one_per_row().into_iter().all(|is_one| is_one)
        && second.outputs.iter().all(|store| store.is_per_row)
        && reduces_columns(first)
}

/// Whether an operand is apart from what is stored, or reads at each position what is stored there.
fn is_same_place(access: &Access, store: &Store, rows: &[(usize, usize)]) -> bool {
    if store.is_per_row && access.region == store.region {
        return access.element == store.element && access.dims == rows;
    }
    is_clear(access, store) && (!access.region.overlaps(&store.region) || access.element == store.element)
}

/// Addresses of the merged kernel, at most.
fn num_pointers(first: &Body, second: &Body) -> usize {
    let is_known = |access: &Access| {
        first.operands.iter().any(|other| other.region == access.region)
            || first.outputs.iter().any(|store| store.region == access.region)
    };
    let added = second.operands.iter().filter(|access| !is_known(access)).count();
    first.operands.len() + first.outputs.len() + added + second.outputs.len()
}

/// Whether a kernel has few enough addresses and steps.
pub(super) fn is_small(body: &Body) -> bool {
    body.operands.len() + body.outputs.len() <= MAX_POINTERS && body.steps.len() <= MAX_STEPS
}

/// Whether they read or write a tensor in common.
pub(super) fn share_data(first: &Body, second: &Body) -> bool {
    regions(first).any(|region| regions(second).any(|other| region == other))
}

fn regions(body: &Body) -> impl Iterator<Item = Region> {
    let reads = body.operands.iter().map(|access| access.region);
    reads.chain(body.outputs.iter().map(|store| store.region))
}

/// The kernel that does what `first` and then `second` do, where [`can_merge`] allows it.
pub(super) fn merge(first: &Body, second: &Body) -> Body {
    let mut merged = Body { columns: first.columns.max(second.columns), ..first.clone() };
    let mut numbers: Vec<usize> = Vec::with_capacity(second.steps.len());
    for step in &second.steps {
        let number = match step {
            Step::Load(operand) => {
                let access = &second.operands[*operand];
                match first.outputs.iter().find(|store| store.region == access.region) {
                    Some(store) => store.step,
                    None => load(&mut merged, access),
                }
            }
            step => {
                let step = renumbered(step, |input| numbers[input]);
                nothing_added_to(&merged.steps, &step).unwrap_or_else(|| position_or_push(&mut merged.steps, step))
            }
        };
        numbers.push(number);
    }
    merged.outputs.retain(|store| second.outputs.iter().all(|other| other.region != store.region));
    merged.outputs.extend(second.outputs.iter().map(|store| Store { step: numbers[store.step], ..*store }));
    merged
}

/// The step that loads an operand, which may be there already.
fn load(body: &mut Body, access: &Access) -> usize {
    let operand = body.operands.iter().position(|other| other == access).unwrap_or_else(|| {
        body.operands.push(access.clone());
        body.operands.len() - 1
    });
    position_or_push(&mut body.steps, Step::Load(operand))
}

/// The step `x` of a sum `0 + x`, where `x` is a sum or a difference from zero itself, `0 + y` or `0 - y`: these are never -0, the one
/// number that adding zero changes.
fn nothing_added_to(steps: &[Step], sum: &Step) -> Option<usize> {
    let is_zero = |step: &usize| matches!(steps[*step], Step::Constant(_, 0));
    let term = match sum {
        Step::Binary(BinaryOp::Add, [zero, term]) if is_zero(zero) => term,
        Step::Binary(BinaryOp::Add, [term, zero]) if is_zero(zero) => term,
        Step::MultiplyAdd { value, factor: 0x3F80_0000, term: 0 } => value,
        _ => return None,
    };
    let is_from_zero = match &steps[*term] {
        Step::Binary(BinaryOp::Add, terms) => terms.iter().any(is_zero),
        Step::Binary(BinaryOp::Subtract, [left, _]) => is_zero(left),
        _ => false,
    };
    is_from_zero.then_some(*term)
}

fn position_or_push(steps: &mut Vec<Step>, step: Step) -> usize {
    steps.iter().position(|other| *other == step).unwrap_or_else(|| {
        steps.push(step);
        steps.len() - 1
    })
}

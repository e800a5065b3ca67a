//! Element-wise kernels with several outputs: what fusion makes, and what code is generated from.

use super::block::Region;
use super::kernel::{Code, Effect, Kernel, LaunchShape, Pointer};
use super::node::Write;
use super::pointwise::{BinaryOp, ElementType, Operand, Pointwise, Step};

/// Elements computed from the elements of the operands at the same position, counted through, and from what the rows that
/// they lie in are reduced to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fused {
    /// Number of elements; every output is contiguous and has as many, or one per row.
    pub elements: usize,
    /// Elements of a row: positions that follow each other. 1 where nothing is reduced.
    pub columns: usize,
    /// What is read.
    pub operands: Vec<View>,
    /// What is written.
    pub outputs: Vec<Output>,
    /// The computation; steps name earlier ones by their index, `Load` an operand by its.
    pub steps: Vec<Step>,
}

/// A tensor that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Index into [`Kernel::pointers`]; the address is that of the element at position zero.
    pub pointer: usize,
    /// Type of its elements.
    pub element: ElementType,
    /// Size and stride of each dimension, in elements, the last the fastest. None is of size 1, none could be merged
    /// with the next: so one of stride 1 is contiguous, and one of stride 0 is the same for all.
    pub dims: Vec<(usize, usize)>,
}

/// A tensor that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    /// Index into [`Kernel::pointers`]; the address is that of the first element.
    pub pointer: usize,
    /// Type of its elements.
    pub element: ElementType,
    /// The step that gives it.
    pub step: usize,
    /// Whether it has one element per row instead of one per position.
    pub is_per_row: bool,
}

/// Dimensions without those of size 1, and with neighbors as one where the outer continues the inner.
pub(super) fn merged(shape: &[usize], strides: Option<&[usize]>) -> Vec<(usize, usize)> {
    let mut dims: Vec<(usize, usize)> = Vec::new();
    let mut contiguous = 1;
    for index in (0..shape.len()).rev() {
        let (size, stride) = (shape[index], strides.map_or(contiguous, |strides| strides[index]));
        contiguous *= size;
        match dims.last_mut() {
            _ if size == 1 => {}
            Some(inner) if stride == inner.0 * inner.1 => inner.0 *= size,
            _ => dims.push((size, stride)),
        }
    }
    dims.reverse();
    dims
}

/// Elements from the first to the last that are read.
pub(super) fn extent(dims: &[(usize, usize)]) -> usize {
    1 + dims.iter().map(|(size, stride)| (size - 1) * stride).sum::<usize>()
}

/// Where the element at a position lies.
pub(super) fn index(dims: &[(usize, usize)], mut position: usize) -> usize {
    let mut index = 0;
    for (size, stride) in dims.iter().rev() {
        index += position % size * stride;
        position /= size;
    }
    index
}

/// Whether every element up to `elements` is read once, in whatever order.
pub(super) fn is_permutation(dims: &[(usize, usize)], elements: usize) -> bool {
    let mut sorted = dims.to_vec();
    sorted.sort_unstable_by_key(|(_, stride)| *stride);
    let whole = sorted.into_iter().try_fold(1, |before, (size, stride)| (stride == before).then_some(before * size));
    whole == Some(elements)
}

/// Where the elements of an operand lie whose positions are taken in the order of a permutation. None where that cannot be said by
/// sizes and strides.
pub(super) fn reordered(dims: &[(usize, usize)], order: &[(usize, usize)]) -> Option<Vec<(usize, usize)>> {
    let (mut shape, mut strides) = (Vec::new(), Vec::new());
    for &(mut size, mut step) in order.iter().rev() {
        while size > 1 {
            // The dimension in which a step of so many positions leads on, and how many of them it has.
            let mut inner = 1;
            let (length, stride) = *dims.iter().rev().find(|(length, _)| {
                let is_here = step < inner * length;
                inner *= if is_here { 1 } else { *length };
                is_here
            })?;
            let (there, across) = (inner * length / step, step / inner);
            let taken = size.min(there);
            if !step.is_multiple_of(inner) || !length.is_multiple_of(across) || !size.is_multiple_of(taken) {
                return None;
            }
            shape.push(taken);
            strides.push(across * stride);
            (size, step) = (size / taken, step * taken);
        }
    }
    shape.reverse();
    strides.reverse();
    Some(merged(&shape, Some(&strides)))
}

/// Whether the element at each position lies at that position.
pub(super) fn is_contiguous(dims: &[(usize, usize)]) -> bool {
    matches!(dims, [] | [(_, 1)])
}

impl Pointwise {
    /// The sum of two contiguous tensors of a type; `terms` and `output` are indices of pointers.
    #[must_use]
    pub fn sum(elements: usize, element: ElementType, terms: [usize; 2], output: usize) -> Self {
        let operand = |pointer| Operand { pointer, element, strides: None };
        Self {
            shape: vec![elements],
            operands: terms.map(operand).to_vec(),
            output,
            output_type: element,
            steps: vec![Step::Load(0), Step::Load(1), Step::Binary(BinaryOp::Add, [0, 1])],
        }
    }
}

impl ElementType {
    /// Whether it is one of the integers.
    pub(super) fn is_integer(self) -> bool {
        match self {
            Self::U8 | Self::U32 | Self::I64 => true,
            Self::F32 | Self::F64 | Self::Bf16 => false,
        }
    }
}

/// A tensor that is read, by its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Access {
    /// From the element at position zero to the last that is read.
    pub(super) region: Region,
    pub(super) element: ElementType,
    pub(super) dims: Vec<(usize, usize)>,
}

/// A tensor that is written, by its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Store {
    pub(super) region: Region,
    pub(super) element: ElementType,
    pub(super) step: usize,
    pub(super) is_per_row: bool,
}

/// An element-wise kernel by the bytes that it uses: what passes work on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Body {
    pub(super) elements: usize,
    pub(super) columns: usize,
    pub(super) operands: Vec<Access>,
    pub(super) outputs: Vec<Store>,
    pub(super) steps: Vec<Step>,
}

impl Body {
    /// What a kernel computes, if that is known element by element and contradicts nothing.
    pub(super) fn of(kernel: &Kernel) -> Option<Self> {
        let (elements, columns, views, outputs, steps) = match &kernel.effect {
            Effect::Unknown | Effect::Known => return None,
            Effect::Fused(fused) => {
                (fused.elements, fused.columns, fused.operands.clone(), fused.outputs.clone(), fused.steps.clone())
            }
            Effect::Pointwise(pointwise) => {
                let rank = pointwise.shape.len();
                if pointwise.operands.iter().any(|operand| operand.strides.as_ref().is_some_and(|s| s.len() != rank)) {
                    return None;
                }
                let view = |operand: &Operand| View {
                    pointer: operand.pointer,
                    element: operand.element,
                    dims: merged(&pointwise.shape, operand.strides.as_deref()),
                };
                let output = Output {
                    pointer: pointwise.output,
                    element: pointwise.output_type,
                    step: pointwise.steps.len().checked_sub(1)?,
                    is_per_row: false,
                };
                let operands = pointwise.operands.iter().map(view).collect();
                (pointwise.shape.iter().product(), 1, operands, vec![output], pointwise.steps.clone())
            }
        };
        let operands = views.into_iter().map(|view| {
            let Pointer { block, offset_bytes: start, .. } = *kernel.pointers.get(view.pointer)?;
            let len = extent(&view.dims) * view.element.size_bytes();
            let size: usize = view.dims.iter().map(|(size, _)| size).product();
            let is_whole = size == elements && view.dims.iter().all(|(size, _)| *size > 1);
            let region = Region::new(block, start, start + len);
            is_whole.then_some(Access { region, element: view.element, dims: view.dims })
        });
        let stores = outputs.into_iter().map(|output| {
            let Pointer { block, offset_bytes: start, .. } = *kernel.pointers.get(output.pointer)?;
            let Output { element, step, is_per_row, .. } = output;
            let count = if is_per_row { elements.checked_div(columns)? } else { elements };
            let region = Region::new(block, start, start + count * element.size_bytes());
            Some(Store { region, element, step, is_per_row })
        });
        let body = Self {
            elements,
            columns,
            operands: operands.collect::<Option<_>>()?,
            outputs: stores.collect::<Option<_>>()?,
            steps,
        };
        body.is_sound().then_some(body)
    }

    /// Whether the steps fit together, and no element is written that another position reads or writes.
    pub(super) fn is_sound(&self) -> bool {
        let Some(types) = self.types() else { return false };
        self.elements > 0
            && self.has_sound_rows(&types)
            && !self.outputs.is_empty()
            && self.outputs.iter().all(|store| types.get(store.step) == Some(&store.element))
            && self.outputs.iter().enumerate().all(|(index, store)| {
                self.outputs[..index].iter().all(|other| !other.region.overlaps(&store.region))
                    && self.operands.iter().all(|access| is_clear(access, store))
            })
    }

    /// Whether rows are whole, nothing is reduced where there are none, and what is stored once per row is one number.
    fn has_sound_rows(&self, types: &[ElementType]) -> bool {
        let is_one = self.one_per_row();
        let is_sound = |step: &Step| match *step {
            Step::Reduce(reduction, of) => {
                let is_whole = self.columns.is_multiple_of(reduction.neighbors());
                self.columns > 1 && is_whole && types[of] == ElementType::F32
            }
            _ => true,
        };
        self.columns > 0
            && self.elements.is_multiple_of(self.columns)
            && self.steps.iter().all(is_sound)
            && self.outputs.iter().all(|store| !store.is_per_row || (self.columns > 1 && is_one[store.step]))
    }

    /// Of each step, whether it is the same at all positions of a row.
    pub(super) fn one_per_row(&self) -> Vec<bool> {
        let mut is_one: Vec<bool> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let one = match *step {
                Step::Load(operand) => self.operands.get(operand).is_some_and(|access| self.is_repeated(&access.dims)),
                Step::Reduce(..) => true,
                _ => inputs(step).all(|input| is_one.get(input) == Some(&true)),
            };
            is_one.push(one);
        }
        is_one
    }

    /// Whether an operand is the same at all positions of a row.
    fn is_repeated(&self, dims: &[(usize, usize)]) -> bool {
        dims.last().is_none_or(|&(size, stride)| stride == 0 && size.is_multiple_of(self.columns))
    }

    /// Rows of what is reduced.
    pub(super) fn rows(&self) -> usize {
        self.elements / self.columns
    }

    /// An operand that has one element per row, in their order.
    pub(super) fn dims_of_rows(&self) -> Vec<(usize, usize)> {
        repeated(if self.rows() == 1 { Vec::new() } else { vec![(self.rows(), 1)] }, self.columns)
    }

    /// The same for each of the `columns` positions of rows, where there was one position per row; none where it reads what
    /// it writes: threads that share a row would not wait for each other.
    pub(super) fn spread_over(&self, columns: usize) -> Option<Self> {
        let mut spread = Self { elements: self.elements * columns, columns, ..self.clone() };
        for access in &mut spread.operands {
            access.dims = repeated(std::mem::take(&mut access.dims), columns);
        }
        spread.outputs.iter_mut().for_each(|store| store.is_per_row = true);
        spread.is_sound().then_some(spread)
    }

    /// Type of the result of each step.
    pub(super) fn types(&self) -> Option<Vec<ElementType>> {
        let mut types: Vec<ElementType> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let of = |index: usize| types.get(index).copied();
            let element = match *step {
                Step::Load(operand) => self.operands.get(operand)?.element,
                Step::Constant(element, _) => element,
                Step::Unary(_, value)
                | Step::MultiplyAdd { value, .. }
                | Step::Power(value, _)
                | Step::Elu(value, _)
                | Step::Reduce(_, value) => of(value)?,
                Step::Binary(_, [left, right]) => of(left).filter(|&element| of(right) == Some(element))?,
                Step::Compare(_, [left, right]) => {
                    of(left).filter(|&element| of(right) == Some(element))?;
                    ElementType::U8
                }
                Step::Select([condition, yes, no]) => {
                    of(condition).filter(|element| element.is_integer())?;
                    of(yes).filter(|&element| of(no) == Some(element))?
                }
                Step::Convert(element, value) => {
                    of(value)?;
                    element
                }
            };
            types.push(element);
        }
        Some(types)
    }

    /// Drops outputs for which `keep` is false, and what only they needed.
    pub(super) fn retain_outputs(&mut self, keep: impl Fn(&Store) -> bool) {
        self.outputs.retain(keep);
        let mut is_needed = vec![false; self.steps.len()];
        for store in &self.outputs {
            is_needed[store.step] = true;
        }
        for index in (0..self.steps.len()).rev() {
            if is_needed[index] {
                inputs(&self.steps[index]).for_each(|input| is_needed[input] = true);
            }
        }
        let mut new_step = vec![0; self.steps.len()];
        let mut new_operand: Vec<Option<usize>> = vec![None; self.operands.len()];
        let (mut steps, mut operands) = (Vec::new(), Vec::new());
        for (index, step) in self.steps.iter().enumerate().filter(|(index, _)| is_needed[*index]) {
            let mut step = renumbered(step, |input| new_step[input]);
            if let Step::Load(operand) = &mut step {
                *operand = *new_operand[*operand].get_or_insert_with(|| {
                    operands.push(self.operands[*operand].clone());
                    operands.len() - 1
                });
            }
            new_step[index] = steps.len();
            steps.push(step);
        }
        for store in &mut self.outputs {
            store.step = new_step[store.step];
        }
        (self.steps, self.operands) = (steps, operands);
    }

    /// The kernel, its code still to be written.
    pub(super) fn into_kernel(self) -> Kernel {
        let mut pointers: Vec<Pointer> = Vec::new();
        let mut pointer = |region: &Region, is_write: bool| {
            let (read, write) =
                if is_write { (None, Some(Write { region: *region, is_full: true })) } else { (Some(*region), None) };
            pointers.iter().position(|other| other.read == read && other.write == write).unwrap_or_else(|| {
                let (word_index, block, offset_bytes) = (pointers.len(), region.block, region.start);
                pointers.push(Pointer { read, write, ..Pointer::new(word_index, block, offset_bytes) });
                pointers.len() - 1
            })
        };
        let mut operands = Vec::new();
        for Access { region, element, dims } in self.operands {
            operands.push(View { pointer: pointer(&region, false), element, dims });
        }
        let mut outputs = Vec::new();
        for Store { region, element, step, is_per_row } in self.outputs {
            outputs.push(Output { pointer: pointer(&region, true), element, step, is_per_row });
        }
        let (elements, columns) = (self.elements, self.columns);
        let fused = Fused { elements, columns, operands, outputs, steps: self.steps };
        Kernel {
            name: String::new(),
            code: Code::Generated("".into()),
            launch: LaunchShape::default(),
            parameters: vec![0; pointers.len()],
            argument_bytes: vec![8; pointers.len()],
            pointers,
            effect: Effect::Fused(Box::new(fused)),
        }
    }
}

/// Dimensions with one more, the innermost, in which nothing changes.
fn repeated(mut dims: Vec<(usize, usize)>, times: usize) -> Vec<(usize, usize)> {
    match dims.last_mut() {
        Some((size, 0)) => *size *= times,
        _ => dims.push((times, 0)),
    }
    dims
}

/// Whether no position reads what another writes.
pub(super) fn is_clear(access: &Access, store: &Store) -> bool {
    !access.region.overlaps(&store.region)
        || (!store.is_per_row
            && access.region == store.region
            && is_contiguous(&access.dims)
            && access.element.size_bytes() == store.element.size_bytes())
}

/// The steps that a step reads.
pub(super) fn inputs(step: &Step) -> impl Iterator<Item = usize> {
    let (count, all) = match *step {
        Step::Load(_) | Step::Constant(..) => (0, [0; 3]),
        Step::Unary(_, value)
        | Step::MultiplyAdd { value, .. }
        | Step::Convert(_, value)
        | Step::Power(value, _)
        | Step::Elu(value, _)
        | Step::Reduce(_, value) => (1, [value, 0, 0]),
        Step::Binary(_, [left, right]) | Step::Compare(_, [left, right]) => (2, [left, right, 0]),
        Step::Select(all) => (3, all),
    };
    all.into_iter().take(count)
}

/// The step with the steps that it reads under other numbers.
pub(super) fn renumbered(step: &Step, number: impl Fn(usize) -> usize) -> Step {
    match *step {
        Step::Load(_) | Step::Constant(..) => step.clone(),
        Step::Unary(op, value) => Step::Unary(op, number(value)),
        Step::Binary(op, of) => Step::Binary(op, of.map(number)),
        Step::MultiplyAdd { value, factor, term } => Step::MultiplyAdd { value: number(value), factor, term },
        Step::Compare(comparison, of) => Step::Compare(comparison, of.map(number)),
        Step::Select(of) => Step::Select(of.map(number)),
        Step::Convert(element, value) => Step::Convert(element, number(value)),
        Step::Power(value, exponent) => Step::Power(number(value), exponent),
        Step::Elu(value, alpha) => Step::Elu(number(value), alpha),
        Step::Reduce(reduction, value) => Step::Reduce(reduction, number(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_merge_where_the_outer_continues_the_inner() {
        type Case = (&'static [usize], Option<&'static [usize]>, &'static [(usize, usize)]);
        let cases: [Case; 8] = [
            (&[], None, &[]),
            (&[1, 1], None, &[]),
            (&[2, 3, 4], None, &[(24, 1)]),
            (&[2, 3, 4], Some(&[12, 4, 1]), &[(24, 1)]),
            (&[2, 3, 4], Some(&[0, 4, 1]), &[(2, 0), (12, 1)]),
            (&[2, 3, 4], Some(&[0, 0, 0]), &[(24, 0)]),
            (&[2, 1, 4], Some(&[1, 77, 2]), &[(2, 1), (4, 2)]),
            (&[2, 3, 1], Some(&[3, 1, 0]), &[(6, 1)]),
        ];
        for (shape, strides, expected) in cases {
            let dims = merged(shape, strides);
            assert_eq!(dims, expected, "{shape:?} {strides:?}");
            let elements: usize = shape.iter().product();
            let last = (0..elements).map(|position| index(&dims, position)).max().unwrap_or(0);
            assert_eq!(extent(&dims), last + 1);
        }
    }

    /// Sizes in an order, as dimensions of a tensor that lies in the order of their numbers.
    fn permuted(sizes: &[usize], order: &[usize]) -> Vec<(usize, usize)> {
        let stride = |dim: usize| sizes[dim + 1..].iter().product::<usize>();
        let (shape, strides): (Vec<_>, Vec<_>) = order.iter().map(|&dim| (sizes[dim], stride(dim))).unzip();
        merged(&shape, Some(&strides))
    }

    #[test]
    fn a_permutation_reads_every_element_once() {
        for (dims, elements, expected) in [
            (&[(12, 1)][..], 12, true),
            (&[(3, 1), (4, 3)], 12, true),
            (&[(2, 6), (3, 1), (2, 3)], 12, true),
            (&[], 1, true),
            (&[(3, 1), (4, 3)], 24, false),
            (&[(3, 2), (4, 6)], 12, false),
            (&[(3, 0), (4, 1)], 12, false),
            (&[(3, 1), (4, 4)], 12, false),
        ] {
            assert_eq!(is_permutation(dims, elements), expected, "{dims:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn operands_in_another_order_are_the_same_elements(
            sizes in proptest::collection::vec(1..5_usize, 4),
            order in proptest::sample::select(vec![[0, 1, 2, 3], [0, 2, 1, 3], [3, 1, 0, 2], [1, 0, 3, 2], [3, 2, 1, 0]]),
            operand in proptest::collection::vec(0..5_usize, 4),
            is_coarse in proptest::bool::ANY,
        ) {
            // Of the operand some dimensions are one, or its own are others.
            let shape = if is_coarse { vec![sizes[0] * sizes[1], sizes[2] * sizes[3]] } else { sizes.clone() };
            let dims = merged(&shape, Some(&operand[..shape.len()]));
            let order = permuted(&sizes, &order);
            let elements = sizes.iter().product();
            proptest::prop_assert!(is_permutation(&order, elements));
            let found = reordered(&dims, &order);
            proptest::prop_assert!(found.is_some() || is_coarse, "{:?} {:?}", dims, order);
            for position in (0..elements).filter(|_| found.is_some()) {
                let expected = super::index(&dims, super::index(&order, position));
                proptest::prop_assert_eq!(super::index(found.as_deref().unwrap(), position), expected);
            }
        }

        /// Of an order that is cut otherwise than the operand: either the same elements, or none.
        #[test]
        fn orders_that_do_not_fit_give_none(sizes in proptest::collection::vec(1..5_usize, 3), stride in 0..4_usize, side in 1..13_usize) {
            let elements: usize = sizes.iter().product();
            let order = permuted(&sizes, &[2, 0, 1]);
            let dims = match elements.checked_div(side).filter(|outer| outer * side == elements) {
                Some(outer) => merged(&[outer, side], Some(&[stride, 7])),
                None => return Ok(()),
            };
            if let Some(found) = reordered(&dims, &order) {
                for position in 0..elements {
                    let expected = super::index(&dims, super::index(&order, position));
                    proptest::prop_assert_eq!(super::index(&found, position), expected);
                }
            }
        }
    }
}

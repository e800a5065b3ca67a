//! What was stored for a later kernel is computed again there, from what that takes, where less is read and stored so.

use super::source::Reader;
use crate::compile::fused::{Access, Body, Store, inputs, is_contiguous, renumbered};
use crate::compile::pointwise::Step;

/// Most steps that are done again for one result.
const MAX_STEPS: usize = 32;

/// A reader that computes an operand itself, which another kernel stores for it alone, from operands of that kernel, from its other
/// results that this one reads too, and from those of which there is one per row, read here or not. What it reads more may be a quarter
/// longer than the operand, which was written as well as read. Nothing that rows are reduced to is computed again.
pub(super) fn recomputed(reader: &Reader<'_>, access: &Access) -> Option<Body> {
    let body = &reader.body;
    if !is_contiguous(&access.dims) || body.elements == 1 {
        return None;
    }
    let (source, first) = reader.source(access)?;
    let store = *first.outputs.iter().find(|store| store.region == access.region)?;
    let mut again = Again {
        source: (source, &first),
        reader,
        steps: Vec::new(),
        operands: Vec::new(),
        numbers: vec![None; first.steps.len()],
    };
    let step = again.step(store.step, true)?;
    let Again { steps, operands, .. } = again;
    let is_new = |read: &&Access| !body.operands.contains(read);
    let added: usize = operands.iter().filter(is_new).map(|read| read.region.len()).sum();
    if steps.len() > MAX_STEPS || 4 * added > 5 * access.region.len() {
        return None;
    }
    let again = Body { elements: body.elements, columns: 1, operands, outputs: vec![Store { step, ..store }], steps };
    reader.with(&again, access)
}

/// Steps of a kernel that are done again in another one.
struct Again<'a> {
    source: (usize, &'a Body),
    reader: &'a Reader<'a>,
    steps: Vec<Step>,
    operands: Vec<Access>,
    /// By step of the source, once it is there.
    numbers: Vec<Option<usize>>,
}

impl Again<'_> {
    /// The number of a step of the source among those done again; none where it cannot be.
    fn step(&mut self, step: usize, is_last: bool) -> Option<usize> {
        if let Some(number) = self.numbers[step] {
            return Some(number);
        }
        let (node, source) = self.source;
        let is_read = |store: &Store| self.reader.body.operands.iter().any(|access| access.region == store.region);
        let is_there = |store: &&Store| store.step == step && (store.is_per_row || is_read(store));
        let again = match (source.outputs.iter().find(is_there).filter(|_| !is_last), &source.steps[step]) {
            (Some(&Store { region, element, is_per_row, .. }), _) => {
                let dims = if is_per_row { source.dims_of_rows() } else { vec![(source.elements, 1)] };
                self.load(Access { region, element, dims }, node + 1)?
            }
            // The kernel itself may have written over it, too.
            (None, &Step::Load(operand)) => self.load(source.operands[operand].clone(), node)?,
            (None, Step::Reduce(..)) => return None,
            (None, of) => {
                for input in inputs(of) {
                    self.step(input, false)?;
                }
                renumbered(of, |input| self.numbers[input].expect("what a step reads stands before it"))
            }
        };
        self.steps.push(again);
        self.numbers[step] = Some(self.steps.len() - 1);
        self.numbers[step]
    }

    /// Reads what is there from a node on, if nobody writes over it.
    fn load(&mut self, access: Access, from: usize) -> Option<Step> {
        let is_there = self.reader.is_still_there(&access.region, from);
        self.operands.push(access);
        is_there.then(|| Step::Load(self.operands.len() - 1))
    }
}

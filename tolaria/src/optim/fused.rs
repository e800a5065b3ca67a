//! The update of one parameter from rows that are summed on the way: one pass over rows, parameter and moments.

use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

use candle_core::{CpuStorage, InplaceOp1, Layout, Tensor, Var};

use super::rules::Element;
use crate::cpu::{self, Divide};

/// Elements per block: its sum, the parameter and the moments stay in the first-level cache.
const BLOCK: usize = 1024;
/// Elements that a thread takes at once; a multiple of a block.
const ELEMENTS_PER_PIECE: usize = 16 * BLOCK;

/// The gradient of one parameter: `(c_0 g_0 + c_1 g_1) + …`, times `factor`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a> {
    /// (P,) each.
    pub(super) rows: &'a [&'a [f32]],
    /// One per row.
    pub(super) coefficients: &'a [f32],
    /// No number where the parameter is to stay as it is.
    pub(super) factor: f32,
    /// Where the parameter starts in the rows.
    pub(super) offset: usize,
}

/// One parameter with its moments, (moments, elements), and its gradient.
#[derive(Debug, Clone, Copy)]
pub(super) struct Update<'a> {
    pub(super) element: Element,
    pub(super) parameter: &'a Var,
    pub(super) moments: Option<&'a Tensor>,
    pub(super) source: Source<'a>,
}

/// Updates every parameter in place, all of them at once where that is worth threads.
pub(super) fn update(updates: &[Update<'_>]) -> candle_core::Result<()> {
    if !cpu::worth_threads(updates.iter().map(Update::num_bytes).sum()) {
        return updates.iter().try_for_each(Update::run);
    }
    let failed = Mutex::new(None);
    cpu::for_each(Updates(updates), 1, &|Updates(updates)| {
        if let Err(error) = updates.iter().try_for_each(Update::run) {
            *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

struct Updates<'a>(&'a [Update<'a>]);

impl Divide for Updates<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn split_at(self, index: usize) -> (Self, Self) {
        let (left, right) = self.0.split_at(index);
        (Self(left), Self(right))
    }
}

impl Update<'_> {
    fn run(&self) -> candle_core::Result<()> {
        let Self { element, parameter, moments, source } = *self;
        if source.factor.is_nan() {
            return Ok(());
        }
        parameter.inplace_op1(&OnParameter { element, moments, source })
    }

    /// Read and written: every row once, parameter and moments twice.
    fn num_bytes(&self) -> usize {
        let moments = self.moments.map_or(0, Tensor::elem_count);
        let len = self.parameter.elem_count();
        (self.source.rows.len() * len + 2 * (len + moments)) * size_of::<f32>()
    }
}

/// Holds the parameter and asks for the moments.
struct OnParameter<'a> {
    element: Element,
    moments: Option<&'a Tensor>,
    source: Source<'a>,
}

impl InplaceOp1 for OnParameter<'_> {
    fn name(&self) -> &'static str {
        "update-parameter"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let parameter = cpu::slice_mut(storage, layout)?;
        match self.moments {
            None => {
                run(self.element, self.source, Piece { parameter, moments: [&mut [], &mut []], start: 0 });
                Ok(())
            }
            // Moments are a storage of their own, so that both can be held.
            Some(moments) => {
                let parameter = RefCell::new(parameter);
                moments.inplace_op1(&OnMoments { element: self.element, source: self.source, parameter })
            }
        }
    }
}

struct OnMoments<'a> {
    element: Element,
    source: Source<'a>,
    parameter: RefCell<&'a mut [f32]>,
}

impl InplaceOp1 for OnMoments<'_> {
    fn name(&self) -> &'static str {
        "update-moments"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let moments = cpu::slice_mut(storage, layout)?;
        let mut parameter = self.parameter.borrow_mut();
        let (first, second) = moments.split_at_mut(parameter.len());
        run(self.element, self.source, Piece { parameter: &mut parameter, moments: [first, second], start: 0 });
        Ok(())
    }
}

fn run(element: Element, source: Source<'_>, piece: Piece<'_>) {
    let written = piece.parameter.len() + piece.moments.iter().map(|moment| moment.len()).sum::<usize>();
    let num_bytes = (source.rows.len() * piece.parameter.len() + 2 * written) * size_of::<f32>();
    if cpu::worth_threads(num_bytes) {
        cpu::for_each(piece, ELEMENTS_PER_PIECE, &|piece| piece.run(element, source));
    } else {
        piece.run(element, source);
    }
}

/// Neighboring elements of a parameter.
struct Piece<'a> {
    parameter: &'a mut [f32],
    /// As long as the parameter, or empty where the element keeps none.
    moments: [&'a mut [f32]; 2],
    /// Index of the first element in the parameter.
    start: usize,
}

impl Divide for Piece<'_> {
    fn len(&self) -> usize {
        self.parameter.len()
    }

    fn split_at(self, index: usize) -> (Self, Self) {
        let (left, right) = self.parameter.split_at_mut(index);
        let [(left_first, right_first), (left_second, right_second)] =
            self.moments.map(|moment| moment.split_at_mut(index.min(moment.len())));
        (
            Self { parameter: left, moments: [left_first, left_second], start: self.start },
            Self { parameter: right, moments: [right_first, right_second], start: self.start + index },
        )
    }
}

impl Piece<'_> {
    fn run(self, element: Element, source: Source<'_>) {
        cpu::vectorized(
            #[inline(always)]
            || self.run_vectorized(element, source),
        );
    }

    #[inline(always)]
    fn run_vectorized(self, element: Element, source: Source<'_>) {
        let Self { parameter, moments: [first, second], start } = self;
        let (mut first, mut second) = (first.chunks_mut(BLOCK), second.chunks_mut(BLOCK));
        let mut sum = [0.0; BLOCK];
        let mut at = source.offset + start;
        for parameter in parameter.chunks_mut(BLOCK) {
            let gradient = source.sum(at, &mut sum[..parameter.len()]);
            at += parameter.len();
            let mut state = [first.next().unwrap_or_default(), second.next().unwrap_or_default()];
            element.update(parameter, &mut state, gradient);
        }
    }
}

impl<'a> Source<'a> {
    /// The gradient of the elements from `start`, in `buffer` unless it is there already.
    #[inline(always)]
    fn sum<'b>(&self, start: usize, buffer: &'b mut [f32]) -> &'b [f32]
    where
        'a: 'b,
    {
        let range = start..start + buffer.len();
        if self.rows.len() == 1 && cpu::is_one(self.coefficients[0]) && cpu::is_one(self.factor) {
            return &self.rows[0][range];
        }
        cpu::weigh_into(buffer, self.rows, range, self.coefficients);
        cpu::scale(buffer, self.factor);
        buffer
    }
}

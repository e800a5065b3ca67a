//! The update of one parameter from rows that are summed on the way: one pass over rows, parameter and moments.

use std::slice::ChunksMut;

use candle_core::{Tensor, Var};
use half::bf16;

use super::halves::{halves, whole};
use super::rounding::Draw;
use super::rules::Element;
use crate::cpu::{self, Divide, Written};

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

/// What a parameter of `bf16` is updated with.
#[derive(Debug, Clone, Copy)]
pub(super) enum Beside<'a> {
    /// Its lower halves, (elements) of `i16`.
    Rest(&'a Tensor),
    /// What it is rounded by at random.
    Draw(Draw),
}

/// One parameter of `f32`, or of `bf16` with something beside it, with its moments, (moments, elements), and its gradient. Moments
/// are of `bf16` where there is a draw.
#[derive(Debug, Clone, Copy)]
pub(super) struct Update<'a> {
    pub(super) element: Element,
    pub(super) parameter: &'a Var,
    pub(super) beside: Option<Beside<'a>>,
    pub(super) moments: Option<&'a Tensor>,
    pub(super) source: Source<'a>,
}

/// Updates every parameter in place, those that are worth threads on all of them.
pub(super) fn update(updates: &[Update<'_>]) -> candle_core::Result<()> {
    updates.iter().try_for_each(Update::run)
}

impl Update<'_> {
    fn run(&self) -> candle_core::Result<()> {
        let Self { element, parameter, beside, moments, source } = *self;
        if source.factor.is_nan() {
            return Ok(());
        }
        let with_numbers = |parameter: Numbers<'_>| {
            with_moments(moments, parameter.len(), |moments| {
                run(element, source, Piece { parameter, moments, start: 0 });
            })
        };
        match beside {
            None => cpu::with_slice_mut(parameter, |numbers| with_numbers(Numbers::Whole(numbers)))?,
            Some(Beside::Rest(rest)) => cpu::with_slice_mut(parameter, |high| {
                cpu::with_slice_mut(rest, |low| with_numbers(Numbers::Halves(high, low)))
            })??,
            Some(Beside::Draw(draw)) => cpu::with_slice_mut(parameter, |numbers: &mut [bf16]| {
                with_moments(moments, numbers.len(), |moments| {
                    let parameter = Numbers::Drawn { draw, numbers, moments };
                    run(element, source, Piece { parameter, moments: [&mut [], &mut []], start: 0 });
                })
            })?,
        }
    }
}

/// Both moments of so many numbers, of which the latter or both may be empty.
fn with_moments<T: Written>(
    moments: Option<&Tensor>,
    len: usize,
    f: impl FnOnce([&mut [T]; 2]),
) -> candle_core::Result<()> {
    match moments {
        None => {
            f([&mut [], &mut []]);
            Ok(())
        }
        // Moments are a storage of their own, so that a parameter can be held too.
        Some(moments) => cpu::with_slice_mut(moments, |moments| f(moments.split_at_mut(len).into())),
    }
}

/// The numbers of a parameter.
enum Numbers<'a> {
    Whole(&'a mut [f32]),
    /// As `halves.rs`, each as long as the other.
    Halves(&'a mut [bf16], &'a mut [i16]),
    Drawn {
        draw: Draw,
        numbers: &'a mut [bf16],
        moments: [&'a mut [bf16]; 2],
    },
}

impl Numbers<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Whole(numbers) => numbers.len(),
            Self::Halves(numbers, _) | Self::Drawn { numbers, .. } => numbers.len(),
        }
    }

    fn split_at(self, index: usize) -> (Self, Self) {
        match self {
            Self::Whole(numbers) => {
                let (left, right) = numbers.split_at_mut(index);
                (Self::Whole(left), Self::Whole(right))
            }
            Self::Halves(high, low) => {
                let ((left, right), (left_low, right_low)) = (high.split_at_mut(index), low.split_at_mut(index));
                (Self::Halves(left, left_low), Self::Halves(right, right_low))
            }
            Self::Drawn { draw, numbers, moments } => {
                let ([left, right], [lefts, rights]) = (numbers.split_at_mut(index).into(), split(moments, index));
                let of = |numbers, moments| Self::Drawn { draw, numbers, moments };
                (of(left, lefts), of(right, rights))
            }
        }
    }
}

/// Moments of the numbers before `index`, and of those from there on.
fn split<T>(moments: [&mut [T]; 2], index: usize) -> [[&mut [T]; 2]; 2] {
    let [(left_first, right_first), (left_second, right_second)] =
        moments.map(|moment| moment.split_at_mut(index.min(moment.len())));
    [[left_first, left_second], [right_first, right_second]]
}

fn run(element: Element, source: Source<'_>, piece: Piece<'_>) {
    let written = (1 + element.num_states()) * piece.parameter.len();
    let num_bytes = (source.rows.len() * piece.parameter.len() + 2 * written) * size_of::<f32>();
    if cpu::worth_threads(num_bytes) {
        cpu::for_each(piece, ELEMENTS_PER_PIECE, &|piece| piece.run(element, source));
    } else {
        piece.run(element, source);
    }
}

/// Neighboring elements of a parameter.
struct Piece<'a> {
    parameter: Numbers<'a>,
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
        let (left, right) = self.parameter.split_at(index);
        let [lefts, rights] = split(self.moments, index);
        (
            Self { parameter: left, moments: lefts, start: self.start },
            Self { parameter: right, moments: rights, start: self.start + index },
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
        let (first, second) = (first.chunks_mut(BLOCK), second.chunks_mut(BLOCK));
        let mut blocks = Blocks { element, source, at: source.offset + start, first, second };
        match parameter {
            Numbers::Whole(numbers) => {
                for block in numbers.chunks_mut(BLOCK) {
                    blocks.update(block);
                }
            }
            Numbers::Halves(high, low) => {
                let mut numbers = [0.0; BLOCK];
                for (high, low) in high.chunks_mut(BLOCK).zip(low.chunks_mut(BLOCK)) {
                    let block = &mut numbers[..high.len()];
                    for ((number, high), low) in block.iter_mut().zip(&*high).zip(&*low) {
                        *number = whole(*high, *low);
                    }
                    blocks.update(block);
                    for ((number, high), low) in block.iter().zip(high).zip(low) {
                        (*high, *low) = halves(*number);
                    }
                }
            }
            Numbers::Drawn { draw, numbers, moments } => {
                let mut whole = [[0.0; BLOCK]; 3];
                let [first, second] = moments.map(|moment| moment.chunks_mut(BLOCK));
                let mut moments = [first, second];
                for (index, numbers) in numbers.chunks_mut(BLOCK).enumerate() {
                    let [first, second] = moments.each_mut().map(|moment| moment.next().unwrap_or_default());
                    let mut halves = [numbers, first, second];
                    for (whole, halves) in whole.iter_mut().zip(&halves) {
                        whole.iter_mut().zip(&**halves).for_each(|(number, half)| *number = half.to_f32());
                    }
                    let [block, first, second] = &mut whole;
                    let len = halves[0].len();
                    blocks.update_with(&mut block[..len], [&mut first[..len], &mut second[..len]]);
                    for ((stream, whole), halves) in (0..).zip(&whole).zip(&mut halves) {
                        draw.round(stream, start + index * BLOCK, whole, halves);
                    }
                }
            }
        }
    }
}

/// What blocks of a piece are updated with, one after another.
struct Blocks<'a> {
    element: Element,
    source: Source<'a>,
    /// Where the next block starts in the rows.
    at: usize,
    first: ChunksMut<'a, f32>,
    second: ChunksMut<'a, f32>,
}

impl Blocks<'_> {
    #[inline(always)]
    fn update(&mut self, block: &mut [f32]) {
        let state = [self.first.next().unwrap_or_default(), self.second.next().unwrap_or_default()];
        self.update_with(block, state);
    }

    #[inline(always)]
    fn update_with(&mut self, block: &mut [f32], mut state: [&mut [f32]; 2]) {
        let mut sum = [0.0; BLOCK];
        let gradient = self.source.sum(self.at, &mut sum[..block.len()]);
        self.at += block.len();
        self.element.update(block, &mut state, gradient);
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

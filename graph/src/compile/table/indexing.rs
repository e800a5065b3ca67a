//! Kernels that read or write where indices say.

use super::call::{Call, product};
use super::decoded::{Decoded, Use};
use super::layout::Info;
use crate::compile::lift::Memory;

fn of(uses: Vec<Use>) -> Option<Decoded> {
    Some(Decoded { uses, pointwise: None, reduced: None })
}

/// The product of counts among the arguments.
fn counts<const N: usize>(call: &Call<'_>, arguments: [usize; N]) -> Option<usize> {
    let counts: Option<Vec<usize>> = arguments.into_iter().map(|argument| call.count(argument)).collect();
    product(&counts?)
}

/// Dimensions and strides are those of the indices; they apply to the input where they are not contiguous.
pub(super) fn index_select(call: &Call<'_>, memory: &mut dyn Memory) -> Option<Decoded> {
    let (numel, num_ids) = (call.count(0)?, call.count(8)?);
    // Dimensions of indices: as many positions as indices, not as elements.
    call.address(2)?;
    let info = Info::read(call, memory, [8, 1, 2], 1)?;
    let layout = info.layouts.first()?;
    if numel != counts(call, [6, 8, 9])? {
        return None;
    }
    let source = if layout.is_contiguous() { counts(call, [6, 7, 9])? } else { layout.extent()? };
    let read = [call.reading(3, num_ids)?, call.reading(4, source)?, call.writing(5, numel)?];
    of(info.reading.into_iter().chain(read).collect())
}

pub(super) fn gather(call: &Call<'_>) -> Option<Decoded> {
    let numel = call.count(0)?;
    if numel > counts(call, [4, 6, 7])? {
        return None;
    }
    let source = counts(call, [4, 5, 7])?;
    of(vec![call.reading(1, numel)?, call.reading(2, source)?, call.writing(3, numel)?])
}

/// Each thread adds to elements of its own, one after the other: the sum does not depend on chance.
pub(super) fn index_add(call: &Call<'_>) -> Option<Decoded> {
    let (source, target) = (counts(call, [4, 1, 7])?, counts(call, [4, 6, 7])?);
    let sum = call.writing_some(3, target)?.and_reading(call.bytes_of(3, target)?);
    of(vec![call.reading(0, call.count(1)?)?, call.reading(2, source)?, sum])
}

pub(super) fn scatter(call: &Call<'_>, is_sum: bool) -> Option<Decoded> {
    let (source, target) = (counts(call, [3, 4, 6])?, counts(call, [3, 5, 6])?);
    let mut written = call.writing_some(2, target)?;
    if is_sum {
        written = written.and_reading(call.bytes_of(2, target)?);
    }
    of(vec![call.reading(0, source)?, call.reading(1, source)?, written])
}

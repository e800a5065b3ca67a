//! The passes as compositions of candle operations: on any device and for any float type, and slower.

use std::ops::Range;

use candle_core::{CpuStorage, DType, InplaceOp2, Layout, Tensor};

use super::combination::Factors;
use super::solve::Clipping;
use super::sums::{Field, SumsLayout};
use crate::error::Error;
use crate::grad::{Geometry, Part};
use crate::host_read::{self, HostReads};
use crate::kernels::{DeviceKernels, FoldKind};

/// Elements per block: bounds the memory of the copy in `f64`.
const BLOCK: usize = 1 << 22;
/// What the copy to the host is counted as.
const NAME: &str = "gradient inner products";

/// Inner products of the rows, (parts, K, K).
///
/// # Sync
/// one device-to-host copy
pub(super) fn part_grams(rows: &[&Tensor], geometry: &Geometry, reads: &mut HostReads) -> Result<Vec<f64>, Error> {
    let of_part = |part: &Part| {
        let mut sum: Option<Tensor> = None;
        for block in blocks(&part.range) {
            let parts = rows.iter().map(|row| row.narrow(0, block.start, block.len()));
            let matrix = Tensor::stack(&parts.collect::<candle_core::Result<Vec<_>>>()?, 0)?.to_dtype(DType::F64)?;
            let products = matrix.matmul(&matrix.t()?)?;
            sum = Some(match sum {
                Some(sum) => (sum + products)?,
                None => products,
            });
        }
        sum.map_or_else(|| Tensor::zeros((rows.len(), rows.len()), DType::F64, rows[0].device()), Ok)
    };
    let grams = geometry.parts().iter().map(of_part).collect::<candle_core::Result<Vec<_>>>()?;
    if grams.is_empty() {
        return Ok(Vec::new());
    }
    host_read::read_vec_f64(&Tensor::stack(&grams, 0)?, NAME, reads)
}

/// Replaces the first row by `Σ_k f_k rows[k]`, summed from the first row to the last. A row alone stays as it is.
pub(super) fn average(rows: &[&Tensor], fractions: &[f64]) -> Result<(), Error> {
    if rows.len() == 1 || rows[0].elem_count() == 0 {
        return Ok(());
    }
    let sum = weighted_sum(rows, fractions.iter().copied(), &(0..rows[0].elem_count()))?;
    Ok(rows[0].slice_set(&sum, 0, 0)?)
}

fn weighted_sum(
    rows: &[&Tensor],
    coefficients: impl Iterator<Item = f64>,
    range: &Range<usize>,
) -> candle_core::Result<Tensor> {
    let mut terms =
        rows.iter().zip(coefficients).map(|(row, coefficient)| row.narrow(0, range.start, range.len())? * coefficient);
    let first = terms.next().expect("a window has a row")?;
    terms.try_fold(first, |sum, term| sum + term?)
}

/// Squared norm of each part, of `f64`.
pub(super) fn part_squares(gradient: &Tensor, geometry: &Geometry) -> Result<Vec<Tensor>, Error> {
    let square = |part: &Part| {
        let elements = gradient.narrow(0, part.range.start, part.range.len())?;
        elements.to_dtype(DType::F64)?.sqr()?.sum_all()
    };
    Ok(geometry.parts().iter().map(square).collect::<candle_core::Result<_>>()?)
}

/// What [`clip_factors`](super::solve::clip_factors) does, with one factor per part of the type and on the device of
/// `gradient`.
pub(super) fn clip_factors(
    squares: &[Tensor],
    geometry: &Geometry,
    clipping: Clipping,
    sums: Option<&Tensor>,
    gradient: &Tensor,
) -> Result<Factors, Error> {
    let (parts, slots) = (geometry.parts(), geometry.owners().len());
    let zero = Tensor::zeros((), DType::F64, gradient.device())?;
    let sum = |belongs: &dyn Fn(&Part) -> bool| {
        let own = parts.iter().zip(squares).filter(|(part, _)| belongs(part));
        own.map(|(_, square)| square).try_fold(zero.clone(), |sum, square| sum + square)
    };
    let domains: Vec<Tensor> =
        (0..=slots).map(|domain| sum(&|part| part.domain() == domain)).collect::<candle_core::Result<_>>()?;
    // 1 where all is finite, else 0.
    let mut counts: Vec<Tensor> = domains.iter().map(is_finite).collect::<candle_core::Result<_>>()?;
    if let Some(sums) = sums {
        let layout = SumsLayout::new(slots, parts.len());
        let place = |place: usize| sums.narrow(0, place, 1);
        counts[0] = (&counts[0] * is_finite(&place(SumsLayout::LOSS)?.reshape(())?)?)?;
        let before = sums.narrow(0, layout.len(), layout.len())?;
        let counted = counts[0].broadcast_as(layout.len())?.gt(0.0)?;
        sums.slice_set(&counted.where_cond(&sums.narrow(0, 0, layout.len())?, &before)?, 0, 0)?;
        let where_counted = |value: &Tensor, counts: &Tensor| counts.gt(0.0)?.where_cond(value, &zero)?.reshape(1);
        let skipped = |counts: &Tensor| counts.affine(-1.0, 1.0)?.reshape(1);
        add(&place(SumsLayout::MAIN_SQUARE)?, &where_counted(&domains[0], &counts[0])?)?;
        add_scaled(&place(SumsLayout::SKIPPED_SAMPLES)?, &skipped(&counts[0])?, clipping.num_samples as f64)?;
        for slot in 0..slots {
            let in_main = slot == 0 || parts.iter().any(|part| part.slot == slot && !part.is_apart());
            let own = if in_main { (&counts[0] * &counts[1 + slot])? } else { counts[1 + slot].clone() };
            let square = where_counted(&sum(&|part| part.slot == slot)?, &own)?;
            add(&place(layout.of_slot(Field::ParameterSquare, slot))?, &square)?;
            fold(&place(layout.of_slot(Field::Healthy, slot))?, &square, FoldKind::CountHealthy)?;
            // What the host has apart is frozen: no step is left out for it.
            add(&place(layout.of_slot(Field::Skipped, slot))?, &skipped(if slot == 0 { &counts[0] } else { &own })?)?;
        }
        sums.slice_set(&sums.narrow(0, 0, layout.len())?.copy()?, 0, layout.len())?;
    }
    let factor = |part: &Part| {
        let (domain, counts) = (&domains[part.domain()], &counts[part.domain()]);
        let scale = (domain.sqrt()?.recip()? * clipping.max_norm.unwrap_or(f64::INFINITY))?;
        // A comparison, so that a norm of 0 scales nothing.
        let scale = scale.lt(1.0)?.where_cond(&scale, &scale.ones_like()?)?;
        // Nothing over nothing is no number.
        (scale * counts)? / counts
    };
    let factors = parts.iter().map(factor).collect::<candle_core::Result<Vec<_>>>()?;
    if factors.is_empty() {
        return Ok(Factors::Ones);
    }
    Ok(Factors::Device(Tensor::stack(&factors, 0)?.to_dtype(gradient.dtype())?))
}

/// 1 for a number that is finite, else 0.
fn is_finite(number: &Tensor) -> candle_core::Result<Tensor> {
    (number * 0.0)?.eq(0.0)?.to_dtype(DType::F64)
}

fn blocks(range: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = range.end;
    range.clone().step_by(BLOCK).map(move |start| start..end.min(start + BLOCK))
}

/// `sums += addend`, in place, elementwise; `sums` is `f64`.
pub(super) fn add(sums: &Tensor, addend: &Tensor) -> Result<(), Error> {
    add_scaled(sums, addend, 1.0)
}

/// `sums += scale * addend`, in place, elementwise; `sums` is `f64`.
pub(super) fn add_scaled(sums: &Tensor, addend: &Tensor, scale: f64) -> Result<(), Error> {
    fold(sums, addend, FoldKind::AddScaled(scale))
}

fn fold(sums: &Tensor, addend: &Tensor, kind: FoldKind) -> Result<(), Error> {
    match DeviceKernels::for_device(sums.device()) {
        Some(kernels) => kernels.fold(sums, addend, kind)?,
        None => sums.inplace_op2(&addend.to_dtype(DType::F64)?, &Fold(kind))?,
    }
    Ok(())
}

struct Fold(FoldKind);

impl InplaceOp2 for Fold {
    fn name(&self) -> &'static str {
        "epoch-sums-fold"
    }

    fn cpu_fwd(
        &self,
        sums: &mut CpuStorage,
        sums_layout: &Layout,
        addend: &CpuStorage,
        addend_layout: &Layout,
    ) -> candle_core::Result<()> {
        let (Some((s0, s1)), Some((a0, a1))) = (sums_layout.contiguous_offsets(), addend_layout.contiguous_offsets())
        else {
            candle_core::bail!("epoch sums must be contiguous")
        };
        let (CpuStorage::F64(sums), CpuStorage::F64(addend)) = (sums, addend) else {
            candle_core::bail!("epoch sums must be f64")
        };
        for (sum, addend) in sums[s0..s1].iter_mut().zip(&addend[a0..a1]) {
            *sum += match self.0 {
                FoldKind::AddScaled(scale) => scale * addend,
                FoldKind::CountHealthy => f64::from(*addend > 0.0 && addend.is_finite()),
            };
        }
        Ok(())
    }
}

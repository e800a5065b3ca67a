//! The passes as compositions of candle operations: on any device and for any float type, and slower.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use candle_core::{CpuStorage, DType, InplaceOp2, Layout, Tensor};

use super::sums::{Field, SumsLayout};
use crate::error::Error;
use crate::grad::{Geometry, Part};
use crate::graph::kernels::{DeviceKernels, FoldKind};
use crate::host_read::{self, HostReads};

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

/// Adds the norms of `gradient` to `sums` and scales each domain in place to at most `max_norm`.
pub(super) fn measure_and_clip(
    gradient: &Tensor,
    geometry: &Geometry,
    max_norm: Option<f64>,
    sums: Option<&Tensor>,
) -> Result<(), Error> {
    let (parts, slots) = (geometry.parts(), geometry.owners().len());
    let zero = Tensor::zeros((), DType::F64, gradient.device())?;
    let elements = |part: &Part| gradient.narrow(0, part.range.start, part.range.len());
    let squares: Vec<Tensor> = parts
        .iter()
        .map(|part| elements(part)?.to_dtype(DType::F64)?.sqr()?.sum_all())
        .collect::<candle_core::Result<_>>()?;
    let sum = |belongs: &dyn Fn(&Part) -> bool| {
        let own = parts.iter().zip(&squares).filter(|(part, _)| belongs(part));
        own.map(|(_, square)| square).try_fold(zero.clone(), |sum, square| sum + square)
    };
    if let Some(sums) = sums {
        let layout = SumsLayout::new(slots, parts.len());
        add(&sums.narrow(0, SumsLayout::MAIN_SQUARE, 1)?, &sum(&|part| part.domain() == 0)?.reshape(1)?)?;
        let owners: Vec<Tensor> =
            (0..slots).map(|slot| sum(&|part| part.slot == slot)).collect::<candle_core::Result<_>>()?;
        let owners = Tensor::stack(&owners, 0)?;
        add(&sums.narrow(0, layout.field(Field::ParameterSquare), slots)?, &owners)?;
        fold(&sums.narrow(0, layout.field(Field::Healthy), slots)?, &owners, FoldKind::CountHealthy)?;
    }
    let Some(max_norm) = max_norm else { return Ok(()) };
    let mut scales: BTreeMap<usize, Tensor> = BTreeMap::new();
    for domain in parts.iter().map(Part::domain) {
        if let Entry::Vacant(place) = scales.entry(domain) {
            let scale = (sum(&|other| other.domain() == domain)?.sqrt()?.recip()? * max_norm)?;
            // A comparison, so that a norm that is no number scales nothing.
            place.insert(scale.lt(1.0)?.where_cond(&scale, &scale.ones_like()?)?.to_dtype(gradient.dtype())?);
        }
    }
    for part in parts {
        gradient.slice_set(&elements(part)?.broadcast_mul(&scales[&part.domain()])?, 0, part.range.start)?;
    }
    Ok(())
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

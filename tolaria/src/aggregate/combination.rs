//! A gradient that has not been formed: it is summed where it is used, so that it is never written and read again.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Tensor};

use super::passes::{self, Passes};
use crate::cpu;
use crate::error::Error;
use crate::grad::{Geometry, GradientLease};
use crate::kernels::Workspace;

/// `Σ_k c_k row_k`, each parameter's part scaled by a factor of its own.
///
/// Each element is `(c_0 g_0 + c_1 g_1) + …` from the first row to the last, then times the factor, in `f32` with every
/// operation rounded; a product with 1 is left out, which changes no bit.
#[derive(Debug)]
pub struct Combination {
    rows: Vec<GradientLease>,
    coefficients: Coefficients,
    factors: Factors,
    /// Where the kernels of a GPU find the parts.
    workspace: Option<Arc<Workspace>>,
}

/// Coefficients of the rows, (2, rows): those of parts that are not isolated, and those of parts that are.
#[derive(Debug, Clone)]
pub(crate) enum Coefficients {
    /// 1, of a row alone.
    One,
    /// Known to the host; rounded where rows are of `f32`.
    Host(Vec<f64>),
    /// `f32` on the device of the rows.
    Device(Tensor),
}

/// What each part is multiplied with, (parts,); no number where its parameters stay as they are.
#[derive(Debug, Clone)]
pub(crate) enum Factors {
    /// All are 1.
    Ones,
    /// Known to the host; rounded where rows are of `f32`.
    Host(Vec<f64>),
    /// On the device of the rows, of their type.
    Device(Tensor),
}

impl Combination {
    /// One row, as it is.
    #[must_use]
    pub fn plain(row: GradientLease) -> Self {
        Self { rows: vec![row], coefficients: Coefficients::One, factors: Factors::Ones, workspace: None }
    }

    /// One row, each part times its factor, of the parts in `workspace`.
    pub(super) fn formed(row: GradientLease, factors: Factors, workspace: Option<Arc<Workspace>>) -> Self {
        Self { factors, workspace, ..Self::plain(row) }
    }

    /// # Errors
    /// [`Error::LayoutMismatch`] without a row, when rows differ in size, type or device, or when the number of
    /// coefficients does not fit that of the rows.
    pub(crate) fn new(rows: Vec<GradientLease>, coefficients: Coefficients, factors: Factors) -> Result<Self, Error> {
        let Some(first) = rows.first().map(GradientLease::as_tensor) else {
            return Err(Error::mismatch("rows of a combination", "at least 1", 0));
        };
        if coefficients.len() != 2 * rows.len() {
            return Err(Error::mismatch("coefficients of a combination", 2 * rows.len(), coefficients.len()));
        }
        for row in rows.iter().map(GradientLease::as_tensor) {
            let fits = row.dims() == first.dims() && row.dtype() == first.dtype();
            if !fits || !row.device().same_device(first.device()) {
                let kind = |tensor: &Tensor| {
                    format!("{:?} {:?} on {:?}", tensor.dtype(), tensor.dims(), tensor.device().location())
                };
                return Err(Error::mismatch("rows of a combination", kind(first), kind(row)));
            }
        }
        Ok(Self { rows, coefficients, factors, workspace: None })
    }

    /// With what the kernels of a GPU left in `workspace`.
    pub(super) fn on_device(
        rows: Vec<GradientLease>,
        workspace: Arc<Workspace>,
        coefficients: Tensor,
    ) -> Result<Self, Error> {
        let factors = Factors::Device(workspace.factors().clone());
        Ok(Self::new(rows, Coefficients::Device(coefficients), factors)?.within(Some(workspace)))
    }

    /// With where the kernels of a GPU find the parts.
    pub(super) fn within(self, workspace: Option<Arc<Workspace>>) -> Self {
        Self { workspace, ..self }
    }

    /// What it consists of.
    pub(crate) fn terms(&self) -> Terms<'_> {
        let rows = self.rows.iter().map(GradientLease::as_tensor).collect();
        let workspace = self.workspace.as_deref();
        Terms { rows, coefficients: &self.coefficients, factors: &self.factors, workspace }
    }

    /// Forms the gradient, in the buffer of the first row.
    ///
    /// # Errors
    /// [`Error::LayoutMismatch`] when rows or factors do not fit `geometry`; when the device fails.
    /// # Sync
    /// none
    pub fn materialize(self, geometry: &Geometry) -> Result<GradientLease, Error> {
        let passes = Passes::of(self.rows[0].as_tensor());
        self.materialize_on(&passes, geometry)
    }

    /// [`Self::materialize`] by passes of the caller's choice.
    pub(super) fn materialize_on(self, passes: &Passes, geometry: &Geometry) -> Result<GradientLease, Error> {
        let terms = self.terms();
        terms.check(geometry.num_elements(), geometry.parts().len())?;
        if !terms.is_plain() {
            let first = terms.rows[0];
            match passes {
                Passes::Kernel => first.inplace_op1(&Form { terms: &terms, geometry })?,
                Passes::Device(kernels) if terms.workspace.is_some() => {
                    let (coefficients, factors) =
                        (terms.coefficients.device(first.device())?, terms.factors.device(first.device())?);
                    let workspace = terms.workspace.expect("the guard found one");
                    kernels.combine_rows(workspace, &terms.rows, &coefficients, factors.as_ref())?;
                }
                Passes::Device(_) | Passes::Composed => {
                    for (index, part) in geometry.parts().iter().enumerate() {
                        first.slice_set(&terms.part(index, &part.range, part.is_apart())?, 0, part.range.start)?;
                    }
                }
            }
        }
        Ok(self.rows.into_iter().next().expect("a combination has a row"))
    }
}

impl Coefficients {
    fn len(&self) -> usize {
        match self {
            Self::One => 2,
            Self::Host(values) => values.len(),
            Self::Device(values) => values.elem_count(),
        }
    }

    /// The values, of a combination on the CPU.
    pub(crate) fn host(&self) -> candle_core::Result<Cow<'_, [f32]>> {
        match self {
            Self::One => Ok(Cow::Borrowed(&[1.0; 2])),
            Self::Host(values) => Ok(Cow::Owned(rounded(values))),
            Self::Device(values) => Ok(Cow::Owned(cpu::with_slices(&[values], |slices| slices[0].to_vec())?)),
        }
    }

    /// The values on a device.
    pub(crate) fn device(&self, device: &Device) -> candle_core::Result<Tensor> {
        match self {
            Self::One => Tensor::ones(2, DType::F32, device),
            Self::Host(values) => Tensor::new(rounded(values), device),
            Self::Device(values) => Ok(values.clone()),
        }
    }
}

impl Factors {
    /// The values on a device; `None` when all are 1.
    pub(crate) fn device(&self, device: &Device) -> candle_core::Result<Option<Tensor>> {
        match self {
            Self::Ones => Ok(None),
            Self::Host(values) => Tensor::new(rounded(values), device).map(Some),
            Self::Device(values) => Ok(Some(values.clone())),
        }
    }

    /// The values, of a combination on the CPU; `None` when all are 1.
    pub(crate) fn host(&self) -> candle_core::Result<Option<Cow<'_, [f32]>>> {
        match self {
            Self::Ones => Ok(None),
            Self::Host(values) => Ok(Some(Cow::Owned(rounded(values)))),
            Self::Device(values) => Ok(Some(Cow::Owned(cpu::with_slices(&[values], |slices| slices[0].to_vec())?))),
        }
    }
}

/// What a combination consists of, or a gradient that was formed elsewhere.
#[derive(Debug)]
pub(crate) struct Terms<'a> {
    /// (P,), of one type and device; at least one.
    pub(crate) rows: Vec<&'a Tensor>,
    pub(crate) coefficients: &'a Coefficients,
    pub(crate) factors: &'a Factors,
    pub(crate) workspace: Option<&'a Workspace>,
}

impl Terms<'_> {
    /// Whether the first row is the sum, bit for bit.
    pub(crate) fn is_plain(&self) -> bool {
        let is_one = |factor: &f64| is_one(*factor);
        let scaled = match self.factors {
            Factors::Ones => false,
            Factors::Host(values) => !values.iter().all(is_one),
            Factors::Device(_) => true,
        };
        let weighted = match self.coefficients {
            Coefficients::One => false,
            Coefficients::Host(values) => !values.iter().all(is_one),
            Coefficients::Device(_) => true,
        };
        self.rows.len() == 1 && !scaled && !weighted
    }

    /// Confirms the number of elements and of parts.
    pub(crate) fn check(&self, num_elements: usize, num_parts: usize) -> Result<(), Error> {
        let dims = self.rows[0].dims();
        if *dims != [num_elements] {
            return Err(Error::mismatch("shape of the gradient", format!("[{num_elements}]"), format!("{dims:?}")));
        }
        let found = match self.factors {
            Factors::Ones => num_parts,
            Factors::Host(values) => values.len(),
            // Without a part there is a factor of nothing.
            Factors::Device(_) if num_parts == 0 => 0,
            Factors::Device(values) => values.elem_count(),
        };
        if found != num_parts {
            return Err(Error::mismatch("factors of a combination", num_parts, found));
        }
        Ok(())
    }

    /// One part of the sum, by candle operations: the part with this index, at `range`.
    ///
    /// # Shapes
    /// result: as long as `range`
    /// # Sync
    /// none
    pub(crate) fn part(&self, index: usize, range: &Range<usize>, is_apart: bool) -> Result<Tensor, Error> {
        let first_coefficient = usize::from(is_apart) * self.rows.len();
        let mut sum: Option<Tensor> = None;
        for (k, row) in self.rows.iter().enumerate() {
            let elements = row.narrow(0, range.start, range.len())?;
            let weighted = match self.coefficients {
                Coefficients::One => elements,
                Coefficients::Host(values) => times(elements, values[first_coefficient + k])?,
                Coefficients::Device(values) => times_element(&elements, values, first_coefficient + k)?,
            };
            sum = Some(match sum {
                Some(sum) => (sum + weighted)?,
                None => weighted,
            });
        }
        let sum = sum.expect("a combination has a row");
        match self.factors {
            Factors::Ones => Ok(sum),
            Factors::Host(values) => times(sum, values[index]),
            Factors::Device(values) => times_element(&sum, values, index),
        }
    }
}

fn times(tensor: Tensor, factor: f64) -> Result<Tensor, Error> {
    Ok(if is_one(factor) { tensor } else { (tensor * factor)? })
}

fn is_one(factor: f64) -> bool {
    factor.to_bits() == 1.0_f64.to_bits()
}

fn rounded(values: &[f64]) -> Vec<f32> {
    values.iter().copied().map(cpu::to_f32).collect()
}

fn times_element(tensor: &Tensor, factors: &Tensor, index: usize) -> Result<Tensor, Error> {
    let factor = factors.flatten_all()?.narrow(0, index, 1)?.to_dtype(tensor.dtype())?;
    Ok(tensor.broadcast_mul(&factor)?)
}

struct Form<'a> {
    terms: &'a Terms<'a>,
    geometry: &'a Geometry,
}

impl InplaceOp1 for Form<'_> {
    fn name(&self) -> &'static str {
        "form-gradient"
    }

    fn cpu_fwd(&self, first: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let first = cpu::slice_mut(first, layout)?;
        let (coefficients, factors) = (self.terms.coefficients.host()?, self.terms.factors.host()?);
        cpu::with_slices(&self.terms.rows[1..], |others| {
            passes::combine(first, others, self.geometry, &coefficients, factors.as_deref());
        })
    }
}

#[cfg(test)]
mod tests;

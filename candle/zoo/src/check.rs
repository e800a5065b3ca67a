//! What is asked of a model: every parameter that its loss depends on has a gradient, and gradients agree with differences.

use std::fmt;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Error, Result, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};

use crate::weights::{numbers, parameters, read, set};
use crate::{Built, Model};

/// How much is compared with differences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Three elements of up to this many parameters, spread over the model, and none after ten seconds but the first.
    Some(usize),
    /// Three elements of every parameter.
    All,
}

/// What was found.
#[derive(Debug, Clone)]
pub struct Found {
    /// Of the model.
    pub name: &'static str,
    /// What it was computed in: `f64` where the model allows it.
    pub dtype: DType,
    /// How many parameters have a gradient.
    pub with: usize,
    /// Parameters that the loss does not depend on, without a gradient.
    pub unused: Vec<String>,
    /// Parameters that the loss depends on, without a gradient.
    pub missing: Vec<String>,
    /// Elements compared with differences.
    pub compared: usize,
    /// What differs.
    pub different: Vec<String>,
}

impl Found {
    /// Whether all is as it should be, but for what is known of the model.
    #[must_use]
    pub fn is_right(&self, model: &Model) -> bool {
        let known = |name: &String| model.without.is_some_and(|(part, _)| name.contains(part));
        self.different.is_empty()
            && self.missing.iter().all(known)
            && model.without.is_none() == self.missing.is_empty()
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.with + self.missing.len();
        let part = format!("{} of {used}", self.with);
        write!(
            f,
            "{:<22} {:<4} {part:>12} {:>7} {:>9}",
            self.name,
            self.dtype.as_str(),
            self.unused.len(),
            self.compared
        )
    }
}

/// A model with its parameters, in one type of elements, on one device.
pub struct Trial {
    /// Its parameters, with values that follow from their names.
    pub map: VarMap,
    /// The model.
    pub built: Built,
    dtype: DType,
}

impl Trial {
    /// Makes the model, runs it once, so that all of its parameters are there, gives them values, and makes it again.
    ///
    /// # Errors
    /// When it cannot be made or run.
    pub fn new(model: Model, dtype: DType, device: &Device) -> Result<Self> {
        let map = VarMap::new();
        let build = || (model.build)(VarBuilder::from_varmap(&map, dtype, device));
        let mut first = build()?;
        first.train(&first.inputs.clone())?;
        set(&map)?;
        let built = build()?;
        Ok(Self { map, built, dtype })
    }

    /// What is trained: running statistics are no parameters, candle detaches them.
    #[must_use]
    pub fn trained(&self) -> Vec<(String, Var)> {
        let is_trained = |name: &str| !name.ends_with("running_mean") && !name.ends_with("running_var");
        parameters(&self.map).into_iter().filter(|(name, _)| is_trained(name)).collect()
    }

    /// The outputs of the model's own inputs.
    ///
    /// # Errors
    /// Those of the model.
    pub fn run(&mut self) -> Result<Tensor> {
        self.built.train(&self.built.inputs.clone())
    }

    /// A sum of the outputs with fixed weights.
    ///
    /// # Errors
    /// Those of the model.
    pub fn loss(&mut self) -> Result<Tensor> {
        let outputs = self.run()?;
        let mut draw = numbers("loss");
        let mix: Vec<f64> = (0..outputs.elem_count()).map(|_| draw()).collect();
        let mix = Tensor::from_vec(mix, outputs.dims(), outputs.device())?.to_dtype(outputs.dtype())?;
        (outputs * mix)?.sum_all()
    }

    fn value(&mut self) -> Result<f64> {
        self.loss()?.detach().to_dtype(DType::F64)?.to_scalar()
    }

    /// The outputs with an element of `var` moved by `offset`, which is put back.
    fn moved(&mut self, var: &Var, element: usize, offset: f64) -> Result<f64> {
        let start = var.as_detached_tensor().copy()?;
        let mut values = read(&start)?;
        values[element] += offset;
        var.set(&Tensor::from_vec(values, var.dims(), var.device())?.to_dtype(var.dtype())?)?;
        let value = self.value();
        var.set(&start)?;
        value
    }

    /// Whether the loss changes with `var`.
    fn depends_on(&mut self, var: &Var) -> Result<bool> {
        let before = self.value()?;
        let start = var.as_detached_tensor().copy()?;
        let mut draw = numbers("probe");
        let values: Vec<f64> = read(&start)?.into_iter().map(|value| value + 0.3 * draw()).collect();
        var.set(&Tensor::from_vec(values, var.dims(), var.device())?.to_dtype(var.dtype())?)?;
        let after = self.value();
        var.set(&start)?;
        Ok(after?.to_bits() != before.to_bits())
    }
}

/// A number that follows from the bits of all outputs in `f32`.
///
/// # Errors
/// When the model cannot be run.
pub fn bits(model: Model) -> Result<u64> {
    let outputs = Trial::new(model, DType::F32, &Device::Cpu)?.run()?;
    let outputs = outputs.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
    let mix = |hash: u64, value: f32| (hash ^ u64::from(value.to_bits())).wrapping_mul(0x100_0000_01B3).rotate_left(5);
    Ok(outputs.into_iter().fold(0xCBF2_9CE4_8422_2325, mix))
}

/// Looks at `model` on `device`, in `f64` where that can be.
///
/// # Errors
/// When the model or its backward pass fails in `f32`.
pub fn check(model: Model, extent: Extent, device: &Device) -> Result<Found> {
    let whole = |dtype| {
        let mut trial = Trial::new(model, dtype, device)?;
        Ok((trial.loss()?.backward()?, trial))
    };
    let (gradients, mut trial) = whole(DType::F64).or_else(|_: Error| whole(DType::F32))?;
    let all = trial.trained();
    let began = Instant::now();
    let every = match extent {
        Extent::All => 1,
        Extent::Some(count) => all.len().div_ceil(count),
    };
    let (name, dtype) = (model.name, trial.dtype);
    let mut found =
        Found { name, dtype, with: 0, unused: Vec::new(), missing: Vec::new(), compared: 0, different: Vec::new() };
    for (index, (name, var)) in all.iter().enumerate() {
        let Some(gradient) = gradients.get(var) else {
            let kind = if trial.depends_on(var)? { &mut found.missing } else { &mut found.unused };
            kind.push(name.clone());
            continue;
        };
        found.with += 1;
        // What comes before a cut lacks a part of its gradient, too.
        let is_late = extent != Extent::All && found.compared > 0 && began.elapsed() > Duration::from_secs(10);
        if index % every == 0 && model.without.is_none() && !is_late {
            compare(&mut trial, name, var, &read(gradient)?, &mut found)?;
        }
    }
    Ok(found)
}

/// Steps of differences, and how near they must come, to the largest gradient of a parameter.
fn steps(dtype: DType) -> (&'static [f64], f64) {
    match dtype {
        DType::F64 => (&[1e-4, 1e-6, 1e-3, 1e-2], 1e-4),
        _ => (&[1e-2, 3e-3, 3e-2, 1e-3, 1e-1], 2e-2),
    }
}

/// How far differences can be trusted: as far as the two that agree best. Some models compute in `f32` within `f64`: differences are
/// then steps of their rounding, of which two that are equal say nothing.
fn noise(tried: &[f64]) -> f64 {
    let mut sorted = tried.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap > 0.0).fold(f64::INFINITY, f64::min)
}

/// Compares the element with the largest gradient, and two more.
fn compare(trial: &mut Trial, name: &str, var: &Var, gradient: &[f64], found: &mut Found) -> Result<()> {
    let largest = (0..gradient.len()).max_by(|&a, &b| gradient[a].abs().total_cmp(&gradient[b].abs())).unwrap_or(0);
    let size = gradient[largest].abs();
    let mut elements = vec![largest, gradient.len() / 3, 2 * gradient.len() / 3];
    elements.sort_unstable();
    elements.dedup();
    let (steps, tolerance) = steps(trial.dtype);
    for element in elements {
        let is_near = |difference: &f64, noise: f64| {
            (difference - gradient[element]).abs() <= tolerance * size.max(1e-3) + 3.0 * noise
        };
        let mut tried = Vec::new();
        for step in steps {
            let difference = (trial.moved(var, element, *step)? - trial.moved(var, element, -step)?) / (2.0 * step);
            tried.push(difference);
            if is_near(&difference, 0.0) {
                break;
            }
        }
        found.compared += 1;
        let noise = if tried.len() == steps.len() { noise(&tried).min(1e-2 * size.max(1e-2)) } else { 0.0 };
        if !tried.iter().any(|difference| is_near(difference, noise)) {
            found
                .different
                .push(format!("{name}[{element}]: gradient {:.4e}, differences {tried:?}", gradient[element]));
        }
    }
    Ok(())
}

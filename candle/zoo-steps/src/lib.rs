//! Models of candle-transformers on a device: what is captured and compiled of them leaves the bits that plain candle leaves, and
//! how long each takes.
//!
//! ```text
//! model ─► gradients against differences ─► forward: plain, captured, compiled ─► training: eager, captured, compiled ─► Found
//! ```

#![forbid(unsafe_code)]

pub mod found;
mod forward;
mod training;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use candle_zoo::Model;
use candle_zoo::check::{Extent, check};
use candle_zoo::weights::numbers;
use leyline::clock::Clock;
use leyline::region::Eager;

use found::Found;

/// Where, and how much.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Where models live.
    pub device: Device,
    /// By which times are taken.
    pub clock: Arc<dyn Clock>,
    /// Training steps that are compared.
    pub steps: u64,
    /// Parameters of a model of which three elements are compared with differences.
    pub compared: usize,
    /// Seconds for the eager steps of a model; one that needs more takes fewer steps.
    pub seconds: f64,
}

/// Looks at one model. What fails is part of what is found, a panic too.
pub fn look(model: Model, setting: &Setting, eager: &mut Eager) -> Found {
    let mut found = Found::default();
    guarded("gradients", &mut found, |found| gradients(model, setting, found));
    guarded("forward", &mut found, |found| forward::look(model, setting, eager, found));
    guarded("step", &mut found, |found| training::look(model, setting, eager, found));
    found
}

/// Does a part of the work.
fn guarded(part: &str, found: &mut Found, work: impl FnOnce(&mut Found) -> Result<()>) {
    let outcome = catch_unwind(AssertUnwindSafe(|| work(found))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
        Err(candle_core::Error::msg(format!("it panics: {text}")))
    });
    if let Err(error) = outcome {
        found.fails(part, &error);
    }
}

fn gradients(model: Model, setting: &Setting, found: &mut Found) -> Result<()> {
    let checked = check(model, Extent::Some(setting.compared), &setting.device)?;
    let used = checked.with + checked.missing.len();
    found.value("gradients.with", "count", checked.with as f64);
    found.value("gradients.used", "count", used as f64);
    found.value("gradients.compared", "count", checked.compared as f64);
    let kept = if checked.is_right(&model) { "as they should be" } else { "BROKEN" };
    let mut text = format!(
        "{} of {used} parameters that the loss depends on, {} elements against differences in {}: {kept}",
        checked.with,
        checked.compared,
        checked.dtype.as_str()
    );
    for (name, why) in checked.missing.iter().map(|name| (name, model.without.map_or("unexpected", |(_, why)| why))) {
        text += &format!("; none for {name}: {why}");
    }
    for different in &checked.different {
        text += &format!("; {different}");
    }
    found.say("gradients", text);
    Ok(())
}

/// Inputs like `one`, in other numbers: `count` times as many samples.
fn more(one: &Tensor, count: usize) -> Result<Tensor> {
    let mut draw = numbers("more");
    let mut dims = one.dims().to_vec();
    dims[0] *= count;
    let values = (0..dims.iter().product()).map(|_| draw());
    match one.dtype() {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 1 to 23")]
        DType::U32 => {
            let tokens: Vec<u32> = values.map(|value| ((value + 1.0) * 11.5) as u32 + 1).collect();
            Tensor::from_vec(tokens, dims, one.device())
        }
        dtype => {
            Tensor::from_vec(values.map(|value| value as f32).collect::<Vec<_>>(), dims, one.device())?.to_dtype(dtype)
        }
    }
}

/// Bits of all elements.
fn bits(tensor: &Tensor) -> Result<Vec<u32>> {
    Ok(tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
}

/// Elements whose bits differ; all of them where the counts differ.
fn differing(a: &[u32], b: &[u32]) -> usize {
    if a.len() == b.len() { a.iter().zip(b).filter(|(a, b)| a != b).count() } else { a.len().max(b.len()) }
}

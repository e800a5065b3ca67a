//! Scores that are measured on a batch.

use candle_core::{DType, Result as CandleResult, Tensor};
use leyline::batch::Batch;
use leyline::model::{AlphaOverride, Pass, TrainableModel};
use leyline::task::Task;
use leyline::unit::Alpha;

use crate::attribution::AttributionScope;
use crate::attribution::shares::{Acting, Scores};
use crate::error::Error;
use crate::graft::GraftedModel;
use crate::host_read::read_f32;

/// Norms of what seeds add and of what they add it to.
///
/// # Sync
/// One device-to-host copy.
pub(super) fn by_contribution(
    model: &GraftedModel,
    acting: &[Acting],
    batch: &Batch,
    scope: AttributionScope,
) -> Result<Scores, Error> {
    let mut order = Vec::new();
    let mut squares = Vec::new();
    let mut host_entries = Vec::new();
    let mut last_slot: Option<usize> = None;
    model.observe(&batch.inputs, &mut |seed, h, share| {
        // The host's value is what the first seed of a slot sees; a later one sees another slot or the sum so far.
        let slot = model.slot_index(seed);
        if last_slot != slot {
            host_entries.push(squares.len());
            squares.push(squared_norm(h, scope)?);
            last_slot = slot;
        }
        order.push((seed, squares.len()));
        squares.push(squared_norm(share, scope)?);
        Ok(())
    })?;
    let Columns { num_rows, values } = Columns::read(&squares)?;
    let norm = |entry: usize, row: usize| values[entry * num_rows + row].sqrt();
    let entries: Vec<Option<usize>> = acting
        .iter()
        .map(|acting| order.iter().find(|(seed, _)| *seed == acting.seed).map(|&(_, entry)| entry))
        .collect();
    let mut scores = Scores { host: Vec::with_capacity(num_rows), seeds: Vec::with_capacity(num_rows * acting.len()) };
    for row in 0..num_rows {
        scores.host.push(host_entries.iter().map(|&entry| norm(entry, row)).sum());
        scores.seeds.extend(entries.iter().map(|entry| entry.map_or(f64::NAN, |entry| norm(entry, row))));
    }
    Ok(scores)
}

/// Changes of the loss when seeds are switched off, one at a time.
///
/// # Sync
/// One device-to-host copy.
pub(super) fn by_probe(
    model: &GraftedModel,
    acting: &[Acting],
    (batch, task): (&Batch, &dyn Task),
    scope: AttributionScope,
) -> Result<Scores, Error> {
    let measure = |overrides: &[AlphaOverride]| -> Result<Tensor, Error> {
        let logits = model.forward(&batch.inputs, Pass::Evaluate { overrides })?.logits;
        Ok(loss(task, &logits, &batch.targets, scope)?)
    };
    let mut losses = Vec::with_capacity(1 + acting.len());
    losses.push(measure(&[])?);
    for acting in acting {
        losses.push(measure(&[AlphaOverride { seed: acting.seed, alpha: Alpha::ZERO }])?);
    }
    let Columns { num_rows, values } = Columns::read(&losses)?;
    let (on, off) = values.split_at(num_rows);
    let mut seeds = Vec::with_capacity(off.len());
    for (row, on) in on.iter().enumerate() {
        seeds.extend(off.iter().skip(row).step_by(num_rows).map(|off| (off - on).abs()));
    }
    Ok(Scores { host: on.to_vec(), seeds })
}

/// Quantities that were stacked: the value of quantity q in row r is at q · `num_rows` + r.
struct Columns {
    num_rows: usize,
    values: Vec<f64>,
}

impl Columns {
    /// Each of shape () or (B).
    fn read(quantities: &[Tensor]) -> CandleResult<Self> {
        let Some(first) = quantities.first() else { return Ok(Self { num_rows: 0, values: Vec::new() }) };
        let values = read_f32(&Tensor::stack(quantities, 0)?)?.into_iter().map(f64::from).collect();
        Ok(Self { num_rows: first.elem_count(), values })
    }
}

/// ‖x‖² of shape () over the batch, or (B).
fn squared_norm(x: &Tensor, scope: AttributionScope) -> CandleResult<Tensor> {
    let squares = x.to_dtype(DType::F32)?.sqr()?;
    match scope {
        AttributionScope::Batch => squares.sum_all(),
        AttributionScope::Sample => squares.flatten_from(1)?.sum(1),
    }
}

/// The loss of shape (), the mean over samples, or (B).
fn loss(task: &dyn Task, logits: &Tensor, targets: &Tensor, scope: AttributionScope) -> CandleResult<Tensor> {
    let logits = logits.to_dtype(DType::F32)?;
    match scope {
        AttributionScope::Batch => task.mean_loss(&logits, targets),
        AttributionScope::Sample => task.losses(&logits, targets),
    }
}

//! A whole training step on the same samples: in microbatches with and without PCGrad, and as one batch.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use leyline::batch::Batch;
use leyline::id::{SeedId, StepIndex};
use leyline::layout::{Owner, ParameterLayout, SegmentSpec};
use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::{Attribution, AttributionMode};
use tolaria::aggregate::{ConflictResolution, GradientEngine, ProjectionOrder, WindowPlan};
use tolaria::grad::{Geometry, GradientBufferPool, GradientLease, GradientScope, gather_gradients};
use tolaria::host_read::HostReads;
use tolaria::optim::{Optimizer, UpdatePlan};

use crate::error::Error;
use crate::gpu::open::{Gpu, capture, replay};
use crate::gradient::engine::aggregation;
use crate::models::Workload;
use crate::samples::{Samples, us};

/// Samples of a step: 8 batches of 128.
const NUM_MICROBATCHES: usize = 8;
const COMPARED: usize = 20;
const WARM_UP: usize = 20;
const REPETITIONS: usize = 300;
const FORMS: [(&str, usize, ConflictResolution); 3] = [
    ("accumulation_off", 1, ConflictResolution::Mean),
    ("accumulation_on.mean", NUM_MICROBATCHES, ConflictResolution::Mean),
    ("accumulation_on.pcgrad", NUM_MICROBATCHES, ConflictResolution::PcGrad),
];

/// Measures every form.
pub(super) fn measure(gpu: &Gpu, eager: &mut Eager, samples: &mut Samples) -> Result<(), Error> {
    for (name, num_microbatches, method) in FORMS {
        form(gpu, eager, name, num_microbatches, method, samples)?;
    }
    let median = |name: &str| samples.median(&format!("step.{name}.captured")).unwrap_or(f64::NAN);
    let ratios = FORMS.map(|(name, ..)| (name, median(name) / median(FORMS[0].0)));
    for (name, ratio) in ratios {
        samples.push(format!("step.over_big_batch.{name}"), "ratio", ratio);
    }
    Ok(())
}

fn form(
    gpu: &Gpu,
    eager: &mut Eager,
    name: &str,
    num_microbatches: usize,
    method: ConflictResolution,
    samples: &mut Samples,
) -> Result<(), Error> {
    let mut direct = Step::new(gpu, num_microbatches, method)?;
    for _ in 0..COMPARED {
        direct.eagerly(gpu)?;
    }
    let mut recorded = Step::new(gpu, num_microbatches, method)?;
    for _ in 0..2 {
        recorded.eagerly(gpu)?;
    }
    let graph = capture(&gpu.session, eager, name, || recorded.region())?;
    for _ in 2..COMPARED {
        recorded.advance()?;
        replay(&graph)?;
    }
    let (expected, found) = (direct.work.parameters()?, recorded.work.parameters()?);
    let differing = expected.iter().zip(&found).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    if differing > 0 {
        let what = format!("{name}: parameters that differ between eager and captured steps");
        return Err(Error::WrongResult { what, expected: 0.0, found: differing as f64 });
    }
    for index in 0..WARM_UP + REPETITIONS {
        direct.advance()?;
        gpu.wait()?;
        let began = gpu.now();
        gpu.session.warm(|| direct.region())?;
        gpu.wait()?;
        let direct_time = gpu.now() - began;

        recorded.advance()?;
        gpu.wait()?;
        let began = gpu.now();
        replay(&graph)?;
        gpu.wait()?;
        let replay_time = gpu.now() - began;
        if index >= WARM_UP {
            samples.push(format!("step.{name}.eager"), "us", us(direct_time));
            samples.push(format!("step.{name}.captured"), "us", us(replay_time));
        }
    }
    Ok(())
}

/// A step on static samples; its constants come in through a table.
struct Step {
    work: Workload,
    layout: ParameterLayout,
    batches: Vec<Batch>,
    engine: GradientEngine,
    plan: WindowPlan,
    arguments: Tensor,
    pool: GradientBufferPool,
    optimizer: Optimizer,
    updates: UpdatePlan,
    table: Tensor,
}

impl Step {
    fn new(gpu: &Gpu, num_microbatches: usize, method: ConflictResolution) -> Result<Self, Error> {
        let work = Workload::mlp(0, &gpu.device)?;
        let layout = owned_by_layers(work.model.layout());
        let geometry = Arc::new(Geometry::of(&layout)?);
        let num_samples = NUM_MICROBATCHES * work.batch_size / num_microbatches;
        let batch = |index: usize| -> Result<Batch, Error> {
            Ok(Batch {
                inputs: work.inputs.narrow(0, index * num_samples, num_samples)?,
                targets: work.targets.narrow(0, index * num_samples, num_samples)?,
            })
        };
        let batches = (0..num_microbatches).map(batch).collect::<Result<Vec<_>, _>>()?;
        let num_owners = geometry.owners().len();
        let rows: Vec<(usize, Attribution)> =
            (0..num_microbatches).map(|row| (num_samples, attribution(row % num_owners))).collect();
        let plan = {
            let order = ProjectionOrder { seed: 1, step: StepIndex(0) };
            WindowPlan::new(&rows, geometry.owners(), &aggregation(method), order)?
        };
        let arguments = plan.arguments();
        let mut optimizer = Optimizer::new(work.optimizer);
        let updates = optimizer.prepare(work.model.parameters(), &layout, work.learning_rate)?;
        let table = updates.table();
        Ok(Self {
            engine: GradientEngine::new(Arc::clone(&geometry), aggregation(method), num_microbatches, &gpu.device)?,
            arguments: Tensor::new(arguments, &gpu.device)?,
            table: Tensor::new(table, &gpu.device)?,
            pool: GradientBufferPool::new(),
            work,
            layout,
            batches,
            plan,
            optimizer,
            updates,
        })
    }

    /// The next step's constants, on the device.
    fn advance(&mut self) -> Result<(), Error> {
        self.optimizer.commit(&self.layout, &self.updates);
        self.updates = self.optimizer.prepare(self.work.model.parameters(), &self.layout, self.work.learning_rate)?;
        let table = Tensor::new(self.updates.table(), self.table.device())?;
        Ok(self.table.slice_set(&table, 0, 0)?)
    }

    /// Device work only; leaves no tensor behind.
    fn region(&mut self) -> Result<(), Error> {
        let parameters = self.work.model.parameters();
        let mut rows: Vec<GradientLease> = Vec::with_capacity(self.batches.len());
        for batch in &self.batches {
            let gradients = self.work.loss(batch)?.backward()?;
            let row = self.pool.lease_to_write(self.layout.num_elements(), DType::F32, batch.inputs.device())?;
            gather_gradients(&gradients, parameters, &self.layout, GradientScope::Main, &row)?;
            rows.push(row);
        }
        let mut reads = HostReads::default();
        let combination = self.engine.combine(rows, &self.plan, Some(&self.arguments), None, &mut reads)?;
        let table = Some(&self.table);
        Ok(self.optimizer.apply_combination(parameters, &self.layout, &combination, &self.updates, table)?)
    }

    fn eagerly(&mut self, gpu: &Gpu) -> Result<(), Error> {
        self.advance()?;
        gpu.session.warm(|| self.region())
    }
}

/// The same places, with an owner per layer: the first one is the host's, each further one a seed's.
fn owned_by_layers(layout: &ParameterLayout) -> ParameterLayout {
    let mut layers: Vec<&str> = Vec::new();
    let specs = layout.segments().iter().map(|segment| {
        let name = segment.spec.name.as_str();
        let layer = name.rsplit_once('.').map_or(name, |(layer, _)| layer);
        if layers.last() != Some(&layer) {
            layers.push(layer);
        }
        SegmentSpec { owner: owner(layers.len() - 1), ..segment.spec.clone() }
    });
    let specs = specs.collect();
    ParameterLayout::new(layout.revision(), specs).expect("the names are those of a layout")
}

fn owner(slot: usize) -> Owner {
    match u32::try_from(slot).expect("few layers") {
        0 => Owner::Host,
        id => Owner::Seed(SeedId(id)),
    }
}

fn attribution(slot: usize) -> Attribution {
    match owner(slot) {
        Owner::Host => Attribution::host_only(),
        Owner::Seed(seed) => {
            Attribution::new(AttributionMode::Stage, vec![(seed, 1.0)]).expect("one weight of 1 is sound")
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn every_layer_has_an_owner_and_stays_in_its_place() {
        let work = Workload::mlp(0, &Device::Cpu).unwrap();
        let layout = owned_by_layers(work.model.layout());
        let owners: Vec<Owner> = layout.segments().iter().map(|segment| segment.spec.owner).collect();
        let [host, first, second] = [0, 1, 2].map(owner);
        assert_eq!(owners, [host, host, first, first, second, second]);
        let places = |layout: &ParameterLayout| {
            layout.segments().iter().map(|segment| (segment.offset, segment.len)).collect::<Vec<_>>()
        };
        assert_eq!(places(&layout), places(work.model.layout()));
    }
}

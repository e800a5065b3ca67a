//! What the steps of a run read: the order of an epoch, its samples, and who gathers them.
//!
//! On the CPU and for copies to a GPU samples are gathered by the step itself or, with workers, ahead of it. Of data that are on
//! a GPU a step gets indices alone, and selects there.

use std::sync::Arc;
use std::time::Duration;

use candle_core::{Device, Tensor};
use leyline::batch::Batch;
use leyline::clock::Clock;
use leyline::id::EpochIndex;
use leyline::source::SourceError;
use leyline::task::Task;

use crate::batch::transform::Transform;
use crate::batch::{Dataset, EpochOrder, EpochSampler, Gatherer, HostBatch, Loader, Progress, to_device, windows};
use crate::error::Error;
use crate::host_read::{self, HostReads};
use crate::trainer::config::TrainConfig;
use crate::trainer::instruments::{InputInstruments, ms};

/// Samples are read whole to find out their classes: so many bytes of them at a time, and one at least.
const CLASS_BYTES: usize = 16 << 20;

/// The samples of one optimizer step, by microbatch.
#[derive(Debug)]
pub(super) enum WindowSamples<'a> {
    /// The data are on the device: where the samples are in them.
    Indices(Vec<&'a [u32]>),
    /// On the host, on their way to a device.
    Host(Vec<HostBatch>),
    /// On the CPU, which is the device.
    Batches(Vec<Batch>),
}

/// Hands out the windows of an epoch, one after the other.
#[derive(Debug)]
pub(super) struct Feed {
    sampler: EpochSampler,
    transforms: Vec<Arc<dyn Transform>>,
    /// Absent where a step needs indices alone, or the samples of a data set in memory as they are.
    gatherer: Option<Arc<Gatherer>>,
    loader: Option<Loader>,
    /// Buffers of steps without workers.
    idle: Vec<Vec<HostBatch>>,
    waited: Duration,
    clock: Arc<dyn Clock>,
}

impl Feed {
    /// For training data `data` that steps on `device` read.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a sampler or a transform that the data do not fit; those of reading classes; when a thread
    /// cannot be started.
    pub(super) fn new(
        config: &TrainConfig,
        transforms: Vec<Arc<dyn Transform>>,
        (data, device, seed): (&Dataset, &Device, u64),
        task: &Arc<dyn Task>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let refused = |key: &str, expected: String| {
            Err(Error::InvalidConfig { key: key.to_owned(), message: format!("expected {expected}") })
        };
        let sampler =
            EpochSampler::new(&config.sampler, seed, &config.batch, data, || classes(data).map_err(Misfit::Data));
        let sampler = match sampler {
            Ok(sampler) => sampler,
            Err(Misfit::Expected(expected)) => return refused("sampler", expected),
            Err(Misfit::Data(error)) => return Err(error),
        };
        let is_on_device = !data.device().is_cpu();
        if is_on_device && !transforms.is_empty() {
            let expected =
                "training data on the CPU, where transforms work: `run.gpu_dataset = \"off\"`, or no transform";
            return refused("augment", expected.to_owned());
        }
        // Targets in memory were looked at as a whole.
        let unchecked = data.tensors().is_none().then(|| Arc::clone(task));
        let as_they_are = transforms.is_empty() && data.tensors().is_some() && config.loader.workers == 0;
        let gatherer = if is_on_device || (as_they_are && device.is_cpu()) {
            None
        } else {
            match Gatherer::new(data.as_source(), transforms.clone(), seed, unchecked) {
                Ok(gatherer) => Some(Arc::new(gatherer)),
                Err(SourceError { message, .. }) => {
                    return Err(Error::InvalidConfig { key: "augment".to_owned(), message });
                }
            }
        };
        let loader = match &gatherer {
            Some(gatherer) if config.loader.workers > 0 => Some(Loader::new(gatherer, config.loader, clock)?),
            _ => None,
        };
        let (idle, waited, clock) = (Vec::new(), Duration::ZERO, Arc::clone(clock));
        Ok(Self { sampler, transforms, gatherer, loader, idle, waited, clock })
    }

    /// The transforms of each sample, in their order.
    pub(super) fn transforms(&self) -> &[Arc<dyn Transform>] {
        &self.transforms
    }

    /// What a run that is resumed must have in common; empty where every sample comes once, as it is.
    pub(super) fn describe(&self) -> String {
        let transforms = self.transforms.iter().map(|transform| transform.describe());
        let parts: Vec<String> = std::iter::once(self.sampler.describe()).chain(transforms).collect();
        parts.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join(", ")
    }

    /// Begins an epoch at a window of it.
    pub(super) fn begin(
        &mut self,
        config: &TrainConfig,
        data: &Dataset,
        epoch: EpochIndex,
        window: u64,
    ) -> Arc<EpochOrder> {
        let samples = self.sampler.order(epoch, data.len());
        let windows = windows(samples.len(), &config.batch);
        let from = usize::try_from(window).unwrap_or(usize::MAX).min(windows.len());
        let order = Arc::new(EpochOrder { epoch, samples, windows });
        if let Some(loader) = &mut self.loader {
            loader.begin(Arc::clone(&order), from);
        }
        order
    }

    /// The samples of a window of the epoch. Windows come in their order.
    ///
    /// # Errors
    /// [`Error::Source`], with sample and place.
    pub(super) fn window<'a>(
        &mut self,
        data: &Dataset,
        device: &Device,
        order: &'a EpochOrder,
        index: usize,
    ) -> Result<WindowSamples<'a>, Error> {
        let window = &order.windows[index];
        let indices = || window.microbatches().map(|positions| &order.samples[positions]);
        if !data.device().is_cpu() {
            return Ok(WindowSamples::Indices(indices().collect()));
        }
        let started = self.clock.now();
        let samples = match (&mut self.loader, &self.gatherer) {
            (_, None) => {
                WindowSamples::Batches(indices().map(|indices| data.gather(indices)).collect::<Result<_, _>>()?)
            }
            (Some(loader), Some(gatherer)) => on(device, gatherer, loader.fetch(index)?)?,
            (None, Some(gatherer)) => {
                let mut batches = self.idle.pop().unwrap_or_default();
                gatherer.gather(order, window, &mut batches, &mut Progress::default())?;
                on(device, gatherer, batches)?
            }
        };
        self.waited += self.clock.now().saturating_sub(started);
        Ok(samples)
    }

    /// Takes back what a step has read.
    pub(super) fn recycle(&mut self, samples: WindowSamples<'_>) {
        if let WindowSamples::Host(batches) = samples {
            match &mut self.loader {
                Some(loader) => loader.recycle(batches),
                None => self.idle.push(batches),
            }
        }
    }

    /// Ends an epoch: what it waited for becomes telemetry.
    pub(super) fn publish(&mut self, data: &Dataset, instruments: &InputInstruments) {
        let waited = std::mem::take(&mut self.waited);
        let is_read = data.device().is_cpu();
        instruments.wait_ms.set_or_clear(is_read.then_some(ms(waited)));
        let gathered = match &mut self.loader {
            Some(loader) => Some(loader.take_gathered()),
            None => is_read.then_some(waited),
        };
        instruments.gather_ms.set_or_clear(gathered.map(ms));
        let overlap = gathered.filter(|gathered| self.loader.is_some() && !gathered.is_zero());
        let overlap = overlap.map(|gathered| (1.0 - waited.as_secs_f64() / gathered.as_secs_f64()).max(0.0));
        instruments.overlap.set_or_clear(overlap);
    }
}

/// Gathered samples as a step on `device` takes them.
fn on<'a>(device: &Device, gatherer: &Gatherer, mut batches: Vec<HostBatch>) -> Result<WindowSamples<'a>, Error> {
    if !device.is_cpu() {
        return Ok(WindowSamples::Host(batches));
    }
    let taken = batches.iter_mut().map(|batch| batch.take(gatherer.spec()));
    Ok(WindowSamples::Batches(taken.collect::<Result<_, _>>()?))
}

enum Misfit {
    Expected(String),
    Data(Error),
}

impl From<String> for Misfit {
    fn from(expected: String) -> Self {
        Self::Expected(expected)
    }
}

/// The class of each sample: its target, where that is one number.
fn classes(data: &Dataset) -> Result<Vec<u32>, Error> {
    let field = &Dataset::spec(data).targets;
    if field.dtype() != candle_core::DType::U32 || field.num_elements() != 1 {
        let message = format!("expected one class per sample, to draw by class, found {field}");
        return Err(Error::InvalidData { what: "targets", message });
    }
    let bytes = 4 * (Dataset::spec(data).inputs.num_elements() + 1);
    let at_once = (CLASS_BYTES / bytes).max(1);
    let mut classes = Vec::with_capacity(data.len());
    for start in (0..data.len()).step_by(at_once) {
        let targets = data.slice(start, at_once.min(data.len() - start))?.targets;
        classes.extend(host_read::read_vec_u32(&targets, "labels", &mut HostReads::default())?);
    }
    Ok(classes)
}

impl WindowSamples<'_> {
    /// Where the samples are in data on the device, in one piece; empty for others.
    ///
    /// # Errors
    /// [`Error::InvalidData`] for one that is not in `data`.
    pub(super) fn indices(&self, data: &Dataset) -> Result<Vec<u32>, Error> {
        let Self::Indices(indices) = self else { return Ok(Vec::new()) };
        let all = indices.concat();
        data.check(&all)?;
        Ok(all)
    }

    /// Microbatch `index`, for a look at it.
    ///
    /// # Errors
    /// When samples cannot be gathered or copied.
    pub(super) fn batch(&self, data: &Dataset, device: &Device, index: usize) -> Result<Batch, Error> {
        match self {
            Self::Indices(indices) => to_device(data.gather(indices[index])?, device),
            Self::Host(batches) => batches[index].copy(Dataset::spec(data), device),
            Self::Batches(batches) => Ok(batches[index].clone()),
        }
    }

    /// All microbatches on `device`; what was in buffers is moved.
    ///
    /// # Errors
    /// As [`Self::batch`].
    pub(super) fn take(&mut self, data: &Dataset, device: &Device) -> Result<Vec<Batch>, Error> {
        match self {
            Self::Indices(indices) => indices.iter().map(|indices| to_device(data.gather(indices)?, device)).collect(),
            Self::Host(batches) => {
                batches.iter_mut().map(|batch| to_device(batch.take(Dataset::spec(data))?, device)).collect()
            }
            Self::Batches(batches) => Ok(std::mem::take(batches)),
        }
    }
}

/// Tensors of zeros for `count` samples like those of `data`.
pub(super) fn zeros(data: &Dataset, count: usize, device: &Device) -> Result<Batch, Error> {
    let zeros = |field: &leyline::source::Field| {
        let dims: Vec<usize> = std::iter::once(count).chain(field.dims().iter().copied()).collect();
        Tensor::zeros(dims, field.dtype(), device)
    };
    let spec = Dataset::spec(data);
    Ok(Batch { inputs: zeros(&spec.inputs)?, targets: zeros(&spec.targets)? })
}

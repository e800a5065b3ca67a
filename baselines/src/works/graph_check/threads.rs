//! Trainers on several threads: with a device each they do not notice each other, and one device is one thread's.

use std::sync::Barrier;
use std::thread;

use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::SeedManager as _;
use tolaria::optim::OptimizerConfig;
use tolaria::trainer::{NullObserver, StepMode, Trainer};

use crate::gpu::growing::{Growing, GrowingTrainer, differing, values_of};
use crate::gpu::open::{Gpu, open_device, open_session};
use crate::gpu::report::{Broken, Report, promise};

const THREADS: usize = 4;
const EPOCHS: u64 = 60;
const ADAM_W: OptimizerConfig = OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };

pub(super) fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    let growing = Growing { epochs: EPOCHS, ..Growing::small(1, ADAM_W) };
    report.check("threads.a_device_each", |_| a_device_each(gpu, eager, &growing));
    report.check("threads.one_device", |_| one_device(gpu, eager, &growing));
    report.check("threads.handed_over", |_| handed_over(gpu, eager, &growing));
}

/// What a run left behind.
struct Ran {
    values: Vec<f32>,
    replays: u64,
    /// Why a shape was not captured or not compiled.
    refusal: Option<String>,
}

fn trained(trainer: &mut GrowingTrainer, eager: &mut Eager) -> Result<Ran, Broken> {
    trainer.run(eager, &mut NullObserver)?;
    Ok(Ran {
        values: values_of(trainer.seeds().model().parameters())?,
        replays: trainer.graph_stats().total.replays,
        refusal: trainer.last_refusal().or(trainer.last_compile_refusal()).map(ToString::to_string),
    })
}

/// The run alone, eagerly, on this thread.
fn alone(gpu: &Gpu, eager: &mut Eager, growing: &Growing) -> Result<Vec<f32>, Broken> {
    Ok(growing.with_mode(StepMode::Eager).finish(gpu, eager)?.1)
}

fn same(expected: &[f32], ran: &Ran) -> Result<(), Broken> {
    if let Some(refusal) = &ran.refusal {
        return Err(Broken(format!("a shape was refused: {refusal}")));
    }
    let wrong = differing(expected, &ran.values);
    promise(wrong == 0, || format!("{wrong} of {} parameters differ from the run alone", expected.len()))?;
    promise(ran.replays > 0, || "no step was a replay".to_owned())
}

/// Runs `work` on so many threads at once, which are gone with all that they keep when this returns.
fn on_threads<R: Send>(work: impl Fn(usize) -> Result<R, Broken> + Sync) -> Result<Vec<R>, Broken> {
    let work = &work;
    let panicked = || Err(Broken("a thread panicked".to_owned()));
    let ended: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|index| scope.spawn(move || work(index))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    });
    ended.into_iter().collect()
}

/// Captured and compiled side by side: the bits of the run alone.
fn a_device_each(gpu: &Gpu, eager: &mut Eager, growing: &Growing) -> Result<String, Broken> {
    let expected = alone(gpu, eager, growing)?;
    // A device may wait for the whole GPU when it is made and when it goes, and others record meanwhile.
    let devices = (0..THREADS).map(|_| open_device(gpu.ordinal)).collect::<Result<Vec<_>, _>>()?;
    let ran = on_threads(|index| {
        let mode = if index % 2 == 0 { StepMode::Graph } else { StepMode::Compiled };
        let mut trainer = growing.with_mode(mode).trainer_on(&devices[index], &gpu.clock)?;
        trained(&mut trainer, &mut Eager::acquire()?)
    })?;
    ran.iter().try_for_each(|ran| same(&expected, ran))?;
    let replays: Vec<String> = ran.iter().map(|ran| ran.replays.to_string()).collect();
    let count = expected.len();
    Ok(format!("{THREADS} threads of {EPOCHS} epochs, {} replays: 0 of {count} parameters differ", replays.join(", ")))
}

/// How one of several threads fared that want one device.
enum Fared {
    Trained(Ran),
    /// With the words of the error.
    Refused(String),
}

/// One trainer is made, the others are refused with an error that says what to do; then the one trains as if alone.
fn one_device(gpu: &Gpu, eager: &mut Eager, growing: &Growing) -> Result<String, Broken> {
    let expected = alone(gpu, eager, growing)?;
    let device = open_device(gpu.ordinal)?;
    let (start, refused) = (Barrier::new(THREADS), Barrier::new(THREADS));
    let fared = on_threads(|_| {
        let parts = growing.parts_on(&device, &gpu.clock);
        start.wait();
        let made = parts.map(|parts| Trainer::new(growing.config(), parts));
        refused.wait();
        match made? {
            Ok(mut trainer) => trained(&mut trainer, &mut Eager::acquire()?).map(Fared::Trained),
            Err(error @ tolaria::Error::SharedDevice) => Ok(Fared::Refused(error.to_string())),
            Err(error) => Err(Broken(format!("refused for another reason: {error:?}"))),
        }
    })?;
    let mut words = String::new();
    let mut num_trained = 0;
    for fared in fared {
        match fared {
            Fared::Trained(ran) => {
                num_trained += 1;
                same(&expected, &ran)?;
            }
            Fared::Refused(text) => words = text,
        }
    }
    promise(num_trained == 1, || format!("{num_trained} of {THREADS} trainers were made on one device"))?;
    promise(words.contains("Device::new_cuda_with_stream"), || format!("the error does not say what to do: {words}"))?;
    Ok(format!("{} of {THREADS} were refused ({words}); the other one ended as if alone", THREADS - num_trained))
}

/// A device goes from one thread to the next, once nothing on the old one uses it.
fn handed_over(gpu: &Gpu, eager: &mut Eager, growing: &Growing) -> Result<String, Broken> {
    let expected = alone(gpu, eager, growing)?;
    let device = open_device(gpu.ordinal)?;
    let train =
        |eager: &mut Eager| trained(&mut growing.with_mode(StepMode::Graph).trainer_on(&device, &gpu.clock)?, eager);
    let elsewhere = || {
        let ended = thread::scope(|scope| scope.spawn(|| train(&mut Eager::acquire()?)).join());
        ended.unwrap_or_else(|_| Err(Broken("a thread panicked".to_owned())))
    };
    let refused = {
        let _session = open_session(&device)?;
        elsewhere()
    };
    promise(matches!(&refused, Err(Broken(text)) if text.contains("another thread")), || {
        format!("with a session of this thread alive: {:?}", refused.as_ref().map(|ran| ran.replays))
    })?;
    same(&expected, &elsewhere()?)?;
    same(&expected, &train(eager)?)?;
    Ok("the bits of the run alone on another thread, and on this one after it".to_owned())
}

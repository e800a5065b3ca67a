//! A step finds the memory that the one before has freed, and does not ask the system for its pages again.
#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use leyline::error::BoxError;
use leyline::id::StepIndex;
use leyline::region::Eager;
use tolaria::batch::Dataset;
use tolaria::plain::{NoPolicy, NoSeeds, PlainModel};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Flow, Observer, Parts, Splits, TrainConfig, Trainer};

/// A gradient of 1.5 MiB, several times in a step: some 400 pages each, of 4 KiB.
const WIDTH: usize = 624;
const WARM_UP: usize = 8;
const MEASURED: usize = 16;
/// What else may happen in a step, evaluations between epochs included.
const MAX_FAULTS_PER_STEP: u64 = 50;

/// Pages that this thread has been given so far.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    // Behind the name: state, five ids, flags, and the faults that needed no disk.
    fields.split_whitespace().nth(7).unwrap().parse().unwrap()
}

#[derive(Default)]
struct Watch {
    faults: Vec<u64>,
}

impl Observer for Watch {
    fn step_finished(&mut self, _step: StepIndex) -> Flow {
        self.faults.push(faults());
        if self.faults.len() == WARM_UP + MEASURED { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

#[test]
fn steps_ask_the_system_for_no_pages_again() {
    let weight = Var::ones((WIDTH, WIDTH), DType::F32, &Device::Cpu).unwrap();
    let model =
        PlainModel::new(vec![("weight".to_owned(), weight.clone())], move |x: &Tensor| x.matmul(&weight)).unwrap();
    let inputs = Tensor::ones((64, WIDTH), DType::F32, &Device::Cpu).unwrap();
    let samples = Dataset::new(inputs, Tensor::zeros(64, DType::U32, &Device::Cpu).unwrap()).unwrap();
    let data = Splits { train: samples.clone(), validation: samples.clone(), test: samples };
    let parts = Parts::new(Arc::new(Classification::new(WIDTH)), NoSeeds::new(model), NoPolicy, data);
    let mut trainer = Trainer::new(TrainConfig::default(), Parts { num_epochs: 1_000, ..parts }).unwrap();
    let mut watch = Watch::default();
    trainer.run(&mut Eager::acquire().unwrap(), &mut watch).unwrap();
    // The median: the system may take pages back once that were long not used, and give them again.
    let mut of_steps: Vec<u64> = watch.faults[WARM_UP - 1..].windows(2).map(|pair| pair[1] - pair[0]).collect();
    of_steps.sort_unstable();
    assert!(of_steps[MEASURED / 2] <= MAX_FAULTS_PER_STEP, "pages in a step: {of_steps:?}");
}

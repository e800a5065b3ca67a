//! Where each step is checked, an error names the step that made it.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{DType, Device, Tensor, Var, bail};
use leyline::error::{Error as _, ErrorKind};
use leyline::model::Pass;
use leyline::region::Eager;
use tolaria::Error;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::plain::PlainModel;
use tolaria::task::Classification;
use tolaria::trainer::{ExecutionConfig, NullObserver, Parts, Splits, TrainConfig, Trainer};

/// Trains a model whose training pass number `fails_at`, from 0, fails.
fn trained(fails_at: u64, check_each_step: bool) -> Result<Error, Box<dyn std::error::Error>> {
    let weight = Var::ones((2, 2), DType::F32, &Device::Cpu)?;
    let (passes, named) = (AtomicU64::new(0), vec![("weight".to_owned(), weight.clone())]);
    let model = PlainModel::with_pass(named, move |x: &Tensor, pass: Pass<'_>| {
        if pass == Pass::Train && passes.fetch_add(1, Ordering::Relaxed) == fails_at {
            bail!("planted");
        }
        x.matmul(&weight)
    });
    let inputs = Tensor::ones((40, 2), DType::F32, &Device::Cpu)?;
    let targets = Tensor::from_iter((0..40_u32).map(|i| i % 2), &Device::Cpu)?;
    let splits = Splits::draw(&Dataset::new(inputs, targets)?, 0.2, 0)?;
    let config = TrainConfig {
        batch: BatchConfig { batch_size: NonZeroUsize::MIN, microbatches_per_step: NonZeroUsize::MIN },
        execution: ExecutionConfig { check_each_step, ..ExecutionConfig::default() },
        ..TrainConfig::default()
    };
    let mut trainer = Trainer::new(config, Parts::plain(Classification::new(2), model?, splits))?;
    let outcome = trainer.run(&mut Eager::acquire()?, &mut NullObserver);
    outcome.err().ok_or_else(|| "no pass failed".into())
}

#[test]
fn an_error_names_its_step_where_each_is_checked() {
    for fails_at in [0, 3, 7] {
        let error = trained(fails_at, true).unwrap();
        assert_eq!(error.kind(), ErrorKind::Device, "that of its cause");
        let text = format!("after {fails_at} steps the next one failed");
        assert!(error.to_string().starts_with(&text), "{error}");
        let Error::AtStep { step, source } = error else { panic!("{error}") };
        assert_eq!(step.0, fails_at);
        let whole = std::iter::successors(Some(&*source as &dyn std::error::Error), |error| error.source());
        assert!(whole.into_iter().any(|error| error.to_string().starts_with("planted")), "{source}");
        let unchecked = trained(fails_at, false).unwrap();
        assert!(!matches!(unchecked, Error::AtStep { .. }), "nothing is checked unless it is asked for: {unchecked}");
    }
}

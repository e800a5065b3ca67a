//! A trainer whose steps cannot be trusted.

use candle_core::{DType, Tensor, Var};
use esper_graph::{Refusal, Stale, execute::Unconfirmed};

use super::*;
use crate::error::Replayed;
use crate::optim::{GroupsConfig, OptimizerConfig};
use crate::plain::{NoPolicy, NoSeeds, PlainModel};
use crate::task::Classification;
use crate::trainer::NullObserver;
use crate::trainer::report::EpochReport;

fn trainer(config: TrainConfig) -> Trainer<NoSeeds<PlainModel>, NoPolicy> {
    let weight = Var::zeros((2, 2), DType::F32, &Device::Cpu).unwrap();
    let model = PlainModel::new(vec![("w".to_owned(), weight.clone())], move |x: &Tensor| x.matmul(&weight)).unwrap();
    trainer_of(config, model)
}

fn trainer_of(config: TrainConfig, model: PlainModel) -> Trainer<NoSeeds<PlainModel>, NoPolicy> {
    Trainer::new(config, parts(model)).unwrap()
}

fn parts(model: PlainModel) -> Parts<NoSeeds<PlainModel>, NoPolicy> {
    let inputs = Tensor::new(&[[1.0_f32, 0.0], [0.0, 1.0]], &Device::Cpu).unwrap();
    let data = Dataset::new(inputs, Tensor::new(&[0_u32, 1], &Device::Cpu).unwrap()).unwrap();
    let data = Splits { train: data.clone(), validation: data.clone(), test: data };
    Parts { num_epochs: 2, ..Parts::plain(Classification::new(2), model, data) }
}

/// Gradient norms of epochs.
#[derive(Default)]
struct Norms(Vec<f64>);

impl Observer for Norms {
    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        self.0.extend(report.gradient_norm);
        Ok(())
    }
}

#[test]
fn the_norm_that_is_clipped_is_that_of_what_learns() {
    for (host_rate, learns) in [(1.0, true), (0.0, false)] {
        let groups = GroupsConfig { host_rate, ..GroupsConfig::default() };
        let mut trainer = trainer(TrainConfig { groups, ..TrainConfig::default() });
        let mut norms = Norms::default();
        trainer.run(&mut Eager::acquire().unwrap(), &mut norms).unwrap();
        assert!(norms.0.len() == 2 && norms.0.iter().all(|norm| (*norm > 0.0) == learns), "{host_rate}: {:?}", norms.0);
        assert!(trainer.refitted_engine().unwrap().is_none(), "the network has not changed");
    }
}

/// The loss is a number, and the gradient of the host, which stays as it is, is none: nothing is skipped for it.
#[test]
fn a_gradient_that_moves_nothing_spoils_nothing() {
    for groups in [GroupsConfig { host_rate: 0.0, ..GroupsConfig::default() }, GroupsConfig::default()] {
        let root = Var::zeros(1, DType::F32, &Device::Cpu).unwrap();
        let forward = {
            let root = root.clone();
            move |x: &Tensor| x.broadcast_add(&(root.as_tensor() - root.as_detached_tensor())?.sqrt()?)
        };
        let model = PlainModel::new(vec![("root".to_owned(), root)], forward).unwrap();
        let mut trainer = trainer_of(TrainConfig { groups, ..TrainConfig::default() }, model);
        let mut norms = Norms::default();
        let ended = trainer.run(&mut Eager::acquire().unwrap(), &mut norms);
        if groups.host_rate > 0.0 {
            assert!(matches!(ended, Err(Error::Diverged { .. })), "{ended:?}");
        } else {
            assert_eq!((ended.unwrap(), norms.0), (Outcome::Completed, vec![0.0; 2]));
        }
    }
}

#[test]
fn a_run_that_averages_does_not_go_on_from_one_that_did_not() {
    let mut eager = Eager::acquire().unwrap();
    let config = |ema_decay| TrainConfig {
        optimizer: OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 },
        ema_decay,
        ..TrainConfig::default()
    };
    let mut plain = trainer(config(None));
    plain.run(&mut eager, &mut NullObserver).unwrap();
    let snapshot = plain.snapshot(&eager).unwrap();
    let told = trainer(config(Some(0.9))).restore(&mut eager, &snapshot).unwrap_err().to_string();
    assert!(told.contains("expected averages of parameters"), "{told}");
}

#[test]
fn a_variable_under_two_names_is_refused() {
    let weight = Var::zeros((2, 2), DType::F32, &Device::Cpu).unwrap();
    let named = ["a", "b"].map(|name| (name.to_owned(), weight.clone())).to_vec();
    let model = PlainModel::new(named, move |x: &Tensor| x.matmul(&weight)).unwrap();
    let told = Trainer::new(TrainConfig::default(), parts(model)).err().unwrap().to_string();
    assert!(told.starts_with("parameters `a` and `b` are one variable"), "{told}");
}

#[test]
fn a_trainer_that_trained_with_a_frozen_number_does_nothing_until_it_is_restored() {
    let mut eager = Eager::acquire().unwrap();
    let mut trainer = trainer(TrainConfig::default());
    let before = trainer.snapshot(&eager).unwrap();
    let refusal = Refusal::FrozenValue { kernel: None, argument: None, message: "a number moved".to_owned() };
    let found = Unconfirmed { first: 3, found: 5, stale: Stale { num_replays: 2, refusal } };
    trainer.executor.frozen = Some((Replayed::Steps, found));
    let is_frozen = |outcome: Result<(), Error>| matches!(outcome, Err(Error::FrozenValue { .. }));
    assert!(is_frozen(trainer.run(&mut eager, &mut NullObserver).map(drop)));
    assert_eq!(trainer.progress(), (EpochIndex(0), StepIndex(0)));
    assert!(is_frozen(trainer.test(&eager).map(drop)));
    assert!(is_frozen(trainer.evaluate_on(&eager, Part::Selecting, &[]).map(drop)));
    assert!(is_frozen(trainer.snapshot(&eager).map(drop)));
    trainer.restore(&mut eager, &before).unwrap();
    assert_eq!(trainer.run(&mut eager, &mut NullObserver).unwrap(), Outcome::Completed);
    assert!(trainer.test(&eager).is_ok());
}

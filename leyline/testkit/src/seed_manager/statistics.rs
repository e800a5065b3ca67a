//! The rule of what a network changes by itself.

use candle_core::Tensor;
use leyline::model::TrainableModel as _;
use leyline::seed::SeedManager;

use crate::rule::{must, succeed};
use crate::seed_manager::SeedManagerHarness;
use crate::seed_manager::driver::Driver;

/// SM-14: what is listed is in the saved state, of its shape and type, and is no parameter.
pub fn sm_14_statistics_are_saved_under_their_names<M: SeedManager>(make: &impl Fn() -> SeedManagerHarness<M>) {
    const RULE: &str = "SM-14";
    let Driver { harness: SeedManagerHarness { manager, .. }, eager, .. } = Driver::new(RULE, make());
    let saved = succeed(RULE, "save", manager.save(&eager));
    for (name, statistic) in manager.statistics() {
        let form = |tensor: &Tensor| (tensor.dims().to_vec(), tensor.dtype());
        let is_saved = saved.tensors.get(name).is_some_and(|tensor| form(tensor) == form(statistic));
        must!(RULE, is_saved, "`{name}` is a statistic, and is not saved");
        let is_parameter = manager.model().parameters().iter().any(|parameter| parameter.name == *name);
        must!(RULE, !is_parameter, "`{name}` is a statistic, and a parameter");
    }
}

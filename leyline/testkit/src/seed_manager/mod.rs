//! Rules SM-1 to SM-15 of [`leyline::seed`] as functions, and the harness they run on.
//!
//! # What tempts
//! A manager that has nothing to export has no reason to look at the token, and every provided method does what exporting
//! does. It compiles, and fails its rule by name:
//! ```
//! # use candle_core::Device;
//! use leyline::command::Order;
//! use leyline::durable::{Durable, SavedState};
//! use leyline::error::ErrorType;
//! use leyline::network::{Network, NetworkError};
//! use leyline::region::Eager;
//! use leyline::seed::{Applied, Evidence, SeedManager, SeedState};
//! use leyline_testkit::seed_manager::{SeedManagerHarness, sm_1_every_method_checks_the_region_first as sm_1};
//! use leyline_testkit::toy::{self, ToyModel};
//!
//! struct NoSeeds(Network<ToyModel>);
//! # impl ErrorType for NoSeeds {
//! #     type Error = NetworkError;
//! # }
//! # impl Durable for NoSeeds {
//! #     fn save(&self, eager: &Eager) -> Result<SavedState, NetworkError> {
//! #         self.0.save(eager)
//! #     }
//! #     fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), NetworkError> {
//! #         self.0.restore(eager, saved)
//! #     }
//! # }
//!
//! impl SeedManager for NoSeeds {
//!     type Model = ToyModel;
//!     fn model(&self) -> &ToyModel {
//!         self.0.model()
//!     }
//!     fn apply(&mut self, eager: &mut Eager, order: &Order) -> Result<Applied, NetworkError> {
//!         Err(self.0.refusal(eager, order))
//!     }
//!     fn export_seed_states(&self, _eager: &Eager) -> Result<Vec<SeedState>, NetworkError> {
//!         Ok(Vec::new()) // wrong: `self.0.check(eager)?` is missing
//!     }
//! #   fn record_evidence(&mut self, eager: &Eager, evidence: &[Evidence]) -> Result<(), NetworkError> {
//! #       self.0.refuse_evidence(eager, evidence)
//! #   }
//! }
//!
//! let harness = || {
//!     let network = Network::new(ToyModel::new(0, &Device::Cpu).expect("a model"));
//!     SeedManagerHarness::new(NoSeeds(network), toy::blobs(4, 1, &Device::Cpu).expect("a batch")).without_slots()
//! };
//! let failure = std::panic::catch_unwind(|| sm_1(&harness)).unwrap_err();
//! let message = failure.downcast_ref::<String>().expect("a message");
//! assert!(message.starts_with("SM-1: train_for under a capture was accepted"), "{message}");
//! ```
//! # A manager with seeds
//! The double that others test against, whole; [`ToyModel`](crate::toy::ToyModel) is its network and
//! [`Lifecycle`](crate::Lifecycle) the table of moves:
//! ```
#![doc = include_str!("../fake_seed_manager.rs")]
//! # fn main() {}
//! ```

mod confirmation;
mod harness;
mod driver;
mod rules;
mod statistics;

pub use confirmation::sm_15_a_gain_is_confirmed_once;
pub use harness::SeedManagerHarness;
pub use rules::{
    sm_1_every_method_checks_the_region_first, sm_2_states_are_ordered_and_complete, sm_3_a_refusal_changes_nothing,
    sm_4_attribution_names_only_seeds_that_act, sm_5_the_revision_grows_with_the_computation,
    sm_6_an_unknown_seed_is_refused, sm_7_an_illegal_move_is_refused, sm_8_a_forged_order_is_rejected_unread,
    sm_9_evidence_is_kept_for_all_or_for_none, sm_10_a_paused_seed_takes_no_part_and_comes_back,
    sm_11_a_thread_started_inside_a_region_is_refused, sm_12_losses_are_those_of_the_task_told_last,
    sm_13_a_seed_that_was_removed_is_out_of_the_network,
};
pub use statistics::sm_14_statistics_are_saved_under_their_names;

/// One `#[test]` per rule SM-1 to SM-15. The argument is a function or closure without arguments that builds a fresh
/// [`SeedManagerHarness`](crate::seed_manager::SeedManagerHarness).
#[macro_export]
macro_rules! seed_manager_conformance {
    ($make:expr) => {
        $crate::__one_test_per_rule!(
            seed_manager,
            $make,
            sm_1_every_method_checks_the_region_first,
            sm_2_states_are_ordered_and_complete,
            sm_3_a_refusal_changes_nothing,
            sm_4_attribution_names_only_seeds_that_act,
            sm_5_the_revision_grows_with_the_computation,
            sm_6_an_unknown_seed_is_refused,
            sm_7_an_illegal_move_is_refused,
            sm_8_a_forged_order_is_rejected_unread,
            sm_9_evidence_is_kept_for_all_or_for_none,
            sm_10_a_paused_seed_takes_no_part_and_comes_back,
            sm_11_a_thread_started_inside_a_region_is_refused,
            sm_12_losses_are_those_of_the_task_told_last,
            sm_13_a_seed_that_was_removed_is_out_of_the_network,
            sm_14_statistics_are_saved_under_their_names,
            sm_15_a_gain_is_confirmed_once,
        );
    };
}

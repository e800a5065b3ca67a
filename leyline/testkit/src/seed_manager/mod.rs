//! Rules SM-1 to SM-11 of [`leyline::seed`] as functions, and the harness they run on.

mod harness;
mod driver;
mod rules;

pub use harness::SeedManagerHarness;
pub use rules::{
    sm_1_every_method_checks_the_region_first, sm_2_states_are_ordered_and_complete, sm_3_a_refusal_changes_nothing,
    sm_4_attribution_names_only_seeds_that_act, sm_5_the_revision_grows_with_the_computation,
    sm_6_an_unknown_seed_is_refused, sm_7_an_illegal_move_is_refused, sm_8_a_forged_command_is_rejected_unread,
    sm_9_evidence_is_kept_for_all_or_for_none, sm_10_a_paused_seed_takes_no_part_and_comes_back,
    sm_11_a_thread_started_inside_a_region_is_refused,
};

/// One `#[test]` per rule SM-1 to SM-11. The argument is a function or closure without arguments that builds a fresh
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
            sm_8_a_forged_command_is_rejected_unread,
            sm_9_evidence_is_kept_for_all_or_for_none,
            sm_10_a_paused_seed_takes_no_part_and_comes_back,
            sm_11_a_thread_started_inside_a_region_is_refused,
        );
    };
}

//! The public type and its configuration, on the CPU.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use candle_core::Device;
use leyline::region::Eager;
use proptest::prelude::*;

use super::{affine, calls, cases, contents, expected, matrix};
use crate::function::{GraphFunction, GraphFunctionConfig};
use crate::key::{ExecutionMode, GraphKey};
use crate::manager::GraphManager;
use crate::reason::Refusal;

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn on_the_cpu_every_call_is_that_of_the_function_and_nothing_is_captured(calls in calls()) {
        let mut eager = Eager::acquire().unwrap();
        let manager = GraphManager::new();
        let mut function = GraphFunction::new(affine, GraphFunctionConfig::default(), &manager);
        for (index, &(rows, seed, in_place)) in calls.iter().enumerate() {
            let x = matrix(rows, seed);
            let found = if in_place {
                contents(function.call_in_place(&mut eager, &[&x]).unwrap())
            } else {
                contents(&function.call(&mut eager, &[&x]).unwrap())
            };
            prop_assert_eq!(found, expected(&[&x]));
            prop_assert_eq!(function.last_refusal(&[&x]).map(Refusal::name), Some("unsupported"));
            prop_assert_eq!(function.stats().total.fallbacks, index as u64 + 1);
        }
        prop_assert_eq!((manager.totals().captures, manager.totals().replays), (0, 0));
        prop_assert_eq!(function.graphs.executor.num_warming(), 0);
    }
}

#[test]
fn tags_are_part_of_the_key() {
    let tags = BTreeMap::from([("weights".to_owned(), "ema".to_owned())]);
    let config = GraphFunctionConfig { tags: tags.clone(), ..GraphFunctionConfig::default() };
    let mut function = GraphFunction::new(affine, config, &GraphManager::new());
    let x = matrix(2, 0);
    function.call(&mut Eager::acquire().unwrap(), &[&x]).unwrap();
    let keys: Vec<GraphKey> = function.stats().per_key.into_keys().collect();
    let mut wanted = GraphKey::new(ExecutionMode::Infer, &Device::Cpu).input(&x);
    wanted.tags = tags;
    assert_eq!(keys, [wanted]);
}

#[test]
fn a_function_may_be_sent_to_another_thread() {
    fn check<T: Send>(_: &T) {}
    check(&GraphFunction::new(affine, GraphFunctionConfig::default(), &GraphManager::new()));
}

#[test]
fn missing_fields_of_a_configuration_have_their_defaults() {
    let config: GraphFunctionConfig = serde_json::from_str(r#"{"warmup_calls": 3}"#).unwrap();
    assert_eq!(config, GraphFunctionConfig { warmup_calls: NonZeroU32::new(3).unwrap(), ..Default::default() });
    assert!(serde_json::from_str::<GraphFunctionConfig>(r#"{"warmup_calls": 0}"#).is_err());
    assert!(serde_json::from_str::<GraphFunctionConfig>(r#"{"warmups": 3}"#).is_err());
}

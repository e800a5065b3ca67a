//! Prints what a policy decides on a sequence of states.
//!
//! `cargo run -p tamiyo --example replay_decisions [STATES.jsonl] [CONFIG.json]`: one
//! [`SystemState`] per line, and a [`TamiyoConfig`]. Without states, the life of one seed that helps.

use std::error::Error;
use std::io::Write;
use std::sync::Arc;

use leyline::clock::SystemClock;
use leyline::policy::Policy;
use leyline::state::SystemState;
use leyline::telemetry::NullRecorder;
use tamiyo::{Tamiyo, TamiyoConfig};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let lines = match arguments.next() {
        Some(path) => std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?,
        None => one_life().join("\n"),
    };
    let config = match arguments.next() {
        Some(path) => serde_json::from_str(&std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?)?,
        None => TamiyoConfig::default(),
    };
    let mut out = std::io::stdout().lock();
    let mut policy = Tamiyo::new(config, Arc::new(SystemClock::new()), Arc::new(NullRecorder))?;
    for (index, line) in lines.lines().enumerate() {
        let state: SystemState = serde_json::from_str(line).map_err(|error| format!("line {}: {error}", index + 1))?;
        let decision = policy.decide(&state)?;
        for order in &decision.orders {
            writeln!(out, "epoch {:>3}  {}  [{}]", state.epoch, order.operation, order.reason)?;
        }
        for waiting in &decision.waiting {
            writeln!(out, "epoch {:>3}  wait  [{}: {}]", state.epoch, waiting.rule, waiting.detail)?;
        }
    }
    Ok(())
}

/// States of a run of 40 epochs in which the default policy lets one seed grow: stage, its first epoch, its length.
fn one_life() -> Vec<String> {
    const STAGES: [(&str, u64, u64); 5] =
        [("germinated", 5, 1), ("training", 6, 5), ("blending", 11, 3), ("holding", 14, 3), ("fossilized", 17, 1)];
    (1..18)
        .map(|epoch: u64| {
            let now = STAGES.iter().find(|(_, first, len)| (*first..first + len).contains(&epoch));
            let seed = now.map_or(String::new(), |&(stage, first, len)| {
                let in_stage = epoch - first + 1;
                let alpha = match stage {
                    "blending" => in_stage as f64 / len as f64,
                    "holding" | "fossilized" => 1.0,
                    _ => 0.0,
                };
                let mode = if stage == "blending" && in_stage < len { "up" } else { "hold" };
                let gain = 0.05 + 0.001 * epoch as f64;
                format!(
                    r#"{{"seed_id":"seed-1","slot":"hidden-0","blueprint":"mlp","stage":"{stage}",
                    "age_epochs":{epoch},"epochs_in_stage":{in_stage},"alpha":{alpha},"alpha_target":1.0,
                    "alpha_mode":"{mode}","num_parameters":100,"last_gate":null,
                    "counterfactual_epoch":{epoch},"gradient_epoch":{epoch},
                    "counterfactual":{{"loss_gain":{gain},"std_error":0.01,"accuracy_gain_pp":1.0,"num_samples":400}},
                    "gradient":{{"norm":0.1,"host_ratio":1.0,"health":1.0}}}}"#
                )
            });
            let occupant = if seed.is_empty() || epoch >= 17 { "null" } else { r#""seed-1""# };
            let state = format!(
                r#"{{"run_id":"example","epoch":{epoch},"num_epochs":40,"step":{},"steps_per_epoch":50,"topology":1,
                "host_parameters":1000,"train":null,"gradient_norm":null,"conflict_ratio":null,
                "validation":{{"loss":0.5,"accuracy":0.8,"num_samples":400}},"seeds":[{seed}],
                "slots":[{{"slot":"hidden-0","occupant":{occupant},"num_fossilized":0,
                "offers":[{{"blueprint":"mlp","num_parameters":100}}]}}]}}"#,
                epoch * 50
            );
            state.replace('\n', " ")
        })
        .collect()
}

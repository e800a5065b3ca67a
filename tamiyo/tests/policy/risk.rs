//! What speaks against growing (R-52): when each rule fires, and what it holds back.

use std::sync::Arc;

use leyline::durable::SavedState;
use leyline::seed::{SeedStage, SeedState};
use leyline::state::SystemState;
use leyline::telemetry::{NullRecorder, Recorder};
use leyline_testkit::recording_recorder::RecordingRecorder;
use tamiyo::Tamiyo;

use crate::support::{config, decide, restore, save, score, seed, slot, state, told, try_tamiyo};

/// What the clock orders for [`lived`] where nothing speaks against it.
const ALL: [&str; 5] = [
    "schedule: fossilize seed-4",
    "schedule: start_training seed-1",
    "schedule: start_blending seed-2 to 1 in 10 steps",
    "schedule: hold seed-3",
    "schedule: germinate mlp in e",
];

fn with(risk: &str, recorder: Arc<dyn Recorder>) -> Tamiyo {
    let germinations = [r#"{"epoch":1}"#; 12].join(",");
    let json = format!(
        r#"{{"policy":"fixed","risk":{{{risk}}},"fixed":{{"training_epochs":1,"ramp_epochs":1,"holding_epochs":1,
            "germinations":[{germinations}]}}}}"#
    );
    try_tamiyo(config(&json), recorder).unwrap()
}

/// An epoch with a validation loss, a seed in each stage and a free slot.
fn lived(epoch: u64, loss: f64) -> SystemState {
    let stages = [SeedStage::Germinated, SeedStage::Training, SeedStage::Blending, SeedStage::Holding];
    let seeds = (1..).zip(["a", "b", "c", "d"]).zip(stages).map(|((id, at), stage)| seed(id, at, stage, 1));
    let slots = ["a", "b", "c", "d", "e"].map(|name| slot(name, &[("mlp", 10)]));
    SystemState { validation: Some(score(loss)), ..state(epoch, seeds.collect(), slots.into()) }
}

/// What is told, but that there is more to germinate than there are slots.
fn ordered(policy: &mut Tamiyo, state: &SystemState) -> Vec<String> {
    told(&decide(policy, state)).into_iter().filter(|told| told != "schedule_blocked").collect()
}

/// What is told at the last of these states.
fn last(risk: &str, states: impl IntoIterator<Item = SystemState>) -> Vec<String> {
    let mut policy = with(risk, Arc::new(NullRecorder));
    states.into_iter().map(|state| ordered(&mut policy, &state)).last().unwrap()
}

fn losses(losses: &[f64]) -> Vec<SystemState> {
    (1..).zip(losses).map(|(epoch, loss)| lived(epoch, *loss)).collect()
}

/// `rule` at most cautions: what does not grow goes on.
#[track_caller]
fn cautions(told: &[String], rule: &str) {
    assert_eq!(told, ["schedule: start_training seed-1", "schedule: hold seed-3", rule, rule, rule]);
}

#[track_caller]
fn pauses(told: &[String], rule: &str) {
    assert_eq!(told, [rule; 5]);
}

#[test]
fn a_loss_that_rises_holds_growth_back_and_one_that_rises_much_everything() {
    // In parts of the first loss, 2: up to 0.15 nothing, up to 0.3 caution.
    assert_eq!(last("", losses(&[2.0, 1.0, 1.29])), ALL);
    cautions(&last("", losses(&[2.0, 1.0, 1.31])), "loss_warning");
    cautions(&last("", losses(&[2.0, 1.0, 1.59])), "loss_warning");
    pauses(&last("", losses(&[2.0, 1.0, 1.61])), "loss_spike");
    // As much in one of the smaller loss that it has become is little.
    assert_eq!(last("", losses(&[2.0, 0.01, 0.1])), ALL);
    assert_eq!(last("", losses(&[2.0, 1.0, 0.1])), ALL, "a fall is no risk");
    // Nothing grows where the loss is not known, and nothing is compared across that.
    cautions(&last("", losses(&[2.0, 1.0, f64::NAN])), "loss_unmeasured");
    cautions(&last("", [SystemState { validation: None, ..lived(1, 1.0) }]), "loss_unmeasured");
    assert_eq!(last("", losses(&[2.0, 1.0, f64::NAN, 1.9])), ALL);
    assert_eq!(last("", losses(&[f64::NAN, f64::INFINITY, 1.0, 1.9])), ["loss_spike"; 5]);
    pauses(&last(r#""loss_spike":{"max_rise":0.01}"#, losses(&[2.0, 1.0, 1.03])), "loss_spike");
    assert_eq!(last(r#""off":["loss_spike","loss_warning"]"#, losses(&[2.0, 1.0, 1.9])), ALL);
}

#[test]
fn after_a_spike_nothing_grows_for_some_epochs_also_across_a_resume() {
    let quiet = [2.0, 1.0, 1.7, 1.0, 1.0, 1.0, 1.0];
    let told_in = |resumed: bool| {
        // The volatility remembers it for longer.
        let settings = r#""off":["loss_volatility"]"#;
        let mut policy = with(settings, Arc::new(NullRecorder));
        let each = losses(&quiet).into_iter().map(|state| {
            if resumed {
                let saved = save(&policy);
                policy = with(settings, Arc::new(NullRecorder));
                restore(&mut policy, &saved).unwrap();
            }
            ordered(&mut policy, &state)
        });
        each.collect::<Vec<_>>()
    };
    let told = told_in(false);
    pauses(&told[2], "loss_spike");
    (3..6).for_each(|epoch| pauses(&told[epoch], "conservative_mode"));
    assert_eq!(told[6], ALL);
    assert_eq!(told_in(true), told);
    assert_eq!(last(r#""conservative_mode":{"epochs":0}"#, losses(&quiet[..4])), ALL);
}

/// No policy remembers a germination that did not come.
#[test]
fn what_is_due_while_nothing_may_grow_comes_afterwards() {
    let json = r#"{"policy":"fixed","risk":{"off":["loss_volatility"]},"fixed":{"germinations":[{"epoch":3}]}}"#;
    let mut policy = try_tamiyo(config(json), Arc::new(NullRecorder)).unwrap();
    let free = |epoch, loss| SystemState { seeds: Vec::new(), ..lived(epoch, loss) };
    let mut each = [1.0, 1.0, 1.5, 1.5, 1.5, 1.5, 1.5].into_iter().zip(1..).map(|(loss, epoch)| {
        decide(&mut policy, &SystemState { slots: vec![slot("e", &[("mlp", 10)])], ..free(epoch, loss) })
    });
    assert_eq!(each.by_ref().take(6).map(|decision| decision.orders.len()).sum::<usize>(), 0);
    assert_eq!(told(&each.next().unwrap()), ["schedule: germinate mlp in e"]);
}

/// A run that began before there were rules has not kept what they compare with.
#[test]
fn a_run_of_an_earlier_version_goes_on_without_rules() {
    let mut policy = with("", Arc::new(NullRecorder));
    losses(&[2.0, 1.0]).iter().for_each(|state| drop(decide(&mut policy, state)));
    let saved = save(&policy);
    let mut json: serde_json::Value = serde_json::from_str(&saved.json).unwrap();
    json.as_object_mut().unwrap().remove("risk").unwrap();
    let earlier = SavedState { json: json.to_string(), ..SavedState::default() };
    for (saved, expected) in [(saved, &["loss_spike"; 5][..]), (earlier, &ALL[..])] {
        let mut resumed = with("", Arc::new(NullRecorder));
        restore(&mut resumed, &saved).unwrap();
        assert_eq!(ordered(&mut resumed, &lived(3, 1.9)), expected);
        assert_eq!(save(&resumed).json, {
            let mut again = with("", Arc::new(NullRecorder));
            restore(&mut again, &save(&resumed)).unwrap();
            save(&again).json
        });
    }
}

#[test]
fn a_loss_or_a_gradient_that_swings_holds_growth_back() {
    // Two falls and two rises of 0.1 in parts of the first loss, 1: 0.0707.
    let swing = [1.0, 0.9, 1.0, 0.9, 1.0];
    let swings =
        |max: f64| last(&format!(r#""off":["loss_warning"],"loss_volatility":{{"max":{max}}}"#), losses(&swing));
    cautions(&swings(0.070), "loss_volatility");
    assert_eq!(swings(0.071), ALL);
    let falls: Vec<f64> = (0..9).map(|epoch| 1.0 / (1.0 + f64::from(epoch))).collect();
    assert_eq!(
        last(r#""loss_volatility":{"max":0.001}"#, losses(&falls)),
        ALL,
        "a fall is none, however fast it was at first"
    );

    // 1 and 3 in turns: variance 1, mean 2.
    let norms = |max: f64, count: usize| {
        let of = |(epoch, norm)| SystemState { gradient_norm: Some(norm), ..lived(epoch, 1.0) };
        let states = (1..).zip([1.0, 3.0].into_iter().cycle()).map(of).take(count);
        last(&format!(r#""gradient_variance":{{"max":{max}}}"#), states.collect::<Vec<_>>())
    };
    cautions(&norms(0.249, 4), "gradient_variance");
    assert_eq!(norms(0.251, 4), ALL);
    assert_eq!(norms(0.249, 3), ALL, "too few to tell");
}

#[test]
fn owners_that_conflict_hold_growth_back_and_a_seed_that_leaks_all_but_its_cull() {
    let conflict = |ratio| SystemState { conflict_ratio: ratio, ..lived(1, 1.0) };
    assert_eq!(last("", [conflict(None)]), ALL);
    assert_eq!(last("", [conflict(Some(0.5))]), ALL);
    cautions(&last("", [conflict(Some(0.51))]), "gradient_conflict");

    let leaky = |stage| SeedState { isolation_violations: 1, ..seed(9, "e", stage, 1) };
    let beside = |stage| {
        let lived = lived(1, 1.0);
        SystemState { seeds: lived.seeds.iter().cloned().chain([leaky(stage)]).collect(), ..lived }
    };
    pauses(&last("", [beside(SeedStage::Training)])[..5], "isolation_violation");
    assert_eq!(last("", [beside(SeedStage::Fossilized)]), ALL, "it is the host's by now");
    let json = r#"{"policy":"heuristic"}"#;
    let mut rules = try_tamiyo(config(json), Arc::new(NullRecorder)).unwrap();
    let shown = state(1, vec![leaky(SeedStage::Training)], vec![slot("e", &[("mlp", 10)])]);
    assert_eq!(told(&decide(&mut rules, &shown))[0], "training_leaks: cull seed-9");
}

#[test]
fn a_rule_is_told_when_it_begins_and_counted_as_long_as_it_fires() {
    let recorder = Arc::new(RecordingRecorder::new());
    let count = |rule: &str| recorder.counter_value("tamiyo.risk.total", &[rule]);
    let mut policy = with(r#""off":["loss_volatility"]"#, recorder.clone());
    assert_eq!(count("loss_warning"), Some(0), "it is there from the start");
    losses(&[1.0, 1.2, 1.4, 1.4, 1.6]).iter().for_each(|state| drop(decide(&mut policy, state)));
    assert_eq!(count("loss_warning"), Some(3));
    let events = recorder.events_named("tamiyo.risk");
    let told: Vec<String> = events.iter().map(|event| format!("{event:?}")).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told.iter().all(|event| event.contains("loss_warning") && event.contains("caution")), "{told:?}");
}

#[test]
fn limits_that_cannot_be_used_are_refused_with_the_accepted_ones() {
    let issues =
        config(r#"{"risk":{"loss_spike":{"max_rise":-1.0},"gradient_conflict":{"max_ratio":2.0}}}"#).validate();
    let told: Vec<String> = issues.unwrap_err().iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "`risk.loss_spike.max_rise` is -1: expected 0 to 1000000",
            "`risk.gradient_conflict.max_ratio` is 2: expected 0 to 1"
        ]
    );
    let unknown = serde_json::from_str::<tamiyo::TamiyoConfig>(r#"{"risk":{"off":["loss"]}}"#).unwrap_err();
    assert!(unknown.to_string().contains("expected one of `loss_spike`"), "{unknown}");
}

//! What surrounds every policy: reasons, refusing states out of order, telemetry, saving and restoring.

use std::sync::Arc;

use leyline::durable::SavedState;
use leyline::error::{Error as _, ErrorKind};
use leyline::policy::Policy;
use leyline::seed::{SeedStage, SeedState};
use leyline::state::SystemState;
use leyline::telemetry::{Event, NullRecorder};
use leyline_testkit::recording_recorder::RecordingRecorder;
use tamiyo::Error;

use crate::support::{config, decide, gain, restore, save, seed, slot, state, tamiyo, try_tamiyo};

const EAGER: &str = r#"{"heuristic":{"plateau":{"patience_epochs":1},"stability":{"epochs":1},
    "germination":{"min_epoch":0}}}"#;

fn quiet(epoch: u64) -> SystemState {
    state(epoch, vec![], vec![slot("a", &[("mlp", 10)])])
}

#[test]
fn every_order_says_its_rule_and_what_it_rests_on() {
    let mut policy = tamiyo(config(EAGER));
    let shown = state(1, vec![seed(1, "a", SeedStage::Germinated, 0), seed(2, "b", SeedStage::Training, 99)], vec![]);
    // Of six inputs, the counterfactual of the seed in training is absent.
    let shown =
        SystemState { train: shown.validation.clone(), gradient_norm: Some(1.0), conflict_ratio: Some(0.0), ..shown };
    let decision = decide(&mut policy, &shown);
    let reasons: Vec<&str> = decision.orders.iter().map(|order| order.reason.as_str()).collect();
    let unproven = "training_unproven: 99 epochs in training, gain not measured, gradient health 1.000";
    assert_eq!(reasons, [unproven, "germinated: next stage at once"]);
    for order in &decision.orders {
        assert_eq!((order.input_coverage, order.sequence, &order.signed), (Some(5.0 / 6.0), None, &None));
    }
    assert_eq!(decision.waiting.len(), 1);
}

#[test]
fn states_out_of_order_are_refused_and_change_nothing() {
    let mut policy = tamiyo(config(EAGER));
    decide(&mut policy, &quiet(1));
    let before = save(&policy).json;

    for ids in [[1, 1], [2, 1]] {
        let seeds = ids.map(|id| seed(id, "a", SeedStage::Training, 1)).to_vec();
        let error = policy.decide(&state(2, seeds, vec![])).unwrap_err();
        assert!(matches!(error, Error::SeedOrder { .. }), "{error}");
        assert_eq!(error.kind(), ErrorKind::Rejected);
    }
    assert_eq!(save(&policy).json, before);
}

#[test]
fn an_unusable_configuration_is_refused_with_all_its_issues() {
    let bad = config(r#"{"heuristic":{"closing_epochs":0},"random":{"rate":2.0}}"#);
    let error = try_tamiyo(bad, Arc::new(NullRecorder)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert_eq!(
        error.to_string(),
        "`heuristic.closing_epochs` is 0: expected at least 1; `random.rate` is 2: expected 0 to 1"
    );
}

#[test]
fn decisions_and_measurements_are_recorded() {
    let recorder = Arc::new(RecordingRecorder::new());
    let mut policy = try_tamiyo(config(EAGER), recorder.clone()).unwrap();
    assert_eq!(recorder.gauge_value("tamiyo.validation_loss", &[]), None);

    decide(&mut policy, &quiet(1));
    assert_eq!(recorder.gauge_value("tamiyo.validation_loss", &[]), Some(1.0));
    assert_eq!(recorder.gauge_value("tamiyo.loss_delta", &[]), None, "there was no loss before");
    assert_eq!(recorder.gauge_value("tamiyo.host.stabilized", &[]), Some(0.0));
    assert_eq!(written(&recorder.events()), ["tamiyo.waiting epoch=1 rule=not_stabilized detail=0 of 1 stable epochs"]);

    decide(&mut policy, &quiet(2));
    assert_eq!(recorder.gauge_value("tamiyo.loss_delta", &[]), Some(0.0));
    assert_eq!(recorder.gauge_value("tamiyo.host.stabilized", &[]), Some(1.0));
    assert_eq!(recorder.gauge_value("tamiyo.plateau_epochs", &[]), Some(1.0));
    assert_eq!(recorder.gauge_value("tamiyo.inference.latency_ms", &[]), Some(0.0));
    assert_eq!(recorder.counter_value("tamiyo.decision.total", &["germinate"]), Some(1));
    assert_eq!(
        written(&recorder.events()[1..]),
        [
            "tamiyo_initiated epoch=2 stable_epochs=1 validation_loss=1",
            "plateau_detected epoch=2 plateau_epochs=1 best_validation_loss=1",
            "tamiyo.decision epoch=2 operation=germinate rule=plateau \
         detail=loss 1.000000, 1 epochs without improvement, untried pair slot=a blueprint=mlp",
        ]
    );

    let measured = SeedState { counterfactual: gain(0.25, 0.1), ..seed(1, "a", SeedStage::Training, 1) };
    decide(&mut policy, &state(3, vec![measured], vec![]));
    assert_eq!(recorder.gauge_value("tamiyo.seed.loss_gain", &["seed-1"]), Some(0.25));
    assert_eq!(recorder.gauge_value("tamiyo.seed.contribution_pp", &["seed-1"]), Some(25.0));
    decide(&mut policy, &state(4, vec![seed(1, "a", SeedStage::Pruned, 0)], vec![]));
    assert_eq!(recorder.gauge_value("tamiyo.seed.loss_gain", &["seed-1"]), None);
    let unmeasured = SystemState { validation: None, ..quiet(5) };
    decide(&mut policy, &unmeasured);
    assert_eq!(recorder.gauge_value("tamiyo.validation_loss", &[]), None);
    let edges = recorder.events().into_iter().filter(|event| event.desc.name != "tamiyo.waiting");
    assert_eq!(edges.count(), 4, "no edge but that of a loss that is not known any more");
}

fn written(events: &[Event]) -> Vec<String> {
    let attribute = |(name, value): &(&str, String)| format!(" {name}={value}");
    events
        .iter()
        .map(|event| event.desc.name.to_owned() + &event.attributes.iter().map(attribute).collect::<String>())
        .collect()
}

#[test]
fn every_descriptor_is_listed_once() {
    let mut names: Vec<&str> = tamiyo::telemetry::METRICS.iter().map(|desc| desc.name).collect();
    names.extend(tamiyo::telemetry::EVENTS.iter().map(|desc| desc.name));
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[track_caller]
fn check_restore(json: &str, kind: ErrorKind, part_of_error: &str) {
    let mut policy = tamiyo(config(EAGER));
    decide(&mut policy, &quiet(1));
    let before = save(&policy).json;
    let error = restore(&mut policy, &SavedState { json: json.to_owned(), ..SavedState::default() }).unwrap_err();
    let mut text = error.to_string();
    if let Some(source) = std::error::Error::source(&error) {
        text = format!("{text}: {source}");
    }
    assert_eq!(error.kind(), kind, "{text}");
    assert!(text.contains(part_of_error), "{text}");
    assert_eq!(save(&policy).json, before, "a refused state changes nothing");
}

#[test]
fn a_saved_state_that_does_not_fit_is_refused_and_changes_nothing() {
    let saved = save(&tamiyo(config(EAGER))).json;
    check_restore("", ErrorKind::Corrupt, "EOF");
    check_restore(&saved[..saved.len() - 2], ErrorKind::Corrupt, "EOF");
    check_restore(&saved.replace("validation_loss", "sequel"), ErrorKind::Corrupt, "unknown field `sequel`");
    check_restore(&saved.replace("\"format\":2", "\"format\":3"), ErrorKind::Corrupt, "`format`");
    let off = save(&tamiyo(config(r#"{"policy":"off"}"#))).json;
    let earlier = saved.replace("\"progress\":{", "\"progress\":{\"sequence\":7,");
    assert_ne!(earlier, saved);
    restore(&mut tamiyo(config(EAGER)), &SavedState { json: earlier, ..SavedState::default() }).unwrap();
    let named_alone = off.replace(r#"{"off":null}"#, r#""off""#);
    assert_ne!(named_alone, off, "as earlier builds wrote it");
    restore(&mut tamiyo(config(r#"{"policy":"off"}"#)), &SavedState { json: named_alone, ..SavedState::default() })
        .unwrap();
    check_restore(&saved.replace("heuristic", "greedy"), ErrorKind::Corrupt, "unknown variant `greedy`");
    let two = saved.replace("\"memory\":{", "\"memory\":{\"off\":null,");
    check_restore(&two, ErrorKind::Corrupt, "invalid length 2, expected the memory of one policy");
    check_restore(&off, ErrorKind::Corrupt, "saved by the policy `off`: expected `heuristic`");
}

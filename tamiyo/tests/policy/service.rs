//! What surrounds every policy: signing, numbering, refusing foreign states, telemetry, saving and restoring.

use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use leyline::command::{Command, KeyId, SignedCommand};
use leyline::durable::SavedState;
use leyline::error::{Error as _, ErrorKind};
use leyline::id::RunId;
use leyline::policy::Policy;
use leyline::seed::{SeedStage, SeedState};
use leyline::state::SystemState;
use leyline::telemetry::{Event, NullRecorder};
use leyline_testkit::recording_recorder::RecordingRecorder;
use sha2::Sha256;
use tamiyo::Error;

use crate::support::{KEY, config, decide, gain, restore, run_id, save, seed, slot, state, tamiyo, try_tamiyo};

const EAGER: &str = r#"{"heuristic":{"plateau":{"patience_epochs":1},"stability":{"epochs":1},
    "germination":{"min_epoch":0}}}"#;

fn quiet(epoch: u64) -> SystemState {
    state(epoch, vec![], vec![slot("a", &[("mlp", 10)])])
}

#[test]
fn commands_are_signed_numbered_and_dated() {
    let mut policy = tamiyo(config(EAGER));
    let seeds = || vec![seed(1, "a", SeedStage::Germinated, 0), seed(2, "b", SeedStage::Training, 99)];
    let mut sequence = 0;
    for epoch in 1..4 {
        let decision = decide(&mut policy, &state(epoch, seeds(), vec![]));
        assert_eq!(decision.commands.len(), 2);
        for (command, signed) in &decision.commands {
            sequence += 1;
            assert_eq!((command.sequence, command.issued_at_unix_ms), (sequence, 1_700_000_000_000));
            assert_eq!(command.run_id, run_id());
            assert_eq!(&Command::from_bytes(&signed.bytes).unwrap(), command);
            assert_eq!(signed.key_id, KeyId(0));
            let mut mac = Hmac::<Sha256>::new_from_slice(&KEY).unwrap();
            mac.update(&SignedCommand::signed_message(KeyId(0), &signed.bytes));
            mac.verify_slice(&signed.tag).unwrap();
        }
    }
}

#[test]
fn commands_name_the_key_they_are_signed_with_and_what_they_rest_on() {
    let mut policy = tamiyo(config(EAGER)).with_key_id(KeyId(77));
    let shown = state(1, vec![seed(1, "a", SeedStage::Germinated, 0), seed(2, "b", SeedStage::Training, 99)], vec![]);
    // Of six inputs, the counterfactual of the seed in training is absent.
    let shown =
        SystemState { train: shown.validation.clone(), gradient_norm: Some(1.0), conflict_ratio: Some(0.0), ..shown };
    let decision = decide(&mut policy, &shown);
    assert!(!decision.commands.is_empty());
    for (command, signed) in &decision.commands {
        assert_eq!(signed.key_id, KeyId(77));
        let mut mac = Hmac::<Sha256>::new_from_slice(&KEY).unwrap();
        mac.update(&SignedCommand::signed_message(KeyId(77), &signed.bytes));
        mac.verify_slice(&signed.tag).unwrap();
        assert_eq!(command.input_coverage, Some(5.0 / 6.0));
    }
}

#[test]
fn numbers_go_on_after_going_back_and_continue_in_a_new_process() {
    let two = |epoch| {
        let seeds = vec![seed(1, "a", SeedStage::Germinated, 0), seed(2, "b", SeedStage::Training, 99)];
        state(epoch, seeds, vec![])
    };
    let numbers = |policy: &mut tamiyo::Tamiyo, epoch| -> Vec<u64> {
        decide(policy, &two(epoch)).commands.iter().map(|(command, _)| command.sequence).collect()
    };
    let mut policy = tamiyo(config(EAGER));
    assert_eq!(numbers(&mut policy, 1), [1, 2]);
    let saved = save(&policy);
    assert_eq!(numbers(&mut policy, 2), [3, 4]);
    restore(&mut policy, &saved).unwrap();
    assert_eq!(numbers(&mut policy, 2), [5, 6], "3 and 4 were given out already");
    let mut fresh = tamiyo(config(EAGER));
    restore(&mut fresh, &saved).unwrap();
    assert_eq!(numbers(&mut fresh, 2), [3, 4]);
}

#[test]
fn every_command_has_its_rationale_in_the_same_place() {
    let mut policy = tamiyo(config(EAGER));
    let shown = state(1, vec![seed(1, "a", SeedStage::Germinated, 0), seed(2, "b", SeedStage::Training, 99)], vec![]);
    let decision = decide(&mut policy, &shown);
    assert_eq!(decision.rationale.len(), decision.commands.len() + 1);
    for ((command, _), rationale) in decision.commands.iter().zip(&decision.rationale) {
        assert_eq!(command.reason, format!("{}: {}", rationale.rule, rationale.detail));
    }
}

#[test]
fn states_that_are_not_of_this_run_or_out_of_order_are_refused_and_change_nothing() {
    let mut policy = tamiyo(config(EAGER));
    decide(&mut policy, &quiet(1));
    let before = save(&policy).json;

    let foreign = SystemState { run_id: RunId::new("run-2").unwrap(), ..quiet(2) };
    let error = policy.evaluate(&foreign).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Rejected);
    assert_eq!(error.to_string(), "the state belongs to run run-2: expected run run-1");

    for ids in [[1, 1], [2, 1]] {
        let seeds = ids.map(|id| seed(id, "a", SeedStage::Training, 1)).to_vec();
        let error = policy.evaluate(&state(2, seeds, vec![])).unwrap_err();
        assert!(matches!(error, Error::SeedOrder { .. }), "{error}");
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
            "tamiyo.decision epoch=2 sequence=1 operation=germinate rule=plateau \
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
    assert_eq!(edges.count(), 3, "no edge, no event");
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
    check_restore(&saved.replace("sequence", "sequel"), ErrorKind::Corrupt, "unknown field `sequel`");
    check_restore(&saved.replace("\"format\":2", "\"format\":3"), ErrorKind::Corrupt, "`format`");
    let off = save(&tamiyo(config(r#"{"policy":"off"}"#))).json;
    check_restore(&off, ErrorKind::Corrupt, "saved by the policy `off`: expected `heuristic`");
}

//! Saving and bringing back: the restored manager continues bit for bit, a failed restore changes nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use candle_core::{DType, Device, Tensor};
use kasmina::KasminaConfig;
use kasmina::isolation::IsolationConfig;
use kasmina::lifecycle::GateConfig;
use leyline::command::{AlphaCurve, Operation};
use leyline::durable::{Durable, SavedState};
use leyline::error::{Error as _, ErrorKind};
use leyline::id::SeedId;
use leyline::model::TrainableModel;
use leyline::region::Eager;
use leyline::seed::{Confirmation, SeedManager, SeedStage};
use serde_json::{Value, json};
use support::{Rig, config, hosts, mlp, ramp};

/// A rig with seeds in several stages, in the middle of a ramp.
fn grown(config: KasminaConfig, eager: Eager) -> Rig {
    let mut rig = Rig::beside(config, eager);
    let slots: Vec<String> = rig.model().host().slots().iter().map(|slot| slot.id.to_string()).collect();
    let permanent = rig.germinate(&slots[1], "mlp");
    rig.bring_to(permanent, SeedStage::Fossilized);
    let blending = rig.germinate(&slots[1], "norm_mlp");
    rig.bring_to(blending, SeedStage::Training);
    for variant in 0..3 {
        rig.descend(variant);
    }
    rig.send(Operation::StartBlending { seed: blending, ramp: ramp(0.8, 9) }).unwrap();
    let learner = rig.germinate(&slots[2], "norm_mlp");
    rig.bring_to(learner, SeedStage::Training);
    let removed = rig.germinate(&slots[0], "mlp");
    rig.bring_to(removed, SeedStage::Embargoed);
    for variant in 3..6 {
        rig.descend(variant);
    }
    rig
}

/// Everything that goes on: steps, epochs, commands, a germination.
fn go_on(rig: &mut Rig) -> Vec<String> {
    let mut trace = Vec::new();
    for round in 0..5 {
        for variant in 0..3 {
            rig.descend(10 * round + variant);
        }
        let transitions = rig.end_epoch();
        let attribution = rig.manager.attribute_batch(&rig.eager, &support::batch(round)).unwrap();
        trace.push(format!("{transitions:?} {attribution:?} {:?} {:?}", rig.states(), rig.parameter_bits()));
    }
    // The slot of the removed seed is free again, and the next number and its weights are the same.
    let slot = rig.model().host().slots()[0].id.to_string();
    let seed = rig.germinate(&slot, "mlp");
    rig.bring_to(seed, SeedStage::Training);
    rig.descend(99);
    trace.push(format!("{seed} {:?} {:?}", rig.fingerprint().3, rig.parameter_bits()));
    trace
}

#[test]
fn a_restored_manager_continues_bit_for_bit() {
    for host in hosts() {
        let mut original = grown(config(host.clone()), Eager::acquire().unwrap());
        let saved = original.manager.save(&original.eager).unwrap();
        let revision = original.model().layout().revision();
        let (step, epoch) = (original.step, original.epoch);
        let expected = go_on(&mut original);

        // Another process: other initial weights and widths until it restores; then the saved ones count.
        let other = KasminaConfig { init_seed: 5, ..config(host) };
        let mut restored = Rig::beside(other, original.eager);
        restored.manager.restore(&mut restored.eager, &saved).unwrap();
        assert_eq!(restored.model().layout().revision(), revision);
        (restored.step, restored.epoch) = (step, epoch);
        assert_eq!(go_on(&mut restored), expected);

        // The same process, which has moved on: a rollback gets a revision that was never used.
        let latest = restored.model().layout().revision();
        restored.manager.restore(&mut restored.eager, &saved).unwrap();
        assert!(restored.model().layout().revision() > latest);
        // Its numbers stay used, so those of the commands go on.
        (restored.step, restored.epoch) = (step, epoch);
        assert_eq!(go_on(&mut restored), expected);
    }
}

#[test]
fn what_was_read_to_confirm_is_not_fresh_again_after_a_way_back_and_is_in_another_process() {
    let measured = Confirmation { loss_gain: -0.1, p_value: 1.0, worst: 1.0, num_samples: 200 };
    let mut rig = Rig::new(config(mlp()));
    let seed = rig.germinate("hidden0", "mlp");
    rig.bring_to(seed, SeedStage::Training);
    rig.manager.confirm_on(&rig.eager, 200).unwrap();
    let saved = rig.manager.save(&rig.eager).unwrap();
    let told = |rig: &Rig| {
        let next = rig.manager.confirming(&rig.eager).unwrap().unwrap();
        (next.num_read, next.level, rig.states()[0].confirmation)
    };
    let before = told(&rig);
    rig.manager.record_confirmation(&rig.eager, seed, &measured).unwrap();
    let read = told(&rig);
    assert!(read.0 == 1 && read.1 < before.1 && read.2.is_some());
    // The same way again: the same answer, at the same level.
    for _ in 0..2 {
        rig.manager.restore(&mut rig.eager, &saved).unwrap();
        assert_eq!(told(&rig), before);
        rig.manager.record_confirmation(&rig.eager, seed, &measured).unwrap();
        assert_eq!(told(&rig), read);
    }
    // Another way: another test.
    for (num_read, share) in [(2, 0.5), (3, 0.25)] {
        rig.manager.restore(&mut rig.eager, &saved).unwrap();
        let other = Confirmation { loss_gain: -share, ..measured };
        rig.manager.record_confirmation(&rig.eager, seed, &other).unwrap();
        let found = told(&rig);
        assert_eq!((found.0, found.1), (num_read, read.1 * share));
    }
    // Another one replays what was not saved, on the same samples and at the same level.
    let mut other = Rig::beside(config(mlp()), rig.eager);
    other.manager.confirm_on(&other.eager, 200).unwrap();
    other.manager.restore(&mut other.eager, &saved).unwrap();
    assert_eq!(told(&other), before);
}

#[test]
fn only_a_manager_that_did_nothing_takes_the_saved_revision_again() {
    let mut rig = Rig::new(config(mlp()));
    let saved = rig.manager.save(&rig.eager).unwrap();
    let revision = rig.model().layout().revision();
    rig.manager.restore(&mut rig.eager, &saved).unwrap();
    assert_eq!(rig.model().layout().revision(), revision, "nothing can have been captured yet");
    rig.manager.restore(&mut rig.eager, &saved).unwrap();
    assert!(rig.model().layout().revision() > revision, "the tensors are other ones than before");
}

#[test]
fn a_seed_is_rebuilt_with_the_width_it_was_born_with() {
    let mut rig = Rig::new(config(mlp()));
    let seed = rig.germinate("hidden0", "mlp");
    rig.bring_to(seed, SeedStage::Training);
    let (saved, states) = (rig.manager.save(&rig.eager).unwrap(), rig.states());
    let mut wider = Rig::beside(KasminaConfig { seed_width: 16, ..config(mlp()) }, rig.eager);
    wider.manager.restore(&mut wider.eager, &saved).unwrap();
    assert_eq!(wider.states(), states);
}

#[test]
fn later_training_does_not_change_what_was_saved() {
    let mut rig = grown(config(mlp()), Eager::acquire().unwrap());
    let saved = rig.manager.save(&rig.eager).unwrap();
    let copies: Vec<_> = saved.tensors.values().map(support::bits).collect();
    for variant in 0..3 {
        rig.descend(variant);
    }
    assert_eq!(saved.tensors.values().map(support::bits).collect::<Vec<_>>(), copies);
}

#[track_caller]
fn check_damage(rig: &mut Rig, saved: &SavedState, part: &str) {
    let (before, document) = (rig.fingerprint(), rig.manager.save(&rig.eager).unwrap().json);
    let error = rig.manager.restore(&mut rig.eager, saved).unwrap_err();
    let source = std::error::Error::source(&error).map_or(String::new(), ToString::to_string);
    assert!(format!("{error} {source}").contains(part), "{error:?} does not mention {part:?}");
    assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Rejected), "{error}");
    assert_eq!(rig.fingerprint(), before, "{part}");
    assert_eq!(rig.manager.save(&rig.eager).unwrap().json, document, "{part}");
}

#[test]
fn a_damaged_state_is_refused_by_name_and_changes_nothing() {
    let source = grown(config(mlp()), Eager::acquire().unwrap());
    let good = source.manager.save(&source.eager).unwrap();
    let mut rig = grown(config(mlp()), source.eager);
    rig.descend(50);
    let with_json = |from: &str, to: &str| {
        assert!(good.json.contains(from), "{from} is not in {}", good.json);
        SavedState { json: good.json.replacen(from, to, 1), tensors: good.tensors.clone() }
    };
    for (from, to, part) in [
        ("\"format\":3", "\"format\":2", "`format` is 2, expected 3"),
        ("\"next_seed\":5", "\"next_seed\":0", "`next_seed` is 0, expected at least 1"),
        ("\"weights_pending\":false", "\"weights_pending\":true", "`seeds.seed-1.weights_pending` is true"),
        ("\"num_parameters\":76", "\"num_parameters\":77", "`seeds.seed-1.num_parameters` is 77, expected 76"),
        ("\"steps_done\":3", "\"steps_done\":9", "`seeds.seed-2.alpha.ramp`"),
        ("\"start\":0.0", "\"start\":0.7", "`seeds.seed-2.alpha.ramp`"),
        ("\"num_moves\":5", "\"num_moves\":4", "`seeds.seed-1.num_moves` is 4, expected at least 5"),
        ("\"classes\":5", "\"classes\":6", "`host` is"),
        (
            "\"next_seed\":5",
            "\"next_seed\":4",
            "`seeds.seed-4.id` is seed-4, expected more than seed-3, less than seed-4",
        ),
        ("\"id\":\"seed-3\"", "\"id\":\"seed-2\"", "`seeds.seed-2.id`"),
        ("\"slot\":\"hidden1\"", "\"slot\":\"hidden0\"", "`seeds.seed-3.slot` is hidden0"),
        ("\"slot\":\"hidden1\"", "\"slot\":\"hidden9\"", "no slot `hidden9`"),
        ("\"blueprint\":\"norm_mlp\"", "\"blueprint\":\"nothing\"", "no blueprint `nothing`"),
        ("\"alpha\":1.0", "\"alpha\":0.5", "`seeds.seed-1.alpha` is 0.5"),
        ("\"alpha\":1.0", "\"alpha\":1.5", "expected a number from 0 to 1"),
        ("\"stage\":\"training\"", "\"stage\":\"shadowing\"", "unknown variant `shadowing`"),
        (
            "\"previous_stage\":\"holding\"",
            "\"previous_stage\":null",
            "`seeds.seed-1.previous_stage` is none, expected holding",
        ),
        (
            "\"to\":\"fossilized\"",
            "\"to\":\"holding\"",
            "`seeds.seed-1.history` is holding, expected legal moves with fossilized at their end",
        ),
        ("\"paused\":false", "\"paused\":true", "`seeds.seed-1.paused` is true"),
        ("\"fading\":null", "\"fading\":\"x\"", "`seeds.seed-1.fading` is present"),
        ("\"gains\":[", "\"gains\":[0,0,0,0,0,0,0,0,", "expected at most 8"),
        (
            "\"unreturned\":[]",
            "\"unreturned\":[{\"seed\":\"seed-9\",\"from\":\"blending\",\"to\":\"pruned\",\"reason\":\"\"}]",
            "`unreturned` is seed-9",
        ),
        ("\"width\":8", "\"width\":9", "expected [4, 9]"),
        ("\"init_seed\"", "\"init_sead\"", "unknown field `init_sead`"),
    ] {
        check_damage(&mut rig, &with_json(from, to), part);
    }
    for name in good.tensors.keys() {
        let mut damaged = good.clone();
        damaged.tensors.remove(name);
        check_damage(&mut rig, &damaged, &format!("saved tensor `{name}` is missing"));
    }
    let mut damaged = good.clone();
    damaged.tensors.insert("seed.0009.x".into(), Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap());
    check_damage(&mut rig, &damaged, "saved tensor `seed.0009.x` belongs to no parameter");
    rig.manager.restore(&mut rig.eager, &good).unwrap();
}

/// Pointers to everything in a document that is no object.
fn fields(value: &Value, at: &str, found: &mut Vec<String>) {
    let below: Vec<(String, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), value)).collect(),
        Value::Array(list) => list.iter().enumerate().map(|(index, value)| (index.to_string(), value)).collect(),
        _ => Vec::new(),
    };
    if !value.is_object() {
        found.push(at.to_owned());
    }
    for (key, value) in below {
        fields(value, &format!("{at}/{key}"), found);
    }
}

/// Other values of a field: of its type and not, small and large.
fn others(value: &Value) -> Vec<Value> {
    let mut others = vec![json!(null), json!(true), json!(false), json!("x"), json!("seed-1"), json!([]), json!(-1)];
    others.extend([0, 1, 2, 9, u64::MAX / 2, u64::MAX - 1, u64::MAX].map(|number| json!(number)));
    others.extend([0.5, 1e300].map(|number| json!(number)));
    if let Value::Array(list) = value {
        others.extend(list.first().map(|first| json!([first, first])));
        others.extend(list.split_last().map(|(_, rest)| json!(rest)));
    }
    if let Some(number) = value.as_u64() {
        others.push(json!(number + 1));
    }
    others.retain(|other| other != value);
    others
}

/// A document without what a restore raises or merges, and with one way to write a number.
fn comparable(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, _)| !["revision", "replay_window"].contains(&key.as_str()));
            kept.map(|(key, value)| (key.clone(), comparable(value))).collect()
        }
        Value::Array(list) => list.iter().map(comparable).collect(),
        Value::Number(number) => json!(number.as_f64().unwrap().to_string()),
        other => other.clone(),
    }
}

#[test]
fn more_confirmations_than_can_be_counted_on_are_refused() {
    let mut rig = Rig::new(config(mlp()));
    let saved = rig.manager.save(&rig.eager).unwrap();
    let mut document: Value = serde_json::from_str(&saved.json).unwrap();
    document["confirmations"]["read"] = json!(u64::MAX);
    let saved = SavedState { json: document.to_string(), ..saved };
    let error = rig.manager.restore(&mut rig.eager, &saved).unwrap_err().to_string();
    assert!(error.contains("confirmations.read") && error.contains("at most"), "{error}");
}

/// Whichever field is damaged, and however: all of the document is taken up or nothing, and what was taken up lives on.
#[test]
fn a_document_with_any_field_altered_is_taken_up_whole_or_not_at_all() {
    let (halted, _) = halted(Eager::acquire().unwrap());
    let good = halted.manager.save(&halted.eager).unwrap();
    let document: Value = serde_json::from_str(&good.json).unwrap();
    let mut pointers = Vec::new();
    fields(&document, "", &mut pointers);
    let mut rig = Rig::beside(config(mlp()), halted.eager);
    rig.germinate("input", "norm_mlp");
    let (mut before, mut own) = (rig.fingerprint(), rig.manager.save(&rig.eager).unwrap());
    let (mut num_refused, mut num_restored) = (0, 0);
    for pointer in &pointers {
        for other in others(document.pointer(pointer).unwrap()) {
            let mut altered = document.clone();
            *altered.pointer_mut(pointer).unwrap() = other.clone();
            let saved = SavedState { json: altered.to_string(), tensors: good.tensors.clone() };
            match rig.manager.restore(&mut rig.eager, &saved) {
                Err(_) => {
                    num_refused += 1;
                    assert_eq!(rig.manager.save(&rig.eager).unwrap().json, own.json, "{pointer} = {other}");
                    assert_eq!(rig.fingerprint(), before, "{pointer} = {other}");
                }
                Ok(()) => {
                    num_restored += 1;
                    let taken: Value = serde_json::from_str(&rig.manager.save(&rig.eager).unwrap().json).unwrap();
                    // A verdict without gate and score is one of an earlier version, and gets both.
                    let derived = other.is_null() && pointer.contains("/last_gate/");
                    assert!(derived || comparable(&taken) == comparable(&altered), "{pointer} = {other}: {taken}");
                    for _ in 0..3 {
                        rig.end_step();
                    }
                    rig.end_epoch();
                    // A new one, with numbers and revision that no altered document has left behind.
                    rig = Rig::beside(config(mlp()), rig.eager);
                    rig.germinate("input", "norm_mlp");
                    (before, own) = (rig.fingerprint(), rig.manager.save(&rig.eager).unwrap());
                }
            }
        }
    }
    assert!(num_refused > 1_000 && num_restored > 50, "{num_refused} were refused and {num_restored} restored");
}

#[test]
fn a_restored_seed_whose_weights_nobody_has_is_removed_and_that_is_told() {
    let mut rig = Rig::new(config(mlp()));
    rig.germinate("hidden0", "mlp");
    let saved = rig.manager.save(&rig.eager).unwrap();
    let waiting = saved.json.replace("\"weights_pending\":false", "\"weights_pending\":true");
    assert_ne!(waiting, saved.json);
    let mut restored = Rig::beside(config(mlp()), rig.eager);
    restored.manager.restore(&mut restored.eager, &SavedState { json: waiting, ..saved }).unwrap();
    let state = restored.state(SeedId(1)).unwrap();
    assert_eq!((state.stage, state.weights_pending, state.num_parameters), (SeedStage::Pruned, false, 0));
    assert_eq!(restored.model().role(SeedId(1)), None);
    let moves: Vec<_> = restored.end_epoch().iter().map(|moved| (moved.from, moved.to)).collect();
    assert_eq!(moves[0], (SeedStage::Germinated, SeedStage::Pruned));
}

#[test]
fn a_restore_that_is_refused_leaves_a_new_manager_untouched() {
    let mut rig = Rig::new(config(mlp()));
    let saved = rig.manager.save(&rig.eager).unwrap();
    let revision = rig.model().layout().revision();
    let damaged = SavedState { json: saved.json.replace("\"format\":3", "\"format\":9"), ..saved.clone() };
    rig.manager.restore(&mut rig.eager, &damaged).unwrap_err();
    rig.manager.restore(&mut rig.eager, &saved).unwrap();
    assert_eq!(rig.model().layout().revision(), revision);
}

#[test]
fn an_epoch_that_is_taken_up_in_its_middle_is_not_audited_again() {
    let audits = |rig: &Rig| rig.recorder.counter_value("kasmina.isolation.audits_total", &[]);
    let leaks = |rig: &Rig| rig.recorder.gauge_value("kasmina.seed.isolation.dot", &["seed-1"]);
    let isolation = IsolationConfig { check_every_epochs: 1, strict: false };
    let gates = GateConfig { training_min_epochs: 0, ..GateConfig::default() };
    let every_epoch = KasminaConfig { gates, isolation, ..config(mlp()) };
    let mut rig = Rig::new(every_epoch.clone());
    let seed = rig.germinate("hidden0", "mlp");
    rig.send(Operation::StartTraining { seed }).unwrap();
    rig.manager.attribute_batch(&rig.eager, &support::batch(1)).unwrap();
    let saved = rig.manager.save(&rig.eager).unwrap();
    rig.end_epoch();
    assert_eq!((audits(&rig), leaks(&rig)), (Some(1), Some(0.0)));
    rig.manager.restore(&mut rig.eager, &saved).unwrap();
    assert_eq!(leaks(&rig), None, "nothing was audited since");

    let mut restored = Rig::beside(every_epoch, rig.eager);
    restored.manager.restore(&mut restored.eager, &saved).unwrap();
    for (end_epoch, expected) in [(false, 0), (false, 0), (true, 1), (false, 1)] {
        if end_epoch {
            restored.end_epoch();
        }
        restored.manager.attribute_batch(&restored.eager, &support::batch(1)).unwrap();
        assert_eq!(audits(&restored).unwrap_or(0), expected);
    }
    restored.good_evidence(seed);
    restored.end_epoch();
    assert_eq!(leaks(&restored), Some(0.0));
    restored.send(Operation::StartBlending { seed, ramp: ramp(1.0, 3) }).unwrap();
    assert_eq!(leaks(&restored), None, "it is not in the shadow any more");
}

/// A paused seed in the middle of its ramp, a fading one, and one that has just faded away.
fn halted(eager: Eager) -> (Rig, [SeedId; 3]) {
    let mut rig = Rig::beside(config(mlp()), eager);
    let seeds = ["input", "hidden0", "hidden1"].map(|slot| rig.germinate(slot, "mlp"));
    for seed in seeds {
        rig.bring_to(seed, SeedStage::Training);
        rig.fill(seed, 0.3);
        rig.send(Operation::StartBlending { seed, ramp: ramp(1.0, 6) }).unwrap();
    }
    let [paused, fading, faded] = seeds;
    rig.end_step();
    rig.send(Operation::Pause { seed: paused }).unwrap();
    rig.send(Operation::CullGradually { seed: fading, steps: 4, curve: AlphaCurve::Sigmoid }).unwrap();
    rig.send(Operation::CullGradually { seed: faded, steps: 1, curve: AlphaCurve::Sigmoid }).unwrap();
    rig.end_step();
    assert_eq!(rig.stage(faded), Some(SeedStage::Pruned));
    (rig, seeds)
}

/// What follows, told seed by seed.
fn afterwards(rig: &mut Rig, [paused, fading, faded]: [SeedId; 3]) -> Vec<String> {
    let mut trace = vec![format!("{:?} {:?}", rig.fingerprint(), rig.end_epoch())];
    rig.send(Operation::Resume { seed: paused }).unwrap();
    for variant in 0..5 {
        rig.descend(variant);
        trace.push(format!("{:?} {:?}", rig.states(), rig.parameter_bits()));
    }
    trace.push(format!("{:?}", rig.end_epoch()));
    for seed in [paused, fading, faded] {
        trace.push(format!("{:?}", rig.manager.history(seed).unwrap().collect::<Vec<_>>()));
    }
    trace
}

#[test]
fn pauses_fades_and_what_is_still_to_be_returned_are_part_of_the_state() {
    let (mut original, seeds) = halted(Eager::acquire().unwrap());
    let saved = original.manager.save(&original.eager).unwrap();
    let (step, epoch) = (original.step, original.epoch);
    let expected = afterwards(&mut original, seeds);
    assert!(expected[0].contains("to: Pruned"), "the removal between epochs is returned: {}", expected[0]);
    assert_eq!(expected.iter().filter(|line| line.contains("from: Blending, to: Pruned")).count(), 4, "{expected:?}");

    let mut restored = Rig::beside(config(mlp()), original.eager);
    restored.manager.restore(&mut restored.eager, &saved).unwrap();
    (restored.step, restored.epoch) = (step, epoch);
    assert_eq!(afterwards(&mut restored, seeds), expected);
}

//! What stands on the screen, and that the terminal comes back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use leyline::id::{EpochIndex, SeedId, StepIndex};
use leyline::seed::SeedStage;
use leyline::state::{ACCURACY, Score};
use ratatui::backend::TestBackend;
use tolaria::trainer::report::{EpochReport, TransitionRecord};
use tolaria::trainer::{Best, RunEvent, StepEvaluation};

use super::terminal::Control;
use super::*;
use crate::progress::tests::report;

/// A run of 20 epochs, ten of them done, in which one seed is kept and another lives.
fn state() -> RunState {
    let mut state = RunState::new(20);
    for epoch in 1..=10 {
        let first = match epoch {
            1..=2 => SeedStage::Germinated,
            3..=5 => SeedStage::Training,
            6..=7 => SeedStage::Blending,
            _ => SeedStage::Fossilized,
        };
        let seeds = [(1, first, 1.0), (2, SeedStage::Holding, 0.75)];
        let score = |loss| Score::new(loss, 100).with(ACCURACY, 1.0 - loss / 4.0);
        let (train, validation) = (Some(score(2.0 / epoch as f64)), score(2.2 / epoch as f64));
        let seeds = if epoch < 9 { &seeds[..1] } else { &seeds };
        state.epoch(&EpochReport { train, validation, ..report(epoch, seeds) });
    }
    state.event(&RunEvent::Best(Best { epoch: EpochIndex(10), step: StepIndex(10), loss: 0.22 }));
    state.running = Duration::from_secs(20);
    state
}

/// The screen, row by row.
fn screen(state: &RunState, width: u16, height: u16, is_stopping: bool) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state, Look { has_color: false, is_stopping })).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(row).collect()
}

#[track_caller]
fn check(rows: &[String], expected: &[&str]) {
    let text = rows.join("\n");
    for part in expected {
        assert!(text.contains(part), "`{part}` is missing:\n{text}");
    }
}

#[test]
fn a_screen_of_80_by_24_shows_curves_seeds_events_speed_and_the_time_left() {
    let mut state = state();
    state.note("a line");
    let rows = screen(&state, 80, 24, false);
    check(&rows, &["epoch 10/20", "50 samples/s", "00:20 running", "00:00 left", "q stops and writes a checkpoint"]);
    check(&rows, &["loss train 0.2000 validation 0.2200", "accuracy train 95.0% validation 94.5%"]);
    check(&rows, &["best validation loss 0.2200 at epoch 10", "events", "a line"]);
    check(&rows, &["seed-1 mlp in hidden", "seed-2 mlp in hidden", "0.75", "x removed"]);
    // Ten epochs over 46 columns: two of them germinated, three in training, two blending, three fossilized.
    let bands = [&[('g', 2), ('t', 3), ('b', 2), ('F', 3)][..], &[(' ', 8), ('h', 2)]];
    for (row, stages) in rows.iter().filter(|row| row.starts_with("seed-")).zip(bands) {
        let band: String = row.chars().skip(34).collect();
        let mut order: Vec<char> = band.chars().collect();
        order.dedup();
        assert_eq!(order, stages.iter().map(|(letter, _)| *letter).collect::<Vec<_>>(), "{band}");
        for (letter, epochs) in stages {
            assert!(band.matches(*letter).count().abs_diff(epochs * 46 / 10) <= 1, "{band}");
        }
    }
    let dots = |chars: std::ops::RangeInclusive<char>| {
        rows.iter().flat_map(|row| row.chars()).filter(|c| chars.contains(c)).count()
    };
    assert!(dots('\u{2801}'..='\u{28ff}') > 20, "the curve of the validation: {}", rows.join("\n"));
    assert!(dots('•'..='•') > 5, "the curve of the training: {}", rows.join("\n"));
    check(&screen(&state, 80, 24, true), &["stopping after this step"]);
}

#[test]
fn any_size_and_any_state_can_be_drawn() {
    let mut many = state();
    for id in 3..90 {
        many.epoch(&report(11, &[(id, SeedStage::Pruned, 0.0)]));
    }
    let mut odd = RunState::new(1);
    let nan = Score::new(f64::NAN, 1);
    odd.epoch(&EpochReport { train: Some(nan.clone()), validation: nan, ..report(1, &[]) });
    let constant = {
        let mut constant = RunState::new(3);
        (1..=3).for_each(|epoch| drop(constant.epoch(&report(epoch, &[]))));
        constant
    };
    for state in [&RunState::new(0), &RunState::new(5), &state(), &many, &odd, &constant] {
        for (width, height) in [(1, 1), (10, 3), (39, 24), (40, 12), (80, 24), (81, 25), (300, 100)] {
            screen(state, width, height, false);
        }
    }
    check(&screen(&state(), 30, 5, false), &["epoch 10/20", "30x5 is too small"]);
    check(&screen(&RunState::new(5), 80, 24, false), &["epoch 0/5", "not measured yet", "none yet"]);
    // Of many seeds, those that live have a row.
    check(&screen(&many, 80, 24, false), &["seed-2 mlp in hidden", "seed-89 mlp in hidden"]);
}

#[test]
fn evaluations_between_epochs_and_text_from_outside_are_events() {
    let mut state = state();
    let mut last = report(11, &[]);
    last.transitions.push(TransitionRecord {
        seed: SeedId(2),
        from: SeedStage::Holding,
        to: SeedStage::Pruned,
        reason: "no gain\u{1b}[2J".to_owned(),
    });
    state.epoch(&last);
    let validation = Score::new(0.125, 8).with(ACCURACY, 0.5);
    let evaluation = StepEvaluation { step: StepIndex(345), train_loss: Some(0.25), validation };
    assert!(state.event(&RunEvent::Evaluated(&evaluation)).is_some());
    state.event(&RunEvent::CheckpointWritten { step: StepIndex(345), is_best: true, took_ms: 1.25 });
    let rows = screen(&state, 100, 30, false);
    check(
        &rows,
        &["epoch 11: seed-2 holding -> pruned: no gain[2J", "step 345  loss 0.2500  validation 0.1250  50.00%"],
    );
    check(&rows, &["checkpoint of the best evaluation at step 345"]);
    assert!(!rows.concat().contains('\u{1b}'));
}

#[test]
fn a_measure_stands_beside_the_loss_where_there_is_no_accuracy() {
    let mut state = RunState::new(4);
    for epoch in 1..=3 {
        let score = Score::new(1.5, 10).with("r2", 0.25 * epoch as f64);
        state.epoch(&EpochReport { train: Some(Score::new(1.0, 10)), validation: score, ..report(epoch, &[]) });
    }
    check(&screen(&state, 80, 24, false), &["loss train 1.0000 validation 1.5000", "r2 validation 0.7500"]);
    let mut without = RunState::new(4);
    without.epoch(&EpochReport { train: Some(Score::new(1.0, 10)), validation: Score::new(2.0, 10), ..report(1, &[]) });
    check(&screen(&without, 80, 24, false), &["loss train 1.0000 validation 2.0000"]);
}

#[test]
fn curves_stay_short_however_long_a_run_is() {
    let mut state = RunState::new(100_000);
    (1..=20_000).for_each(|epoch| drop(state.epoch(&report(epoch, &[]))));
    let curve = &state.curves.validation_loss;
    assert!((2_000..=4_096).contains(&curve.len()) && curve.is_sorted() && curve.last().unwrap().0 > 19_000.0);
}

#[test]
fn keys_stop_as_signals_do() {
    let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
    let (none, control) = (KeyModifiers::NONE, KeyModifiers::CONTROL);
    assert_eq!(wish(&key(KeyCode::Char('q'), none)), Some(Wish::Stop));
    assert_eq!(wish(&key(KeyCode::Char('Q'), KeyModifiers::SHIFT)), Some(Wish::Stop));
    assert_eq!(wish(&key(KeyCode::Char('c'), control)), Some(Wish::Signal));
    for other in [key(KeyCode::Char('c'), none), key(KeyCode::Enter, none), Event::Resize(80, 24), Event::FocusGained] {
        assert_eq!(wish(&other), None, "{other:?}");
    }
    let released = KeyEvent { kind: KeyEventKind::Release, ..KeyEvent::new(KeyCode::Char('q'), none) };
    assert_eq!(wish(&Event::Key(released)), None);
}

/// A terminal that writes down what is done to it.
#[derive(Debug)]
struct Recorded {
    calls: Arc<Mutex<Vec<&'static str>>>,
    fails: bool,
}

impl Control for Recorded {
    fn enter(&mut self) -> io::Result<()> {
        self.calls.lock().unwrap().push("enter");
        if self.fails { Err(io::ErrorKind::NotConnected.into()) } else { Ok(()) }
    }

    fn leave(&mut self) {
        self.calls.lock().unwrap().push("leave");
    }
}

#[test]
fn a_terminal_is_given_back_at_the_end_on_an_error_and_on_a_panic() {
    let take = |fails, then: fn() -> Result<(), String>| {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let control = Recorded { calls: Arc::clone(&calls), fails };
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let _taken = Taken::by(control).map_err(|error| error.to_string())?;
            then()
        }));
        (calls.lock().unwrap().clone(), ended)
    };
    let whole = vec!["enter", "leave"];
    assert!(matches!(take(false, || Ok(())), (calls, Ok(Ok(()))) if calls == whole));
    assert!(matches!(take(false, || Err("no".to_owned())), (calls, Ok(Err(_))) if calls == whole));
    assert!(matches!(take(true, || Ok(())), (calls, Ok(Err(_))) if calls == whole));
    assert!(matches!(take(false, || panic!("planted")), (calls, Err(_)) if calls == whole));
}

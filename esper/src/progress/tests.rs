//! What reaches the terminal.

use std::sync::{Arc, Mutex};

use indicatif::TermLike;
use leyline::id::{EpochIndex, SeedId, StepIndex, TopologyRevision};
use leyline::seed::{AlphaMode, SeedStage, SeedState};
use leyline::state::{ACCURACY, Score};
use leyline::unit::Alpha;
use tolaria::trainer::report::{CommandRecord, TransitionRecord};

use super::state::clock;
use super::*;

/// Everything that was written, as text; stands for a terminal of so many columns or for a file.
#[derive(Debug, Clone)]
struct Screen(Arc<Mutex<String>>, u16);

impl Default for Screen {
    fn default() -> Self {
        Self(Arc::default(), 140)
    }
}

impl Screen {
    fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }

    fn push(&self, text: &str) {
        self.0.lock().unwrap().push_str(text);
    }
}

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(std::str::from_utf8(bytes).unwrap());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        self.1
    }
    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn write_line(&self, text: &str) -> io::Result<()> {
        self.push(text);
        self.push("\n");
        Ok(())
    }
    fn write_str(&self, text: &str) -> io::Result<()> {
        self.push(text);
        Ok(())
    }
    fn clear_line(&self) -> io::Result<()> {
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) fn report(epoch: u64, seeds: &[(u32, SeedStage, f64)]) -> EpochReport {
    let score = Score::new(0.5, 100).with(ACCURACY, 0.75);
    let state = |&(id, stage, alpha)| SeedState {
        stage,
        age_epochs: 1,
        epochs_in_stage: 1,
        alpha: Alpha::new(alpha).unwrap(),
        alpha_mode: AlphaMode::Up,
        ..SeedState::germinated(SeedId(id), "hidden".parse().unwrap(), "mlp".parse().unwrap(), 10)
    };
    EpochReport {
        epoch: EpochIndex(epoch),
        step: StepIndex(epoch),
        topology: TopologyRevision(0),
        num_parameters: 100,
        learning_rate: 0.1,
        train: Some(score),
        validation: Score::new(0.25, 100).with(ACCURACY, 0.875),
        gradient_norm: Some(1.0),
        conflict: None,
        seeds: seeds.iter().map(state).collect(),
        asked: None,
        commands: Vec::new(),
        waiting: Vec::new(),
        transitions: Vec::new(),
        wall_s: 2.0,
        samples_per_s: 50.0,
        skipped_steps: 0,
        evaluations: Vec::new(),
    }
}

fn plain() -> (Progress, Screen) {
    let screen = Screen::default();
    (Progress { state: RunState::new(4), sink: Sink::Plain(Box::new(screen.clone())) }, screen)
}

fn look(width: u16, has_color: bool) -> Look {
    Look { width: Box::new(move || usize::from(width)), has_color }
}

fn display_of(width: u16) -> (Progress, Screen) {
    let screen = Screen(Arc::default(), width);
    let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
    let bars = Bars::new(look(width, false), target, Box::new(screen.clone()), 4);
    (Progress { state: RunState::new(4), sink: Sink::Bars(bars) }, screen)
}

fn display() -> (Progress, Screen) {
    display_of(140)
}

#[test]
fn an_epoch_is_one_plain_line() {
    let (mut progress, screen) = plain();
    progress.epoch(&report(1, &[(1, SeedStage::Blending, 0.5)]));
    assert_eq!(screen.text(), "epoch 1/4  loss 0.5000  accuracy 75.00%  validation 0.2500  87.50%  50 samples/s\n");
}

#[test]
fn stage_changes_and_refusals_are_lines_below_their_epoch() {
    let (mut progress, screen) = plain();
    let mut report = report(2, &[]);
    report.transitions.push(TransitionRecord {
        seed: SeedId(3),
        from: SeedStage::Holding,
        to: SeedStage::Pruned,
        reason: "no gain".to_owned(),
    });
    report.commands.push(CommandRecord {
        sequence: Some(1),
        operation: "germinate mlp in hidden".to_owned(),
        reason: "plateau".to_owned(),
        refused: Some("slot taken".to_owned()),
    });
    progress.epoch(&report);
    let below: Vec<String> = screen.text().lines().skip(1).map(str::to_owned).collect();
    assert_eq!(below, ["  seed-3 holding -> pruned: no gain", "  refused: germinate mlp in hidden: slot taken"]);
}

#[test]
fn text_from_outside_cannot_drive_the_terminal() {
    for (mut progress, screen) in [plain(), display()] {
        let mut report = report(1, &[]);
        report.transitions.push(TransitionRecord {
            seed: SeedId(1),
            from: SeedStage::Dormant,
            to: SeedStage::Germinated,
            reason: "\u{1b}]0;owned\u{7}\nfake line".to_owned(),
        });
        progress.note("resumed \u{1b}[2Jfrom\r\nhere");
        progress.epoch(&report);
        let text = screen.text();
        assert!(text.contains("resumed [2Jfrom  here"), "{text:?}");
        assert!(text.contains("]0;owned fake line"), "{text:?}");
        assert!(!text.contains("\u{1b}]") && !text.contains("\u{1b}[2J") && !text.contains('\u{7}'), "{text:?}");
    }
}

#[test]
fn the_display_has_a_line_for_each_live_seed() {
    let (mut progress, screen) = display();
    let seeds = [(1, SeedStage::Blending, 0.42), (2, SeedStage::Training, 0.0), (3, SeedStage::Fossilized, 1.0)];
    progress.epoch(&report(1, &seeds));
    let text = screen.text();
    assert!(text.contains("seed-1 mlp in hidden") && text.contains("alpha 0.42  blending"), "{text}");
    assert!(text.contains("seed-2 mlp in hidden") && text.contains("alpha 0.00  training"), "{text}");
    assert!(!text.contains("seed-3"), "a fossilized seed is part of the host: {text}");
    assert!(text.contains("1/4") && text.contains("validation 0.2500"), "{text}");
    assert!(text.contains("00:06 left"), "three epochs of 2 s are left: {text}");
}

#[test]
fn fields_that_do_not_fit_are_left_out_and_none_is_cut() {
    let (loss, accuracy) = ("loss 0.5000", "accuracy 75.00%");
    let (validation, speed, left) = ("validation 0.2500  87.50%", "50 samples/s", "00:06 left");
    for (width, expected) in [
        (140, vec![loss, accuracy, validation, speed, left]),
        (120, vec![loss, accuracy, validation, left]),
        (100, vec![loss, accuracy, validation, left]),
        (80, vec![loss, validation, left]),
        (60, vec![validation]),
        (50, vec![validation]),
        (30, vec![]),
    ] {
        let (mut progress, screen) = display_of(width);
        progress.epoch(&report(1, &[(1, SeedStage::Germinated, 0.42)]));
        let text = screen.text();
        let drawn = text.rsplit_once("epoch ").unwrap().1;
        let line = drawn.split("  seed-1").next().unwrap();
        let found: Vec<&str> =
            [loss, accuracy, validation, speed, left].into_iter().filter(|field| line.contains(field)).collect();
        assert_eq!(found, expected, "{width} columns: {line:?}");
        // `epoch`, both numbers, and the frame of the bar are no fields.
        let others = expected.iter().fold(line.to_owned(), |line, field| line.replace(field, ""));
        assert!(!others.chars().any(char::is_alphabetic), "{width} columns: {others:?} is cut off");
        if width >= 60 {
            assert!(drawn.contains("seed-1 mlp in hidden") && drawn.contains("alpha 0.42  germinated"), "{text}");
        }
    }
}

#[test]
fn without_colors_the_display_is_the_same_but_for_them() {
    let template = |has_color| look(100, has_color).template("{pos}", 10, "green");
    assert_eq!(template(true), "{pos} [{bar:10.green}] {wide_msg}");
    assert_eq!(template(false), "{pos} [{bar:10}] {wide_msg}");
    let (mut progress, screen) = display_of(100);
    progress.epoch(&report(1, &[]));
    assert!(!screen.text().contains("\u{1b}[3"), "{:?}", screen.text());
    assert!(screen.text().contains("[━"), "{:?}", screen.text());
}

#[test]
fn a_pruned_seed_leaves_the_display() {
    let (mut progress, screen) = display();
    progress.epoch(&report(1, &[(1, SeedStage::Training, 0.0)]));
    progress.epoch(&report(2, &[(1, SeedStage::Pruned, 0.0)]));
    screen.0.lock().unwrap().clear();
    progress.epoch(&report(3, &[]));
    assert!(!screen.text().contains("seed-1"), "{}", screen.text());
}

#[test]
fn silence_is_silent_and_finishing_twice_is_harmless() {
    let mut progress = Progress::new(ProgressMode::Off, 3);
    progress.epoch(&report(1, &[]));
    progress.note("nothing");
    progress.finish();
    let (mut shown, _screen) = display();
    shown.finish();
    shown.finish();
}

#[test]
fn the_last_epoch_stays_on_the_screen_and_nothing_is_drawn_after_it() {
    let (mut progress, screen) = display();
    progress.epoch(&report(4, &[(1, SeedStage::Training, 0.0)]));
    screen.0.lock().unwrap().clear();
    progress.finish();
    progress.note("later");
    drop(progress);
    let text = screen.text();
    let (_, after) = text.split_once("epoch 4/4  loss 0.5000").unwrap_or_else(|| panic!("{text}"));
    assert!(after.ends_with("50 samples/s\nlater\n"), "{text}");
    assert!(!after.contains('['), "a bar was drawn again: {text}");
}

#[test]
fn a_closed_output_does_not_end_a_run() {
    #[derive(Debug)]
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }
    let mut progress = Progress { state: RunState::new(3), sink: Sink::Plain(Box::new(Closed)) };
    progress.epoch(&report(1, &[]));
    progress.note("still here");
}

#[test]
fn the_time_left_is_a_clock() {
    for (seconds, text) in [(0.0, "00:00"), (59.6, "01:00"), (3599.0, "59:59"), (3661.0, "1:01:01"), (-1.0, "00:00")] {
        assert_eq!(clock(seconds), text);
    }
}

#[test]
fn what_a_run_went_back_from_is_shown_no_more() {
    use super::state::RunState;
    let mut state = RunState::new(9);
    for epoch in 1..=3 {
        let stage = if epoch < 3 { SeedStage::Training } else { SeedStage::Blending };
        let seeds = [(1, stage, 0.0), (2, SeedStage::Training, 0.0)];
        state.epoch(&report(epoch, &seeds[..if epoch == 1 { 1 } else { 2 }]));
    }
    let (from, to, epoch) = (StepIndex(31), StepIndex(15), EpochIndex(1));
    let line = state.event(&RunEvent::RolledBack { from, to, epoch, culprit: "seed-2", rate_factor: 1.0 });
    assert!(line.is_some_and(|line| line.contains("back to step 15")));
    assert!(state.last.is_none() && state.epochs() < 1.0);
    assert_eq!(state.seeds.keys().collect::<Vec<_>>(), [&SeedId(1)]);
    assert_eq!(state.seeds[&SeedId(1)].at(3), Some(SeedStage::Training));
    state.epoch(&report(2, &[]));
    assert_eq!(state.curves.validation_loss.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [1.0, 2.0]);
}

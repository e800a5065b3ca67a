//! The whole terminal: curves, seeds as bands, events, speed, time left.
//!
//! Drawn by the thread that trains, between two steps and at most ten times a second; nothing is drawn while a step or an
//! evaluation is under way. Keys are read by a thread of their own.

mod draw;
mod terminal;

use std::io::{self, IsTerminal as _, Stdout};
use std::sync::Arc;
use std::time::Duration;

use leyline::clock::Clock;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tolaria::trainer::StepReport;

use self::draw::{Look, draw};
pub(crate) use self::terminal::leave_terminal;
use self::terminal::{Crossterm, Taken, is_taken};
use super::has_color;
use super::state::RunState;
use crate::exit::UsageError;
use crate::logging;
use crate::run::Interrupt;

/// Least time between two drawings.
const PAUSE: Duration = Duration::from_millis(100);

/// Confirms that there is a terminal to draw on.
///
/// # Errors
/// [`UsageError`] without one.
pub(crate) fn require_terminal() -> Result<(), UsageError> {
    if io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb") {
        return Ok(());
    }
    let instead = "expected a terminal there, or no --tui: progress is plain lines then";
    Err(UsageError(format!("--tui: standard output is not a terminal; {instead}")))
}

/// The terminal, until this is dropped.
pub(super) struct Tui {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    clock: Arc<dyn Clock>,
    interrupt: Interrupt,
    began: Duration,
    drawn: Option<Duration>,
    /// Bytes of held diagnostic lines that are among the events.
    logged: usize,
    has_color: bool,
    _taken: Taken<Crossterm>,
}

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    /// As the first signal: stop after this step.
    Stop,
    /// As a signal: the second one ends the process.
    Signal,
}

impl Tui {
    /// Takes the terminal.
    pub(super) fn open(clock: Arc<dyn Clock>, interrupt: Interrupt) -> io::Result<Self> {
        let taken = Taken::by(Crossterm)?;
        let listener = interrupt.clone();
        std::thread::Builder::new().name("keys".to_owned()).spawn(move || keys(&listener))?;
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        let (began, has_color) = (clock.now(), has_color());
        Ok(Self { terminal, clock, interrupt, began, drawn: None, logged: 0, has_color, _taken: taken })
    }

    /// Draws, unless that was done just now. A step is looked at only where it is drawn.
    pub(super) fn tick(&mut self, state: &mut RunState, step: Option<&StepReport<'_>>) {
        let now = self.clock.now();
        if self.drawn.is_some_and(|drawn| now < drawn + PAUSE) || !is_taken() {
            return;
        }
        state.running = now - self.began;
        if let Some(step) = step {
            state.step(step);
        }
        for line in logging::held_since(&mut self.logged) {
            state.note(line);
        }
        let look = Look { has_color: self.has_color, is_stopping: self.interrupt.asked() };
        // A terminal that is gone is no reason to end a run.
        self.terminal.draw(|frame| draw(frame, state, look)).ok();
        self.drawn = Some(self.clock.now());
    }
}

/// Reads keys as long as the terminal is taken, on a thread of its own: the second Ctrl-C ends a step that takes minutes.
fn keys(interrupt: &Interrupt) {
    while is_taken() {
        let event = match event::poll(PAUSE) {
            Ok(true) => event::read(),
            Ok(false) => continue,
            Err(_) => return,
        };
        match event.ok().and_then(|event| wish(&event)) {
            Some(Wish::Stop) => interrupt.ask(),
            Some(Wish::Signal) => interrupt.signalled(),
            None => {}
        }
    }
}

/// The terminal gives no signal for Ctrl-C while it is taken.
fn wish(event: &Event) -> Option<Wish> {
    match event {
        Event::Key(KeyEvent { kind: KeyEventKind::Release, .. }) => None,
        Event::Key(KeyEvent { code: KeyCode::Char('q' | 'Q'), .. }) => Some(Wish::Stop),
        Event::Key(KeyEvent { code: KeyCode::Char('c'), modifiers, .. })
            if modifiers.contains(KeyModifiers::CONTROL) =>
        {
            Some(Wish::Signal)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;

//! What a user sees while a run trains: one state of the run, shown as plain lines, as bars below them, or on a whole screen.
//!
//! ```text
//!   EpochReport, StepReport, RunEvent ──► RunState ──► lines │ bars │ tui
//! ```
//!
//! Lines and bars go to standard error, the screen (`--tui`) to the terminal of standard output.

mod state;
mod lines;
mod bars;
mod tui;

use std::env;
use std::fmt;
use std::io::{self, IsTerminal as _, Write};
use std::mem;
use std::sync::Arc;

use clap::ValueEnum;
use console::Term;
use indicatif::ProgressDrawTarget;
use leyline::clock::Clock;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{RunEvent, StepReport};

use self::bars::{Bars, Look};
use self::lines::{line, put};
use self::state::RunState;
use self::tui::Tui;
pub(crate) use self::tui::{leave_terminal, require_terminal};
use crate::report::printable;
use crate::run::Interrupt;

/// How much is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ProgressMode {
    /// A display on a terminal, plain lines otherwise.
    #[default]
    Auto,
    /// Plain lines.
    Plain,
    /// Nothing.
    Off,
}

/// Shows epochs and seeds as they come. Text from outside loses its control characters first.
///
/// Nothing here can fail: a run does not end because nobody can read its progress any more.
#[derive(Debug)]
pub struct Progress {
    state: RunState,
    sink: Sink,
}

enum Sink {
    Off,
    Plain(Box<dyn Write + Send>),
    Bars(Bars),
    Tui(Tui),
}

impl Progress {
    /// Shows a run of `num_epochs` epochs.
    #[must_use]
    pub fn new(mode: ProgressMode, num_epochs: u64) -> Self {
        let sink = match mode {
            ProgressMode::Off => Sink::Off,
            ProgressMode::Auto if has_display() => {
                let width = Box::new(|| usize::from(Term::stderr().size().1));
                let look = Look { width, has_color: has_color() };
                Sink::Bars(Bars::new(look, ProgressDrawTarget::stderr(), Box::new(io::stderr()), num_epochs))
            }
            ProgressMode::Auto | ProgressMode::Plain => Sink::Plain(Box::new(io::stderr())),
        };
        Self { state: RunState::new(num_epochs), sink }
    }

    /// Shows a run of `num_epochs` epochs on the whole terminal until it is [finished](Self::finish); a key asks the
    /// interrupt to stop it.
    ///
    /// # Errors
    /// When the terminal cannot be set up; it is then as it was.
    pub(crate) fn on_screen(num_epochs: u64, clock: Arc<dyn Clock>, interrupt: Interrupt) -> io::Result<Self> {
        Ok(Self { state: RunState::new(num_epochs), sink: Sink::Tui(Tui::open(clock, interrupt)?) })
    }

    /// Takes in an epoch of an earlier part of the run, of which nothing is said any more.
    pub fn earlier(&mut self, report: &EpochReport) {
        self.state.epoch(report);
    }

    /// Shows a finished epoch, what became of its commands, and its seeds.
    pub fn epoch(&mut self, report: &EpochReport) {
        let events = self.state.epoch(report);
        match &mut self.sink {
            Sink::Off => {}
            Sink::Plain(out) => {
                let mut text = line(report, self.state.num_epochs);
                for event in events {
                    text.push_str(&format!("  {event}\n"));
                }
                put(out.as_mut(), &text);
            }
            Sink::Bars(bars) => {
                for event in events {
                    bars.print(&format!("epoch {}: {event}", report.epoch));
                }
                bars.epoch(&self.state);
            }
            Sink::Tui(tui) => tui.tick(&mut self.state, None),
        }
    }

    /// Shows that a step was taken, where that is shown. Called after every step, so that nothing but a look at the clock
    /// happens most of the time.
    pub fn step(&mut self, report: &StepReport<'_>) {
        if let Sink::Tui(tui) = &mut self.sink {
            tui.tick(&mut self.state, Some(report));
        }
    }

    /// Shows what happened between the ends of epochs.
    pub fn event(&mut self, event: &RunEvent<'_>) {
        if let Some(line) = self.state.event(event) {
            self.print(&line);
        }
    }

    /// Shows a line of its own.
    pub fn note(&mut self, text: &str) {
        self.state.note(text);
        self.print(&printable(text));
    }

    fn print(&mut self, line: &str) {
        match &mut self.sink {
            Sink::Off => {}
            Sink::Plain(out) => put(out.as_mut(), &format!("{line}\n")),
            Sink::Bars(bars) => bars.print(line),
            Sink::Tui(tui) => tui.tick(&mut self.state, None),
        }
    }

    /// Ends the display and leaves the last epoch on the screen as a plain line; what comes later is plain too. Also
    /// happens when this is dropped.
    pub fn finish(&mut self) {
        self.sink = match mem::replace(&mut self.sink, Sink::Off) {
            Sink::Bars(bars) => Sink::Plain(bars.finish(&self.state)),
            Sink::Tui(tui) => {
                drop(tui);
                let mut out = io::stderr();
                if let Some(last) = &self.state.last {
                    put(&mut out, &line(last, self.state.num_epochs));
                }
                Sink::Plain(Box::new(out))
            }
            other => other,
        };
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "Off",
            Self::Plain(_) => "Plain",
            Self::Bars(_) => "Bars",
            Self::Tui(_) => "Tui",
        })
    }
}

/// Whether standard error is a screen that a display can be drawn on.
fn has_display() -> bool {
    io::stderr().is_terminal() && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Whether colors are wanted, see `NO_COLOR`.
fn has_color() -> bool {
    env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests;

//! A terminal that is taken over, and given back whatever happens: at the end, on an error, on a panic, on a second signal.

use std::io;
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};

use crate::logging;

/// Whether the terminal of this process is taken.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);
static HOOK: Once = Once::new();

/// What can be taken and given back.
pub(super) trait Control {
    /// Takes it.
    fn enter(&mut self) -> io::Result<()>;

    /// Gives back what was taken, also of an [`enter`](Self::enter) that failed in the middle. A second time changes nothing.
    fn leave(&mut self);
}

/// A terminal that is taken as long as this lives.
#[derive(Debug)]
pub(super) struct Taken<C: Control>(C);

impl<C: Control> Taken<C> {
    /// Takes a terminal.
    ///
    /// # Errors
    /// When it cannot be taken; it is then as it was.
    pub(super) fn by(control: C) -> io::Result<Self> {
        // Dropped by `?`, it gives back what it had.
        let mut taken = Self(control);
        taken.0.enter()?;
        Ok(taken)
    }
}

impl<C: Control> Drop for Taken<C> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// The terminal of this process.
#[derive(Debug)]
pub(super) struct Crossterm;

impl Control for Crossterm {
    fn enter(&mut self) -> io::Result<()> {
        // The message of a panic comes before the stack is unwound: on the other screen nobody would read it.
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                leave_terminal();
                before(info);
            }));
        });
        IS_TAKEN.store(true, Ordering::SeqCst);
        logging::hold();
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen, Hide)
    }

    fn leave(&mut self) {
        leave_terminal();
    }
}

/// Gives the terminal of this process back, if it is taken; then diagnostic lines that were held are written.
pub(crate) fn leave_terminal() {
    if IS_TAKEN.swap(false, Ordering::SeqCst) {
        // What fails here fails because the terminal is gone.
        execute!(io::stdout(), LeaveAlternateScreen, Show).ok();
        disable_raw_mode().ok();
        logging::release();
    }
}

/// Whether it may be drawn on.
pub(super) fn is_taken() -> bool {
    IS_TAKEN.load(Ordering::SeqCst)
}

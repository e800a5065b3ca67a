//! What a user sees while a run trains: a display on a terminal, plain lines elsewhere; always on standard error.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::io::{self, IsTerminal as _, Write};
use std::mem;
use std::time::Duration;

use clap::ValueEnum;
use console::Term;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use leyline::id::SeedId;
use leyline::seed::SeedState;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{RunEvent, StepEvaluation};

use crate::report::printable;

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
    num_epochs: u64,
    sink: Sink,
    /// Smoothed duration of an epoch in seconds, for the time that is left.
    epoch_s: Option<f64>,
}

enum Sink {
    Off,
    Plain(Box<dyn Write + Send>),
    Display(Display),
}

struct Display {
    look: Look,
    bars: MultiProgress,
    epochs: ProgressBar,
    seeds: BTreeMap<SeedId, ProgressBar>,
    /// Where lines go once the display is over.
    out: Box<dyn Write + Send>,
    /// The last epoch as a plain line.
    last: Option<String>,
}

/// What the terminal allows.
struct Look {
    /// Columns of the terminal at this moment.
    width: Box<dyn Fn() -> usize + Send>,
    has_color: bool,
}

impl Progress {
    /// Shows a run of `num_epochs` epochs.
    #[must_use]
    pub fn new(mode: ProgressMode, num_epochs: u64) -> Self {
        let sink = match mode {
            ProgressMode::Off => Sink::Off,
            ProgressMode::Auto if has_display() => {
                let width = Box::new(|| usize::from(Term::stderr().size().1));
                let look = Look { width, has_color: !is_set("NO_COLOR") };
                Sink::Display(Display::new(look, ProgressDrawTarget::stderr(), Box::new(io::stderr()), num_epochs))
            }
            ProgressMode::Auto | ProgressMode::Plain => Sink::Plain(Box::new(io::stderr())),
        };
        Self::with_sink(sink, num_epochs)
    }

    /// Shows a finished epoch, what became of its commands, and its seeds.
    pub fn epoch(&mut self, report: &EpochReport) {
        let epoch_s = self.epoch_s.map_or(report.wall_s, |smoothed| 0.7 * smoothed + 0.3 * report.wall_s);
        self.epoch_s = Some(epoch_s);
        let left = self.num_epochs.saturating_sub(report.epoch.0);
        let events = events(report);
        match &mut self.sink {
            Sink::Off => {}
            Sink::Plain(out) => {
                let mut text = line(report, self.num_epochs);
                for event in events {
                    text.push_str(&format!("  {event}\n"));
                }
                put(out.as_mut(), &text);
            }
            Sink::Display(display) => {
                for event in events {
                    display.print(&format!("epoch {}: {event}", report.epoch));
                }
                display.epoch(report, epoch_s * left as f64);
                display.last = Some(line(report, self.num_epochs));
            }
        }
    }

    /// Shows an evaluation in the middle of an epoch.
    pub fn event(&mut self, event: &RunEvent<'_>) {
        if let RunEvent::Evaluated(StepEvaluation { step, train_loss, validation }) = event {
            let scores = format!("loss {train_loss:.4}  validation {:.4}", validation.loss);
            self.note(&format!("step {step}  {scores}  {}", percent(validation.accuracy())));
        }
    }

    /// Shows a line of its own.
    pub fn note(&mut self, text: &str) {
        let text = printable(text);
        match &mut self.sink {
            Sink::Off => {}
            Sink::Plain(out) => put(out.as_mut(), &format!("{text}\n")),
            Sink::Display(display) => display.print(&text),
        }
    }

    /// Ends the display and leaves the last epoch on the screen as a plain line; what comes later is plain too. Also
    /// happens when this is dropped.
    pub fn finish(&mut self) {
        self.sink = match mem::replace(&mut self.sink, Sink::Off) {
            Sink::Display(display) => Sink::Plain(display.finish()),
            other => other,
        };
    }

    fn with_sink(sink: Sink, num_epochs: u64) -> Self {
        Self { num_epochs, sink, epoch_s: None }
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
            Self::Display(_) => "Display",
        })
    }
}

impl Display {
    fn new(look: Look, target: ProgressDrawTarget, out: Box<dyn Write + Send>, num_epochs: u64) -> Self {
        let bars = MultiProgress::with_draw_target(target);
        let epochs = bars.add(ProgressBar::new(num_epochs));
        epochs.set_style(look.epochs());
        // Changes that come faster than the screen is drawn are left out; the tick shows the last of them.
        epochs.enable_steady_tick(Duration::from_millis(200));
        Self { look, bars, epochs, seeds: BTreeMap::new(), out, last: None }
    }

    fn epoch(&mut self, report: &EpochReport, left_s: f64) {
        let live: Vec<&SeedState> = report.seeds.iter().filter(|seed| seed.stage.is_live()).collect();
        let gone: Vec<SeedId> =
            self.seeds.keys().copied().filter(|id| live.iter().all(|seed| seed.seed_id != *id)).collect();
        for id in gone {
            if let Some(bar) = self.seeds.remove(&id) {
                bar.finish_and_clear();
                self.bars.remove(&bar);
            }
        }
        for seed in live {
            let bar = self.seeds.entry(seed.seed_id).or_insert_with(|| {
                let bar = self.bars.add(ProgressBar::new(100));
                bar.set_prefix(format!("{} {} in {}", seed.seed_id, seed.blueprint, seed.slot));
                bar
            });
            bar.set_style(self.look.seed());
            bar.set_position(hundredths(seed.alpha.get()));
            bar.set_message(format!("alpha {:.2}  {}", seed.alpha.get(), seed.stage));
        }
        self.epochs.set_style(self.look.epochs());
        self.epochs.set_position(report.epoch.0);
        self.epochs.set_message(self.look.fields(report, left_s));
    }

    fn print(&self, line: &str) {
        // A closed terminal is no reason to end a run.
        self.bars.println(line).ok();
    }

    fn finish(mut self) -> Box<dyn Write + Send> {
        for bar in self.seeds.values() {
            bar.finish_and_clear();
        }
        self.epochs.finish_and_clear();
        if let Some(last) = &self.last {
            put(self.out.as_mut(), last);
        }
        self.out
    }
}

impl Look {
    /// Columns for the bar of the epochs, with the space around it.
    fn epoch_bar(&self) -> usize {
        match (self.width)() {
            0..60 => 0,
            60..110 => 10,
            _ => 24,
        }
    }

    fn epochs(&self) -> ProgressStyle {
        self.style("epoch {pos:>4}/{len:<4}", self.epoch_bar(), "green")
    }

    fn seed(&self) -> ProgressStyle {
        match (self.width)() {
            0..60 => self.style("  {prefix}", 0, "cyan"),
            60..80 => self.style("  {prefix:<34}", 0, "cyan"),
            _ => self.style("  {prefix:<34}", 16, "cyan"),
        }
    }

    fn style(&self, head: &str, bar: usize, color: &str) -> ProgressStyle {
        let style = ProgressStyle::with_template(&self.template(head, bar, color));
        style.expect("the templates of this file are well-formed").progress_chars("━╸ ")
    }

    fn template(&self, head: &str, bar: usize, color: &str) -> String {
        let color = if self.has_color { format!(".{color}") } else { String::new() };
        let bar = if bar > 0 { format!(" [{{bar:{bar}{color}}}]") } else { String::new() };
        format!("{head}{bar} {{wide_msg}}")
    }

    /// The numbers of an epoch that fit beside its bar: rather few than half of one.
    fn fields(&self, report: &EpochReport, left_s: f64) -> String {
        // `epoch 1234/1234 [bar] `
        let head = if self.epoch_bar() > 0 { 19 + self.epoch_bar() } else { 16 };
        let room = (self.width)().saturating_sub(head);
        let [loss, accuracy, validation, speed] = scores(report);
        let left = format!("{} left", clock(left_s));
        // By the width that each needs to be shown, the most dispensable first.
        let choices: [&[&str]; 6] = [
            &[&loss, &accuracy, &validation, &speed, &left],
            &[&loss, &accuracy, &validation, &left],
            &[&loss, &validation, &left],
            &[&validation, &left],
            &[&validation],
            &[],
        ];
        let mut texts = choices.iter().map(|fields| fields.join("  "));
        texts.find(|text| text.chars().count() <= room).unwrap_or_default()
    }
}

/// Whether standard error is a screen that a display can be drawn on.
fn has_display() -> bool {
    io::stderr().is_terminal() && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

fn is_set(name: &str) -> bool {
    env::var_os(name).is_some_and(|value| !value.is_empty())
}

fn put(out: &mut dyn Write, text: &str) {
    // In one write, so that lines of others do not come between. A closed standard error is no reason to end a run.
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).ok();
}

/// An epoch without a display.
fn line(report: &EpochReport, num_epochs: u64) -> String {
    format!("epoch {}/{num_epochs}  {}\n", report.epoch, scores(report).join("  "))
}

/// A fraction in percent, or that it was not measured.
fn percent(fraction: Option<f64>) -> String {
    fraction.map_or_else(|| "-".to_owned(), |fraction| format!("{:.2}%", fraction * 100.0))
}

/// Loss and accuracy of the training, both of the validation, and the speed.
fn scores(report: &EpochReport) -> [String; 4] {
    let (train, validation) = (&report.train, &report.validation);
    [
        format!("loss {:.4}", train.loss),
        format!("accuracy {}", percent(train.accuracy())),
        format!("validation {:.4}  {}", validation.loss, percent(validation.accuracy())),
        format!("{:.0} samples/s", report.samples_per_s),
    ]
}

/// Stage changes and refusals, a line each.
fn events(report: &EpochReport) -> Vec<String> {
    let changes = report
        .transitions
        .iter()
        .map(|change| format!("{} {} -> {}: {}", change.seed, change.from, change.to, printable(&change.reason)));
    let refusals = report.commands.iter().filter_map(|command| {
        let why = command.refused.as_deref()?;
        Some(format!("refused: {}: {}", printable(&command.operation), printable(why)))
    });
    changes.chain(refusals).collect()
}

/// Seconds as `mm:ss` or `h:mm:ss`.
fn clock(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round();
    let (hours, minutes, rest) = ((seconds / 3600.0).floor(), (seconds / 60.0).floor() % 60.0, seconds % 60.0);
    if hours > 0.0 { format!("{hours}:{minutes:02}:{rest:02}") } else { format!("{minutes:02}:{rest:02}") }
}

#[expect(clippy::cast_possible_truncation, reason = "alpha is in [0, 1]")]
fn hundredths(alpha: f64) -> u64 {
    (alpha * 100.0).round() as u64
}

#[cfg(test)]
mod tests;

//! Bars below the lines of a terminal: one for the epochs, one for each live seed.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use leyline::id::SeedId;
use leyline::seed::SeedState;
use tolaria::trainer::report::EpochReport;

use super::lines::{joined, line, put, scores};
use super::state::{RunState, clock};

/// The bars, and where lines go once they are over.
pub(super) struct Bars {
    look: Look,
    bars: MultiProgress,
    epochs: ProgressBar,
    seeds: BTreeMap<SeedId, ProgressBar>,
    out: Box<dyn Write + Send>,
}

/// What the terminal allows.
pub(super) struct Look {
    /// Columns of the terminal at this moment.
    pub(super) width: Box<dyn Fn() -> usize + Send>,
    pub(super) has_color: bool,
}

impl fmt::Debug for Bars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bars").finish_non_exhaustive()
    }
}

impl Bars {
    pub(super) fn new(look: Look, target: ProgressDrawTarget, out: Box<dyn Write + Send>, num_epochs: u64) -> Self {
        let bars = MultiProgress::with_draw_target(target);
        let epochs = bars.add(ProgressBar::new(num_epochs));
        epochs.set_style(look.epochs());
        // Changes that come faster than the screen is drawn are left out; the tick shows the last of them.
        epochs.enable_steady_tick(Duration::from_millis(200));
        Self { look, bars, epochs, seeds: BTreeMap::new(), out }
    }

    /// Shows the last epoch.
    pub(super) fn epoch(&mut self, state: &RunState) {
        let Some(report) = &state.last else { return };
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
        self.epochs.set_message(self.look.fields(report, state.left_s().unwrap_or_default()));
    }

    pub(super) fn print(&self, line: &str) {
        // A closed terminal is no reason to end a run.
        self.bars.println(line).ok();
    }

    /// Ends the display and leaves the last epoch as a plain line.
    pub(super) fn finish(mut self, state: &RunState) -> Box<dyn Write + Send> {
        for bar in self.seeds.values() {
            bar.finish_and_clear();
        }
        self.epochs.finish_and_clear();
        if let Some(last) = &state.last {
            put(self.out.as_mut(), &line(last, state.num_epochs));
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

    pub(super) fn template(&self, head: &str, bar: usize, color: &str) -> String {
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
        let mut texts = choices.iter().map(|fields| joined(fields));
        texts.find(|text| text.chars().count() <= room).unwrap_or_default()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "alpha is in [0, 1]")]
fn hundredths(alpha: f64) -> u64 {
    (alpha * 100.0).round() as u64
}

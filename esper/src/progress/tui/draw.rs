//! What stands where on the screen. Letters tell stages, and dots the curve of the training, so that colors say nothing alone.

use leyline::seed::SeedStage;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, LineGauge, Paragraph};

use crate::progress::state::{Life, RunState, clock, shown};

/// Columns of the name of a seed.
const NAME: usize = 33;
/// A smaller screen has no room for curves.
const MIN_SIZE: (u16, u16) = (40, 12);

/// How it is drawn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) has_color: bool,
    /// Whether somebody has asked to stop.
    pub(super) is_stopping: bool,
}

impl Look {
    fn color(self, color: Color) -> Style {
        if self.has_color { Style::new().fg(color) } else { Style::new() }
    }
}

/// Draws the run.
pub(super) fn draw(frame: &mut Frame<'_>, state: &RunState, look: Look) {
    let area = frame.area();
    if area.width < MIN_SIZE.0 || area.height < MIN_SIZE.1 {
        let text = format!("{}\n{}x{} is too small: 80x24 is fine", head(state), area.width, area.height);
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let num_seeds = u16::try_from(state.seeds.len()).unwrap_or(u16::MAX);
    let seeds = num_seeds.clamp(1, area.height / 5) + 1;
    let rows = [
        Constraint::Length(2),
        Constraint::Fill(2),
        Constraint::Length(seeds),
        Constraint::Fill(1),
        Constraint::Length(1),
    ];
    let [top, curves, bands, events, bottom] = Layout::vertical(rows).areas(area);
    progress(frame, top, state, look);
    charts(frame, curves, state, look);
    seed_bands(frame, bands, state, look);
    let block = Block::new().title("events");
    let inner = block.inner(events);
    frame.render_widget(block, events);
    let num_lines = state.events.len().min(usize::from(inner.height));
    let lines = state.events.range(state.events.len() - num_lines..).map(|line| Line::from(line.as_str()));
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), inner);
    foot(frame, bottom, state, look);
}

/// Epoch, step, learning rate, speed.
fn head(state: &RunState) -> String {
    let epoch = state.last.as_ref().map_or(0, |last| last.epoch.0);
    let mut text = format!("epoch {epoch}/{}", state.num_epochs);
    if let Some(step) = state.step {
        text += &format!("  step {}  learning rate {}", step.number, step.learning_rate);
    }
    if let Some(last) = &state.last {
        text += &format!("  {:.0} samples/s", last.samples_per_s);
    }
    text
}

fn progress(frame: &mut Frame<'_>, area: Rect, state: &RunState, look: Look) {
    let [head_row, bar] = Layout::vertical([Constraint::Length(1); 2]).areas(area);
    frame.render_widget(Line::from(head(state)).style(Modifier::BOLD), head_row);
    let left = state.left_s().map_or_else(|| "-".to_owned(), clock);
    let label = format!("{} running  {left} left", clock(state.running.as_secs_f64()));
    let ratio = (state.epochs() / state.num_epochs.max(1) as f64).clamp(0.0, 1.0);
    let gauge =
        LineGauge::default().label(label).ratio(ratio).filled_symbol("━").filled_style(look.color(Color::Green));
    frame.render_widget(gauge, bar);
}

type Points = [(f64, f64)];

fn charts(frame: &mut Frame<'_>, area: Rect, state: &RunState, look: Look) {
    let curves = &state.curves;
    let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).areas(area);
    let has_measure = !curves.validation_measure.is_empty();
    let so_far = state.step.and_then(|step| Some((step.epochs, step.so_far?.loss)));
    let mut train_loss = curves.train_loss.clone();
    train_loss.extend(so_far);
    chart(frame, if has_measure { left } else { area }, "loss", [&train_loss, &curves.validation_loss], state, look);
    if has_measure {
        chart(frame, right, &curves.measure, [&curves.train_measure, &curves.validation_measure], state, look);
    }
}

/// Two curves over epochs, with the last value of each in the title.
fn chart(frame: &mut Frame<'_>, area: Rect, name: &str, curves: [&Points; 2], state: &RunState, look: Look) {
    let kinds = [("train", Marker::Dot, Color::Blue), ("validation", Marker::Braille, Color::Yellow)];
    let mut title = vec![Span::from(name.to_owned())];
    let mut datasets = Vec::new();
    for ((kind, marker, color), points) in kinds.into_iter().zip(curves) {
        if let Some((_, value)) = points.last() {
            title.push(Span::styled(format!(" {kind} {}", shown(name, *value)), look.color(color)));
            let dataset = Dataset::default().marker(marker).graph_type(GraphType::Line);
            datasets.push(dataset.style(look.color(color)).data(points));
        }
    }
    let values = || curves.into_iter().flatten().map(|(_, value)| *value).filter(|value| value.is_finite());
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
    let block = Block::new().title(Line::from(title));
    if low > high {
        frame.render_widget(Paragraph::new("  not measured yet").block(block), area);
        return;
    }
    // A flat curve is drawn in the middle of something.
    let margin = ((high - low) / 20.0).max(high.abs() * 1e-3).max(1e-6);
    let (low, high) = (low - margin, high + margin);
    let last = state.epochs().max(1.0);
    let x_axis = Axis::default().bounds([0.0, last]).labels(["0".to_owned(), format!("epoch {last:.0}")]);
    let y_axis =
        Axis::default().bounds([low, high]).labels([low, f64::midpoint(low, high), high].map(|at| shown(name, at)));
    frame.render_widget(Chart::new(datasets).block(block).x_axis(x_axis).y_axis(y_axis), area);
}

/// The letter of a stage, and its color.
fn letter(stage: SeedStage) -> (&'static str, Color) {
    match stage {
        SeedStage::Germinated => ("g", Color::Cyan),
        SeedStage::Training => ("t", Color::Blue),
        SeedStage::Blending => ("b", Color::Yellow),
        SeedStage::Holding => ("h", Color::Magenta),
        SeedStage::Fossilized => ("F", Color::Green),
        SeedStage::Pruned | SeedStage::Embargoed | SeedStage::Resetting | SeedStage::Dormant => ("x", Color::Red),
    }
}

/// A row for each seed: those that live first, of the others the youngest.
fn seed_bands(frame: &mut Frame<'_>, area: Rect, state: &RunState, look: Look) {
    let title = "seeds: g germinated, t training, b blending, h holding, F fossilized, x removed";
    let block = Block::new().title(title);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    if state.seeds.is_empty() {
        frame.render_widget(Paragraph::new("  none yet"), inner);
        return;
    }
    let mut lives: Vec<&Life> = state.seeds.values().collect();
    lives.sort_by_key(|life| (!life.state.stage.is_live(), std::cmp::Reverse(life.state.seed_id)));
    lives.truncate(usize::from(inner.height));
    lives.sort_by_key(|life| life.state.seed_id);
    let last = state.last.as_ref().map_or(1, |last| last.epoch.0).max(1);
    let columns = u64::from(inner.width).saturating_sub(NAME as u64 + 1).max(1);
    let lines = lives.into_iter().map(|life| {
        let seed = &life.state;
        let alpha = if seed.stage.is_live() { format!(" {:.2}", seed.alpha.get()) } else { String::new() };
        let name: String =
            format!("{} {} in {}", seed.seed_id, seed.blueprint, seed.slot).chars().take(NAME - 5).collect();
        let mut spans = vec![Span::from(format!("{:<NAME$} ", format!("{name:<width$}{alpha}", width = NAME - 5)))];
        spans.extend((0..columns).map(|column| {
            let epoch = 1 + column * last / columns;
            let (letter, color) = life.at(epoch).map_or((" ", Color::Reset), letter);
            Span::styled(letter, look.color(color))
        }));
        Line::from(spans)
    });
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), inner);
}

fn foot(frame: &mut Frame<'_>, area: Rect, state: &RunState, look: Look) {
    let keys = if look.is_stopping { "stopping after this step" } else { "q stops and writes a checkpoint" };
    frame.render_widget(Line::from(keys).style(look.color(Color::DarkGray)), area);
    if let Some(best) = state.best {
        let best = format!("best validation loss {} at epoch {}", shown("loss", best.loss), best.epoch);
        frame.render_widget(Line::from(best).right_aligned(), area);
    }
}

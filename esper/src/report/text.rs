//! The report for the terminal.

use std::fmt::Write as _;

use tolaria::trainer::report::{OwnerRecord, owner_name};

use super::Run;
use super::format::{count, decimal, percent};
use super::gradients::{latest, summary};
use super::history::{SeedLife, Told, seed_lives};
use super::overview::{facts, memory, outcome};
use super::printable::printable;
use super::waiting::{Waiting, waiting};

/// A few lines of plain text: how the run ended, its facts, its seeds, what the policy waited for, and what to know about its
/// files.
#[must_use]
pub fn render_text(run: &Run) -> String {
    let lives = seed_lives(&run.epochs);
    let record = &run.record;
    let mut lines = vec![format!(
        "{}: {} ({} on {}, seed {})",
        record.run_id,
        outcome(run),
        printable(&record.data.name),
        printable(&record.device),
        record.seed
    )];
    for fact in facts(run, &lives) {
        lines.push(format!("  {:<20} {:>12}  {}", fact.label.to_lowercase(), fact.value, fact.detail));
    }
    let told = Told::of(&lives);
    lines.extend(told.alone.iter().map(|(_, life)| seed(life)));
    lines.extend(
        (told.num_together() > 0).then(|| format!("    {} pruned seeds are in the report", told.num_together())),
    );
    lines.extend(waiting(&run.epochs).iter().map(reason));
    lines.extend(summary(&run.epochs).map(|sentence| format!("  gradients at {sentence}")));
    lines.extend(latest(&run.epochs).into_values().map(|(epoch, record)| owner(epoch, record)));
    lines.extend(memory(run).iter().map(|(part, size)| format!("  memory: {part:<22} {size:>10}")));
    lines.extend(run.notes.iter().map(|note| format!("  note: {note}")));
    let mut text = String::new();
    for line in lines {
        writeln!(text, "{}", line.trim_end()).expect("writing to a string does not fail");
    }
    text
}

fn seed(life: &SeedLife<'_>) -> String {
    let state = life.last;
    let gain = life.effect.map_or_else(
        || "gain not measured".to_owned(),
        |effect| format!("gain {} ± {} in loss", decimal(effect.value.loss_gain), decimal(effect.value.std_error)),
    );
    format!(
        "    {:<8} {:<24} {:<11} alpha {:.2}  {:>9} parameters  {gain}",
        state.seed_id.to_string(),
        format!("{} in {}", state.blueprint, state.slot),
        life.fate().name(),
        state.alpha.get(),
        count(life.num_parameters),
    )
}

fn reason(reason: &Waiting) -> String {
    format!("    waited: {}, last at epoch {}: {}", reason.short(), reason.last_epoch, reason.detail)
}

fn owner(epoch: u64, record: &OwnerRecord) -> String {
    format!(
        "    {:<8} {:>7} of norms  norm {:<8} attribution {:>7}  conflicts {:>7}  weight {}  epoch {epoch}",
        owner_name(record.owner),
        percent(record.share),
        decimal(record.norm),
        percent(record.weight),
        if record.pairs > 0 { percent(record.conflict_ratio) } else { "–".to_owned() },
        decimal(record.resolved_weight),
    )
}

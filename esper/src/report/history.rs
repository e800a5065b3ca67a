//! The run told by seed: bands of stages, alpha over time, what was measured, which gates opened.

use std::collections::BTreeMap;

use leyline::id::{SeedId, SlotId};
use leyline::seed::{Counterfactual, GateReport, GradientHealth, SeedStage, SeedState};
use tolaria::trainer::report::EpochReport;

/// A seed from germination to the last epoch that lists it.
#[derive(Debug)]
pub(super) struct SeedLife<'a> {
    /// Its last state.
    pub(super) last: &'a SeedState,
    /// Whether the last epoch still lists it.
    pub(super) is_listed: bool,
    /// Epoch that lists it first.
    pub(super) germinated: u64,
    /// Stages without gaps, in order.
    pub(super) bands: Vec<Band>,
    /// Alpha at the end of each epoch in which it held parameters.
    pub(super) alpha: Vec<(u64, f64)>,
    /// Most trainable elements it ever had (count): 0 once pruned says nothing about its size.
    pub(super) num_parameters: u64,
    /// The latest measurement of its effect.
    pub(super) effect: Option<Measured<Counterfactual>>,
    /// The latest measurement of its gradient.
    pub(super) gradient: Option<Measured<GradientHealth>>,
    /// Every verdict of a gate that differs from the one before, with its epoch.
    pub(super) verdicts: Vec<(u64, &'a GateReport)>,
}

/// A stage over some epochs: from the end of epoch `from` to the end of epoch `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Band {
    pub(super) stage: SeedStage,
    pub(super) from: u64,
    pub(super) to: u64,
}

/// A measurement and when it was made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Measured<T> {
    pub(super) epoch: u64,
    pub(super) stage: SeedStage,
    pub(super) value: T,
}

/// What a vertical marker stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EventKind {
    Germination,
    Fossilization,
    Prune,
}

impl EventKind {
    pub(super) const ALL: [Self; 3] = [Self::Germination, Self::Fossilization, Self::Prune];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Germination => "germination",
            Self::Fossilization => "fossilization",
            Self::Prune => "prune",
        }
    }

    /// What entering a stage means for the reader; most stages are no event.
    #[deny(clippy::wildcard_enum_match_arm)]
    const fn of(stage: SeedStage) -> Option<Self> {
        match stage {
            SeedStage::Germinated => Some(Self::Germination),
            SeedStage::Fossilized => Some(Self::Fossilization),
            SeedStage::Pruned => Some(Self::Prune),
            SeedStage::Dormant
            | SeedStage::Training
            | SeedStage::Blending
            | SeedStage::Holding
            | SeedStage::Embargoed
            | SeedStage::Resetting => None,
        }
    }
}

/// A turning point in the life of a seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeedEvent {
    pub(super) epoch: u64,
    pub(super) kind: EventKind,
    pub(super) seed: SeedId,
}

/// Every seed of the run, by id.
pub(super) fn seed_lives(epochs: &[EpochReport]) -> Vec<SeedLife<'_>> {
    let mut lives: BTreeMap<SeedId, SeedLife<'_>> = BTreeMap::new();
    for (index, report) in epochs.iter().enumerate() {
        let from = report.epoch.0;
        // A state holds until the end of the next epoch; the last one is drawn as one epoch more.
        let to = epochs.get(index + 1).map_or(from + 1, |next| next.epoch.0);
        for state in &report.seeds {
            lives.entry(state.seed_id).or_insert_with(|| SeedLife::new(from, state)).add(from, to, state);
        }
    }
    let listed = epochs.last().map_or(&[][..], |report| &report.seeds);
    for state in listed {
        if let Some(life) = lives.get_mut(&state.seed_id) {
            life.is_listed = true;
        }
    }
    lives.into_values().collect()
}

/// With more seeds than this, those that were removed are told together, slot by slot.
const MAX_TOLD: usize = 24;

/// The lives of a run in two parts: those that are told one by one, and of many those that ended, by slot.
pub(super) struct Told<'l, 'a> {
    /// Each with its number among all.
    pub(super) alone: Vec<(usize, &'l SeedLife<'a>)>,
    /// A slot holds one seed at a time, so that the lives in it follow each other.
    pub(super) together: BTreeMap<&'a SlotId, Vec<&'l SeedLife<'a>>>,
}

impl<'l, 'a> Told<'l, 'a> {
    pub(super) fn of(lives: &'l [SeedLife<'a>]) -> Self {
        let (mut alone, mut together) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
        for (index, life) in lives.iter().enumerate() {
            if lives.len() > MAX_TOLD && life.has_ended() {
                together.entry(&life.last.slot).or_default().push(life);
            } else {
                alone.push((index, life));
            }
        }
        Self { alone, together }
    }

    /// Seeds that are told together (count).
    pub(super) fn num_together(&self) -> usize {
        self.together.values().map(Vec::len).sum()
    }
}

/// Germinations, fossilizations and prunes, in order.
pub(super) fn seed_events(epochs: &[EpochReport]) -> Vec<SeedEvent> {
    let changes = epochs.iter().flat_map(|report| report.transitions.iter().map(|change| (report.epoch.0, change)));
    changes
        .filter_map(|(epoch, change)| EventKind::of(change.to).map(|kind| SeedEvent { epoch, kind, seed: change.seed }))
        .collect()
}

impl<'a> SeedLife<'a> {
    /// Where it ended: a seed whose slot was cleared is not resetting for ever, it was pruned.
    pub(super) fn fate(&self) -> SeedStage {
        if self.is_listed { self.last.stage } else { SeedStage::Pruned }
    }

    /// Whether it was removed from the network, or is about to be.
    pub(super) fn has_ended(&self) -> bool {
        let fate = self.fate();
        fate != SeedStage::Fossilized && !fate.is_live()
    }

    fn new(germinated: u64, last: &'a SeedState) -> Self {
        Self {
            last,
            is_listed: false,
            germinated,
            bands: Vec::new(),
            alpha: Vec::new(),
            num_parameters: 0,
            effect: None,
            gradient: None,
            verdicts: Vec::new(),
        }
    }

    fn add(&mut self, from: u64, to: u64, state: &'a SeedState) {
        self.last = state;
        self.num_parameters = self.num_parameters.max(state.num_parameters);
        match self.bands.last_mut().filter(|band| band.stage == state.stage && band.to == from) {
            Some(band) => band.to = to,
            None => self.bands.push(Band { stage: state.stage, from, to }),
        }
        if state.stage.is_live() || state.stage.acts_on_output() {
            self.alpha.push((from, state.alpha.get()));
        }
        renew(&mut self.effect, state.counterfactual, from, state.stage);
        renew(&mut self.gradient, state.gradient, from, state.stage);
        if let Some(gate) = state.last_gate.as_ref().filter(|gate| self.verdicts.last().is_none_or(|l| l.1 != *gate)) {
            self.verdicts.push((from, gate));
        }
    }
}

/// A state repeats the last measurement until there is a new one; the epoch shown is that of the measurement.
fn renew<T: PartialEq>(latest: &mut Option<Measured<T>>, value: Option<T>, epoch: u64, stage: SeedStage) {
    if let Some(value) = value.filter(|value| latest.as_ref().is_none_or(|latest| latest.value != *value)) {
        *latest = Some(Measured { epoch, stage, value });
    }
}

#[cfg(test)]
mod tests;

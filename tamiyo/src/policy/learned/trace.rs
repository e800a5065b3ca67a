//! What was chosen in a run, from the states that its policy was shown: what a network learns from.

use leyline::command::Operation;
use leyline::state::SystemState;

use crate::policy::heuristic::HeuristicMemory;
use crate::policy::learned::choice::propose;
use crate::policy::learned::{About, Choice, Held, LearnedConfig, LearnedMemory};
use crate::policy::{Proposal, Settings as _, TamiyoConfig};

/// Who took the options of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Teacher {
    /// The learned policy, by this network.
    Network(Held),
    /// The rules of `heuristic`, as far as they are options.
    Rules,
}

/// One decision again.
#[derive(Debug, Clone, PartialEq)]
pub struct Shown {
    /// Every choice with the index of the option that was taken.
    pub choices: Vec<(Choice, usize)>,
    /// What was proposed.
    pub proposals: Vec<Proposal>,
}

/// Follows a run from its first decision on.
#[derive(Debug)]
pub struct Trace {
    config: LearnedConfig,
    memory: LearnedMemory,
    rules: Option<HeuristicMemory>,
}

impl Trace {
    /// Of a run with this configuration.
    #[must_use]
    pub fn new(config: &TamiyoConfig, teacher: Teacher) -> Self {
        let config = LearnedConfig { limits: config.heuristic.clone(), ..config.learned.clone() };
        let mut memory = config.begin();
        let rules = match teacher {
            Teacher::Network(held) => {
                memory.held = Some(held);
                None
            }
            Teacher::Rules => Some(HeuristicMemory::default()),
        };
        Self { config, memory, rules }
    }

    /// The next decision.
    pub fn decide(&mut self, state: &SystemState) -> Shown {
        let mut choices = Vec::new();
        let LearnedConfig { limits, choose, .. } = &self.config;
        if let Some(rules) = &mut self.rules {
            let proposals = limits.propose(rules, state);
            propose(limits, &mut self.memory, state, &mut |choice| {
                let taken = of_rules(choice, &proposals);
                choices.push((choice.clone(), taken));
                (taken, 1.0)
            });
            return Shown { choices, proposals };
        }
        let (mut rng, held) = (self.memory.rng.clone(), self.memory.held.clone());
        let proposals = propose(limits, &mut self.memory, state, &mut |choice| {
            let (taken, probability) =
                held.as_ref().map_or((0, 1.0), |held| held.network.take(choice, *choose, &mut rng));
            choices.push((choice.clone(), taken));
            (taken, probability)
        });
        self.memory.rng = rng;
        Shown { choices, proposals }
    }
}

/// The option that the rules took; the first one, which waits, where theirs is none.
fn of_rules(choice: &Choice, proposals: &[Proposal]) -> usize {
    let mut operations = proposals.iter().filter_map(|proposal| proposal.operation.as_ref());
    let place = |operation: &Operation| match operation {
        Operation::Germinate { slot, blueprint, .. } => Some((slot.clone(), blueprint.clone())),
        _ => None,
    };
    match &choice.about {
        About::Seed(id) => match operations.find(|operation| operation.seed() == Some(*id)) {
            Some(Operation::Cull { .. } | Operation::CullGradually { .. }) => 1,
            Some(_) if choice.options.len() > 2 => 2,
            _ => 0,
        },
        About::Germination => usize::from(operations.any(|operation| place(operation).is_some())),
        About::Slot(slots) => {
            let wanted = operations.find_map(place).map(|(slot, _)| slot);
            slots.iter().position(|slot| Some(slot) == wanted.as_ref()).unwrap_or(0)
        }
        About::Blueprint(blueprints) => {
            let wanted = operations.find_map(place).map(|(_, blueprint)| blueprint);
            blueprints.iter().position(|blueprint| Some(blueprint) == wanted.as_ref()).unwrap_or(0)
        }
    }
}

//! The policy that was learned: a small network says what happens to each seed, and what germinates where.
//!
//! ```text
//!  state ─► what `heuristic` observes ─► its limits: closing, compute for looking, seeds, parameters, power, earlier runs
//!                       │                     │ leave
//!                       ▼                     ▼
//!                   features (a row per seed, slot, offer) ─► choices ─► network ─► one option of each ─► proposals
//! ```
//! What may not be done is no option of a [`Choice`]: it has no logit, so its probability is exactly 0 whatever the weights are. The limits
//! are those of [`HeuristicConfig`], asked before the network is; the gates and the confirmation of the seed manager are asked after it.
//! So no weights make a seed permanent that rules could not make permanent (decision 32 says why).
//!
//! The network is kept with what the policy remembers: a run that is taken up again, or goes back, decides by the one it had. New ones
//! come from [`Networks`], between two decisions and as a whole.

mod choice;
mod features;
mod network;
mod trace;

use std::fmt::Debug;
use std::path::PathBuf;

use leyline::error::BoxError;
use leyline::id::EpochIndex;
use leyline::state::SystemState;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

pub use choice::{About, Choice};
pub use features::{FEATURES, FEATURES_VERSION, NUM_FEATURES, Row};
pub use network::{MAX_HIDDEN, NUM_OUTPUTS, Network, NetworkError, OUTPUTS, Parts};
pub use trace::{Shown, Teacher, Trace};

use crate::policy::heuristic::HeuristicMemory;
use crate::policy::{HeuristicConfig, Proposal, Settings};
use choice::propose;

/// How an option is taken by its probability.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choosing {
    /// The likeliest one; the first of several.
    #[default]
    Likeliest,
    /// One drawn by the generator of the run.
    Drawn,
}

/// Settings of the learned policy; its limits are those of `heuristic`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LearnedConfig {
    /// Folder with the network, as `esper policy train` writes it; looked at after every epoch (default: none, and nothing is decided).
    pub file: Option<PathBuf>,
    /// `likeliest` (default) or `drawn`: how an option is taken by its probability.
    pub choose: Choosing,
    /// Seed of the generator that draws (any number, default 0).
    pub seed: u64,
    /// Those of `heuristic`, whatever stands here: [`Tamiyo`](crate::Tamiyo) and [`Trace`] fill them in.
    #[serde(skip)]
    pub limits: HeuristicConfig,
}

impl LearnedConfig {
    /// Whether nothing was set: what was written before this policy existed says nothing of it.
    pub(crate) fn is_usual(&self) -> bool {
        *self == Self { limits: self.limits.clone(), ..Self::default() }
    }
}

/// A network with the digest of what it was read from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// Tells it from every other.
    pub digest: String,
    /// The network.
    pub network: Network,
}

/// Where networks come from.
pub trait Networks: Send + Debug {
    /// Looks before a decision. Absent where what is there is `held` already, or was refused before.
    ///
    /// # Errors
    /// Why what is there cannot be used; the policy goes on with what it holds, and says so.
    fn look(&mut self, epoch: EpochIndex, held: Option<&str>) -> Option<Result<Held, BoxError>>;
}

/// What the policy remembers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedMemory {
    watched: HeuristicMemory,
    /// Validation loss of the first measured epoch, nats per sample.
    first_loss: Option<f64>,
    rng: ChaCha8Rng,
    held: Option<Held>,
}

impl Settings for LearnedConfig {
    type Memory = LearnedMemory;

    fn begin(&self) -> LearnedMemory {
        let rng = ChaCha8Rng::seed_from_u64(self.seed);
        LearnedMemory { watched: HeuristicMemory::default(), first_loss: None, rng, held: None }
    }

    fn propose(&self, memory: &mut LearnedMemory, state: &SystemState) -> Vec<Proposal> {
        let Some(held) = memory.held.take() else {
            memory.observe(&self.limits, state);
            return vec![Proposal::wait("no_network", "no network was loaded: nothing is decided")];
        };
        let mut rng = memory.rng.clone();
        let mut take = |choice: &Choice| held.network.take(choice, self.choose, &mut rng);
        let proposals = propose(&self.limits, memory, state, &mut take);
        (memory.rng, memory.held) = (rng, Some(held));
        proposals
    }

    fn signals(&self, memory: &LearnedMemory) -> Option<crate::tracker::Signals> {
        self.limits.signals(&memory.watched)
    }

    fn held<'a>(&self, memory: &'a LearnedMemory) -> Option<&'a Held> {
        memory.held.as_ref()
    }

    fn hold(&self, memory: &mut LearnedMemory, held: Held) {
        memory.held = Some(held);
    }
}

impl LearnedMemory {
    fn observe(&mut self, limits: &HeuristicConfig, state: &SystemState) {
        limits.observe(&mut self.watched, state);
        let loss = limits.signals(&self.watched).and_then(|signals| signals.loss);
        self.first_loss = self.first_loss.or(loss);
    }
}

//! Which parameters decay, and how fast those of each owner move.

use leyline::layout::{Owner, Segment};
use serde::{Deserialize, Serialize};

use crate::cpu::{ZERO_OR_SINGLE, is_zero_or_single};

/// What is not the same for all parameters. As TOML, in the section `[train.groups]`: `decay = "matrices"`.
///
/// ```
/// use tolaria::optim::{Decays, GroupsConfig};
///
/// let groups: GroupsConfig = serde_json::from_str(r#"{ "decay": "matrices", "seed_rate": 2.0 }"#)?;
/// assert_eq!(groups, GroupsConfig { decay: Decays::Matrices, host_rate: 1.0, seed_rate: 2.0 });
/// let frozen = GroupsConfig { host_rate: 0.0, seed_rate: 0.0, ..groups };
/// assert_eq!(frozen.validate()[0].0, "seed_rate");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GroupsConfig {
    /// What `weight_decay` of the optimizer is for: `all` parameters, or `matrices`.
    pub decay: Decays,
    /// What the learning rate is multiplied by for the host, from 0 on; 0 leaves it as it is, but that a -0.0 may become 0.0.
    pub host_rate: f64,
    /// The same for seeds.
    pub seed_rate: f64,
}

/// Which parameters decay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decays {
    /// All of them.
    #[default]
    All,
    /// Those of two dimensions or more: no biases, no scales and shifts of normalizations.
    Matrices,
}

impl Default for GroupsConfig {
    /// All parameters alike.
    fn default() -> Self {
        Self { decay: Decays::All, host_rate: 1.0, seed_rate: 1.0 }
    }
}

impl GroupsConfig {
    /// Whether all parameters are alike.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Every setting that cannot work, as (key, what is accepted).
    #[must_use]
    pub fn validate(&self) -> Vec<(String, String)> {
        let nothing_moves = self.host_rate + self.seed_rate <= 0.0;
        let checks = [
            ("host_rate", is_zero_or_single(self.host_rate), ZERO_OR_SINGLE),
            ("seed_rate", is_zero_or_single(self.seed_rate), ZERO_OR_SINGLE),
            ("seed_rate", !nothing_moves, "a number above 0 beside `host_rate = 0`: nothing would learn"),
        ];
        let broken = checks.into_iter().find(|(_, sound, _)| !sound);
        broken.map(|(key, _, accepted)| (key.to_owned(), accepted.to_owned())).into_iter().collect()
    }

    fn rate(&self, owner: Owner) -> f64 {
        match owner {
            Owner::Host => self.host_rate,
            Owner::Seed(_) => self.seed_rate,
        }
    }

    /// Whether the parameters of an owner stay as they are.
    #[must_use]
    pub fn freezes(&self, owner: Owner) -> bool {
        self.rate(owner) <= 0.0
    }

    /// What the learning rate of a parameter is multiplied by, and whether it decays.
    pub(super) fn of(&self, segment: &Segment) -> (f64, bool) {
        (self.rate(segment.spec.owner), self.decay == Decays::All || segment.spec.shape.len() >= 2)
    }
}

//! What was accepted: the highest number of each key.

use std::collections::BTreeMap;

use leyline::command::{KeyId, Nonce};
use serde::{Deserialize, Serialize};

use crate::Rejection;

/// One accepted command, as far as it is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Acceptance {
    pub(crate) key_id: KeyId,
    pub(crate) sequence: u64,
    pub(crate) nonce: Nonce,
    /// The last moment at which the command is fresh, milliseconds since 1970-01-01 UTC.
    pub(crate) expires_unix_ms: u64,
}

/// Everything accepted that must not be accepted again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct ReplayWindow {
    keys: BTreeMap<KeyId, KeyWindow>,
}

/// Earlier builds wrote nonces beside the number; the number says all that they said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct KeyWindow {
    last_sequence: u64,
}

impl ReplayWindow {
    /// Whether the number follows all that were accepted under its key.
    pub(crate) fn check(&self, new: &Acceptance) -> Result<(), Rejection> {
        match self.keys.get(&new.key_id) {
            Some(&KeyWindow { last_sequence: last }) if new.sequence <= last => {
                Err(Rejection::Replayed { found: new.sequence, last })
            }
            _ => Ok(()),
        }
    }

    /// Remembers a number.
    pub(crate) fn insert(&mut self, key_id: KeyId, sequence: u64) {
        let window = self.keys.entry(key_id).or_insert(KeyWindow { last_sequence: sequence });
        window.last_sequence = window.last_sequence.max(sequence);
    }

    /// Remembers what another window remembers too: nothing that either refuses is accepted afterwards.
    pub(crate) fn merge(&mut self, other: &Self) {
        other.numbers().for_each(|(key_id, sequence)| self.insert(key_id, sequence));
    }

    /// The highest number of each key.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = (KeyId, u64)> {
        self.keys.iter().map(|(&key_id, window)| (key_id, window.last_sequence))
    }

    /// Whether anything was accepted under a key.
    pub(crate) fn knows(&self, key_id: KeyId) -> bool {
        self.keys.contains_key(&key_id)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn windows() -> impl Strategy<Value = ReplayWindow> {
        proptest::collection::vec((0..3_u32, 0..9_u64), 0..12).prop_map(|all| {
            let mut window = ReplayWindow::default();
            all.into_iter().for_each(|(key, sequence)| window.insert(KeyId(key), sequence));
            window
        })
    }

    proptest! {
        #[test]
        fn what_either_window_refuses_the_merged_one_refuses(
            a in windows(), b in windows(), key in 0..3_u32, sequence in 0..9_u64,
        ) {
            let mut merged = a.clone();
            merged.merge(&b);
            let mut other_way = b.clone();
            other_way.merge(&a);
            prop_assert_eq!(&merged, &other_way);
            let new = Acceptance { key_id: KeyId(key), sequence, nonce: Nonce([0; 16]), expires_unix_ms: 0 };
            let refuses = |window: &ReplayWindow| window.check(&new).is_err();
            prop_assert_eq!(refuses(&merged), refuses(&a) || refuses(&b));
            let json = serde_json::to_string(&merged).unwrap();
            prop_assert_eq!(serde_json::from_str::<ReplayWindow>(&json).unwrap(), merged);
        }
    }

    #[test]
    fn a_window_that_holds_nonces_too_is_read() {
        let nonces = format!("[[{:?},1060000]]", [7; 16]);
        let json = format!(r#"{{"0":{{"last_sequence":5,"nonces":{nonces}}},"9":{{"last_sequence":2,"nonces":[]}}}}"#);
        let window: ReplayWindow = serde_json::from_str(&json).unwrap();
        assert_eq!(window.numbers().collect::<Vec<_>>(), [(KeyId(0), 5), (KeyId(9), 2)]);
    }
}

//! What was accepted: the highest number of each key, and the nonces that a fresh command could still bear.

use std::collections::BTreeMap;
use std::time::Duration;

use leyline::command::{KeyId, Nonce};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::command::Rejection;

/// One accepted command, as far as it must be remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Acceptance {
    pub(super) key_id: KeyId,
    pub(super) sequence: u64,
    pub(super) nonce: Nonce,
    /// The last moment at which the command is fresh, milliseconds since 1970-01-01 UTC.
    pub(super) expires_unix_ms: u64,
}

/// How many nonces are remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NonceLedger {
    /// Nonces that are refused as used, of all keys (count).
    pub size: u64,
    /// Nonces forgotten so far because no command that bears them could be fresh (count).
    pub num_forgotten: u64,
}

/// Everything accepted that must not be accepted again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct ReplayWindow {
    keys: BTreeMap<KeyId, KeyWindow>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyWindow {
    last_sequence: u64,
    /// With the moments until which they are kept, milliseconds since 1970-01-01 UTC.
    #[serde(serialize_with = "to_list", deserialize_with = "from_list")]
    nonces: BTreeMap<Nonce, u64>,
}

impl ReplayWindow {
    /// Whether the command is the first of its number and nonce, and can be remembered beside `capacity` others.
    pub(super) fn check(&self, new: &Acceptance, capacity: usize) -> Result<(), Rejection> {
        let Some(window) = self.keys.get(&new.key_id) else { return Ok(()) };
        if new.sequence <= window.last_sequence {
            return Err(Rejection::Replayed { found: new.sequence, last: window.last_sequence });
        }
        if window.nonces.contains_key(&new.nonce) {
            return Err(Rejection::NonceReplayed);
        }
        if window.nonces.len() >= capacity {
            return Err(Rejection::LedgerFull { capacity });
        }
        Ok(())
    }

    /// Remembers a command.
    pub(super) fn insert(&mut self, new: &Acceptance) {
        let empty = KeyWindow { last_sequence: new.sequence, nonces: BTreeMap::new() };
        let window = self.keys.entry(new.key_id).or_insert(empty);
        window.last_sequence = window.last_sequence.max(new.sequence);
        let expiry = window.nonces.entry(new.nonce).or_default();
        *expiry = new.expires_unix_ms.max(*expiry);
    }

    /// Remembers what another window remembers too: nothing that either refuses is accepted afterwards.
    pub(super) fn merge(&mut self, other: &Self) {
        for (&key_id, window) in &other.keys {
            let own = self.keys.entry(key_id).or_insert_with(|| window.clone());
            own.last_sequence = own.last_sequence.max(window.last_sequence);
            for (&nonce, &expires) in &window.nonces {
                let expiry = own.nonces.entry(nonce).or_default();
                *expiry = expires.max(*expiry);
            }
        }
    }

    /// Forgets the nonces that no fresh command can bear any more, and says how many. The numbers stay.
    pub(super) fn forget_expired(&mut self, now: Duration) -> u64 {
        let before = self.num_nonces();
        for window in self.keys.values_mut() {
            window.nonces.retain(|_, &mut expires| now <= Duration::from_millis(expires));
        }
        before - self.num_nonces()
    }

    /// Nonces of all keys.
    pub(super) fn num_nonces(&self) -> u64 {
        self.keys.values().map(|window| window.nonces.len() as u64).sum()
    }

    /// Whether anything was accepted under a key.
    pub(super) fn knows(&self, key_id: KeyId) -> bool {
        self.keys.contains_key(&key_id)
    }

    /// The fewest acceptances that make up this window: one for each nonce, or one for a key that has none left.
    pub(super) fn acceptances(&self) -> Vec<Acceptance> {
        let mut all = Vec::new();
        for (&key_id, &KeyWindow { last_sequence: sequence, ref nonces }) in &self.keys {
            if nonces.is_empty() {
                all.push(Acceptance { key_id, sequence, nonce: Nonce([0; 16]), expires_unix_ms: 0 });
            }
            let of_key = nonces.iter();
            all.extend(of_key.map(|(&nonce, &expires_unix_ms)| Acceptance {
                key_id,
                sequence,
                nonce,
                expires_unix_ms,
            }));
        }
        all
    }
}

/// JSON has no objects whose keys are lists.
fn to_list<S: Serializer>(nonces: &BTreeMap<Nonce, u64>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(nonces)
}

fn from_list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<Nonce, u64>, D::Error> {
    Ok(Vec::deserialize(deserializer)?.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn accepted(key: u32, sequence: u64, nonce: u64, expires_unix_ms: u64) -> Acceptance {
        Acceptance { key_id: KeyId(key), sequence, nonce: Nonce::from_counter(nonce), expires_unix_ms }
    }

    fn window(all: &[Acceptance]) -> ReplayWindow {
        let mut window = ReplayWindow::default();
        all.iter().for_each(|one| window.insert(one));
        window
    }

    #[track_caller]
    fn check(window: &ReplayWindow, new: Acceptance, reason: Option<&str>) {
        let outcome = window.check(&new, 2);
        assert_eq!(outcome.as_ref().err().map(Rejection::reason), reason, "{new:?}");
    }

    #[test]
    fn each_key_has_numbers_nonces_and_room_of_its_own() {
        let window = window(&[accepted(0, 5, 1, 100), accepted(0, 7, 2, 200), accepted(1, 3, 1, 100)]);
        check(&window, accepted(0, 7, 9, 300), Some("sequence_replayed"));
        check(&window, accepted(0, 6, 9, 300), Some("sequence_replayed"));
        check(&window, accepted(0, 8, 1, 300), Some("nonce_replayed"));
        check(&window, accepted(0, 8, 9, 300), Some("ledger_full"));
        check(&window, accepted(1, 4, 2, 300), None);
        check(&window, accepted(2, 0, 1, 300), None);
    }

    #[test]
    fn a_nonce_is_kept_through_its_last_fresh_moment_and_a_number_for_ever() {
        let mut window = window(&[accepted(0, 5, 1, 100)]);
        window.forget_expired(Duration::from_millis(100));
        check(&window, accepted(0, 6, 1, 300), Some("nonce_replayed"));
        window.forget_expired(Duration::from_micros(100_001));
        check(&window, accepted(0, 6, 1, 300), None);
        check(&window, accepted(0, 5, 9, 300), Some("sequence_replayed"));
    }

    fn windows() -> impl Strategy<Value = ReplayWindow> {
        let one = (0..3_u32, 0..9_u64, 0..6_u64, 0..200_u64);
        proptest::collection::vec(one.prop_map(|(k, s, n, e)| accepted(k, s, n, e)), 0..12).prop_map(|all| window(&all))
    }

    proptest! {
        #[test]
        fn what_either_window_refuses_the_merged_one_refuses(
            a in windows(), b in windows(), key in 0..3_u32, sequence in 0..9_u64, nonce in 0..6_u64,
        ) {
            let mut merged = a.clone();
            merged.merge(&b);
            let mut other_way = b.clone();
            other_way.merge(&a);
            prop_assert_eq!(&merged, &other_way);
            let new = accepted(key, sequence, nonce, 100);
            let refuses = |window: &ReplayWindow| window.check(&new, 100).is_err();
            prop_assert_eq!(refuses(&merged), refuses(&a) || refuses(&b));
        }

        #[test]
        fn a_window_survives_its_document_and_its_list(window in windows()) {
            let json = serde_json::to_string(&window).unwrap();
            prop_assert_eq!(&serde_json::from_str::<ReplayWindow>(&json).unwrap(), &window);
            let mut listed = ReplayWindow::default();
            window.acceptances().iter().for_each(|one| listed.insert(one));
            listed.forget_expired(Duration::from_millis(1));
            let mut expected = window;
            expected.forget_expired(Duration::from_millis(1));
            prop_assert_eq!(listed, expected);
        }
    }
}

//! A digest of exactly what a run learned from and was measured on.

use std::fmt;

use super::{Inputs, Splits, Table, TargetKind, Targets};

/// BLAKE3 over inputs, labels, shapes and source rows of all three parts, in a fixed little-endian form.
///
/// Two runs with the same digest saw the same bytes in the same order, whatever the data set was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataDigest(blake3::Hash);

impl DataDigest {
    /// Digests all parts.
    pub fn of(splits: &Splits) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("esper data 2026 digest of splits");
        let rows = &splits.assignment;
        for (table, rows) in
            [(&splits.train, &rows.train), (&splits.validation, &rows.validation), (&splits.test, &rows.test)]
        {
            add_table(&mut hasher, table);
            add_sizes(&mut hasher, rows);
        }
        Self(hasher.finalize())
    }
}

impl fmt::Display for DataDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_hex())
    }
}

fn add_table(hasher: &mut blake3::Hasher, table: &Table) {
    add_sizes(hasher, &[table.num_outputs()]);
    add_sizes(hasher, table.sample_shape());
    match table.inputs() {
        Inputs::Values(values) => add_values(hasher, values, |value| value.to_le_bytes()),
        Inputs::Tokens(tokens) => add_values(hasher, tokens, |token| token.to_le_bytes()),
    }
    match table.targets() {
        Targets::Classes { labels: values, .. } | Targets::Tokens { tokens: values, .. } => {
            add_values(hasher, values, |value| value.to_le_bytes());
        }
        Targets::Values { values, .. } | Targets::Flags { values, .. } => {
            add_values(hasher, values, |value| value.to_le_bytes());
        }
    }
    // Classes were the only kind once, and have no mark.
    if table.targets().kind() != TargetKind::Classes {
        hasher.update(table.targets().kind().to_string().as_bytes());
    }
}

fn add_sizes(hasher: &mut blake3::Hasher, sizes: &[usize]) {
    add_values(hasher, sizes, |size| u64::try_from(size).expect("a usize fits in 64 bits").to_le_bytes());
}

/// The number of values, then the values: without the number, neighboring lists could trade elements unseen.
fn add_values<T: Copy, const N: usize>(hasher: &mut blake3::Hasher, values: &[T], bytes: impl Fn(T) -> [u8; N]) {
    hasher.update(&u64::try_from(values.len()).expect("a usize fits in 64 bits").to_le_bytes());
    let buffer: Vec<u8> = values.iter().flat_map(|&value| bytes(value)).collect();
    hasher.update(&buffer);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Assignment, DataConfig, DataName, load};

    fn table(inputs: &[f32], shape: &[usize], targets: &[u32], num_classes: usize) -> Table {
        Table::new(inputs.to_vec(), shape.to_vec(), Targets::numbered(targets.to_vec(), num_classes)).unwrap()
    }

    fn splits() -> Splits {
        Splits {
            train: table(&[1.0, 2.0], &[1], &[0, 1], 2),
            validation: table(&[3.0], &[1], &[0], 2),
            test: table(&[4.0], &[1], &[1], 2),
            assignment: Assignment { train: vec![0, 2], validation: vec![1], test: vec![3] },
        }
    }

    #[track_caller]
    fn check_differs(change: impl FnOnce(&mut Splits)) {
        let mut changed = splits();
        change(&mut changed);
        assert_ne!(DataDigest::of(&changed), DataDigest::of(&splits()));
    }

    #[test]
    fn every_component_changes_the_digest() {
        assert_eq!(DataDigest::of(&splits()), DataDigest::of(&splits()));
        check_differs(|s| s.train = table(&[1.0, 2.000_000_2], &[1], &[0, 1], 2));
        check_differs(|s| s.train = table(&[1.0, 2.0], &[1], &[0, 0], 2));
        check_differs(|s| s.train = table(&[1.0, 2.0], &[1, 1], &[0, 1], 2));
        check_differs(|s| s.train = table(&[1.0, 2.0], &[1], &[0, 1], 3));
        check_differs(|s| s.train = table(&[-0.0, 2.0], &[1], &[0, 1], 2));
        check_differs(|s| s.assignment.train = vec![0, 4]);
        check_differs(|s| s.assignment.test = vec![]);
        check_differs(|s| std::mem::swap(&mut s.validation, &mut s.test));
    }

    #[test]
    fn negative_zero_is_not_zero() {
        let with = |value| DataDigest::of(&Splits { test: table(&[value], &[1], &[1], 2), ..splits() });
        assert_ne!(with(0.0), with(-0.0));
    }

    #[track_caller]
    fn check_recorded(name: DataName, digest: &str) {
        assert_eq!(load(&DataConfig::new(name)).unwrap().digest.to_string(), digest);
    }

    /// Pins unpacking, generating, scaling, draws and split at once: after a change of any of them, old run records
    /// can no longer be repeated.
    #[test]
    fn the_default_sets_have_their_recorded_digests() {
        check_recorded(DataName::Digits, "fe867c4177cce3616b1901d7b6ec954554f75586208a1b7cea889a5ecfdd3f7b");
        check_recorded(DataName::Mnist1d, "bdd76336a5b7d6b5ff2bb6221d2a6366d69924fa4149c0fc25855807d440c28e");
    }
}

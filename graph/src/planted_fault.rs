//! Faults that are planted on purpose, to see that the checks of the compiler find them.
//!
//! None of them is ever switched on by a setting: a test asks for one in
//! [`CompileOptions::fault`](super::CompileOptions::fault). One in a pass: `PassSet::with_wrong_rewrite`.

#[cfg(any(test, feature = "cuda"))]
use super::compile::{Recorded, RecordedKind};

/// A fault for the checks to find.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedFault {
    /// Nothing is known of the kernel that is launched most: results stay right.
    UnknownKernel,
    /// A kernel takes a number that looks like an address of the first recording: the two recordings must not be taken
    /// for the same step.
    PointerLikeNumber,
}

#[cfg(any(test, feature = "cuda"))]
impl PlantedFault {
    /// Changes both recordings of a step in the same way.
    ///
    /// # Errors
    /// When there is nothing that the fault could be planted in.
    pub(super) fn plant_in_recordings(self, recordings: [&mut Recorded; 2]) -> Result<(), &'static str> {
        match self {
            Self::UnknownKernel => {
                let name = most_launched(recordings[0]).ok_or("no kernel to forget")?;
                recordings.into_iter().for_each(|recorded| forget(recorded, &name));
                Ok(())
            }
            Self::PointerLikeNumber => {
                let (position, number) = number_for_a_kernel(recordings[0]).ok_or("no kernel for a number")?;
                for recorded in recordings {
                    match recorded.nodes.get_mut(position).map(|node| &mut node.kind) {
                        Some(RecordedKind::Kernel { arguments, .. }) => arguments.push(number.to_le_bytes().to_vec()),
                        _ => return Err("the recordings have other nodes"),
                    }
                }
                Ok(())
            }
        }
    }
}

#[cfg(any(test, feature = "cuda"))]
fn most_launched(recorded: &Recorded) -> Option<String> {
    let mut counts = std::collections::BTreeMap::<&str, usize>::new();
    for node in &recorded.nodes {
        if let RecordedKind::Kernel { name, .. } = &node.kind {
            *counts.entry(name).or_default() += 1;
        }
    }
    let (name, _) = counts.into_iter().rev().max_by_key(|&(_, count)| count)?;
    Some(name.to_owned())
}

/// Gives a kernel a name that nobody knows, and drops what was declared of it.
#[cfg(any(test, feature = "cuda"))]
fn forget(recorded: &mut Recorded, forgotten: &str) {
    let is_forgotten = |kind: &RecordedKind| matches!(kind, RecordedKind::Kernel { name, .. } if name == forgotten);
    let nodes = &recorded.nodes;
    recorded.declared.retain(|declared| !nodes[declared.nodes.clone()].iter().any(|node| is_forgotten(&node.kind)));
    for node in &mut recorded.nodes {
        if let RecordedKind::Kernel { name, .. } = &mut node.kind
            && name == forgotten
        {
            name.push_str(" (forgotten)");
        }
    }
}

/// A kernel of which nothing is declared and the address of memory that is there when it runs.
#[cfg(any(test, feature = "cuda"))]
fn number_for_a_kernel(recorded: &Recorded) -> Option<(usize, u64)> {
    let mut live = Vec::new();
    for (position, node) in recorded.nodes.iter().enumerate() {
        match &node.kind {
            RecordedKind::Alloc { address, .. } => live.push(*address),
            RecordedKind::Free { address } => live.retain(|other| other != address),
            RecordedKind::Kernel { .. } if !recorded.declared.iter().any(|of| of.nodes.contains(&position)) => {
                if let Some(&address) = live.first() {
                    return Some((position, address));
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::{DeclaredEffect, LaunchShape, RecordedNode};

    fn launch(name: &str) -> RecordedKind {
        let arguments = vec![vec![0; 8]];
        RecordedKind::Kernel { name: name.to_owned(), launch: LaunchShape::default(), arguments, is_of_library: false }
    }

    /// Nodes 1 and 2 declared.
    fn recorded(address: u64) -> Recorded {
        let kinds = [
            RecordedKind::Alloc { address, bytes: 64 },
            launch("a"),
            launch("b"),
            launch("c"),
            launch("b"),
            RecordedKind::Free { address },
            launch("d"),
        ];
        let nodes = kinds.into_iter().map(|kind| RecordedNode { kind, dependencies: Vec::new() }).collect();
        let declared = |nodes| DeclaredEffect { nodes, reads: Vec::new(), writes: Vec::new() };
        Recorded { nodes, declared: vec![declared(1..2), declared(2..3)] }
    }

    fn names(recorded: &Recorded) -> Vec<&str> {
        let name = |node: &RecordedNode| match &node.kind {
            RecordedKind::Kernel { name, .. } => name.clone().leak() as &str,
            _ => "-",
        };
        recorded.nodes.iter().map(name).collect()
    }

    #[test]
    fn the_kernel_that_is_launched_most_is_forgotten_in_both_recordings() {
        let (mut first, mut second) = (recorded(0x100), recorded(0x200));
        PlantedFault::UnknownKernel.plant_in_recordings([&mut first, &mut second]).expect("there are kernels");
        for found in [first, second] {
            assert_eq!(names(&found), ["-", "a", "b (forgotten)", "c", "b (forgotten)", "-", "d"]);
            assert_eq!(found.declared, recorded(0x100).declared[..1]);
        }
    }

    #[test]
    fn both_recordings_get_the_address_of_the_first() {
        let (mut first, mut second) = (recorded(0x100), recorded(0x200));
        PlantedFault::PointerLikeNumber.plant_in_recordings([&mut first, &mut second]).expect("there is memory");
        for found in [first, second] {
            for (position, node) in found.nodes.iter().enumerate() {
                let RecordedKind::Kernel { arguments, .. } = &node.kind else { continue };
                let expected =
                    if position == 3 { vec![vec![0; 8], 0x100_u64.to_le_bytes().to_vec()] } else { vec![vec![0; 8]] };
                assert_eq!(*arguments, expected, "{position}");
            }
        }
    }

    #[test]
    fn recordings_with_nothing_to_change_are_refused() {
        for fault in [PlantedFault::UnknownKernel, PlantedFault::PointerLikeNumber] {
            let [mut first, mut second] = [Recorded::default(), Recorded::default()];
            assert!(fault.plant_in_recordings([&mut first, &mut second]).is_err());
        }
    }
}

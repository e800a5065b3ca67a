//! Random programs before and after every pass, rules of programs one by one, and passes that are wrong on purpose.

mod programs;
mod properties;
mod rules;
mod texts;
mod filetests;
mod planted;
mod training_step;
mod fusion;
mod recordings;
mod sources;
mod decoding;
mod lifting;
mod twinning;
mod agreeing;
mod outside;
mod rendering;

use std::collections::{BTreeMap, BTreeSet};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{BlockId, Compiled, InterpretError, Lifetime, NodeIndex, NodeKind, Program, interpret, interpret_compiled};

/// Bytes for the external blocks, the same for every program with the same blocks.
fn inputs(program: &Program) -> BTreeMap<BlockId, Vec<u8>> {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let external = program.blocks.iter().enumerate().filter(|(_, block)| block.lifetime == Lifetime::External);
    external.map(|(id, block)| (BlockId(id), (0..block.size_bytes).map(|_| rng.random()).collect())).collect()
}

fn run(program: &Program, order: Option<&[NodeIndex]>) -> Result<BTreeMap<BlockId, Vec<u8>>, InterpretError> {
    interpret(program, order, &inputs(program))
}

/// As [`run`], with what runs once before it.
fn replay(compiled: &Compiled, order: Option<&[NodeIndex]>) -> Result<BTreeMap<BlockId, Vec<u8>>, InterpretError> {
    interpret_compiled(compiled, order, &inputs(&compiled.program), 1)
}

/// A random order in which every node comes after its dependencies.
fn shuffled(program: &Program, seed: u64) -> Vec<NodeIndex> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut order = Vec::new();
    let mut waiting: BTreeSet<NodeIndex> = (0..program.nodes.len()).map(NodeIndex).collect();
    while !waiting.is_empty() {
        let is_ready = |node: &&NodeIndex| program.nodes[node.0].dependencies.iter().all(|of| !waiting.contains(of));
        let ready: Vec<NodeIndex> = waiting.iter().filter(is_ready).copied().collect();
        let next = ready[rng.random_range(0..ready.len())];
        waiting.remove(&next);
        order.push(next);
    }
    order
}

/// Whether the second node has to wait for the first, by the definition.
fn conflicts(first: &NodeKind, second: &NodeKind) -> bool {
    let touched = |kind: &NodeKind| {
        let written = kind.writes().into_iter().map(|write| (write.region, true));
        kind.reads().into_iter().map(|region| (region, false)).chain(written).collect::<Vec<_>>()
    };
    let is_bound = |kind: &NodeKind, other: &NodeKind| {
        kind.lifetime_of().is_some_and(|block| other.blocks().contains(&block) || other.lifetime_of() == Some(block))
    };
    let clashes = touched(first).iter().any(|(region, writes)| {
        touched(second).iter().any(|(other, other_writes)| (*writes || *other_writes) && region.overlaps(other))
    });
    clashes || is_bound(first, second) || is_bound(second, first)
}

/// For every node all those that come before it, by following dependencies.
fn closure(program: &Program) -> Vec<BTreeSet<usize>> {
    let mut before: Vec<BTreeSet<usize>> = Vec::new();
    for node in &program.nodes {
        let direct = node.dependencies.iter().map(|dependency| dependency.0);
        let indirect = node.dependencies.iter().flat_map(|dependency| before[dependency.0].clone());
        let all = direct.chain(indirect).collect();
        before.push(all);
    }
    before
}

//! Where what a kernel reads comes from, and whether it can be had from there.

use std::ops::Range;

use super::merge::{is_small, merge};
use crate::compile::block::{Lifetime, Region};
use crate::compile::codegen::can_generate;
use crate::compile::copies::users;
use crate::compile::fuel::Fuel;
use crate::compile::fused::{Access, Body};
use crate::compile::node::NodeKind;
use crate::compile::program::Program;
use crate::compile::work::did;

/// Nodes with an address in a tensor which are looked at: one with more is not read by a single one.
const MAX_USERS: usize = 1 << 6;

/// A kernel, and what stands before it.
pub(super) struct Reader<'a> {
    program: &'a Program,
    users: &'a [Vec<usize>],
    node: usize,
    pub(super) body: Body,
}

/// Rewrites kernels, one after the other and each as often as `rewritten` gives a body that does the same.
pub(super) fn rewrite_readers(
    program: &mut Program,
    fuel: &mut Fuel,
    rewritten: impl Fn(&Reader<'_>, &Access) -> Option<Body>,
) {
    let mut users = users(program);
    for node in 0..program.nodes.len() {
        while let Some(body) = body_of(program, node) {
            let reader = Reader { program, users: &users, node, body };
            let found = reader.body.operands.iter().find_map(|access| rewritten(&reader, access));
            let Some(body) = found.filter(|_| fuel.burn()) else { break };
            for access in &body.operands {
                let of = &mut users[access.region.block.0];
                if let Err(place) = of.binary_search(&node) {
                    of.insert(place, node);
                }
            }
            program.nodes[node].kind = NodeKind::Kernel(body.into_kernel());
        }
    }
}

fn body_of(program: &Program, node: usize) -> Option<Body> {
    match &program.nodes[node].kind {
        NodeKind::Kernel(kernel) => Body::of(kernel).filter(can_generate),
        _ => None,
    }
}

impl Reader<'_> {
    /// The kernel that stores all of an operand, with its number, where nobody but this reader reads that.
    pub(super) fn source(&self, access: &Access) -> Option<(usize, Body)> {
        let region = access.region;
        let of_tensor = &self.users[region.block.0];
        did(of_tensor.len());
        let is_owned = self.program.blocks[region.block.0].lifetime == Lifetime::Graph;
        if !is_owned || of_tensor.len() > MAX_USERS {
            return None;
        }
        let source = *of_tensor.iter().rfind(|&&node| node < self.node && self.writes(node, &region))?;
        let reads = |node: usize| self.program.nodes[node].kind.each_read().any(|read| read.overlaps(&region));
        let is_read_once = self.body.operands.iter().filter(|other| other.region.overlaps(&region)).count() == 1
            && of_tensor.iter().all(|&node| node <= source || node == self.node || !reads(node));
        let body = body_of(self.program, source).filter(|body| body.elements == self.body.elements)?;
        let is_stored = body
            .outputs
            .iter()
            .any(|store| store.region == region && store.element == access.element && !store.is_per_row);
        (is_read_once && is_stored).then_some((source, body))
    }

    /// The reader with `first` done in it, which gives an operand that it then no longer reads.
    pub(super) fn with(&self, first: &Body, access: &Access) -> Option<Body> {
        let mut joint = merge(first, &self.body);
        // What the reader itself stores there, in place, nobody reads either: else it were not the only one.
        joint.retain_outputs(|store| store.region != access.region);
        (is_small(&joint) && joint.is_sound() && can_generate(&joint)).then_some(joint)
    }

    /// Whether nobody from a node on writes over what is to be read here.
    pub(super) fn is_still_there(&self, region: &Region, from: usize) -> bool {
        let of = &self.users[region.block.0];
        let place = |node: usize| of.partition_point(|&other| other < node);
        let between: Range<usize> = place(from)..place(self.node);
        did(between.len());
        !of[between].iter().any(|&node| self.writes(node, region))
    }

    fn writes(&self, node: usize, region: &Region) -> bool {
        self.program.nodes[node].kind.each_write().any(|write| write.region.overlaps(region))
    }
}

//! What each kernel reads and writes, in the order of the recording.

use std::collections::{BTreeMap, BTreeSet};

use super::declared::Groups;
use super::error::LiftError;
use super::library::{self, Written, data_blocks, unknown};
use super::resolve::{Resolved, ResolvedKernel, Source};
use crate::compile::block::{Block, BlockId};
use crate::compile::kernel::{Code, Effect, Kernel, Pointer};
use crate::compile::node::NodeKind;

/// Follows the nodes, and what their blocks hold.
pub(super) struct Effects<'a> {
    groups: &'a Groups,
    blocks: &'a [Block],
    /// Blocks outside the graph that are not workspace of a library.
    data: BTreeSet<BlockId>,
    written: Vec<Written>,
    /// How often each kernel of unknown effect was launched.
    pub(super) unknown_kernels: BTreeMap<String, usize>,
}

impl<'a> Effects<'a> {
    pub(super) fn new(groups: &'a Groups, blocks: &'a [Block], resolved: &[Resolved<'_>]) -> Self {
        Self {
            groups,
            blocks,
            data: data_blocks(resolved, groups.blocks()),
            written: vec![Written::Nothing; blocks.len()],
            unknown_kernels: BTreeMap::new(),
        }
    }

    /// The operations that a recorded node stands for.
    pub(super) fn operations(&mut self, node: usize, resolved: Resolved<'_>) -> Result<Vec<NodeKind>, LiftError> {
        let kinds = match resolved {
            Resolved::Done(kinds) => kinds,
            Resolved::Kernel(kernel) => vec![NodeKind::Kernel(self.kernel(node, *kernel)?)],
        };
        for kind in &kinds {
            let left = if matches!(kind, NodeKind::Memset { .. }) { Written::Fill } else { Written::Data };
            for write in kind.writes() {
                self.written[write.region.block.0] = left;
            }
        }
        Ok(kinds)
    }

    fn kernel(&mut self, node: usize, mut kernel: ResolvedKernel<'_>) -> Result<Kernel, LiftError> {
        let (mut pointers, mut effect) = match &mut kernel.source {
            Source::Table(effect) => (std::mem::take(&mut kernel.pointers), std::mem::replace(effect, Effect::Known)),
            Source::Declared(group) => {
                let group = *group;
                (self.groups.pointers(node, &kernel, group, self.blocks), Effect::Known)
            }
            Source::Library => {
                let (mut pointers, effect) = library::pointers(&kernel, self.blocks, &self.written, &self.data);
                let least = library::alignment(kernel.name);
                pointers.iter_mut().for_each(|pointer| pointer.alignment = pointer.alignment.max(least));
                (pointers, effect)
            }
            Source::Unknown => (Vec::new(), Effect::Unknown),
        };
        // A launch that seems to write nothing would be dropped: it must do something that is not seen.
        let is_idle = pointers.iter().all(|pointer: &Pointer| pointer.write.is_none());
        if effect == Effect::Unknown || (is_idle && matches!(kernel.source, Source::Declared(_))) {
            effect = Effect::Unknown;
            pointers = kernel.pointers.iter().map(|pointer| unknown(*pointer, self.blocks)).collect();
            if pointers.is_empty() {
                return Err(LiftError::NoAddress { node, kernel: kernel.name.to_owned() });
            }
            *self.unknown_kernels.entry(kernel.name.to_owned()).or_default() += 1;
        }
        Ok(Kernel {
            name: kernel.name.to_owned(),
            code: Code::Recorded(node),
            launch: kernel.launch,
            parameters: kernel.words.values,
            argument_bytes: kernel.words.argument_bytes,
            pointers,
            effect,
        })
    }
}

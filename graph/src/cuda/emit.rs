//! A program as a graph of the driver.

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::{CudaContext, CudaFunction, sys};

use super::driver::check;
use super::feed::FeedNode;
use super::generated::{Modules, allow_shared_memory};
use super::inspect::kernel_params;
use super::raw::RawGraph;
use super::read::Reading;
use super::waits::Waiting;
use crate::compile::{
    BlockId, Code, Edges, Kernel, NodeIndex, NodeKind, Pattern, Program, RecordedKind, Region, early_root, edges,
    summed_by_row,
};
use crate::reason::{Refusal, Stage};
use crate::translate::{Arguments, Places};

/// `CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC`: an edge from here counts when all blocks of a kernel have let others begin.
const PROGRAMMATIC: u8 = 1;

/// What the nodes of a new graph are made of.
#[derive(Debug)]
pub(super) struct Emitter<'a> {
    /// The recording that the program was made from; its graph is live.
    pub(super) reading: &'a Reading,
    pub(super) places: &'a Places,
    /// Where the memory of the new graph starts.
    pub(super) arena: u64,
    pub(super) modules: &'a Modules,
    pub(super) context: &'a CudaContext,
}

/// A graph, what its nodes wait for, and the node that copies what a step begins with.
pub(super) struct Emitted {
    pub(super) graph: RawGraph,
    pub(super) edges: Vec<Edges>,
    pub(super) feed: Option<sys::CUgraphNode>,
}

/// A graph under construction and what the next node waits for.
struct Place<'a> {
    graph: sys::CUgraph,
    before: &'a [sys::CUgraphNode],
}

impl Place<'_> {
    fn before(&self) -> (*const sys::CUgraphNode, usize) {
        let list = if self.before.is_empty() { ptr::null() } else { self.before.as_ptr() };
        (list, self.before.len())
    }
}

impl Emitter<'_> {
    /// A graph with one node per node of the program, and what each of them depends on: nothing lets a kernel start early where they
    /// are not to overlap. Everything comes after a node that copies with `copying`, where that is given.
    pub(super) fn emit(
        &self,
        program: &Program,
        overlaps: bool,
        copying: Option<&CudaFunction>,
    ) -> Result<Emitted, Refusal> {
        let mut waiting = Waiting::default();
        let waits = program.nodes.iter().map(|node| overlaps && self.waits(&node.kind, &mut waiting));
        let waits: Vec<bool> = waits.collect();
        let edges = edges(program, &waits);
        let early_root = early_root(program, &waits, &edges);
        let owned = RawGraph::empty()?;
        let graph = owned.get().ok_or(Refusal::Empty)?;
        let feed = copying.map(|copying| FeedNode::add(graph, copying)).transpose()?;
        let mut nodes: Vec<sys::CUgraphNode> = Vec::with_capacity(program.nodes.len());
        for (node, Edges { full, early }) in program.nodes.iter().zip(&edges) {
            let mut before: Vec<_> = full.iter().map(|dependency| nodes[dependency.0]).collect();
            let is_root = full.is_empty() && early.is_empty();
            let is_early = early_root == Some(NodeIndex(nodes.len()));
            before.extend(feed.filter(|_| is_root && !is_early));
            let place = Place { graph, before: &before };
            let handle = match &node.kind {
                NodeKind::Kernel(kernel) => self.kernel(&place, kernel)?,
                NodeKind::Memset { region, pattern } => self.memset(&place, region, pattern)?,
                NodeKind::Copy { source, destination } => self.copy(&place, source, destination)?,
                // Memory that no pass placed is the new graph's own.
                NodeKind::Alloc(_) | NodeKind::Free(_) | NodeKind::Empty => empty(&place)?,
            };
            let mut early: Vec<_> = early.iter().map(|dependency| nodes[dependency.0]).collect();
            early.extend(feed.filter(|_| is_early));
            start_early(graph, &early, handle)?;
            nodes.push(handle);
        }
        Ok(Emitted { graph: owned, edges, feed })
    }

    /// Whether it is a kernel that waits for its inputs.
    fn waits(&self, kind: &NodeKind, waiting: &mut Waiting) -> bool {
        let NodeKind::Kernel(kernel) = kind else { return false };
        match &summed_by_row(kernel).as_ref().unwrap_or(kernel).code {
            Code::Generated(_) => self.modules.kernels_wait(),
            Code::Recorded(position) => self.reading.nodes.get(*position).is_some_and(|&node| waiting.has(node)),
        }
    }

    fn kernel(&self, place: &Place<'_>, kernel: &Kernel) -> Result<sys::CUgraphNode, Refusal> {
        let own = summed_by_row(kernel);
        let kernel = own.as_ref().unwrap_or(kernel);
        let wrong = |message: String| contradiction(&format!("kernel `{}`: {message}", kernel.name));
        let mut arguments = Arguments::of(kernel, |block| self.places.address(block, self.arena)).map_err(wrong)?;
        let mut addresses = arguments.addresses();
        let (mut params, source) = match &kernel.code {
            Code::Recorded(position) => {
                let source = self.recorded(*position, kernel)?;
                (kernel_params(source)?, Some(source))
            }
            Code::Generated(text) => {
                let function = self.modules.function(text, &kernel.name)?;
                allow_shared_memory(function, kernel.launch.shared_bytes)?;
                (params_of(function), None)
            }
        };
        let launch = kernel.launch;
        [params.gridDimX, params.gridDimY, params.gridDimZ] = launch.grid;
        [params.blockDimX, params.blockDimY, params.blockDimZ] = launch.block;
        params.sharedMemBytes = launch.shared_bytes;
        params.kernelParams = if addresses.is_empty() { ptr::null_mut() } else { addresses.as_mut_ptr() };
        params.extra = ptr::null_mut();
        let mut node = ptr::null_mut();
        let (before, count) = place.before();
        // SAFETY: the graph and the nodes before are live; each argument is as long as the kernel's parameter, which for
        // a recorded kernel was compared with what the driver says and for a generated one is the compiler's rule; the
        // driver copies them.
        let result =
            unsafe { sys::cuGraphAddKernelNode_v2(&raw mut node, place.graph, before, count, &raw const params) };
        check(result, "cuGraphAddKernelNode", Stage::Compile)?;
        if let Some(source) = source {
            // Clusters, cooperative launches and the like: without them another kernel would run.
            // SAFETY: both nodes are kernels of live graphs.
            let result = unsafe { sys::cuGraphKernelNodeCopyAttributes(node, source) };
            check(result, "cuGraphKernelNodeCopyAttributes", Stage::Compile)?;
        }
        Ok(node)
    }

    /// The node that a kernel was recorded as, if it takes arguments of the same lengths.
    fn recorded(&self, position: usize, kernel: &Kernel) -> Result<sys::CUgraphNode, Refusal> {
        let node = self.reading.recorded.nodes.get(position).zip(self.reading.nodes.get(position));
        let Some((RecordedKind::Kernel { arguments, .. }, &handle)) = node.map(|(node, handle)| (&node.kind, handle))
        else {
            return Err(contradiction(&format!("node {position} of the recording is no kernel")));
        };
        let lengths = arguments.iter().map(Vec::len);
        if !lengths.eq(kernel.argument_bytes.iter().copied()) {
            return Err(contradiction(&format!("kernel `{}` was recorded with other arguments", kernel.name)));
        }
        Ok(handle)
    }

    fn memset(&self, place: &Place<'_>, region: &Region, pattern: &Pattern) -> Result<sys::CUgraphNode, Refusal> {
        let width_bytes = u32::try_from(pattern.width_bytes).ok().filter(|&width| width > 0);
        let width_bytes = width_bytes.ok_or_else(|| contradiction("a fill with values of no width"))?;
        let params = sys::CUDA_MEMSET_NODE_PARAMS {
            dst: self.address(region.block)? + region.start as u64,
            // Unused where there is one row.
            pitch: 0,
            value: pattern.value,
            elementSize: width_bytes,
            width: region.len() / pattern.width_bytes,
            height: 1,
        };
        let mut node = ptr::null_mut();
        let (before, count) = place.before();
        let context = self.context.cu_ctx();
        // SAFETY: the graph and the nodes before are live, and the bytes belong to a block.
        let result =
            unsafe { sys::cuGraphAddMemsetNode(&raw mut node, place.graph, before, count, &raw const params, context) };
        check(result, "cuGraphAddMemsetNode", Stage::Compile).map(|()| node)
    }

    fn copy(&self, place: &Place<'_>, source: &Region, destination: &Region) -> Result<sys::CUgraphNode, Refusal> {
        let from = self.address(source.block)? + source.start as u64;
        let to = self.address(destination.block)? + destination.start as u64;
        let params = copy_of(from, to, source.len());
        let mut node = ptr::null_mut();
        let (before, count) = place.before();
        let context = self.context.cu_ctx();
        // SAFETY: the graph and the nodes before are live, and the bytes belong to blocks.
        let result =
            unsafe { sys::cuGraphAddMemcpyNode(&raw mut node, place.graph, before, count, &raw const params, context) };
        check(result, "cuGraphAddMemcpyNode", Stage::Compile).map(|()| node)
    }

    fn address(&self, block: BlockId) -> Result<u64, Refusal> {
        self.places.address(block, self.arena).ok_or_else(|| contradiction(&format!("{block} has no place")))
    }
}

fn contradiction(message: &str) -> Refusal {
    Refusal::NotCompiled { why: "contradiction", message: message.to_owned() }
}

fn empty(place: &Place<'_>) -> Result<sys::CUgraphNode, Refusal> {
    let mut node = ptr::null_mut();
    let (before, count) = place.before();
    // SAFETY: the graph and the nodes before are live.
    let result = unsafe { sys::cuGraphAddEmptyNode(&raw mut node, place.graph, before, count) };
    check(result, "cuGraphAddEmptyNode", Stage::Compile).map(|()| node)
}

/// Lets a kernel that waits be launched once the blocks of those before it have begun.
fn start_early(graph: sys::CUgraph, before: &[sys::CUgraphNode], node: sys::CUgraphNode) -> Result<(), Refusal> {
    if before.is_empty() {
        return Ok(());
    }
    let edge = sys::CUgraphEdgeData {
        from_port: PROGRAMMATIC,
        to_port: 0,
        type_: sys::CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8,
        reserved: [0; 5],
    };
    let (nodes, edges) = (vec![node; before.len()], vec![edge; before.len()]);
    // SAFETY: the graph and its nodes are live, and all three lists have the length that is given.
    let result =
        unsafe { sys::cuGraphAddDependencies_v2(graph, before.as_ptr(), nodes.as_ptr(), edges.as_ptr(), before.len()) };
    check(result, "cuGraphAddDependencies", Stage::Compile)
}

pub(super) fn params_of(function: sys::CUfunction) -> sys::CUDA_KERNEL_NODE_PARAMS {
    sys::CUDA_KERNEL_NODE_PARAMS {
        func: function,
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: ptr::null_mut::<*mut c_void>(),
        extra: ptr::null_mut(),
        kern: ptr::null_mut(),
        ctx: ptr::null_mut(),
    }
}

/// One row on the device.
fn copy_of(source: u64, destination: u64, bytes: usize) -> sys::CUDA_MEMCPY3D {
    sys::CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: ptr::null(),
        srcDevice: source,
        srcArray: ptr::null_mut(),
        reserved0: ptr::null_mut(),
        srcPitch: 0,
        srcHeight: 0,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: ptr::null_mut(),
        dstDevice: destination,
        dstArray: ptr::null_mut(),
        reserved1: ptr::null_mut(),
        dstPitch: 0,
        dstHeight: 0,
        WidthInBytes: bytes,
        Height: 1,
        Depth: 1,
    }
}

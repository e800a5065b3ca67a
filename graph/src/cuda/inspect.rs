//! Looks through a captured graph and refuses what must not be replayed.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::mem::MaybeUninit;

use cudarc::driver::sys;

use super::driver::check;
use crate::reason::{Refusal, Stage};
use crate::report::NodeCounts;

/// Parts of kernel names of random generators whose state the host advances.
const HOST_RANDOM: [&str; 2] = ["curand", "gen_sequenced"];
/// Longest name that is kept: those of the matrix products run to hundreds of characters.
const MAX_NAME: usize = 80;

/// What a graph holds.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    pub(super) nodes: NodeCounts,
    pub(super) allocated_bytes: u64,
    /// Most bytes held at one time, in the order in which the driver lists the nodes.
    pub(super) peak_bytes: u64,
    /// The kernel that is listed last.
    pub(super) last_kernel: Option<String>,
    held_bytes: u64,
    uploads: usize,
    downloads: usize,
    host_bytes: usize,
    first_host_copy_after: Option<String>,
    host_random: Option<String>,
    live: BTreeMap<u64, usize>,
    /// Nodes that do something to memory that is there.
    work: Vec<sys::CUgraphNode>,
}

impl Inventory {
    /// Reads all nodes.
    pub(super) fn of(graph: sys::CUgraph) -> Result<Self, Refusal> {
        let nodes = nodes_of(graph)?;
        let mut inventory = Self::default();
        let mut early = Vec::new();
        for node in nodes {
            inventory.add(node, &mut early)?;
        }
        // The driver promises no order: a release may be listed before its allocation.
        for pointer in early {
            inventory.live.remove(&pointer);
        }
        Ok(inventory)
    }

    /// The first rule that the graph breaks.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        if self.uploads + self.downloads > 0 {
            return Err(Refusal::HostCopies {
                uploads: self.uploads,
                downloads: self.downloads,
                bytes: self.host_bytes,
                after: self.first_host_copy_after.clone(),
            });
        }
        if !self.live.is_empty() {
            return Err(Refusal::UnfreedAllocations { count: self.live.len(), bytes: self.live.values().sum() });
        }
        if let Some(kernel) = &self.host_random {
            return Err(Refusal::HostRandom { kernel: kernel.clone() });
        }
        if self.nodes.total() == 0 { Err(Refusal::Empty) } else { Ok(()) }
    }

    /// Address and length of what is taken in the region and still held after it.
    pub(super) fn escaped(&self) -> impl Iterator<Item = (u64, usize)> {
        self.live.iter().map(|(&address, &bytes)| (address, bytes))
    }

    /// Everything that is no allocation and no release; none when there are nodes that cannot be switched off.
    pub(super) fn work(&self) -> Option<&[sys::CUgraphNode]> {
        (self.nodes.others == 0).then_some(&self.work)
    }

    fn add(&mut self, node: sys::CUgraphNode, early: &mut Vec<u64>) -> Result<(), Refusal> {
        let kind = kind_of(node)?;
        let is_work = matches!(
            kind,
            sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL
                | sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY
                | sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET
        );
        if is_work {
            self.work.push(node);
        }
        match kind {
            sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL => {
                let name = kernel_name(node);
                if HOST_RANDOM.iter().any(|part| name.contains(part)) {
                    self.host_random.get_or_insert_with(|| short(&name));
                }
                let name = short(&name);
                self.nodes.kernels += 1;
                *self.nodes.kernels_by_name.entry(name.clone()).or_default() += 1;
                self.last_kernel = Some(name);
            }
            sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY => self.add_copy(node)?,
            sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET => self.nodes.memsets += 1,
            sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
                self.nodes.allocations += 1;
                let (address, bytes) = allocation(node)?;
                self.allocated_bytes += bytes as u64;
                self.held_bytes += bytes as u64;
                self.peak_bytes = self.peak_bytes.max(self.held_bytes);
                self.live.insert(address, bytes);
            }
            sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE => {
                self.nodes.frees += 1;
                let pointer = released(node)?;
                match self.live.remove(&pointer) {
                    Some(bytes) => self.held_bytes -= bytes as u64,
                    None => early.push(pointer),
                }
            }
            _ => self.nodes.others += 1,
        }
        Ok(())
    }

    fn add_copy(&mut self, node: sys::CUgraphNode) -> Result<(), Refusal> {
        let params = copy_params(node)?;
        let host = sys::CUmemorytype::CU_MEMORYTYPE_HOST;
        let (upload, download) = (params.srcMemoryType == host, params.dstMemoryType == host);
        if !upload && !download {
            self.nodes.device_copies += 1;
            return Ok(());
        }
        self.uploads += usize::from(upload);
        self.downloads += usize::from(!upload);
        self.host_bytes += params.WidthInBytes * params.Height.max(1) * params.Depth.max(1);
        if self.uploads + self.downloads == 1 {
            self.first_host_copy_after.clone_from(&self.last_kernel);
        }
        Ok(())
    }
}

/// What a copy node copies.
pub(super) fn copy_params(node: sys::CUgraphNode) -> Result<sys::CUDA_MEMCPY3D, Refusal> {
    let mut params = MaybeUninit::<sys::CUDA_MEMCPY3D>::zeroed();
    // SAFETY: the node is a copy, and the driver fills the parameters when it succeeds.
    let result = unsafe { sys::cuGraphMemcpyNodeGetParams(node, params.as_mut_ptr()) };
    check(result, "cuGraphMemcpyNodeGetParams", Stage::Inspect)?;
    // SAFETY: filled above; the zero pattern alone would be no value of the enumerations inside.
    Ok(unsafe { params.assume_init() })
}

/// Address and length of what an allocation node takes.
pub(super) fn allocation(node: sys::CUgraphNode) -> Result<(u64, usize), Refusal> {
    let mut params = MaybeUninit::<sys::CUDA_MEM_ALLOC_NODE_PARAMS>::zeroed();
    // SAFETY: the node is an allocation, and the driver fills the parameters when it succeeds.
    let result = unsafe { sys::cuGraphMemAllocNodeGetParams(node, params.as_mut_ptr()) };
    check(result, "cuGraphMemAllocNodeGetParams", Stage::Inspect)?;
    // SAFETY: filled above.
    let params = unsafe { params.assume_init() };
    Ok((params.dptr, params.bytesize))
}

/// Address of what a release node gives back.
pub(super) fn released(node: sys::CUgraphNode) -> Result<u64, Refusal> {
    let mut address = 0;
    // SAFETY: the node is a release, and `address` takes an address.
    let result = unsafe { sys::cuGraphMemFreeNodeGetParams(node, &raw mut address) };
    check(result, "cuGraphMemFreeNodeGetParams", Stage::Inspect).map(|()| address)
}

/// The number of nodes, where every address is released as often as it is allocated.
pub(super) fn balanced_nodes(graph: sys::CUgraph) -> Result<Option<usize>, Refusal> {
    let nodes = nodes_of(graph)?;
    let mut held: BTreeMap<u64, i64> = BTreeMap::new();
    for &node in &nodes {
        match kind_of(node)? {
            sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC => *held.entry(allocation(node)?.0).or_default() += 1,
            sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE => *held.entry(released(node)?).or_default() -= 1,
            _ => {}
        }
    }
    Ok((held.values().all(|&count| count == 0) && !nodes.is_empty()).then_some(nodes.len()))
}

/// The nodes in the driver's order, which means nothing.
pub(super) fn nodes_of(graph: sys::CUgraph) -> Result<Vec<sys::CUgraphNode>, Refusal> {
    let mut count = 0;
    // SAFETY: with no array the driver only counts.
    let result = unsafe { sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &raw mut count) };
    check(result, "cuGraphGetNodes", Stage::Inspect)?;
    let mut nodes = vec![std::ptr::null_mut(); count];
    if count > 0 {
        // SAFETY: the array has room for `count` nodes.
        let result = unsafe { sys::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count) };
        check(result, "cuGraphGetNodes", Stage::Inspect)?;
    }
    nodes.truncate(count);
    Ok(nodes)
}

/// What a node does.
pub(super) fn kind_of(node: sys::CUgraphNode) -> Result<sys::CUgraphNodeType, Refusal> {
    let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
    // SAFETY: the node is one of a live graph.
    let result = unsafe { sys::cuGraphNodeGetType(node, &raw mut kind) };
    check(result, "cuGraphNodeGetType", Stage::Inspect).map(|()| kind)
}

/// Empty when the driver does not tell.
fn kernel_name(node: sys::CUgraphNode) -> String {
    kernel_params(node).map(|params| function_name(&params)).unwrap_or_default()
}

/// What a kernel node launches. The arguments it points at belong to the node.
pub(super) fn kernel_params(node: sys::CUgraphNode) -> Result<sys::CUDA_KERNEL_NODE_PARAMS, Refusal> {
    let mut params = MaybeUninit::<sys::CUDA_KERNEL_NODE_PARAMS>::zeroed();
    // SAFETY: the node is a kernel, and the driver fills the parameters when it succeeds.
    let result = unsafe { sys::cuGraphKernelNodeGetParams_v2(node, params.as_mut_ptr()) };
    check(result, "cuGraphKernelNodeGetParams", Stage::Inspect)?;
    // SAFETY: filled above, and any bytes are a value of numbers and pointers.
    Ok(unsafe { params.assume_init() })
}

/// Empty when the driver does not tell.
pub(super) fn function_name(params: &sys::CUDA_KERNEL_NODE_PARAMS) -> String {
    let mut name = std::ptr::null();
    // SAFETY: handles are only used when the driver gave them.
    let found = unsafe {
        if !params.func.is_null() {
            sys::cuFuncGetName(&raw mut name, params.func) == sys::CUresult::CUDA_SUCCESS
        } else if !params.kern.is_null() {
            sys::cuKernelGetName(&raw mut name, params.kern) == sys::CUresult::CUDA_SUCCESS
        } else {
            false
        }
    };
    if !found || name.is_null() {
        return String::new();
    }
    // SAFETY: the driver's names end with a zero byte and live as long as the module.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

fn short(name: &str) -> String {
    name.chars().take(MAX_NAME).collect()
}

//! A graph of the driver as plain data.

use std::collections::BTreeMap;
use std::ptr;

use cudarc::driver::sys;

use super::driver::check;
use super::inspect::{allocation, copy_params, function_name, kernel_params, kind_of, nodes_of, released};
use super::raw::RawGraph;
use crate::compile::{DeclaredEffect, LaunchShape, Recorded, RecordedKind, RecordedNode};
use crate::launch::{Declared, Span};
use crate::reason::{Refusal, Stage};
use crate::translate::{Launches, PlainCopy, positions, predecessors, split_copies, topological_order};

/// More parameters than any kernel has: 32 764 bytes are the limit of the hardware.
const MAX_PARAMETERS: usize = 1 << 15;

/// A graph that was read.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) recorded: Recorded,
    /// The handle of each recorded node, for as long as the graph; for a copy that is part of one, that of the whole.
    pub(super) nodes: Vec<sys::CUgraphNode>,
}

impl Reading {
    /// Reads all nodes. Nobody changes the graph.
    pub(super) fn of(graph: &RawGraph, declared: &[Declared]) -> Result<Self, Refusal> {
        let graph = graph.get().ok_or(Refusal::Empty)?;
        let listed = nodes_of(graph)?;
        let edges = edges_of(graph, &listed)?;
        let order = topological_order(listed.len(), &edges).ok_or_else(|| unreadable("its nodes have no order"))?;
        let dependencies = predecessors(&order, &edges);
        let nodes: Vec<sys::CUgraphNode> = order.iter().map(|&node| listed[node]).collect();
        let handles: Vec<usize> = nodes.iter().map(|&node| node as usize).collect();
        let launches = Launches::new(&handles, &dependencies);
        let (effects, copies) = (effects(declared, &launches), copies(declared, &launches));
        let mut functions = Functions::default();
        let recorded = nodes.iter().zip(dependencies).map(|(&node, dependencies)| {
            let kind = read_node(node, &mut functions)?;
            Ok(RecordedNode { kind, dependencies })
        });
        let recorded = Recorded { nodes: recorded.collect::<Result<_, Refusal>>()?, declared: effects };
        let (recorded, nodes) = split_copies(recorded, &nodes, &copies);
        Ok(Self { recorded, nodes })
    }
}

fn unreadable(message: impl Into<String>) -> Refusal {
    Refusal::NotCompiled { why: "unreadable", message: message.into() }
}

/// Pairs of indices into `nodes`. An edge that only holds back a part of a kernel counts as one that holds back all of
/// it.
fn edges_of(graph: sys::CUgraph, nodes: &[sys::CUgraphNode]) -> Result<Vec<(usize, usize)>, Refusal> {
    let mut count = 0;
    // SAFETY: with no arrays the driver only counts.
    let result =
        unsafe { sys::cuGraphGetEdges_v2(graph, ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), &raw mut count) };
    check(result, "cuGraphGetEdges", Stage::Compile)?;
    let plain = sys::CUgraphEdgeData { from_port: 0, to_port: 0, type_: 0, reserved: [0; 5] };
    let (mut from, mut to) = (vec![ptr::null_mut(); count], vec![ptr::null_mut(); count]);
    // Asked for, because the driver refuses to leave it out where an edge has more to say.
    let mut data = vec![plain; count];
    if count > 0 {
        // SAFETY: all three arrays have room for `count` entries.
        let result = unsafe {
            sys::cuGraphGetEdges_v2(graph, from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr(), &raw mut count)
        };
        check(result, "cuGraphGetEdges", Stage::Compile)?;
    }
    let index: BTreeMap<usize, usize> = nodes.iter().enumerate().map(|(at, &node)| (node as usize, at)).collect();
    let at = |node: sys::CUgraphNode| index.get(&(node as usize)).copied();
    let pair = |(&from, &to)| at(from).zip(at(to)).ok_or_else(|| unreadable("an edge leads to an unknown node"));
    from.iter().zip(&to).take(count).map(pair).collect()
}

/// What was declared of nodes that can be told. Of others nothing is known, which is always right.
fn effects(declared: &[Declared], launches: &Launches<'_>) -> Vec<DeclaredEffect> {
    let list = |spans: &[Span]| spans.iter().map(|span| (span.address, span.bytes)).collect();
    let effect = |declared: &Declared| {
        let nodes = positions(launches, declared.before, declared.last)?;
        Some(DeclaredEffect { nodes, reads: list(&declared.effect.reads), writes: list(&declared.effect.writes) })
    };
    declared.iter().filter_map(effect).collect()
}

/// The launches of one node that do nothing but copy, by position.
fn copies(declared: &[Declared], launches: &Launches<'_>) -> BTreeMap<usize, Vec<PlainCopy>> {
    let copying = declared.iter().filter(|declared| !declared.effect.copies.is_empty());
    let of_one_node = copying.filter_map(|declared| {
        let nodes = positions(launches, declared.before, declared.last).filter(|nodes| nodes.len() == 1)?;
        let copy =
            |&(from, destination): &(Span, u64)| PlainCopy { source: from.address, destination, bytes: from.bytes };
        Some((nodes.start, declared.effect.copies.iter().map(copy).collect()))
    });
    of_one_node.collect()
}

fn read_node(node: sys::CUgraphNode, functions: &mut Functions) -> Result<RecordedKind, Refusal> {
    Ok(match kind_of(node)? {
        sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL => read_kernel(node, functions)?,
        sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET => read_memset(node)?,
        sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY => read_copy(node)?,
        sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
            let (address, bytes) = allocation(node)?;
            RecordedKind::Alloc { address, bytes }
        }
        sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE => RecordedKind::Free { address: released(node)? },
        sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY => RecordedKind::Empty,
        other => RecordedKind::Other(format!("{other:?}").trim_start_matches("CU_GRAPH_NODE_TYPE_").to_lowercase()),
    })
}

/// What the driver said of the functions of nodes: a graph launches few functions often, and asking takes a call per
/// parameter. The graph is not changed meanwhile, so that a handle stands for the same function throughout.
#[derive(Default)]
struct Functions(BTreeMap<(usize, usize, bool), Function>);

struct Function {
    name: String,
    layout: Option<Vec<(usize, usize)>>,
    is_of_library: bool,
}

impl Functions {
    fn of(&mut self, params: &sys::CUDA_KERNEL_NODE_PARAMS) -> &Function {
        let key = (params.func as usize, params.kern as usize, has_no_arguments(params));
        self.0.entry(key).or_insert_with(|| Function {
            name: function_name(params),
            layout: parameter_layout(params),
            is_of_library: is_of_library(params),
        })
    }
}

fn has_no_arguments(params: &sys::CUDA_KERNEL_NODE_PARAMS) -> bool {
    params.kernelParams.is_null() && params.extra.is_null()
}

fn read_kernel(node: sys::CUgraphNode, functions: &mut Functions) -> Result<RecordedKind, Refusal> {
    let params = kernel_params(node)?;
    let Function { name, layout, is_of_library } = functions.of(&params);
    let Some(arguments) = layout.as_ref().and_then(|layout| argument_bytes(&params, layout)) else {
        return Ok(RecordedKind::Other(format!("kernel `{name}`, whose arguments the driver does not tell")));
    };
    let launch = LaunchShape {
        grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
        block: [params.blockDimX, params.blockDimY, params.blockDimZ],
        shared_bytes: params.sharedMemBytes,
    };
    Ok(RecordedKind::Kernel { name: name.clone(), launch, arguments, is_of_library: *is_of_library })
}

/// Whether the driver knows the code as a part of a library that came with the process, which is how the runtime inside
/// of cuBLAS loads its kernels. Functions of modules, which programs load by themselves, are handles of another kind.
fn is_of_library(params: &sys::CUDA_KERNEL_NODE_PARAMS) -> bool {
    // See `parameter_layout`: kernels are handed out in the place of functions, too.
    let kernel = if params.kern.is_null() { params.func.cast() } else { params.kern };
    let mut library = ptr::null_mut();
    // SAFETY: the handle is that of a live node, and the driver refuses one that is none of a kernel; the call writes a
    // handle.
    let known = unsafe { sys::cuKernelGetLibrary(&raw mut library, kernel) };
    known == sys::CUresult::CUDA_SUCCESS && !library.is_null()
}

/// Asks the driver for the offset and the size of the parameter with an index.
type Ask<'a> = &'a dyn Fn(usize, *mut usize, *mut usize) -> sys::CUresult;

/// Offset and size of each parameter.
fn parameter_layout(params: &sys::CUDA_KERNEL_NODE_PARAMS) -> Option<Vec<(usize, usize)>> {
    let (function, kernel) = (params.func, params.kern);
    // SAFETY: the handles are those of a live node; the calls write two numbers each.
    let of_function = |index, offset, size| unsafe { sys::cuFuncGetParamInfo(function, index, offset, size) };
    // SAFETY: as above.
    let of_kernel = |index, offset, size| unsafe { sys::cuKernelGetParamInfo(kernel, index, offset, size) };
    // The driver takes the handle of a library's kernel where it asks for a function, and hands it out there too.
    // SAFETY: as above; a handle that is none of a kernel is refused.
    let of_either = |index, offset, size| unsafe { sys::cuKernelGetParamInfo(function.cast(), index, offset, size) };
    let ways: [(bool, Ask<'_>); 3] = [
        (!function.is_null(), &of_function),
        (!kernel.is_null(), &of_kernel),
        (!function.is_null() && kernel.is_null(), &of_either),
    ];
    let layouts = ways.iter().filter(|(is_there, _)| *is_there).filter_map(|(_, ask)| layout_by(ask));
    // An empty list may also mean the wrong kind of handle, so it is believed only where the node has no arguments.
    let has_none = has_no_arguments(params);
    layouts.into_iter().find(|layout| !layout.is_empty() || has_none)
}

fn layout_by(ask: Ask<'_>) -> Option<Vec<(usize, usize)>> {
    let mut layout = Vec::new();
    while layout.len() < MAX_PARAMETERS {
        let (mut offset, mut size) = (0, 0);
        match ask(layout.len(), &raw mut offset, &raw mut size) {
            sys::CUresult::CUDA_SUCCESS => layout.push((offset, size)),
            // The index after the last one.
            sys::CUresult::CUDA_ERROR_INVALID_VALUE => return Some(layout),
            _ => return None,
        }
    }
    None
}

/// The bytes of each argument, from wherever the node has them.
fn argument_bytes(params: &sys::CUDA_KERNEL_NODE_PARAMS, layout: &[(usize, usize)]) -> Option<Vec<Vec<u8>>> {
    // SAFETY: of the callers' addresses, each points at so many bytes that belong to the node.
    let copy = |from: *const u8, bytes| unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec();
    if layout.is_empty() {
        return Some(Vec::new());
    }
    if !params.kernelParams.is_null() {
        let argument = |(index, &(_, size)): (usize, &(usize, usize))| {
            // SAFETY: the list has one entry per parameter.
            let from = unsafe { *params.kernelParams.add(index) }.cast_const().cast::<u8>();
            (!from.is_null()).then(|| copy(from, size))
        };
        return layout.iter().enumerate().map(argument).collect();
    }
    let (buffer, length) = argument_buffer(params.extra)?;
    let argument = |&(offset, size): &(usize, usize)| {
        let end = offset.checked_add(size).filter(|&end| end <= length)?;
        // SAFETY: `end` lies inside of the buffer.
        Some(copy(unsafe { buffer.add(offset) }, end - offset))
    };
    layout.iter().map(argument).collect()
}

/// Start and length of the buffer that a list of launch options names.
fn argument_buffer(extra: *mut *mut std::ffi::c_void) -> Option<(*const u8, usize)> {
    // CU_LAUNCH_PARAM_END, _BUFFER_POINTER and _BUFFER_SIZE of the driver's header, each followed by its value.
    const END: usize = 0;
    const POINTER: usize = 1;
    const SIZE: usize = 2;
    const MAX_OPTIONS: usize = 8;
    if extra.is_null() {
        return None;
    }
    let (mut buffer, mut length) = (ptr::null::<u8>(), None);
    for option in 0..MAX_OPTIONS {
        // SAFETY: the list of the node ends with `END`, which was not met before, and every other option has a value.
        let (tag, value) = unsafe {
            let tag = *extra.add(2 * option) as usize;
            if tag == END {
                return length.filter(|_| !buffer.is_null()).map(|length| (buffer, length));
            }
            (tag, *extra.add(2 * option + 1))
        };
        match tag {
            POINTER => buffer = value.cast_const().cast(),
            // SAFETY: the value of this option is the address of a length.
            SIZE => length = (!value.is_null()).then(|| unsafe { *value.cast_const().cast::<usize>() }),
            _ => return None,
        }
    }
    None
}

fn read_memset(node: sys::CUgraphNode) -> Result<RecordedKind, Refusal> {
    let mut params = sys::CUDA_MEMSET_NODE_PARAMS { dst: 0, pitch: 0, value: 0, elementSize: 0, width: 0, height: 0 };
    // SAFETY: the node is a fill, and the driver writes its parameters.
    let result = unsafe { sys::cuGraphMemsetNodeGetParams(node, &raw mut params) };
    check(result, "cuGraphMemsetNodeGetParams", Stage::Compile)?;
    Ok(RecordedKind::Memset {
        address: params.dst,
        value: params.value,
        value_bytes: params.elementSize as usize,
        width: params.width,
        height: params.height,
        pitch_bytes: params.pitch,
    })
}

/// A copy in one piece, or what cannot be taken apart. Copies from and to the host were refused before.
fn read_copy(node: sys::CUgraphNode) -> Result<RecordedKind, Refusal> {
    let params = copy_params(node)?;
    let is_device =
        |kind| matches!(kind, sys::CUmemorytype::CU_MEMORYTYPE_DEVICE | sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED);
    let offsets = [params.srcY, params.srcZ, params.srcLOD, params.dstY, params.dstZ, params.dstLOD];
    let is_plain = is_device(params.srcMemoryType)
        && is_device(params.dstMemoryType)
        && params.Height <= 1
        && params.Depth <= 1
        && offsets.iter().all(|&offset| offset == 0);
    if !is_plain {
        return Ok(RecordedKind::Other("copy of several rows".to_owned()));
    }
    Ok(RecordedKind::Copy {
        source: params.srcDevice + params.srcXInBytes as u64,
        destination: params.dstDevice + params.dstXInBytes as u64,
        bytes: params.WidthInBytes,
    })
}

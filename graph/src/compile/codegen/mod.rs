//! CUDA C++ of element-wise kernels, and of those that reduce rows or columns.
//!
//! A kernel gives the same bits as the recorded ones that it stands for, one after the other: each step rounds by
//! itself, and what those kernels contract is contracted by name. Shapes, strides and constants are part of the
//! source; only addresses are arguments. The source has no includes and means the same with and without contraction.
//!
//! What a block starts at is taken to be a multiple of 256 bytes.

mod expression;
mod helpers;
mod rows;
mod columns;
mod ordered;
mod tiles;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::sync::Arc;

use super::fused::{Access, Body, Store, is_contiguous};
use super::kernel::{Code, Effect, Kernel, LaunchShape};
use super::pointwise::{ElementType, Step};
use columns::ColumnsPlan;
use expression::expression;
use helpers::{HELPERS, bits_type, value_type, vector_type};
use ordered::OrderedPlan;
use rows::{RowsPlan, unit_of};
use tiles::TilesPlan;

/// What kernels begin with, as those that the build compiles.
pub(super) const WAIT: &str = include_str!(concat!(env!("OUT_DIR"), "/wait.cuh"));
/// Threads of a block.
const THREADS: usize = 256;
/// Blocks of a launch, at most; a thread goes on where there is more to do.
const MAX_BLOCKS: usize = 4096;
/// Elements that a thread takes at once where the tensors allow it.
const VECTOR: usize = 4;
/// Their names in a vector.
const LANES: [&str; VECTOR] = ["x", "y", "z", "w"];
/// Most elements that a position in 32 bits can name.
const MAX_ELEMENTS: usize = 1 << 31;

/// Whether every step has code that gives the bits of the recorded kernels.
pub(super) fn can_generate(body: &Body) -> bool {
    let is_small = |access: &Access| super::fused::extent(&access.dims) < MAX_ELEMENTS;
    let is_aligned = |start: usize, element: ElementType| start.is_multiple_of(element.size_bytes());
    body.elements < MAX_ELEMENTS
        && (body.columns == 1
            || has_joint_rows(&[body], body.columns)
            || reduces_columns(body)
            || OrderedPlan::of(body).is_some())
        && body.operands.iter().all(|access| is_small(access) && is_aligned(access.region.start, access.element))
        && body.outputs.iter().all(|store| is_aligned(store.region.start, store.element))
        && body.types().is_some_and(|types| {
            let has_code = |step: &Step| matches!(step, Step::Reduce(..)) || expression(step, &types).is_some();
            body.steps.iter().all(has_code)
        })
}

/// Whether kernels may be parts of one that works on rows of so many elements.
pub(super) fn has_joint_rows(bodies: &[&Body], columns: usize) -> bool {
    bodies.iter().all(|body| RowsPlan::of(body, columns).is_some())
        && unit_of(bodies.iter().flat_map(|body| &body.steps), columns).is_some()
}

/// Whether a kernel reduces columns, and work on what that gives may be part of it.
pub(super) fn reduces_columns(body: &Body) -> bool {
    ColumnsPlan::of(body).is_some()
}

/// Writes the source of every fused kernel that has none yet, with its name and launch.
pub(super) fn generate(kernel: &mut Kernel) {
    let is_pending = matches!(&kernel.code, Code::Generated(source) if source.is_empty());
    if !is_pending || !matches!(kernel.effect, Effect::Fused(_)) {
        return;
    }
    let Some(body) = Body::of(kernel) else { return };
    let Effect::Fused(fused) = &kernel.effect else { return };
    let reads: Vec<usize> = fused.operands.iter().map(|view| view.pointer).collect();
    let writes: Vec<usize> = fused.outputs.iter().map(|output| output.pointer).collect();
    let num_pointers = kernel.pointers.len();
    let (text, launch) = if let Some(plan) = TilesPlan::of(&body) {
        (plan.source(&body, &reads, &writes, num_pointers), plan.launch())
    } else if body.columns == 1 {
        let plan = Plan::of(&body);
        (plan.source(&body, &reads, &writes, num_pointers), plan.launch())
    } else if let Some(plan) = RowsPlan::of(&body, body.columns) {
        (plan.source(&body, &reads, &writes, num_pointers), plan.launch())
    } else if let Some(plan) = ColumnsPlan::of(&body) {
        (plan.source(&body, &reads, &writes, num_pointers), plan.launch())
    } else if let Some(plan) = OrderedPlan::of(&body) {
        (plan.source(reads[0], writes[0], num_pointers), plan.launch())
    } else {
        return;
    };
    let text = with_helpers(&text);
    let name = format!("esper_pw_{}", &blake3::hash(text.as_bytes()).to_hex()[..16]);
    kernel.code = Code::Generated(Arc::from(text.replace("KERNEL_NAME", &name)));
    kernel.name = name;
    kernel.launch = launch;
}

/// The first lines of a kernel, up to where it begins its work.
fn signature(num_pointers: usize) -> String {
    let parameters: Vec<String> = (0..num_pointers).map(|index| format!("unsigned char *p{index}")).collect();
    let parameters = parameters.join(", ");
    format!(
        "extern \"C\" __global__ void __launch_bounds__({THREADS}) KERNEL_NAME({parameters}) {{\n  WAIT_FOR_INPUTS;\n"
    )
}

/// A source with the device functions that it uses.
fn with_helpers(text: &str) -> String {
    let mut prelude = Vec::new();
    for (name, code) in HELPERS.iter().rev() {
        if text.contains(name) || prelude.iter().any(|user: &&str| user.contains(name)) {
            prelude.insert(0, *code);
        }
    }
    prelude.insert(0, WAIT);
    prelude.concat() + text
}

/// How the elements are shared out.
struct Plan {
    /// Elements of a thread at a time.
    width: usize,
    /// Groups of so many elements.
    units: usize,
    blocks: usize,
}

impl Plan {
    fn of(body: &Body) -> Self {
        // Few elements are better spread over many threads.
        let is_wide = body.elements.is_multiple_of(VECTOR)
            && body.elements >= 16 * THREADS * VECTOR
            && body.outputs.iter().all(is_in_vectors);
        let width = if is_wide { VECTOR } else { 1 };
        let units = body.elements / width;
        Self { width, units, blocks: units.div_ceil(THREADS).min(MAX_BLOCKS) }
    }

    fn launch(&self) -> LaunchShape {
        let blocks = u32::try_from(self.blocks).expect("a launch has at most 4096 blocks");
        let threads = u32::try_from(THREADS).expect("a block has 256 threads");
        LaunchShape { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }

    fn source(&self, body: &Body, reads: &[usize], writes: &[usize], num_pointers: usize) -> String {
        let mut text = element_function(body) + &signature(num_pointers);
        let mut line = |code: String| {
            text.push_str(&code);
            text.push('\n');
        };
        let start = format!("blockIdx.x * {THREADS}u + threadIdx.x");
        let Self { width, units, blocks } = *self;
        if units <= blocks * THREADS {
            line(format!("  const unsigned int unit = {start};\n  if (unit < {units}u) {{"));
        } else {
            let step = blocks * THREADS;
            line(format!("  for (unsigned int unit = {start}; unit < {units}u; unit += {step}u) {{"));
        }
        line(format!("    const unsigned int i = unit * {width}u;"));
        elements(&mut line, body, reads, writes, width, |_| None);
        line("  }\n}".into());
        text
    }
}

/// Reads, computes and writes `width` elements from position `i` on, which are the group `unit` of so many; `known` names operands that are
/// in registers, lane by lane.
fn elements(
    line: &mut impl FnMut(String),
    body: &Body,
    reads: &[usize],
    writes: &[usize],
    width: usize,
    known: impl Fn(usize) -> Option<[String; VECTOR]>,
) {
    let operands = body.operands.iter().zip(reads).enumerate();
    let loads: Vec<[String; VECTOR]> =
        operands.map(|(k, (access, &p))| known(k).unwrap_or_else(|| load(line, width, access, k, p))).collect();
    for (index, store) in body.outputs.iter().enumerate() {
        match vector_type(store.element).filter(|_| width > 1) {
            Some(vector) => line(format!("    {vector} w{index};")),
            None => line(format!("    {} w{index}[{width}];", bits_type(store.element))),
        }
    }
    for (lane, name) in LANES.into_iter().enumerate().take(width) {
        let inputs = loads.iter().map(|lanes| lanes[lane].clone());
        let outputs = body.outputs.iter().enumerate().map(|(index, store)| {
            match vector_type(store.element).filter(|_| width > 1) {
                Some(_) => format!("w{index}.{name}"),
                None => format!("w{index}[{lane}]"),
            }
        });
        line(format!("    element({});", inputs.chain(outputs).collect::<Vec<_>>().join(", ")));
    }
    for (index, (store, pointer)) in body.outputs.iter().zip(writes).enumerate() {
        match vector_type(store.element).filter(|_| width > 1) {
            Some(vector) => line(format!("    reinterpret_cast<{vector} *>(p{pointer})[unit] = w{index};")),
            None => {
                let of = bits_type(store.element);
                for lane in 0..width {
                    line(format!("    reinterpret_cast<{of} *>(p{pointer})[i + {lane}u] = w{index}[{lane}];"));
                }
            }
        }
    }
}

/// Whether four neighbors of a result can be written at once.
fn is_in_vectors(store: &Store) -> bool {
    store.region.start.is_multiple_of(VECTOR * store.element.size_bytes())
}

/// Reads `width` elements of an operand for a thread, from position `i` on; names them lane by lane.
fn load(
    line: &mut impl FnMut(String),
    width: usize,
    access: &Access,
    operand: usize,
    pointer: usize,
) -> [String; VECTOR] {
    let of = bits_type(access.element);
    let size_bytes = access.element.size_bytes();
    let dims = &access.dims;
    let (inner, outer) = dims.split_last().map_or(((1, 0), &[][..]), |(inner, outer)| (*inner, outer));
    let is_even = width > 1 && (dims.is_empty() || inner.0.is_multiple_of(VECTOR));
    if is_even && inner.1 == 0 {
        // All lanes read the same element.
        line(format!("    const {of} v{operand} = reinterpret_cast<const {of} *>(p{pointer})[{}];", position(dims, 0)));
        return std::array::from_fn(|_| format!("v{operand}"));
    }
    let is_vector = is_even
        && inner.1 == 1
        && outer.iter().all(|(_, stride)| stride.is_multiple_of(VECTOR))
        && access.region.start.is_multiple_of(VECTOR * size_bytes);
    if let Some(vector) = vector_type(access.element).filter(|_| is_vector) {
        let at = position(dims, 0);
        line(format!(
            "    const {vector} v{operand} = *reinterpret_cast<const {vector} *>(p{pointer} + {size_bytes}ull * ({at}));"
        ));
        return LANES.map(|lane| format!("v{operand}.{lane}"));
    }
    for lane in 0..width {
        let at = position(dims, lane);
        line(format!("    const {of} v{operand}_{lane} = reinterpret_cast<const {of} *>(p{pointer})[{at}];"));
    }
    std::array::from_fn(|lane| format!("v{operand}_{lane}"))
}

/// Where the element at position `i + lane` lies.
fn position(dims: &[(usize, usize)], lane: usize) -> String {
    let at = if lane == 0 { "i".to_owned() } else { format!("(i + {lane}u)") };
    if dims.is_empty() {
        return "0u".to_owned();
    }
    if is_contiguous(dims) {
        return at;
    }
    let mut terms = Vec::new();
    let mut inner = 1;
    for (number, (size, stride)) in dims.iter().enumerate().rev() {
        if *stride > 0 {
            let quotient = if inner == 1 { at.clone() } else { format!("{at} / {inner}u") };
            let rest = if number == 0 { quotient } else { format!("({quotient}) % {size}u") };
            terms.push(if *stride == 1 { rest } else { format!("({rest}) * {stride}u") });
        }
        inner *= size;
    }
    if terms.is_empty() { "0u".to_owned() } else { terms.join(" + ") }
}

/// The steps for one element, each rounded by itself.
fn element_function(body: &Body) -> String {
    let types = body.types().expect("the types of a sound body fit");
    let reads = body.operands.iter().enumerate().map(|(k, access)| format!("const {} a{k}", bits_type(access.element)));
    let writes = body.outputs.iter().enumerate().map(|(k, store)| format!("{} &r{k}", bits_type(store.element)));
    let parameters: Vec<String> = reads.chain(writes).collect();
    let mut text = format!("static __device__ __forceinline__ void element({}) {{\n", parameters.join(", "));
    for (index, step) in body.steps.iter().enumerate() {
        let value = match step {
            Step::Load(operand) if types[index] == ElementType::Bf16 => format!("bf16_load(a{operand})"),
            Step::Load(operand) => format!("a{operand}"),
            step => expression(step, &types).expect("a kernel is made of steps that have code"),
        };
        writeln!(text, "  const {} s{index} = {value};", value_type(types[index])).expect("a string takes all");
    }
    for (index, store) in body.outputs.iter().enumerate() {
        let step = store.step;
        let value =
            if store.element == ElementType::Bf16 { format!("bf16_store(s{step})") } else { format!("s{step}") };
        writeln!(text, "  r{index} = {value};").expect("a string takes all");
    }
    text + "}\n"
}

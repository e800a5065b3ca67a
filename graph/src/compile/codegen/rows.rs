//! Kernels that reduce rows which lie in memory one after the other, with element-wise work before, between and after.
//!
//! Some threads share a row, and each holds up to four fours of neighbors in registers, two of them side by side where candle's
//! threads take eights: what the threads of candle's block hold, several of them in one thread here. What 32 of those combine, a warp, or a part of one, combines with the same exchanges; the results
//! of warps are combined by each thread for itself. So additions are those of the recorded kernels ([`Reduction`]).
//!
//! Between two reductions stands a level of element-wise steps. Threads past the last row compute it once more and store
//! nothing, so that all of a block meet at barriers.

use super::expression::expression;
use super::helpers::{bits_type, value_type, vector_type};
use super::{LANES, THREADS, VECTOR, load, signature};
use crate::compile::fused::{Body, Store, inputs};
use crate::compile::kernel::LaunchShape;
use crate::compile::pointwise::{ElementType, Step};
use crate::compile::reduction::{EIGHT, QUAD, Reduction, WARP};

/// Fewest rows: with fewer, most of a large GPU would idle. Of rows that a warp holds in one go any number will do: candle's
/// kernels are as small.
const MIN_ROWS: usize = 32;
/// Fewest blocks of rows that share a warp: with fewer, each row has a warp, for part of a large GPU would idle.
const MIN_BLOCKS: usize = 256;
/// Longest row that is held in registers; up to here a thread of candle's adds one four.
const MAX_COLUMNS: usize = 4096;

/// How rows are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowsPlan {
    rows: usize,
    columns: usize,
    /// Threads that share a row: a power of two. Of less than a warp, what candle's other lanes hold is no element: it adds nothing.
    pub(super) members: usize,
    /// Fours of a thread, at most.
    pub(super) quads: usize,
    /// Neighbors that a thread takes: a four or an eight.
    unit: usize,
}

impl RowsPlan {
    /// For what a kernel computes alone, or together with others in rows of so many elements. None where rows are too few, too
    /// long or not made of fours, or where elements of a row lie apart.
    pub(super) fn of(body: &Body, columns: usize) -> Option<Self> {
        let rows = body.elements / columns;
        let is_fitting = |step: &Step| match step {
            Step::Reduce(Reduction::StridedSum, _) => false,
            Step::Reduce(Reduction::OrderedSum, _) => columns <= WARP,
            _ => true,
        };
        let is_along = body.operands.iter().all(|access| access.dims.last().is_none_or(|(_, stride)| *stride <= 1));
        if (rows < MIN_ROWS && columns > QUAD * WARP)
            || !(2..=MAX_COLUMNS).contains(&columns)
            || !columns.is_multiple_of(QUAD)
            || !is_along
            || !body.steps.iter().all(is_fitting)
        {
            return None;
        }
        let unit = unit_of(body.steps.iter(), columns)?;
        let units = columns / unit;
        let members = units.next_power_of_two().min(THREADS);
        let is_in_order = |step: &Step| matches!(step, Step::Reduce(Reduction::OrderedSum, _));
        let shares_warps = rows * members >= MIN_BLOCKS * THREADS && !body.steps.iter().any(is_in_order);
        let members = if shares_warps { members } else { members.max(WARP) };
        Some(Self { rows, columns, members, quads: units.div_ceil(members) * unit / QUAD, unit })
    }

    fn rows_of_block(self) -> usize {
        THREADS / self.members
    }

    /// Fours or eights of a thread.
    fn units(self) -> usize {
        self.quads * QUAD / self.unit
    }

    /// Warps of candle's block that hold elements: one for every four, or eight, of each warp here.
    pub(super) fn warps(self) -> usize {
        self.units() * self.members.div_ceil(WARP)
    }

    pub(super) fn launch(self) -> LaunchShape {
        let blocks = u32::try_from(self.rows.div_ceil(self.rows_of_block())).expect("rows are counted in 31 bits");
        let threads = u32::try_from(THREADS).expect("a block has 256 threads");
        LaunchShape { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }

    pub(super) fn source(self, body: &Body, reads: &[usize], writes: &[usize], num_pointers: usize) -> String {
        let (is_one, levels) = (body.one_per_row(), levels(&body.steps));
        let is_held = held(body, &levels);
        Writer { plan: self, body, is_one, is_held, levels, text: signature(num_pointers) }.source(reads, writes)
    }

    /// Whether some fours of the last thread are none.
    fn is_ragged(self) -> bool {
        self.quads * self.members * QUAD != self.columns
    }
}

struct Writer<'a> {
    plan: RowsPlan,
    body: &'a Body,
    /// Of each step, whether it is one number per row.
    is_one: Vec<bool>,
    /// Of each step, whether somebody needs it after its level.
    is_held: Vec<bool>,
    /// Of each step, how many reductions have to be over one after the other before it.
    levels: Vec<usize>,
    text: String,
}

impl Writer<'_> {
    fn line(&mut self, code: &str) {
        self.text.push_str(code);
        self.text.push('\n');
    }

    fn source(mut self, reads: &[usize], writes: &[usize]) -> String {
        let RowsPlan { rows, columns, members, .. } = self.plan;
        let rows_of_block = self.plan.rows_of_block();
        let types = self.body.types().expect("the types of a sound body fit");
        self.line(&format!("  const unsigned int member = threadIdx.x % {members}u;"));
        self.line(&format!("  const unsigned int own = blockIdx.x * {rows_of_block}u + threadIdx.x / {members}u;"));
        self.line(&format!("  const bool is_row = own < {rows}u;"));
        self.line(&format!("  const unsigned int row = is_row ? own : {}u;", rows - 1));
        self.line(&format!("  const unsigned int first = row * {columns}u;"));
        self.line("  static_cast<void>(first);");
        for (step, element) in types.iter().enumerate() {
            if self.is_held[step] && !self.is_one[step] {
                self.line(&format!("  {} e{step}[{}];", value_type(*element), self.plan.quads * QUAD));
            }
        }
        for level in 0..=self.levels.iter().copied().max().unwrap_or(0) {
            let steps = (0..types.len()).filter(|step| self.levels[*step] == level);
            let (per_row, others): (Vec<usize>, Vec<usize>) = steps.partition(|step| self.is_one[*step]);
            for step in per_row {
                self.once_per_row(step, &types, reads);
            }
            self.elements(&others, &types, reads);
        }
        self.stores(writes);
        self.line("}");
        self.text
    }

    /// A step that is one number per row.
    fn once_per_row(&mut self, step: usize, types: &[ElementType], reads: &[usize]) {
        let value = match &self.body.steps[step] {
            Step::Reduce(reduction, of) => return self.reduce(step, *reduction, *of),
            Step::Load(operand) => {
                let (access, pointer) = (&self.body.operands[*operand], reads[*operand]);
                self.line(&format!("  const {} a{step} = [&] {{", bits_type(access.element)));
                self.line("    const unsigned int i = first;\n    static_cast<void>(i);");
                let mut lines = String::new();
                let names = load(&mut |line| lines.push_str(&(line + "\n")), 1, access, *operand, pointer);
                self.text.push_str(&lines);
                self.line(&format!("    return {};\n  }}();", names[0]));
                loaded(types[step], &format!("a{step}"))
            }
            other => expression(other, types).expect("a kernel is made of steps that have code"),
        };
        self.line(&format!("  const {} s{step} = {value};", value_type(types[step])));
    }

    /// Opens a loop over the fours of a thread.
    fn open_quads(&mut self) {
        self.line("#pragma unroll");
        self.line(&format!("  for (unsigned int k = 0; k < {}u; k++) {{", self.plan.quads));
    }

    /// Says where the four starts, at position `i`, and which of the row it is.
    fn locate_quad(&mut self) {
        self.number_quad();
        let last = self.plan.columns / QUAD - 1;
        // A thread without a four takes the last one, and keeps nothing of it.
        let quad = if self.plan.is_ragged() { format!("min(taken, {last}u)") } else { "taken".to_owned() };
        self.line(&format!("    const unsigned int i = first + {QUAD}u * {quad};"));
    }

    fn number_quad(&mut self) {
        let RowsPlan { members, unit, .. } = self.plan;
        self.line(&match unit {
            EIGHT => format!("    const unsigned int taken = 2u * (member + k / 2u * {members}u) + k % 2u;"),
            _ => format!("    const unsigned int taken = member + k * {members}u;"),
        });
    }

    /// Whether a thread has a four of this number.
    fn has_quad(&self) -> String {
        if self.plan.is_ragged() { format!("taken < {}u", self.plan.columns / QUAD) } else { "true".to_owned() }
    }

    /// Steps of a level that differ from position to position.
    fn elements(&mut self, steps: &[usize], types: &[ElementType], reads: &[usize]) {
        if steps.is_empty() {
            return;
        }
        self.open_quads();
        if steps.iter().any(|step| matches!(self.body.steps[*step], Step::Load(_))) {
            self.locate_quad();
        }
        for &step in steps {
            let Step::Load(operand) = self.body.steps[step] else { continue };
            let access = &self.body.operands[operand];
            let mut lines = String::new();
            let names = load(&mut |line| lines.push_str(&(line + "\n")), VECTOR, access, operand, reads[operand]);
            self.text.push_str(&lines);
            self.line(&format!("    const {} a{step}[{QUAD}] = {{{}}};", bits_type(access.element), names.join(", ")));
        }
        self.line(&format!("#pragma unroll\n    for (unsigned int lane = 0; lane < {QUAD}u; lane++) {{"));
        let mut earlier: Vec<usize> = steps.iter().flat_map(|step| inputs(&self.body.steps[*step])).collect();
        earlier.sort_unstable();
        earlier.dedup();
        earlier.retain(|step| !steps.contains(step) && !self.is_one[*step]);
        for step in earlier {
            self.line(&format!("      const {} s{step} = e{step}[{QUAD}u * k + lane];", value_type(types[step])));
        }
        for &step in steps {
            let value = match &self.body.steps[step] {
                Step::Load(_) => loaded(types[step], &format!("a{step}[lane]")),
                other => expression(other, types).expect("a kernel is made of steps that have code"),
            };
            self.line(&format!("      const {} s{step} = {value};", value_type(types[step])));
            if self.is_held[step] {
                self.line(&format!("      e{step}[{QUAD}u * k + lane] = s{step};"));
            }
        }
        self.line("    }\n  }");
    }

    /// The value of a step at a place of a four.
    fn at(&self, step: usize, lane: usize) -> String {
        if self.is_one[step] { format!("s{step}") } else { format!("e{step}[{QUAD}u * k + {lane}u]") }
    }

    /// One element of the row after the other; a warp has the row in one go.
    fn add_in_order(&mut self, step: usize, of: usize) {
        self.line(&format!("  float s{step} = 0.0f;\n  {{\n    const unsigned int k = 0u;\n    static_cast<void>(k);"));
        self.line(&format!(
            "#pragma unroll\n    for (unsigned int lane = 0; lane < {}u; lane++) {{",
            self.plan.columns / QUAD
        ));
        for own in 0..QUAD {
            let element = format!("__shfl_sync(0xffffffffu, {}, lane)", self.at(of, own));
            self.line(&format!("      s{step} = {};", combined(Reduction::OrderedSum, &format!("s{step}"), &element)));
        }
        self.line("    }\n  }");
    }

    fn reduce(&mut self, step: usize, reduction: Reduction, of: usize) {
        if reduction == Reduction::OrderedSum {
            return self.add_in_order(step, of);
        }
        let members = self.plan.members;
        let (warps, warps_of_row) = (self.plan.warps(), members / WARP);
        let identity = format!("__uint_as_float(0x{:08X}u)", reduction.identity().to_bits());
        if warps_of_row > 1 {
            self.line(&format!("  __shared__ float shared{step}[{}][{warps}];", self.plan.rows_of_block()));
        }
        let unit = self.plan.unit;
        self.line(&format!("  float q{step}[{warps}];\n#pragma unroll"));
        self.line(&format!("  for (unsigned int k = 0; k < {}u; k++) {{", self.plan.units()));
        let at = |lane: usize| {
            if self.is_one[of] { format!("s{of}") } else { format!("e{of}[{unit}u * k + {lane}u]") }
        };
        let one_by_one = |start: String, lanes: std::ops::Range<usize>| {
            lanes.fold(start, |partial, lane| combined(reduction, &partial, &at(lane)))
        };
        let partial = match reduction {
            Reduction::Sum => combined(reduction, &identity, &one_by_one(at(0), 1..unit)),
            _ => one_by_one(identity.clone(), 0..unit),
        };
        let is_there = match self.plan.is_ragged() {
            true => format!("member + k * {members}u < {}u", self.plan.columns / unit),
            false => "true".to_owned(),
        };
        self.line(&format!("    float partial = {is_there} ? {partial} : {identity};"));
        self.line("#pragma unroll");
        self.line(&format!("    for (unsigned int half = {}u; half > 0; half /= 2) {{", members.min(WARP) / 2));
        let other = "__shfl_xor_sync(0xffffffffu, partial, half)";
        self.line(&format!("      partial = {};\n    }}", combined(reduction, "partial", other)));
        if warps_of_row > 1 {
            let place = format!("shared{step}[threadIdx.x / {members}u][k * {warps_of_row}u + member / {WARP}u]");
            self.line(&format!("    if (member % {WARP}u == 0u) {place} = partial;"));
            self.line("  }\n  __syncthreads();\n#pragma unroll");
            self.line(&format!("  for (unsigned int warp = 0; warp < {warps}u; warp++) {{"));
            self.line(&format!("    q{step}[warp] = shared{step}[threadIdx.x / {members}u][warp];\n  }}"));
        } else {
            self.line(&format!("    q{step}[k] = partial;\n  }}"));
        }
        self.text.push_str(&by_halves(reduction, &format!("q{step}"), warps));
        self.line(&format!("  const float s{step} = q{step}[0];"));
    }

    fn stores(&mut self, writes: &[usize]) {
        let stores: Vec<(Store, usize)> = self.body.outputs.iter().copied().zip(writes.iter().copied()).collect();
        let (per_row, others): (Vec<_>, Vec<_>) = stores.into_iter().partition(|(store, _)| store.is_per_row);
        for (Store { element, step, .. }, pointer) in per_row {
            let (of, value) = (bits_type(element), stored(element, &format!("s{step}")));
            let place = format!("reinterpret_cast<{of} *>(p{pointer})[row]");
            self.line(&format!("  if (is_row && member == 0u) {place} = {value};"));
        }
        if others.is_empty() {
            return;
        }
        self.open_quads();
        self.locate_quad();
        let condition = self.has_quad();
        self.line(&format!("    if (is_row && {condition}) {{"));
        for (index, (Store { region, element, step, .. }, pointer)) in others.into_iter().enumerate() {
            let values: [String; VECTOR] = std::array::from_fn(|lane| stored(element, &self.at(step, lane)));
            let is_aligned = region.start.is_multiple_of(VECTOR * element.size_bytes());
            match vector_type(element).filter(|_| is_aligned) {
                Some(vector) => {
                    self.line(&format!("      {vector} w{index};"));
                    for (name, value) in LANES.into_iter().zip(&values) {
                        self.line(&format!("      w{index}.{name} = {value};"));
                    }
                    self.line(&format!("      reinterpret_cast<{vector} *>(p{pointer})[i / {QUAD}u] = w{index};"));
                }
                None => {
                    let of = bits_type(element);
                    for (lane, value) in values.iter().enumerate() {
                        self.line(&format!("      reinterpret_cast<{of} *>(p{pointer})[i + {lane}u] = {value};"));
                    }
                }
            }
        }
        self.line("    }\n  }");
    }
}

/// Neighbors that a thread takes so that all reductions among the steps find theirs; none where they ask for different ones.
pub(super) fn unit_of<'a>(steps: impl Iterator<Item = &'a Step> + Clone, columns: usize) -> Option<usize> {
    let has = |reductions: &[Reduction]| {
        steps.clone().any(|step| matches!(step, Step::Reduce(reduction, _) if reductions.contains(reduction)))
    };
    if !has(&[Reduction::EightsSum]) {
        return Some(QUAD);
    }
    (!has(&[Reduction::Sum, Reduction::OrderedSum]) && columns.is_multiple_of(EIGHT)).then_some(EIGHT)
}

/// Of each step, how many reductions have to be over one after the other before it.
fn levels(steps: &[Step]) -> Vec<usize> {
    let mut levels: Vec<usize> = Vec::with_capacity(steps.len());
    for step in steps {
        let before = inputs(step).map(|input| levels[input]).max().unwrap_or(0);
        levels.push(before + usize::from(matches!(step, Step::Reduce(..))));
    }
    levels
}

/// Of each step, whether a later level, a reduction or an output needs it.
fn held(body: &Body, levels: &[usize]) -> Vec<bool> {
    let mut is_held = vec![false; body.steps.len()];
    for (index, step) in body.steps.iter().enumerate() {
        for input in inputs(step).filter(|input| levels[*input] < levels[index]) {
            is_held[input] = true;
        }
    }
    body.outputs.iter().for_each(|store| is_held[store.step] = true);
    is_held
}

/// A number as it is in a register, from what is in memory.
pub(super) fn loaded(element: ElementType, bits: &str) -> String {
    if element == ElementType::Bf16 { format!("bf16_load({bits})") } else { bits.to_owned() }
}

/// What is in memory of a number in a register.
pub(super) fn stored(element: ElementType, value: &str) -> String {
    if element == ElementType::Bf16 { format!("bf16_store({value})") } else { value.to_owned() }
}

/// Two partial results as one.
pub(super) fn combined(reduction: Reduction, left: &str, right: &str) -> String {
    match reduction {
        Reduction::Sum | Reduction::StridedSum | Reduction::EightsSum | Reduction::OrderedSum => {
            format!("__fadd_rn({left}, {right})")
        }
        Reduction::Maximum => format!("fmaxf({left}, {right})"),
        Reduction::Minimum => format!("fminf({left}, {right})"),
        Reduction::MaximumOrNan => format!("nan_max({left}, {right})"),
        Reduction::MinimumOrNan => format!("nan_min({left}, {right})"),
    }
}

/// Combines the first `count` numbers of an array, at most 32, into its first: those of the second half with those of the
/// first, again and again. What would be added and is not there is zero.
pub(super) fn by_halves(reduction: Reduction, array: &str, count: usize) -> String {
    let mut text = String::new();
    let mut half = count.next_power_of_two() / 2;
    while half > 0 {
        for lane in (0..half).filter(|lane| lane + half < count) {
            let (left, right) = (format!("{array}[{lane}]"), format!("{array}[{}]", lane + half));
            text.push_str(&format!("  {left} = {};\n", combined(reduction, &left, &right)));
        }
        half /= 2;
    }
    text
}

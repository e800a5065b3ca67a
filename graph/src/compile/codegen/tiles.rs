//! Element-wise kernels that read an operand across: neighbors of the result lie a row of it apart, as in a transposed matrix.
//!
//! A block takes a square tile of such an operand along the operand's own rows into shared memory, and the elements of the result from
//! there along the rows of the result: what a warp reads or writes lies side by side on both ways. In tiles of the larger kind a thread
//! turns a square of four in its registers, so that shared memory takes and gives four neighbors at once.

use super::helpers::{bits_type, vector_type};
use super::{LANES, MAX_BLOCKS, THREADS, VECTOR, element_function, elements, is_in_vectors, position, signature};
use crate::compile::fused::{Access, Body};
use crate::compile::kernel::LaunchShape;

/// Fewest elements: fewer are read from the cache.
const MIN_ELEMENTS: usize = 1 << 14;
/// Fewest rows and columns: of fewer, most of a tile would be empty.
const MIN_SIDE: usize = 16;
/// Shared memory of a block.
const MAX_BYTES: usize = 48 << 10;
/// Fewest tiles of the larger kind: with fewer, part of a large GPU would idle.
const MIN_TILES: usize = 128;

/// Rows and columns of a tile of the larger kind: each thread has a square of it.
const SIDE: usize = 64;
const _: () = assert!(SIDE / VECTOR * (SIDE / VECTOR) == THREADS, "one square for each thread");

/// How matrices of the result are divided into tiles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TilesPlan {
    matrices: usize,
    rows: usize,
    columns: usize,
    /// Rows and columns of a tile.
    side: usize,
    /// Neighbors that a thread takes at once, on both ways.
    width: usize,
}

impl TilesPlan {
    /// None where nothing is read across, or too little.
    pub(super) fn of(body: &Body) -> Option<Self> {
        let (rows, columns) = body.operands.iter().find_map(across)?;
        if body.columns > 1 || body.elements < MIN_ELEMENTS || rows.min(columns) < MIN_SIDE {
            return None;
        }
        let matrices = body.elements / (rows * columns);
        let [wide, narrow] =
            [(SIDE, VECTOR), (32, 1)].map(|(side, width)| Self { matrices, rows, columns, side, width });
        let is_wide = [rows, columns].into_iter().all(|side| side.is_multiple_of(VECTOR))
            && wide.tiles() >= MIN_TILES
            && body.outputs.iter().all(is_in_vectors)
            && body.operands.iter().filter(|access| wide.is_across(access)).all(has_vectors);
        [(wide, is_wide), (narrow, true)].into_iter().find_map(|(plan, is_possible)| {
            // One more in a row keeps single elements of a column apart; fours do without.
            let bytes = |access: &Access| plan.side * (plan.side + 1) * access.element.size_bytes();
            let read = body.operands.iter().filter(|access| plan.is_across(access));
            (is_possible && read.map(bytes).sum::<usize>() <= MAX_BYTES).then_some(plan)
        })
    }

    fn is_across(&self, access: &Access) -> bool {
        across(access) == Some((self.rows, self.columns))
    }

    /// Tiles down and across one matrix.
    fn sides(&self) -> [usize; 2] {
        [self.rows, self.columns].map(|length| length.div_ceil(self.side))
    }

    fn tiles(&self) -> usize {
        self.matrices * self.sides().into_iter().product::<usize>()
    }

    pub(super) fn launch(&self) -> LaunchShape {
        let blocks = u32::try_from(self.tiles().min(MAX_BLOCKS)).expect("a launch has at most 4096 blocks");
        let threads = u32::try_from(THREADS).expect("a block has 256 threads");
        LaunchShape { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }

    pub(super) fn source(&self, body: &Body, reads: &[usize], writes: &[usize], num_pointers: usize) -> String {
        let Self { rows, columns, side, width, .. } = *self;
        let ([down, wide], tiles) = (self.sides(), self.tiles());
        let mut text = element_function(body) + &signature(num_pointers);
        let mut line = |code: String| {
            text.push_str(&code);
            text.push('\n');
        };
        let vector = |access: &Access| vector_type(access.element).filter(|_| width > 1);
        let read = || body.operands.iter().zip(reads).enumerate().filter(|(_, (access, _))| self.is_across(access));
        for (k, (access, _)) in read() {
            match vector(access) {
                Some(vector) => line(format!("  __shared__ {vector} tile{k}[{side}][{}];", side / width)),
                None => line(format!("  __shared__ {} tile{k}[{side}][{}];", bits_type(access.element), side + 1)),
            }
        }
        // Threads along a row of a tile, and rows that they take at a time.
        let (along, step) = (side / width, tiles.min(MAX_BLOCKS));
        let every_row =
            format!("#pragma unroll\n    for (unsigned int k = lane; k < {side}u; k += {}u) {{", THREADS / along);
        line(format!("  const unsigned int group = threadIdx.x % {along}u, lane = threadIdx.x / {along}u;"));
        line(format!("  const unsigned int place = group * {width}u;"));
        line(format!("  for (unsigned int tile = blockIdx.x; tile < {tiles}u; tile += {step}u) {{"));
        line(format!("    const unsigned int matrix = tile / {}u, rest = tile % {}u;", down * wide, down * wide));
        line(format!("    const unsigned int top = rest / {wide}u * {side}u, left = rest % {wide}u * {side}u;"));
        for (k, (access, pointer)) in read() {
            let (outer, of) = (&access.dims[..access.dims.len() - 2], bits_type(access.element));
            let (_, stride) = access.dims[access.dims.len() - 1];
            line(format!("    const {of} *from{k} = reinterpret_cast<const {of} *>(p{pointer}) + [&] {{"));
            line("      const unsigned int i = matrix;\n      static_cast<void>(i);".to_owned());
            line(format!("      return {};\n    }}();", position(outer, 0)));
            let first =
                if width > 1 { format!("    {{ const unsigned int k = lane * {width}u;") } else { every_row.clone() };
            line(first);
            line("      const unsigned int row = top + place, column = left + k;".to_owned());
            line(format!("      if (row < {rows}u && column < {columns}u) {{"));
            let at = |across: usize| format!("(from{k} + row + (column + {across}u) * {stride}u)");
            match vector(access) {
                Some(vector) => {
                    for across in 0..width {
                        let from = at(across);
                        line(format!("        const {vector} n{across} = *reinterpret_cast<const {vector} *>{from};"));
                    }
                    for (down, name) in LANES.into_iter().enumerate() {
                        let turned =
                            std::array::from_fn::<_, VECTOR, _>(|across| format!("n{across}.{name}")).join(", ");
                        // In another place of each row, so that threads of a warp write to banks of their own, as they read from them.
                        line(format!("        tile{k}[place + {down}u][lane ^ group] = {vector}{{{turned}}};"));
                    }
                }
                None => line(format!("        tile{k}[k][place] = *{};", at(0))),
            }
            line("      }\n    }".to_owned());
        }
        line(format!("    __syncthreads();\n{every_row}"));
        line("      const unsigned int row = top + k, column = left + place;".to_owned());
        line(format!("      if (row < {rows}u && column < {columns}u) {{"));
        line(format!(
            "    const unsigned int i = (matrix * {rows}u + row) * {columns}u + column, unit = i / {width}u;"
        ));
        line("    static_cast<void>(unit);".to_owned());
        for (k, (access, _)) in read() {
            match vector(access) {
                Some(vector) => line(format!("    const {vector} t{k} = tile{k}[k][group ^ k / {width}u];")),
                None => line(format!("    const {} t{k} = tile{k}[place][k];", bits_type(access.element))),
            }
        }
        let taken = |k: usize, name| if width > 1 { format!("t{k}.{name}") } else { format!("t{k}") };
        let known = |k: usize| self.is_across(&body.operands[k]).then(|| LANES.map(|name| taken(k, name)));
        elements(&mut line, body, reads, writes, width, known);
        line("      }\n    }\n    __syncthreads();\n  }\n}".to_owned());
        text
    }
}

/// Rows and columns of the result, of an operand whose elements lie side by side along the former and apart along the latter.
fn across(access: &Access) -> Option<(usize, usize)> {
    match access.dims[..] {
        [.., (rows, 1), (columns, stride)] if stride > 1 => Some((rows, columns)),
        _ => None,
    }
}

/// Whether four neighbors along the rows of the operand itself can be read at once, wherever they begin.
fn has_vectors(access: &Access) -> bool {
    let along = access.dims.len().checked_sub(2);
    let are_even =
        access.dims.iter().enumerate().all(|(dim, (_, stride))| Some(dim) == along || stride.is_multiple_of(VECTOR));
    are_even
        && vector_type(access.element).is_some()
        && access.region.start.is_multiple_of(VECTOR * access.element.size_bytes())
}

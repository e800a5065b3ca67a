//! Tiles of products of `f32` on tensor cores, and which of them takes the shortest time.

use crate::matrix::Product;

/// Terms that are multiplied at once, as in the kernels.
const TERMS: usize = 32;
/// Bytes of a row's terms: three numbers of bf16 for each, in three stages.
const ROW_BYTES: usize = 3 * 3 * 2 * TERMS;
/// Threads of a block that read what the others multiply, and of those for each row of a tile, as in the kernels.
const READING: usize = 256;
const THREADS_PER_ROW: usize = 2;

/// Kernels for tiles of one size.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Of L·R, L·Rᵀ and Lᵀ·R.
    pub(crate) names: [&'static str; 3],
    /// Hundredths of a µs that a multiprocessor takes for a step of as many such tiles at once, beginning with one.
    step: &'static [usize],
    /// The same for their ends.
    end: usize,
}

/// Times are of an H200, over products of the sizes of the works of `esper bench`.
const TILES: [Tile; 3] = [
    Tile {
        rows: 128,
        columns: 128,
        names: ["product_nn_128x128", "product_nt_128x128", "product_tn_128x128"],
        step: &[133],
        end: 155,
    },
    Tile {
        rows: 128,
        columns: 64,
        names: ["product_nn_128x64", "product_nt_128x64", "product_tn_128x64"],
        step: &[95],
        end: 85,
    },
    Tile {
        rows: 64,
        columns: 64,
        names: ["product_nn_64x64", "product_nt_64x64", "product_tn_64x64"],
        step: &[60, 107],
        end: 40,
    },
];

/// Clusters of one block, two, … that run at once with a block on each multiprocessor. A constant, so that every such card adds in the
/// same order, though cards differ in which of their multiprocessors are switched off.
const CLUSTERS: [usize; 8] = [132, 66, 36, 28, 21, 16, 14, 14];

/// Hundredths of a µs of a sum that is cut into parts (split-K), and of each part.
const CUT: usize = 97;
const PART: usize = 5;

impl Tile {
    /// Tiles of a result, down and across.
    pub(crate) fn tiles(&self, product: &Product) -> [usize; 2] {
        [product.m.div_ceil(self.rows), product.n.div_ceil(self.columns)]
    }

    /// Hundredths of a µs of a product whose sums are cut into so many parts, by the table.
    fn time(&self, product: &Product, parts: usize) -> usize {
        let [down, across] = self.tiles(product);
        let blocks = (down * across).div_ceil(CLUSTERS[parts - 1]);
        let steps = product.k.div_ceil(TERMS).div_ceil(parts);
        let (full, rest) = (blocks / self.step.len(), blocks % self.step.len());
        let whole = self.step[self.step.len() - 1] * full;
        let of_step = rest.checked_sub(1).map_or(whole, |last| whole + self.step[last]);
        of_step * (steps + 1) + self.end * blocks + PART * parts + if parts > 1 { CUT } else { 0 }
    }

    /// Threads of a block.
    pub(crate) fn threads(&self) -> usize {
        THREADS_PER_ROW * self.rows + READING
    }

    /// Bytes of shared memory of a block: three stages of factors, whose place the sums of a tile take in the end.
    pub(crate) fn shared_bytes(&self) -> usize {
        (self.rows + self.columns) * ROW_BYTES
    }
}

/// The tile and the number of parts of each sum that take the shortest time: the same for the same product on every such card.
pub(crate) fn choose(product: &Product) -> (&'static Tile, usize) {
    let mut best = (&TILES[0], 1);
    let mut shortest = usize::MAX;
    for tile in &TILES {
        // A part of less than two steps is all beginning and end.
        for parts in 1..=CLUSTERS.len().min(product.k.div_ceil(2 * TERMS)) {
            let time = tile.time(product, parts);
            if time < shortest {
                (best, shortest) = ((tile, parts), time);
            }
        }
    }
    best
}

/// Operations of a product per number that is moved, beside which transposing both factors is short. For as long as the product
/// takes, both are there twice.
const MIN_OPERATIONS: usize = 800;

/// Whether both factors of a product of TF32 are better transposed, where the library is slow on them as they lie.
pub(crate) fn is_worth_transposing(product: &Product) -> bool {
    let (m, n) = (product.m, product.n);
    let is_slow = product.is_left_transposed && !product.is_right_transposed;
    is_slow && m.saturating_mul(n) / (m + n) >= MIN_OPERATIONS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(m: usize, n: usize, k: usize) -> ([usize; 2], usize) {
        let product = Product { m, n, k, is_left_transposed: false, is_right_transposed: true };
        let (tile, parts) = choose(&product);
        ([tile.rows, tile.columns], parts)
    }

    #[test]
    fn large_tiles_fill_the_card_and_sums_are_cut_where_they_do_not() {
        assert_eq!(chosen(512, 4096, 4096), ([128, 128], 1));
        assert_eq!(chosen(8192, 768, 768), ([128, 128], 1));
        assert_eq!(chosen(2048, 512, 1024), ([128, 128], 2));
        assert_eq!(chosen(768, 768, 8192), ([128, 128], 3));
        assert_eq!(chosen(1024, 512, 512), ([128, 64], 2));
        assert_eq!(chosen(65, 67, 33), ([64, 64], 1));
        let (tile, parts) = chosen(128, 512, 784);
        assert!(tile == [64, 64] && parts >= 5, "{parts}");
    }

    #[test]
    fn shared_memory_holds_three_stages() {
        assert_eq!(TILES.map(|tile| tile.shared_bytes()), [147_456, 110_592, 73_728]);
        assert_eq!(TILES.map(|tile| tile.threads()), [512, 512, 384]);
    }

    #[test]
    fn gradients_of_wide_weights_are_transposed() {
        let forward = |rows, inputs, outputs| Product::forward(rows, inputs, outputs, true);
        let is_chosen = |product: Product| is_worth_transposing(&product.weight_gradient());
        assert!(is_chosen(forward(512, 4096, 4096)) && is_chosen(forward(512, 1024, 4096)));
        assert!(!is_chosen(forward(8192, 768, 3072)) && !is_worth_transposing(&forward(512, 4096, 4096)));
    }
}

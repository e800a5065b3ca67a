//! Products of matrices of `f32` on the CPU: small ones on the thread that asks for them, larger ones cut into parts.

use std::cell::RefCell;
use std::ops::Range;

use candle_core::utils::barrier_pool;
use gemm::{Parallelism, gemm};

/// Multiplications from which a product is cut into parts for several threads (decision 12).
const WORTH_THREADS: usize = 1 << 23;
/// Parts for each thread: who is done early takes from who is late.
const PARTS_PER_THREAD: usize = 2;
/// Products are cut between whole tiles of the library.
const COLUMN_STEP: usize = 64;
const ROW_STEP: usize = 24;
/// Elements of a product up to which the library may add across the lanes of a register.
const MAX_ACROSS_LANES: usize = 256;
/// Rows and columns of a product up to which the library cuts long sums at other places.
const MAX_SMALL: usize = 64;
/// Lines that start a multiple of so many elements apart meet in few places of a cache.
const MEETING: usize = 256;
/// Elements between copied lines: one line of a cache.
const GAP: usize = 16;
/// Elements that are copied at once; where columns cannot be cut so far, nothing is copied.
const MAX_COPIED: usize = 1 << 20;

thread_local! {
    /// Copied lines, kept from call to call.
    static COPY: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// A matrix in a slice, row by row or column by column.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a> {
    /// From its first element to its last at least.
    values: &'a [f32],
    num_rows: usize,
    num_columns: usize,
    /// From the start of a line to that of the next one; a line is a row, or a column where it is transposed.
    distance: usize,
    is_transposed: bool,
}

impl<'a> Matrix<'a> {
    /// `values` row by row.
    ///
    /// # Panics
    /// When there are not as many values.
    pub(crate) fn new(values: &'a [f32], num_rows: usize, num_columns: usize) -> Self {
        assert_eq!(Some(values.len()), num_rows.checked_mul(num_columns), "a matrix has one value per row and column");
        Self { values, num_rows, num_columns, distance: num_columns, is_transposed: false }
    }

    /// Columns from `first` on, as many as `num_columns`, of a matrix whose rows begin `distance` apart.
    ///
    /// # Panics
    /// When they are not in `values`.
    pub(crate) fn of_columns(
        values: &'a [f32],
        distance: usize,
        num_rows: usize,
        (first, num_columns): (usize, usize),
    ) -> Self {
        assert!(num_rows > 0 && first + num_columns <= distance, "columns of a matrix are within its rows");
        let values = &values[first..][..(num_rows - 1) * distance + num_columns];
        Self { values, num_rows, num_columns, distance, is_transposed: false }
    }

    /// The rows in `range`, of a matrix that is given row by row.
    ///
    /// # Panics
    /// When they are not there.
    pub(crate) fn rows(self, range: Range<usize>) -> Self {
        assert!(!self.is_transposed && range.end <= self.num_rows, "rows of a matrix are its rows");
        Self::of_columns(&self.values[range.start * self.distance..], self.distance, range.len(), (0, self.num_columns))
    }

    /// The same values with rows and columns exchanged; nothing is moved.
    pub(crate) fn transposed(self) -> Self {
        let Self { num_rows, num_columns, is_transposed, .. } = self;
        Self { num_rows: num_columns, num_columns: num_rows, is_transposed: !is_transposed, ..self }
    }

    /// The columns before `border`, and the others.
    fn split_columns(self, border: usize) -> (Self, Self) {
        let start = border * if self.is_transposed { self.distance } else { 1 };
        let others = Self { values: &self.values[start..], num_columns: self.num_columns - border, ..self };
        (Self { num_columns: border, ..self }, others)
    }

    /// The rows before `border`, and the others.
    fn split_rows(self, border: usize) -> (Self, Self) {
        let (before, others) = self.transposed().split_columns(border);
        (before.transposed(), others.transposed())
    }

    /// Distances of neighbors in a column and in a row.
    fn strides(&self) -> (isize, isize) {
        let distance = stride(self.distance);
        if self.is_transposed { (1, distance) } else { (distance, 1) }
    }

    /// A copy whose columns do not meet in a cache, of a matrix that is given column by column.
    fn columns_apart(self, buffer: &mut Vec<f32>) -> Matrix<'_> {
        buffer.clear();
        for column in 0..self.num_columns {
            buffer.extend_from_slice(&self.values[column * self.distance..][..self.num_rows]);
            buffer.extend_from_slice(&[0.0; GAP]);
        }
        Matrix { values: buffer, distance: self.num_rows + GAP, ..self }
    }
}

/// `left`·`right`, row by row, with the bits of candle's product of the same matrices.
///
/// # Panics
/// When the columns of `left` are not as many as the rows of `right`.
pub(crate) fn multiply(left: Matrix<'_>, right: Matrix<'_>) -> Vec<f32> {
    let size = left.num_rows.saturating_mul(left.num_columns).saturating_mul(right.num_columns);
    // In this order: asking for the threads starts them when nothing has before.
    let num_threads = if size >= WORTH_THREADS { barrier_pool().n_workers() + 1 } else { 1 };
    multiply_in(if num_threads > 1 { PARTS_PER_THREAD * num_threads } else { 1 }, left, right)
}

/// [`multiply`] on this thread, as those want it that are spread over threads themselves.
pub(crate) fn multiply_here(left: Matrix<'_>, right: Matrix<'_>) -> Vec<f32> {
    multiply_in(1, left, right)
}

/// [`multiply`] in so many parts; their number changes no bit.
fn multiply_in(num_parts: usize, left: Matrix<'_>, right: Matrix<'_>) -> Vec<f32> {
    assert_eq!(left.num_columns, right.num_rows, "the columns of the one factor are the rows of the other");
    let (num_rows, num_columns) = (left.num_rows, right.num_columns);
    let len = num_rows.checked_mul(num_columns).expect("a product fits into memory");
    let mut product = Vec::with_capacity(len);
    let whole = Part { left, right, place: Place { first: product.as_mut_ptr(), distance: num_columns } };
    if num_parts > 1 {
        let parts = whole.cut_into(num_parts);
        // The threads of the tensor library, which wait awake for a while: others would have to share cores with them.
        barrier_pool().execute_chunked(parts.len(), |range| parts[range].iter().for_each(|part| part.form()));
    } else {
        whole.form();
    }
    // SAFETY: there is room for so many, and every one was written: the parts cover the product, and nothing of it is read.
    unsafe { product.set_len(len) };
    product
}

/// Where a part of a product goes, row by row. Parts share rows and no element.
#[derive(Clone, Copy)]
struct Place {
    first: *mut f32,
    /// From the start of a row to that of the next one.
    distance: usize,
}

// SAFETY: nobody reads or writes the elements of a part but who forms it, once, and the product lives until all are formed.
unsafe impl Send for Place {}
// SAFETY: as above; a shared place is copied.
unsafe impl Sync for Place {}

/// Some rows and columns of a product.
#[derive(Clone, Copy)]
struct Part<'a> {
    left: Matrix<'a>,
    right: Matrix<'a>,
    place: Place,
}

impl Part<'_> {
    /// About so many parts of about one size, or fewer where they would be too small.
    fn cut_into(self, num_parts: usize) -> Vec<Self> {
        let num_first = num_parts.div_ceil(2);
        match self.cut(num_first, num_parts).filter(|_| num_parts > 1) {
            Some((first, second)) => {
                let mut parts = first.cut_into(num_first);
                parts.extend(second.cut_into(num_parts - num_first));
                parts
            }
            None => vec![self],
        }
    }

    fn form(&self) {
        if !self.is_slow_to_pack() {
            return self.multiply();
        }
        if self.right.num_rows * self.right.num_columns > MAX_COPIED {
            let Some((first, second)) = self.cut_columns(1, 2) else { return self.multiply() };
            first.form();
            return second.form();
        }
        let Part { left, right, place } = *self;
        COPY.with_borrow_mut(|copy| Part { left, right: right.columns_apart(copy), place }.multiply());
    }

    /// Two parts, the first with about `share` of `all` of the work; none where they would be too small.
    fn cut(self, share: usize, all: usize) -> Option<(Self, Self)> {
        // What the library brings into another order first is cut, so that each part does that for its own share.
        if self.left.is_transposed {
            self.cut_rows(share, all).or_else(|| self.cut_columns(share, all))
        } else {
            self.cut_columns(share, all).or_else(|| self.cut_rows(share, all))
        }
    }

    fn cut_columns(self, share: usize, all: usize) -> Option<(Self, Self)> {
        let Self { left, right, place } = self;
        let border = border(right.num_columns, COLUMN_STEP, share, all)?;
        let (first, second) = right.split_columns(border);
        let other_place = Place { first: place.first.wrapping_add(border), ..place };
        Self::both(Self { right: first, ..self }, Self { left, right: second, place: other_place })
    }

    fn cut_rows(self, share: usize, all: usize) -> Option<(Self, Self)> {
        let Self { left, right, place } = self;
        let border = border(left.num_rows, ROW_STEP, share, all)?;
        let (first, second) = left.split_rows(border);
        let other_place = Place { first: place.first.wrapping_add(border * place.distance), ..place };
        Self::both(Self { left: first, ..self }, Self { left: second, right, place: other_place })
    }

    /// The parts where they have the bits of the whole.
    fn both(first: Self, second: Self) -> Option<(Self, Self)> {
        (first.is_general() && second.is_general()).then_some((first, second))
    }

    /// Whether the library adds up elements in the order that it has for all larger products.
    fn is_general(&self) -> bool {
        self.is_matrix() && (self.left.num_rows > MAX_SMALL || self.right.num_columns > MAX_SMALL)
    }

    /// Whether the library takes it for a product of matrices and not of vectors.
    fn is_matrix(&self) -> bool {
        let (num_rows, num_columns) = (self.left.num_rows, self.right.num_columns);
        num_rows > 1 && num_columns > 1 && num_rows * num_columns > MAX_ACROSS_LANES
    }

    /// Whether the library packs columns of `right` whose lines push each other out of the cache.
    fn is_slow_to_pack(&self) -> bool {
        let Matrix { is_transposed, distance, .. } = self.right;
        is_transposed && distance > 0 && distance.is_multiple_of(MEETING) && self.is_matrix()
    }

    fn multiply(&self) {
        let Self { left, right, place } = *self;
        let (left_rows, left_columns) = left.strides();
        let (right_rows, right_columns) = right.strides();
        // SAFETY: the strides of each factor address elements of its slice only, the last of which is the farthest from the
        // first. The rows and columns of a part lie within the product, which is borrowed by the parts alone; of them no
        // two have an element in common.
        unsafe {
            gemm(
                left.num_rows,
                right.num_columns,
                left.num_columns,
                place.first,
                1,
                stride(place.distance),
                false,
                left.values.as_ptr(),
                left_columns,
                left_rows,
                right.values.as_ptr(),
                right_columns,
                right_rows,
                0.0,
                1.0,
                false,
                false,
                false,
                Parallelism::None,
            );
        }
    }
}

/// The multiple of `step` next to `share` of `all` of `len`, if any lies within.
fn border(len: usize, step: usize, share: usize, all: usize) -> Option<usize> {
    let border = (len * share / all + step / 2) / step * step;
    (0 < border && border < len).then_some(border)
}

fn stride(distance: usize) -> isize {
    isize::try_from(distance).expect("a slice is no longer than an isize counts")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small whole numbers: every order of additions gives the same sum.
    fn small(count: usize, step: usize) -> Vec<f32> {
        (0..count).map(|index| f32::from(u8::try_from(index * step % 7).unwrap()) - 3.0).collect()
    }

    #[test]
    fn products_of_factors_in_either_order_follow_the_definition() {
        for (m, k, n) in [(1, 1, 1), (4, 4, 4), (1, 9, 5), (7, 1, 3), (5, 3, 1), (17, 33, 13), (96, 130, 64), (3, 0, 2)]
        {
            let (a, b) = (small(m * k, 5), small(k * n, 3));
            let expected: Vec<f32> =
                (0..m * n).map(|at| (0..k).map(|inner| a[at / n * k + inner] * b[inner * n + at % n]).sum()).collect();
            let turn = |values: &[f32], rows: usize, columns: usize| -> Vec<f32> {
                (0..rows * columns).map(|at| values[at % rows * columns + at / rows]).collect()
            };
            let (turned_a, turned_b) = (turn(&a, m, k), turn(&b, k, n));
            for left in [Matrix::new(&a, m, k), Matrix::new(&turned_a, k, m).transposed()] {
                for right in [Matrix::new(&b, k, n), Matrix::new(&turned_b, n, k).transposed()] {
                    assert_eq!(multiply(left, right), expected, "{m}x{k} times {k}x{n}");
                }
            }
        }
    }

    fn real(count: usize, step: usize) -> Vec<f32> {
        (0..count).map(|index| f32::from(u16::try_from(index * step % 1013).unwrap()) / 500.0 - 1.0).collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    /// The product as the library forms it, which is how candle asks for it.
    fn whole(left: Matrix<'_>, right: Matrix<'_>) -> Vec<f32> {
        let mut product = vec![f32::NAN; left.num_rows * right.num_columns];
        let place = Place { first: product.as_mut_ptr(), distance: right.num_columns };
        Part { left, right, place }.multiply();
        assert!(product.iter().all(|value| value.is_finite()), "something of a product was read before it was written");
        product
    }

    /// Sums longer than the library forms at once, lines that meet in a cache, copies of several parts, few rows or columns.
    const SIZES: [[usize; 3]; 16] = [
        [130, 170, 90],
        [64, 1100, 40],
        [128, 784, 512],
        [128, 512, 10],
        [60, 1024, 200],
        [130, 1024, 66],
        [66, 1024, 1100],
        [2, 1300, 260],
        [3, 700, 90],
        [1, 512, 300],
        [300, 512, 1],
        [700, 513, 3],
        [96, 256, 1100],
        [200, 2, 200],
        [70, 600, 70],
        [8, 300, 20],
    ];

    #[test]
    fn the_number_of_parts_changes_no_bit() {
        for [m, k, n] in SIZES {
            let (a, b) = (real(m * k, 7919), real(k * n, 4099));
            for left in [Matrix::new(&a, m, k), Matrix::new(&a, k, m).transposed()] {
                for right in [Matrix::new(&b, k, n), Matrix::new(&b, n, k).transposed()] {
                    let expected = bits(&whole(left, right));
                    for num_parts in [1, 2, 3, 4, 6, 9, 64] {
                        let found = multiply_in(num_parts, left, right);
                        assert!(bits(&found) == expected, "{m}x{k} times {k}x{n} in {num_parts} parts");
                    }
                }
            }
        }
    }

    #[test]
    fn parts_cover_a_product_on_any_number_of_threads() {
        let [m, k, n] = [128, 784, 512];
        let (a, b) = (real(m * k, 7919), real(k * n, 4099));
        for right in [Matrix::new(&b, k, n), Matrix::new(&b, n, k).transposed()] {
            let left = Matrix::new(&a, m, k);
            let expected = bits(&whole(left, right));
            for num_threads in [1, 2, 3] {
                let mut product = vec![f32::NAN; m * n];
                let place = Place { first: product.as_mut_ptr(), distance: n };
                let parts = Part { left, right, place }.cut_into(2 * num_threads);
                assert_eq!(parts.len(), 2 * num_threads);
                std::thread::scope(|scope| {
                    for parts in parts.chunks(2) {
                        scope.spawn(|| parts.iter().for_each(Part::form));
                    }
                });
                assert!(bits(&product) == expected, "{num_threads} threads");
            }
        }
    }

    #[test]
    fn factors_that_do_not_fit_are_refused() {
        let multiplied = std::panic::catch_unwind(|| {
            let values = [0.0; 6];
            multiply(Matrix::new(&values, 2, 3), Matrix::new(&values, 2, 3))
        });
        let message = *multiplied.unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains("the columns of the one factor are the rows of the other"), "{message}");
    }
}

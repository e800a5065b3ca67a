//! Products of small matrices of `f32` on the CPU, on the thread that asks for them.

use gemm::{Parallelism, gemm};

/// Multiplications from which a product is spread over threads.
///
/// One thread does as many in 330 µs; two took 215 µs when they had just worked and 500 µs when they had to wake, and half as
/// many were slower on two threads either way (decision 12).
const WORTH_THREADS: usize = 1 << 24;

/// A matrix in a slice, row by row or column by column.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<'a> {
    values: &'a [f32],
    num_rows: usize,
    num_columns: usize,
    is_transposed: bool,
}

impl<'a> Matrix<'a> {
    /// `values` row by row.
    ///
    /// # Panics
    /// When there are not as many values.
    pub(super) fn new(values: &'a [f32], num_rows: usize, num_columns: usize) -> Self {
        assert_eq!(Some(values.len()), num_rows.checked_mul(num_columns), "a matrix has one value per row and column");
        Self { values, num_rows, num_columns, is_transposed: false }
    }

    /// The same values with rows and columns exchanged; nothing is moved.
    pub(super) fn transposed(self) -> Self {
        let Self { values, num_rows, num_columns, is_transposed } = self;
        Self { values, num_rows: num_columns, num_columns: num_rows, is_transposed: !is_transposed }
    }

    /// Distances of neighbors in a column and in a row.
    fn strides(&self) -> (isize, isize) {
        let leading = if self.is_transposed { self.num_rows } else { self.num_columns };
        let leading = isize::try_from(leading).expect("a slice is no longer than an isize counts");
        if self.is_transposed { (1, leading) } else { (leading, 1) }
    }
}

/// `left`·`right`, row by row, with the bits of candle's product of the same matrices.
///
/// # Panics
/// When the columns of `left` are not as many as the rows of `right`.
pub(super) fn multiply(left: Matrix<'_>, right: Matrix<'_>) -> Vec<f32> {
    let size = left.num_rows.saturating_mul(left.num_columns).saturating_mul(right.num_columns);
    // Asking for the number of threads takes longer than a small product where the environment does not name it.
    let num_threads = if size >= WORTH_THREADS { candle_core::utils::get_num_threads() } else { 1 };
    multiply_on(num_threads, left, right)
}

/// [`multiply`] on so many threads; their number changes no bit.
fn multiply_on(num_threads: usize, left: Matrix<'_>, right: Matrix<'_>) -> Vec<f32> {
    let (m, n, k) = (left.num_rows, right.num_columns, left.num_columns);
    assert_eq!(k, right.num_rows, "the columns of the one factor are the rows of the other");
    let mut product = vec![0.0_f32; m.checked_mul(n).expect("a product fits into memory")];
    let parallelism = if num_threads > 1 { Parallelism::Rayon(num_threads) } else { Parallelism::None };
    let (left_rows, left_columns) = left.strides();
    let (right_rows, right_columns) = right.strides();
    let row = isize::try_from(n).expect("a slice is no longer than an isize counts");
    // SAFETY: the strides of each factor address its elements only, `(rows - 1, columns - 1)` being the last of a slice of
    // rows × columns (checked at construction); the product has m × n elements, row by row, and is borrowed by nobody else.
    unsafe {
        gemm(
            m,
            n,
            k,
            product.as_mut_ptr(),
            1,
            row,
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
            parallelism,
        );
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small whole numbers: every order of additions gives the same sum.
    fn whole(count: usize, step: usize) -> Vec<f32> {
        (0..count).map(|index| f32::from(u8::try_from(index * step % 7).unwrap()) - 3.0).collect()
    }

    #[test]
    fn products_of_factors_in_either_order_follow_the_definition() {
        for (m, k, n) in [(1, 1, 1), (4, 4, 4), (1, 9, 5), (7, 1, 3), (5, 3, 1), (17, 33, 13), (96, 130, 64), (3, 0, 2)]
        {
            let (a, b) = (whole(m * k, 5), whole(k * n, 3));
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

    #[test]
    fn the_number_of_threads_changes_no_bit() {
        let real = |count: usize, step: usize| -> Vec<f32> {
            (0..count).map(|index| f32::from(u16::try_from(index * step % 1013).unwrap()) / 500.0 - 1.0).collect()
        };
        for (m, k, n) in [(130, 170, 90), (64, 1100, 40)] {
            let (a, b) = (real(m * k, 7919), real(k * n, 4099));
            let on = |threads| -> Vec<u32> {
                let product = multiply_on(threads, Matrix::new(&a, m, k), Matrix::new(&b, k, n));
                product.into_iter().map(f32::to_bits).collect()
            };
            let one = on(1);
            assert!(on(2) == one && on(5) == one, "{m}x{k} times {k}x{n}");
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

//! Products of row-major matrices for a library that stores matrices by columns.
//!
//! A row-major matrix (r, c) is, byte for byte, the column-major matrix (c, r), its transpose. So the transpose of
//! L·R, which is Rᵀ·Lᵀ, is what such a library computes from the same bytes: the operands change places and keep their flags.

/// L·R of row-major matrices, (m, k)·(k, n) → (m, n).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Product {
    /// Rows of the result.
    pub(crate) m: usize,
    /// Columns of the result.
    pub(crate) n: usize,
    /// Length of the sums.
    pub(crate) k: usize,
    /// L is stored as (k, m).
    pub(crate) is_left_transposed: bool,
    /// R is stored as (n, k).
    pub(crate) is_right_transposed: bool,
}

/// A column-major matrix as stored: element (i, j) is at `i + j * rows`, so that `rows` is its leading dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByColumns {
    /// Rows as stored.
    pub(crate) rows: usize,
    /// Columns as stored.
    pub(crate) columns: usize,
    /// The product takes its transpose.
    pub(crate) is_transposed: bool,
}

/// D = op(A)·op(B) of column-major matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Swapped {
    /// The bytes of R.
    pub(crate) a: ByColumns,
    /// The bytes of L.
    pub(crate) b: ByColumns,
    /// The bytes of L·R.
    pub(crate) d: ByColumns,
}

impl Product {
    /// x·W of `x` (N, in).
    pub(crate) fn forward(num_rows: usize, num_inputs: usize, num_outputs: usize, is_out_in: bool) -> Self {
        Self { m: num_rows, n: num_outputs, k: num_inputs, is_left_transposed: false, is_right_transposed: is_out_in }
    }

    /// dZ·Wᵀ → (N, in), with this as x·W.
    pub(crate) fn input_gradient(self) -> Self {
        Self { n: self.k, k: self.n, is_right_transposed: !self.is_right_transposed, ..self }
    }

    /// xᵀ·dZ → (in, out), or dZᵀ·x → (out, in) if the weight is stored so, with this as x·W.
    pub(crate) fn weight_gradient(self) -> Self {
        let (m, n) = if self.is_right_transposed { (self.n, self.k) } else { (self.k, self.n) };
        Self { m, n, k: self.m, is_left_transposed: true, is_right_transposed: false }
    }

    /// The same product for a library of column-major matrices.
    pub(crate) fn swapped(self) -> Swapped {
        let stored = |rows, columns, is_transposed| match is_transposed {
            false => ByColumns { rows: columns, columns: rows, is_transposed },
            true => ByColumns { rows, columns, is_transposed },
        };
        Swapped {
            a: stored(self.k, self.n, self.is_right_transposed),
            b: stored(self.m, self.k, self.is_left_transposed),
            d: stored(self.m, self.n, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn transposed(values: &[i64], rows: usize, columns: usize) -> Vec<i64> {
        (0..rows * columns).map(|at| values[(at % rows) * columns + at / rows]).collect()
    }

    /// Row-major (m, k)·(k, n).
    fn multiply(left: &[i64], right: &[i64], (m, k, n): (usize, usize, usize)) -> Vec<i64> {
        let element = |i: usize, j: usize| (0..k).map(|l| left[i * k + l] * right[l * n + j]).sum();
        (0..m * n).map(|at| element(at / n, at % n)).collect()
    }

    /// What the library does, from its documentation: D = op(A)·op(B), all by columns.
    fn library(swapped: &Swapped, a: &[i64], b: &[i64]) -> Vec<i64> {
        let size = |matrix: &ByColumns| match matrix.is_transposed {
            false => (matrix.rows, matrix.columns),
            true => (matrix.columns, matrix.rows),
        };
        let at = |values: &[i64], matrix: &ByColumns, i: usize, j: usize| {
            let (row, column) = if matrix.is_transposed { (j, i) } else { (i, j) };
            assert!(row < matrix.rows && column < matrix.columns);
            values[row + column * matrix.rows]
        };
        let ((rows, depth), (depth_b, columns)) = (size(&swapped.a), size(&swapped.b));
        assert_eq!((depth, rows, columns), (depth_b, swapped.d.rows, swapped.d.columns));
        assert!(!swapped.d.is_transposed);
        let mut d = vec![0; rows * columns];
        for l in 0..depth {
            for i in 0..rows {
                for j in 0..columns {
                    d[i + j * rows] += at(a, &swapped.a, i, l) * at(b, &swapped.b, l, j);
                }
            }
        }
        d
    }

    fn values(count: usize, seed: i64) -> Vec<i64> {
        (0..count as i64).map(|at| (at * 7 + seed * 13) % 23 - 11).collect()
    }

    fn sizes() -> impl Strategy<Value = (usize, usize, usize)> {
        (1_usize..7, 1_usize..7, 1_usize..7)
    }

    proptest! {
        #[test]
        fn a_swapped_product_is_the_product((m, k, n) in sizes(), by_left: bool, by_right: bool, seed in 0_i64..100) {
            let product = Product { m, n, k, is_left_transposed: by_left, is_right_transposed: by_right };
            let (left, right) = (values(m * k, seed), values(k * n, seed + 1));
            let stored_left = if by_left { transposed(&left, m, k) } else { left.clone() };
            let stored_right = if by_right { transposed(&right, k, n) } else { right.clone() };
            let d = library(&product.swapped(), &stored_right, &stored_left);
            prop_assert_eq!(d, multiply(&left, &right, (m, k, n)));
        }

        #[test]
        fn the_gradients_of_a_product_are_products_of_what_is_stored(
            (rows, inputs, outputs) in sizes(), is_out_in: bool, seed in 0_i64..100,
        ) {
            let (x, z) = (values(rows * inputs, seed), values(rows * outputs, seed + 1));
            let weight = values(inputs * outputs, seed + 2);
            let stored = if is_out_in { transposed(&weight, inputs, outputs) } else { weight.clone() };
            let forward = Product::forward(rows, inputs, outputs, is_out_in);
            let y = library(&forward.swapped(), &stored, &x);
            prop_assert_eq!(y, multiply(&x, &weight, (rows, inputs, outputs)));

            let of_x = library(&forward.input_gradient().swapped(), &stored, &z);
            let expected = multiply(&z, &transposed(&weight, inputs, outputs), (rows, outputs, inputs));
            prop_assert_eq!(of_x, expected);

            let (left, right) = if is_out_in { (&z, &x) } else { (&x, &z) };
            let of_weight = library(&forward.weight_gradient().swapped(), right, left);
            let expected = multiply(&transposed(&x, rows, inputs), &z, (inputs, rows, outputs));
            let expected = if is_out_in { transposed(&expected, inputs, outputs) } else { expected };
            prop_assert_eq!(of_weight, expected);
        }
    }
}

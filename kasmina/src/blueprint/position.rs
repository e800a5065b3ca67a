//! Functions of one position, applied at all of them.

use candle_core::{Result, Tensor};

use crate::host::{from_rows, image_from_rows, image_to_rows, to_rows};

/// Applies `f` to each position by itself.
///
/// A vector is one position, a signal or a sequence has L, an image H·W. Where the channels of a position lie together in
/// memory (a vector, a signal made of rows, a sequence) nothing is copied on the way in; nothing ever is on the way out.
///
/// # Shapes
/// `h` and the result (B, C), (B, C, L) or (B, C, H, W); `f` takes rows (N, C) and returns as many of as many
pub(super) fn at_each_position(h: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    match *h.dims() {
        [_, _] => f(h),
        [_, _, height, width] => image_from_rows(&f(&image_to_rows(h)?)?, (height, width)),
        _ => from_rows(&f(&to_rows(h)?)?, h.dim(2)?),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::D;

    use super::*;
    use crate::blueprint::testing::{numbers, read, tensor};

    #[test]
    fn the_sum_over_channels_comes_back_to_every_channel_of_its_position() {
        for dims in
            [&[4, 3][..], &[2, 3, 5], &[2, 3, 1], &[2, 1, 5], &[2, 3, 4, 5], &[2, 1, 1, 1], &[1, 3, 1, 2], &[0, 3, 5]]
        {
            let h = tensor(&numbers(1, dims.iter().product()), dims);
            let sums =
                |x: &Tensor| x.broadcast_mul(&x.sum_keepdim(D::Minus1)?)?.broadcast_add(&x.mean_keepdim(D::Minus1)?);
            let found = at_each_position(&h, sums).unwrap();
            let sum = h.sum_keepdim(1).unwrap();
            let expected = h.broadcast_mul(&sum).unwrap().broadcast_add(&h.mean_keepdim(1).unwrap()).unwrap();
            assert_eq!(found.dims(), dims);
            for (found, expected) in read(&found).iter().zip(read(&expected)) {
                assert!((found - expected).abs() < 1e-12, "{dims:?}: {found} against {expected}");
            }
        }
    }
}

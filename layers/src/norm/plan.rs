//! Which kernel normalizes rows of a width, and how it is launched.

/// Blocks of the backward pass beyond which further ones only add to what is summed in the end.
const MAX_GROUPS: usize = 256;

/// Kernels for one width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) forward: &'static str,
    /// Of the sum of two, which is written too; absent for rows that are read one by one.
    pub(super) forward_sum: Option<&'static str>,
    pub(super) backward: &'static str,
    /// Threads of a block.
    pub(super) threads: u32,
    /// Rows that a block works on at a time.
    pub(super) rows_of_block: usize,
}

/// What rows, scales and shifts are of, and the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// All of `f32`.
    Single,
    /// The result of `bf16`.
    Half,
    /// All of `bf16`.
    Pure,
}

/// The kernels of a width.
macro_rules! kernels {
    ($width:literal, $kind:expr, $threads:expr, $rows:expr) => {{
        let (forward, sum, backward) = match $kind {
            Kind::Single => (
                concat!("layer_norm_", $width),
                concat!("layer_norm_sum_", $width),
                concat!("layer_norm_backward_", $width),
            ),
            Kind::Half => (
                concat!("layer_norm_half_", $width),
                concat!("layer_norm_sum_half_", $width),
                concat!("layer_norm_backward_half_", $width),
            ),
            Kind::Pure => (
                concat!("layer_norm_pure_", $width),
                concat!("layer_norm_sum_pure_", $width),
                concat!("layer_norm_backward_pure_", $width),
            ),
        };
        Plan { forward, forward_sum: Some(sum), backward, threads: $threads, rows_of_block: $rows }
    }};
}

impl Plan {
    /// For rows of `width` numbers; `is_aligned` says that all of them begin at multiples of 16 bytes if the width is a
    /// multiple of 4. None where rows of this kind are not read one by one, and have to be.
    pub(super) fn of(width: usize, is_aligned: bool, kind: Kind) -> Option<Self> {
        let one_by_one = Self {
            forward: "layer_norm_any",
            forward_sum: None,
            backward: "layer_norm_backward_any",
            threads: 128,
            rows_of_block: 1,
        };
        if !is_aligned || !width.is_multiple_of(4) {
            return (kind == Kind::Single).then_some(one_by_one);
        }
        Some(match width {
            0..=128 => kernels!("128", kind, 128, 4),
            129..=256 => kernels!("256", kind, 128, 4),
            257..=512 => kernels!("512", kind, 128, 4),
            513..=1024 => kernels!("1024", kind, 128, 4),
            1025..=2048 => kernels!("2048", kind, 256, 1),
            2049..=4096 => kernels!("4096", kind, 256, 1),
            4097..=8192 => kernels!("8192", kind, 256, 1),
            _ => return (kind == Kind::Single).then_some(one_by_one),
        })
    }

    /// Blocks of the forward pass: each row is one block's.
    pub(super) fn blocks(&self, rows: usize) -> usize {
        rows.div_ceil(self.rows_of_block)
    }

    /// Blocks of the backward pass, each of which sums the gradients of scale and shift over the rows that it takes.
    pub(super) fn groups(&self, rows: usize) -> usize {
        self.blocks(rows).min(MAX_GROUPS)
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, Plan};

    const KINDS: [(Kind, &str); 3] = [(Kind::Single, ""), (Kind::Half, "half_"), (Kind::Pure, "pure_")];

    #[test]
    fn the_kernel_of_a_width_holds_the_whole_row() {
        for width in (4..=8192).step_by(4) {
            let plan = Plan::of(width, true, Kind::Single).unwrap();
            let capacity: usize = plan.forward.trim_start_matches("layer_norm_").parse().unwrap();
            assert!(width <= capacity && (width > capacity / 2 || capacity == 128), "{width}: {plan:?}");
            for (kind, prefix) in KINDS {
                let plan = Plan::of(width, true, kind).unwrap();
                assert_eq!(plan.forward, format!("layer_norm_{prefix}{capacity}"));
                assert_eq!(plan.forward_sum.unwrap(), format!("layer_norm_sum_{prefix}{capacity}"));
                assert_eq!(plan.backward, format!("layer_norm_backward_{prefix}{capacity}"));
            }
        }
    }

    #[test]
    fn rows_without_vectors_of_4_are_read_one_by_one() {
        for (width, is_aligned) in [(1, true), (3, true), (255, true), (256, false), (8196, true)] {
            let [single, half, pure] = KINDS.map(|(kind, _)| Plan::of(width, is_aligned, kind));
            assert_eq!(single.map(|plan| (plan.forward, plan.forward_sum)), Some(("layer_norm_any", None)), "{width}");
            assert_eq!((half, pure), (None, None), "{width}");
        }
    }

    #[test]
    fn every_row_is_some_blocks() {
        for rows in [1, 3, 4, 5, 512, 100_000] {
            for width in [3, 64, 4096] {
                let plan = Plan::of(width, true, Kind::Single).unwrap();
                assert!(plan.blocks(rows) * plan.rows_of_block >= rows);
                assert!((1..=256).contains(&plan.groups(rows)));
            }
        }
    }
}

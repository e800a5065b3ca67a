//! Which kernel normalizes rows of a width, and how it is launched.

/// Blocks of the backward pass beyond which further ones only add to what is summed in the end.
const MAX_GROUPS: usize = 256;

/// Kernels for one width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) forward: &'static str,
    pub(super) backward: &'static str,
    /// Threads of a block.
    pub(super) threads: u32,
    /// Rows that a block works on at a time.
    pub(super) rows_of_block: usize,
}

impl Plan {
    /// For rows of `width` numbers; `is_aligned` says that all of them begin at multiples of 16 bytes if the width is a
    /// multiple of 4.
    pub(super) fn of(width: usize, is_aligned: bool) -> Self {
        let plan = |forward, backward, threads, rows_of_block| Self { forward, backward, threads, rows_of_block };
        if !is_aligned || !width.is_multiple_of(4) {
            return plan("layer_norm_any", "layer_norm_backward_any", 128, 1);
        }
        match width {
            0..=128 => plan("layer_norm_128", "layer_norm_backward_128", 128, 4),
            129..=256 => plan("layer_norm_256", "layer_norm_backward_256", 128, 4),
            257..=512 => plan("layer_norm_512", "layer_norm_backward_512", 128, 4),
            513..=1024 => plan("layer_norm_1024", "layer_norm_backward_1024", 128, 4),
            1025..=2048 => plan("layer_norm_2048", "layer_norm_backward_2048", 256, 1),
            2049..=4096 => plan("layer_norm_4096", "layer_norm_backward_4096", 256, 1),
            4097..=8192 => plan("layer_norm_8192", "layer_norm_backward_8192", 256, 1),
            _ => plan("layer_norm_any", "layer_norm_backward_any", 128, 1),
        }
    }

    /// The same for results and upstream gradients of `bf16`; none for rows that are read one by one.
    pub(super) fn in_half(self) -> Option<Self> {
        let (forward, backward) = match self.forward {
            "layer_norm_128" => ("layer_norm_half_128", "layer_norm_backward_half_128"),
            "layer_norm_256" => ("layer_norm_half_256", "layer_norm_backward_half_256"),
            "layer_norm_512" => ("layer_norm_half_512", "layer_norm_backward_half_512"),
            "layer_norm_1024" => ("layer_norm_half_1024", "layer_norm_backward_half_1024"),
            "layer_norm_2048" => ("layer_norm_half_2048", "layer_norm_backward_half_2048"),
            "layer_norm_4096" => ("layer_norm_half_4096", "layer_norm_backward_half_4096"),
            "layer_norm_8192" => ("layer_norm_half_8192", "layer_norm_backward_half_8192"),
            _ => return None,
        };
        Some(Self { forward, backward, ..self })
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
    use super::Plan;

    #[test]
    fn the_kernel_of_a_width_holds_the_whole_row() {
        for width in (4..=8192).step_by(4) {
            let plan = Plan::of(width, true);
            let capacity: usize = plan.forward.trim_start_matches("layer_norm_").parse().unwrap();
            assert!(width <= capacity && (width > capacity / 2 || capacity == 128), "{width}: {plan:?}");
            assert!(plan.backward.ends_with(&format!("_{capacity}")), "{plan:?}");
            let half = plan.in_half().unwrap();
            assert_eq!(half.forward, plan.forward.replace("norm_", "norm_half_"));
            assert_eq!(half.backward, plan.backward.replace("backward_", "backward_half_"));
        }
    }

    #[test]
    fn rows_without_vectors_of_4_are_read_one_by_one() {
        for (width, is_aligned) in [(1, true), (3, true), (255, true), (256, false), (8196, true)] {
            assert_eq!(Plan::of(width, is_aligned).forward, "layer_norm_any", "{width}");
            assert_eq!(Plan::of(width, is_aligned).in_half(), None, "{width}");
        }
    }

    #[test]
    fn every_row_is_some_blocks() {
        for rows in [1, 3, 4, 5, 512, 100_000] {
            for width in [3, 64, 4096] {
                let plan = Plan::of(width, true);
                assert!(plan.blocks(rows) * plan.rows_of_block >= rows);
                assert!((1..=256).contains(&plan.groups(rows)));
            }
        }
    }
}

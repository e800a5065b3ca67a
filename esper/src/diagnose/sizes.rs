//! How large the network of a diagnosis is.

/// A transformer of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tower {
    /// Blocks of attention and perceptron.
    pub(super) num_blocks: usize,
    /// Features of a position (D), a multiple of `num_heads`.
    pub(super) width: usize,
    /// Heads of attention.
    pub(super) num_heads: usize,
}

/// A picture of patches that is looked at, and a text around it that is gone on with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    /// What looks at patches.
    pub(super) vision: Tower,
    /// What reads tokens.
    pub(super) language: Tower,
    /// Patches of a picture (P), and as many places of a sequence.
    pub(super) num_patches: usize,
    /// Numbers of a patch.
    pub(super) patch_width: usize,
    /// Tokens there are (V), the placeholder among them.
    pub(super) vocabulary: usize,
    /// The token that keeps a place for a patch.
    pub(super) placeholder: u32,
    /// Most tokens of a sequence (T).
    pub(super) max_tokens: usize,
}

const fn tower(num_blocks: usize, width: usize, num_heads: usize) -> Tower {
    Tower { num_blocks, width, num_heads }
}

impl Sizes {
    /// About 5 million parameters.
    pub(super) const DEBUG: Self = Self {
        vision: tower(3, 192, 3),
        language: tower(4, 256, 4),
        num_patches: 16,
        patch_width: 192,
        vocabulary: 2048,
        placeholder: 1000,
        max_tokens: 64,
    };

    /// About 30 million parameters.
    pub(super) const LARGE: Self = Self {
        vision: tower(8, 256, 4),
        language: tower(12, 384, 6),
        num_patches: 64,
        patch_width: 192,
        vocabulary: 4096,
        placeholder: 2000,
        max_tokens: 128,
    };

    /// As small as it can be with two blocks each.
    pub(super) const QUICK: Self = Self {
        vision: tower(2, 16, 2),
        language: tower(2, 32, 2),
        num_patches: 4,
        patch_width: 12,
        vocabulary: 64,
        placeholder: 30,
        max_tokens: 36,
    };

    /// Parameters of the network.
    pub(super) fn num_parameters(&self) -> usize {
        let affine = |inputs: usize, outputs: usize| (inputs + 1) * outputs;
        let blocks = |Tower { num_blocks, width: d, .. }: Tower| {
            let of_block = 4 * d + affine(d, 3 * d) + affine(d, d) + affine(d, 4 * d) + affine(4 * d, d);
            num_blocks * of_block + 2 * d
        };
        let [seen, read] = [self.vision.width, self.language.width];
        let tables = self.num_patches * seen + (self.vocabulary + self.max_tokens) * read;
        blocks(self.vision) + blocks(self.language) + affine(self.patch_width, seen) + affine(seen, read) + tables
    }

    /// The lengths that a sequence may have: all patches, a token before them and one to predict after them.
    pub(super) fn tokens(&self) -> std::ops::RangeInclusive<usize> {
        self.num_patches + 2..=self.max_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_parameters_that_the_documents_say() {
        // The blocks that the requirement names, with the vocabulary of the large size.
        let named = Sizes { vision: tower(8, 512, 8), language: tower(12, 768, 12), ..Sizes::LARGE };
        for (sizes, expected) in
            [(Sizes::QUICK, 36_080), (Sizes::DEBUG, 5_124_736), (Sizes::LARGE, 29_399_424), (named, 114_045_696)]
        {
            assert_eq!(sizes.num_parameters(), expected, "{sizes:?}");
        }
    }
}

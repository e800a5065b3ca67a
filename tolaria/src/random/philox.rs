//! Philox 4x32: a bijection of blocks of four words, chosen by a key, whose outputs look random.

const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// What each round adds to the key: the fractional parts of the golden ratio and of the square root of 3.
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Four random words for a counter under a key, by Philox 4x32 with 10 rounds. The kernels on the GPU compute the same.
///
/// # Source
/// Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3
///
/// # Examples
/// ```
/// use tolaria::random::philox4x32;
///
/// assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]);
/// ```
#[must_use]
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let (low_0, high_0) = MULTIPLIERS[0].carrying_mul(counter[0], 0);
        let (low_1, high_1) = MULTIPLIERS[1].carrying_mul(counter[2], 0);
        counter = [high_1 ^ counter[1] ^ key[0], low_1, high_0 ^ counter[3] ^ key[1], low_0];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    counter
}

/// The low and the high word.
pub(crate) fn words(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    #[test]
    fn the_known_answers_of_the_reference_implementation_are_given() {
        // `kat_vectors` of Random123, "philox4x32 10".
        let cases = [
            ([0; 4], [0; 2], [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]),
            (
                [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344],
                [0xA409_3822, 0x299F_31D0],
                [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox4x32(counter, key), expected, "{counter:x?} {key:x?}");
        }
    }

    #[test]
    fn a_number_is_split_into_its_low_and_its_high_word() {
        assert_eq!(words(0x0123_4567_89AB_CDEF), [0x89AB_CDEF, 0x0123_4567]);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None, rng_seed: RngSeed::Fixed(41), ..Default::default()
        })]

        #[test]
        fn every_bit_of_the_counter_and_of_the_key_changes_about_half_of_the_output(
            counter: [u32; 4],
            key: [u32; 2],
            bit in 0..192_usize,
        ) {
            let (mut counter_changed, mut key_changed) = (counter, key);
            match bit {
                0..128 => counter_changed[bit / 32] ^= 1 << (bit % 32),
                _ => key_changed[bit / 32 - 4] ^= 1 << (bit % 32),
            }
            let (before, after) = (philox4x32(counter, key), philox4x32(counter_changed, key_changed));
            let changed: u32 = before.iter().zip(after).map(|(before, after)| (before ^ after).count_ones()).sum();
            // Mean 64, standard deviation 5.7 of 128 fair bits; six of them over a few hundred cases.
            prop_assert!((30..=98).contains(&changed), "{changed} of 128 bits");
        }
    }
}

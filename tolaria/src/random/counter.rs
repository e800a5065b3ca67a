//! How many draws were made, counted where the random numbers are drawn.

use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Tensor, Var};

use super::philox::words;
use crate::error::Error;
use crate::host_read::{self, HostReads};
use crate::kernels::DeviceKernels;

/// The seed of a model's random numbers and, on its device, the number of draws; clones share the latter.
///
/// One for each model. [`advance`](Self::advance) is called once per training forward pass, before the first layer that
/// draws and inside the region that is captured. The number stays at one address, so that graphs can refer to it.
#[derive(Debug, Clone)]
pub struct DrawCounter {
    seed: u64,
    /// Shape (2,) of `u32`: the low word, the high word.
    draws: Var,
}

impl DrawCounter {
    /// No draws yet.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub fn new(seed: u64, device: &Device) -> Result<Self, Error> {
        Ok(Self { seed, draws: Var::new(&[0_u32; 2], device)? })
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Adds 1 to the number, in place; after `u64::MAX` comes 0.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub fn advance(&self) -> Result<(), Error> {
        match DeviceKernels::for_device(self.draws.device()) {
            Some(kernels) => kernels.advance_counter(&self.draws)?,
            None => self.draws.inplace_op1(&Advance)?,
        }
        Ok(())
    }

    /// The number of draws, for a checkpoint. Not inside a region.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// one device-to-host copy
    pub fn value(&self, reads: &mut HostReads) -> Result<u64, Error> {
        match host_read::read_vec_u32(&self.draws, "draw counter", reads)?[..] {
            [low, high] => Ok(u64::from(high) << 32 | u64::from(low)),
            ref found => Err(Error::mismatch("draw counter", "2 words", format!("{} words", found.len()))),
        }
    }

    /// Writes the number, in place: graphs that refer to it draw from here on. Not inside a region.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub fn set(&self, draws: u64) -> Result<(), Error> {
        self.draws.slice_set(&Tensor::new(&words(draws), self.draws.device())?, 0, 0)?;
        Ok(())
    }

    /// The number on the device, shape (2,) of `u32`: the low word, the high word. It belongs to the state of a run, see
    /// [`NoSeeds::with_buffers`](crate::plain::NoSeeds::with_buffers).
    #[must_use]
    pub fn as_var(&self) -> &Var {
        &self.draws
    }
}

#[derive(Debug)]
struct Advance;

impl InplaceOp1 for Advance {
    fn name(&self) -> &'static str {
        "advance-draw-counter"
    }

    fn cpu_fwd(&self, draws: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let (CpuStorage::U32(words), Some((start, end))) = (draws, layout.contiguous_offsets()) else {
            candle_core::bail!("a draw counter is a contiguous tensor of u32")
        };
        let [low, high] = &mut words[start..end] else { candle_core::bail!("a draw counter has two words") };
        let carry;
        (*low, carry) = low.overflowing_add(1);
        *high = high.wrapping_add(u32::from(carry));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Storage;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    fn counter() -> DrawCounter {
        DrawCounter::new(7, &Device::Cpu).unwrap()
    }

    fn value(counter: &DrawCounter) -> u64 {
        counter.value(&mut HostReads::default()).unwrap()
    }

    fn address(counter: &DrawCounter) -> *const u32 {
        match &*counter.draws.storage_and_layout().0 {
            Storage::Cpu(CpuStorage::U32(words)) => words.as_ptr(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn advancing_carries_into_the_high_word_and_wraps_at_the_end() {
        let counter = counter();
        assert_eq!(value(&counter), 0);
        for (before, after) in [
            (0, 1),
            (0xFFFF_FFFE, 0xFFFF_FFFF),
            (0xFFFF_FFFF, 0x1_0000_0000),
            (0x1_FFFF_FFFF, 0x2_0000_0000),
            (u64::MAX, 0),
        ] {
            counter.set(before).unwrap();
            counter.advance().unwrap();
            assert_eq!(value(&counter), after, "{before:#x}");
        }
    }

    #[test]
    fn clones_share_the_number_and_nothing_moves_it() {
        let counter = counter();
        let (clone, at) = (counter.clone(), address(&counter));
        counter.advance().unwrap();
        clone.set(9).unwrap();
        clone.advance().unwrap();
        assert_eq!((value(&counter), value(&clone)), (10, 10));
        assert_eq!((address(&counter), address(&clone)), (at, at));
        assert_eq!((counter.seed(), clone.seed()), (7, 7));
    }

    #[test]
    fn only_reading_the_number_is_a_read() {
        let (counter, mut reads) = (counter(), HostReads::default());
        counter.advance().unwrap();
        counter.set(3).unwrap();
        assert_eq!(counter.value(&mut reads).unwrap(), 3);
        assert_eq!(*reads.counts(), [("draw counter", 1)].into());
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None, rng_seed: RngSeed::Fixed(42), ..Default::default()
        })]

        #[test]
        fn any_number_survives_and_advances_by_one(draws: u64) {
            let counter = counter();
            counter.set(draws).unwrap();
            prop_assert_eq!(value(&counter), draws);
            counter.advance().unwrap();
            prop_assert_eq!(value(&counter), draws.wrapping_add(1));
        }
    }
}

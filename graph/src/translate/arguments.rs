//! The arguments of a kernel with the addresses of its blocks.

use crate::compile::{BlockId, Kernel};

/// Arguments of a launch, each from an 8-byte word of its own on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arguments {
    words: Vec<u64>,
    starts: Vec<usize>,
}

impl Arguments {
    /// Those of a kernel, where `address_of` knows the first byte of each block.
    ///
    /// # Errors
    /// In words: a block without a place, or words that do not fit the lengths of the arguments.
    pub(crate) fn of(kernel: &Kernel, address_of: impl Fn(BlockId) -> Option<u64>) -> Result<Self, String> {
        let mut words = kernel.parameters.clone();
        for pointer in &kernel.pointers {
            let base = address_of(pointer.block).ok_or_else(|| format!("{} has no place", pointer.block))?;
            let word = words.get_mut(pointer.word_index).ok_or("a pointer lies outside of the arguments")?;
            *word = base + pointer.offset_bytes as u64;
        }
        let mut starts = Vec::with_capacity(kernel.argument_bytes.len());
        let mut end = 0_usize;
        for bytes in &kernel.argument_bytes {
            starts.push(end);
            end += bytes.div_ceil(8);
        }
        if end != words.len() {
            return Err(format!("{end} words of arguments are needed, {} are there", words.len()));
        }
        Ok(Self { words, starts })
    }

    /// Where each argument starts, for as long as `self` is not touched.
    #[cfg(feature = "cuda")]
    pub(crate) fn addresses(&mut self) -> Vec<*mut std::ffi::c_void> {
        let words = self.words.as_mut_ptr();
        // An argument without bytes at the end starts one past the last word.
        self.starts.iter().map(|&start| words.wrapping_add(start).cast()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::{Code, Effect, LaunchShape, Pointer};

    fn kernel(parameters: Vec<u64>, argument_bytes: Vec<usize>, pointers: Vec<Pointer>) -> Kernel {
        Kernel {
            name: "k".to_owned(),
            code: Code::Recorded(0),
            launch: LaunchShape::default(),
            parameters,
            argument_bytes,
            pointers,
            effect: Effect::Unknown,
        }
    }

    #[test]
    fn every_pointer_becomes_an_address_and_other_words_stay() {
        // Four bytes, a structure of 20 bytes with a pointer in its second word, and a pointer.
        let pointers = vec![Pointer::new(2, BlockId(1), 16), Pointer::new(4, BlockId(0), 0)];
        let kernel = kernel(vec![7, 1, 0xdead, 3, 0xbeef], vec![4, 20, 8], pointers);
        let arguments = Arguments::of(&kernel, |block| Some(0x1000 * (block.0 as u64 + 1))).expect("all have a place");
        assert_eq!(arguments.words, [7, 1, 0x2010, 3, 0x1000]);
        assert_eq!(arguments.starts, [0, 1, 4]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let place = |block: BlockId| (block.0 == 0).then_some(0x1000);
        for (parameters, argument_bytes, pointers) in [
            (vec![0], vec![8], vec![Pointer::new(0, BlockId(1), 0)]),
            (vec![0], vec![8], vec![Pointer::new(1, BlockId(0), 0)]),
            (vec![0], vec![8, 1], vec![]),
            (vec![0, 0], vec![8], vec![]),
        ] {
            let kernel = kernel(parameters, argument_bytes, pointers);
            assert!(Arguments::of(&kernel, place).is_err(), "{kernel:?}");
        }
    }
}

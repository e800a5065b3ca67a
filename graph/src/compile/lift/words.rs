//! Arguments of kernels as 8-byte words.

/// The arguments of a kernel, each from a word of its own on, the last word filled up with zeros.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Words {
    pub(super) values: Vec<u64>,
    pub(super) argument_bytes: Vec<usize>,
}

impl Words {
    pub(super) fn of(arguments: &[Vec<u8>]) -> Self {
        let mut words = Self { values: Vec::new(), argument_bytes: arguments.iter().map(Vec::len).collect() };
        for chunk in arguments.iter().flat_map(|argument| argument.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            words.values.push(u64::from_le_bytes(bytes));
        }
        words
    }

    /// Index and value of the words that lie in one argument as a whole.
    pub(super) fn full(&self) -> impl Iterator<Item = (usize, u64)> {
        let mut first = 0;
        let mut full = Vec::with_capacity(self.values.len());
        for &bytes in &self.argument_bytes {
            full.extend((first..first + bytes / 8).map(|index| (index, self.values[index])));
            first += bytes.div_ceil(8);
        }
        full.into_iter()
    }

    /// Index of the first word of an argument.
    pub(super) fn index_of(&self, argument: usize) -> usize {
        self.argument_bytes[..argument].iter().map(|bytes| bytes.div_ceil(8)).sum()
    }
}

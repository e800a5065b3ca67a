//! What a launch reads and writes.

/// A range of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub address: u64,
    /// Length, at least 1.
    pub bytes: usize,
}

/// What a launch reads and writes. A launch without one is taken to read and write all that its arguments point at.
///
/// Who rewrites a recorded launch may give it other addresses, which differ from the recorded ones by a multiple of 16
/// bytes. So a kernel with an effect asks for no more alignment than that.
///
/// # Examples
/// ```
/// use esper_graph::launch::Effect;
///
/// let effect = Effect::new().reading(0x100, 64).updating(0x200, 16).copying(0x300, 0x400, 8);
/// let addresses = |spans: &[esper_graph::launch::Span]| spans.iter().map(|span| span.address).collect::<Vec<_>>();
/// assert_eq!(addresses(&effect.reads), [0x100, 0x200, 0x300]);
/// assert_eq!(addresses(&effect.writes), [0x200, 0x400]);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Effect {
    /// Bytes that it reads.
    pub reads: Vec<Span>,
    /// Bytes that it writes, each of them whatever the data. What is in both lists is read before it is written.
    pub writes: Vec<Span>,
    /// All that it does, where it does nothing but copy: from where, how much, and to what address. Every copy is among
    /// the reads and writes too.
    pub copies: Vec<(Span, u64)>,
}

impl Effect {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads `bytes` from `address` on.
    #[must_use]
    pub fn reading(mut self, address: u64, bytes: usize) -> Self {
        self.reads.push(Span { address, bytes });
        self
    }

    /// Writes `bytes` from `address` on, all of them.
    #[must_use]
    pub fn writing(mut self, address: u64, bytes: usize) -> Self {
        self.writes.push(Span { address, bytes });
        self
    }

    /// Changes `bytes` from `address` on.
    #[must_use]
    pub fn updating(self, address: u64, bytes: usize) -> Self {
        self.reading(address, bytes).writing(address, bytes)
    }

    /// Copies `bytes` from one address to another, and does nothing else but such copies.
    #[must_use]
    pub fn copying(mut self, from: u64, to: u64, bytes: usize) -> Self {
        self.copies.push((Span { address: from, bytes }, to));
        self.reading(from, bytes).writing(to, bytes)
    }
}

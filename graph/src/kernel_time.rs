//! When one kernel ran.

/// One launch of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelTime {
    /// As the compiler wrote it: mangled.
    pub name: String,
    /// When it began, in nanoseconds since some moment that is the same for all of a trace.
    pub start_ns: u64,
    /// When it was over.
    pub end_ns: u64,
}

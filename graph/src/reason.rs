//! Why a region runs eagerly instead of being replayed.

use std::fmt;
use std::path::PathBuf;

use super::compile::{Pass, TwinError};

/// Where on the way to a replay it was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Before anything was recorded.
    Open,
    /// While the region was recorded.
    Record,
    /// After the recording, when the graph was looked through.
    Inspect,
    /// When the graph was made executable.
    Instantiate,
    /// When it was rewritten.
    Compile,
    /// When it was to be replayed.
    Launch,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Record => "record",
            Self::Inspect => "inspect",
            Self::Instantiate => "instantiate",
            Self::Compile => "compile",
            Self::Launch => "launch",
        })
    }
}

/// What to do about a device that two threads want.
pub const SHARED_DEVICE: &str = "the device is in use by a session or a trainer of another thread, and a candle \
    device is one thread's at a time: give each thread a device of its own, \
    `Device::new_cuda_with_stream(ordinal)`, or let go of the other one first";

/// A rule that a region broke, or a device that cannot replay. The region still runs eagerly.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No device that replays graphs.
    #[error("graphs are not available: {why}")]
    Unsupported {
        /// What is missing.
        why: &'static str,
    },
    /// Graphs are switched off.
    #[error("graphs are switched off")]
    SwitchedOff,
    /// An error of an earlier call was waiting on the device.
    #[error("the device reported an earlier error: {message}")]
    ParkedError {
        /// The driver's words.
        message: String,
        /// Whether it arose inside the region.
        inside: bool,
    },
    /// The driver refused a call.
    #[error("{call} failed: {message}")]
    Driver {
        /// The call.
        call: &'static str,
        /// Where.
        stage: Stage,
        /// The driver's words.
        message: String,
    },
    /// The region copies between host and device. A replay would use host memory that is long gone.
    #[error(
        "the region copies between host and device ({uploads} times to the device, {downloads} times to the host, {bytes} bytes{})",
        near(.after)
    )]
    HostCopies {
        /// Copies to the device.
        uploads: usize,
        /// Copies to the host.
        downloads: usize,
        /// Bytes of all of them.
        bytes: usize,
        /// The kernel before the first of them.
        after: Option<String>,
    },
    /// The region read a device value on the host.
    #[error("the region reads a value of the device on the host: {message}")]
    HostRead {
        /// The tensor library's words.
        message: String,
    },
    /// The region uploads a value that its warm-up did not have, or that is too long to be kept for the capture.
    #[error(
        "the region uploads a value that changes, was not there in warm-up or has more than 4096 bytes; make it before \
         the region: {message}"
    )]
    ChangingValue {
        /// The tensor library's words.
        message: String,
    },
    /// Memory taken in the region is still held after it.
    #[error("{count} tensors made in the region outlive it ({bytes} bytes); copy results into tensors made before")]
    UnfreedAllocations {
        /// Allocations.
        count: usize,
        /// Their bytes.
        bytes: usize,
    },
    /// Memory from before the region is given back in it. What the region kept of earlier runs was replaced by what it made
    /// while it was recorded, and that has no values: numbers read as not finite.
    #[error(
        "the region drops or replaces a tensor from before it{}, such as a cache of keys and values that grows with each \
         call; drop it at the end of the call that made it (`clear_kv_cache`), or keep it at one place and write to it there \
         (`esper_layers::KvCache`)",
        behind(.after)
    )]
    ReleasedInside {
        /// The last kernel before that was found; absent where there is none.
        after: Option<String>,
    },
    /// The region draws from a generator whose state is on the host.
    #[error(
        "the region draws random numbers from a generator on the host (kernel `{kernel}`); use a counter-based one"
    )]
    HostRandom {
        /// The generator's kernel.
        kernel: String,
    },
    /// A parameter got no gradient.
    #[error("parameter `{name}` has no gradient")]
    MissingGradient {
        /// The parameter.
        name: String,
    },
    /// The region returned an error.
    #[error("the region failed: {message}")]
    RegionFailed {
        /// Its words.
        message: String,
    },
    /// The region panicked.
    #[error("the region panicked: {message}")]
    Panicked {
        /// The panic's words.
        message: String,
    },
    /// The graph would not fit into the memory of the device. A driver that finds that out itself keeps what it took.
    #[error("the graph needs {needed} bytes of device memory at once, {available} are available")]
    OutOfMemory {
        /// Most bytes that its allocations hold at one time.
        needed: u64,
        /// Free bytes, those that graphs could reuse included.
        available: u64,
    },
    /// The region recorded nothing.
    #[error("the region did no work on the device")]
    Empty,
    /// A recorded region could not be rewritten, or the rewritten one is not the same. The recorded graph goes on.
    #[error("the region was not compiled: {message}")]
    NotCompiled {
        /// One word.
        why: &'static str,
        /// What was found, and where.
        message: String,
    },
    /// The rewritten region left another result, and this is the rewrite that made it do so. The recorded graph goes on.
    #[error("rewrite {rewrite} of pass {} is wrong: {message}{}", pass.name(), written_to(.reproducer))]
    WrongRewrite {
        /// The pass.
        pass: Pass,
        /// Its number among the rewrites of the pass, from 1.
        rewrite: usize,
        /// What differed.
        message: String,
        /// The file that shows it without the model; absent where none could be written.
        reproducer: Option<PathBuf>,
    },
    /// The region was recorded again, and is not what is replayed: a number on the host has changed, or a branch, or a
    /// tensor was replaced by another one.
    #[error("a number or a choice of the host is frozen in the graph and has changed since: {message}")]
    FrozenValue {
        /// The kernel that was launched with another argument; absent where the difference is none of an argument.
        kernel: Option<String>,
        /// Which argument, counted from 0.
        argument: Option<usize>,
        /// What was found, and where.
        message: String,
    },
    /// A graph was to be replayed on another thread than the one that recorded it.
    #[error("the graph was recorded on another thread, which owns the constants that it reads")]
    OtherThread,
    /// The graph points at memory that no tensor which it holds keeps alive.
    #[error("no tensor that the graph holds keeps {bytes} bytes alive that it points at{}", used_by(.kernel))]
    NotHeld {
        /// Length of the allocation.
        bytes: usize,
        /// The first kernel that was given its address; absent where it is only filled or copied.
        kernel: Option<String>,
    },
    /// The device is in use by another thread.
    #[error("{}", SHARED_DEVICE)]
    SharedDevice,
    /// A static buffer is not where it was at capture.
    #[error("{what} moved since the capture")]
    Moved {
        /// Which buffer.
        what: String,
    },
}

impl Refusal {
    /// One word for telemetry.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Unsupported { .. } => "unsupported",
            Self::SwitchedOff => "switched_off",
            Self::ParkedError { .. } => "parked_error",
            Self::Driver { .. } => "driver",
            Self::HostCopies { .. } => "host_copies",
            Self::HostRead { .. } => "host_read",
            Self::ChangingValue { .. } => "changing_value",
            Self::UnfreedAllocations { .. } => "unfreed_allocations",
            Self::ReleasedInside { .. } => "released_inside",
            Self::HostRandom { .. } => "host_random",
            Self::MissingGradient { .. } => "missing_gradient",
            Self::RegionFailed { .. } => "region_failed",
            Self::Panicked { .. } => "panicked",
            Self::OutOfMemory { .. } => "out_of_memory",
            Self::Empty => "empty",
            Self::NotCompiled { why, .. } => why,
            Self::WrongRewrite { .. } => "wrong_rewrite",
            Self::FrozenValue { .. } => "frozen_value",
            Self::OtherThread => "other_thread",
            Self::NotHeld { .. } => "not_held",
            Self::SharedDevice => "shared_device",
            Self::Moved { .. } => "moved",
        }
    }

    /// Where it was decided.
    #[must_use]
    pub fn stage(&self) -> Stage {
        match self {
            Self::Unsupported { .. }
            | Self::SwitchedOff
            | Self::SharedDevice
            | Self::ParkedError { inside: false, .. } => Stage::Open,
            Self::Driver { stage, .. } => *stage,
            Self::HostCopies { .. }
            | Self::UnfreedAllocations { .. }
            | Self::HostRandom { .. }
            | Self::OutOfMemory { .. }
            | Self::Empty => Stage::Inspect,
            Self::HostRead { .. }
            | Self::ChangingValue { .. }
            | Self::MissingGradient { .. }
            | Self::ReleasedInside { .. }
            | Self::RegionFailed { .. }
            | Self::Panicked { .. }
            | Self::ParkedError { inside: true, .. } => Stage::Record,
            Self::NotCompiled { .. } | Self::WrongRewrite { .. } => Stage::Compile,
            Self::FrozenValue { .. } | Self::NotHeld { .. } | Self::Moved { .. } | Self::OtherThread => Stage::Launch,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Unsupported { .. } => "use a GPU by `Device::new_cuda_with_stream`",
            Self::SwitchedOff => "switch graphs on: `ESPER_GRAPHS`, the mode in the configuration",
            Self::ParkedError { .. } => "look at the call before it: steps that are each waited for name it",
            Self::Driver { .. } => "look up what the driver says of this call",
            Self::HostRead { .. } => "keep the value on the device, or read it outside of the region",
            Self::HostCopies { .. } | Self::ChangingValue { .. } => {
                "write it to a tensor from before the region, a number to a `DeviceScalar`, before each step"
            }
            Self::UnfreedAllocations { .. } => "copy it into a tensor from before the region",
            Self::ReleasedInside { .. } => "drop it where it was made, or write to it in place",
            Self::HostRandom { .. } => "draw from a counter on the device: `tolaria::random`",
            Self::MissingGradient { .. } => "use an operation with a gradient, or leave the parameter out",
            Self::RegionFailed { .. } | Self::Panicked { .. } => "run it eagerly and look at the message",
            Self::OutOfMemory { .. } => "take smaller batches, or keep fewer graphs",
            Self::Empty => "leave it eager: there is nothing to replay",
            Self::NotCompiled { .. } => "leave it captured: results are right",
            Self::WrongRewrite { .. } => "report the reproducer; results are right",
            Self::FrozenValue { .. } => "hand the number in by a `DeviceScalar`, and do not replace tensors",
            Self::OtherThread => "replay where it was captured",
            Self::NotHeld { .. } => "hold the tensor: `Captured::hold`",
            Self::SharedDevice => "open a device for each thread: `Device::new_cuda_with_stream`",
            Self::Moved { .. } => "write into the tensor, do not replace it",
        }
    }

    /// For a later recording that differs from what is replayed.
    #[must_use]
    pub fn frozen(difference: &TwinError) -> Self {
        let (kernel, argument) = match difference {
            TwinError::Word { kernel, argument, .. } => (Some(kernel.clone()), Some(*argument)),
            TwinError::Launch { kernel, .. } => (Some(kernel.clone()), None),
            _ => (None, None),
        };
        Self::FrozenValue { kernel, argument, message: difference.to_string() }
    }

    /// For a region that was captured and could not be recorded once more: what lies in the region has changed.
    #[must_use]
    pub fn or_frozen(self) -> Self {
        match self.stage() {
            Stage::Record | Stage::Inspect => {
                Self::FrozenValue { kernel: None, argument: None, message: self.to_string() }
            }
            _ => self,
        }
    }

    /// For an error that the region returned: what candle refuses under capture is told apart from other failures.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a device that records refuses"))]
    pub(crate) fn of_region(message: &str, last_kernel: impl FnOnce() -> Option<String>) -> Self {
        let message = message.lines().next().unwrap_or_default().to_owned();
        if ["cache miss", "missing cached host data", "uncached host data"].iter().any(|text| message.contains(text)) {
            Self::ChangingValue { message }
        } else if message.contains("CUDA_ERROR_INVALID_VALUE") {
            // The driver refuses to release, in a recording, what was taken before it; the same launches did well in warm-up.
            Self::ReleasedInside { after: last_kernel() }
        } else if message.contains("host/device copies are not") {
            Self::HostRead { message }
        } else {
            Self::RegionFailed { message }
        }
    }
}

fn used_by(kernel: &Option<String>) -> String {
    kernel.as_ref().map_or_else(String::new, |kernel| format!(", the first kernel with it is `{kernel}`"))
}

fn written_to(file: &Option<PathBuf>) -> String {
    file.as_ref().map_or_else(String::new, |file| format!("; {} shows it", file.display()))
}

fn behind(kernel: &Option<String>) -> String {
    kernel.as_ref().map_or_else(String::new, |kernel| format!(" (found after kernel `{kernel}`)"))
}

fn near(after: &Option<String>) -> String {
    after.as_ref().map_or_else(String::new, |kernel| format!(", the first after kernel `{kernel}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tensor_library_refuses_is_told_apart() {
        for (message, name) in [
            ("h2d param cache miss during CUDA graph capture: [3]\n  at foo", "changing_value"),
            ("CUDA graph capture missing cached host data", "changing_value"),
            ("to_cpu_storage during CUDA graph capture: host/device copies are not permitted", "host_read"),
            ("DriverError(CUDA_ERROR_INVALID_VALUE, \"invalid argument\")", "released_inside"),
            ("shape mismatch in matmul", "region_failed"),
        ] {
            assert_eq!(Refusal::of_region(message, || None).name(), name, "{message}");
        }
    }

    #[test]
    fn a_cache_that_grows_is_refused_with_place_and_way_out() {
        let refusal = Refusal::of_region("CUDA_ERROR_INVALID_VALUE", || Some("ucopy_f32".to_owned())).to_string();
        for part in ["found after kernel `ucopy_f32`", "clear_kv_cache", "esper_layers::KvCache"] {
            assert!(refusal.contains(part), "{refusal}");
        }
    }

    #[test]
    fn the_text_names_the_rule_and_the_operation() {
        let refusal = Refusal::HostCopies { uploads: 2, downloads: 0, bytes: 704, after: Some("badd_f32".to_owned()) };
        let expected = "the region copies between host and device (2 times to the device, 0 times to the host, 704 \
                        bytes, the first after kernel `badd_f32`)";
        assert_eq!(refusal.to_string(), expected);
        assert_eq!(refusal.stage(), Stage::Inspect);
    }
}

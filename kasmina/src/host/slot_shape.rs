//! The shape of one sample at a slot.

use std::fmt;

/// Shape of one sample at a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotShape {
    /// (B, features).
    Vector {
        /// Features (C).
        features: usize,
    },
    /// (B, channels, length).
    Signal {
        /// Channels (C).
        channels: usize,
        /// Positions (L).
        length: usize,
    },
    /// (B, channels, height, width).
    Image {
        /// Channels (C).
        channels: usize,
        /// Rows (H).
        height: usize,
        /// Columns (W).
        width: usize,
    },
    /// (B, length, features).
    Sequence {
        /// Positions (L).
        length: usize,
        /// Features of one position (C).
        features: usize,
    },
    /// (B, length, features), where nothing may flow from a position to one before it: a network that says what comes next
    /// would see it.
    Causal {
        /// Positions (L).
        length: usize,
        /// Features of one position (C).
        features: usize,
    },
    /// (B, features) behind a layer, where a seed sees the value (B, inputs) that the layer before it saw.
    Around {
        /// Features that a seed sees.
        inputs: usize,
        /// Features of the value (C).
        features: usize,
    },
}

impl SlotShape {
    /// The shape of a batch of `num_samples`.
    #[must_use]
    pub fn batch(self, num_samples: usize) -> Vec<usize> {
        match self {
            Self::Vector { features } | Self::Around { features, .. } => vec![num_samples, features],
            Self::Signal { channels, length } => vec![num_samples, channels, length],
            Self::Image { channels, height, width } => vec![num_samples, channels, height, width],
            Self::Sequence { length, features } | Self::Causal { length, features } => {
                vec![num_samples, length, features]
            }
        }
    }

    /// The shape of what the module of a seed sees of such a batch: that of the value, but around a layer.
    #[must_use]
    pub fn seen_batch(self, num_samples: usize) -> Vec<usize> {
        match self {
            Self::Around { inputs, .. } => vec![num_samples, inputs],
            _ => self.batch(num_samples),
        }
    }

    /// Features or channels of what it sees.
    pub(crate) fn seen_channels(self) -> usize {
        if let Self::Around { inputs, .. } = self { inputs } else { self.channels() }
    }

    /// Positions that share their weights: 1 for a vector.
    #[must_use]
    pub fn num_positions(self) -> usize {
        match self {
            Self::Vector { .. } | Self::Around { .. } => 1,
            Self::Signal { length, .. } | Self::Sequence { length, .. } | Self::Causal { length, .. } => length,
            Self::Image { height, width, .. } => height * width,
        }
    }

    /// Whether the features of a position lie last, after the positions.
    #[must_use]
    pub(crate) fn is_channels_last(self) -> bool {
        matches!(self, Self::Sequence { .. } | Self::Causal { .. })
    }

    /// Features of a vector or of a position of a sequence, channels of a signal or an image.
    #[must_use]
    pub fn channels(self) -> usize {
        match self {
            Self::Vector { features: channels }
            | Self::Around { features: channels, .. }
            | Self::Signal { channels, .. }
            | Self::Image { channels, .. }
            | Self::Sequence { features: channels, .. }
            | Self::Causal { features: channels, .. } => channels,
        }
    }
}

impl fmt::Display for SlotShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vector { features } => write!(f, "({features})"),
            Self::Signal { channels, length } => write!(f, "({channels}, {length})"),
            Self::Image { channels, height, width } => write!(f, "({channels}, {height}, {width})"),
            Self::Sequence { length, features } => write!(f, "({length}, {features})"),
            Self::Causal { length, features } => write!(f, "({length}, {features}), causal"),
            Self::Around { inputs, features } => write!(f, "({features}), of ({inputs}) before"),
        }
    }
}

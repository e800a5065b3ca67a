//! Which host network, and how large.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::config::ConfigIssue;

/// Names of the sizes that are outputs; every kind has one of them.
const CLASSES: &str = "classes";
const VOCABULARY: &str = "vocabulary";

/// How a signal or an image becomes a vector before the last layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// Mean over positions: (B, C, L) or (B, C, H, W) → (B, C).
    #[default]
    Mean,
    /// All positions: (B, C, L) → (B, C·L), (B, C, H, W) → (B, C·H·W).
    Flatten,
}

/// A host network.
///
/// The features of a sample and the number of classes follow from the data: a file leaves them out, [`HostConfig::sized`]
/// fills them in, and only then can a network be built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum HostConfig {
    /// Linear layers with `ReLU` between them, for vectors (B, inputs).
    ///
    /// Slots: `input` before the first layer, `hidden0`… after each activation.
    Mlp {
        /// Features of one sample.
        #[serde(default, skip_serializing_if = "is_open", deserialize_with = "given")]
        inputs: usize,
        /// Width of each hidden layer.
        hidden: Vec<usize>,
        /// Classes.
        #[serde(default, skip_serializing_if = "is_open", deserialize_with = "given")]
        classes: usize,
    },
    /// Blocks of 1-D convolution and `ReLU`, then a linear layer, for signals (B, length) or (B, 1, length).
    ///
    /// Convolutions are padded by `kernel / 2`. Slots: `input` after the signal was given its channel dimension,
    /// `block0`… after each activation.
    Cnn1d {
        /// Positions of one sample.
        #[serde(default, skip_serializing_if = "is_open", deserialize_with = "given")]
        length: usize,
        /// Channels of each block.
        channels: Vec<usize>,
        /// Positions one output sees.
        kernel: usize,
        /// Positions from one output to the next.
        stride: usize,
        /// Classes.
        #[serde(default, skip_serializing_if = "is_open", deserialize_with = "given")]
        classes: usize,
        /// How a signal becomes a vector before the last layer.
        #[serde(default)]
        pool: Pool,
    },
    /// A transformer encoder over equal parts of a sample, for vectors (B, inputs) or sequences (B, inputs / patch, patch).
    ///
    /// Each part is a token: a linear embedding plus a learned position, then pre-norm blocks of self-attention and a
    /// layer of `mlp_ratio`·`width` features, then the mean over positions. Slots: `input` before the sample is divided,
    /// `embedded` after the embedding, `block0`… after each block.
    ///
    /// # Source
    /// Vaswani et al. 2017 (arXiv 1706.03762); normalization before each layer: Xiong et al. 2020 (arXiv 2002.04745).
    Transformer {
        /// Features of one sample.
        #[serde(default, skip_serializing_if = "is_open", deserialize_with = "given")]
        inputs: usize,
        /// Features of one token.
        patch: usize,
        /// Features of one position inside.
        width: usize,
        /// Heads of each self-attention.
        heads: usize,
        /// Blocks.
        layers: usize,
        /// Width inside the two-layer part of a block, as a multiple of `width`.
        #[serde(default = "default_mlp_ratio")]
        mlp_ratio: usize,
        /// Classes.
        #[serde(default, skip_serializing_if = "is_open", deserialize_with = "given")]
        classes: usize,
    },
    /// A decoder-only transformer, for windows of tokens (B, context) of `u32`: at each of them the logits of the token that
    /// follows, (B, context, vocabulary).
    ///
    /// A token is its row of a table plus a learned position; then come pre-norm blocks of self-attention to the tokens so
    /// far and a layer of `mlp_ratio`·`width` features, then a normalization and the output, which is the table again where
    /// it is `tied`. Slots, at each of which nothing flows back: `embedded` after the positions, `attention0`… between the
    /// halves of each block, `block0`… after it.
    ///
    /// # Source
    /// Radford et al. 2019, "Language models are unsupervised multitask learners"; tied output: Press and Wolf 2017 (arXiv
    /// 1608.05859).
    LanguageModel {
        /// Tokens of a window, and most tokens that one can look back on.
        #[serde(default, skip_serializing_if = "is_open", deserialize_with = "given")]
        context: usize,
        /// Features of one token inside.
        width: usize,
        /// Heads of each self-attention.
        heads: usize,
        /// Blocks.
        layers: usize,
        /// Width inside the two-layer part of a block, as a multiple of `width`.
        #[serde(default = "default_mlp_ratio")]
        mlp_ratio: usize,
        /// Whether the table of tokens is the matrix of the output too; otherwise that has weights of its own.
        #[serde(default = "yes")]
        tied: bool,
        /// Different tokens.
        #[serde(default, skip_serializing_if = "is_open", deserialize_with = "given")]
        vocabulary: usize,
    },
    /// Blocks of 2-D convolution and `ReLU`, then a linear layer, for images (B, `input_channels`, height, width), which
    /// may come as vectors.
    ///
    /// Convolutions are padded by `kernel / 2` on every side. Slots: `input` after vectors became images, `block0`…
    /// after each activation.
    Cnn2d {
        /// Rows of one sample.
        height: usize,
        /// Columns of one sample.
        width: usize,
        /// Channels of one sample.
        #[serde(default = "one_channel")]
        input_channels: usize,
        /// Channels of each block.
        channels: Vec<usize>,
        /// Positions one output sees along each side.
        kernel: usize,
        /// Positions from one output to the next along each side.
        stride: usize,
        /// Classes.
        #[serde(default, skip_serializing_if = "is_open", deserialize_with = "given")]
        classes: usize,
        /// How an image becomes a vector before the last layer.
        #[serde(default)]
        pool: Pool,
    },
}

/// Whether a size is left to the data.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_open(size: &usize) -> bool {
    *size == 0
}

/// A size that is written down; an open one is left out.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    match usize::deserialize(deserializer)? {
        0 => Err(D::Error::custom("is 0: expected none, it follows from the data")),
        size => Ok(size),
    }
}

fn default_mlp_ratio() -> usize {
    HostConfig::DEFAULT_MLP_RATIO
}

fn one_channel() -> usize {
    1
}

fn yes() -> bool {
    true
}

impl HostConfig {
    /// What each setting means, by its key inside of the section.
    pub const MEANINGS: &[(&str, &str)] = &[
        ("mlp.hidden", "Width of each hidden layer."),
        ("cnn1d.channels", "Channels of each block."),
        ("cnn1d.kernel", "Positions one output sees."),
        ("cnn1d.stride", "Positions from one output to the next."),
        ("cnn1d.pool", "How a signal becomes a vector before the last layer."),
        ("transformer.patch", "Features of one token."),
        ("transformer.width", "Features of one position inside."),
        ("transformer.heads", "Heads of each self-attention."),
        ("transformer.layers", "Blocks."),
        ("transformer.mlp_ratio", "Width inside the two-layer part of a block, as a multiple of `width`."),
        ("language_model.width", "Features of one token inside."),
        ("language_model.heads", "Heads of each self-attention."),
        ("language_model.layers", "Blocks."),
        ("language_model.mlp_ratio", "Width inside the two-layer part of a block, as a multiple of `width`."),
        ("language_model.tied", "Whether the table of tokens is the matrix of the output too."),
        ("cnn2d.height", "Rows of one sample."),
        ("cnn2d.width", "Columns of one sample."),
        ("cnn2d.input_channels", "Channels of one sample."),
        ("cnn2d.channels", "Channels of each block."),
        ("cnn2d.kernel", "Positions one output sees along each side."),
        ("cnn2d.stride", "Positions from one output to the next along each side."),
        ("cnn2d.pool", "How an image becomes a vector before the last layer."),
    ];

    /// Sections of a file (TOML), one for each alternative; sizes are the largest, which limit others.
    pub const EXAMPLES: &[&str] = &[
        r#"{ mlp = { hidden = [4] } }"#,
        r#"{ cnn1d = { channels = [4], kernel = 3, stride = 1 } }"#,
        r#"{ cnn2d = { height = 1024, width = 1024, channels = [4], kernel = 3, stride = 1 } }"#,
        r#"{ transformer = { patch = 1, width = 1048576, heads = 1, layers = 1 } }"#,
        r#"{ language_model = { width = 1048576, heads = 1, layers = 1 } }"#,
    ];

    /// Sizes that follow from the data, of whatever kind: they are filled in and not written.
    pub const OPEN_SIZES: [&str; 5] = ["inputs", "length", "context", CLASSES, VOCABULARY];

    /// Largest accepted value of any size: products of three of them still fit into 64 bits. What they amount to together is
    /// checked where a network is built, because a size may stand for all that data can have.
    const MAX_SIZE: usize = 1 << 20;
    /// Most layers, or blocks: what looks for one among them, as for each seed, stays quick.
    const MAX_LAYERS: usize = 1024;
    /// Largest ratio of the widths inside a block of a transformer.
    const MAX_MLP_RATIO: usize = 64;

    /// Ratio of the widths inside a block of a transformer where none is given: that of Vaswani et al. 2017.
    pub const DEFAULT_MLP_RATIO: usize = 4;

    /// Largest accepted side of an image: the square of one still leaves room for two other sizes.
    const MAX_SIDE: usize = 1 << 10;

    /// Its name in a file.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Mlp { .. } => "mlp",
            Self::Cnn1d { .. } => "cnn1d",
            Self::Transformer { .. } => "transformer",
            Self::Cnn2d { .. } => "cnn2d",
            Self::LanguageModel { .. } => "language_model",
        }
    }

    /// The same network with every inner width `times` / `of` as wide, rounded up to what fits its heads.
    ///
    /// ```
    /// use kasmina::host::HostConfig;
    ///
    /// let host = HostConfig::Mlp { inputs: 64, hidden: vec![6, 4], classes: 10 };
    /// assert_eq!(host.scaled(3, 2), HostConfig::Mlp { inputs: 64, hidden: vec![9, 6], classes: 10 });
    /// ```
    ///
    /// # Panics
    /// When `of` is 0.
    #[must_use]
    pub fn scaled(&self, times: usize, of: usize) -> Self {
        let scale = |size: usize| size.saturating_mul(times).div_ceil(of);
        let mut scaled = self.clone();
        match &mut scaled {
            Self::Mlp { hidden: widths, .. }
            | Self::Cnn1d { channels: widths, .. }
            | Self::Cnn2d { channels: widths, .. } => widths.iter_mut().for_each(|width| *width = scale(*width)),
            Self::Transformer { width, heads, .. } | Self::LanguageModel { width, heads, .. } => {
                *width = scale(*width).next_multiple_of((*heads).max(1));
            }
        }
        scaled
    }

    /// Shape of one sample as the network sees it; vectors of as many features are taken too.
    #[must_use]
    pub fn sample_shape(&self) -> Vec<usize> {
        match *self {
            Self::Mlp { inputs, .. } => vec![inputs],
            Self::Cnn1d { length, .. } => vec![1, length],
            Self::Transformer { inputs, patch, .. } => vec![inputs / patch.max(1), patch],
            Self::Cnn2d { height, width, input_channels, .. } => vec![input_channels, height, width],
            Self::LanguageModel { context, .. } => vec![context],
        }
    }

    /// Most tokens that a language model looks back on; none for hosts that take no tokens.
    #[must_use]
    pub fn context(&self) -> Option<usize> {
        match *self {
            Self::LanguageModel { context, .. } => Some(context),
            Self::Mlp { .. } | Self::Cnn1d { .. } | Self::Transformer { .. } | Self::Cnn2d { .. } => None,
        }
    }

    /// Logits of one sample, or of one token of a language model (count).
    #[must_use]
    pub fn num_outputs(&self) -> usize {
        match *self {
            Self::Mlp { classes, .. }
            | Self::Cnn1d { classes, .. }
            | Self::Transformer { classes, .. }
            | Self::Cnn2d { classes, .. }
            | Self::LanguageModel { vocabulary: classes, .. } => classes,
        }
    }

    /// The sizes that follow from the data, by name: features of one sample, unless they are given, and classes.
    fn open_sizes(&mut self) -> Vec<(&'static str, &mut usize)> {
        match self {
            Self::Mlp { inputs, classes, .. } | Self::Transformer { inputs, classes, .. } => {
                vec![("inputs", inputs), (CLASSES, classes)]
            }
            Self::Cnn1d { length, classes, .. } => vec![("length", length), (CLASSES, classes)],
            Self::Cnn2d { classes, .. } => vec![(CLASSES, classes)],
            Self::LanguageModel { context, vocabulary, .. } => vec![("context", context), (VOCABULARY, vocabulary)],
        }
    }

    /// The network for samples of so many features and classes.
    ///
    /// ```
    /// # use kasmina::host::HostConfig;
    /// let host: HostConfig = serde_json::from_str(r#"{"mlp":{"hidden":[4]}}"#)?;
    /// assert_eq!(host.sized(64, 10), Ok(HostConfig::Mlp { inputs: 64, hidden: vec![4], classes: 10 }));
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    ///
    /// # Errors
    /// What does not fit the data, where the shape of a sample is given.
    pub fn sized(&self, num_features: usize, num_classes: usize) -> Result<Self, ConfigIssue> {
        let mut sized = self.clone();
        let mut open = sized.open_sizes();
        for (name, size) in &mut open {
            **size = if [CLASSES, VOCABULARY].contains(name) { num_classes } else { num_features };
        }
        let (is_given, shape) = (open.len() == 1, sized.sample_shape());
        // Sides that nobody has checked must not wrap around into a size that fits.
        let size = shape.iter().fold(1_usize, |size, side| size.saturating_mul(*side));
        if is_given && size != num_features {
            let message =
                format!("takes samples of {shape:?}, that is {size}: expected the {num_features} features of the data");
            return Err(ConfigIssue::new(format!("host.{}", self.kind()), message));
        }
        Ok(sized)
    }

    /// What is wrong whatever the data are: sizes that only they can give, and values that no data allow. A kernel wider
    /// than a sample, or tokens that do not divide one, show only with the data.
    #[must_use]
    pub fn validate_open(&self) -> Vec<ConfigIssue> {
        let (kind, mut widest) = (self.kind(), self.clone());
        let most = match *self {
            Self::Transformer { patch, .. } if (1..=Self::MAX_SIZE).contains(&patch) => {
                Self::MAX_SIZE - Self::MAX_SIZE % patch
            }
            _ => Self::MAX_SIZE,
        };
        let mut issues = Vec::new();
        for (name, size) in widest.open_sizes() {
            if *size != 0 {
                let message = format!("is {size}: expected none, it follows from the data");
                issues.push(ConfigIssue::new(format!("host.{kind}.{name}"), message));
            }
            *size = if [CLASSES, VOCABULARY].contains(&name) { 2 } else { most };
        }
        issues.extend(widest.validate());
        issues
    }

    /// Everything that is wrong with the values, each by itself; keys start with `host.`. A network of more than 2^31 elements
    /// is refused when it is built, before anything is allocated.
    #[must_use]
    pub fn validate(&self) -> Vec<ConfigIssue> {
        let (kind, mut issues) = (self.kind(), Vec::new());
        let mut within = |key: &str, value: usize, min: usize, max: usize| {
            if !(min..=max).contains(&value) {
                let message = format!("is {value}: expected {min} to {max}");
                issues.push(ConfigIssue::new(format!("host.{kind}.{key}"), message));
            }
        };
        let blocks = match self {
            Self::Mlp { inputs, hidden, classes } => {
                within("inputs", *inputs, 1, Self::MAX_SIZE);
                within(CLASSES, *classes, 1, Self::MAX_SIZE);
                ("hidden", hidden)
            }
            Self::Cnn1d { length, channels, kernel, stride, classes, pool: _ } => {
                within("length", *length, 1, Self::MAX_SIZE);
                within("kernel", *kernel, 1, *length);
                within("stride", *stride, 1, *length);
                within(CLASSES, *classes, 1, Self::MAX_SIZE);
                ("channels", channels)
            }
            Self::LanguageModel { context, width, heads, layers, mlp_ratio, tied: _, vocabulary } => {
                within("context", *context, 1, Self::MAX_SIZE);
                within("width", *width, 2, Self::MAX_SIZE);
                within("heads", *heads, 1, *width);
                within("layers", *layers, 1, Self::MAX_LAYERS);
                within("mlp_ratio", *mlp_ratio, 1, Self::MAX_MLP_RATIO);
                within(VOCABULARY, *vocabulary, 1, Self::MAX_SIZE);
                issues.extend(indivisible(kind, [("heads", *heads, *width, "the width")]));
                return issues;
            }
            Self::Transformer { inputs, patch, width, heads, layers, mlp_ratio, classes } => {
                within("inputs", *inputs, 1, Self::MAX_SIZE);
                within("patch", *patch, 1, *inputs);
                // A single feature normalized across itself is always 0.
                within("width", *width, 2, Self::MAX_SIZE);
                within("heads", *heads, 1, *width);
                within("layers", *layers, 1, Self::MAX_LAYERS);
                within("mlp_ratio", *mlp_ratio, 1, Self::MAX_MLP_RATIO);
                within(CLASSES, *classes, 1, Self::MAX_SIZE);
                let parts =
                    [("patch", *patch, *inputs, "the features of a sample"), ("heads", *heads, *width, "the width")];
                issues.extend(indivisible(kind, parts));
                return issues;
            }
            Self::Cnn2d { height, width, input_channels, channels, kernel, stride, classes, pool: _ } => {
                let shorter = *height.min(width);
                within("height", *height, 1, Self::MAX_SIDE);
                within("width", *width, 1, Self::MAX_SIDE);
                within("input_channels", *input_channels, 1, Self::MAX_SIZE);
                within("kernel", *kernel, 1, shorter);
                within("stride", *stride, 1, shorter);
                within(CLASSES, *classes, 1, Self::MAX_SIZE);
                ("channels", channels)
            }
        };
        for (index, &width) in blocks.1.iter().enumerate().take(Self::MAX_LAYERS) {
            within(&format!("{}[{index}]", blocks.0), width, 1, Self::MAX_SIZE);
        }
        if blocks.1.len() > Self::MAX_LAYERS {
            let message = format!("has {} widths: expected at most {}", blocks.1.len(), Self::MAX_LAYERS);
            issues.push(ConfigIssue::new(format!("host.{kind}.{}", blocks.0), message));
        }
        issues
    }
}

/// Of a key, a part, a whole and its name: parts that do not divide the whole.
fn indivisible<const N: usize>(
    kind: &'static str,
    parts: [(&'static str, usize, usize, &'static str); N],
) -> impl Iterator<Item = ConfigIssue> {
    let is_wrong = |&(_, part, whole, _): &(_, usize, usize, _)| (1..=whole).contains(&part) && whole % part != 0;
    parts.into_iter().filter(is_wrong).map(move |(key, part, whole, what)| {
        let message = format!("is {part}: expected a divisor of {whole}, {what}");
        ConfigIssue::new(format!("host.{kind}.{key}"), message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, issues: &[&str]) {
        let config: HostConfig = serde_json::from_str(json).unwrap();
        let found: Vec<String> = config.validate().iter().map(ToString::to_string).collect();
        assert_eq!(found, issues);
    }

    #[test]
    fn the_sizes_of_a_transformer_must_divide_each_other() {
        let host = |rest: &str| format!(r#"{{"transformer":{{"inputs":64,"layers":2,"classes":10,{rest}}}}}"#);
        check(&host(r#""patch":8,"width":32,"heads":4"#), &[]);
        check(&host(r#""patch":64,"width":2,"heads":2,"mlp_ratio":1"#), &[]);
        check(
            &host(r#""patch":7,"width":32,"heads":3"#),
            &[
                "`host.transformer.patch` is 7: expected a divisor of 64, the features of a sample",
                "`host.transformer.heads` is 3: expected a divisor of 32, the width",
            ],
        );
        check(
            &host(r#""patch":65,"width":1,"heads":0,"mlp_ratio":65"#),
            &[
                "`host.transformer.patch` is 65: expected 1 to 64",
                "`host.transformer.width` is 1: expected 2 to 1048576",
                "`host.transformer.heads` is 0: expected 1 to 1",
                "`host.transformer.mlp_ratio` is 65: expected 1 to 64",
            ],
        );
        check(
            &host(r#""patch":0,"width":4,"heads":5"#),
            &["`host.transformer.patch` is 0: expected 1 to 64", "`host.transformer.heads` is 5: expected 1 to 4"],
        );
        let none = r#"{"transformer":{"inputs":8,"patch":2,"width":4,"heads":2,"layers":0,"classes":1048577}}"#;
        check(
            none,
            &[
                "`host.transformer.layers` is 0: expected 1 to 1024",
                "`host.transformer.classes` is 1048577: expected 1 to 1048576",
            ],
        );
        // One output is a network of one value.
        check(r#"{"mlp":{"inputs":8,"hidden":[4],"classes":1}}"#, &[]);
    }

    #[test]
    fn a_host_has_so_many_layers_at_most() {
        let host = |num: usize| format!(r#"{{"mlp":{{"inputs":8,"hidden":{:?},"classes":2}}}}"#, vec![1; num]);
        check(&host(1024), &[]);
        check(&host(1025), &["`host.mlp.hidden` has 1025 widths: expected at most 1024"]);
        let blocks = format!(r#""channels":{:?},"kernel":1,"stride":1,"classes":2"#, vec![1; 1025]);
        let signal = format!(r#"{{"cnn1d":{{"length":8,{blocks}}}}}"#);
        check(&signal, &["`host.cnn1d.channels` has 1025 widths: expected at most 1024"]);
        let image = format!(r#"{{"cnn2d":{{"height":8,"width":8,{blocks}}}}}"#);
        check(&image, &["`host.cnn2d.channels` has 1025 widths: expected at most 1024"]);
    }

    #[test]
    fn the_heads_of_a_language_model_must_divide_its_width() {
        let host = |rest: &str| format!(r#"{{"language_model":{{"context":8,"vocabulary":256,"layers":2,{rest}}}}}"#);
        check(&host(r#""width":32,"heads":4,"tied":false"#), &[]);
        check(
            &host(r#""width":32,"heads":3,"mlp_ratio":65"#),
            &[
                "`host.language_model.mlp_ratio` is 65: expected 1 to 64",
                "`host.language_model.heads` is 3: expected a divisor of 32, the width",
            ],
        );
        check(&host(r#""width":4,"heads":5"#), &["`host.language_model.heads` is 5: expected 1 to 4"]);
    }

    #[test]
    fn a_size_that_follows_from_the_data_is_not_written_down_as_0() {
        for json in [
            r#"{"mlp":{"inputs":0,"hidden":[4]}}"#,
            r#"{"mlp":{"hidden":[4],"classes":0}}"#,
            r#"{"cnn1d":{"length":0,"channels":[4],"kernel":3,"stride":1}}"#,
        ] {
            let error = serde_json::from_str::<HostConfig>(json).unwrap_err().to_string();
            assert!(error.starts_with("is 0: expected none, it follows from the data"), "{json}: {error}");
        }
    }

    #[test]
    fn the_ratio_of_the_widths_has_a_default() {
        let json = r#"{"transformer":{"inputs":8,"patch":2,"width":4,"heads":2,"layers":1,"classes":3}}"#;
        let expected =
            HostConfig::Transformer { inputs: 8, patch: 2, width: 4, heads: 2, layers: 1, mlp_ratio: 4, classes: 3 };
        assert_eq!(serde_json::from_str::<HostConfig>(json).unwrap(), expected);
    }
}

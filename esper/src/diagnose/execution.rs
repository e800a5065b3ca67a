//! Settings of execution that a diagnosis switches, one by one.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use esper_graph::{GraphFunctionConfig, GraphManager, GraphMode, Precision, precision};

/// How a step reaches the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Eager,
    Captured,
    Compiled,
}

impl Mode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Captured => "captured",
            Self::Compiled => "compiled",
        }
    }

    /// Of a function that holds so many graphs, and is compiled as early as it can be.
    pub(super) fn config(self, num_graphs: usize, compile_cache: Option<PathBuf>) -> GraphFunctionConfig {
        let auto = |is_on| if is_on { GraphMode::Auto } else { GraphMode::Off };
        GraphFunctionConfig {
            mode: auto(self != Self::Eager),
            compile: auto(self == Self::Compiled),
            limit: NonZeroUsize::new(num_graphs).unwrap_or(NonZeroUsize::MIN),
            compile_warmup_calls: 1,
            compile_verify_calls: NonZeroU32::MIN,
            compile_cache,
            ..GraphFunctionConfig::default()
        }
    }
}

/// What can be switched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Execution {
    pub(super) graphs: bool,
    pub(super) compile: bool,
    pub(super) overlap: bool,
    pub(super) recompute: bool,
    pub(super) tf32: bool,
}

impl Execution {
    /// What is usual in this process.
    pub(super) fn usual() -> Self {
        let overlap = GraphManager::global().overlap();
        Self { graphs: true, compile: true, overlap, recompute: false, tf32: false }
    }

    /// The ways that steps are to be run.
    pub(super) fn has(self, mode: Mode) -> bool {
        self.graphs && (self.compile || mode != Mode::Compiled) || mode == Mode::Eager
    }

    /// Runs `work` with the settings that belong to a process or a thread.
    pub(super) fn within<R>(self, work: impl FnOnce() -> R) -> R {
        let manager = GraphManager::global();
        let before = manager.overlap();
        manager.set_overlap(self.overlap);
        let found = if self.tf32 { precision::with_precision(Precision::Tf32, work).0 } else { work() };
        manager.set_overlap(before);
        found
    }
}

/// A setting that is switched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ablation {
    name: &'static str,
    /// Absent for the other value than usual, which is not known before the process has settled.
    is_on: Option<bool>,
}

type Setting = (&'static str, fn(&mut Execution) -> &mut bool);

const SETTINGS: [Setting; 5] = [
    ("compile", |of| &mut of.compile),
    ("graphs", |of| &mut of.graphs),
    ("overlap", |of| &mut of.overlap),
    ("recompute", |of| &mut of.recompute),
    ("tf32", |of| &mut of.tf32),
];

impl Ablation {
    /// `NAME` for the other value than usual, or `NAME=true` or `NAME=false`.
    ///
    /// # Errors
    /// What is accepted.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (name, value) =
            text.split_once('=').map_or((text.trim(), None), |(name, value)| (name.trim(), Some(value)));
        let names = SETTINGS.map(|(name, _)| name).join(", ");
        let Some((name, _)) = SETTINGS.iter().find(|(known, _)| *known == name) else {
            return Err(format!(
                "`{name}` is no setting of execution: expected some of {names}, with `;` between them"
            ));
        };
        let is_on = match value.map(str::trim) {
            None => None,
            Some("true") => Some(true),
            Some("false") => Some(false),
            Some(other) => return Err(format!("`{name}` is `{other}`: expected true or false")),
        };
        Ok(Self { name, is_on })
    }

    /// The usual settings with this one, and their name.
    pub(super) fn applied(self) -> (String, Execution) {
        let (mut execution, mut label) = (Execution::usual(), String::new());
        for (name, of) in SETTINGS.iter().filter(|(name, _)| *name == self.name) {
            let value = of(&mut execution);
            *value = self.is_on.unwrap_or(!*value);
            label = format!("{name}={value}");
        }
        (label, execution)
    }

    /// Whether it means something on a GPU only.
    pub(super) fn needs_gpu(self) -> bool {
        self.name != "recompute"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_switched_or_set_and_an_unknown_one_names_those_there_are() {
        let usual = Execution::usual();
        for (text, expected) in [
            ("graphs", Ok(Execution { graphs: false, ..usual })),
            ("compile=false", Ok(Execution { compile: false, ..usual })),
            (" compile = true ", Ok(usual)),
            ("overlap", Ok(Execution { overlap: false, ..usual })),
            ("recompute", Ok(Execution { recompute: true, ..usual })),
            ("tf32=true", Ok(Execution { tf32: true, ..usual })),
            (
                "speed",
                Err("`speed` is no setting of execution: expected some of compile, graphs, overlap, recompute, tf32"),
            ),
            ("", Err("`` is no setting")),
            ("tf32=on", Err("`tf32` is `on`: expected true or false")),
        ] {
            match (Ablation::parse(text).map(|ablation| ablation.applied().1), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text}"),
                (Err(found), Err(expected)) => assert!(found.starts_with(expected), "{found}"),
                (found, expected) => panic!("{text}: {found:?}, expected {expected:?}"),
            }
        }
    }

    #[test]
    fn what_is_not_captured_is_not_compiled() {
        let ways = |execution: Execution| [Mode::Eager, Mode::Captured, Mode::Compiled].map(|mode| execution.has(mode));
        assert_eq!(ways(Execution::usual()), [true; 3]);
        assert_eq!(ways(Execution { compile: false, ..Execution::usual() }), [true, true, false]);
        assert_eq!(ways(Execution { graphs: false, ..Execution::usual() }), [true, false, false]);
    }
}
